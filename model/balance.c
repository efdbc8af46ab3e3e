/* balance.c - see balance.h. */
#include "model/balance.h"

#include <stdlib.h>

#include "core/error.h"

/* Writes to out [n] the changes of elements [first, first + n) of a block's bias after a step. */
static void steps_of(float *out, const int64_t *counts, ModelShape shape, int64_t first, int64_t n) {
    int64_t all = 0;
    for (int64_t e = 0; e < shape.n_experts; e++) all += counts[e];
    for (int64_t i = 0; i < n; i++) {
        __int128 over = (__int128)counts[first + i] * shape.n_experts - all; /* E times the difference from the mean */
        out[i] = (float)shape.balance_rate * (float)((over < 0) - (over > 0));
    }
}

static void add_on_host(Optimizer *o, Stream *s, Span span, const float *step) {
    Tensor  weights = shards_weight(o->shards, span);
    float  *master = (float *)optimizer_master(o, span).data;
    char   *rounded = xmalloc(tensor_bytes(weights), "the bias of the experts");
    for (int64_t i = 0; i < span.elems; i++) {
        master[i] += step[i];
        tensor_set(tensor_1d(rounded, weights.type, span.elems), i, master[i]);
    }
    device_from_host(s, weights, rounded);
    free(rounded);
}

static void add_on_device(Optimizer *o, Stream *s, Span span, const float *step) {
    size_t mark = arena_mark(&s->scratch);
    Tensor steps = arena_tensor(&s->scratch, F32, 1, span.elems, 1, 1), master = optimizer_master(o, span);
    if (!s->ledger) device_from_host(s, steps, step);
    add_forward(s, master, steps);
    if (o->shards->params.type != F32) cast_forward(s, shards_weight(o->shards, span), master);
    arena_release(&s->scratch, mark);
}

void experts_balance(Optimizer *o, Stream *s, const int64_t *counts) {
    const Shards    *z = o->shards;
    ModelShape       shape = z->spec.shape;
    const BlockKind *kind = block_kind(shape);
    if (!kind->has_experts || shape.balance != BALANCE_BIAS) return;
    float *step = xcalloc((size_t)shape.n_experts, sizeof *step, "the bias of the experts");
    for (int i = 0; i < z->spans; i++) {
        Span         span = z->span[i];
        const Param *p = &z->layout.param[span.param];
        if (p->bucket < 1 || p->bucket > shape.n_layer || p->field != kind->experts_bias) continue;
        if (counts) steps_of(step, counts + (p->bucket - 1) * shape.n_experts, shape, span.first, span.elems);
        if (!o->on_host) add_on_device(o, s, span, step);
        else if (!s->ledger) add_on_host(o, s, span, step);
    }
    free(step);
}
