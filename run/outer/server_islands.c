/* server_islands.c - the server and its islands: refusing and losing them, and handling their frames. See
 * server_state.h. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/thread.h"
#include "run/outer/server_hello.h"
#include "run/outer/server_state.h"

enum { WHY_BYTES = SERVER_FAULT_BYTES };

/* --- refusing and losing ------------------------------------------------------------------------------------------ */

const char *server_name_of(const Server *s, const Member *m, char out[160]) {
    const char *address = "";
    for (int i = 0; i < s->peers.count; i++)
        if (s->peers.peer[i]->member == m && s->peers.peer[i]->rank == 0)
            address = channel_peer(s->peers.peer[i]->channel);
    snprintf(out, 160, "island %d (%s%s%s)", m->number, m->id, *address ? ", " : "", address);
    return out;
}

Peer *server_first_rank(const Server *s, const Member *m) {
    for (int i = 0; i < s->peers.count; i++)
        if (s->peers.peer[i]->member == m && s->peers.peer[i]->rank == 0 && !s->peers.peer[i]->is_ending)
            return s->peers.peer[i];
    return NULL;
}

void server_take_back(Server *s, int64_t lease) {
    char text[MESSAGE_TEXT];
    Drop drop = {lease};
    if (lease < 0 || !server_leads(s)) return;
    leases_return(&s->leases, lease);
    server_tell(s, MESSAGE_DROP, text, drop_write(&drop, text));
}

void server_refuse_member(Server *s, Member *m, int code, const char *why) {
    char name[160];
    warn("%s is refused: %s", server_name_of(s, m, name), why);
    server_take_back(s, m->state >= MEMBER_TRAINS ? m->lease.number : -1);
    m->state = MEMBER_GONE;
    for (int i = 0; i < s->peers.count; i++)
        if (s->peers.peer[i]->member == m) peer_refuse(s->peers.peer[i], code, why);
}

