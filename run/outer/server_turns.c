/* server_turns.c - the server's side of outer.stream (fragments.h): a fragment's new x is made when all who train have
 * sent it, and the steps that no turn has had count when their island ends. See server_state.h. */
#include <math.h>
#include <stdlib.h>

#include "run/outer/server_state.h"

static void forget_turn(Member *m) { arriving_forget(&m->turn), m->turn_norm = 0.0; }

/* The fragment that the rank may send in this state, or the rest; NULL: neither, and the peer is refused. */
static Arriving *open_part(Server *s, Peer *p, int is_rest, int64_t round) {
    Member   *m = p->member;
    Arriving *a = is_rest ? &m->rest : &m->turn;
    Fragment  range = fragment_of(s->elems, s->fragments, is_rest ? s->fragments : s->turn);
    int       is_due = is_rest ? m->state >= MEMBER_WAITS
                               : m->state == MEMBER_TRAINS && round == m->lease.round && s->turn < s->fragments;
    if (!s->streams || !is_due || (a->said && a->said[p->rank])) {
        server_refuse_peer(s, p, EXIT_PEER, "the island sent a fragment in round %lld whose turn it is not",
                           (long long)round);
        return NULL;
    }
    if (!a->said && !arriving_begin(a, range, m->ranks)) {
        server_refuse_peer(s, p, EXIT_MEMORY, "the server has no memory for a fragment of one more island");
        return NULL;
    }
    return a;
}

void server_take_part(Server *s, Peer *p, const FrameHeader *h, const void *payload) {
    Arriving *a = open_part(s, p, h->kind == MESSAGE_DELTA, h->round);
    if (!a) return;
    int64_t end = h->offset + h->elems, most = a->range.end - a->range.first;
    if (h->offset < a->range.first || end > a->range.end || a->elems + h->elems > most) {
        server_refuse_peer(s, p, EXIT_PEER,
                           "the island sent elements %lld to %lld, and its turn is at %lld to %lld, once each",
                           (long long)h->offset, (long long)end, (long long)a->range.first, (long long)a->range.end);
        return;
    }
    frame_unpack((FrameType)h->type, a->values + (h->offset - a->range.first), payload, h->elems);
    a->elems += h->elems;
}

/* All of it has come. */
static void take_whole(Server *s, Member *m, Arriving *a) {
    char   fault[MEMBER_FAULT_BYTES];
    double squares = outer_squares(a->values, a->range.end - a->range.first);
    if (a == &m->turn) {
        m->turn_norm = sqrt(squares), m->squares += squares;
        if (!isfinite(squares) && !members_judge_turn(&s->members, m, fault))
            server_refuse_member(s, m, EXIT_NUMERIC, fault);
        return;
    }
    double norm = m->norm;
    m->norm = sqrt(squares);
    int is_good = members_judge(&s->members, m, fault);
    m->norm = norm;
    if (!is_good) server_refuse_member(s, m, EXIT_NUMERIC, fault);
    else if (m->state == MEMBER_WAITS) server_count_rest(s, m, members_here(&s->members));
}

void server_take_turn(Server *s, Peer *p, const char *text, size_t bytes) {
    char    fault[MESSAGE_FAULT_BYTES] = "";
    Member *m = p->member;
    Turn    turn;
    if (!turn_read(text, bytes, &turn, fault)) {
        server_refuse_peer(s, p, EXIT_PEER, "the island %s", fault);
        return;
    }
    int       is_rest = turn.fragment == s->fragments;
    Arriving *a = open_part(s, p, is_rest, turn.round);
    if (!a) return;
    if (!is_rest && turn.fragment != s->turn) {
        server_refuse_peer(s, p, EXIT_PEER, "the island sent TURN %d, and it is that of %d", turn.fragment, s->turn);
        return;
    }
    if (p->rank == 0) a->tokens = turn.tokens;
    int ended = arriving_end(a, p->rank, m->ranks);
    if (ended < 0)
        server_refuse_peer(s, p, EXIT_PEER, "the island sent %lld of the %lld elements of a fragment",
                           (long long)a->elems, (long long)(a->range.end - a->range.first));
    if (ended > 0) take_whole(s, m, a);
}

/* --- a turn is over ----------------------------------------------------------------------------------------------- */

/* An island that leaves after its turn still counts in it. */
static int has_turn(const Member *m) { return m->state >= MEMBER_TRAINS && arriving_is_whole(&m->turn, m->ranks); }

static int is_complete(const Server *s) {
    int whole = 0;
    for (int i = 0; i < s->members.count; i++) {
        const Member *m = s->members.member[i];
        if (m->state == MEMBER_TRAINS && !has_turn(m)) return 0;
        whole += has_turn(m);
    }
    return whole > 0;
}

static void say_turned(Server *s, int islands) {
    char   text[MESSAGE_TEXT];
    Turned turned = {s->members.round, s->turn, islands};
    size_t bytes = turned_write(&turned, text);
    for (int i = 0; i < s->peers.count; i++) {
        Peer *p = s->peers.peer[i];
        if (p->member && has_turn(p->member) && !p->is_ending) peer_say(p, MESSAGE_TURNED, turned.round, text, bytes);
    }
}

void server_close_turn(Server *s) {
    Members *ms = &s->members;
    char     fault[MEMBER_FAULT_BYTES];
    int      islands = 0;
    if (s->turn == s->fragments || !is_complete(s)) return;
    for (int i = 0; i < ms->count; i++)
        if (has_turn(ms->member[i]) && !members_judge_turn(ms, ms->member[i], fault))
            server_refuse_member(s, ms->member[i], EXIT_NUMERIC, fault);
    if (!is_complete(s)) return;
    const float **delta = (const float **)malloc(sizeof *delta * (size_t)ms->count);
    double       *weight = (double *)malloc(sizeof *weight * (size_t)ms->count);
    if (!delta || !weight) fail(EXIT_MEMORY, "no memory for a turn of %d islands", ms->count);
    Arriving *mean = NULL;
    for (int i = 0; i < ms->count; i++) {
        Member *m = ms->member[i];
        if (!has_turn(m)) continue;
        if (!mean) mean = &m->turn;
        delta[islands] = m->turn.values, weight[islands++] = (double)m->turn.tokens;
    }
    int64_t elems = mean->range.end - mean->range.first;
    outer_mean(mean->values, delta, weight, islands, elems);
    s->squares += outer_squares(mean->values, elems);
    served_step(s->parts.weights, s->rule, mean->range, mean->values);
    free(delta);
    free(weight);
    say_turned(s, islands);
    for (int i = 0; i < ms->count; i++) forget_turn(ms->member[i]);
    s->turn++;
}

/* --- the rest ----------------------------------------------------------------------------------------------------- */

void server_count_rest(Server *s, Member *m, int islands) {
    served_rest(s->parts.weights, m->rest.values, 1.0 / islands);
    arriving_forget(&m->rest);
}

double server_end_turns(Server *s, int islands) {
    double norm = sqrt(s->squares);
    for (int i = 0; i < s->members.count; i++) {
        Member *m = s->members.member[i];
        forget_turn(m);
        if (m->state == MEMBER_ENDED && arriving_is_whole(&m->rest, m->ranks)) server_count_rest(s, m, islands);
    }
    return norm;
}
