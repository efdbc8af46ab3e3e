/* island_turns.c - sends and takes back fragments of an island's weights while it trains (outer.stream): see
 * fragments.h, round_copy.h. Between two steps that send or take one, the pump has the link (link_pump.h). */
#include <stdlib.h>

#include "core/thread.h"
#include "core/error.h"
#include "run/outer/island_state.h"
#include "run/outer/round_change.h"

static int64_t largest(int64_t elems, int count) {
    int64_t most = 0;
    for (int f = 0; f < count; f++) {
        Fragment of = fragment_of(elems, count, f);
        if (of.end - of.first > most) most = of.end - of.first;
    }
    return most;
}

/* Returns the bytes of host memory for one rank. On a job of one rank, that rank fetches all chunks of a fragment. */
size_t turns_bytes(const Config *c, const Layout *layout) {
    if (!c->outer.stream) return 0;
    int64_t most = largest(layout->elems, fragments_count(layout->elems, c->outer.every));
    int64_t was = round_change_type(c) == FRAME_F32 ? 0 : most;
    return LINK_TURNS * sizeof(float) * (size_t)(link_store_elems(most, 1) + was);
}

static float *floats(int64_t elems) {
    return xmalloc(sizeof(float) * (size_t)elems, "a fragment of the weights (outer.stream)");
}

void turns_create(Island *s) {
    const Config *c = s->parts.config;
    IslandTurns *t = &s->turns;
    if (!c->outer.stream) return;
    t->is_on = 1;
    t->count = fragments_count(s->link->elems, c->outer.every);
    int64_t most = largest(s->link->elems, t->count);
    for (int i = 0; i < LINK_TURNS; i++) {
        t->store[i] = floats(link_store_elems(most, s->link->ranks));
        t->was[i] = s->copy.type == FRAME_F32 ? NULL : floats(most);
    }
    pump_create(&t->pump, s->link);
}

void turns_destroy(Island *s) {
    if (!s->turns.is_on) return;
    pump_destroy(&s->turns.pump);
    for (int i = 0; i < LINK_TURNS; i++) free(s->turns.store[i]), free(s->turns.was[i]);
}

void turns_halt(Island *s) {
    if (s->turns.is_on) pump_halt(&s->turns.pump);
}

void turns_begin_round(Island *s, int is_whole) {
    IslandTurns *t = &s->turns;
    t->next = 0, t->waited_ms = 0.0;
    island_count_bytes(s, t->before);
    if (!is_whole) return;
    t->has_rest = 0;
    t->tokens = 0;
    for (int f = 0; f < t->count; f++) t->sent_at[f] = 0;
}

/* --- sending and taking back fragments ---------------------------------------------------------------------------- */

/* Returns the buffer for the old x of a fragment under way, or NULL if the server does not send its new x as a
 * change. */
static float *was_of(const Island *s, int fragment) {
    return link_takes_changes(s->link) ? s->turns.was[fragment % LINK_TURNS] : NULL;
}

/* Takes the new x of the oldest fragment, or its change. Each chunk is at one rank, which broadcasts it to all. */
static void take_back(Island *s) {
    Link           *l = s->link;
    const LinkTurn *t = &l->turn[0];
    float          *own = t->store, *was = was_of(s, t->turn.fragment);
    for (int64_t n = 0; t->range.first + n * MESSAGE_ELEMS < t->range.end; n++) {
        Fragment piece = link_piece(t->range, n);
        int64_t  elems = piece.end - piece.first;
        float   *x = link_owns(l, n) ? own : (float *)(void *)l->payload;
        comm_broadcast(s->parts.comm, x, sizeof *x * (size_t)elems, (int)(n % l->ranks));
        round_copy_return(&s->copy, piece.first, x, elems, was ? was + n * MESSAGE_ELEMS : NULL);
        if (x == own) own += MESSAGE_ELEMS;
    }
    round_copy_show(&s->copy);
    link_end_turn(l);
}

Awaited turns_finish(Island *s) {
    Awaited now = MET;
    turns_halt(s);
    while (s->link->turns > 0 && now == MET) {
        now = island_await(s, link_has_x, 1);
        if (now == MET) take_back(s);
    }
    return now;
}

static int is_due(const Island *s, int64_t steps) {
    const IslandTurns *t = &s->turns;
    return t->next < t->count && steps >= fragment_step(s->link->open.steps, t->count, t->next);
}

/* Sends the next fragment. If FRAGMENTS_AHEAD are under way, takes the oldest back first. tokens: of this round. */
static Awaited send_next(Island *s, int64_t tokens) {
    IslandTurns *t = &s->turns;
    int          f = t->next;
    Fragment     range = fragment_of(s->link->elems, t->count, f);
    Turn         turn = {s->link->open.round, f, t->tokens + tokens - t->sent_at[f]};
    Awaited      now = island_await(s, link_may_turn, 1);
    if (now != MET) return now;
    if (s->link->turns == LINK_TURNS) take_back(s);
    t->next++;
    t->sent_at[f] = t->tokens + tokens;
    round_copy_leave(&s->copy, range, was_of(s, f));
    link_send_fragment(s->link, turn, range, t->store[f % LINK_TURNS]);
    return MET;
}

int island_has_x(Island *s) { return s->turns.is_on && s->link->turns > 0 && pump_has_x(&s->turns.pump); }

/* With parallel.deterministic a fragment is taken back only at a send, which is at the same step in every run. */
IslandState island_turn(Island *s, IslandWork work, int all_have_x, int *is_anew) {
    IslandTurns *t = &s->turns;
    double       began_ms = clock_ms();
    int64_t      steps = work.tokens / s->parts.config->batch.global_tokens;
    int          is_early = all_have_x && !s->parts.config->parallel.deterministic;
    Awaited      now = MET;
    *is_anew = 0;
    if (!t->is_on) return ISLAND_TRAINS;
    t->has_rest = 1;
    if (!is_early && !is_due(s, steps)) return ISLAND_TRAINS;
    turns_halt(s);
    if (is_early) take_back(s);
    while (now == MET && is_due(s, steps)) now = send_next(s, work.tokens);
    if (now == MET && s->link->turns > 0) pump_begin(&t->pump);
    t->waited_ms += clock_ms() - began_ms;
    if (now == MET) return ISLAND_TRAINS;
    if (now == STOPPED) return ISLAND_STOPPED;
    *is_anew = 1;
    return island_join(s, work.updates);
}

/* --- steps that no fragment has sent ------------------------------------------------------------------------------ */

/* Sends the remaining steps after everything under way: the server reads in order. It ignores the tokens of this
 * TURN. */
Awaited turns_send_rest(Island *s) {
    IslandTurns *t = &s->turns;
    Awaited       now = island_await(s, island_has_sent, 0);
    if (now != MET || !t->has_rest) return now;
    t->has_rest = 0;
    round_copy_subtract(&s->copy);
    link_send_rest(s->link, (Turn){s->link->open.round, t->count, 1});
    return island_await(s, island_has_sent, 0);
}
