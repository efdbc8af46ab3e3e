/* simulate.c - simulates a step of a grid of ranks: see simulate.h. A dry run records the operations of a step in a
 * ledger. The ledger becomes a list of durations for each pipeline stage, and clocks replay the lists of all stages. */
#include "run/plan/simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "data/loader.h"
#include "model/block.h"
#include "model/pipeline.h"

/* --- a step of one stage as a list of durations ------------------------------------------------------------------- */

typedef enum {
    PASSAGE_COMPUTE,  /* the stage computes for Passage.seconds */
    PASSAGE_BLOCKS,   /* a collective of `seconds` during which the rank does not compute */
    PASSAGE_START,    /* starts a collective of `seconds`; the rank computes meanwhile */
    PASSAGE_WAIT      /* waits for an earlier collective of `group`: the one `back` before its latest */
} PassageKind;
/* Groups of ranks: one for each axis of the grid, the ranks that divide the experts, and those that share the state of
 * the same experts. A wait counts back along the collectives of one group. */
enum { EXPERTS = AXES, EXPERT_STATE, GROUPS };
typedef struct {
    PassageKind kind;
    Axis        axis;
    double      seconds, sent; /* duration in seconds; bytes that a collective sends */
    int64_t     back;  /* PASSAGE_WAIT: which collective of `group`: 0 is the latest, 1 the one before */
    int         group; /* index of the group of the collective: an axis, EXPERTS or EXPERT_STATE */
} Passage;

/* The passages (durations) of one work of a stage, such as a forward of a micro-batch, or of another section of a
 * step. */
typedef struct {
    Passage *passage;         /* owned */
    int      passages;        /* number of entries of `passage` */
    double   message_bytes;   /* size of the message to another stage; 0 if none */
} Chapter;

/* Kinds of micro-batches of a step, each with its own list of durations: the first one, the last one, and all
 * between. */
enum { MICRO_FIRST, MICRO_BETWEEN, MICRO_AT_END, MICRO_KINDS };

typedef struct {
    /* durations before the micro-batches of a step, after them, and of the optimizer's update */
    Chapter  begin, finish, update;
    /* Owned [works]: the durations of each kind of work item (a forward or backward of one micro-batch), as
     * [parts][WORK_BACKWARD + 1][MICRO_KINDS]. If each_work is 1, those of each single work item, in order. */
    Chapter *work;
    int64_t  works;           /* number of entries of `work` */
    int      parts, each_work; /* parts of the model on the stage; 1 if each work item has durations of its own */
    size_t   scratch_bytes;   /* scratch bytes that the step needs, from the dry run */
} History;

/* A group of ranks in the ledger. */
typedef struct {
    const char *name;   /* name of the group in the ledger */
    Axis        axis;   /* axis of the grid to which the group's times and bytes are added */
    Reach       reach;
    int         blocks; /* 1 if the ranks do not compute during a collective */
} Group;

typedef struct {
    const Cluster *cluster;
    double         flops;     /* FLOP/s of matrix products in this precision */
    size_t         element_bytes; /* bytes of an activation */
    /* groups of ranks in the ledger; AXIS_SHARD is the group of ranks that share one copy of the optimizer state */
    Group          group[GROUPS];
    /* reach (farthest link, latency) of all ranks; of messages from the first stage to the last */
    Reach          all, twins;
} Durations;

/* --- the durations of a ledger's entries -------------------------------------------------------------------------- */

static Durations durations_of(const Config *c, Target on, Mesh mesh) {
    static const unsigned AXES_OF[AXES] = {WITH_TENSOR, WITH_CONTEXT, WITH_STATE, WITH_REPLICA, WITH_STAGE};
    const Cluster *cluster = on.cluster;
    int            expert_ranks = (int)c->parallel.expert, queues = cluster->overlaps;
    Durations      d = {.cluster = cluster, .flops = cluster_flops(cluster, on.act, c->precision),
                        .element_bytes = dtype_bytes(on.act)};
    for (int a = 0; a < AXES; a++)
        d.group[a] = (Group){mesh_axis_name((Axis)a), (Axis)a, cluster_reach(cluster, mesh, AXES_OF[a]),
                             !queues || a == AXIS_TENSOR || a == AXIS_CONTEXT};
    int shards = d.group[AXIS_SHARD].reach.ranks / expert_ranks;
    d.group[EXPERTS] = (Group){GROUP_OF_EXPERTS, AXIS_SHARD, cluster_every_reach(cluster, 1, expert_ranks), 1};
    d.group[EXPERT_STATE] =
        (Group){GROUP_OF_EXPERT_STATE, AXIS_SHARD, cluster_every_reach(cluster, expert_ranks, shards), !queues};
    d.all = cluster_reach(cluster, mesh, WITH_TENSOR | WITH_CONTEXT | WITH_DATA | WITH_STAGE);
    d.twins = cluster_pair_reach(cluster, 0, mesh_rank(mesh, (MeshPlace){.at[AXIS_STAGE] = mesh.size[AXIS_STAGE] - 1}));
    return d;
}

