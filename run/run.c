/* run.c - creates everything that a run needs: first checks that need no other rank, then ranks, memory and weights.
 * See run.h. */
#include "run/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/thread.h"
#include "core/terminal.h"
#include "core/version.h"
#include "core/error.h"
#include "run/checkpoint/algorithms_file.h"
#include "run/checkpoint/manifest.h"
#include "run/checkpoint/memory_copies.h"
#include "run/config/config.h"
#include "run/guard/requests.h"
#include "run/log/run_folder.h"
#include "run/text/sample.h"

static const double DATA_LOOK_MS = 100.0, DATA_PATIENCE_MS = 10e3;

int run_is_rank0(const Run *r) { return comm_rank(r->comm) == 0; }

/* --- inputs: before MPI, so that a fault in them is reported at once ---------------------------------------------- */

static void open_inputs(Run *r, Config *c) {
    run_folder_check(c);
    r->tokenizer = run_tokenizer(c);
    r->end_of_text = run_documents(c, &r->tokenizer);
    r->train = dataset_open("data.train", c->data.train.item, c->data.train.share, c->data.train.count,
                            c->batch.seq_len, c->model.shape.vocab_size);
    if (c->data.val.count)
        r->val = dataset_open("data.val", c->data.val.item, NULL, c->data.val.count, c->batch.seq_len,
                              c->model.shape.vocab_size);
    r->task = xcalloc((size_t)c->eval.tasks.count + 1, sizeof *r->task, "the tasks");
    for (; r->tasks < c->eval.tasks.count; r->tasks++) {
        Task *t = &r->task[r->tasks];
        *t = task_read(c->eval.tasks.item[r->tasks], (TaskReader){&r->tokenizer, c->batch.seq_len, 0, 0});
        if (t->cut > 0)
            warn("%s: %lld texts are longer than the %lld tokens of batch.seq_len and lost their beginning", t->path,
                 (long long)t->cut, (long long)c->batch.seq_len);
    }
    dataset_warn_shared(&r->val, &r->train);
    r->bytes_per_token =
        r->val.shards ? dataset_bytes_per_token(&r->val, &r->tokenizer, dataset_first_samples(&r->val, c->eval.tokens))
                      : dataset_bytes_per_token(&r->train, &r->tokenizer, r->train.samples);
    r->train.tokenizer = tokenizer_fingerprint(&r->tokenizer);
    checkpoint_precheck_source(c, &r->tokenizer);
}

/* Ends the job unless all ranks have the same config and the same data. If a file is edited while ranks start, or the
 * disk of a host has another copy, the job would train a mixture or hang. */
static void agree_on_inputs(const Run *r) {
    char     ranks[GUARD_TEXT];
    uint64_t tasks = 0;
    if (!guard_is_same(r->comm, (int64_t)config_fingerprint(r->config), ranks))
        fail(EXIT_CONFIG,
             "the configs of the ranks differ: %s; start all ranks with the same config file and the same key=value "
             "words",
             ranks);
    for (int i = 0; i < r->tasks; i++) tasks = 31 * tasks + r->task[i].fingerprint;
    const struct { const char *key; uint64_t seen; } inputs[] = {
        {"data.train", dataset_fingerprint(&r->train)}, {"data.val", dataset_fingerprint(&r->val)},
        {"eval.tasks", tasks}, {"model.init_from", checkpoint_source_fingerprint(r->config)}};
    for (int i = 0; i < 4; i++)
        if (!guard_is_same(r->comm, (int64_t)inputs[i].seen, ranks))
            fail(EXIT_DATA,
                 "%s: the ranks do not see the same files: %s differ. Compared: file names, sizes, samples of the "
                 "content. Copy the same files to every host, or use a folder that all hosts share",
                 inputs[i].key, ranks);
}

/* --- ranks and device --------------------------------------------------------------------------------------------- */

