/* island_link.c - see island_link.h. */
#include "run/outer/island_link.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/xalloc.h"
#include "run/outer/outer_rule.h"

enum { ASKED_AHEAD = 4, PING_MS = 1000 };

Link link_create(RoundCopy *copy, int64_t elems, int rank, int ranks, double patience_seconds, int part, int parts) {
    Link l = {.rank = rank, .ranks = ranks, .elems = elems, .copy = copy, .is_broken = 1, .part = part, .parts = parts};
    l.first = outer_part_begin(elems, part, parts), l.end = outer_part_begin(elems, part + 1, parts);
    l.patience_ms = patience_seconds * 1e3;
    l.fetch.piece = xmalloc(sizeof *l.fetch.piece * MESSAGE_ELEMS, "the connection to outer.server");
    l.payload = xmalloc(FRAME_PAYLOAD_LIMIT, "the connection to outer.server");
    return l;
}

void link_take(Link *l, Channel *server) {
    channel_close(l->server);
    l->server = server;
    l->is_broken = !server;
    l->fault[0] = 0;
    l->refuse.code = 0;
    l->has_welcome = l->has_open = l->has_closed = l->has_moments = l->is_put_off = 0;
    l->fetch = (LinkFetch){.piece = l->fetch.piece};
    l->send = (LinkSend){0};
    l->turns = 0;
    l->pings = l->answers = 0;
    if (server) channel_limit(server, l->elems);
}