/* --- the history of a stage, in chapters -------------------------------------------------------------------------- */

static void append(Chapter *c, Passage p) {
    Passage *last = c->passages ? &c->passage[c->passages - 1] : NULL;
    if (last && last->kind == p.kind &&
        (p.kind == PASSAGE_COMPUTE || (p.kind == PASSAGE_BLOCKS && last->axis == p.axis))) {
        last->seconds += p.seconds, last->sent += p.sent;
        return;
    }
    c->passage = xgrow(c->passage, c->passages, sizeof p, "a history of passages");
    c->passage[c->passages++] = p;
}

static void add_entry(Chapter *c, const Durations *d, const LedgerEntry *e, int is_work) {
    int g = 0, is_op = e->kind == LEDGER_OP;
    while (g < GROUPS && strcmp(e->group, d->group[g].name) != 0) g++;
    /* the group of all ranks has no name of an axis; it is the group of AXIS_SHARD if all ranks share the state */
    if (g == GROUPS) g = AXIS_SHARD;
    const Group *group = &d->group[g];
    if (is_op && !*e->group) {
        double seconds = cluster_op_seconds(d->cluster, e, d->flops, d->element_bytes);
        append(c, (Passage){PASSAGE_COMPUTE, AXIS_SHARD, seconds, 0, 0, 0});
    } else if (group->axis == AXIS_STAGE) {
        if (!is_op || e->bytes == 0.0) return; /* an entry with 0 bytes is a receive */
        /* A message of a forward or backward is sent when the schedule of the pipeline says so, and only its size is
         * kept here. A message of the tied embedding, at the end of the step, stops the stage for its duration. */
        double seconds = cluster_message_seconds(d->cluster, d->twins, e->bytes);
        if (is_work) c->message_bytes = e->bytes;
        else append(c, (Passage){PASSAGE_BLOCKS, AXIS_STAGE, seconds, e->bytes, 0, g});
    } else if (is_op) {
        PassageKind kind = group->blocks ? PASSAGE_BLOCKS : PASSAGE_START;
        int    rounds = strncmp(e->op, "all-reduce", 10) == 0 || strncmp(e->op, "maximum", 7) == 0 ? 2 : 1;
        double seconds = cluster_collective_seconds(d->cluster, group->reach, e->bytes, rounds);
        append(c, (Passage){kind, group->axis, seconds, e->bytes, 0, g});
    } else if (!group->blocks) {
        append(c, (Passage){PASSAGE_WAIT, group->axis, 0, 0, e->dim[0], g});
    }
}

static Chapter *chapter_of(const History *h, int part, int kind, int micro) {
    return &h->work[(part * (WORK_BACKWARD + 1) + kind) * MICRO_KINDS + micro];
}

/* Returns the kind of micro-batch k of n: first, last or between. */
static int micro_kind(int64_t k, int64_t n) { return k == n - 1 ? MICRO_AT_END : k == 0 ? MICRO_FIRST : MICRO_BETWEEN; }

static void read_ledger(History *h, const Ledger *l, int64_t micro_batches, const Durations *d) {
    int64_t *seen = xcalloc((size_t)h->parts * (WORK_BACKWARD + 1), sizeof *seen, "a history of parts");
    Chapter *to = &h->begin, none = {0};
    int      is_work = 0;
    int64_t  at = 0;
    for (int i = 0; i < l->entries; i++) {
        const LedgerEntry *e = &l->entry[i];
        if (e->kind != LEDGER_MARK) {
            if (to != &none) add_entry(to, d, e, is_work);
            continue;
        }
        is_work = strcmp(e->op, "finish") != 0 && strcmp(e->op, "update") != 0;
        if (!is_work) {
            to = strcmp(e->op, "finish") == 0 ? &h->finish : &h->update;
            continue;
        }
        int part = (int)e->dim[0], kind = strcmp(e->op, "forward") == 0 ? WORK_FORWARD : WORK_BACKWARD;
        int micro = micro_kind(seen[part * (WORK_BACKWARD + 1) + kind]++, micro_batches);
        to = h->each_work ? &h->work[at++] : chapter_of(h, part, kind, micro);
        /* this kind of work already has its list of durations, which counts for all works of the kind */
        if (to->passages) to = &none;
    }
    free(seen);
}

