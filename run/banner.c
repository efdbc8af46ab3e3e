/* banner.c - prints the lines at the start and after the end of a run: see banner.h. */
#include "run/banner.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/format.h"
#include "core/terminal.h"
#include "model/block.h"

enum { LABEL_COLUMNS = 10 };

static const char *const KINDS[] = {[COMM_RING] = "own ring over MPI",
                                    [COMM_MPI] = "MPI's collectives",
                                    [COMM_NCCL] = "NCCL"};

#define line(...) say_labelled(LABEL_COLUMNS, __VA_ARGS__)

/* Returns the name of the processor or GPU without trademarks and clock rate. */
static const char *short_name(char out[128]) {
    static const char *const marks[] = {"(R)", "(TM)", "(r)", "(tm)", " CPU", " Processor"};
    snprintf(out, 128, "%s", device_name());
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        for (char *at; (at = strstr(out, marks[i]));) {
            const char *rest = at + strlen(marks[i]);
            memmove(at, rest, strlen(rest) + 1);
        }
    out[strcspn(out, "@")] = 0;
    for (size_t end = strlen(out); end > 0 && out[end - 1] == ' ';) out[--end] = 0;
    return out;
}

/* Prints the line about the machine of rank 0. With several ranks it begins with "4 on 2 hosts (hostA, ...), NCCL:
 * tensor 2 x shard 2; ". */
static void print_machine(const Run *r) {
    int  ranks = comm_size(r->comm), hosts = 0;
    char name[128], grid[MESH_TEXT] = "", rate[320];
    int  is_fast = r->matmul_flops >= 1e13;
    snprintf(rate, sizeof rate, "%s (%s), %d thread%s%s; MFU: share of %.1f %cFLOP/s%s", short_name(name), device_isa(),
             device_threads(), plural(device_threads()), ranks > 1 ? " each" : "",
             r->matmul_flops * (is_fast ? 1e-12 : 1e-9), is_fast ? 'T' : 'G', r->fp8.amax ? " of bf16 products" : "");
    if (ranks == 1) {
        line("machine", "%s", rate);
        return;
    }
    for (int i = 0; i < ranks; i++)
        if (i == 0 || strcmp(comm_host(r->comm, i), comm_host(r->comm, i - 1)) != 0) hosts++;
    if (mesh_ranks(r->groups.mesh) > r->groups.mesh.size[AXIS_SHARD]) mesh_text(r->groups.mesh, grid);
    line("ranks", "%d on %d host%s (%s%s), %s%s%s; %s", ranks, hosts, plural(hosts), comm_host(r->comm, 0),
         hosts > 1 ? ", ..." : "", KINDS[comm_kind(r->comm)], *grid ? ": " : "", grid, rate);
}

static void print_model(const Run *r) {
    ModelShape shape = r->config->model.shape;
    /* 1 if products of bf16 matrices are computed in f32, because the processor lacks bf16 instructions or has slow
     * ones */
    int        is_in_tiles = r->numerics.act == BF16 && !device_has_quick_bf16();
    const char *how = is_in_tiles ? " by way of f32 tiles" : "";
    if (r->fp8.amax)
        how = device_is_host() ? ": the blocks' products of rounded bf16" : " in the blocks' products, else bf16";
    int is_usual = shape.activation == (int)block_kind(shape)->activation;
    line("model", "%.2f M parameters: %s, %lld layers, %lld heads, width %lld%s%s; %s%s; %s",
         (double)r->plan.parameters * 1e-6, block_kind(shape)->name, (long long)shape.n_layer, (long long)shape.n_head,
         (long long)shape.n_embd, is_usual ? "" : ", ", is_usual ? "" : ACTIVATION_NAMES[shape.activation],
         r->numerics.name, how, r->config->optimizer.name);
}

int blend_use(const Dataset *data, const Config *config, int64_t samples, SourceUse *use) {
    const StringList *train = &config->data.train;
    int64_t           count[BLEND_SOURCES];
    int               seen = 0;
    blend_count(data->blend, samples, count);
    for (int i = 0; i < train->count; i++) {
        int source = blend_source(train->item, i);
        /* an earlier stage of the blend (mix of data sources) has the same path, which is described once */
        if (source < seen) continue;
        char    tokens[32];
        int64_t own = data->first_of_source[source + 1] - data->first_of_source[source];
        snprintf(use[seen++].text, sizeof use->text, "%.1f %% from %.400s: %s tokens, %.2f epochs",
                 100.0 * (double)count[source] / (double)samples, train->item[i],
                 grouped_text(count[source] * data->seq_len, tokens), sample_epochs(count[source], own));
    }
    return seen;
}

static void print_data(const Run *r) {
    const Config *c = r->config;
    char          tokens[32], val[32], all[32], validation[96] = "no validation", unread[SAMPLE_COUNT_CHARS];
    int64_t       samples = run_position(r, c->run.steps).samples;
    SampleCount   count = dataset_count(&r->train);
    /* tokens at the ends of the data files that no training sample reads; `train_gpt check` lists them */
    int64_t tails = count.short_files || count.bare_files ? 0 : count.tail_tokens;
    if (tails) snprintf(unread, sizeof unread, "; %s never read", grouped_text(tails, all));
    else       sample_count_unread(&count, c->batch.seq_len, "; ", unread);
    if (r->val.shards)
        snprintf(validation, sizeof validation, "val %s of %s",
                 grouped_text(dataset_first_samples(&r->val, c->eval.tokens) * c->batch.seq_len, val),
                 grouped_text(r->val.tokens, all));
    line("data", "%s tokens (%d file%s), %.2f epochs%s; %s%s", grouped_text(r->train.tokens, tokens), r->train.shards,
         plural(r->train.shards), sample_epochs(samples, r->train.samples), c->data.shuffle ? "" : ", plain order",
         validation, unread);
    SourceUse use[BLEND_SOURCES];
    int       sources = r->train.blend ? blend_use(&r->train, c, samples, use) : 0;
    for (int i = 0; i < sources; i++) line("source", "%s", use[i].text);
}

