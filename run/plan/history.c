/* history.c - see history.h. */
#include "run/plan/history.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

/* --- durations ---------------------------------------------------------------------------------------------------- */

Durations durations_of(const Cluster *cluster, Mesh mesh, int expert_ranks, DType act, double flops) {
    Durations d = {.cluster = cluster, .flops = flops, .element_bytes = dtype_bytes(act)};
    static const unsigned AXES_OF[AXES] = {WITH_TENSOR, WITH_CONTEXT, WITH_STATE, WITH_REPLICA, WITH_STAGE};
    for (int a = 0; a < AXES; a++) d.reach[a] = cluster_reach(cluster, mesh, AXES_OF[a]);
    d.all = cluster_reach(cluster, mesh, WITH_TENSOR | WITH_CONTEXT | WITH_DATA | WITH_STAGE);
    d.experts = cluster_every_reach(cluster, 1, expert_ranks);
    d.expert_state = cluster_every_reach(cluster, expert_ranks, d.reach[AXIS_SHARD].ranks / expert_ranks);
    d.twins = cluster_pair_reach(cluster, 0, mesh_rank(mesh, (MeshPlace){.at[AXIS_STAGE] = mesh.size[AXIS_STAGE] - 1}));
    return d;
}

/* Returns the axis of a group, by its name. The group of all ranks is not named after an axis. If all ranks share the
 * state, it is the group of AXIS_SHARD. */
static Axis axis_of(const char *group) {
    for (int a = 0; a < AXES; a++)
        if (strcmp(group, mesh_axis_name((Axis)a)) == 0) return (Axis)a;
    return AXIS_SHARD;
}

static int is_of_experts(const LedgerEntry *e) { return strcmp(e->group, GROUP_OF_EXPERTS) == 0; }
static int is_of_expert_state(const LedgerEntry *e) { return strcmp(e->group, GROUP_OF_EXPERT_STATE) == 0; }

static double collective_seconds(const Durations *d, const LedgerEntry *e, Axis axis) {
    int   rounds = strncmp(e->op, "all-reduce", 10) == 0 || strncmp(e->op, "maximum", 7) == 0 ? 2 : 1;
    Reach reach = is_of_experts(e) ? d->experts : is_of_expert_state(e) ? d->expert_state : d->reach[axis];
    return cluster_collective_seconds(d->cluster, reach, e->bytes, rounds);
}

/* Returns 1 for "matmul, set", "matmul, fp8, added" and the like, the gradients of weights: layers/matmul.h. */
static int is_weight_gradient(const LedgerEntry *e) {
    const char *write = strrchr(e->op, ',');
    return strncmp(e->op, "matmul", 6) == 0 && write && (strcmp(write, ", set") == 0 || strcmp(write, ", added") == 0);
}

/* --- chapters ----------------------------------------------------------------------------------------------------- */

static void append(Chapter *c, Passage p) {
    Passage *last = c->passages ? &c->passage[c->passages - 1] : NULL;
    if (last && last->kind == p.kind && (p.kind == PASSAGE_COMPUTE || (p.kind == PASSAGE_BLOCKS && last->axis == p.axis))) {
        last->seconds += p.seconds, last->sent += p.sent;
        return;
    }
    if ((c->passages & (c->passages - 1)) == 0) { /* a power of two: the list is full */
        c->passage = xrealloc(c->passage, sizeof p * (size_t)(c->passages ? 2 * c->passages : 1), "a history of passages");
    }
    c->passage[c->passages++] = p;
}

/* Adds a message to another stage. The work lists send the messages of works. Those of the tied embedding, at the end
 * of the step, are waited for at once. */
static void add_message(Chapter *c, const Durations *d, const LedgerEntry *e, int is_work) {
    if (e->bytes == 0.0) return; /* a receive */
    if (is_work) c->message_bytes = e->bytes;
    else append(c, (Passage){PASSAGE_BLOCKS, AXIS_STAGE, cluster_message_seconds(d->cluster, d->twins, e->bytes), e->bytes, 0, AXIS_STAGE});
}