/* Returns 1 if each work needs its own list of durations: ZeRO stage 3 with a pipeline, or stage 2 with interleave.
 * There the blocks that a rank holds depend on the works before. */
static int history_is_of_list(const ModelSpec *stage) {
    int zero = stage->shards.zero_stage;
    return stage->pipeline.stages > 1 && (zero == 3 || (zero == 2 && stage->pipeline.parts > 1));
}

static History history_of(ModelSpec stage, int64_t micro_batches, const Durations *d) {
    History h = {.parts = stage.pipeline.parts, .each_work = history_is_of_list(&stage)};
    Ledger  ledger = {.in_order = 1, .is_elsewhere = 1};
    /* fewest: micro-batches of a dry run that has a first, a middle and a last one */
    int64_t fewest = stage.pipeline.parts > 1 ? 2 * stage.pipeline.stages : 3;
    int64_t run = h.each_work || stage.shards.micro_batches || micro_batches < fewest ? micro_batches : fewest;
    h.works = h.each_work ? 2 * run * h.parts : (int64_t)h.parts * (WORK_BACKWARD + 1) * MICRO_KINDS;
    h.work = xcalloc((size_t)h.works, sizeof *h.work, "a history of works");
    stage.pipeline.micro_batches = run;
    h.scratch_bytes = model_dry(stage, run, &ledger).scratch;
    read_ledger(&h, &ledger, run, d);
    ledger_free(&ledger);
    return h;
}

static void history_free(History *h) {
    for (int64_t i = 0; i < h->works; i++) free(h->work[i].passage);
    free(h->work);
    free(h->begin.passage);
    free(h->finish.passage);
    free(h->update.passage);
}

/* --- the clocks of a stage ---------------------------------------------------------------------------------------- */

enum { ENDS = 4096 }; /* number of latest collectives whose ends are kept: more than ever run at once */

typedef struct { int is_there; double at, seconds; } Message;

typedef struct {
    const History *history;
    WorkList       list;
    double         now, queue;      /* time until which the stage computes; time until which its collectives run */
    /* by kind of work (forward, backward): reach (link, latency) to the stage that receives its message */
    Reach          to[2];
    double         compute_s, exposed_s[AXES], sent[AXES];
    /* Owned [ENDS]: ring of the ends of the collectives of a group. The latest is at (started - 1) % ENDS. */
    double        *end[GROUPS];
    int64_t        started[GROUPS];
    int64_t        at;              /* index in `list` of the next work */
    /* by kind of work (forward, backward): when the receive of the next message was posted; below 0: not posted */
    double         posted[2];
    /* by kind of work (forward, backward): the received message; the message to send, or the time `at` when the last
     * one has left */
    Message        in[2], out[2];
} Stage;

static void wait_until(Stage *s, double when, Axis axis) {
    if (when <= s->now) return;
    s->exposed_s[axis] += when - s->now;
    s->now = when;
}

static void run_chapter(Stage *s, const Chapter *c) {
    for (int i = 0; i < c->passages; i++) {
        const Passage *p = &c->passage[i];
        s->sent[p->axis] += p->sent;
        switch (p->kind) {
        case PASSAGE_COMPUTE:
            s->now += p->seconds, s->compute_s += p->seconds;
            break;
        case PASSAGE_BLOCKS:
            s->now += p->seconds, s->exposed_s[p->axis] += p->seconds;
            break;
        case PASSAGE_START:
            s->queue = fmax(s->queue, s->now) + p->seconds;
            s->end[p->group][s->started[p->group]++ % ENDS] = s->queue;
            break;
        case PASSAGE_WAIT:
            if (p->back < ENDS && p->back < s->started[p->group])
                wait_until(s, s->end[p->group][(s->started[p->group] - 1 - p->back) % ENDS], p->axis);
            break;
        }
    }
}

