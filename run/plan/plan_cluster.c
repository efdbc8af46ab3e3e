/* plan_cluster.c - see plan_cluster.h: prints a simulated step and the whole run, as text or JSON. */
#include "run/plan/plan_cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/io.h"
#include "core/terminal.h"
#include "model/precision.h"
#include "run/checkpoint/checkpoint.h"

static const char *const RECOMPUTE_NAMES[] = {[RECOMPUTE_NONE] = "none", [RECOMPUTE_LIGHT] = "light",
                                              [RECOMPUTE_BLOCK] = "block"};

/* Returns the goodput (share of time in which training runs) on a cluster whose job fails every mtbf_hours on
 * average. */
static Goodput goodput(const Config *c, Target on, double mtbf_hours, const Simulated *s) {
    const Cluster *cluster = on.cluster;
    ModelSpec      spec = config_model_spec(c, on.act, on.ranks, s->fullest, NULL);
    Layout         layout = model_spec_layout(&spec);
    double         copied = (double)saver_bytes(&layout, spec.optimizer),
           written = (double)checkpoint_disk_bytes(&layout, spec.optimizer);
    layout_destroy(&layout);
    return goodput_of(copied / cluster->copy_bytes_per_s, written / cluster->write_bytes_per_s, cluster->restart_s,
                      mtbf_hours * 3600.0);
}

static const double CHINCHILLA = 20.0; /* tokens for each parameter of a model: Hoffmann et al., arXiv:2203.15556 */

/* Totals of a whole run. Times come from the simulator, without evaluations, saves and failures. */
typedef struct {
    double       tokens, parameters, hours, gpu_hours, peak_flops, checkpoint_bytes;
    LargestBatch largest;
} WholeRun;

static WholeRun whole_run(const Config *c, Target on, const Simulated *s) {
    ModelSpec spec = config_model_spec(c, on.act, on.ranks, 0, NULL);
    Layout    layout = model_spec_layout(&spec);
    WholeRun  w = {.tokens = (double)c->run.steps * (double)c->batch.global_tokens, .parameters = (double)layout.elems,
                   .hours = s->step_s * (double)c->run.steps / 3600.0,
                   .peak_flops = cluster_flops(on.cluster, on.act, c->precision),
                   .checkpoint_bytes = (double)checkpoint_disk_bytes(&layout, spec.optimizer),
                   .largest = search_largest_batch(c, on)};
    w.gpu_hours = w.hours * on.ranks;
    layout_destroy(&layout);
    return w;
}

/* --- as JSON ------------------------------------------------------------------------------------------------------ */

static cJSON *by_axis(const double value[AXES], double unit) {
    cJSON *object = cJSON_CreateObject();
    for (int a = 0; a < AXES; a++) cJSON_AddItemToObject(object, mesh_axis_name((Axis)a), number_json(value[a] * unit));
    return object;
}

static cJSON *json_of(const Simulated *s, int ranks) {
    cJSON *object = cJSON_CreateObject(), *grid = cJSON_AddObjectToObject(object, "grid");
    int    datas = s->mesh.size[AXIS_SHARD] * s->mesh.size[AXIS_REPLICA];
    cJSON_AddNumberToObject(grid, "tensor", s->mesh.size[AXIS_TENSOR]);
    cJSON_AddNumberToObject(grid, "context", s->mesh.size[AXIS_CONTEXT]);
    cJSON_AddNumberToObject(grid, "pipeline", s->mesh.size[AXIS_STAGE]);
    cJSON_AddNumberToObject(grid, "interleave", s->parts);
    cJSON_AddNumberToObject(grid, "replicas", s->mesh.size[AXIS_REPLICA]);
    cJSON_AddNumberToObject(grid, "data", datas);
    if (s->expert_ranks > 1) cJSON_AddNumberToObject(grid, "expert", s->expert_ranks);
    cJSON_AddNumberToObject(grid, "zero_stage", s->zero_stage);
    cJSON_AddNumberToObject(grid, "micro_batch", (double)s->micro_batch);
    cJSON_AddStringToObject(grid, "recompute", RECOMPUTE_NAMES[s->recompute]);
    cJSON_AddNumberToObject(object, "ranks", ranks);
    cJSON_AddItemToObject(object, "step_ms", number_json(s->step_s * 1e3));
    cJSON_AddItemToObject(object, "tokens_per_s", number_json(s->tokens_per_s));
    cJSON_AddItemToObject(object, "tflops_per_gpu", number_json(s->tflops_per_gpu));
    cJSON_AddItemToObject(object, "mfu", number_json(s->mfu));
    cJSON_AddItemToObject(object, "bubble", number_json(s->bubble));
    cJSON_AddItemToObject(object, "exposed_ms", by_axis(s->exposed_s, 1e3));
    cJSON_AddItemToObject(object, "memory_bytes", number_json(s->memory_bytes));
    cJSON_AddItemToObject(object, "sent", by_axis(s->sent, 1.0));
    return object;
}

