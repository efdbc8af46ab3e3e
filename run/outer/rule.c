/* rule.c - applies deltas (weight changes) of islands (training jobs) to the weights that a server holds, and computes
 * the changes that it sends back; see rule.h. */
#include "run/outer/rule.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/format.h"
#include "layers/layers.h"

/* --- arithmetic on arrays ----------------------------------------------------------------------------------------- */

enum { BLOCKS = 1024 }; /* number of blocks of OUTER_BLOCK elements in one parallel loop of outer_squares */

void outer_mean(float *mean, const float *const *delta, const double *weight, int islands, int64_t elems) {
    double all = 0.0;
    for (int k = 0; k < islands; k++) all += weight[k];
    #pragma omp parallel for
    for (int64_t i = 0; i < elems; i++) {
        double sum = 0.0;
        for (int k = 0; k < islands; k++) sum += weight[k] * delta[k][i];
        mean[i] = (float)(sum / all);
    }
}

void outer_step(OuterRule rule, float *x, float *v, const float *d, int64_t elems) {
    double eta = rule.learning_rate, mu = rule.momentum;
    #pragma omp parallel for
    for (int64_t i = 0; i < elems; i++) {
        double moved = mu * v[i] + d[i];
        v[i] = (float)moved;
        x[i] = (float)(x[i] - eta * (d[i] + mu * moved));
    }
}

void outer_arrival(OuterRule rule, float *x, float *waiting, const float *d, double share, int64_t elems) {
    double eta = rule.learning_rate;
    #pragma omp parallel for
    for (int64_t i = 0; i < elems; i++) {
        double part = share * d[i];
        waiting[i] = (float)(waiting[i] + part);
        x[i] = (float)(x[i] - eta * part);
    }
}

void outer_momentum(OuterRule rule, float *x, float *v, float *waiting, int64_t elems) {
    double eta = rule.learning_rate, mu = rule.momentum;
    #pragma omp parallel for
    for (int64_t i = 0; i < elems; i++) {
        double moved = mu * v[i] + waiting[i];
        v[i] = (float)moved;
        x[i] = (float)(x[i] - eta * mu * moved);
        waiting[i] = 0.0f;
    }
}

/* Adds the squares of d to *all. Any thread may sum a block, but the sums of blocks are added in order. */
void outer_squares(const float *d, int64_t elems, Exact *all) {
    for (int64_t at = 0; at < elems; at += (int64_t)OUTER_BLOCK * BLOCKS) {
        double  sum[BLOCKS] = {0};
        int64_t left = elems - at;
        #pragma omp parallel for
        for (int b = 0; b < BLOCKS; b++)
            for (int64_t i = (int64_t)b * OUTER_BLOCK; i < (int64_t)(b + 1) * OUTER_BLOCK && i < left; i++)
                sum[b] += (double)d[at + i] * d[at + i];
        for (int b = 0; b < BLOCKS; b++) exact_add(all, sum[b]);
    }
}

/* --- several servers ---------------------------------------------------------------------------------------------- */

int64_t outer_part_begin(int64_t elems, int part, int parts) {
    int64_t blocks = (elems + OUTER_BLOCK - 1) / OUTER_BLOCK;
    return part == parts ? elems : blocks * part / parts * OUTER_BLOCK;
}

int outer_servers(const char *list) {
    int count = 1;
    for (; *list; list++) count += *list == ',';
    return count;
}

const char *outer_server(const char *list, int entry, char *out) {
    for (; entry > 0; entry--) list += strcspn(list, ",") + 1;
    snprintf(out, OUTER_ADDRESS_BYTES, "%.*s", (int)strcspn(list, ","), list);
    return out;
}

/* --- the weights -------------------------------------------------------------------------------------------------- */

/* Makes one range (WeightsRun) for each parameter of which the server has elements. With one rank a span, the elements
 * of a parameter that a rank owns, is a whole parameter. Parameters follow each other in the order of the model. */
ServerWeights server_weights_create(const Shards *shards, const Optimizer *o, float *memory, int64_t first,
                                    int64_t elems) {
    ServerWeights w = {.first = first, .elems = elems};
    w.run = xcalloc((size_t)shards->spans, sizeof *w.run, "a list of weights");
    for (int i = 0; i < shards->spans; i++) {
        Span    span = shards->span[i];
        FileExtent at = layout_extent(&shards->layout, &span, 0);
        CHECK(at.elems == span.elems, "a server's rows are whole");
        int64_t begin = larger_of(at.offset, first), end = smaller_of(at.offset + at.elems, first + elems);
        if (begin >= end) continue;
        WeightsRun *run = &w.run[w.runs++];
        *run = (WeightsRun){.offset = begin, .elems = end - begin, .decays = span.group != GROUP_VECTOR,
                            .rate = shards->layout.param[span.param].rate};
        for (int t = 0; t < WEIGHTS_TENSORS; t++)
            run->at[t] = o ? (float *)optimizer_tensor(o, t, span).data + (begin - at.offset)
                           : memory + t * elems + (begin - first);
    }
    return w;
}