/* --- the order of stages: the rules of model/pipeline.h ----------------------------------------------------------- */

typedef struct {
    Stage         *stage;
    const Cluster *cluster;
    int            stages, parts;
    int64_t        micro_batches;
} Replay;

/* takes: returns 1 if work w on stage p begins with a message from another stage. gives: returns 1 if it ends with a
 * message to another stage. Forward goes from the first part of the model to the last, backward from the last to the
 * first. */
static int takes(const Replay *r, Work w, int p) {
    int part = w.part * r->stages + p;
    return w.kind == WORK_BACKWARD ? part < r->stages * r->parts - 1 : part > 0;
}
static int gives(const Replay *r, Work w, int p) {
    int part = w.part * r->stages + p;
    return w.kind == WORK_BACKWARD ? part > 0 : part < r->stages * r->parts - 1;
}
static int receiver_of(const Replay *r, int kind, int p) {
    return kind == WORK_BACKWARD ? (p + r->stages - 1) % r->stages : (p + 1) % r->stages;
}

static void post(const Replay *r, int p, double when) {
    Stage *s = &r->stage[p];
    if (s->at < s->list.count && takes(r, s->list.work[s->at], p)) s->posted[s->list.work[s->at].kind] = when;
}

/* Delivers messages of stage p to receivers that wait. out[].at becomes the time from which the sender may send the
 * next. */
static int deliver(const Replay *r, int p) {
    int moved = 0;
    for (int kind = 0; kind < 2; kind++) {
        Message *out = &r->stage[p].out[kind];
        Stage   *to = &r->stage[receiver_of(r, kind, p)];
        if (!out->is_there || to->posted[kind] < 0 || to->in[kind].is_there) continue;
        double arrives = fmax(out->at, to->posted[kind]) + (r->cluster->messages_overlap ? out->seconds : 0.0);
        to->in[kind] = (Message){1, arrives, 0};
        to->posted[kind] = -1;
        *out = (Message){0, arrives, 0};
        moved = 1;
    }
    return moved;
}

/* Runs the next work of stage p if its message has arrived and the last message of this kind of work has left the
 * stage. Returns 1 if it ran. */
static int run_next(const Replay *r, int p) {
    Stage *s = &r->stage[p];
    if (s->at == s->list.count) return 0;
    Work           w = s->list.work[s->at];
    const Chapter *c = s->history->each_work
                           ? &s->history->work[s->at]
                           : chapter_of(s->history, w.part, w.kind, micro_kind(w.micro, r->micro_batches));
    int            from_message = takes(r, w, p), to_message = gives(r, w, p);
    if ((from_message && !s->in[w.kind].is_there) || (to_message && s->out[w.kind].is_there)) return 0;
    if (from_message) {
        wait_until(s, s->in[w.kind].at, AXIS_STAGE);
        s->in[w.kind].is_there = 0;
    }
    if (to_message) wait_until(s, s->out[w.kind].at, AXIS_STAGE);
    s->at++;
    post(r, p, s->now);
    run_chapter(s, c);
    if (to_message) {
        double seconds = cluster_message_seconds(r->cluster, s->to[w.kind], c->message_bytes);
        if (!r->cluster->messages_overlap) s->now += seconds, s->exposed_s[AXIS_STAGE] += seconds;
        s->out[w.kind] = (Message){1, s->now, seconds};
        s->sent[AXIS_STAGE] += c->message_bytes;
    }
    return 1;
}

/* Runs a step on all stages. At its end they wait for each other, to compute the gradient norm. */
static void run_step(const Replay *r) {
    for (int p = 0; p < r->stages; p++) {
        Stage *s = &r->stage[p];
        s->at = 0, s->posted[0] = s->posted[1] = -1;
        run_chapter(s, &s->history->begin);
        post(r, p, s->now);
    }
    for (int moved = 1; moved;) {
        moved = 0;
        for (int p = 0; p < r->stages; p++)
            while (run_next(r, p) || deliver(r, p)) moved = 1;
    }
    double meet = 0.0;
    for (int p = 0; p < r->stages; p++) {
        Stage *s = &r->stage[p];
        CHECK(s->at == s->list.count, "stage %d stands at work %lld of %lld", p, (long long)s->at,
              (long long)s->list.count);
        run_chapter(s, &s->history->finish);
        meet = fmax(meet, s->now);
    }
    for (int p = 0; p < r->stages; p++) wait_until(&r->stage[p], meet, AXIS_STAGE);
}