void link_destroy(Link *l) {
    channel_close(l->server);
    free(l->fetch.piece);
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

int64_t link_piece_begin(const Link *l, int64_t piece) { return l->fetch.range.first + piece * MESSAGE_ELEMS; }

int64_t link_piece_elems(const Link *l, int64_t piece) {
    int64_t left = l->fetch.range.end - link_piece_begin(l, piece);
    return left < MESSAGE_ELEMS ? left : MESSAGE_ELEMS;
}

int link_owns(const Link *l, int64_t piece) { return piece % l->ranks == l->rank; }

/* Returns the number of the n-th chunk that this rank fetches. */
static int64_t own_piece(const Link *l, int64_t n) { return n * l->ranks + l->rank; }

static int64_t pieces_of(int64_t elems) { return (elems + MESSAGE_ELEMS - 1) / MESSAGE_ELEMS; }

static void fetch_range(Link *l, MessageKind get, int64_t round, Fragment range, float *store) {
    l->fetch = (LinkFetch){.get = get, .range = range, .round = round, .pieces = pieces_of(range.end - range.first),
                           .turn = -1, .piece = l->fetch.piece, .store = store};
}

void link_fetch(Link *l, MessageKind get, int64_t round) {
    fetch_range(l, get, round, (Fragment){l->first, l->end}, NULL);
}

void link_give_up(Link *l) { l->fetch.is_given_up = 1, l->fetch.has_piece = 0; }

static void ask_for_pieces(Link *l) {
    LinkFetch *f = &l->fetch;
    while (!f->is_given_up && f->asked < f->had + ASKED_AHEAD && own_piece(l, f->asked) < f->pieces) {
        int64_t     piece = own_piece(l, f->asked);
        FrameHeader h = {.kind = (uint8_t)f->get, .round = f->round, .offset = link_piece_begin(l, piece),
                         .elems = link_piece_elems(l, piece)};
        if (channel_send(l->server, h, NULL) <= 0) return;
        f->asked++;
    }
}

static void take_piece(Link *l, const FrameHeader *h, const void *payload) {
    LinkFetch *f = &l->fetch;
    int64_t    piece = own_piece(l, f->had);
    int        is_next = h->offset == link_piece_begin(l, piece) && h->elems == link_piece_elems(l, piece);
    if (f->had == f->asked || h->kind != message_answer(f->get) || h->round != f->round || !is_next) {
        break_link(l, "%s sent %s that was not asked for: round %lld, element %lld", channel_peer(l->server),
                   message_name(h->kind), (long long)h->round, (long long)h->offset);
        return;
    }
    float *to = f->store ? f->store + f->had * MESSAGE_ELEMS : f->piece;
    frame_unpack((FrameType)h->type, to, payload, h->elems);
    f->had++;
    f->has_piece = !f->store && !f->is_given_up;
}

/* --- sending deltas ----------------------------------------------------------------------------------------------- */

static void send_range(Link *l, MessageKind kind, Fragment range, int64_t round, MessageKind last) {
    l->send.is_on = 1, l->send.range = fragment_within(range, l->first, l->end);
    l->send.kind = kind, l->send.last = last;
    l->send.round = round;
    l->send.run = l->send.at = l->send.gone = 0;
}

void link_send(Link *l, End end) {
    send_range(l, MESSAGE_DELTA, (Fragment){0, l->elems}, end.round, MESSAGE_END);
    l->send.bytes = end_write(&end, l->send.text);
}

void link_send_moments(Link *l, MessageKind kind) {
    send_range(l, kind, (Fragment){0, l->elems}, l->open.round, MESSAGE_KINDS);
}

void link_send_end(Link *l, End end) {
    send_range(l, MESSAGE_DELTA, (Fragment){0, 0}, end.round, MESSAGE_END);
    l->send.bytes = end_write(&end, l->send.text);
}

void link_send_rest(Link *l, Turn turn) {
    send_range(l, MESSAGE_DELTA, (Fragment){0, l->elems}, turn.round, MESSAGE_TURN);
    l->send.bytes = turn_write(&turn, l->send.text);
}

void link_send_fragment(Link *l, Turn turn, Fragment range, float *store) {
    CHECK(l->turns < LINK_TURNS, "%d fragments are under way", l->turns);
    send_range(l, MESSAGE_FRAGMENT, range, turn.round, MESSAGE_TURN);
    l->send.bytes = turn_write(&turn, l->send.text);
    l->turn[l->turns++] = (LinkTurn){.turn = turn, .range = range, .store = store};
}

int link_has_x(const Link *l) { return l->turns > 0 && l->turn[0].has_x; }
int link_may_turn(const Link *l) { return !l->send.is_on && (l->turns < LINK_TURNS || link_has_x(l)); }
int link_is_idle(const Link *l) { return !l->send.is_on && (l->turns == 0 || l->turn[l->turns - 1].has_x); }

void link_end_turn(Link *l) {
    l->turns--;
    memmove(l->turn, l->turn + 1, sizeof *l->turn * (size_t)l->turns);
}

int64_t link_store_elems(int64_t fragment_elems, int ranks) {
    return (pieces_of(fragment_elems) + ranks - 1) / ranks * MESSAGE_ELEMS;
}

Fragment link_piece(Fragment range, int64_t n) {
    int64_t first = range.first + n * MESSAGE_ELEMS;
    return fragment_within(range, first, first + MESSAGE_ELEMS);
}

/* Marks a fragment as turned. The server completes fragments in the order in which they were sent. */
static void take_turned(Link *l, const Turned *t) {
    int i = 0;
    while (i < l->turns && l->turn[i].has_turned) i++;
    if (i < l->turns && t->round == l->turn[i].turn.round && t->fragment == l->turn[i].turn.fragment) {
        l->turn[i].has_turned = 1;
        return;
    }
    break_link(l, "%s sent TURNED of fragment %d, round %lld, which was not sent", channel_peer(l->server), t->fragment,
               (long long)t->round);
}

int link_takes_changes(const Link *l) { return l->copy->type != FRAME_F32 && l->welcome.changes; }

/* Fetches the new x of the fragments whose TURNED has arrived, one fragment after another. */
static void fetch_turned(Link *l) {
    for (int i = 0; i < l->turns && l->turn[i].has_turned; i++) {
        LinkTurn *t = &l->turn[i];
        if (t->has_x) continue;
        MessageKind get = link_takes_changes(l) ? MESSAGE_GET_CHANGE : MESSAGE_GET;
        if (!l->fetch.store) fetch_range(l, get, t->turn.round, t->range, t->store);
        if (own_piece(l, l->fetch.had) < l->fetch.pieces) return;
        t->has_x = 1;
        l->fetch = (LinkFetch){.piece = l->fetch.piece};
    }
}

void link_say(Link *l, MessageKind kind, int64_t round, const char *text, size_t bytes) {
    while (!l->is_broken && message_send(l->server, kind, round, text, bytes) == 0) {
        channel_wait(&l->server, 1, -1, 100.0);
        link_keep(l);
    }
}

static int has_moments(const LinkSend *s) { return s->kind == MESSAGE_M || s->kind == MESSAGE_V; }

/* Packs the next elems values into payload. */
static void pack(Link *l, int64_t elems) {
    const LinkSend *s = &l->send;
    if (has_moments(s)) frame_pack(FRAME_F32, l->payload, l->copy->delta + s->gone, elems);
    else                round_copy_pack(l->copy, s->gone, elems, l->payload);
}

/* Returns the next elements of the range, at most one frame of them; an empty range if there are none. */
static Fragment next_of_range(Link *l) {
    LinkSend       *s = &l->send;
    const FileExtents *runs = &l->copy->runs;
    for (; s->run < runs->extents; s->run++, s->at = 0) {
        FileExtent  run = runs->extent[s->run];
        Fragment of = {run.offset + s->at, run.offset + run.elems};
        of = fragment_within(of, s->range.first, s->range.end);
        int64_t  skipped = of.first < of.end ? of.first - run.offset - s->at : run.elems - s->at;
        s->at += skipped, s->gone += skipped;
        if (of.end - of.first > MESSAGE_ELEMS) of.end = of.first + MESSAGE_ELEMS;
        if (of.first < of.end) return of;
    }
    return (Fragment){0, 0};
}

/* Sends values while the channel's buffer has space for a frame: each element may be packed only once. */
static void send_values(Link *l) {
    LinkSend *s = &l->send;
    FrameType type = has_moments(s) ? FRAME_F32 : l->copy->type;
    Fragment  next;
    while ((next = next_of_range(l)).end > 0) {
        int64_t     elems = next.end - next.first;
        FrameHeader h = {.kind = (uint8_t)s->kind, .type = (uint8_t)type, .round = s->round};
        if (channel_unsent(l->server) > CHANNEL_OUT_BYTES - CHANNEL_FRAME_BYTES) return;
        h.offset = next.first, h.elems = elems;
        h.payload_bytes = (uint32_t)frame_value_bytes(type, elems);
        pack(l, elems);
        if (channel_send(l->server, h, l->payload) < 0) return;
        s->at += elems, s->gone += elems;
    }
    if (s->last == MESSAGE_KINDS || message_send(l->server, s->last, s->round, s->text, s->bytes) > 0) s->is_on = 0;
}

/* --- signs of life ------------------------------------------------------------------------------------------------ */

void link_ping(Link *l) {
    double now = clock_ms();
    if (l->is_broken || message_send(l->server, MESSAGE_PING, 0, NULL, 0) <= 0) return;
    if (l->pings++ == l->answers) l->silent_ms = now;
    l->pinged_ms = now;
}

/* Breaks the link after outer.patience_seconds without an answer. Call it after everything that arrived was read. While
 * a chunk waits in `piece`, nothing is read, so silence is not counted then. */
static void look_for_silence(Link *l) {
    double now = clock_ms();
    double waited_ms = l->answers < l->pings && !l->fetch.has_piece ? now - l->silent_ms : 0.0;
    if (waited_ms > l->patience_ms && channel_silent_ms(l->server) > l->patience_ms)
        break_link(l, "%s has been silent for %.0f s (outer.patience_seconds)", channel_peer(l->server),
                   waited_ms * 1e-3);
    else if (now - l->pinged_ms >= PING_MS) link_ping(l);
}

/* --- received frames ---------------------------------------------------------------------------------------------- */

static void take_frame(Link *l, const FrameHeader *h, const void *payload) {
    char        fault[MESSAGE_FAULT_BYTES] = "";
    const char *text = (const char *)payload;
    size_t      bytes = h->payload_bytes;
    Turned      turned;
    int         is_good = message_check(h, FROM_SERVER, fault);
    if (is_good) switch (h->kind) {
        case MESSAGE_X:
        case MESSAGE_CHANGE:
        case MESSAGE_M:
        case MESSAGE_V:       take_piece(l, h, payload); break;
        case MESSAGE_PING:    l->answers++, l->silent_ms = clock_ms(); break;
        case MESSAGE_WELCOME: l->has_welcome = is_good = welcome_read(text, bytes, &l->welcome, fault); break;
        case MESSAGE_OPEN:    l->has_open = is_good = open_read(text, bytes, &l->open, fault); break;
        case MESSAGE_CLOSED:  l->has_closed = is_good = closed_read(text, bytes, &l->closed, fault); break;
        case MESSAGE_MOMENTS:
            is_good = moments_read(text, bytes, &l->moments, fault);
            if (l->moments.is_later) l->is_put_off = 1, l->has_open = 0;
            else l->has_moments = is_good;
            break;
        case MESSAGE_TURNED:
            is_good = turned_read(text, bytes, &turned, fault);
            if (is_good) take_turned(l, &turned);
            break;
        case MESSAGE_REFUSE:
            is_good = refuse_read(text, bytes, &l->refuse, fault);
            if (is_good) break_link(l, "%s: %s", channel_peer(l->server), l->refuse.why);
            break;
        default: break;
    }
    if (!is_good) break_link(l, "%s %s", channel_peer(l->server), fault);
}

void link_keep(Link *l) {
    FrameHeader h;
    const void *payload;
    int         got = 0;
    if (l->is_broken) return;
    if (l->send.is_on) send_values(l);
    while (!l->is_broken && !l->fetch.has_piece && (got = channel_next(l->server, &h, &payload)) > 0)
        take_frame(l, &h, payload);
    if (got < 0) break_link(l, "%s", channel_fault(l->server));
    if (!l->is_broken) fetch_turned(l), ask_for_pieces(l);
    if (!l->is_broken) look_for_silence(l);
    if (!l->is_broken && l->fetch.has_piece) channel_progress(l->server); /* the next frame stays unread */
}

int links_are_ready(const Link *l, int links, int (*is_ready)(const Link *)) {
    for (int i = 0; i < links; i++)
        if (!is_ready(&l[i])) return 0;
    return 1;
}

Link *links_broken(Link *l, int links) {
    Link *broken = NULL;
    for (int i = 0; i < links; i++)
        if (l[i].is_broken && (!broken || (l[i].refuse.code && !broken->refuse.code))) broken = &l[i];
    return broken;
}

void links_wait(Link *l, int links, int (*is_ready)(const Link *), double ms) {
    Channel *server[MESSAGE_PARTS];
    double   until_ms = clock_ms() + ms;
    for (int i = 0; i < links; i++) link_keep(&l[i]);
    while (!links_are_ready(l, links, is_ready) && !links_broken(l, links)) {
        double left_ms = until_ms - clock_ms();
        if (left_ms <= 0.0) return;
        for (int i = 0; i < links; i++) server[i] = l[i].server;
        channel_wait(server, links, -1, left_ms);
        for (int i = 0; i < links; i++) link_keep(&l[i]);
    }
}
