/* server_moments.c - hands the optimizer's moments of one island on to others (outer.moments=peer). See server_state.h.
 *
 * When a round opens and an island wants moments, one of the islands that begin it must give theirs. It does so before
 * its first step. The islands that take them keep their leases and wait. If the giver is lost and another island has
 * moments, they wait for the next round. If none has, they begin with zeros.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "core/clock.h"
#include "run/outer/server_state.h"

static int takes(const Member *m) { return m->state == MEMBER_TRAINS && m->takes_moments; }

static int takers(const Server *s) {
    int count = 0;
    for (int i = 0; i < s->members.count; i++) count += takes(s->members.member[i]);
    return count;
}

/* --- which island gives, and which take --------------------------------------------------------------------------- */

void server_end_moments(Server *s) {
    for (int k = 0; k < ADAMW_STATES; k++) free(s->peer_moments.values[k]);
    s->peer_moments = (PeerMoments){0};
}

static double mib_of(const Server *s) { return ADAMW_STATES * sizeof(float) * (double)s->elems / 1048576.0; }

static int make_room(Server *s) {
    for (int k = 0; k < ADAMW_STATES; k++)
        if (!(s->peer_moments.values[k] = malloc(sizeof(float) * (size_t)s->elems))) return 0;
    return 1;
}

/* Returns the first new island that has moments, or NULL. */
static Member *find_giver(const Server *s, const char *is_new) {
    for (int i = 0; i < s->members.count; i++)
        if (is_new[i] && s->members.member[i]->has_moments) return s->members.member[i];
    return NULL;
}

void server_open_moments(Server *s, const char *is_new) {
    Members *ms = &s->members;
    Member  *giver = find_giver(s, is_new);
    char     name[160];
    int      wanted = 0;
    for (int i = 0; i < ms->count; i++) wanted += is_new[i] && ms->member[i]->wants_moments;
    server_end_moments(s);
    if (wanted && giver && !make_room(s)) {
        s->parts.note("no memory for an island's moments: %.1f MiB wanted", mib_of(s));
        server_end_moments(s);
        giver = NULL;
    }
    for (int i = 0; i < ms->count; i++) {
        Member *m = ms->member[i];
        if (!is_new[i]) continue;
        m->takes_moments = m->wants_moments && giver;
        m->wants_moments = 0, m->taken = 0;
    }
    if (!wanted || !giver) return;
    s->peer_moments.giver = giver, s->peer_moments.lease = giver->lease.number, s->peer_moments.round = ms->round;
    s->peer_moments.heard_ms = clock_ms();
    s->parts.note("%s gives its moments to %d other%s: they take %.1f MiB here for as long",
                  server_name_of(s, giver, name), wanted, wanted == 1 ? "" : "s", mib_of(s));
}

OpenMoments server_moments_of(const Server *s, const Member *m) {
    return m == s->peer_moments.giver ? OPEN_GIVE : m->takes_moments ? OPEN_TAKE : OPEN_KEEP;
}

/* --- frames of the giver ------------------------------------------------------------------------------------------ */

static int is_giver(const Server *s, const Member *m, int64_t round) {
    return m == s->peer_moments.giver && m->state == MEMBER_TRAINS && round == s->peer_moments.round;
}

/* Returns 1 if all values are finite and, for v, not negative. */
static int are_moments(const float *values, int64_t elems, int is_v) {
    for (int64_t i = 0; i < elems; i++)
        if (!isfinite(values[i]) || (is_v && values[i] < 0.0f)) return 0;
    return 1;
}

void server_take_moments(Server *s, Peer *p, const FrameHeader *h, const void *payload) {
    PeerMoments *g = &s->peer_moments;
    int   k = h->kind == MESSAGE_V;
    if (!is_giver(s, p->member, h->round)) {
        server_refuse_peer(s, p, EXIT_PEER, "the island sent moments that nobody asked it for");
        return;
    }
    if (g->elems[k] + h->elems > s->elems) {
        server_refuse_peer(s, p, EXIT_PEER, "the island sent more than the %" PRId64 " elements of its moments",
                           s->elems);
        return;
    }
    frame_unpack(FRAME_F32, g->values[k] + h->offset, payload, h->elems);
    g->elems[k] += h->elems, g->heard_ms = clock_ms();
    if (!are_moments(g->values[k] + h->offset, h->elems, k))
        server_refuse_peer(s, p, EXIT_NUMERIC, "the moments of the island are not finite, or its v is negative");
}

