/* server_peers.c - the list of connections of a server; see server_peers.h. */
#include "run/outer/server_peers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/thread.h"
#include "core/error.h"

Peer *peers_add(Peers *p, Channel *c) {
    Peer *peer = xcalloc(1, sizeof *peer, "one more connection");
    p->peer = xrealloc(p->peer, sizeof *p->peer * (size_t)(p->count + 1), "one more connection");
    p->channel = xrealloc(p->channel, sizeof *p->channel * (size_t)(p->count + 1), "one more connection");
    *peer = (Peer){.channel = c, .since_ms = clock_ms()};
    p->peer[p->count++] = peer;
    return peer;
}

void peers_remove(Peers *p, int i) {
    channel_close(p->peer[i]->channel);
    free(p->peer[i]->get);
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

/* Returns the peer that is dropped first when there are too many connections: one that has sent nothing, then the older
 * one. a may be NULL. */
static Peer *sooner(Peer *a, Peer *b) {
    if (!a) return b;
    int a_spoke = channel_received_bytes(a->channel) > 0, b_spoke = channel_received_bytes(b->channel) > 0;
    if (a_spoke != b_spoke) return a_spoke ? b : a;
    return b->since_ms < a->since_ms ? b : a;
}

static void free_place(Peers *p) {
    Peer *last = NULL;
    int   unproven = 0;
    for (int i = 0; i < p->count; i++) {
        Channel *c = p->peer[i]->channel;
        if (!channel_is_open(c)) channel_progress(c); /* reads the connection, which may have received its first
                                                       * bytes */
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
        free_place(p);
        channel_limit(c, most_elems);
        peers_add(p, c);
    }
}

void peers_wait(Peers *p, int listening, double ms) {
    for (int i = 0; i < p->count; i++) p->channel[i] = p->peer[i]->channel;
    channel_wait(p->channel, p->count, listening, ms);
}

void peer_refuse(Peer *p, int code, const char *why) {
    Refuse refuse = {.code = code};
    if (p->is_ending) return;
    snprintf(refuse.why, sizeof refuse.why, "%s", why);
    message_send(p->channel, MESSAGE_REFUSE, 0, &refuse);
    channel_end(p->channel);
    p->is_ending = 1;
}