void server_weights_destroy(ServerWeights *w) {
    free(w->run);
    *w = (ServerWeights){0};
}

/* Copies elements [offset, offset + elems) of a tensor of the server to `to`. If `to` is NULL, copies them from `from`
 * to the tensor. */
static void copy(const ServerWeights *w, ServerTensor which, int64_t offset, int64_t elems, float *to,
                 const float *from) {
    for (int i = 0; i < w->runs; i++) {
        const WeightsRun *r = &w->run[i];
        int64_t first = larger_of(offset, r->offset), end = smaller_of(offset + elems, r->offset + r->elems);
        if (first >= end) continue;
        float *here = r->at[which] + (first - r->offset);
        size_t bytes = sizeof *here * (size_t)(end - first);
        if (to) memcpy(to + (first - offset), here, bytes);
        else    memcpy(here, from + (first - offset), bytes);
    }
}

void server_weights_read(const ServerWeights *w, ServerTensor which, int64_t offset, int64_t elems, float *to) {
    copy(w, which, offset, elems, to, NULL);
}

void server_weights_write(const ServerWeights *w, ServerTensor which, int64_t offset, int64_t elems,
                          const float *from) {
    copy(w, which, offset, elems, NULL, from);
}

/* --- applying rules ----------------------------------------------------------------------------------------------- */

static void step_run(const Step *step, const WeightsRun *r, float *d) {
    OptimizerStep h = {step->learning_rate, step->momentum, step->beta2, step->eps, step->weight_decay, step->update};
    OuterRule     rule = {step->learning_rate, step->momentum};
    float        *x = r->at[WEIGHTS_X], *m = r->at[WEIGHTS_MOMENTUM], *waiting = r->at[WEIGHTS_WAITING];
    Tensor        weights = tensor_1d(x, F32, r->elems);
    switch (step->rule) {
        case STEP_NESTEROV: outer_step(rule, x, m, d, r->elems); break;
        case STEP_ARRIVAL:  outer_arrival(rule, x, waiting, d, step->scale, r->elems); break;
        case STEP_MOMENTUM: outer_momentum(rule, x, m, waiting, r->elems); break;
        case STEP_ADAMW: /* the memory of `waiting` holds the second moment v of AdamW */
            adamw_update_host((OptimizerSpan){weights, tensor_1d(m, F32, r->elems), tensor_1d(waiting, F32, r->elems),
                                          weights, tensor_1d(d, F32, r->elems), r->decays, r->rate},
                              h, (float)step->scale);
            break;
        default: break; /* STEP_MEAN does not change the weights x */
    }
}

void server_weights_step(const ServerWeights *w, const Step *step, float *d, Exact *squares) {
    if (step->rule == STEP_MEAN) outer_squares(d, w->elems, squares);
    if (step->rule == STEP_MOMENTUM) {
        float *block = xmalloc(sizeof *block * MESSAGE_ELEMS, "the norm of a round");
        for (int64_t at = 0; at < w->elems; at += MESSAGE_ELEMS) {
            int64_t elems = smaller_of(w->elems - at, MESSAGE_ELEMS);
            server_weights_read(w, WEIGHTS_WAITING, w->first + at, elems, block);
            outer_squares(block, elems, squares);
        }
        free(block);
    }
    for (int i = 0; i < w->runs; i++) step_run(step, &w->run[i], d ? d + (w->run[i].offset - w->first) : NULL);
}

/* --- the change of a round ---------------------------------------------------------------------------------------- */

FrameType round_change_type(const Config *c) {
    switch (c->outer.compress) {
        case COMPRESS_BF16: return FRAME_BF16;
        case COMPRESS_INT8: return FRAME_INT8;
        default: return FRAME_F32;
    }
}

/* Returns 1 if the server keeps the rounded change of the weights in the last round. With outer.wait=none it does not,
 * because islands begin with different weights. */
static int is_kept(const Config *c) { return round_change_type(c) != FRAME_F32 && c->outer.wait == WAIT_ALL; }

/* Returns the bytes of a RoundChange, or 0 if the server keeps no changes. frame_value_bytes of a number of elements is
 * also the offset of the block after them, because all blocks except the last are full. */
size_t round_change_bytes(const Config *c, size_t elems) {
    return is_kept(c) ? sizeof(float) * elems + (size_t)frame_value_bytes(round_change_type(c), (int64_t)elems) : 0;
}