/* Returns a number in short: 474.7 as "475", 1.36 as "1.4". */
static ShortText short_number(double value) {
    ShortText t;
    snprintf(t.text, sizeof t.text, value < 9.95 ? "%.1f" : "%.0f", value);
    return t;
}

/* Prints the line "memory": the memory of a rank, with weights, gradients, optimizer and activations by name. The sum
 * also has scratch memory, batches and libraries, which only `train_gpt plan` names. */
static void print_memory(const Run *r) {
    const Plan *p = &r->plan;
    int         is_large = p->device_bytes >= (size_t)1 << 30;
    double      unit = is_large ? 1073741824.0 : 1048576.0;
    line("memory", "%s %s%s: weights %s, gradients %s, optimizer %s, activations %s",
         short_number((double)p->device_bytes / unit).text, is_large ? "GiB" : "MiB",
         comm_size(r->comm) > 1 ? " each" : "", short_number((double)p->params_bytes / unit).text,
         short_number((double)p->grads_bytes / unit).text, short_number((double)p->optimizer_bytes / unit).text,
         short_number((double)p->activation_bytes / unit).text);
}

/* Returns the grid in parentheses, such as " (tensor 2 x shard 4)", or "" without a grid. */
static const char *in_grid(const char *grid, char out[MESH_TEXT + 4]) {
    snprintf(out, MESH_TEXT + 4, "%s%s%s", grid[0] ? " (" : "", grid, grid[0] ? ")" : "");
    return out;
}

static void print_start(const Run *r) {
    const Config *c = r->config;
    char          now[MESH_TEXT], before[MESH_TEXT + 4], after[MESH_TEXT + 4];
    int           is_grid = mesh_ranks(r->groups.mesh) > r->groups.mesh.size[AXIS_SHARD];
    mesh_text(r->groups.mesh, now);
    if (r->resumed.ranks > 0)
        line("resume", "resumes at step %lld, saved by %d rank%s%s, now %d%s: %s/checkpoints",
             (long long)r->resumed.step, r->resumed.ranks, plural(r->resumed.ranks), in_grid(r->resumed.grid, before),
             comm_size(r->comm), in_grid(is_grid ? now : "", after), c->run.dir);
    else if (c->model.init_from[0]) line("start", "weights from %s", c->model.init_from);
    else line("start", "new weights, seed %lld", (long long)c->run.seed);
    if (r->resumed.is_copy)
        line("copy", "of run %s at step %lld: from here on a run of its own, %s", r->state.parent.run_id,
             (long long)r->state.parent.step, r->state.run_id);
}

void banner_print(const Run *r) {
    if (!run_is_rank0(r)) return;
    const Config *c = r->config;
    char          config[2048], dir[2048], experts[240], sharers[64], tokens[32], away[32], before[32];
    say(stdout, LABEL_COLUMNS, BOLD "train_gpt" RESET " %s: %s -> %s", device_backend(),
        terminal_plain(config, sizeof config, c->path), terminal_plain(dir, sizeof dir, c->run.dir));
    print_machine(r);
    print_model(r);
    if (*plan_experts(c, r->numerics.act, experts)) line("experts", "%s", experts);
    print_data(r);
    line("batch", "%s tokens a step: %s x %lld micro-batch%s x %lld sequence%s of %lld",
         grouped_text(c->batch.global_tokens, tokens), plan_sharers(r->groups.datas, comm_size(r->comm), sharers),
         (long long)r->shares[0], r->shares[0] == 1 ? "" : "es",
         (long long)c->batch.micro_batch, plural(c->batch.micro_batch), (long long)c->batch.seq_len);
    print_memory(r);
    /* The line names the nearest time limit of the job, because the scheduler may have set it. */
    double      away_ms, reserve_ms;
    const char *limit = requests_limit(&r->requests, &away_ms, &reserve_ms);
    if (limit) {
        duration_text(away, away_ms > 0 ? away_ms : 0);
        duration_text(before, reserve_ms);
        line("limit", "%s in %s: the run stops, saved, %s before", limit, away, before);
    }
    print_start(r);
    if (r->resumed.ranks == 0) schedule_say_no_warmup(c, LABEL_COLUMNS);
    /* mpirun kills its ranks two seconds after Ctrl-C, and a step with its save may take longer. So the line names a
     * file that stops the run. */
    if (comm_size(r->comm) > 1)
        line("stop", "touch %s/STOP (mpirun kills its ranks 2 s after Ctrl-C)", shell_word(c->run.dir).text);
}

void banner_next(const Run *r) {
    const char *dir = r->config->run.dir, *slash = strrchr(dir, '/');
    char        out[PATH_MAX];
    if (!run_is_rank0(r)) return;
    snprintf(out, sizeof out, "models/%s", !slash ? dir : slash[1] ? slash + 1 : "mine");
    line("text", "./train_gpt sample %s", shell_word(dir).text);
    line("curve", "%s/loss.svg", dir);
    if (r->config->model.shape.logit_softcap == 0) /* export refuses a soft cap */
        line("export", "./train_gpt export %s out=%s", shell_word(dir).text, shell_word(out).text);
}
