/* server_weights.c - see server_weights.h. */
#include "run/outer/server_weights.h"

#include <stdlib.h>
#include <string.h>

#include "core/xalloc.h"
#include "layers/layers.h"

/* --- ranges of elements ------------------------------------------------------------------------------------------- */

/* Returns the part of the span that lies in [first, first + elems), with elems 0 if nothing does. *from is its offset
 * in the span. A span of one rank is a row of the model, and rows follow each other in the flat order. */
static WeightsRun cut(const Shards *shards, Span span, int64_t first, int64_t elems, int64_t *from) {
    FileExtent at = layout_extent(&shards->layout, &span, 0);
    CHECK(at.elems == span.elems, "a server's rows are whole");
    int64_t begin = at.offset > first ? at.offset : first, end = at.offset + at.elems;
    if (first + elems < end) end = first + elems;
    *from = begin - at.offset;
    return (WeightsRun){.offset = begin, .elems = end > begin ? end - begin : 0, .decays = span.group != GROUP_VECTOR,
                       .rate = shards->layout.param[span.param].rate};
}

static ServerWeights without_runs(const Shards *shards, int64_t first, int64_t elems) {
    ServerWeights w = {.first = first, .elems = elems, .run = xcalloc((size_t)shards->spans, sizeof *w.run, "a list of weights")};
    return w;
}

ServerWeights server_weights_of(const Optimizer *o, int64_t first, int64_t elems) {
    ServerWeights w = without_runs(o->shards, first, elems);
    for (int i = 0; i < o->shards->spans; i++) {
        Span      span = o->shards->span[i];
        int64_t   from;
        WeightsRun run = cut(o->shards, span, first, elems, &from);
        for (int t = 0; t < WEIGHTS_TENSORS; t++) run.at[t] = (float *)optimizer_tensor(o, t, span).data + from;
        if (run.elems > 0) w.run[w.runs++] = run;
    }
    return w;
}

ServerWeights server_weights_in(const Shards *shards, int64_t first, int64_t elems, float *memory) {
    ServerWeights w = without_runs(shards, first, elems);
    for (int i = 0; i < shards->spans; i++) {
        int64_t   from;
        WeightsRun run = cut(shards, shards->span[i], first, elems, &from);
        for (int t = 0; t < WEIGHTS_TENSORS; t++) run.at[t] = memory + t * elems + (run.offset - first);
        if (run.elems > 0) w.run[w.runs++] = run;
    }
    return w;
}

void server_weights_destroy(ServerWeights *w) {
    free(w->run);
    *w = (ServerWeights){0};
}

Fragment server_weights_all(const ServerWeights *w) { return (Fragment){w->first, w->first + w->elems}; }

/* --- reading and writing values ----------------------------------------------------------------------------------- */

typedef struct { float *here; int64_t skipped, elems; } Meeting;

/* Returns what a range has of [offset, offset + elems), and how far from `offset` that begins. */
static Meeting meet(const WeightsRun *r, ServerTensor which, int64_t offset, int64_t elems) {
    int64_t first = offset > r->offset ? offset : r->offset, end = offset + elems, until = r->offset + r->elems;
    if (end < until) until = end;
    if (first >= until) return (Meeting){0};
    return (Meeting){r->at[which] + (first - r->offset), first - offset, until - first};
}

void server_weights_read(const ServerWeights *w, ServerTensor which, int64_t offset, int64_t elems, float *to) {
    for (int i = 0; i < w->runs; i++) {
        Meeting m = meet(&w->run[i], which, offset, elems);
        if (m.elems > 0) memcpy(to + m.skipped, m.here, sizeof *to * (size_t)m.elems);
    }
}

void server_weights_write(const ServerWeights *w, ServerTensor which, int64_t offset, int64_t elems, const float *from) {
    for (int i = 0; i < w->runs; i++) {
        Meeting m = meet(&w->run[i], which, offset, elems);
        if (m.elems > 0) memcpy(m.here, from + m.skipped, sizeof *from * (size_t)m.elems);
    }
}

/* --- applying rules ----------------------------------------------------------------------------------------------- */

static void add_squares_of_waiting(const ServerWeights *w, Exact *squares) {
    float *block = xmalloc(sizeof *block * MESSAGE_ELEMS, "the norm of a round");
    for (int64_t at = 0; at < w->elems; at += MESSAGE_ELEMS) {
        int64_t elems = w->elems - at < MESSAGE_ELEMS ? w->elems - at : MESSAGE_ELEMS;
        server_weights_read(w, WEIGHTS_WAITING, w->first + at, elems, block);
        outer_squares(block, elems, squares);
    }
    free(block);
}

static void step_adamw(const WeightsRun *r, const Step *step, float *d) {
    AdamW  h = {step->learning_rate, step->momentum, step->beta2, step->eps, step->weight_decay, step->update};
    Tensor x = tensor_1d(r->at[0], F32, r->elems);
    adamw_update_host((AdamWSpan){x, tensor_1d(r->at[1], F32, r->elems), tensor_1d(r->at[2], F32, r->elems), x,
                                  tensor_1d(d, F32, r->elems), r->decays, r->rate},
                      h, (float)step->scale);
}

static void step_run(const Step *step, const WeightsRun *r, float *d) {
    OuterRule rule = {step->learning_rate, step->momentum};
    float    *x = r->at[WEIGHTS_X], *m = r->at[WEIGHTS_MOMENTUM], *waiting = r->at[WEIGHTS_WAITING];
    switch (step->rule) {
        case STEP_NESTEROV: outer_step(rule, x, m, d, r->elems); break;
        case STEP_ARRIVAL:  outer_arrival(rule, x, waiting, d, step->scale, r->elems); break;
        case STEP_MOMENTUM: outer_momentum(rule, x, m, waiting, r->elems); break;
        case STEP_ADAMW:    step_adamw(r, step, d); break;
        default: break; /* STEP_MEAN changes nothing */
    }
}

void server_weights_step(const ServerWeights *w, const Step *step, Fragment f, float *d, Exact *squares) {
    if (step->rule == STEP_MEAN) outer_squares(d, f.end - f.first, squares);
    if (step->rule == STEP_MOMENTUM) add_squares_of_waiting(w, squares);
    for (int i = 0; i < w->runs; i++) {
        WeightsRun r = w->run[i];
        Fragment  in = fragment_within(f, r.offset, r.offset + r.elems);
        if (in.first == in.end) continue;
        for (int t = 0; t < WEIGHTS_TENSORS; t++) r.at[t] += in.first - r.offset;
        r.elems = in.end - in.first;
        step_run(step, &r, d ? d + (in.first - f.first) : NULL);
    }
}

void server_weights_rest(const ServerWeights *w, const float *d, double share) {
    for (int i = 0; i < w->runs; i++) {
        const WeightsRun *r = &w->run[i];
        outer_rest(r->at[WEIGHTS_X], d + (r->offset - w->first), share, r->elems);
    }
}