/* Chooses the library for collectives. NCCL needs a GPU for every rank. A single rank needs no library. */
static CommKind choose_comm(const Config *c, Comm *comm, int device_sharers) {
    int64_t most = device_sharers;
    comm_all_reduce_i64(comm, &most, 1, COMM_MAX);
    int own = comm_size(comm) > 1 && most == 1;
    if (c->parallel.comm == PARALLEL_NCCL && comm_size(comm) > 1 && !own)
        fail(EXIT_NODEVICE, "parallel.comm = \"nccl\" needs a GPU for every rank: start one rank for each GPU, or set "
                            "parallel.comm=auto, which also works where ranks share a GPU");
    int has_nccl = strcmp(world_nccl(), "none") != 0;
    if (c->parallel.comm == PARALLEL_AUTO && own && !has_nccl && comm_rank(comm) == 0)
        warn("this build has no NCCL: gradients travel by way of host memory, which is slow; install libnccl-dev, "
             "then make BACKEND=cuda");
    return plan_comm(c, own && has_nccl);
}

static int stage_of(const Run *r) {
    return mesh_place(config_mesh(r->config, comm_size(r->comm)), comm_rank(r->comm)).at[AXIS_STAGE];
}

/* Computes the memory plan of this rank. After that, a failed allocation, also in NCCL and cuBLASLt, prints the plan
 * with changes that save memory. */
static void make_plan(Run *r, CommKind kind, int joined) {
    r->plan = plan_make(r->config, r->numerics.act,
                        (PlanRanks){comm_size(r->comm), kind, stage_of(r),
                                    memory_host(r->comm, comm_rank(r->comm)).hosts, joined});
    error_set_memory_advice(NULL);
    free(r->memory_advice);
    r->memory_advice = plan_memory_advice(r->config, &r->plan);
    error_set_memory_advice(r->memory_advice);
}

/* Callback that ticks the watchdog while a collective runs or while the first weights are made. */
static void tick(void *watchdog) { watchdog_tick((Watchdog *)watchdog, NULL); }

/* Warns of a tensor group (ranks that divide matrices) that spans hosts, and names the widest group that fits every
 * host. Tensor ranks exchange rows in every block, which is slow between hosts. Ranks are numbered host by host. So a
 * group spans hosts if the number of ranks on a host is not a multiple of its size. */
static void warn_of_wide_groups(const Run *r) {
    int ranks = comm_size(r->comm), tensor = (int)r->config->parallel.tensor, fits = tensor, wide = 0;
    for (int first = 0, end; first < ranks; first = end) {
        for (end = first + 1; end < ranks && strcmp(comm_host(r->comm, end), comm_host(r->comm, first)) == 0;) end++;
        fits = common_divisor(fits, end - first);
        if (end < ranks && end % tensor && !wide) wide = end;
    }
    if (wide && run_is_rank0(r))
        warn("tensor ranks %d to %d lie on %s and %s: in every block these ranks exchange data over the network, which "
             "is slow; parallel.tensor = %d fits each host",
             wide / tensor * tensor, wide / tensor * tensor + tensor - 1, comm_host(r->comm, wide - 1),
             comm_host(r->comm, wide), fits);
}

