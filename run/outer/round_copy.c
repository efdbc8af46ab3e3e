/* round_copy.c - see round_copy.h. */
#include "run/outer/round_copy.h"

#include <stdlib.h>
#include <string.h>

#include "core/xalloc.h"
#include "run/outer/rule.h"

/* Floats of the buffers behind x, which lie one after another. */
static size_t delta_elems(const Layout *l) { return (size_t)(exchange_most_elems(l) + exchange_scratch_elems(l)); }

size_t round_copy_bytes(const Layout *l, int zero_stage, FrameType type) {
    size_t x = (size_t)(zero_stage ? l->shard_elems : l->memory_elems);
    size_t rest = type == FRAME_F32 ? 0 : (size_t)exchange_most_elems(l);
    return sizeof(float) * (x + delta_elems(l) + rest);
}

RoundCopy round_copy_create(Optimizer *optimizer, Stream *stream, FrameType type) {
    const Shards *z = optimizer->shards;
    RoundCopy     c = {.optimizer = optimizer, .stream = stream, .type = type, .runs = exchange_runs(z)};
    c.x = (float *)device_alloc_host(round_copy_bytes(&z->layout, z->stage, type), "the weights of a round");
    c.delta = c.x + shards_state_elems(z);
    c.rest = type == FRAME_F32 ? NULL : c.delta + delta_elems(&z->layout);
    c.taken = xcalloc((size_t)z->spans + 1, sizeof *c.taken, "the spans of a round");
    round_copy_forget(&c);
    return c;
}

void round_copy_destroy(RoundCopy *c) {
    device_free_host(c->x);
    free(c->runs.run);
    free(c->taken);
    *c = (RoundCopy){0};
}

void round_copy_forget(RoundCopy *c) {
    if (c->rest) memset(c->rest, 0, sizeof *c->rest * (size_t)c->runs.elems);
}

/* --- x ------------------------------------------------------------------------------------------------------------ */

/* Returns the elements of x that belong to the span. They have the places of its masters. */
static float *x_of(const RoundCopy *c, Span span) {
    const Shards *z = c->optimizer->shards;
    return (float *)shards_state_view(z, tensor_1d(c->x, F32, shards_state_elems(z)), span).data;
}

void round_copy_begin(RoundCopy *c) {
    const Shards *z = c->optimizer->shards;
    shards_need_all(c->optimizer->shards); /* no weights may be on their way when masters change */
    memset(c->taken, 0, sizeof *c->taken * (size_t)z->spans);
}

/* The elements of a span ascend in the file, with gaps where another tensor rank has columns. */
void round_copy_take(RoundCopy *c, RoundValues kind, int64_t offset, const float *values, int64_t elems) {
    const Shards *z = c->optimizer->shards;
    for (int i = 0; i < z->spans; i++) {
        Span     span = z->span[i];
        float   *x = x_of(c, span);
        int64_t *at = &c->taken[i];
        while (*at < span.elems) {
            FileRun run = layout_run(&z->layout, &span, *at);
            if (run.offset >= offset + elems) break;
            CHECK(run.offset >= offset, "element %lld of a round's weights has not come", (long long)run.offset);
            int64_t      left = offset + elems - run.offset, n = run.elems < left ? run.elems : left;
            const float *from = values + (run.offset - offset);
            if (kind == ROUND_CHANGE) round_change_add(x + *at, from, n);
            else memcpy(x + *at, from, sizeof *x * (size_t)n);
            *at += n;
        }
    }
}

void round_copy_publish(RoundCopy *c) {
    Shards *z = c->optimizer->shards;
    for (int i = 0; i < z->spans; i++) {
        Span span = z->span[i];
        CHECK(c->taken[i] == span.elems, "%lld of %lld elements of a round's values have come", (long long)c->taken[i],
              (long long)span.elems);
        optimizer_put(c->optimizer, c->stream, optimizer_master(c->optimizer, span), x_of(c, span));
    }
    optimizer_publish(c->optimizer, c->stream);
    shards_publish(z, c->stream);
    shards_need_all(z);
}

/* --- deltas ------------------------------------------------------------------------------------------------------- */

/* Computes out = x - master for the elements of the span, or copies their gradient. */
static void gather_span(RoundCopy *c, Span span, OuterSend send, float *out) {
    const float *x = x_of(c, span);
    if (send == SEND_GRADIENTS) {
        device_to_host_queued(c->stream, out, shards_grad(c->optimizer->shards, span));
        device_sync(c->stream);
        return;
    }
    optimizer_get_queued(c->optimizer, c->stream, out, optimizer_master(c->optimizer, span));
    device_sync(c->stream);
    for (int64_t i = 0; i < span.elems; i++) out[i] = x[i] - out[i];
}

/* Writes what this rank sends of the span to `out`. Returns the number of these elements. */
static int64_t gather(RoundCopy *c, Span span, OuterSend send, float *out) {
    const Shards *z = c->optimizer->shards;
    if (!exchange_is_needed(z, span)) {
        Span kept = exchange_kept(z, span);
        if (kept.elems > 0) gather_span(c, kept, send, out);
        return kept.elems;
    }
    float *own = c->delta + c->runs.elems;
    gather_span(c, span, send, own);
    return exchange_rows(z, span, own, out);
}

double round_copy_gather(RoundCopy *c, OuterSend send) {
    Shards *z = c->optimizer->shards;
    Span   *spans = xmalloc(sizeof *spans * (size_t)z->layout.params, "the spans of a round");
    float  *out = c->delta;
    double  squares = 0.0;
    shards_need_all(z);
    for (int b = 0; b < z->layout.buckets; b++) {
        int count = shards_spans_to_save(z, b, spans);
        for (int i = 0; i < count; i++) out += gather(c, spans[i], send, out);
    }
    free(spans);
    CHECK(out - c->delta == c->runs.elems, "%lld deltas of %lld", (long long)(out - c->delta),
          (long long)c->runs.elems);
    for (const float *d = c->delta; d < c->delta + c->runs.elems; d++) squares += (double)*d * (double)*d;
    return squares;
}

void round_copy_pack(RoundCopy *c, int64_t at, int64_t elems, void *payload) {
    float *delta = c->delta + at;
    if (!c->rest) {
        frame_pack(c->type, payload, delta, elems);
        return;
    }
    float *rest = c->rest + at;
    for (int64_t i = 0; i < elems; i++) rest[i] += delta[i];
    frame_pack(c->type, payload, rest, elems);
    frame_unpack(c->type, delta, payload, elems); /* delta = what arrives at the server */
    for (int64_t i = 0; i < elems; i++) rest[i] -= delta[i];
}