static void add_whole_run(cJSON *object, const ClusterPlan *asked, const Cluster *cluster, WholeRun w) {
    cJSON_AddStringToObject(object, "gpu", cluster->gpu);
    cJSON_AddItemToObject(object, "gpu_memory_bytes", number_json(cluster->memory_bytes));
    cJSON_AddItemToObject(object, "peak_flops", number_json(w.peak_flops));
    cJSON_AddNumberToObject(object, "largest_micro_batch", (double)w.largest.micro_batch);
    cJSON_AddItemToObject(object, "hours", number_json(w.hours));
    cJSON_AddItemToObject(object, "gpu_hours", number_json(w.gpu_hours));
    if (asked->price > 0) cJSON_AddItemToObject(object, "dollars", number_json(asked->price * w.gpu_hours));
    cJSON_AddItemToObject(object, "parameters", number_json(w.parameters));
    cJSON_AddItemToObject(object, "tokens", number_json(w.tokens));
    cJSON_AddItemToObject(object, "tokens_per_parameter", number_json(w.tokens / w.parameters));
    cJSON_AddItemToObject(object, "checkpoint_bytes", number_json(w.checkpoint_bytes));
}

/* --- as text ------------------------------------------------------------------------------------------------------ */

/* Returns a time as text: "2.36 s" or "250 ms". */
static ShortText seconds_text(double s) {
    ShortText t;
    snprintf(t.text, sizeof t.text, s >= 1.0 ? "%.4g s" : "%.3g ms", s >= 1.0 ? s : s * 1e3);
    return t;
}

static void print_grid(const Simulated *s, const Cluster *cluster) {
    char text[MESH_TEXT], axes[MESH_TEXT];
    printf("grid         %s, ZeRO stage %d", mesh_text(s->mesh, text), s->zero_stage);
    if (s->expert_ranks > 1) printf(", experts on %d", s->expert_ranks);
    if (s->mesh.size[AXIS_STAGE] > 1) printf(", interleave %d", s->parts);
    printf("; %lld micro-batch%s of %lld, recompute %s\n", (long long)s->micro_batches,
           s->micro_batches == 1 ? "" : "es", (long long)s->micro_batch, RECOMPUTE_NAMES[s->recompute]);
    printf("             across nodes of %.0f: %s\n", cluster->gpus_per_node,
           mesh_crossing(s->mesh, (int)cluster->gpus_per_node, axes));
}

static void print_memory(FILE *out, const Simulated *s, const Cluster *cluster) {
    double optimizer = (double)s->memory.optimizer;
    const struct { const char *what; double bytes; } rows[] = {
        {"weights", (double)s->memory.params}, {"gradients", (double)s->memory.grads}, {"optimizer", optimizer},
        {"activations", (double)s->memory.activations}, {"scratch, batches, libraries", 0.0}};
    double listed = 0.0;
    for (int i = 0; i < 4; i++) listed += rows[i].bytes;
    print_plain(out, "simulated    memory of stage %d, the fullest: %s of the %s of %s\n", s->fullest,
            bytes_text(s->memory_bytes).text,
            bytes_text(cluster->memory_bytes).text, cluster->gpu);
    for (int i = 0; i < 5; i++) {
        double bytes = i < 4 ? rows[i].bytes : s->memory_bytes - listed;
        fprintf(out, "simulated      %-30s %12s\n", rows[i].what, bytes_text(bytes).text);
    }
}

static const char *waits_in(Axis axis, const char *stages) {
    return axis == AXIS_STAGE ? stages : mesh_axis_name(axis);
}

static void print_times(const Config *c, const Simulated *s, int ranks) {
    char time[32];
    duration_text(time, s->step_s * (double)c->run.steps * 1e3);
    printf("simulated    step %s: %.0f tokens/s, %.4g a GPU; %.4g TFLOP/s a GPU, MFU %.1f %%\n",
           seconds_text(s->step_s).text, s->tokens_per_s,
           s->tokens_per_s / ranks, s->tflops_per_gpu, 100.0 * s->mfu);
    printf("simulated    of a step %s compute", seconds_text(s->compute_s).text);
    for (int a = 0; a < AXES; a++)
        if (s->mesh.size[a] > 1 || s->exposed_s[a] > 0)
            printf(", %s %s", seconds_text(s->exposed_s[a]).text, waits_in((Axis)a, "waiting for other stages"));
    printf("\n");
    if (s->mesh.size[AXIS_STAGE] > 1) printf("simulated    bubble %.1f %%\n", 100.0 * s->bubble);
    if (ranks > 1) printf("simulated    a rank of stage 0 sends");
    for (int a = 0, first = 1; a < AXES; a++) {
        if (s->mesh.size[a] == 1) continue;
        printf("%s %s %.0f bytes", first ? "" : ",", mesh_axis_name((Axis)a), s->sent[a]);
        first = 0;
    }
    if (ranks > 1) printf(" a step\n");
    printf("simulated    %lld steps: %s\n", (long long)c->run.steps, time);
}

