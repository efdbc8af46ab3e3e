/* server_peers.c - see server_peers.h. */
#include "run/outer/server_peers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/thread.h"
#include "core/error.h"

struct PeerWord {
    PeerWord   *next;
    MessageKind kind;
    int64_t     round;
    size_t      bytes;
    char        text[];
};

/* --- the list of peers -------------------------------------------------------------------------------------------- */

Peer *peers_add(Peers *p, Channel *c, double now_ms) {
    Peer *peer = xcalloc(1, sizeof *peer, "one more connection");
    p->peer = xrealloc(p->peer, sizeof *p->peer * (size_t)(p->count + 1), "one more connection");
    p->channel = xrealloc(p->channel, sizeof *p->channel * (size_t)(p->count + 1), "one more connection");
    *peer = (Peer){.channel = c, .since_ms = now_ms};
    p->peer[p->count++] = peer;
    return peer;
}

static void forget(Peer *p) {
    for (PeerWord *next; p->first; p->first = next) next = p->first->next, free(p->first);
    free(p->get);
    p->last = NULL, p->get = NULL, p->gets = p->got = 0;
}

void peers_remove(Peers *p, int i) {
    channel_close(p->peer[i]->channel);
    forget(p->peer[i]);
    free(p->peer[i]);
    memmove(p->peer + i, p->peer + i + 1, sizeof *p->peer * (size_t)(p->count - i - 1));
    p->count--;
}

void peers_destroy(Peers *p) {
    while (p->count) peers_remove(p, p->count - 1);
    free(p->peer);
    free(p->channel);
    *p = (Peers){0};
}

/* Returns the peer that is dropped first. a may be NULL. */
static Peer *sooner(Peer *a, Peer *b) {
    if (!a) return b;
    int a_spoke = channel_received_bytes(a->channel) > 0, b_spoke = channel_received_bytes(b->channel) > 0;
    if (a_spoke != b_spoke) return a_spoke ? b : a;
    return b->since_ms < a->since_ms ? b : a;
}

static void make_room(Peers *p) {
    Peer *last = NULL;
    int   unproven = 0;
    for (int i = 0; i < p->count; i++) {
        Channel *c = p->peer[i]->channel;
        if (!channel_is_open(c)) channel_progress(c); /* it may have sent something */
        if (channel_is_open(c) || channel_is_broken(c)) continue;
        unproven++;
        last = sooner(last, p->peer[i]);
    }
    for (int i = 0; unproven >= PEERS_UNPROVEN && i < p->count; i++)
        if (p->peer[i] == last) {
            peers_remove(p, i);
            return;
        }
}

void peers_accept(Peers *p, int listening, const Key *key, int64_t most_elems) {
    Channel *c;
    for (int i = 0; i < PEERS_UNPROVEN && p->count < PEERS_MOST && (c = channel_accept(listening, key)); i++) {
        make_room(p);
        channel_limit(c, most_elems);
        peers_add(p, c, clock_ms());
    }
}

void peers_wait(Peers *p, int listening, double ms) {
    for (int i = 0; i < p->count; i++) p->channel[i] = p->peer[i]->channel;
    channel_wait(p->channel, p->count, listening, ms);
}

/* --- one peer ----------------------------------------------------------------------------------------------------- */

void peer_say(Peer *p, MessageKind kind, int64_t round, const char *text, size_t bytes) {
    if (!p->first && message_send(p->channel, kind, round, text, bytes) != 0)
        return; /* sent, or broken, which channel_next reports */
    PeerWord *w = xmalloc(sizeof *w + bytes, "a message to an island");
    *w = (PeerWord){.kind = kind, .round = round, .bytes = bytes};
    if (bytes) memcpy(w->text, text, bytes);
    if (p->last) p->last->next = w;
    else         p->first = w;
    p->last = w;
}

