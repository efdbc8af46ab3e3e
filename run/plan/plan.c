/* plan.c - computes the memory and work of a run without allocating that memory: see plan.h. */
#include "run/plan/plan.h"

#include <libgen.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/io.h"
#include "core/terminal.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "model/precision.h"
#include "run/checkpoint/checkpoint.h"
#include "run/checkpoint/memory_copies.h"
#include "run/outer/island.h"
#include "run/outer/rule.h"

static size_t largest_follower(const Config *c) {
    size_t most = 0;
    int    servers = c->outer.server ? outer_servers(c->outer.server) : 1;
    for (int part = 1; part < servers; part++) {
        ServeBytes of = serve_bytes(c, part);
        if (of.all > most) most = of.all;
    }
    return most;
}

/* Returns the bytes of buffers in host memory through which ranks exchange data. leaves: leaves of the trees that add
 * gradients in a fixed order, or 0 without them. */
static size_t exchange_bytes(const Config *c, PlanRanks ranks, Mesh mesh, const Layout *layout, int64_t leaves) {
    int64_t C = c->model.shape.n_embd, KV = dim_size(DIM_KV, c->model.shape), tensor = mesh.size[AXIS_TENSOR];
    int64_t B = c->batch.micro_batch, T = c->batch.seq_len, N = B * (T / mesh.size[AXIS_CONTEXT]);
    /* nodes: largest number of tree nodes that cover the leaves of one rank. A rank sends one bucket to another rank
     * for each of these nodes. */
    int     nodes = 1, shards = mesh.size[AXIS_SHARD];
    for (int r = 0; leaves && r < shards; r++)
        if (tree_of_rank(leaves, shards, r).count > nodes) nodes = tree_of_rank(leaves, shards, r).count;
    return groups_buffer_bytes(mesh, ranks.comm, (int)c->parallel.expert) +
           comm_staging_bytes(ranks.comm, ranks.count, layout->memory_elems * nodes) +
           comm_staging_bytes(ranks.comm, (int)tensor, N * C) +
           comm_staging_bytes(ranks.comm, mesh.size[AXIS_STAGE], 4 * N / tensor * C) +
           comm_staging_bytes(ranks.comm, mesh.size[AXIS_CONTEXT], 2 * B * T * KV / tensor) +
           comm_staging_bytes(ranks.comm, (int)c->parallel.expert, 4 * N * c->model.shape.top_k * C);
}