static void join_ranks(Run *r, Launch launch) {
    const Config *c = r->config;
    r->watchdog = watchdog_create(c->run.watchdog_seconds, launch);
    if (!launch.launched) launch_explain_tasks();
    World *w = world_join(launch);
    r->comm = world_all(w);
    watchdog_tick(r->watchdog, "the start of the device");
    world_watch(w, tick, r->watchdog);
    char *fault = config_check_ranks(c, comm_size(r->comm));
    if (fault) fail_lines(EXIT_CONFIG, fault);
    watchdog_know(r->watchdog, r->comm, config_mesh(c, comm_size(r->comm)));
    device_open(world_local_rank(w), world_threads(w));
    signals_keep_to_main();
    agree_on_inputs(r);
    r->device_sharers = comm_device_sharers(r->comm, device_id());
    CommKind kind = choose_comm(c, r->comm, r->device_sharers);
    int64_t native_bf16 = device_has_bf16();
    comm_all_reduce_i64(r->comm, &native_bf16, 1, COMM_MIN);
    r->numerics = precision_resolve((Precision)c->precision, (int)native_bf16);
    const char *isa = device_isa();
    if (c->precision == PRECISION_FP8 && strncmp(isa, "sm_", 3) == 0 && atoi(isa + 3) < 89)
        fail(EXIT_NODEVICE,
             "precision = \"fp8\" needs a GPU of compute capability 8.9 (sm_89) or more, and %s has %s: set "
             "precision=bf16",
             device_name(), isa);
    r->state.loss_scale = loss_scale_start(r->numerics.act);
    make_plan(r, kind, 0);
    watchdog_tick(r->watchdog, "the connection of the ranks");
    r->groups = groups_create(r->comm, config_mesh(c, comm_size(r->comm)), c->parallel.interleave > 1);
    groups_add_experts(&r->groups, (int)c->parallel.expert);
    if (config_optimizer(c)->update_matrices) groups_add_matrices(&r->groups);
    if (c->parallel.deterministic) groups_add_tree(&r->groups);
    groups_set_kind(&r->groups, kind);
    signals_install(); /* installs handlers again, because MPI and NCCL may have replaced them */
    warn_of_wide_groups(r);
    r->shares = xmalloc(sizeof *r->shares * (size_t)r->groups.datas, "a table of ranks");
    for (int d = 0; d < r->groups.datas; d++)
        r->shares[d] = c->batch.global_tokens / (c->batch.micro_batch * c->batch.seq_len * r->groups.datas);
}

/* --- memory: every size from dry runs ----------------------------------------------------------------------------- */

/* Refuses a model that does not fit in memory, before any of it is allocated. The message has the two changes that cost
 * least. All ranks refuse, so that none waits. No rank has allocated memory when the free memory is read, so ranks on
 * one GPU divide it. */
static void refuse_too_large(const Run *r) {
    const Config *c = r->config;
    const Plan   *p = &r->plan;
    size_t        sharing = r->device_sharers > 1 ? (size_t)r->device_sharers : 1;
    size_t        available = device_memory().free / sharing, wanted = p->device_bytes - p->library_bytes;
    int64_t       lacking = available > 0 && wanted > available;
    comm_all_reduce_i64(r->comm, &lacking, 1, COMM_MAX);
    if (!lacking) return;
    Config  leaner = *c;
    leaner.memory.recompute = RECOMPUTE_BLOCK;
    int64_t fits = plan_largest_micro_batch(c, p, available + p->library_bytes);
    size_t  block = plan_make(&leaner, p->act, p->ranks).device_bytes - p->library_bytes;
    fail(EXIT_MEMORY,
         "%s has %s free%s and this run takes %s: batch.micro_batch = %lld %s; with memory.recompute = \"block\" the "
         "run takes %s",
         device_name(), bytes_text((double)available).text, sharing > 1 ? " for each rank" : "",
         bytes_text((double)wanted).text, (long long)(fits > 0 ? fits : 1),
         fits > 0 ? "is the largest that fits" : "does not fit either", bytes_text((double)block).text);
}

/* Refuses a run whose checkpoint a resume could not read, because its manifest would list too many extents (ranges of
 * file bytes). An extent ends after a MiB, with a row, or with the piece of a bucket that a rank owns. */
static void refuse_too_many_ranks(const Run *r) {
    int     experts = (int)r->config->parallel.expert;
    Layout  l = model_layout(r->config->model.shape, (LayoutPlace){comm_size(r->groups.state), 1, 0, NULL, experts, 0});
    /* ends: number of extents (ranges of file bytes) that end within a piece (a rank's share of a bucket). A row that
     * tensor ranks cut has one for each of these ranks, and for each of q, k and v. */
    int64_t tensor = r->config->parallel.tensor, ends = tensor > 1 ? 7 * tensor : 1;
    int64_t runs = optimizer_tensors(config_optimizer(r->config)) *
                       (l.params * tensor + l.buckets * l.ranks * ends) +
                   2 * MANIFEST_EXTENTS;
    if (!manifest_has_room(runs, r->train.shards))
        fail(EXIT_CONFIG,
             "a checkpoint of %lld parameters by %d rank%s needs a state.json that lists %lld byte ranges and %d data "
             "files, more than a state.json can hold; use %s",
             (long long)l.elems, l.ranks, l.ranks > 1 ? "s" : "", (long long)runs, r->train.shards,
             l.ranks > 1 ? "fewer ranks" : "a smaller model");
    layout_destroy(&l);
}

