/* server_weights.c - see server_weights.h. */
#include "run/outer/server_weights.h"

#include <math.h>
#include <string.h>

typedef struct { float *x, *momentum, *waiting; int64_t offset, elems; } Run;

static float *values_of(const Optimizer *o, ServerTensor which, Span span) {
    return (float *)optimizer_tensor(o, which, span).data;
}

/* A span of one rank is a row of the model, and rows follow each other in the flat order. */
static Run run_of(const Optimizer *o, int i) {
    Span    span = o->shards->span[i];
    FileRun at = layout_run(&o->shards->layout, &span, 0);
    CHECK(at.elems == span.elems, "a server's rows are whole");
    return (Run){values_of(o, WEIGHTS_X, span), values_of(o, WEIGHTS_MOMENTUM, span),
                 values_of(o, WEIGHTS_WAITING, span), at.offset, at.elems};
}

void served_read(const Optimizer *o, ServerTensor which, int64_t offset, int64_t elems, float *to) {
    for (int i = 0; i < o->shards->spans; i++) {
        Run     r = run_of(o, i);
        int64_t first = offset > r.offset ? offset : r.offset, end = offset + elems, until = r.offset + r.elems;
        if (end < until) until = end;
        if (first >= until) continue;
        const float *from = which == WEIGHTS_X ? r.x : which == WEIGHTS_MOMENTUM ? r.momentum : r.waiting;
        memcpy(to + (first - offset), from + (first - r.offset), sizeof *to * (size_t)(until - first));
    }
}

void served_step(const Optimizer *o, OuterRule rule, Fragment f, const float *d) {
    for (int i = 0; i < o->shards->spans; i++) {
        Run      r = run_of(o, i);
        Fragment in = fragment_within(f, r.offset, r.offset + r.elems);
        int64_t  at = in.first - r.offset;
        if (in.first < in.end) outer_step(rule, r.x + at, r.momentum + at, d + (in.first - f.first), in.end - in.first);
    }
}

void served_rest(const Optimizer *o, const float *d, double share) {
    for (int i = 0; i < o->shards->spans; i++) {
        Run r = run_of(o, i);
        outer_rest(r.x, d + r.offset, share, r.elems);
    }
}

void served_arrival(const Optimizer *o, OuterRule rule, const float *d, double share) {
    for (int i = 0; i < o->shards->spans; i++) {
        Run r = run_of(o, i);
        outer_arrival(rule, r.x, r.waiting, d + r.offset, share, r.elems);
    }
}

void served_adamw(const Optimizer *o, AdamW h, double grad_scale, float *d) {
    for (int i = 0; i < o->shards->spans; i++) {
        Span   span = o->shards->span[i];
        Tensor x = optimizer_master(o, span);
        adamw_update_host((AdamWSpan){x, optimizer_state(o, 0, span), optimizer_state(o, 1, span), x,
                                      tensor_1d(d + run_of(o, i).offset, F32, span.elems), span.group != GROUP_VECTOR},
                          h, (float)grad_scale);
    }
}

double served_momentum(const Optimizer *o, OuterRule rule) {
    double squares = 0.0;
    for (int i = 0; i < o->shards->spans; i++) {
        Run r = run_of(o, i);
        squares += outer_squares(r.waiting, r.elems);
        outer_momentum(rule, r.x, r.momentum, r.waiting, r.elems);
    }
    return sqrt(squares);
}
