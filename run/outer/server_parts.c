/* server_parts.c - the leader of several servers. It sends its followers their parts of x, m and v and the STEP
 * messages that change them. It fetches the parts back for a checkpoint. See server_state.h. */
#include <stdio.h>
#include <stdlib.h>

#include "core/thread.h"
#include "core/error.h"
#include "run/outer/server_hello.h"
#include "run/outer/server_state.h"

static const double LOOK_MS = 100.0;

static int64_t begin_of(const Server *s, int part) { return outer_part_begin(s->elems, part, s->parts.parts); }
static int64_t elems_of(const Server *s, int part) { return begin_of(s, part + 1) - begin_of(s, part); }

void server_lose_follower(const Peer *p, const char *why) {
    if (p->part == PEER_LEADER)
        fail(EXIT_PEER, "%s: without the first server of outer.server this part ends", why);
    fail(EXIT_PEER, "%s: part %d of the model is lost; start the servers again, and they go on from the newest checkpoint",
         why, p->part);
}

const char *server_fault(const Peer *p) {
    return channel_is_broken(p->channel) ? channel_fault(p->channel) : channel_peer(p->channel);
}

/* --- sending and waiting ------------------------------------------------------------------------------------------ */

/* When a byte last went through a connection, and the bytes until then. */
typedef struct { uint64_t bytes; double since_ms; } Quiet;

static int is_quiet(const Server *s, const Peer *p, Quiet *q) {
    uint64_t bytes = channel_sent_bytes(p->channel) + channel_received_bytes(p->channel);
    if (bytes != q->bytes || q->since_ms == 0.0) *q = (Quiet){bytes, clock_ms()};
    return clock_ms() - q->since_ms > s->patience_ms;
}

int server_send(Server *s, Peer *p, FrameHeader h, const void *payload) {
    Quiet quiet = {0};
    for (;;) {
        if (!p->first) {
            int sent = channel_send(p->channel, h, payload);
            if (sent) return sent > 0;
        } else peer_send(p, server_values(s));
        if (channel_progress(p->channel) < 0 || is_quiet(s, p, &quiet)) return 0;
        channel_wait(&p->channel, 1, -1, LOOK_MS);
    }
}

int server_send_state(Server *s, Peer *p, const ServerWeights *from, int64_t first, int64_t elems) {
    float *block = xmalloc(sizeof *block * MESSAGE_ELEMS, "a frame of weights");
    int    is_sent = 1;
    for (int64_t at = 0, n; is_sent && at < elems * WEIGHTS_TENSORS; at += n) {
        int64_t inside = at % elems;
        n = elems - inside < MESSAGE_ELEMS ? elems - inside : MESSAGE_ELEMS;
        server_weights_read(from, (ServerTensor)(at / elems), first + inside, n, block);
        FrameHeader h = {.kind = MESSAGE_STATE, .type = FRAME_F32, .offset = first + inside, .elems = n,
                         .payload_bytes = (uint32_t)frame_value_bytes(FRAME_F32, n)};
        is_sent = server_send(s, p, h, block);
    }
    free(block);
    return is_sent;
}

int server_take_state(Server *s, const FrameHeader *h, const void *payload, const ServerWeights *to, int64_t first,
                      int64_t elems, char *fault) {
    int64_t inside = s->had % elems;
    if (s->had >= elems * WEIGHTS_TENSORS || h->offset != first + inside || inside + h->elems > elems) {
        snprintf(fault, MESSAGE_FAULT_BYTES, "sent STATE from element %lld on, which was not its turn",
                 (long long)h->offset);
        return 0;
    }
    server_weights_write(to, (ServerTensor)(s->had / elems), h->offset, h->elems, (const float *)payload);
    s->had += h->elems;
    return 1;
}

void server_tell(Server *s, MessageKind kind, const char *text, size_t bytes) {
    for (int k = 1; k < s->parts.parts; k++)
        if (s->follower[k]) peer_say(s->follower[k], kind, 0, text, bytes);
}

/* --- frames of followers ------------------------------------------------------------------------------------------ */

/* A new follower first receives its part of the weights that the leader has. */
int server_take_follow(Server *s, Peer *p, const char *text, size_t bytes, char *fault) {
    Follow follow;
    if (!follow_read(text, bytes, &follow, fault)) return EXIT_CONFIG;
    int code = follow_refuse(&follow, s->parts.config, s->parts.parts, s->elems, fault, SERVER_FAULT_BYTES);
    int k = follow.part;
    follow_free(&follow);
    if (!code && (!server_leads(s) || s->follower[k])) {
        snprintf(fault, MESSAGE_FAULT_BYTES,
                 server_leads(s) ? "has part %d, which another has" : "has part %d, and this server leads nobody", k);
        code = EXIT_CONFIG;
    }
    if (code) return code;
    p->part = k;
    s->follower[k] = p;
    s->parts.note("part %d of %d is held by %s", k, s->parts.parts, channel_peer(p->channel));
    if (!server_send_state(s, p, &s->whole, begin_of(s, k), elems_of(s, k)))
        server_lose_follower(p, server_fault(p));
    return 0;
}