static void take_memory(Run *r) {
    const Config *c = r->config;
    int64_t       B = c->batch.micro_batch, T = c->batch.seq_len;
    refuse_too_many_ranks(r);
    make_plan(r, comm_kind(r->comm), 1);
    refuse_too_large(r);
    ModelSpec spec = config_model_spec(c, r->numerics.act, comm_size(r->comm), stage_of(r), &r->groups);
    spec.math = r->numerics.math;
    spec.document_mask = r->end_of_text >= 0;
    r->model = model_create(spec);
    if (spec.fp8) r->fp8 = fp8_steps_create(c->model.shape.n_layer), r->state.fp8 = &r->fp8.history;
    r->batch_arena = arena_create("batches", r->plan.batch_bytes);
    int64_t own_T = T / c->parallel.context;
    r->eval_batch.inputs = arena_tensor(&r->batch_arena, I32, 2, B, own_T, 1);
    r->eval_batch.targets = arena_tensor(&r->batch_arena, I32, 2, B, own_T, 1);
    if (spec.document_mask) r->eval_batch.starts = arena_tensor(&r->batch_arena, I32, 2, B, own_T, 1);
}

/* --- weights ------------------------------------------------------------------------------------------------------ */

/* Sends the first weights to all ranks. They are the weights of the resumed checkpoint, of model.init_from, or new
 * ones. */
static void publish_first_weights(Run *r) {
    if (r->resumed.ranks == 0 && r->config->model.init_from[0]) {
        checkpoint_init_from(r->config->model.init_from, &r->checkpoint);
    } else if (r->resumed.ranks == 0) {
        watchdog_tick(r->watchdog, "the first weights");
        masters_init(&r->model->optimizer, &r->model->stream, (uint64_t)r->config->run.seed, tick, r->watchdog);
    }
    shards_publish(r->model->shards, &r->model->stream);
    shards_need_all(r->model->shards);
    fp8_scales_set(&r->model->gpt.fp8, &r->model->stream, &r->fp8.history);
}

void run_take_share(Run *r, int64_t step) {
    int64_t before = 0, own = r->shares[r->groups.data];
    for (int d = 0; d < r->groups.data; d++) before += r->shares[d];
    loader_share(r->loader, before, own, run_position(r, step).samples);
    pipeline_set_micro_batches(&r->model->pipeline, own);
}

int run_await_batches(Run *r) {
    double start_ms = clock_ms();
    int    reports = 0;
    watchdog_tick(r->watchdog, "the wait for data");
    for (;;) {
        int64_t is_ready = loader_is_ready(r->loader, DATA_LOOK_MS), all = is_ready;
        comm_all_reduce_i64(r->comm, &all, 1, COMM_MIN);
        if (all) return 1;
        requests_begin(&r->requests); /* makes requests_agree exchange requests between ranks at once */
        if (requests_agree(&r->requests)) return 0;
        if (is_ready || reports++ || clock_ms() - start_ms < DATA_PATIENCE_MS) continue;
        warn("no data for %.0f s: the disk of data.train is slow or hangs; Ctrl-C still saves the run and "
             "stops it",
             DATA_PATIENCE_MS * 1e-3);
    }
}

Position run_position(const Run *r, int64_t step) { return position_after(r->state.start, r->config, step); }

