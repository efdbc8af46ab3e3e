/* server_turns.c - the server's side of outer.stream (fragments.h). It makes the new x of a fragment when all training
 * islands have sent it. Steps that no fragment has sent count when their island ends. See server_state.h. */
#include <math.h>
#include <stdlib.h>

#include "core/error.h"
#include "run/outer/server_state.h"

/* Returns the fragment that has the element at `offset`. */
static int fragment_at(const Server *s, int64_t offset) {
    int f = 0;
    while (f < s->fragments - 1 && offset >= fragment_of(s->elems, s->fragments, f).end) f++;
    return f;
}

/* Returns the buffer of fragment f, or of the remaining steps if f == s->fragments. Returns NULL and refuses the peer
 * if it may not send that now. */
static Arriving *open_part(Server *s, Peer *p, int f, int64_t round) {
    Member   *m = p->member;
    int       is_rest = f == s->fragments, is_next = f >= s->turn && f < s->turn + TURNS_AHEAD;
    Arriving *a = is_rest ? &m->rest : &m->turn[f % TURNS_AHEAD];
    int       is_due = is_rest ? m->state >= MEMBER_WAITS
                               : m->state == MEMBER_TRAINS && round == m->lease.round && is_next;
    if (!s->streams || f > s->fragments || !is_due || (a->said && a->said[p->rank])) {
        server_refuse_peer(s, p, EXIT_PEER, "the island sent fragment %d in round %lld, and it is the turn of %d", f,
                           (long long)round, s->turn);
        return NULL;
    }
    if (!a->said && !arriving_begin(a, fragment_of(s->elems, s->fragments, f), m->ranks)) {
        server_refuse_peer(s, p, EXIT_MEMORY, "the server has no memory for a fragment of one more island");
        return NULL;
    }
    return a;
}

void server_take_part(Server *s, Peer *p, const FrameHeader *h, const void *payload) {
    int       f = h->kind == MESSAGE_DELTA ? s->fragments : fragment_at(s, h->offset);
    Arriving *a = open_part(s, p, f, h->round);
    if (!a) return;
    int64_t end = h->offset + h->elems, most = a->range.end - a->range.first;
    if (end > a->range.end || a->elems + h->elems > most) {
        server_refuse_peer(s, p, EXIT_PEER,
                           "the island sent elements %lld to %lld of the fragment at %lld to %lld, each may come once",
                           (long long)h->offset, (long long)end, (long long)a->range.first, (long long)a->range.end);
        return;
    }
    frame_unpack((FrameType)h->type, a->values + (h->offset - a->range.first), payload, h->elems);
    a->elems += h->elems;
}

static double norm_of(const Arriving *a) {
    Exact squares = {{0}};
    outer_squares(a->values, a->range.end - a->range.first, &squares);
    return sqrt(exact_value(&squares));
}

/* Judges the remaining steps of an island once all have arrived, and applies them if it waits for a round. */
static void take_rest(Server *s, Member *m) {
    char   fault[MEMBER_FAULT_BYTES];
    double norm = m->norm;
    m->norm = norm_of(&m->rest);
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
    Arriving *a = open_part(s, p, turn.fragment, turn.round);
    if (!a) return;
    if (p->rank == 0) a->tokens = turn.tokens;
    int ended = arriving_end(a, p->rank, m->ranks);
    if (ended < 0)
        server_refuse_peer(s, p, EXIT_PEER, "the island sent %lld of the %lld elements of a fragment",
                           (long long)a->elems, (long long)(a->range.end - a->range.first));
    if (ended > 0 && a == &m->rest) take_rest(s, m);
}

/* --- completing a fragment ---------------------------------------------------------------------------------------- */

/* Returns 1 if the island has sent all of the current fragment. It counts even if the island leaves after that. */
static int has_turn(const Server *s, const Member *m) { return members_has_turn(m, s->turn); }
static Arriving *part_of(const Server *s, Member *m) { return &m->turn[s->turn % TURNS_AHEAD]; }

static int is_complete(const Server *s) {
    int whole = 0;
    for (int i = 0; i < s->members.count; i++) {
        const Member *m = s->members.member[i];
        if (m->state == MEMBER_TRAINS && !has_turn(s, m)) return 0;
        whole += has_turn(s, m);
    }
    return whole > 0;
}