static Plan plan_stage(const Config *c, DType act, PlanRanks ranks) {
    ModelSpec  spec = config_model_spec(c, act, ranks.count, ranks.stage, NULL);
    Mesh       mesh = config_mesh(c, ranks.count);
    int64_t    micro_steps = spec.pipeline.micro_batches, B = spec.B, own_T = spec.T / mesh.size[AXIS_CONTEXT];
    Ledger     step = {0};
    ModelBytes model = model_dry(spec, micro_steps, &step);
    Layout     layout = model_spec_layout(&spec);
    Arena      batches = arena_dry("batches");
    int64_t    leaves = spec.shards.micro_batches * mesh.size[AXIS_SHARD];
    size_t     tree_bytes = leaves ? comm_tree_bytes(ranks.comm, mesh.size[AXIS_SHARD], leaves) : 0;
    size_t     nccl_bytes = ranks.comm == COMM_NCCL ? tree_bytes : 0;
    int        has_server = c->outer.server && *c->outer.server, in_memory = c->checkpoint.memory_every > 0;
    GroupsUse  use = {(int)c->parallel.expert, config_optimizer(c)->update_matrices != NULL,
                      leaves > 0};
    /* the evaluation batch, which loader_bytes does not count: inputs, targets, and where its documents begin */
    for (int i = 0; i < (spec.document_mask ? 3 : 2); i++) arena_tensor(&batches, I32, 2, B, own_T, 1);
    arena_take(&batches, loader_bytes(B, own_T, pipeline_batches(spec.pipeline), spec.document_mask));

    DeviceMemory device = device_memory();
    Plan p = {.act = act,
              .ranks = ranks,
              .parameters = layout.elems,
              .tokens_per_step = c->batch.global_tokens,
              .micro_steps = micro_steps,
              .flops_per_token = model_flops_per_token(c->model.shape, spec.T),
              .step_flops = ledger_flops(&step),
              .step_bytes = ledger_bytes(&step),
              .step_sent = ledger_sent(&step, NULL),
              .mesh = mesh,
              .parts = (int)c->parallel.interleave,
              .params_bytes = model.params,
              .grads_bytes = model.grads,
              .optimizer_bytes = spec.offload == MEMORY_HOST ? 0 : model.optimizer,
              .offload_bytes = spec.offload == MEMORY_HOST ? model.optimizer : 0,
              .activation_bytes = model.activations,
              .scratch_bytes = model.scratch,
              .batch_bytes = batches.peak_bytes,
              .library_bytes = device.overhead,
              .reserve_bytes = device.reserve + (ranks.joined ? 0 : groups_library_bytes(mesh, ranks.comm, use)),
              .gradient_buffers = model.gradient_buffers,
              .tree_bytes = nccl_bytes,
              .comm_bytes = exchange_bytes(c, ranks, mesh, &layout, leaves) + tree_bytes - nccl_bytes,
              .host_copy_bytes = saver_bytes(&layout, spec.optimizer),
              .ahead_bytes = loader_host_bytes(B, own_T, micro_steps, spec.document_mask),
              .island_bytes = has_server ? island_bytes(c, &layout) : 0,
              .copies_bytes = in_memory ? memory_copies_bytes(&layout, spec.optimizer, ranks.hosts) : 0,
              .checkpoint_bytes = checkpoint_disk_bytes(&layout, spec.optimizer),
              .server_bytes = has_server ? serve_bytes(c, 0).all : 0,
              .follower_bytes = largest_follower(c)};
    p.host_bytes = p.comm_bytes + p.host_copy_bytes + p.ahead_bytes + p.offload_bytes + p.island_bytes;
    p.device_bytes = p.params_bytes + p.grads_bytes + p.optimizer_bytes + p.activation_bytes + p.scratch_bytes +
                     p.batch_bytes + p.tree_bytes + p.library_bytes + p.reserve_bytes +
                     (device_is_host() ? p.host_bytes + p.copies_bytes : 0);
    p.sent[AXIS_SHARD] = p.step_sent;
    for (int a = 0; a < AXES; a++)
        if (a != AXIS_SHARD) p.sent[AXIS_SHARD] -= p.sent[a] = ledger_sent(&step, mesh_axis_name((Axis)a));
    ledger_free(&step);
    layout_destroy(&layout);
    return p;
}

CommKind plan_comm(const Config *c, int may_be_nccl) {
    switch (c->parallel.comm) {
        case PARALLEL_NCCL: return COMM_NCCL;
        case PARALLEL_MPI: return COMM_MPI;
        case PARALLEL_RING: return COMM_RING;
        default: return may_be_nccl ? COMM_NCCL : COMM_RING;
    }
}

/* Plans each pipeline stage that differs and returns the one with the most memory. Of stages with equally many blocks,
 * the earlier ones keep the activations of more micro-batches. The bytes sent are those of the first stage, like in the
 * metrics of a run. */
Plan plan_make(const Config *c, DType act, PlanRanks ranks) {
    Plan most = {0}, first = {0};
    if (ranks.stage >= 0 || c->parallel.pipeline == 1) {
        if (ranks.stage < 0) ranks.stage = 0;
        return plan_stage(c, act, ranks);
    }
    PipelineSpec stages = config_model_spec(c, act, ranks.count, 0, NULL).pipeline;
    int         *like = pipeline_alike(c->model.shape, stages);
    for (int p = 0; p < stages.stages; p++) {
        if (like[p] != p) continue;
        ranks.stage = p;
        Plan one = plan_stage(c, act, ranks);
        if (p == 0) first = one;
        if (one.device_bytes > most.device_bytes) most = one;
    }
    free(like);
    memcpy(most.sent, first.sent, sizeof most.sent), most.step_sent = first.step_sent;
    return most;
}