static int64_t hash_now(Run *r, void (*add)(const Optimizer *o, Stream *s, Tensor hash)) {
    Model *m = r->model;
    step_sums_zero(&m->sums, &m->stream);
    add(&m->optimizer, &m->stream, step_hash(&m->sums, HASH_REPLICAS));
    return step_sums_fetch(&m->sums, &m->stream).hash[HASH_REPLICAS];
}
int64_t run_with_parts(Run *r, int64_t replicas) {
    Groups *g = &r->groups;
    if (!g->tensor && !g->stages && !g->experts) return replicas;
    /* ranks that hold equal copies of the weight rows that are not divided among ranks */
    Comm   *alike = g->tensor ? g->tensor : g->experts ? g->weights : NULL;
    int64_t rows = alike ? guard_is_outvoted(alike, replicas) : 0,
            parts = guard_is_outvoted(g->experts ? g->expert_state : g->weights, hash_now(r, optimizer_hash_parts));
    return rows + 2 * parts;
}
int64_t run_hash_replicas(Run *r) { return run_with_parts(r, hash_now(r, optimizer_hash_replicas)); }
int64_t run_hash_pieces(Run *r) { return hash_now(r, optimizer_hash_pieces); }

int64_t run_roll_back(Run *r, int64_t step) {
    Guard   now = r->state.guard;
    int64_t next = run_position(r, step + 1).samples;
    shards_need_all(r->model->shards);
    memory_copies_forget(r->copies);
    r->resumed = checkpoint_roll_back(&r->checkpoint);
    if (r->resumed.ranks == 0) {
        optimizer_zero_states(&r->model->optimizer, &r->model->stream);
        r->state.loss_scale = loss_scale_start(r->numerics.act);
        r->state.start = (Position){0};
        r->state.guard = (Guard){0};
        r->fp8.history.steps = 0;
    }
    publish_first_weights(r);
    r->state.start.samples = next;
    /* a rollback keeps the guard's counts of skipped steps and rollbacks, and the latest step that was discarded */
    r->state.guard.skips = now.skips, r->state.guard.rollbacks = now.rollbacks, r->state.guard.furthest = now.furthest;
    loader_seek(r->loader, next);
    if (run_is_rank0(r)) metrics_rolled_back(r->metrics, r->resumed.step, step + 1);
    return r->resumed.step;
}

/* --- the whole ---------------------------------------------------------------------------------------------------- */

/* Measures the rate of matrix products of this rank, for the MFU. */
static double measure_products(const Run *r) {
    return matmul_rate(r->numerics.act, r->numerics.math, matmul_rate_size(), 100.0);
}

double run_mfu(Run *r, int64_t step, double tokens_per_s) {
    enum { STEPS_BETWEEN = 20 };
    double flops = r->plan.flops_per_token * tokens_per_s;
    int    again = comm_size(r->comm) == 1 && device_is_host() &&
                (r->measured_step == 0 || step >= r->measured_step + STEPS_BETWEEN);
    if (flops > r->matmul_flops && again) {
        r->matmul_flops = fmax(r->matmul_flops, measure_products(r));
        r->measured_step = step + 1;
    }
    return flops > r->matmul_flops ? NAN : flops / r->matmul_flops;
}

void run_create(Run *r, Config *config, Launch launch) {
    memset(r, 0, sizeof *r);
    r->config = config;
    r->started_ms = clock_ms();
    open_inputs(r, config);
    join_ranks(r, launch);
    watchdog_tick(r->watchdog, "taking the run folder");
    r->lock = lock_run_folder(config->run.dir, r->comm, r->watchdog, LOCK_BEAT_MS);
    checkpoint_precheck(config);
    watchdog_tick(r->watchdog, "the measurement of matrix products");
    /* measured before take_memory, because the measurement allocates memory of its own */
    r->matmul_flops = measure_products(r);
    watchdog_tick(r->watchdog, "the start");
    comm_all_reduce_f64(r->comm, &r->matmul_flops, 1, COMM_SUM);
    watchdog_tick(r->watchdog, "taking memory");
    take_memory(r);
    watchdog_tick(r->watchdog, "the first weights");
    r->checkpoint = (CheckpointState){.config = config,
                                      .best_step = -1,
                                      .comm = r->comm,
                                      .optimizer = &r->model->optimizer,
                                      .stream = &r->model->stream,
                                      .train = &r->train,
                                      .tokenizer = &r->tokenizer,
                                      .watchdog = r->watchdog,
                                      .lock = r->lock,
                                      .precision = r->numerics.name,
                                      .threads = device_threads(),
                                      .train_state = &r->state};
    r->resumed = checkpoint_resume(&r->checkpoint);
    publish_first_weights(r);
    watchdog_tick(r->watchdog, "the first step");
}

