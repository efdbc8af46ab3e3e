/* plan.c - `train_gpt plan config.json`: prints the plan of a run, with data and disk as far as they exist. Missing
 * data is no fault, because a plan may be made before the data. A CUDA build without a GPU plans, too, and prints what
 * it cannot know. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/precision.h"
#include "core/terminal.h"
#include "run/plan/kernels.h"
#include "run/checkpoint/weights.h"
#include "run/plan/plan_cluster.h"
#include "run/plan/plan.h"
#include "run/verbs/verbs.h"

/* The expected MFU: the share of the measured rate of matrix products that GPT-2 124M reaches on AVX-512 cores (`make
 * bench`). Small models reach less. */
static const double EXPECTED_MFU = 0.8;

enum { LABEL_COLUMNS = 13 };

/* --- printing ----------------------------------------------------------------------------------------------------- */

static int has_nccl(void) { return strcmp(world_nccl(), "none") != 0; }

/* Returns 1 if the grid of ranks has more axes than data parallel. */
static int is_grid(const Plan *p) { return mesh_ranks(p->mesh) > p->mesh.size[AXIS_SHARD]; }

/* Prints a pipeline stage: its blocks ("blocks 0-3, 8-11"), micro-batches in flight and memory. */
static void print_stage(const Config *c, const Plan *p, int stage) {
    PlanRanks    ranks = p->ranks;
    ModelSpec    spec = config_model_spec(c, p->act, ranks.count, stage, NULL);
    GptPartSpec *part = pipeline_parts(c->model.shape, spec.pipeline);
    char         blocks[64] = "";
    int          used = 0, tapes = 0;
    for (int i = 0; i < spec.pipeline.parts; i++) {
        int64_t first = part[i].first, last = part[i].end - 1;
        if (used < 40)
            used += snprintf(blocks + used, sizeof blocks - (size_t)used, first < last ? "%s%lld-%lld" : "%s%lld",
                             i ? ", " : "", (long long)first, (long long)last);
        else if (used < 60) used = 60, strcat(blocks, ", ...");
        if (part[i].tapes > tapes) tapes = part[i].tapes;
    }
    free(part);
    ranks.stage = stage;
    Plan one = plan_make(c, p->act, ranks);
    printf("  stage %-3d blocks %-28s x %-3d %9.1f %9.1f %9.1f %11.1f %9.1f MiB\n", stage, blocks, tapes,
           (double)one.params_bytes / 1048576.0, (double)one.grads_bytes / 1048576.0,
           (double)one.optimizer_bytes / 1048576.0, (double)one.activation_bytes / 1048576.0,
           (double)one.device_bytes / 1048576.0);
}

static void print_grid(const Config *c, const Plan *p) {
    char text[MESH_TEXT];
    int  devices = device_is_host() ? 0 : device_count(), P = p->mesh.size[AXIS_STAGE];
    printf("grid         %s\n", mesh_text(p->mesh, text));
    /* Names the axes of the grid whose neighbours would be on different hosts, if each host has as many devices as this
     * one. */
    if (devices > 0 && p->ranks.count > devices)
        printf("             across hosts of %d GPU%s: %s\n", devices, plural(devices),
               mesh_crossing(p->mesh, devices, text));
    if (P == 1) return;
    printf("stages       %.0f %% of the time idle; below, stage %d, which takes the most memory\n",
           100.0 * work_idle(P, p->parts, p->micro_steps), p->ranks.stage);
    printf("  stage                       micro-batches kept   weights gradients optimizer activations     total\n");
    for (int stage = 0; stage < P; stage++) /* prints all stages if they are few, else the first and the last ones */
        if (P <= 8 || stage < 4 || stage >= P - 4) print_stage(c, p, stage);
    if (c->parallel.zero_stage == 3)
        printf("warning: parallel.zero_stage = 3 gathers each block's weights for every micro-batch, %lld times a "
               "step: "
               "of what is sent, shard %.0f bytes; stage 2 sends less\n",
               (long long)p->micro_steps, p->sent[AXIS_SHARD]);
}

