/* round_copy.c - see round_copy.h. */
#include "run/outer/round_copy.h"

#include <stdlib.h>
#include <string.h>

#include "core/xalloc.h"
#include "run/outer/round_change.h"

/* Floats of the buffers behind x, which lie one after another. */
static size_t delta_elems(const Layout *l) { return (size_t)(exchange_most_elems(l) + exchange_scratch_elems(l)); }
static size_t rest_elems(const Layout *l, FrameType t) { return t == FRAME_F32 ? 0 : (size_t)exchange_most_elems(l); }

static size_t block_elems(RoundUse use) { return use == ROUND_STREAMS ? MESSAGE_ELEMS : 0; }

size_t round_copy_bytes(const Layout *l, int zero_stage, FrameType type, RoundUse use) {
    size_t x = (size_t)(zero_stage ? l->shard_elems : l->memory_elems);
    return sizeof(float) * (x + delta_elems(l) + rest_elems(l, type) + block_elems(use));
}

RoundCopy round_copy_create(Optimizer *optimizer, Stream *stream, FrameType type, RoundUse use) {
    const Shards *z = optimizer->shards;
    RoundCopy     c = {.optimizer = optimizer, .stream = stream, .type = type, .runs = exchange_extents(z)};
    c.x = (float *)device_alloc_host(round_copy_bytes(&z->layout, z->stage, type, use), "the weights of a round");
    c.delta = c.x + shards_state_elems(z);
    c.rest = type == FRAME_F32 ? NULL : c.delta + delta_elems(&z->layout);
    c.block = use == ROUND_STREAMS ? c.delta + delta_elems(&z->layout) + rest_elems(&z->layout, type) : NULL;
    c.taken = xcalloc((size_t)z->spans + 1, sizeof *c.taken, "the spans of a round");
    round_copy_forget(&c);
    return c;
}