void run_begin(Run *r) {
    const Config *c = r->config;
    lock_sign(r->lock);
    LoaderPlan plan = {.order = {c->data.shuffle, (uint64_t)c->run.seed},
                       .step_samples = c->batch.global_tokens / c->batch.seq_len,
                       .micro_batch = c->batch.micro_batch,
                       .rank = r->groups.data,
                       .ranks = r->groups.datas,
                       .context = context_part(r->groups.context),
                       .batches = r->model->pipeline.list.micros,
                       .documents = r->end_of_text >= 0,
                       .end_of_text = r->end_of_text,
                       .first_sample = run_position(r, r->resumed.step).samples};
    checkpoint_make_room(&r->checkpoint);
    watchdog_tick(r->watchdog, "the choice of algorithms");
    MeshPlace place = mesh_place(r->groups.mesh, comm_rank(r->comm));
    place.at[AXIS_STAGE] = 0;
    int is_first_of_stage = mesh_rank(r->groups.mesh, place) == 0;
    algorithms_settle(c->run.dir, r->comm, is_first_of_stage, &r->model->gpt, &r->model->stream, r->eval_batch,
                      r->model->pipeline.spec.micro_batches);
    if (comm_kind(r->comm) == COMM_NCCL && comm_size(r->comm) > 1) {
        watchdog_tick(r->watchdog, "the first run of the kernels");
        pipeline_warm_up(&r->model->pipeline, &r->model->stream, r->eval_batch);
    }
    r->saver = saver_create(&r->checkpoint);
    r->copies = memory_copies_create(&r->checkpoint);
    r->loader = loader_create(&r->train, plan, &r->batch_arena);
    if (run_is_rank0(r)) {
        run_folder_keep_log(c);
        run_folder_keep_config(c);
        char         fault[GPU_METER_FAULT_CHARS];
        MetricsAbout about = {r->bytes_per_token, program_commit(), r->plan.parameters, c->log.tensorboard};
        r->metrics = metrics_open(c->run.dir, r->resumed.step, about);
        r->gpu = gpu_meter_open(device_id(), fault);
        if (r->resumed.ranks > 0)
            metrics_event(r->metrics, "resume", r->resumed.step, (Metric[]){{"ranks", comm_size(r->comm)}}, 1);
        r->checkpoint.log = metrics_path(r->metrics), r->checkpoint.log_fd = metrics_fd(r->metrics);
    }
    r->requests = requests_start(r->comm, c->run.dir, c->run.max_minutes, r->started_ms,
                                 (double)checkpoint_disk_bytes(&r->model->shards->layout, r->model->optimizer.kind));
    r->progress = progress_start(c->run.steps, r->resumed.step, schedule_last_step(c), c->log.every);
    groups_times(&r->groups); /* drops the times of communication during the start, which belong to no step */
    watchdog_forget_start(r->watchdog);
}

void run_destroy(Run *r) {
    shards_need_all(r->model->shards);
    island_destroy(r->island);
    memory_copies_end(r->copies);
    saver_destroy(r->saver);
    metrics_close(r->metrics);
    gpu_meter_close(r->gpu);
    int is_read = !loader_destroy(r->loader);
    model_destroy(r->model);
    arena_destroy(&r->batch_arena);
    free(r->shares);
    free(r->experts.counts);
    fp8_steps_destroy(&r->fp8);
    if (!is_read) dataset_close(&r->train);
    if (r->val.shards) dataset_close(&r->val);
    for (int i = 0; i < r->tasks; i++) task_free(&r->task[i]);
    free(r->task);
    tokenizer_destroy(&r->tokenizer);
    watchdog_tick(r->watchdog, "the end");
    say_end_log();
    lock_release(r->lock);
    watchdog_ends(r->watchdog);
    groups_free(&r->groups);
    world_leave(comm_world(r->comm));
    watchdog_destroy(r->watchdog);
    error_set_memory_advice(NULL);
    free(r->memory_advice);
}