/* --- one grid ----------------------------------------------------------------------------------------------------- */

static ModelSpec spec_of(const Config *c, Target on, int stage) {
    DType     dry = on.act == F16 ? BF16 : on.act; /* BF16 has the size of F16, and a CPU build can run it dry */
    ModelSpec spec = config_model_spec(c, dry, on.ranks, stage, NULL);
    int64_t   most = 4 * spec.pipeline.stages; /* a stage never has more micro-batches in flight at once */
    spec.offload = (OptimizerMemory)c->memory.offload;
    spec.sizes = on.cluster->processors > 0 ? SIZES_OF_GPU : SIZES_OF_CPU;
    if (spec.pipeline.micro_batches > most) spec.pipeline.micro_batches = most;
    return spec;
}

static double bytes_of(ModelSpec spec, Mesh mesh, const Cluster *cluster, ModelBytes m) {
    int64_t T = spec.T / spec.context_ranks, kept = pipeline_batches(spec.pipeline);
    double  model = (double)(m.params + m.grads + m.activations + m.scratch) +
                   (spec.offload == MEMORY_HOST ? 0.0 : (double)m.optimizer);
    /* number of leaves of the trees that add gradients in a fixed order */
    int64_t leaves = spec.shards.micro_batches * mesh.size[AXIS_SHARD];
    double  trees = leaves ? (double)comm_tree_bytes(COMM_NCCL, mesh.size[AXIS_SHARD], leaves) : 0.0;
    GroupsUse use = {spec.shards.expert_ranks, spec.optimizer->update_matrices != NULL, leaves > 0};
    double    gpu = cluster->processors > 0 ? trees + (double)groups_library_bytes(mesh, COMM_NCCL, use) : 0.0;
    /* bytes of the evaluation batch, which loader_bytes does not count */
    double evaluation = 3.0 * (double)(spec.B * T) * sizeof(int32_t) + 3 * ARENA_ALIGN;
    double batches = evaluation + (double)loader_bytes(spec.B, T, kept, spec.document_mask);
    return model + batches + cluster->reserved_bytes + gpu;
}

static Simulated describe(const Config *c, int ranks) {
    Simulated out = {.mesh = config_mesh(c, ranks), .parts = (int)c->parallel.interleave,
                     .expert_ranks = (int)c->parallel.expert, .zero_stage = (int)c->parallel.zero_stage,
                     .micro_batch = c->batch.micro_batch, .recompute = (int)c->memory.recompute};
    out.micro_batches = c->batch.global_tokens / (c->batch.micro_batch * c->batch.seq_len * config_datas(c, ranks));
    return out;
}

Simulated simulate_memory(const Config *c, Target on) {
    Simulated out = describe(c, on.ranks);
    int      *like = pipeline_alike(c->model.shape, spec_of(c, on, 0).pipeline);
    for (int p = 0; p < out.mesh.size[AXIS_STAGE]; p++) {
        if (like[p] != p) continue;
        ModelSpec  spec = spec_of(c, on, p);
        Ledger     none = {.is_elsewhere = 1, .times = -1};
        ModelBytes m = model_dry(spec, 0, &none);
        if (on.cluster->processors > 0) m.scratch = gpu_scratch_bytes(&spec);
        double bytes = bytes_of(spec, out.mesh, on.cluster, m);
        if (bytes > out.memory_bytes) out.memory_bytes = bytes, out.memory = m, out.fullest = p;
        ledger_free(&none);
    }
    free(like);
    return out;
}

static int rank_of_stage(Mesh mesh, int p) { return mesh_rank(mesh, (MeshPlace){.at[AXIS_STAGE] = p}); }

/* Simulates a step with clocks. Sets its times, bytes sent and scratch memory. compute_s and exposed_s are means over
 * the stages; sent is of the first stage. */