void server_refuse_peer(Server *s, Peer *p, int code, const char *fmt, ...) {
    char    why[WHY_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    if (p->member && p->member->state != MEMBER_GONE) {
        server_refuse_member(s, p->member, code, why);
    } else if (!p->is_ending) {
        warn("%s is refused: %s", channel_peer(p->channel), why);
        peer_refuse(p, code, why);
    }
}

void server_drop_connections(Server *s, const Member *m, const Peer *but) {
    for (int i = s->peers.count; i-- > 0;) {
        const Peer *p = s->peers.peer[i];
        if (p != but && p->member == m && !p->is_ending) peers_remove(&s->peers, i);
    }
}

void server_lose_member(Server *s, Member *m, const char *why) {
    char        name[160];
    MemberState was = m->state;
    int         is_known = m->leaves;
    server_name_of(s, m, name);
    server_take_back(s, members_lose(m));
    if (m->state == MEMBER_GONE && arriving_is_whole(&m->rest, m->ranks))
        server_count_rest(s, m, members_here(&s->members) + 1);
    if (!is_known && server_leads(s))
        s->parts.note("%s %s%s", name, why,
                      was == MEMBER_TRAINS ? ": its samples go back" : was == MEMBER_ENDED ? ": its delta counts" : "");
}

/* Removes a peer whose channel is broken. Its island is lost, unless this rank has sent all its deltas. */
static void lose_peer(Server *s, int i) {
    Peer   *p = s->peers.peer[i];
    Member *m = p->member;
    if (p->part && !s->is_dismissed && !s->lingers) server_lose_follower(p, channel_fault(p->channel));
    if (is_follower(p)) s->follower[p->part] = NULL;
    if (m && !p->is_ending && m->state != MEMBER_GONE && !(m->state == MEMBER_TRAINS && m->said[p->rank] == 2))
        server_lose_member(s, m, "is lost");
    else if (!m && channel_fault_code(p->channel) == EXIT_CONFIG) warn("%s", channel_fault(p->channel));
    peers_remove(&s->peers, i);
}

/* --- frames ------------------------------------------------------------------------------------------------------- */

void server_say_closed(Server *s, Member *m, int islands, double norm, int64_t staleness) {
    char   text[MESSAGE_TEXT];
    Closed closed = {s->members.round, islands, norm, staleness, server_is_done(s)};
    size_t bytes = closed_write(&closed, text);
    for (int i = 0; i < s->peers.count; i++)
        if (s->peers.peer[i]->member == m && !s->peers.peer[i]->is_ending)
            peer_say(s->peers.peer[i], MESSAGE_CLOSED, closed.round, text, bytes);
    m->knows_end = closed.is_done;
}

static void welcome(Server *s, Peer *p) {
    char    text[MESSAGE_TEXT], name[160];
    Member *m = p->member;
    Welcome w = {.number = m->number, .round = s->members.round, .elems = s->elems, .part = s->parts.part,
                 .parts = s->parts.parts, .changes = round_change_type(s->parts.config) != FRAME_F32};
    peer_say(p, MESSAGE_WELCOME, w.round, text, welcome_write(&w, text));
    if (m->state != MEMBER_WAITS || !server_leads(s)) return;
    s->parts.note("%s has joined with %d rank%s", server_name_of(s, m, name), m->ranks, m->ranks == 1 ? "" : "s");
}

static void take_hello(Server *s, Peer *p, const char *text, size_t bytes) {
    char    fault[MESSAGE_FAULT_BYTES] = "", why[WHY_BYTES];
    Hello   hello;
    int64_t was = -1;
    if (p->member) {
        server_refuse_peer(s, p, EXIT_PEER, "the island sent a second HELLO");
        return;
    }
    if (!hello_read(text, bytes, &hello, fault)) {
        server_refuse_peer(s, p, EXIT_PEER, "the island %s", fault);
        return;
    }
    int     code = hello_refuse(&hello, s->parts.config, s->parts.train, s->elems, why, sizeof why);
    Member *m = code ? NULL : members_join(&s->members, &hello, clock_ms(), &was, fault);
    if (code) server_refuse_peer(s, p, code, "%s", why);
    else if (!m) server_refuse_peer(s, p, EXIT_PEER, "%s", fault);
    server_take_back(s, was);
    if (m && m->joined == 1) {
        server_drop_connections(s, m, p);
        members_forget_turns(m);
    }
    if (m) {
        p->member = m, p->rank = hello.rank;
        m->takes_changes = hello_takes_changes(&hello);
        welcome(s, p);
    }
    hello_free(&hello);
}

/* Gives an island a lease on a follower, which does not know the leases. The first frame of a round shows that there is
 * one; its END has the number. */
static void take_unknown_lease(Server *s, Member *m, int64_t round) {
    if (server_leads(s) || m->state != MEMBER_WAITS) return;
    members_give(&s->members, m, (Lease){.number = -1, .range.samples = MESSAGE_COUNT_LIMIT, .round = round});
}

static void take_delta(Server *s, Peer *p, const FrameHeader *h, const void *payload) {
    Member *m = p->member;
    if (s->streams) {
        server_take_part(s, p, h, payload);
        return;
    }
    take_unknown_lease(s, m, h->round);
    if (m->state != MEMBER_TRAINS || m->said[p->rank] != 1 || h->round != m->lease.round) {
        server_refuse_peer(s, p, EXIT_PEER, "the island sent deltas of round %lld without a lease in it", (long long)h->round);
        return;
    }
    int64_t from = h->offset - s->weights.first;
    if (from < 0 || from + h->elems > s->weights.elems) {
        server_refuse_peer(s, p, EXIT_PEER, "the island sent %lld elements from %lld on, which another server has",
                           (long long)h->elems, (long long)h->offset);
        return;
    }
    if (m->elems + h->elems > s->weights.elems) {
        server_refuse_peer(s, p, EXIT_PEER, "the island sent more than the %lld elements of its delta",
                           (long long)s->weights.elems);
        return;
    }
    if (!m->delta) m->delta = malloc(sizeof *m->delta * (size_t)s->weights.elems);
    if (!m->delta) {
        server_refuse_peer(s, p, EXIT_MEMORY, "the server has no memory for the delta of one more island");
        return;
    }
    frame_unpack((FrameType)h->type, m->delta + from, payload, h->elems);
    m->elems += h->elems;
}

static void take_end(Server *s, Peer *p, const char *text, size_t bytes) {
    char    fault[MESSAGE_FAULT_BYTES] = "";
    End     end;
    Member *m = p->member;
    if (!end_read(text, bytes, &end, fault)) {
        server_refuse_peer(s, p, EXIT_PEER, "the island %s", fault);
        return;
    }
    take_unknown_lease(s, m, end.round);
    if (!server_leads(s) && m->lease.number < 0) m->lease.number = end.lease;
    int ended = members_end(&s->members, m, p->rank, &end, s->streams ? 0 : s->weights.elems, fault);
    if (ended < 0) server_refuse_peer(s, p, EXIT_PEER, "the island %s", fault);
    if (ended <= 0) return;
    if (m->state == MEMBER_WAITS) {
        server_take_back(s, m->lease.number); /* no step was made */
        return;
    }
    if (!s->streams) outer_squares(m->delta, s->weights.elems, &m->squares);
    if (!server_leads(s)) server_part_is_in(s, m);
    else if (m->state == MEMBER_ENDED) server_judge_early(s, m);
}

static void take_bye(Server *s, Peer *p) {
    Member *m = p->member;
    if (m->state == MEMBER_TRAINS && m->said[p->rank] == 2) m->leaves = 1; /* the ENDs of other ranks are on their
                                                                            * way */
    else server_lose_member(s, m, "leaves");
}

/* wait=none: begins the record of what an island with outer.compress fetches. Returns 0 and refuses it if there is no
 * memory. */
static int hold(Server *s, Peer *p) {
    Member   *m = p->member;
    FrameType type = held_type(s->parts.config);
    if (type == FRAME_F32 || !m->takes_changes || m->held.x) return 1;
    if (held_begin(&m->held, type, server_weights_all(&s->weights))) return 1;
    server_refuse_peer(s, p, EXIT_MEMORY, "the server has no memory for what one more island holds (outer.compress)");
    return 0;
}

/* Takes a request for values. With wait=all a leader answers with x of the open round, whichever round is named. */
static void take_get(Server *s, Peer *p, const FrameHeader *h) {
    int64_t round = server_leads(s) && s->members.wait == WAIT_ALL ? s->members.round : h->round;
    if (h->offset < s->weights.first || h->offset + h->elems > s->weights.first + s->weights.elems) {
        server_refuse_peer(s, p, EXIT_PEER, "the island asked for weights that another server has");
        return;
    }
    if (h->kind == MESSAGE_GET && !hold(s, p)) return;
    if (h->kind == MESSAGE_GET_CHANGE && !held_is_whole(&p->member->held) && !server_has_change(s, h)) {
        server_refuse_peer(s, p, EXIT_PEER, "the island asked for the change of %lld weights from %lld on in round %lld, "
                           "and the last is of round %lld", (long long)h->elems, (long long)h->offset,
                           (long long)h->round, (long long)s->change.round);
        return;
    }
    if ((h->kind == MESSAGE_GET_M || h->kind == MESSAGE_GET_V) && !server_may_take(s, p, h)) return;
    if (!peer_ask(p, (PeerGet){message_answer(h->kind), round, h->offset, h->elems}))
        server_refuse_peer(s, p, EXIT_PEER, "the island asked for more than %d pieces at a time", PEER_GETS_MOST);
}

/* Takes a frame of another server. Returns 0 if no more frames of the peer are to be read. */
static int take_of_server(Server *s, Peer *p, const FrameHeader *h, const void *payload) {
    char fault[WHY_BYTES] = "";
    int  is_good = message_check(h, p->part == PEER_LEADER ? FROM_LEADER : FROM_FOLLOWER, fault);
    if (is_good && p->part == PEER_LEADER) is_good = server_take_of_leader(s, h, payload, fault);
    else if (is_good && p->part) is_good = server_take_of_follower(s, p, h, payload, fault);
    else if (is_good) is_good = !server_take_follow(s, p, (const char *)payload, h->payload_bytes, fault);
    if (is_good) return 1;
    if (p->part) server_lose_follower(p, fault);
    server_refuse_peer(s, p, EXIT_CONFIG, "the follower %s", fault);
    return 0;
}

/* Takes a frame. Returns 0 if no more frames of the peer are to be read. */
static int take_frame(Server *s, Peer *p, const FrameHeader *h, const void *payload) {
    char        fault[MESSAGE_FAULT_BYTES] = "";
    const char *text = (const char *)payload;
    if (p->part || (!p->member && h->kind == MESSAGE_FOLLOW)) return take_of_server(s, p, h, payload);
    if (!message_check(h, FROM_ISLAND, fault)) {
        server_refuse_peer(s, p, EXIT_PEER, "the island %s", fault);
        return 0;
    }
    if (!p->member && h->kind != MESSAGE_HELLO) {
        server_refuse_peer(s, p, EXIT_PEER, "the island sent %s before HELLO", message_name(h->kind));
        return 0;
    }
    if (p->member) p->member->heard_ms = clock_ms();
    switch (h->kind) {
        case MESSAGE_HELLO: take_hello(s, p, text, h->payload_bytes); break;
        case MESSAGE_DELTA: take_delta(s, p, h, payload); break;
        case MESSAGE_END:   take_end(s, p, text, h->payload_bytes); break;
        case MESSAGE_FRAGMENT: server_take_part(s, p, h, payload); break;
        case MESSAGE_TURN:  server_take_turn(s, p, text, h->payload_bytes); break;
        case MESSAGE_PING:  peer_say(p, MESSAGE_PING, 0, NULL, 0); break;
        case MESSAGE_BYE:   take_bye(s, p); return 0;
        case MESSAGE_M:
        case MESSAGE_V:     server_take_moments(s, p, h, payload); break;
        case MESSAGE_GIVEN: server_take_given(s, p, text, h->payload_bytes); break;
        case MESSAGE_GET:
        case MESSAGE_GET_CHANGE:
        case MESSAGE_GET_M:
        case MESSAGE_GET_V: take_get(s, p, h); break;
        default: break;
    }
    return !p->is_ending;
}

int server_serve_peer(Server *s, int i) {
    Peer       *p = s->peers.peer[i];
    FrameHeader h;
    const void *payload;
    int         got, count = s->peers.count;
    if (channel_is_open(p->channel)) peer_send(p, server_values(s));
    while ((got = channel_next(p->channel, &h, &payload)) > 0) {
        int goes_on = take_frame(s, p, &h, payload);
        if (s->peers.count < count) return 0; /* other connections were removed: the caller looks at the list again */
        if (!goes_on) break;
    }
    if (got > 0 && !p->is_ending) got = -1; /* after BYE */
    if (got == 0 && !p->member && !p->part && !p->is_ending && clock_ms() - p->since_ms > PEER_HELLO_MS) got = -1;
    if (got < 0) lose_peer(s, i);
    else if (channel_is_open(p->channel)) peer_send(p, server_values(s));
    return got >= 0;
}