static size_t total_with(const Config *config, const Plan *plan, int64_t micro_batch, Recompute recompute) {
    Config c = *config;
    c.batch.micro_batch = micro_batch;
    c.memory.recompute = recompute;
    return plan_make(&c, plan->act, plan->ranks).device_bytes;
}

int64_t plan_largest_micro_batch(const Config *config, const Plan *plan, size_t bytes) {
    enum { MOST = 1 << 16 };
    Recompute recompute = (Recompute)config->memory.recompute;
    int64_t   fits = 0, too_many = 1;
    while (too_many < MOST && total_with(config, plan, too_many, recompute) <= bytes) fits = too_many, too_many *= 2;
    while (too_many - fits > 1) {
        int64_t middle = fits + (too_many - fits) / 2;
        if (total_with(config, plan, middle, recompute) <= bytes) fits = middle;
        else too_many = middle;
    }
    return fits;
}

/* --- printing ----------------------------------------------------------------------------------------------------- */

static void print_row(FILE *out, size_t bytes, const char *fmt, ...) PRINTF_LIKE(3, 4);
static void print_row(FILE *out, size_t bytes, const char *fmt, ...) {
    char    what[96];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    fprintf(out, "  %-58s %10.1f MiB\n", what, (double)bytes / 1048576.0);
}

void plan_print_memory(FILE *out, const Config *c, const Plan *p) {
    const char *const    recompute[] = {"", ", light recompute", ", block recompute"};
    const char *const    comm[] = {"the ring", "MPI", "NCCL"};
    const OptimizerKind *kind = config_optimizer(c);
    int                  on_host = device_is_host(), is_idle = config_server_updates(c), used = 0;
    const char          *host = on_host ? "" : "host: ";
    const char          *share = c->parallel.zero_stage && p->ranks.count > 1 ? ", this rank's share" : "";
    char                 states[64] = "", copies[64];
    fprintf(out, "memory per rank (%s)\n",
            c->precision == PRECISION_FP8 ? "bf16, with products in fp8" : dtype_name(p->act));
    print_row(out, p->params_bytes, "weights");
    if (p->gradient_buffers == 0) print_row(out, p->grads_bytes, "gradients");
    else print_row(out, p->grads_bytes, "gradients, and %d buffers to add them in order", p->gradient_buffers);
    for (int k = 0; k < kind->states && !is_idle; k++)
        used += snprintf(states + used, sizeof states - (size_t)used, "%s%s", k ? ", " : "", kind->state[k].name);
    if (p->offload_bytes == 0)
        print_row(out, p->optimizer_bytes, "optimizer: %s%s%s", is_idle ? "the server's" : states,
                  p->act == F32 ? "" : ", fp32 masters", share);
    print_row(out, p->activation_bytes, "activations%s", recompute[c->memory.recompute]);
    print_row(out, p->scratch_bytes, "scratch");
    print_row(out, p->batch_bytes, "batches");
    if (p->tree_bytes > 0) print_row(out, p->tree_bytes, "what other ranks send to be added in order");
    if (!on_host) { /* the memory of a GPU that libraries and other programs use */
        int has_nccl = !p->ranks.joined && p->ranks.count > 1 && p->ranks.comm == COMM_NCCL;
        print_row(out, p->library_bytes,
                  device_memory().total ? "not ours, as measured: context, libraries, other programs"
                                        : "not ours: the context, not measured without a GPU");
        print_row(out, p->reserve_bytes, has_nccl ? "not ours, an estimate: NCCL, kernels, cuBLASLt, graph"
                                                  : "not ours, an estimate: kernels loaded later, cuBLASLt, graph");
        print_row(out, p->device_bytes, "total, GPU memory");
    }
    if (p->ranks.count > 1) print_row(out, p->comm_bytes, "%sexchange between ranks, by %s", host, comm[p->ranks.comm]);
    if (p->offload_bytes > 0)
        print_row(out, p->offload_bytes, "host: %s%s",
                  is_idle ? "fp32 masters of the weights, with their pages" : "optimizer, with its pages", share);
    print_row(out, p->host_copy_bytes, on_host ? "host copy for checkpoints" : "host: copy for checkpoints");
    print_row(out, p->ahead_bytes, "%sbatches read ahead", host);
    if (p->island_bytes > 0) print_row(out, p->island_bytes, "%scopy of a round's weights, for outer.server", host);
    if (on_host) print_row(out, p->library_bytes, "program and libraries");
    snprintf(copies, sizeof copies, "copies in memory, two of this rank%s",
             p->ranks.hosts > 1 ? " and two of a neighbour" : "");
    if (p->copies_bytes > 0 && on_host) print_row(out, p->copies_bytes, "%s", copies);
    if (on_host) print_row(out, p->device_bytes, "total");
    else print_row(out, p->host_bytes, "total, pinned host memory");
    if (p->copies_bytes > 0 && !on_host) print_row(out, p->copies_bytes, "%s", copies);
    if (p->server_bytes > 0)
        print_row(out, p->server_bytes, "server, where it runs: with the deltas of %lld island%s",
                  (long long)c->outer.least_islands, plural(c->outer.least_islands));
    if (p->follower_bytes > 0) print_row(out, p->follower_bytes, "each other server, where it runs: at most");
}