RoundChange round_change_create(const Config *c, const ServerWeights *w) {
    RoundChange made = {.type = FRAME_F32, .first = w->first, .elems = w->elems, .round = -1};
    if (!is_kept(c)) return made;
    made.type = round_change_type(c);
    made.rest = xcalloc((size_t)w->elems, sizeof *made.rest, "the change of a round (outer.compress)");
    made.packed = xmalloc((size_t)frame_value_bytes(made.type, w->elems), "the change of a round (outer.compress)");
    return made;
}

void round_change_destroy(RoundChange *c) {
    free(c->rest);
    free(c->packed);
    *c = (RoundChange){0};
}

static char *payload_at(const RoundChange *c, int64_t offset) {
    return c->packed + frame_value_bytes(c->type, offset - c->first);
}

/* Adds the rounding errors of the last round (c->rest) to the weights x. Then stores in c->rest the x before that
 * addition. */
void round_change_begin(RoundChange *c, const ServerWeights *w) {
    for (int i = 0; c->type != FRAME_F32 && i < w->runs; i++) {
        const WeightsRun *r = &w->run[i];
        float            *x = r->at[WEIGHTS_X], *rest = c->rest + (r->offset - c->first);
        #pragma omp parallel for
        for (int64_t k = 0; k < r->elems; k++) {
            float was = x[k];
            x[k] = was + rest[k], rest[k] = was;
        }
    }
}

/* Computes, frame by frame, change = rounded(x - was), where was are the weights before the step (in c->rest). Sets x =
 * was + change, and c->rest to the error of that rounding. */
void round_change_end(RoundChange *c, const ServerWeights *w, int64_t round) {
    if (c->type == FRAME_F32) return;
    #pragma omp parallel for
    for (int64_t at = 0; at < c->elems; at += MESSAGE_ELEMS) {
        int64_t offset = c->first + at, elems = smaller_of(c->elems - at, MESSAGE_ELEMS);
        float  *x = xmalloc(2 * sizeof *x * (size_t)elems, "the change of a round (outer.compress)");
        float  *change = x + elems, *was = c->rest + at;
        char   *payload = payload_at(c, offset);
        server_weights_read(w, WEIGHTS_X, offset, elems, x);
        for (int64_t i = 0; i < elems; i++) change[i] = x[i] - was[i];
        frame_pack_rounded(c->type, payload, change, elems);
        round_change_add(was, change, elems);
        server_weights_write(w, WEIGHTS_X, offset, elems, was);
        for (int64_t i = 0; i < elems; i++) was[i] = x[i] - was[i];
        free(x);
    }
    c->round = round;
}

const void *round_change_frame(const RoundChange *c, int64_t offset, int64_t elems) {
    int64_t from = offset - c->first, end = from + elems;
    if (c->type == FRAME_F32 || from < 0 || elems <= 0 || end > c->elems || from % INT8_BLOCK) return NULL;
    return end % INT8_BLOCK && end != c->elems ? NULL : payload_at(c, offset);
}

void round_change_add(float *x, const float *change, int64_t elems) {
    for (int64_t i = 0; i < elems; i++) x[i] += change[i];
}

/* --- the weights that one island holds ---------------------------------------------------------------------------- */

FrameType held_type(const Config *c) { return c->outer.wait == WAIT_NONE ? round_change_type(c) : FRAME_F32; }

size_t held_bytes(const Config *c, size_t elems) { return held_type(c) == FRAME_F32 ? 0 : sizeof(float) * elems; }

int held_begin(HeldWeights *h, FrameType type, int64_t first, int64_t elems) {
    *h = (HeldWeights){type, first, elems, 0, malloc(sizeof *h->x * (size_t)elems)};
    /* NaN marks an element that was not sent yet, because no weight is NaN */
    for (int64_t i = 0; h->x && i < elems; i++) h->x[i] = NAN;
    return h->x != NULL;
}

void held_forget(HeldWeights *h) {
    free(h->x);
    *h = (HeldWeights){0};
}

void held_fetch(HeldWeights *h, int64_t offset, const float *x, int64_t elems) {
    float *held = h->x + (offset - h->first);
    for (int64_t i = 0; i < elems; i++) h->fetched += isnan(held[i]) && !isnan(x[i]);
    memcpy(held, x, sizeof *x * (size_t)elems);
}

int held_is_whole(const HeldWeights *h) { return h->x && h->fetched >= h->elems; }

void held_change(HeldWeights *h, int64_t offset, float *x, int64_t elems, void *payload) {
    float *held = h->x + (offset - h->first);
    for (int64_t i = 0; i < elems; i++) x[i] -= held[i];
    frame_pack_rounded(h->type, payload, x, elems);
    round_change_add(held, x, elems);
}