static Simulated replay(const Config *c, Target on, int64_t micro_batches) {
    Mesh      mesh = config_mesh(c, on.ranks);
    int       P = mesh.size[AXIS_STAGE], V = (int)c->parallel.interleave;
    Durations d = durations_of(c, on, mesh);
    Replay    r = {.cluster = on.cluster, .stages = P, .parts = V, .micro_batches = micro_batches};
    ModelSpec first = spec_of(c, on, 0);
    int      *like = pipeline_alike(c->model.shape, first.pipeline);
    History  *history = xcalloc((size_t)P, sizeof *history, "simulating stages");
    r.stage = xcalloc((size_t)P, sizeof *r.stage, "simulating stages");
    /* Each stage gets durations of its own if each work needs its own list (history_is_of_list), because no two stages
     * have the same order of works. */
    for (int p = 0; p < P && history_is_of_list(&first); p++) like[p] = p;
    for (int p = 0; p < P; p++) {
        Stage *s = &r.stage[p];
        int    rank = rank_of_stage(mesh, p);
        if (like[p] == p) {
            ModelSpec spec = spec_of(c, on, p);
            spec.fp8_casts = spec.fp8 && on.cluster->fp8_casts;
            /* plans as for the CPU build (GptSizes): the rates in configs/clusters/ were chosen with these sizes */
            spec.sizes = SIZES_OF_CPU;
            history[p] = history_of(spec, micro_batches, &d);
        }
        s->history = &history[like[p]];
        s->list = work_list(P, V, micro_batches, p);
        for (int kind = 0; kind < 2; kind++)
            s->to[kind] = cluster_pair_reach(on.cluster, rank, rank_of_stage(mesh, receiver_of(&r, kind, p)));
        for (int a = 0; a < GROUPS; a++) s->end[a] = xmalloc(sizeof **s->end * ENDS, "simulating stages");
    }
    double meet[2];
    for (int step = 0; step < 2; step++) { /* step 0 leaves weights in flight to step 1, which is the one that counts */
        run_step(&r);
        meet[step] = r.stage[0].now;
        for (int p = 0; p < P && step == 0; p++) {
            Stage *s = &r.stage[p];
            s->compute_s = 0.0;
            memset(s->exposed_s, 0, sizeof s->exposed_s);
            memset(s->sent, 0, sizeof s->sent);
            run_chapter(s, &s->history->update);
        }
    }
    /* time of the reduction of the numbers of a step (loss, norm) over all ranks */
    double    numbers_s = cluster_collective_seconds(on.cluster, d.all, 0.0, 2);
    Simulated t = {.step_s = meet[1] - meet[0] + numbers_s};
    memcpy(t.sent, r.stage[0].sent, sizeof t.sent);
    for (int p = 0; p < P; p++) {
        t.compute_s += r.stage[p].compute_s / P;
        for (int a = 0; a < AXES; a++) t.exposed_s[a] += r.stage[p].exposed_s[a] / P;
        if (r.stage[p].history->scratch_bytes > t.memory.scratch) t.memory.scratch = r.stage[p].history->scratch_bytes;
    }
    t.exposed_s[AXIS_SHARD] += numbers_s;
    for (int p = 0; p < P; p++) {
        work_list_free(&r.stage[p].list);
        if (like[p] == p) history_free(&history[p]);
        for (int a = 0; a < GROUPS; a++) free(r.stage[p].end[a]);
    }
    free(r.stage);
    free(history);
    free(like);
    return t;
}

/* Most works, on all stages together, of a step that is simulated completely. */
static const int64_t REPLAYED_MOST = 1 << 15;

/* Extrapolates from the totals a and b of two steps. b has `between` more micro-batches than a. Returns the total of a
 * step with `more` more than b. */
static double onward(double a, double b, int64_t between, int64_t more) {
    return b + (b - a) / (double)between * (double)more;
}

/* Simulates a step with clocks. The middle micro-batches of a long step repeat, so it is extrapolated from two shorter
 * steps. */
static Simulated replay_long(const Config *c, Target on, int64_t micro_batches) {
    int64_t P = c->parallel.pipeline, few = 3 * P, more = 4 * P;
    if (P * c->parallel.interleave * micro_batches <= REPLAYED_MOST || micro_batches <= more)
        return replay(c, on, micro_batches);
    Simulated a = replay(c, on, few), b = replay(c, on, more), t = b;
    int64_t   between = more - few, rest = micro_batches - more;
    t.step_s = onward(a.step_s, b.step_s, between, rest);
    t.compute_s = onward(a.compute_s, b.compute_s, between, rest);
    for (int i = 0; i < AXES; i++) {
        t.exposed_s[i] = onward(a.exposed_s[i], b.exposed_s[i], between, rest);
        t.sent[i] = onward(a.sent[i], b.sent[i], between, rest);
    }
    return t;
}