static void print_room(const Config *c, const Plan *p, size_t memory_bytes) {
    int    ranks = p->ranks.count, devices = device_count();
    int    sharing = devices > 0 ? (ranks + devices - 1) / devices : 1; /* number of ranks that share a device */
    double all = (double)p->device_bytes * sharing, there = (double)device_memory().total;
    char   whose[40] = "";
    if (sharing > 1) snprintf(whose, sizeof whose, sharing == ranks ? " for all ranks" : " for %d ranks", sharing);
    if (there > 0)
        printf("  %s%s of the %s of this %s%s\n", bytes_text(all).text, whose, bytes_text(there).text,
               device_is_host() ? "machine" : "GPU",
               all > there ? ": more than it has; a smaller batch.micro_batch or memory.recompute = \"block\" takes "
                             "less"
                           : "");
    if (!device_is_host() && sharing > 1 && c->parallel.comm == PARALLEL_AUTO)
        printf("  %d ranks on the %d GPU%s here share %s, and exchange by way of host memory; parallel.comm = "
               "\"nccl\" plans for a GPU each\n",
               ranks, devices, plural(devices), devices == 1 ? "it" : "them");
    if (memory_bytes > 0)
        printf("  largest batch.micro_batch in %s: %lld\n", bytes_text((double)memory_bytes).text,
               (long long)plan_largest_micro_batch(c, p, memory_bytes));
}

/* Prints the plan as text. matmul_flops: FLOP/s of all ranks together, 0 if not measured. memory_bytes: memory of the
 * device of a rank, for the line about the largest micro-batch; 0: no such line. */
static void plan_print(const Config *c, const Plan *p, double matmul_flops, size_t memory_bytes) {
    int    ranks = p->ranks.count;
    double steps = (double)c->run.steps, step_flops = p->flops_per_token * (double)p->tokens_per_step;
    print_plain(stdout, "plan of %s on %d rank%s, %s\n\n", c->path, ranks, plural(ranks), device_backend());
    printf("model        %s\n", model_shape_text(c->model.shape).text);
    if (is_grid(p)) print_grid(c, p);
    char experts[240];
    if (*plan_experts(c, p->act, experts)) printf("experts      %s\n", experts);
    printf("parameters   %lld (%s)\n\n", (long long)p->parameters, plan_count_text((double)p->parameters).text);
    plan_print_memory(stdout, c, p);
    print_room(c, p, memory_bytes);
    char sharers[64];
    printf("\nbatch        %lld tokens a step: %s x %lld micro-batch%s x %lld sequences of %lld\n",
           (long long)p->tokens_per_step, plan_sharers(config_datas(c, ranks), ranks, sharers),
           (long long)p->micro_steps, p->micro_steps == 1 ? "" : "es", (long long)c->batch.micro_batch,
           (long long)c->batch.seq_len);
    printf("run          %lld steps, %s tokens: %.3g per parameter (Chinchilla: 20)\n", (long long)c->run.steps,
           plan_count_text(steps * (double)p->tokens_per_step).text,
           steps * (double)p->tokens_per_step / (double)p->parameters);
    schedule_say_no_warmup(c, LABEL_COLUMNS);
    plan_print_data(c);
    plan_print_disk(c, (double)p->checkpoint_bytes, DISK_HERE);
    printf("compute      %sFLOP a token, %sFLOP a step, %sFLOP in all\n", plan_count_text(p->flops_per_token).text,
           plan_count_text(step_flops).text, plan_count_text(step_flops * steps).text);
    if (ranks > 1) {
        const char *between = ": ", *unit = " bytes";
        printf("exchange     each rank sends %s a step", bytes_text(p->step_sent).text);
        for (int a = 0; a < AXES && (is_grid(p) || c->parallel.zero_stage > 1); a++) {
            if (p->mesh.size[a] == 1 && a != AXIS_SHARD && a != AXIS_REPLICA) continue;
            printf("%s%s %.0f%s", between, mesh_axis_name((Axis)a), p->sent[a], unit);
            between = ", ", unit = "";
        }
        printf("\n");
    }
    if (matmul_flops > 0) {
        char time[32];
        duration_text(time, step_flops * steps / (EXPECTED_MFU * matmul_flops) * 1e3);
        printf("machine      %s: %sFLOP/s in %s matrix products (measured now, 0.1 s)\n", device_name(),
               plan_count_text(matmul_flops).text, dtype_name(p->act));
        printf("time         about %s: an estimate at %.0f %% of that rate%s, without evals and saves;\n"
               "             models much smaller than GPT-2 124M reach a smaller part of it\n",
               time, 100 * EXPECTED_MFU, ranks > 1 ? ", for ranks that share this machine" : "");
    } else
        printf("machine      no GPU here: its rate, its memory and what its libraries take of it are not measured\n");
    if (device_is_host())
        printf("left out     GPUs: this build computes on the processor; plan gpu=h100 is for a card\n");
    else if (ranks > 1 && !has_nccl())
        printf(
            "left out     NCCL: this build has none, and ranks exchange by way of host memory; install libnccl-dev, "
            "then make BACKEND=cuda\n");
}