static void say_moments(Server *s, const Member *m, Moments moments) {
    char  text[MESSAGE_TEXT];
    Peer *p = server_first_rank(s, m);
    if (p) peer_say(p, MESSAGE_MOMENTS, s->peer_moments.round, text, moments_write(&moments, text));
}

void server_take_given(Server *s, Peer *p, const char *text, size_t bytes) {
    char  fault[MESSAGE_FAULT_BYTES] = "";
    PeerMoments *g = &s->peer_moments;
    Given given;
    if (!is_giver(s, p->member, g->round) || !given_read(text, bytes, &given, fault)) {
        server_refuse_peer(s, p, EXIT_PEER, "the island %s", *fault ? fault : "sent a GIVEN that nobody asked it for");
        return;
    }
    g->heard_ms = clock_ms();
    if (++g->given < p->member->ranks) return;
    if (g->elems[0] != s->elems || g->elems[1] != s->elems) {
        server_refuse_peer(s, p, EXIT_PEER,
                           "the island sent %" PRId64 " and %" PRId64 " of the %" PRId64 " elements of its moments",
                           g->elems[0], g->elems[1], s->elems);
        return;
    }
    g->giver = NULL, g->updates = given.updates;
    for (int i = 0; i < s->members.count; i++)
        if (takes(s->members.member[i])) say_moments(s, s->members.member[i], (Moments){g->updates, 0});
}

int server_may_take(Server *s, Peer *p, const FrameHeader *h) {
    Member *m = p->member;
    if (takes(m) && s->peer_moments.updates > 0 && m->taken + h->elems <= ADAMW_STATES * s->elems) {
        m->taken += h->elems;
        return 1;
    }
    server_refuse_peer(s, p, EXIT_PEER, "the island sent %s for moments that it was not given", message_name(h->kind));
    return 0;
}

PeerValues server_values(const Server *s) {
    return (PeerValues){&s->weights, {s->peer_moments.values[0], s->peer_moments.values[1]}, &s->change};
}

/* --- the end of an exchange --------------------------------------------------------------------------------------- */

static int others_have_moments(const Server *s, const Member *but) {
    for (int i = 0; i < s->members.count; i++) {
        const Member *m = s->members.member[i];
        if (m != but && m->state >= MEMBER_WAITS && !m->leaves && m->has_moments) return 1;
    }
    return 0;
}

/* Informs the islands that they will not receive the moments. If another island can give some, they wait for the next
 * round; not if may_come_later is 0, because that giver may fail in the same way. */
static void give_up(Server *s, const char *why, int may_come_later) {
    char name[160], taker[160];
    for (int i = 0; i < s->members.count; i++) {
        Member *m = s->members.member[i];
        if (!takes(m)) continue;
        int is_later = may_come_later && others_have_moments(s, s->peer_moments.giver);
        s->parts.note("%s %s: %s %s", server_name_of(s, s->peer_moments.giver, name), why, server_name_of(s, m, taker),
                      is_later ? "waits for the next round, and another's moments" : "begins with zero moments");
        say_moments(s, m, (Moments){0, is_later});
        m->takes_moments = 0;
        if (!is_later) continue;
        server_take_back(s, m->lease.number);
        m->state = MEMBER_WAITS, m->wants_moments = 1;
    }
    server_end_moments(s);
}

/* Returns 1 if the island has requested all moments, and all were sent. */
static int has_all(const Server *s, const Member *m) {
    if (m->taken < ADAMW_STATES * s->elems) return 0;
    for (int i = 0; i < s->peers.count; i++)
        if (s->peers.peer[i]->member == m && s->peers.peer[i]->gets > 0) return 0;
    return 1;
}

void server_keep_moments(Server *s) {
    PeerMoments  *g = &s->peer_moments;
    const Member *giver = g->giver;
    if (!g->values[0]) return;
    if (giver && (giver->state != MEMBER_TRAINS || giver->lease.number != g->lease))
        give_up(s, "is gone, and has not given its moments", 1);
    else if (giver && clock_ms() - g->heard_ms > s->patience_ms)
        give_up(s, "has sent none of its moments for outer.patience_seconds", 0);
    for (int i = 0; g->updates > 0 && i < s->members.count; i++)
        if (takes(s->members.member[i]) && has_all(s, s->members.member[i])) s->members.member[i]->takes_moments = 0;
    if (g->values[0] && takers(s) == 0) server_end_moments(s);
}