Simulated simulate(const Config *c, Target on) {
    Simulated out = simulate_memory(c, on);
    Simulated t = replay_long(c, on, out.micro_batches);
    double    tokens = (double)c->batch.global_tokens;
    if (on.cluster->processors == 0)
        out.memory.scratch = t.memory.scratch, out.memory_bytes += (double)t.memory.scratch;
    out.step_s = t.step_s, out.compute_s = t.compute_s;
    memcpy(out.exposed_s, t.exposed_s, sizeof out.exposed_s);
    memcpy(out.sent, t.sent, sizeof out.sent);
    out.bubble = out.exposed_s[AXIS_STAGE] / out.step_s;
    out.tokens_per_s = tokens / out.step_s;
    out.tflops_per_gpu =
        model_flops_per_token(c->model.shape, c->batch.seq_len) * tokens / out.step_s / on.ranks * 1e-12;
    out.mfu = out.tflops_per_gpu * 1e12 / cluster_flops(on.cluster, on.act, c->precision);
    return out;
}

/* Returns the bytes of collectives on this axis during which a rank does not compute, in one step, summed over all
 * stages. docs/parallel-inside.md derives the formulas. */
static double blocking_bytes(const Config *c, DType act, const Simulated *grid, Axis axis) {
    double t = grid->mesh.size[AXIS_TENSOR], ranks = grid->mesh.size[AXIS_CONTEXT], C = (double)c->model.shape.n_embd,
           A = (double)dtype_bytes(act);
    double N = (double)(c->batch.micro_batch * c->batch.seq_len) / ranks,
           blocks = (double)c->model.shape.n_layer * (double)grid->micro_batches;
    double again = c->memory.recompute == RECOMPUTE_BLOCK ? 3.0 : 0.0;
    if (axis == AXIS_TENSOR) return (10.0 + again) * blocks * (t - 1.0) / t * N * C * A;
    return 3.0 * blocks * (ranks - 1.0) * N * 2.0 * (double)dim_size(DIM_KV, c->model.shape) / t * A;
}

double simulate_least_s(const Config *c, Target on) {
    ModelShape       shape = c->model.shape;
    const BlockKind *kind = block_kind(shape);
    Simulated        grid = describe(c, on.ranks);
    double           P = grid.mesh.size[AXIS_STAGE], L = (double)shape.n_layer, C = (double)shape.n_embd;
    double           elements = 0.0; /* elements of the matrices of a transformer block: 12 C^2 in gpt2 */
    for (int i = 0; i < kind->block.rows; i++) {
        const ParamRow *row = &kind->block.row[i];
        if (row->dim[1] != DIM_NONE && kind_has(kind, shape, row->needs))
            elements += (double)dim_size(row->dim[0], shape) * (double)dim_size(row->dim[1], shape);
    }
    double blocks = 6.0 * L * elements;
    double model = blocks + 6.0 * (double)shape.vocab_size * C +
                   6.0 * L * (double)dim_size(DIM_Q, shape) * (double)c->batch.seq_len;
    double again = c->memory.recompute == RECOMPUTE_BLOCK ? blocks / 3.0 : 0.0;
    double best = fmax(on.cluster->product, on.cluster->attention);
    double flops = cluster_flops(on.cluster, on.act, c->precision);
    double busy = (model + again) * (double)c->batch.global_tokens / (on.ranks * flops * best);
    for (int a = AXIS_TENSOR; a <= AXIS_CONTEXT; a++) {
        Reach r = cluster_reach(on.cluster, grid.mesh, 1u << a);
        if (r.ranks > 1) busy += cluster_message_seconds(on.cluster, r, blocking_bytes(c, on.act, &grid, (Axis)a) / P);
    }
    return 0.9 * busy * (1.0 + (P - 1.0) / (double)(grid.micro_batches * grid.parts));
}

Goodput goodput_of(double save_s, double write_s, double restart_s, double mtbf_s) {
    double interval = sqrt(2.0 * save_s * mtbf_s), lost;
    if (interval < write_s) interval = write_s; /* a save must end before the next begins */
    if (interval < save_s) interval = save_s;
    lost = (interval / 2.0 + write_s + restart_s) / mtbf_s;
    double goes_on = (1.0 - save_s / (interval + save_s)) * (lost < 1.0 ? 1.0 - lost : 0.0);
    return (Goodput){save_s, write_s, interval, goes_on};
}
