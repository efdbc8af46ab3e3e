/* island_link.c - the copy of the weights that a rank of an island (training job) holds, and the connection of a rank
 * to one server; see island_link.h. */
#include "run/outer/island_link.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/thread.h"
#include "core/error.h"
#include "core/format.h"
#include "run/outer/rule.h"

enum { REQUESTS_AHEAD = 4, PING_MS = 1000 };

/* --- the copy of x ------------------------------------------------------------------------------------------------ */

/* Returns the number of floats of two buffers that follow the weights x in memory: the deltas, and scratch for an
 * exchange between tensor ranks. */
static size_t delta_elems(const Layout *l) { return (size_t)(exchange_most_elems(l) + exchange_scratch_elems(l)); }

size_t round_copy_bytes(const Layout *l, int zero_stage, FrameType type) {
    size_t x = (size_t)(zero_stage ? l->shard_elems : l->memory_elems);
    size_t rest = type == FRAME_F32 ? 0 : (size_t)exchange_most_elems(l);
    return sizeof(float) * (x + delta_elems(l) + rest);
}

RoundCopy round_copy_create(Optimizer *optimizer, Stream *stream, FrameType type) {
    const Shards *z = optimizer->shards;
    RoundCopy     c = {.optimizer = optimizer, .stream = stream, .type = type, .runs = exchange_extents(z)};
    c.x = (float *)device_alloc_host(round_copy_bytes(&z->layout, z->stage, type), "the weights of a round");
    c.delta = c.x + shards_state_elems(z);
    c.rest = type == FRAME_F32 ? NULL : c.delta + delta_elems(&z->layout);
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

/* Returns the values in c->x, the weights at the beginning of the round, of a span (part of a parameter that this rank
 * holds). */
static float *x_of(const RoundCopy *c, Span span) {
    const Shards *z = c->optimizer->shards;
    return (float *)shards_state_view(z, tensor_1d(c->x, F32, shards_state_elems(z)), span).data;
}

void round_copy_begin(RoundCopy *c) {
    const Shards *z = c->optimizer->shards;
    shards_need_all(c->optimizer->shards); /* waits until no weights are being sent between ranks, because the masters
                                            * (fp32 weights) will change */
    memset(c->taken, 0, sizeof *c->taken * (size_t)z->spans);
}

/* Stores a chunk of the weights, or of their change, in c->x. The elements of a span (part of a parameter) ascend in
 * the order of the model, with gaps where another tensor rank has columns. */
void round_copy_take(RoundCopy *c, RoundValues kind, int64_t offset, const float *values, int64_t elems) {
    const Shards *z = c->optimizer->shards;
    for (int i = 0; i < z->spans; i++) {
        Span     span = z->span[i];
        float   *x = x_of(c, span);
        int64_t *at = &c->taken[i];
        while (*at < span.elems) {
            FileExtent run = layout_extent(&z->layout, &span, *at);
            if (run.offset >= offset + elems) break;
            CHECK(run.offset >= offset, "element %lld of a round's weights has not come", (long long)run.offset);
            int64_t      n = smaller_of(run.elems, offset + elems - run.offset);
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

typedef struct { RoundCopy *copy; OuterSend send; } Deltas;

/* Computes out = x - master for a span (part of a parameter), where x are the weights at the beginning of the round.
 * With outer.send=gradients it copies the gradient to out instead. */
static void gather_span(void *deltas, Span span, float *out) {
    RoundCopy   *c = ((Deltas *)deltas)->copy;
    const float *x = x_of(c, span);
    if (((Deltas *)deltas)->send == SEND_GRADIENTS) {
        device_to_host_queued(c->stream, out, shards_grad(c->optimizer->shards, span));
        device_sync(c->stream);
        return;
    }
    optimizer_get_queued(c->optimizer, c->stream, out, optimizer_master(c->optimizer, span));
    device_sync(c->stream);
    for (int64_t i = 0; i < span.elems; i++) out[i] = x[i] - out[i];
}

double round_copy_gather(RoundCopy *c, OuterSend send) {
    Shards *z = c->optimizer->shards;
    float  *scratch = c->delta + c->runs.elems;
    double  squares = 0.0;
    shards_need_all(z);
    const float *end = exchange_copy(z, c->stream, gather_span, &(Deltas){c, send}, c->delta, scratch);
    CHECK(end == scratch, "%lld deltas of %lld", (long long)(end - c->delta), (long long)c->runs.elems);
    for (const float *d = c->delta; d < end; d++) squares += (double)*d * (double)*d;
    return squares;
}

void round_copy_pack(RoundCopy *c, int64_t at, int64_t elems, void *payload) {
    float *delta = c->delta + at;
    if (!c->rest) {
        frame_pack(c->type, payload, delta, elems);
        return;
    }
    float *rest = c->rest + at;
    for (int64_t i = 0; i < elems; i++) delta[i] = rest[i] += delta[i];
    frame_pack_rounded(c->type, payload, delta, elems);
    for (int64_t i = 0; i < elems; i++) rest[i] -= delta[i];
}

/* --- one connection ----------------------------------------------------------------------------------------------- */

Link link_create(RoundCopy *copy, int64_t elems, int rank, int ranks, double patience_seconds, int part, int parts) {
    Link l = {.rank = rank, .ranks = ranks, .elems = elems, .copy = copy, .is_broken = 1, .part = part, .parts = parts};
    l.first = outer_part_begin(elems, part, parts), l.end = outer_part_begin(elems, part + 1, parts);
    l.patience_ms = patience_seconds * 1e3;
    l.fetch.chunk = xmalloc(sizeof *l.fetch.chunk * MESSAGE_ELEMS, "the connection to outer.server");
    l.payload = xmalloc(FRAME_PAYLOAD_LIMIT, "the connection to outer.server");
    return l;
}

void link_take(Link *l, Channel *server) {
    channel_close(l->server);
    l->server = server;
    l->is_broken = !server;
    l->fault[0] = 0;
    l->refuse.code = 0;
    l->has_welcome = l->has_open = l->has_closed = 0;
    l->fetch = (LinkFetch){.chunk = l->fetch.chunk};
    l->send = (LinkSend){0};
    l->pings = l->answers = 0;
    if (server) channel_limit(server, l->elems);
}

void link_destroy(Link *l) {
    channel_close(l->server);
    free(l->fetch.chunk);
    free(l->payload);
    *l = (Link){0};
}

static void break_link(Link *l, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void break_link(Link *l, const char *fmt, ...) {
    va_list args;
    if (l->is_broken) return;
    va_start(args, fmt);
    vsnprintf(l->fault, sizeof l->fault, fmt, args);
    va_end(args);
    l->is_broken = 1;
}

/* --- fetching x --------------------------------------------------------------------------------------------------- */

int64_t link_chunk_begin(const Link *l, int64_t chunk) { return l->first + chunk * MESSAGE_ELEMS; }

int64_t link_chunk_elems(const Link *l, int64_t chunk) {
    return smaller_of(l->end - link_chunk_begin(l, chunk), MESSAGE_ELEMS);
}

int link_owns(const Link *l, int64_t chunk) { return chunk % l->ranks == l->rank; }

/* Returns the index, in the server's part of the model, of the n-th chunk of weights that this rank fetches. */
static int64_t own_chunk(const Link *l, int64_t n) { return n * l->ranks + l->rank; }

void link_fetch(Link *l, MessageKind get, int64_t round) {
    int64_t chunks = (l->end - l->first + MESSAGE_ELEMS - 1) / MESSAGE_ELEMS;
    l->fetch = (LinkFetch){.get = get, .round = round, .chunks = chunks, .awaited = -1, .chunk = l->fetch.chunk};
}

void link_give_up(Link *l) { l->fetch.is_given_up = 1, l->fetch.has_chunk = 0; }

static void request_chunks(Link *l) {
    LinkFetch *f = &l->fetch;
    while (!f->is_given_up && f->requested < f->had + REQUESTS_AHEAD && own_chunk(l, f->requested) < f->chunks) {
        int64_t     chunk = own_chunk(l, f->requested);
        FrameHeader h = {.kind = (uint8_t)f->get, .round = f->round, .offset = link_chunk_begin(l, chunk),
                         .elems = link_chunk_elems(l, chunk)};
        if (channel_send(l->server, h, NULL) <= 0) return;
        f->requested++;
    }
}

static void take_chunk(Link *l, const FrameHeader *h, const void *payload) {
    LinkFetch *f = &l->fetch;
    int64_t    chunk = own_chunk(l, f->had);
    int        is_next = h->offset == link_chunk_begin(l, chunk) && h->elems == link_chunk_elems(l, chunk);
    if (f->had == f->requested || h->kind != message_answer(f->get) || h->round != f->round || !is_next) {
        break_link(l, "%s sent %s that was not asked for: round %lld, element %lld", channel_peer(l->server),
                   message_name(h->kind), (long long)h->round, (long long)h->offset);
        return;
    }
    frame_unpack((FrameType)h->type, f->chunk, payload, h->elems);
    f->had++;
    f->has_chunk = !f->is_given_up;
}

/* --- sending ------------------------------------------------------------------------------------------------------ */

void link_send(Link *l, End end) { l->send = (LinkSend){.is_on = 1, .end = end}; }

/* Sends deltas (weight changes) while the channel's buffer has space for a frame, then the END message. Packs each
 * element only once, because packing records the rounding errors. A frame lies within one range of RoundCopy.runs, and
 * within the part of the model of this server. */
static void send_values(Link *l) {
    LinkSend          *s = &l->send;
    const FileExtents *runs = &l->copy->runs;
    while (s->run < runs->extents) {
        FileExtent run = runs->extent[s->run];
        int64_t    next = larger_of(run.offset + s->at, l->first), until = smaller_of(run.offset + run.elems, l->end);
        if (next >= until) { /* the server's part of the model has no more elements of this range */
            s->gone += run.elems - s->at, s->at = 0, s->run++;
            continue;
        }
        int64_t     skipped = next - run.offset - s->at;
        int64_t     elems = smaller_of(until - next, MESSAGE_ELEMS);
        FrameHeader h = {.kind = MESSAGE_DELTA, .type = (uint8_t)l->copy->type, .round = s->end.round, .offset = next,
                         .elems = elems, .payload_bytes = (uint32_t)frame_value_bytes(l->copy->type, elems)};
        if (!channel_has_space(l->server)) return;
        s->at += skipped, s->gone += skipped;
        round_copy_pack(l->copy, s->gone, elems, l->payload);
        if (channel_send(l->server, h, l->payload) < 0) return;
        s->at += elems, s->gone += elems;
    }
    message_send(l->server, MESSAGE_END, s->end.round, &s->end);
    s->is_on = 0;
}

/* --- signs of life ------------------------------------------------------------------------------------------------ */

void link_ping(Link *l) {
    double now = clock_ms();
    if (l->is_broken) return;
    message_send(l->server, MESSAGE_PING, 0, NULL);
    if (l->pings++ == l->answers) l->silent_ms = now;
    l->pinged_ms = now;
}

/* Breaks the connection after outer.patience_seconds without an answer to a PING. Called after everything that arrived
 * was read. While fetch.chunk holds a chunk of weights that was not used yet, nothing is read, so silence is not
 * counted. */
static void look_for_silence(Link *l) {
    double now = clock_ms();
    double waited_ms = l->answers < l->pings && !l->fetch.has_chunk ? now - l->silent_ms : 0.0;
    if (waited_ms > l->patience_ms && channel_silent_ms(l->server) > l->patience_ms)
        break_link(l, "%s has been silent for %.0f s (outer.patience_seconds)", channel_peer(l->server),
                   waited_ms * 1e-3);
    else if (now - l->pinged_ms >= PING_MS) link_ping(l);
}

/* --- received frames ---------------------------------------------------------------------------------------------- */

/* Reads the JSON of a message into m, the struct of its kind. Returns 1. If the message is not valid, breaks the
 * connection and returns 0. */
static int take_message(Link *l, const FrameHeader *h, const void *payload, void *m) {
    char fault[MESSAGE_FAULT_BYTES];
    if (message_read((MessageKind)h->kind, payload, h->payload_bytes, m, fault)) return 1;
    break_link(l, "%s %s", channel_peer(l->server), fault);
    return 0;
}

static void take_frame(Link *l, const FrameHeader *h, const void *payload) {
    char fault[MESSAGE_FAULT_BYTES];
    if (!message_check(h, FROM_SERVER, fault)) {
        break_link(l, "%s %s", channel_peer(l->server), fault);
        return;
    }
    switch (h->kind) {
        case MESSAGE_X:
        case MESSAGE_CHANGE:  take_chunk(l, h, payload); break;
        case MESSAGE_PING:    l->answers++, l->silent_ms = clock_ms(); break;
        case MESSAGE_WELCOME: l->has_welcome = take_message(l, h, payload, &l->welcome); break;
        case MESSAGE_OPEN:    l->has_open = take_message(l, h, payload, &l->open); break;
        case MESSAGE_CLOSED:  l->has_closed = take_message(l, h, payload, &l->closed); break;
        case MESSAGE_REFUSE:
            if (take_message(l, h, payload, &l->refuse))
                break_link(l, "%s: %s", channel_peer(l->server), l->refuse.why);
            break;
        default: break;
    }
}

void link_keep(Link *l) {
    FrameHeader h;
    const void *payload;
    int         got = 0;
    if (l->is_broken) return;
    if (l->send.is_on) send_values(l);
    while (!l->is_broken && !l->fetch.has_chunk && (got = channel_next(l->server, &h, &payload)) > 0)
        take_frame(l, &h, payload);
    if (got < 0) break_link(l, "%s", channel_fault(l->server)->text);
    if (!l->is_broken) request_chunks(l);
    if (!l->is_broken) look_for_silence(l);
    /* receives bytes, but no frame is read until the caller has used the chunk of weights in l->fetch */
    if (!l->is_broken && l->fetch.has_chunk) channel_progress(l->server);
}

/* --- the links of a rank ------------------------------------------------------------------------------------------ */

static int has_happened(const Link *l, LinkEvent event) {
    int is_opened = l->rank > 0 || l->part > 0 || l->has_open || (l->has_closed && l->closed.is_done);
    switch (event) {
        case LINK_WELCOME: return l->has_welcome;
        case LINK_OPENED:  return is_opened;
        case LINK_CLOSED:  return l->part > 0 || (l->has_closed && is_opened);
        case LINK_CHUNK:   return l->fetch.awaited < 0 || l->fetch.has_chunk || !link_owns(l, l->fetch.awaited);
        case LINK_SENT:    return !l->send.is_on && channel_unsent(l->server) == 0;
        default:           return l->answers == l->pings; /* the event LINK_ANSWERED */
    }
}

int links_have(const Link *l, int links, LinkEvent event) {
    for (int i = 0; i < links; i++)
        if (!has_happened(&l[i], event)) return 0;
    return 1;
}

Link *links_broken(Link *l, int links) {
    Link *broken = NULL;
    for (int i = 0; i < links; i++)
        if (l[i].is_broken && (!broken || (l[i].refuse.code && !broken->refuse.code))) broken = &l[i];
    return broken;
}

void links_wait(Link *l, int links, LinkEvent event, double ms) {
    Channel *server[MESSAGE_PARTS];
    double   until_ms = clock_ms() + ms;
    for (int i = 0; i < links; i++) link_keep(&l[i]);
    while (!links_have(l, links, event) && !links_broken(l, links)) {
        double left_ms = until_ms - clock_ms();
        if (left_ms <= 0.0) return;
        for (int i = 0; i < links; i++) server[i] = l[i].server;
        channel_wait(server, links, -1, left_ms);
        for (int i = 0; i < links; i++) link_keep(&l[i]);
    }
}