static void print_found(const Found *f, const Cluster *cluster) {
    printf("simulated    the quickest of %lld grids and their variants, in %s:\n", (long long)f->allowed,
           bytes_text(cluster->memory_bytes).text);
    printf("\nsimulated    tensor context pipeline interleave replicas data zero_stage micro_batch recompute  step s"
           "  MFU %%  bubble %%   GiB   why not first\n");
    for (int i = 0; i < f->count; i++) {
        const Simulated *s = &f->best[i];
        printf("simulated    %6d %7d %8d %10d %8d %4d %10d %11lld %9s %7.4g %6.1f %9.1f %5.1f",
               s->mesh.size[AXIS_TENSOR], s->mesh.size[AXIS_CONTEXT], s->mesh.size[AXIS_STAGE], s->parts,
               s->mesh.size[AXIS_REPLICA], s->mesh.size[AXIS_SHARD] * s->mesh.size[AXIS_REPLICA], s->zero_stage,
               (long long)s->micro_batch, RECOMPUTE_NAMES[s->recompute], s->step_s, 100.0 * s->mfu, 100.0 * s->bubble,
               s->memory_bytes / (1024.0 * 1024 * 1024));
        /* why the grid is slower than the best one: the part of the step whose time differs most */
        const Simulated *best = &f->best[0];
        double           most = s->compute_s - best->compute_s;
        const char      *what = "compute";
        for (int a = 0; a < AXES; a++)
            if (s->exposed_s[a] - best->exposed_s[a] > most)
                most = s->exposed_s[a] - best->exposed_s[a], what = waits_in((Axis)a, "bubble");
        if (s != best) printf("   +%s %s", seconds_text(most).text, what);
        printf("\n");
    }
    printf("\n");
}

static void print_whole_run(const Config *c, const ClusterPlan *asked, const Cluster *cluster, const Simulated *s,
                            WholeRun w) {
    char time[32];
    duration_text(time, w.hours * 3.6e6);
    printf("simulated    fits: %s of %s; largest batch.micro_batch %lld, %s\n", bytes_text(s->memory_bytes).text,
           bytes_text(cluster->memory_bytes).text, (long long)w.largest.micro_batch,
           w.largest.micro_batch == s->micro_batch * s->micro_batches ? "all that a rank has of a step"
                                                                       : bytes_text(w.largest.memory_bytes).text);
    printf("estimate     %s, %.4g GPU hours: %.1f %% of the card's %.4g TFLOP/s, without evals and saves\n", time,
           w.gpu_hours, 100.0 * s->mfu, w.peak_flops * 1e-12);
    if (asked->price > 0)
        printf("estimate     %.2f dollars at %g a GPU hour\n", asked->price * w.gpu_hours, asked->price);
    printf("parameters   %s\n", plan_count_text(w.parameters).text);
    printf("tokens       %s: %.3g per parameter (Chinchilla: %g)\n", plan_count_text(w.tokens).text,
           w.tokens / w.parameters, CHINCHILLA);
    plan_print_data(c);
    plan_print_disk(c, w.checkpoint_bytes, DISK_ELSEWHERE);
}

static NORETURN void fail_too_large(const Config *c, Target on, const Simulated *s) {
    char  *text = NULL;
    size_t bytes;
    FILE  *out = memory_file_open(&text, &bytes);
    print_plain(out, "plan: no room on %s\n", on.cluster->name);
    print_memory(out, s, on.cluster);
    Simulated    room;
    LargestBatch largest = search_largest_batch(c, on);
    if (largest.micro_batch > 0)
        fprintf(out, "simulated    largest batch.micro_batch %lld: %s\n", (long long)largest.micro_batch,
                bytes_text(largest.memory_bytes).text);
    if (!search_fitting(c, on, &room))
        fprintf(out, "no grid of %d ranks has room for this model and batch: give more ranks=\n", on.ranks);
    else
        fprintf(out, "simulated    a grid that fits: parallel.tensor=%d parallel.pipeline=%d parallel.interleave=1 "
                "parallel.context=1 parallel.replicas=1 parallel.zero_stage=%d batch.micro_batch=1 "
                "memory.recompute=block; search=true finds quicker ones\n",
                room.mesh.size[AXIS_TENSOR], room.mesh.size[AXIS_STAGE], room.zero_stage);
    fclose(out);
    fail_lines(EXIT_MEMORY, text);
}