static int take_part_in(Server *s, Peer *p, const char *text, size_t bytes, char *fault) {
    char    again[MESSAGE_TEXT];
    PartIn  part;
    Member *m;
    if (!part_in_read(text, bytes, &part, fault)) return 0;
    Drop drop = {part.lease};
    if (!members_part_in(&s->members, part.lease, &part.squares))
        peer_say(p, MESSAGE_DROP, 0, again, drop_write(&drop, again));
    else if ((m = members_of_lease(&s->members, part.lease))->state == MEMBER_ENDED) server_judge_early(s, m);
    return 1;
}

int server_take_of_follower(Server *s, Peer *p, const FrameHeader *h, const void *payload, char *fault) {
    const char *text = (const char *)payload;
    Stepped     stepped;
    int         is_good = 1;
    switch (h->kind) {
        case MESSAGE_PING:    peer_say(p, MESSAGE_PING, 0, NULL, 0); break;
        case MESSAGE_PART_IN: return take_part_in(s, p, text, h->payload_bytes, fault);
        case MESSAGE_STATE:
            return server_take_state(s, h, payload, &s->whole, begin_of(s, p->part), elems_of(s, p->part), fault);
        case MESSAGE_STEPPED:
            is_good = stepped_read(text, h->payload_bytes, &stepped, fault);
            if (is_good) p->squares = stepped.squares, p->has_answer = 1;
            break;
        default: /* a second FOLLOW */
            snprintf(fault, MESSAGE_FAULT_BYTES, "sent a second %s", message_name(h->kind));
            return 0;
    }
    return is_good;
}

/* --- orders to followers ------------------------------------------------------------------------------------------ */

/* Reads this follower alone until it has answered a STEP, or has sent state_elems values of STATE if that is not 0. */
static void await_answer(Server *s, Peer *p, int64_t state_elems) {
    Quiet       quiet = {0};
    FrameHeader h;
    const void *payload;
    char        fault[1024] = "";
    while (state_elems ? s->had < state_elems : !p->has_answer) {
        int got = channel_next(p->channel, &h, &payload);
        if (got > 0 && (!message_check(&h, FROM_FOLLOWER, fault) || !server_take_of_follower(s, p, &h, payload, fault)))
            server_lose_follower(p, fault);
        if (got < 0) server_lose_follower(p, channel_fault(p->channel));
        peer_send(p, server_values(s));
        if (got == 0 && is_quiet(s, p, &quiet)) {
            snprintf(fault, sizeof fault, "%s has been silent for %g s (outer.patience_seconds)",
                     channel_peer(p->channel), s->patience_ms * 1e-3);
            server_lose_follower(p, fault);
        }
        if (got == 0) channel_wait(&p->channel, 1, -1, LOOK_MS);
    }
}

void server_order(Server *s, const Step *step, float *d, Exact *squares) {
    char   text[MESSAGE_TEXT];
    size_t bytes = step_write(step, text);
    for (int k = 1; k < s->parts.parts; k++) s->follower[k]->has_answer = 0;
    server_tell(s, MESSAGE_STEP, text, bytes);
    for (int k = 1; k < s->parts.parts; k++) channel_progress(s->follower[k]->channel);
    server_step_part(s, step, d, squares, s->members.round + 1);
    for (int k = 1; k < s->parts.parts; k++) {
        await_answer(s, s->follower[k], 0);
        exact_merge(squares, &s->follower[k]->squares);
    }
}

void server_collect(Server *s) {
    for (int k = 1; k < s->parts.parts; k++) {
        if (!s->follower[k]) continue; /* no round was opened, so the leader has all parts */
        s->had = 0;
        peer_say(s->follower[k], MESSAGE_COLLECT, 0, NULL, 0);
        await_answer(s, s->follower[k], elems_of(s, k) * WEIGHTS_TENSORS);
    }
}

void server_dismiss(Server *s, int code) {
    char   text[MESSAGE_TEXT];
    Over   over = {code};
    size_t bytes = over_write(&over, text);
    s->is_dismissed = 1;
    server_tell(s, MESSAGE_OVER, text, bytes);
    for (int k = 1; k < s->parts.parts; k++) {
        if (!s->follower[k]) continue;
        for (double until_ms = clock_ms() + s->patience_ms; s->follower[k]->first && clock_ms() < until_ms;) {
            peer_send(s->follower[k], server_values(s));
            channel_flush(s->follower[k]->channel, LOOK_MS);
        }
        channel_flush(s->follower[k]->channel, s->patience_ms);
    }
}

/* --- which followers are connected -------------------------------------------------------------------------------- */

int server_is_whole(const Server *s) {
    for (int k = 1; k < s->parts.parts; k++)
        if (!s->follower[k]) return 0;
    return 1;
}

void server_linger(Server *s) { s->lingers = 1; }

void server_look_at_followers(Server *s) {
    char why[160];
    for (int k = 1; k < s->parts.parts && !s->lingers; k++) {
        const Peer *p = s->follower[k];
        if (!p && clock_ms() - s->made_ms > s->patience_ms)
            fail(EXIT_PEER, "part %d of %d of outer.server has not come for %g s (outer.patience_seconds)", k,
                 s->parts.parts, s->patience_ms * 1e-3);
        if (!p || s->is_dismissed || channel_silent_ms(p->channel) <= s->patience_ms) continue;
        snprintf(why, sizeof why, "%s has been silent for %g s (outer.patience_seconds)", channel_peer(p->channel),
                 s->patience_ms * 1e-3);
        server_lose_follower(p, why);
    }
}