void round_copy_destroy(RoundCopy *c) {
    device_free_host(c->x);
    free(c->runs.extent);
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

static void set(float *x, const float *values, int64_t elems) { memcpy(x, values, sizeof *x * (size_t)elems); }

/* Puts the values into the spans of this rank. The elements of a span ascend in the file, with gaps where another
 * tensor rank has columns. */
static void take(RoundCopy *c, int64_t offset, const float *values, int64_t elems, void (*put)(float *, const float *, int64_t)) {
    const Shards *z = c->optimizer->shards;
    for (int i = 0; i < z->spans; i++) {
        Span     span = z->span[i];
        float   *x = x_of(c, span);
        int64_t *at = &c->taken[i];
        while (*at < span.elems) {
            FileExtent run = layout_extent(&z->layout, &span, *at);
            if (run.offset >= offset + elems) break;
            CHECK(run.offset >= offset, "element %lld of a round's weights has not come", (long long)run.offset);
            int64_t left = offset + elems - run.offset, n = run.elems < left ? run.elems : left;
            put(x + *at, values + (run.offset - offset), n);
            *at += n;
        }
    }
}

void round_copy_take(RoundCopy *c, int64_t offset, const float *values, int64_t elems) {
    take(c, offset, values, elems, set);
}
void round_copy_take_change(RoundCopy *c, int64_t offset, const float *values, int64_t elems) {
    take(c, offset, values, elems, round_change_add);
}

static void check_taken(const RoundCopy *c, int i) {
    int64_t elems = c->optimizer->shards->span[i].elems;
    CHECK(c->taken[i] == elems, "%lld of %lld elements of a round's values have come", (long long)c->taken[i],
          (long long)elems);
}

void round_copy_put_state(RoundCopy *c, int k) {
    const Shards *z = c->optimizer->shards;
    for (int i = 0; i < z->spans; i++) {
        check_taken(c, i);
        optimizer_put(c->optimizer, c->stream, optimizer_state(c->optimizer, k, z->span[i]), x_of(c, z->span[i]));
    }
}

void round_copy_publish(RoundCopy *c) {
    const Shards *z = c->optimizer->shards;
    for (int i = 0; i < z->spans; i++) {
        Span span = z->span[i];
        check_taken(c, i);
        optimizer_put(c->optimizer, c->stream, optimizer_master(c->optimizer, span), x_of(c, span));
    }
    round_copy_show(c);
}

/* --- deltas ------------------------------------------------------------------------------------------------------- */

/* Computes out = x - master for the elements of the span, or copies their gradient or state. */
static void subtract_span(RoundCopy *c, Span span, float *out) {
    const float *x = x_of(c, span);
    if (c->source == SOURCE_GRADIENTS) {
        device_to_host_queued(c->stream, out, shards_grad(c->optimizer->shards, span));
        device_sync(c->stream);
        return;
    }
    int state = (int)c->source - SOURCE_STATE;
    Tensor from = state >= 0 ? optimizer_state(c->optimizer, state, span) : optimizer_master(c->optimizer, span);
    optimizer_get_queued(c->optimizer, c->stream, out, from);
    device_sync(c->stream);
    for (int64_t i = 0; state < 0 && i < span.elems; i++) out[i] = x[i] - out[i];
}

/* Returns how many elements of the span lie before global offset `bound`. Offsets ascend in a span. */
static int64_t count_before(const Layout *l, Span span, int64_t bound) {
    int64_t at = 0;
    while (at < span.elems) {
        FileExtent run = layout_extent(l, &span, at);
        if (run.offset >= bound) break;
        at += run.offset + run.elems <= bound ? run.elems : bound - run.offset;
    }
    return at;
}

/* Returns the part of the span that lies in a fragment; it may be empty. */
static Span within(const Layout *l, Span span, Fragment f) {
    int64_t first = count_before(l, span, f.first), end = count_before(l, span, f.end);
    span.memory += first, span.shard += first, span.first += first, span.elems = end - first;
    return span;
}

/* Returns 1 if the parameter of the span meets the fragment. Tensor ranks exchange a row of the model completely or not
 * at all. */
static int is_met(const Layout *l, Span span, Fragment f) {
    const Param *p = &l->param[span.param];
    return p->offset < f.end && p->offset + p->elems > f.first;
}

/* Writes the deltas of the span that lie in the fragment to `out`, where all deltas of the span have their places.
 * Returns the number of these places. */
static int64_t subtract(RoundCopy *c, Span span, Fragment f, float *out) {
    const Shards *z = c->optimizer->shards;
    Span          kept = exchange_kept(z, span);
    if (!exchange_is_needed(z, span)) {
        Span part = kept.elems > 0 ? within(&z->layout, kept, f) : kept;
        if (part.elems > 0) subtract_span(c, part, out + (part.first - kept.first));
        return kept.elems;
    }
    float *mine = c->delta + c->runs.elems;
    if (!is_met(&z->layout, span, f)) return exchange_rows_elems(z, span);
    subtract_span(c, span, mine);
    return exchange_rows(z, span, mine, out);
}

static void subtract_fragment(RoundCopy *c, Fragment f) {
    const Shards *z = c->optimizer->shards;
    Span         *spans = xmalloc(sizeof *spans * (size_t)z->layout.params, "the spans of a round");
    float        *out = c->delta;
    shards_need_all(c->optimizer->shards);
    for (int b = 0; b < z->layout.buckets; b++) {
        int count = shards_spans_to_save(z, b, spans);
        for (int i = 0; i < count; i++) out += subtract(c, spans[i], f, out);
    }
    free(spans);
    CHECK(out - c->delta == c->runs.elems, "%lld deltas of %lld", (long long)(out - c->delta),
          (long long)c->runs.elems);
}

double round_copy_subtract(RoundCopy *c) {
    double squares = 0.0;
    subtract_fragment(c, (Fragment){0, c->optimizer->shards->layout.elems});
    for (const float *d = c->delta; d < c->delta + c->runs.elems; d++) squares += (double)*d * (double)*d;
    return squares;
}

static double gather_from(RoundCopy *c, RoundSource source) {
    c->source = source;
    double squares = round_copy_subtract(c);
    c->source = SOURCE_DELTAS;
    return squares;
}

double round_copy_gradients(RoundCopy *c) { return gather_from(c, SOURCE_GRADIENTS); }
double round_copy_state(RoundCopy *c, int k) { return gather_from(c, (RoundSource)(SOURCE_STATE + k)); }

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

/* --- fragments ---------------------------------------------------------------------------------------------------- */

/* Copies this rank's masters of the span to c->block and returns it. */
static float *masters_of(RoundCopy *c, Span part) {
    optimizer_get_queued(c->optimizer, c->stream, c->block, optimizer_master(c->optimizer, part));
    device_sync(c->stream);
    return c->block;
}

/* Computes x -= x - master for elements [first, end), which fit in c->block. It has the bits of the server's step with
 * learning rate 1. */
static void move_x(RoundCopy *c, int64_t first, int64_t end) {
    const Shards *z = c->optimizer->shards;
    for (int i = 0; i < z->spans; i++) {
        Span part = within(&z->layout, z->span[i], (Fragment){first, end});
        if (part.elems == 0) continue;
        float       *x = x_of(c, part);
        const float *master = masters_of(c, part);
        for (int64_t e = 0; e < part.elems; e++) {
            float delta = x[e] - master[e];
            x[e] -= delta;
        }
    }
}

/* Copies x of the fragment to was, as far as this rank has it. */
static void keep_x(const RoundCopy *c, Fragment f, float *was) {
    const Shards *z = c->optimizer->shards;
    for (int i = 0; i < z->spans; i++) {
        Span part = within(&z->layout, z->span[i], f);
        for (int64_t at = 0; at < part.elems;) {
            FileExtent run = layout_extent(&z->layout, &part, at);
            memcpy(was + (run.offset - f.first), x_of(c, part) + at, sizeof *was * (size_t)run.elems);
            at += run.elems;
        }
    }
}

void round_copy_leave(RoundCopy *c, Fragment f, float *was) {
    if (was) keep_x(c, f, was);
    subtract_fragment(c, f);
    for (int64_t at = f.first; at < f.end; at += MESSAGE_ELEMS)
        move_x(c, at, f.end - at < MESSAGE_ELEMS ? f.end : at + MESSAGE_ELEMS);
}

void round_copy_return(RoundCopy *c, int64_t offset, const float *values, int64_t elems, const float *was) {
    const Shards *z = c->optimizer->shards;
    for (int i = 0; i < z->spans; i++) {
        Span part = within(&z->layout, z->span[i], (Fragment){offset, offset + elems});
        if (part.elems == 0) continue;
        float *x = x_of(c, part), *master = masters_of(c, part);
        for (int64_t at = 0; at < part.elems;) {
            FileExtent run = layout_extent(&z->layout, &part, at);
            int64_t from = run.offset - offset;
            for (int64_t e = from; e < from + run.elems; e++, at++) {
                float to = was ? was[e] + values[e] : values[e]; /* computed as in round_change_add */
                master[at] += to - x[at], x[at] = to;
            }
        }
        optimizer_put(c->optimizer, c->stream, optimizer_master(c->optimizer, part), master);
    }
}

void round_copy_show(RoundCopy *c) {
    Shards *z = c->optimizer->shards;
    optimizer_publish(c->optimizer, c->stream);
    shards_publish(z, c->stream);
    shards_need_all(z);
}