static void add_entry(Chapter *c, const Durations *d, const LedgerEntry *e, int is_work) {
    Axis axis = axis_of(e->group);
    int  line = is_of_expert_state(e) ? LINE_OF_EXPERTS : (int)axis;
    if (e->kind == LEDGER_OP && !*e->group) {
        double seconds = cluster_op_seconds(d->cluster, e, d->flops, d->element_bytes);
        if (is_weight_gradient(e)) c->weights_s += seconds;
        append(c, (Passage){PASSAGE_COMPUTE, AXIS_SHARD, seconds, 0, 0, 0});
    } else if (axis == AXIS_STAGE) {
        if (e->kind == LEDGER_OP) add_message(c, d, e, is_work);
    } else if (axis == AXIS_TENSOR || axis == AXIS_CONTEXT || is_of_experts(e) || !d->cluster->overlaps) {
        if (e->kind == LEDGER_OP) append(c, (Passage){PASSAGE_BLOCKS, axis, collective_seconds(d, e, axis), e->bytes, 0, axis});
    } else if (e->kind == LEDGER_OP) {
        append(c, (Passage){PASSAGE_START, axis, collective_seconds(d, e, axis), e->bytes, 0, line});
    } else {
        append(c, (Passage){PASSAGE_WAIT, axis, 0, 0, e->dim[0], line});
    }
}

/* --- histories ---------------------------------------------------------------------------------------------------- */

static Chapter *chapter_of(const History *h, int part, int kind, int micro) {
    return &h->work[(part * (WORK_BACKWARD + 1) + kind) * MICRO_KINDS + micro];
}

/* Returns which of the three kinds micro-batch k of n is. */
static int micro_kind(int64_t k, int64_t n) { return k == n - 1 ? MICRO_AT_END : k == 0 ? MICRO_FIRST : MICRO_BETWEEN; }

/* Returns the fewest micro-batches whose list has all three kinds. */
static int64_t fewest(PipelineSpec p, int64_t micro_batches) {
    int64_t all = p.parts > 1 ? 2 * p.stages : 3;
    return micro_batches < all ? micro_batches : all;
}

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
        if (to->passages) to = &none; /* the first history of this kind is used for all */
    }
    free(seen);
}

int history_is_of_list(const ModelSpec *stage) {
    int zero = stage->shards.zero_stage;
    return stage->pipeline.stages > 1 && (zero == 3 || (zero == 2 && stage->pipeline.parts > 1));
}

History history_of(ModelSpec stage, int64_t micro_batches, const Durations *d) {
    History h = {.parts = stage.pipeline.parts, .each_work = history_is_of_list(&stage)};
    Ledger  ledger = {.in_order = 1, .is_elsewhere = 1};
    int64_t run = h.each_work || stage.shards.micro_batches ? micro_batches : fewest(stage.pipeline, micro_batches);
    h.works = h.each_work ? 2 * run * h.parts : (int64_t)h.parts * (WORK_BACKWARD + 1) * MICRO_KINDS;
    h.work = xcalloc((size_t)h.works, sizeof *h.work, "a history of works");
    stage.pipeline.micro_batches = run;
    h.scratch_bytes = model_dry(stage, run, &ledger).scratch;
    read_ledger(&h, &ledger, run, d);
    ledger_free(&ledger);
    return h;
}

void history_free(History *h) {
    for (int64_t i = 0; i < h->works; i++) free(h->work[i].passage);
    free(h->work);
    free(h->begin.passage);
    free(h->finish.passage);
    free(h->update.passage);
}

const Chapter *history_work(const History *h, const WorkList *list, int64_t at, int64_t micro_batches) {
    Work w = list->work[at];
    return h->each_work ? &h->work[at] : chapter_of(h, w.part, w.kind, micro_kind(w.micro, micro_batches));
}