/* --- the verb ----------------------------------------------------------------------------------------------------- */

enum { MOST_RANKS = 1 << 20 };
static struct {
    int         ranks;
    int64_t     memory_bytes;
    int         ledger, fits, kernels;
    const char *rates;
    ClusterPlan on;
} asked;
static const VerbKey PLAN_KEYS[] = {
    {"ranks", "8", "1", "ranks of the job", .whole = &asked.ranks, .least = 1, .most = MOST_RANKS},
    {"memory", "80GiB", NULL, "memory of a rank: prints the largest micro-batch that fits",
     .bytes = &asked.memory_bytes, .least = 1, .unset = "this machine's"},
    {"ledger", "true", "false", "every operation of a step with its sizes, FLOPs and bytes", .flag = &asked.ledger},
    {"gpu", "h100", "", "plan for this card, simulated: a100, h100, h200, b200, 3090, 4090 or 5090",
     .text = &asked.on.gpu},
    {"nodes", "2", NULL, "machines that the ranks are on, with gpu=", .whole = &asked.on.nodes, .least = 1,
     .most = MOST_RANKS, .unset = "as many as needed"},
    {"price", "2.5", "", "dollars an hour of one GPU, with gpu= or cluster=: what the run costs",
     .number = &asked.on.price, .least = 1e-6, .most = 1e6},
    {"cluster", "dgx-h100", "", "simulate on this cluster: a name of configs/clusters, or a file",
     .text = &asked.on.cluster},
    {"search", "true", "false", "look for the quickest grid of the cluster; keys that are given stay",
     .flag = &asked.on.searches},
    {"fit", "true", "false", "take the most ranks, of those there are, that the config allows", .flag = &asked.fits},
    {"mtbf_hours", "3.1", "", "hours between failures of the job: how often to save, and what is lost",
     .number = &asked.on.mtbf_hours, .least = 1e-6, .most = 1e9},
    {"json", "true", "false", "figures of the simulation as JSON; with fit=true here, the ranks alone",
     .flag = &asked.on.json},
    {"kernels", "true", "false", "a step of one gpu=, kernel by kernel, beside what it could take",
     .flag = &asked.kernels},
    {"rates", "h100.json", "", "measured rates of kernels, a file, in place of estimates", .text = &asked.rates},
    {.name = NULL},
};

/* Refuses keys that do not go together. */
static void check_keys(void) {
    const char *elsewhere = asked.on.gpu ? asked.on.gpu : asked.on.cluster, *key = asked.on.gpu ? "gpu" : "cluster";
    if (asked.on.gpu && asked.on.cluster)
        fail(EXIT_CONFIG, "plan: gpu=%s and cluster=%s each name the cluster to plan for: give one of them",
             asked.on.gpu, asked.on.cluster);
    if (!asked.on.gpu && asked.on.nodes)
        fail(EXIT_CONFIG, "plan: nodes=%d needs gpu= beside it, as in gpu=h100 ranks=16 nodes=2", asked.on.nodes);
    if (!elsewhere &&
        (asked.on.searches || (asked.on.json && !asked.fits) || asked.on.mtbf_hours > 0 || asked.on.price > 0))
        fail(EXIT_CONFIG,
             "plan: search=, json=, mtbf_hours= and price= need a machine to simulate: add gpu=h100, cluster=dgx-h100, "
             "or cluster= with the path of a cluster's file");
    if (elsewhere && (asked.memory_bytes || asked.ledger))
        fail(EXIT_CONFIG,
             "plan: memory= and ledger= are for a run on this machine, and %s=%s is for another: leave out either", key,
             elsewhere);
    if (asked.fits && asked.on.searches)
        fail(EXIT_CONFIG,
             "plan: give either fit=true, which keeps parallel.* of the config and takes fewer ranks, or search=true, "
             "which keeps the ranks and looks for parallel.*");
    if (asked.rates && !asked.kernels)
        fail(EXIT_CONFIG,
             "plan: rates=%s is read only with kernels=true: add kernels=true and gpu=, as in gpu=h100, or leave "
             "rates= out",
             asked.rates);
    if (asked.kernels && !asked.on.gpu)
        fail(EXIT_CONFIG, "plan: kernels=true needs the name of a GPU: add gpu=h100 or gpu=h200");
    if (asked.kernels && (asked.on.searches || asked.on.price > 0 || asked.on.mtbf_hours > 0 || asked.fits))
        fail(EXIT_CONFIG,
             "plan: kernels=true prints one step of one GPU, and search=, fit=, price= and mtbf_hours= are for "
             "the whole job: leave out kernels= or those keys");
}