void peer_refuse(Peer *p, int code, const char *why) {
    char   text[MESSAGE_TEXT];
    Refuse refuse = {.code = code};
    if (p->is_ending) return;
    forget(p);
    snprintf(refuse.why, sizeof refuse.why, "%s", why);
    peer_say(p, MESSAGE_REFUSE, 0, text, refuse_write(&refuse, text));
    p->is_ending = 1;
}

int peer_ask(Peer *p, PeerGet get) {
    if (p->gets == PEER_GETS_MOST) return 0;
    if ((p->gets & (p->gets - 1)) == 0) { /* a power of two: the list is full */
        p->get = xrealloc(p->get, sizeof *p->get * (size_t)(p->gets ? 2 * p->gets : 1), "what an island asks for");
    }
    p->get[p->gets++] = get;
    return 1;
}

static int has_room(const Peer *p) { return channel_unsent(p->channel) <= CHANNEL_OUT_BYTES - CHANNEL_FRAME_BYTES; }

/* Returns 0 if the values of a request no longer exist: moments can be freed after they were requested. */
static int has_values(PeerValues v, const PeerGet *g) {
    return g->kind == MESSAGE_X || g->kind == MESSAGE_CHANGE || v.moments[0];
}

/* Returns the server's record of the weights that the peer's island holds, or NULL where the server keeps none. */
static HeldWeights *held_by(const Peer *p) { return p->member && p->member->held.x ? &p->member->held : NULL; }

static FrameType type_of(const Peer *p, PeerValues v, const PeerGet *g) {
    if (g->kind != MESSAGE_CHANGE) return FRAME_F32;
    return held_by(p) ? held_by(p)->type : v.change->type;
}

/* Returns the payload of the next elems values. It lies in block [2 * MESSAGE_ELEMS], or, for a change of a round, in
 * the RoundChange. */
static const void *read_values(const Peer *p, PeerValues v, const PeerGet *g, int64_t elems, float *block) {
    HeldWeights *held = held_by(p);
    if (g->kind == MESSAGE_M || g->kind == MESSAGE_V)
        return memcpy(block, v.moments[g->kind == MESSAGE_V] + g->offset, sizeof *block * (size_t)elems);
    if (g->kind == MESSAGE_CHANGE && !held) return round_change_frame(v.change, g->offset, elems);
    server_weights_read(v.weights, WEIGHTS_X, g->offset, elems, block);
    if (g->kind == MESSAGE_CHANGE) {
        held_change(held, g->offset, block, elems, block + MESSAGE_ELEMS);
        return block + MESSAGE_ELEMS;
    }
    if (held) held_fetch(held, g->offset, block, elems);
    return block;
}

static void send_values(Peer *p, PeerValues values) {
    float *block = NULL;
    while (p->got < p->gets && has_room(p)) {
        PeerGet *g = &p->get[p->got];
        int64_t  elems = g->elems < MESSAGE_ELEMS ? g->elems : MESSAGE_ELEMS;
        if (!has_values(values, g)) {
            p->got++;
            continue;
        }
        if (!block) block = xmalloc(2 * sizeof *block * MESSAGE_ELEMS, "a frame of weights");
        FrameType   type = type_of(p, values, g);
        FrameHeader h = {.kind = (uint8_t)g->kind, .type = (uint8_t)type, .round = g->round, .offset = g->offset,
                         .elems = elems, .payload_bytes = (uint32_t)frame_value_bytes(type, elems)};
        if (channel_send(p->channel, h, read_values(p, values, g, elems, block)) != 1) break; /* broken, because it has
                                                                                               * space */
        g->offset += elems, g->elems -= elems;
        if (g->elems == 0) p->got++;
    }
    free(block);
    if (p->got == p->gets) p->got = p->gets = 0;
}

void peer_send(Peer *p, PeerValues values) {
    while (p->first && message_send(p->channel, p->first->kind, p->first->round, p->first->text, p->first->bytes) != 0) {
        PeerWord *next = p->first->next;
        free(p->first);
        p->first = next;
        if (!next) p->last = NULL;
    }
    if (!p->first && p->is_ending) channel_end(p->channel);
    else if (!p->is_ending) send_values(p, values);
}