char *plan_sharers(int datas, int ranks, char out[64]) {
    if (datas == ranks) snprintf(out, 64, "%d rank%s", ranks, plural(ranks));
    else snprintf(out, 64, "%d group%s of %d ranks", datas, plural(datas), ranks / datas);
    return out;
}

/* Describes the experts of a rank, with the bytes of their activations in a block. With C = n_embd and F = moe.n_inner
 * each row has its input and output (2 C), gate and up (2 F), swiglu and its gradient (2 F). Its weight and the
 * gradient of the weight are f32. */
char *plan_experts(const Config *c, DType act, char out[240]) {
    ModelShape s = c->model.shape;
    int64_t    e = c->parallel.expert, even = c->batch.micro_batch * (c->batch.seq_len / c->parallel.context) * s.top_k,
            room = expert_room(even, c->moe.capacity, e);
    double bytes = (double)room * ((double)dtype_bytes(act) * (double)(2 * s.n_embd + 4 * s.n_expert_inner) + 8.0);
    out[0] = '\0';
    if (e > 1)
        snprintf(out, 240, "%lld of %lld on each of %lld ranks; room for %lld rows, %lld are the even share: %s a "
                 "block; more take further rounds, computed again in backward",
                 (long long)(s.n_experts / e), (long long)s.n_experts, (long long)e, (long long)room, (long long)even,
                 bytes_text(bytes).text);
    return out;
}

char *plan_memory_advice(const Config *c, const Plan *p) {
    char     *text = NULL;
    size_t    bytes;
    FILE     *out = memory_file_open(&text, &bytes);
    int64_t   B = c->batch.micro_batch;
    Recompute recompute = (Recompute)c->memory.recompute;
    plan_print_memory(out, c, p);
    fprintf(out, "less memory:");
    if (B > 1)
        fprintf(out, " batch.micro_batch = %lld takes %s;", (long long)(B / 2),
                bytes_text((double)total_with(c, p, B / 2, recompute)).text);
    if (recompute != RECOMPUTE_BLOCK)
        fprintf(out, " memory.recompute = \"block\" takes %s;",
                bytes_text((double)total_with(c, p, B, RECOMPUTE_BLOCK)).text);
    if (B == 1 || recompute == RECOMPUTE_BLOCK)
        fprintf(out, " %s;",
                c->parallel.zero_stage ? "more ranks share the optimizer's part"
                                       : "parallel.zero_stage = 1 shares the optimizer's part among the ranks");
    fprintf(out, " `train_gpt plan` shows each\n");
    fclose(out);
    return text;
}