/* --- the plan ----------------------------------------------------------------------------------------------------- */

static DType precision_on(const Config *c, const Cluster *cluster) {
    DType act = precision_resolve((Precision)c->precision, cluster->bf16 > 0).act;
    int   has_act = cluster_flops(cluster, act, c->precision) > 0;
    if (has_act && (c->precision != PRECISION_FP8 || cluster->fp8 > 0)) return act;
    const char *name = c->precision == PRECISION_TF32 ? "tf32" : has_act ? "fp8" : dtype_name(act);
    fail(EXIT_CONFIG,
         "plan: cluster=%s has no speed of %s matrix products: add gpu.flops.%s to its file, or give "
         "another precision=",
         cluster->name, name, name);
}

void plan_cluster(const Config *config, ClusterPlan asked) {
    Cluster cluster = asked.gpu ? cluster_of_gpu(asked.gpu, asked.ranks, asked.nodes) : cluster_load(asked.cluster);
    Target  on = {precision_on(config, &cluster), asked.ranks, &cluster};
    if (asked.mtbf_hours > 0 && (cluster.copy_bytes_per_s == 0 || cluster.write_bytes_per_s == 0))
        fail(EXIT_CONFIG,
             "plan: mtbf_hours=%g needs both checkpoint.copy_bytes_per_s and checkpoint.write_bytes_per_s, and "
             "cluster=%s lacks them: add both to the file of the cluster",
             asked.mtbf_hours, cluster.name);
    if (config->memory.offload)
        fail(EXIT_CONFIG,
             "plan: memory.offload = \"optimizer\" updates weights in host memory, which cluster=%s does not describe: "
             "plan with memory.offload=none",
             cluster.name);
    Found f = {.count = 0};
    if (asked.searches) {
        f = search(config, on, asked.held);
        if (f.allowed == 0) {
            char *fault = config_check_changed(config, asked.ranks);
            fail(EXIT_CONFIG,
                 "plan: search=true: the config allows no division of the work among %d ranks: change ranks= or "
                 "batch.global_tokens%s%s",
                 asked.ranks, fault ? ": " : "", fault ? fault : "");
        }
        if (f.count == 0)
            fail(EXIT_MEMORY,
                 "plan: search=true: this model and batch do not fit in memory, however %d ranks of %s divide them: "
                 "give more ranks=, or leave out parallel.* keys of this command, which the search keeps as they are",
                 asked.ranks, cluster.name);
    }
    Simulated s = asked.searches ? f.best[0] : simulate(config, on);
    Config    c = asked.searches ? search_config(config, &s) : *config;
    if (s.memory_bytes > cluster.memory_bytes) fail_too_large(&c, on, &s);
    Goodput  g = asked.mtbf_hours > 0 ? goodput(&c, on, asked.mtbf_hours, &s) : (Goodput){0};
    int      is_whole = asked.gpu || asked.price > 0; /* 1 to add the time and the price of the whole run */
    WholeRun whole = is_whole ? whole_run(&c, on, &s) : (WholeRun){0};
    if (asked.json) {
        cJSON *object = json_of(&s, asked.ranks);
        cJSON *others = asked.searches ? cJSON_AddArrayToObject(object, "next") : NULL;
        for (int i = 1; i < f.count; i++) cJSON_AddItemToArray(others, json_of(&f.best[i], asked.ranks));
        if (asked.mtbf_hours > 0) {
            cJSON_AddItemToObject(object, "checkpoint_s", number_json(g.interval_s));
            cJSON_AddItemToObject(object, "goodput", number_json(g.goodput));
        }
        if (is_whole) add_whole_run(object, &asked, &cluster, whole);
        cJSON_AddStringToObject(object, "cluster", cluster.name);
        cJSON_AddTrueToObject(object, "simulated");
        json_print(object);
        return;
    }
    print_plain(stdout, "plan of %s on %d rank%s of %s, %s, %s: all figures simulated\n\n", config->path, asked.ranks,
                plural(asked.ranks), cluster.name, cluster.gpu,
                config->precision == PRECISION_FP8 ? "fp8" : dtype_name(on.act));
    printf("model        %s\n", model_shape_text(config->model.shape).text);
    if (asked.searches) print_found(&f, &cluster);
    print_grid(&s, &cluster);
    print_memory(stdout, &s, &cluster);
    print_times(&c, &s, asked.ranks);
    if (asked.mtbf_hours > 0)
        printf("simulated    failures every %g hours: a checkpoint every %.4g s (training stands still for %.3g s, "
               "and it is on disk %.3g s later); goodput %.1f %%\n",
               asked.mtbf_hours, g.interval_s, g.save_s, g.write_s, 100.0 * g.goodput);
    if (is_whole) print_whole_run(&c, &asked, &cluster, &s, whole);
}
