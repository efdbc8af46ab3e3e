/* island_turns.c - fragments of an island's weights that travel while it trains (outer.stream): see fragments.h,
 * round_copy.h. Between two turns the link is the pump's (link_pump.h). */
#include <stdlib.h>

#include "core/clock.h"
#include "run/outer/island_state.h"

static int64_t largest(int64_t elems, int count) {
    int64_t most = 0;
    for (int f = 0; f < count; f++) {
        Fragment of = fragment_of(elems, count, f);
        if (of.end - of.first > most) most = of.end - of.first;
    }
    return most;
}

/* A rank alone takes all of a fragment. */
size_t turns_bytes(const Config *c, const Layout *layout) {
    int count = fragments_count(layout->elems, c->outer.every);
    return c->outer.stream ? sizeof(float) * (size_t)link_store_elems(largest(layout->elems, count), 1) : 0;
}

void turns_create(Island *s) {
    const Config *c = s->parts.config;
    IslandTurns *t = &s->turns;
    if (!c->outer.stream) return;
    t->is_on = 1;
    t->count = fragments_count(s->link.elems, c->outer.every);
    int64_t elems = link_store_elems(largest(s->link.elems, t->count), s->link.ranks);
    t->store = (float *)malloc(sizeof *t->store * (size_t)elems);
    if (!t->store) fail(EXIT_MEMORY, "no memory for a fragment of the weights (outer.stream)");
    pump_create(&t->pump, &s->link);
}

void turns_destroy(Island *s) {
    if (!s->turns.is_on) return;
    pump_destroy(&s->turns.pump);
    free(s->turns.store);
}

void turns_halt(Island *s) {
    if (s->turns.is_on) pump_halt(&s->turns.pump);
}

void turns_begin_round(Island *s, int is_whole) {
    IslandTurns *t = &s->turns;
    t->next = 0, t->waited_ms = 0.0;
    island_count_bytes(s, t->before);
    if (!is_whole) return;
    t->is_under_way = t->has_rest = 0;
    t->tokens = 0;
    for (int f = 0; f < t->count; f++) t->sent_at[f] = 0;
}

/* --- a turn ------------------------------------------------------------------------------------------------------- */

/* Each piece of the new x has come to one rank, and goes from there to all. */
static void take_back(Island *s) {
    Link  *l = &s->link;
    float *own = s->turns.store;
    for (int64_t piece = 0; piece < l->fetch.pieces; piece++) {
        int64_t elems = link_piece_elems(l, piece);
        float  *x = link_owns(l, piece) ? own : (float *)(void *)l->payload;
        comm_broadcast(s->parts.comm, x, sizeof *x * (size_t)elems, (int)(piece % l->ranks));
        round_copy_return(&s->copy, l->fetch.range.first + piece * MESSAGE_ELEMS, x, elems);
        if (x == own) own += MESSAGE_ELEMS;
    }
    round_copy_show(&s->copy);
    l->turn = (LinkTurn){0};
    s->turns.is_under_way = 0;
}

Awaited turns_finish(Island *s) {
    double began_ms = clock_ms();
    if (!s->turns.is_under_way) return MET;
    Awaited now = island_await(s, link_has_x, 1);
    if (now == MET) take_back(s);
    s->turns.waited_ms += clock_ms() - began_ms;
    return now;
}

/* tokens: of this round so far. */
static void send_next(Island *s, int64_t tokens) {
    IslandTurns *t = &s->turns;
    double        began_ms = clock_ms();
    int           f = t->next++;
    Fragment      range = fragment_of(s->link.elems, t->count, f);
    Turn          turn = {s->link.open.round, f, t->tokens + tokens - t->sent_at[f]};
    t->sent_at[f] = t->tokens + tokens;
    round_copy_leave(&s->copy, range);
    link_send_fragment(&s->link, turn, range, t->store);
    t->is_under_way = 1;
    pump_begin(&t->pump);
    t->waited_ms += clock_ms() - began_ms;
}

int island_has_x(Island *s) {
    return s->turns.is_on && s->turns.is_under_way && !pump_is_on(&s->turns.pump) && link_has_x(&s->link);
}

/* With parallel.deterministic a fragment is taken back at the next turn, not when it happens to be there. */
IslandState island_turn(Island *s, IslandWork work, int all_have_x, int *is_anew) {
    IslandTurns *t = &s->turns;
    const Config *c = s->parts.config;
    const Open   *lease = &s->link.open;
    int64_t       steps = work.tokens / c->batch.global_tokens;
    Awaited       now = MET;
    *is_anew = 0;
    if (!t->is_on) return ISLAND_TRAINS;
    t->has_rest = 1;
    if (all_have_x && !c->parallel.deterministic) now = turns_finish(s);
    while (now == MET && t->next < t->count && steps >= fragment_step(lease->steps, t->count, t->next)) {
        now = turns_finish(s);
        if (now == MET) send_next(s, work.tokens);
    }
    if (now == MET) return ISLAND_TRAINS;
    if (now == STOPPED) return ISLAND_STOPPED;
    *is_anew = 1;
    return island_join(s, work.updates);
}

/* --- the rest ----------------------------------------------------------------------------------------------------- */

/* What is under way goes first: the server reads in order. The number of tokens is not looked at. */
Awaited turns_send_rest(Island *s) {
    IslandTurns *t = &s->turns;
    Awaited       now = island_await(s, island_has_sent, 0);
    if (now != MET || !t->has_rest) return now;
    t->has_rest = 0;
    round_copy_subtract(&s->copy);
    link_send_rest(&s->link, (Turn){s->link.open.round, t->count, 1});
    return island_await(s, island_has_sent, 0);
}