/* --- data and disk ------------------------------------------------------------------------------------------------ */

ShortText plan_count_text(double value) {
    static const char *units[] = {"", " k", " M", " G", " T", " P", " E"};
    ShortText t;
    int  unit = 0;
    if (value >= 1e4)
        for (; value >= 999.5 && unit < 6; unit++) value /= 1e3;
    snprintf(t.text, sizeof t.text, unit ? "%.3g%s" : "%.0f%s", value, units[unit]);
    return t;
}

typedef struct {
    SampleCount found;
    char        missing[SHARD_SENTENCE_CHARS]; /* why the data cannot be counted; "" if they were counted */
} DataCount;

static DataCount count_data(const StringList *globs, const Config *c) {
    DataCount d = {0};
    for (int i = 0; i < globs->count; i++) {
        IoPaths files = {NULL, 0};
        dataset_files(globs->item[i], &files);
        if (!files.count) snprintf(d.missing, sizeof d.missing, "%.4000s is not there yet", globs->item[i]);
        for (size_t f = 0; f < files.count; f++) {
            ShardHeader header;
            if (shard_look(files.path[f], c->model.shape.vocab_size, &header, d.missing) == 0)
                sample_count_file(&d.found, &header, c->batch.seq_len);
        }
        io_paths_free(&files);
    }
    return d;
}

void plan_print_data(const Config *c) {
    const StringList *train = &c->data.train;
    int64_t           wanted = position_after((Position){0, 0, 0}, c, c->run.steps).samples, share[BLEND_SOURCES];
    Blend             blend;
    if (train->share) {
        blend_make(&blend, train->item, train->share, train->count, c->batch.seq_len);
        blend_count(&blend, wanted, share);
    }
    for (int i = 0, seen = 0; i < (train->share ? train->count : 1); i++) {
        StringList source = {1, &train->item[i], NULL};
        if (train->share && blend_source(train->item, i) < seen) continue; /* a path in several stages counts once */
        DataCount count = count_data(train->share ? &source : train, c);
        SampleCount *n = &count.found;
        char         unread[SAMPLE_COUNT_CHARS];
        if (count.missing[0]) print_plain(stdout, "data         %s: epochs unknown\n", count.missing);
        else if (n->samples == 0)
            printf("data         %s tokens: not one sample of %lld\n", plan_count_text((double)n->tokens).text,
                   (long long)c->batch.seq_len);
        else
            printf("data         %lld file%s, %s tokens, %lld sample%s of %lld: %.2f epochs%s\n", (long long)n->files,
                   plural(n->files), plan_count_text((double)n->tokens).text, (long long)n->samples,
                   plural(n->samples), (long long)c->batch.seq_len,
                   sample_epochs(train->share ? share[seen] : wanted, n->samples),
                   sample_count_unread(n, c->batch.seq_len, "; ", unread));
        seen++;
    }
}

void plan_print_disk(const Config *c, double bytes, PlanDisk where) {
    int64_t count = checkpoint_most(c);
    double  most = bytes * (double)count;
    int64_t room = -1;
    if (where == DISK_HERE) { /* asks the nearest folder above run.dir that exists */
        Path  path = path_of("%s", *c->run.dir ? c->run.dir : ".");
        char *folder = path.text;
        while ((room = io_free_bytes(folder)) < 0 && strcmp(folder, ".") != 0 && strcmp(folder, "/") != 0)
            folder = dirname(folder);
    }
    printf("checkpoint   %s each, %lld kept and one being written: %s", bytes_text(bytes).text,
           (long long)count - 1, bytes_text(most).text);
    if (room >= 0)
        print_plain(stdout, " of %s free under %s%s", bytes_text((double)room).text, c->run.dir,
               most > (double)room ? ": not enough" : "");
    printf("\n");
}