static void judge_turn(Server *s) {
    Members *ms = &s->members;
    char     fault[MEMBER_FAULT_BYTES];
    for (int i = 0; i < ms->count; i++)
        if (has_turn(s, ms->member[i])) ms->member[i]->turn_norm = norm_of(part_of(s, ms->member[i]));
    for (int i = 0; i < ms->count; i++)
        if (has_turn(s, ms->member[i]) && !members_judge_turn(ms, ms->member[i], s->turn, fault))
            server_refuse_member(s, ms->member[i], EXIT_NUMERIC, fault);
}

/* Makes the new x of the current fragment. Returns the number of islands in the mean. */
static int step_mean(Server *s) {
    Members      *ms = &s->members;
    const float **delta = xmalloc(sizeof *delta * (size_t)ms->count, "a turn of the islands");
    double       *weight = xmalloc(sizeof *weight * (size_t)ms->count, "a turn of the islands");
    Fragment      f = fragment_of(s->elems, s->fragments, s->turn);
    Step          step = {.rule = STEP_NESTEROV, .learning_rate = s->rule.learning_rate, .momentum = s->rule.momentum};
    float        *mean = NULL;
    int           islands = 0;
    for (int i = 0; i < ms->count; i++) {
        Member         *m = ms->member[i];
        const Arriving *a = part_of(s, m);
        if (!has_turn(s, m)) continue;
        if (!mean) mean = a->values;
        delta[islands] = a->values, weight[islands++] = (double)a->tokens;
        m->turn_squares += m->turn_norm * m->turn_norm;
    }
    outer_mean(mean, delta, weight, islands, f.end - f.first);
    outer_squares(mean, f.end - f.first, &s->squares);
    round_change_begin(&s->change, &s->weights, f);
    server_weights_step(&s->weights, &step, f, mean, NULL);
    round_change_end(&s->change, &s->weights, f, ms->round);
    free(delta);
    free(weight);
    return islands;
}

static void say_turned(Server *s, int islands) {
    char   text[MESSAGE_TEXT];
    Turned turned = {s->members.round, s->turn, islands};
    size_t bytes = turned_write(&turned, text);
    for (int i = 0; i < s->peers.count; i++) {
        Peer *p = s->peers.peer[i];
        if (p->member && has_turn(s, p->member) && !p->is_ending)
            peer_say(p, MESSAGE_TURNED, turned.round, text, bytes);
    }
}

void server_close_turns(Server *s) {
    while (s->turn < s->fragments && is_complete(s)) {
        judge_turn(s);
        if (!is_complete(s)) return;
        say_turned(s, step_mean(s));
        for (int i = 0; i < s->members.count; i++) arriving_forget(part_of(s, s->members.member[i]));
        s->turn++;
    }
}

/* --- steps that no fragment has sent ------------------------------------------------------------------------------ */

void server_count_rest(Server *s, Member *m, int islands) {
    if (s->change.type == FRAME_F32) server_weights_rest(&s->weights, m->rest.values, 1.0 / islands);
    else round_change_owe(&s->change, m->rest.values, 1.0 / islands);
    arriving_forget(&m->rest);
    if (!members_here(&s->members)) round_change_settle(&s->change, &s->weights);
}

double server_end_turns(Server *s, int islands) {
    double norm = sqrt(exact_value(&s->squares));
    int    is_last = server_step(s) + s->every >= s->parts.config->run.steps, follow = 0;
    for (int i = 0; i < s->members.count; i++) {
        Member *m = s->members.member[i];
        int     leaves = arriving_is_whole(&m->rest, m->ranks);
        for (int k = 0; k < TURNS_AHEAD; k++) arriving_forget(&m->turn[k]);
        if (m->state != MEMBER_ENDED) continue;
        if (leaves) server_count_rest(s, m, islands);
        else follow++;
    }
    if (is_last || !follow) round_change_settle(&s->change, &s->weights); /* islands that join after this fetch all of
                                                                           * x */
    return norm;
}

int server_has_change(const Server *s, const FrameHeader *h) {
    if (s->streams && fragment_at(s, h->offset + h->elems - 1) >= s->turn) return 0;
    return h->round == s->change.round && round_change_frame(&s->change, h->offset, h->elems);
}