static int verb_plan(int words, char **word) {
    char **override = word + 1;
    int    overrides = 0;
    /* removes zero_bubble=false, a key of former versions with its default */
    for (int i = 1; i < words; i++) {
        if (strcmp(word[i], "zero_bubble=false") == 0) continue;
        if (strncmp(word[i], "zero_bubble=", 12) == 0)
            fail(EXIT_CONFIG,
                 "plan: zero_bubble= is no longer a key, because no run computes backward in two halves: leave "
                 "zero_bubble= out");
        override[overrides++] = word[i];
    }
    check_keys();
    asked.on.held = search_held(override, overrides);
    Config config;
    /* 0 if the number of ranks is checked later */
    int    ranks = asked.fits || asked.on.searches ? 0 : asked.ranks;
    int    is_elsewhere = asked.on.gpu || asked.on.cluster;
    char  *faults = is_elsewhere ? config_load_elsewhere(word[0], override, overrides, ranks, &config)
                                 : config_load(word[0], override, overrides, ranks, &config);
    if (faults) fail_lines(EXIT_CONFIG, faults);
    /* checks the JSON files of the initial model, but not its weights, which may be made later */
    if (config.model.init_from[0]) weights_set_check_json(config.model.init_from);
    if (asked.fits) {
        int fit = search_fit(&config, asked.ranks);
        if (fit == 0) fail(EXIT_CONFIG, "%s", config_check_changed(&config, asked.ranks));
        if (!asked.on.json) printf("fit          %d of %d ranks\n", fit, asked.ranks);
        else if (!is_elsewhere) printf("{\"ranks\":%d,\"of\":%d}\n", fit, asked.ranks);
        asked.ranks = fit;
    }
    if (asked.on.json && !is_elsewhere) { /* a script waits for the JSON (scripts/elastic.sh), so nothing is measured */
        config_free(&config);
        return EXIT_DONE;
    }
    if (is_elsewhere) {
        asked.on.ranks = asked.ranks;
        if (asked.kernels) kernels_plan(&config, asked.on, asked.rates);
        else plan_cluster(&config, asked.on);
        config_free(&config);
        return EXIT_DONE;
    }

    /* cores: processor cores that this process may use */
    int cores = omp_get_num_procs(), present = device_count() > 0;
    if (present)
        /* the scratch memory of a rank depends on its number of threads */
        device_open(0, cores > asked.ranks ? cores / asked.ranks : 1);
    Numerics numerics = precision_resolve((Precision)config.precision, device_has_bf16());
    /* GPUs per host: as many as on this host; 0 on CPUs, where the number of hosts is not known */
    int      per_host = device_is_host() ? 0 : device_count();
    int      hosts = per_host > 0 ? (asked.ranks + per_host - 1) / per_host : 0;
    /* a CUDA build without a GPU assumes a GPU for each rank */
    int      may_be_nccl = per_host >= asked.ranks || (!device_is_host() && !present);
    CommKind comm = plan_comm(&config, may_be_nccl && has_nccl());
    Plan     plan = plan_make(&config, numerics.act, (PlanRanks){asked.ranks, comm, -1, hosts, 0});
    double   rate = 0.0;
    if (present) {
        device_open(0, cores);                             /* opens the device with all cores for the measurement */
        rate = matmul_rate(numerics.act, numerics.math, matmul_rate_size(), 100.0);
    }
    plan_print(&config, &plan, rate, (size_t)asked.memory_bytes);
    if (asked.ledger) { /* prints every operation of a step of one rank, as a dry run (without computing) records it */
        Ledger step = {0};
        model_dry(config_model_spec(&config, plan.act, plan.ranks.count, plan.ranks.stage, NULL), plan.micro_steps,
                  &step);
        printf("\nledger of a rank's step: %sFLOP computed, %s read and written, %s sent\n",
               plan_count_text(ledger_flops(&step)).text, bytes_text(ledger_bytes(&step)).text,
               bytes_text(ledger_sent(&step, NULL)).text);
        ledger_print(stdout, &step);
        ledger_free(&step);
    }
    config_free(&config);
    return EXIT_DONE;
}

const Verb PLAN_VERB = {
    "plan", "config.json [key=value ...]", "parameters, memory, tokens and time of a run",
    "Prints what a run will take, here or on GPUs that are not here. Config keys may follow the file, beside these:",
    PLAN_KEYS, "./train_gpt plan configs/gpt2-124m.json gpu=h100 ranks=8", verb_plan, {VERB_CONFIG, 0, "a config file"},
};
