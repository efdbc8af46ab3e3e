/* island.c - see island.h. Each rank has its own Links (island_link.h). Here the ranks agree on the state of theirs. */
#include "run/outer/island_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/thread.h"
#include "core/error.h"
#include "run/guard/signals.h"
#include "run/outer/hello_data.h"
#include "run/outer/round_change.h"
#include "run/outer/server_list.h"

static const double LOOK_MS = 50.0, GOODBYE_MS = 10e3;

/* --- creating ----------------------------------------------------------------------------------------------------- */

static RoundUse use_of(const Config *c) { return c->outer.stream ? ROUND_STREAMS : ROUND_WHOLE; }

size_t island_bytes(const Config *c, const Layout *layout) {
    size_t copy = round_copy_bytes(layout, (int)c->parallel.zero_stage, round_change_type(c), use_of(c));
    size_t link = sizeof(float) * MESSAGE_ELEMS + FRAME_PAYLOAD_LIMIT + CHANNEL_BYTES;
    return copy + turns_bytes(c, layout) + (size_t)outer_servers(c->outer.server) * link;
}

static int is_first(const Island *s) { return comm_rank(s->parts.comm) == 0; }

/* Collective. Ends the job if a rank has met a fault that waiting cannot cure. */
static void end_where_refused(Island *s, int code, const char *why) {
    char    fault[MANIFEST_FAULT_BYTES] = "";
    int64_t worst = code;
    if (code) snprintf(fault, sizeof fault, "%s", why);
    comm_all_reduce_i64(s->parts.comm, &worst, 1, COMM_MAX);
    if (any_fault(s->parts.comm, fault)) fail((int)worst, "%s", fault);
}

/* Collective. Ends the job if a server has refused a rank. */
static void end_where_broken(Island *s) {
    const Link *broken = links_broken(s->link, s->links);
    end_where_refused(s, broken ? broken->refuse.code : 0, broken ? broken->fault : "");
}

static void hang_up(Island *s) {
    for (int i = 0; i < s->links; i++) link_take(&s->link[i], NULL);
}

Island *island_create(IslandParts parts) {
    Island *s = xcalloc(1, sizeof *s, "an island");
    char    fault[KEY_FAULT_BYTES] = "";
    s->parts = parts;
    int code = key_read(parts.config->outer.key, &s->key, fault);
    end_where_refused(s, code, fault);
    s->copy = round_copy_create(parts.optimizer, parts.stream, round_change_type(parts.config), use_of(parts.config));
    s->links = outer_servers(parts.config->outer.server);
    s->link = xcalloc((size_t)s->links, sizeof *s->link, "the connections to the servers");
    for (int i = 0; i < s->links; i++)
        s->link[i] = link_create(&s->copy, parts.optimizer->shards->layout.elems, comm_rank(parts.comm),
                                 comm_size(parts.comm), parts.config->outer.patience_seconds, i, s->links);
    turns_create(s);
    return s;
}

void island_destroy(Island *s) {
    if (!s) return;
    turns_destroy(s);
    for (int i = 0; i < s->links; i++) link_destroy(&s->link[i]);
    free(s->link);
    round_copy_destroy(&s->copy);
    free(s);
}

const Open           *island_round(const Island *s) { return &s->link->open; }
const IslandExchange *island_ended(const Island *s) { return &s->ended; }
int                   island_number(const Island *s) { return s->link->welcome.number; }
int                   island_fragments(const Island *s) { return s->turns.count; }
const char           *island_lost(const Island *s) { return s->lost; }
int64_t               island_peer_updates(const Island *s) { return s->peer_updates; }

/* --- waiting, all ranks together ---------------------------------------------------------------------------------- */

static void tick(const Island *s) { watchdog_tick(s->parts.watchdog, "the wait for the server"); }

Awaited island_await(Island *s, int (*is_ready)(const Link *), int may_stop) {
    if (may_stop) requests_begin(s->parts.requests);
    for (;;) {
        links_wait(s->link, s->links, is_ready, LOOK_MS);
        tick(s);
        const Link *broken = links_broken(s->link, s->links);
        int         code = broken ? broken->refuse.code : 0;
        int64_t     all[3] = {links_are_ready(s->link, s->links, is_ready), !broken, -code};
        comm_all_reduce_i64(s->parts.comm, all, 3, COMM_MIN);
        if (all[2] < 0) end_where_refused(s, code, broken ? broken->fault : "");
        if (!all[1]) return BROKEN;
        if (all[0]) return MET;
        if (may_stop && requests_agree(s->parts.requests)) return STOPPED;
    }
}
static Awaited await(Island *s, int (*is_ready)(const Link *)) { return island_await(s, is_ready, 1); }

static int is_welcome(const Link *l) { return l->has_welcome; }
static int is_opened(const Link *l) {
    return l->rank > 0 || l->part > 0 || l->has_open || (l->has_closed && l->closed.is_done);
}
static int is_closed(const Link *l) { return l->part > 0 || (l->has_closed && is_opened(l)); }
static int has_turn(const Link *l) { return l->fetch.turn < 0 || l->fetch.has_piece || !link_owns(l, l->fetch.turn); }
int        island_has_sent(const Link *l) { return !l->send.is_on && channel_unsent(l->server) == 0; }
static int has_answer(const Link *l) { return l->answers == l->pings; }

/* --- connecting --------------------------------------------------------------------------------------------------- */

static int between_tries(void *island) {
    tick((const Island *)island);
    return signals_stop();
}

/* Collective. Tries once on each rank to connect to all servers. Returns 1 if all ranks are connected. */
static int try_to_connect(Island *s) {
    ChannelFault fault = {0};
    int64_t      connected = 1;
    hang_up(s);
    for (int i = 0; i < s->links && connected; i++) {
        char address[OUTER_ADDRESS_BYTES];
        outer_server(s->parts.config->outer.server, i, address);
        link_take(&s->link[i], channel_connect(address, &s->key, 0.0, between_tries, s, &fault));
        connected = s->link[i].server != NULL;
    }
    end_where_refused(s, connected || fault.code == EXIT_PEER ? 0 : fault.code, fault.text);
    if (!connected) snprintf(s->link->fault, sizeof s->link->fault, "%s", fault.text);
    comm_all_reduce_i64(s->parts.comm, &connected, 1, COMM_MIN);
    return (int)connected;
}

/* Collective. Copies the fault of the first rank that has one to all ranks. */
static void share_fault(Island *s) {
    const Link *broken = links_broken(s->link, s->links);
    snprintf(s->lost, sizeof s->lost, "%s", broken && broken->fault[0] ? broken->fault : s->link->fault);
    any_fault(s->parts.comm, s->lost);
}

/* Collective. Waits for CHANNEL_RETRY_MS. Returns STOPPED if a rank is requested to stop, otherwise MET. */
static Awaited pause_a_second(Island *s) {
    double until_ms = clock_ms() + CHANNEL_RETRY_MS;
    requests_begin(s->parts.requests);
    for (int64_t left = 1; left;) {
        if (requests_agree(s->parts.requests)) return STOPPED;
        usleep((useconds_t)(LOOK_MS * 1e3));
        tick(s);
        left = clock_ms() < until_ms;
        comm_all_reduce_i64(s->parts.comm, &left, 1, COMM_MAX);
    }
    return MET;
}

static int is_past(Island *s, double until_ms) {
    int64_t past = clock_ms() > until_ms;
    comm_all_reduce_i64(s->parts.comm, &past, 1, COMM_MAX);
    return (int)past;
}

/* Collective. Connects all ranks. Returns MET, STOPPED, or BROKEN if no server answers before until_ms. */
static Awaited connect_all(Island *s, double until_ms) {
    for (int tries = 0; !try_to_connect(s); tries++) {
        share_fault(s);
        if (is_past(s, until_ms)) return BROKEN;
        if (!tries)
            warn("%s; this island tries again for %g s (outer.patience_seconds)", s->lost,
                 s->parts.config->outer.patience_seconds);
        if (pause_a_second(s) == STOPPED) return STOPPED;
    }
    return MET;
}

/* --- joining ------------------------------------------------------------------------------------------------------ */

static void say_hello(Island *s) {
    const Dataset *train = s->parts.train;
    cJSON         *config = config_to_json(s->parts.config);
    HelloData     *data = hello_data(train);
    size_t         bytes = 0;
    Hello          hello = {.protocol = CHANNEL_PROTOCOL,
                            .rank = s->link->rank,
                            .ranks = s->link->ranks,
                            .config = config,
                            .data = data,
                            .data_files = train->shards,
                            .elems = s->link->elems,
                            .samples = train->samples,
                            .updates = s->updates,
                            .wants_moments = island_wants_moments(s)};
    snprintf(hello.island, sizeof hello.island, "%s", s->parts.id);
    char *text = hello_write(&hello, &bytes);
    if (!text)
        fail(EXIT_CONFIG, "config and names of data files are too long for outer.server: %zu bytes, at most %d", bytes,
             MESSAGE_JSON_LIMIT);
    for (int i = 0; i < s->links; i++) link_say(&s->link[i], MESSAGE_HELLO, 0, text, bytes);
    free(text);
    free(data);
    cJSON_Delete(config);
}

/* Collective. Each chunk arrives at one rank, which broadcasts it to all. */
static Awaited fetch_part(Island *s, Link *l) {
    for (int64_t piece = 0; piece < l->fetch.pieces; piece++) {
        l->fetch.turn = piece;
        Awaited now = await(s, has_turn);
        if (now != MET) return now;
        int64_t elems = link_piece_elems(l, piece);
        int     owns = link_owns(l, piece);
        float  *x = owns ? l->fetch.piece : (float *)(void *)l->payload;
        comm_broadcast(s->parts.comm, x, sizeof *x * (size_t)elems, (int)(piece % l->ranks));
        if (l->fetch.get == MESSAGE_GET_CHANGE) round_copy_take_change(&s->copy, link_piece_begin(l, piece), x, elems);
        else round_copy_take(&s->copy, link_piece_begin(l, piece), x, elems);
        if (owns) l->fetch.has_piece = 0;
    }
    l->fetch.turn = -1;
    return MET;
}

Awaited island_fetch(Island *s, MessageKind get, int64_t round) {
    Awaited now = MET;
    for (int i = 0; i < s->links; i++) {
        int has_it = get != MESSAGE_GET_CHANGE || s->link[i].welcome.changes;
        link_fetch(&s->link[i], has_it ? get : MESSAGE_GET, round);
    }
    round_copy_begin(&s->copy);
    for (int i = 0; i < s->links && now == MET; i++) now = fetch_part(s, &s->link[i]);
    return now;
}

/* Collective. Exchanges moments before the new weights, while the memory of their copy is free. */
static Awaited exchange_moments(Island *s) {
    switch (s->link->open.moments) {
        case OPEN_GIVE: return island_give_moments(s);
        case OPEN_TAKE: return island_take_moments(s);
        default:        return MET;
    }
}

/* Collective, once rank 0 has the next OPEN or knows that the run is over. Shares it with all ranks, and loads the
 * weights. An island that streams has them already, except in its first round and at the end. */
static Awaited begin_round(Island *s, int is_first_round) {
    Link   *l = s->link;
    int64_t is_over = l->has_closed && l->closed.is_done;
    comm_broadcast(s->parts.comm, &is_over, sizeof is_over, 0);
    comm_broadcast(s->parts.comm, &l->open, sizeof l->open, 0);
    comm_broadcast(s->parts.comm, &l->closed, sizeof l->closed, 0);
    int     is_whole = is_over || is_first_round || !s->turns.is_on;
    Awaited now = is_over ? MET : exchange_moments(s);
    int     has_last = !is_first_round && s->copy.type != FRAME_F32 && !s->turns.is_on; /* it holds the last x */
    if (now == MET && is_whole)
        now = island_fetch(s, has_last ? MESSAGE_GET_CHANGE : MESSAGE_GET, is_over ? l->closed.round : l->open.round);
    if (now == MET && is_whole) round_copy_publish(&s->copy);
    if (s->turns.is_on && now == MET) turns_begin_round(s, is_whole);
    s->is_over = now == MET && is_over;
    s->has_lease = now == MET && !is_over;
    s->used = 0;
    return now;
}
static IslandState state_of(const Island *s) { return s->is_over ? ISLAND_DONE : ISLAND_TRAINS; }

/* Breaks the link if the server has another model, or not the part that its place in outer.server means. */
static void check_welcome(Link *l) {
    const Welcome *w = &l->welcome;
    if (w->elems == l->elems && w->parts == l->parts && w->part == l->part) return;
    l->refuse.code = EXIT_CONFIG;
    l->is_broken = 1;
    if (w->elems != l->elems)
        snprintf(l->fault, sizeof l->fault, "%s has a model of %lld parameters; this one has %lld",
                 channel_peer(l->server), (long long)w->elems, (long long)l->elems);
    else
        snprintf(l->fault, sizeof l->fault,
                 "%s has part %d of %d, and stands in place %d of the %d of outer.server: name all servers, in the "
                 "order of their parts",
                 channel_peer(l->server), w->part, w->parts, l->part, l->parts);
}

/* Collective, after connecting. Sends HELLO and waits for the first lease and weights. */
static Awaited introduce(Island *s) {
    say_hello(s);
    Awaited now = await(s, is_welcome);
    if (now != MET) return now;
    for (int i = 0; i < s->links; i++) check_welcome(&s->link[i]);
    end_where_broken(s);
    do {
        now = await(s, is_opened);
        if (now == MET) now = begin_round(s, 1);
    } while (now == LATER);
    return now;
}

IslandState island_join(Island *s, int64_t updates) {
    double patience_ms = s->parts.config->outer.patience_seconds * 1e3, until_ms = clock_ms() + patience_ms;
    turns_halt(s);
    s->has_lease = 0;
    s->updates = updates, s->peer_updates = 0;
    end_where_broken(s);
    share_fault(s);
    if (s->lost[0]) warn("%s; this island joins again, and trains the round anew", s->lost);
    hang_up(s);
    round_copy_forget(&s->copy);
    for (;;) {
        Awaited now = connect_all(s, until_ms);
        if (now == BROKEN) return ISLAND_LOST;
        if (now == MET) now = introduce(s);
        if (now == MET) return state_of(s);
        if (now == STOPPED) return ISLAND_STOPPED;
        share_fault(s);
        warn("%s; this island joins again", s->lost);
        if (s->link->has_welcome) until_ms = clock_ms() + patience_ms;
        if (is_past(s, until_ms)) return ISLAND_LOST;
        if (pause_a_second(s) == STOPPED) return ISLAND_STOPPED;
    }
}

/* --- the end of a round ------------------------------------------------------------------------------------------- */

int island_keep(Island *s) {
    if (s->turns.is_on && pump_is_on(&s->turns.pump)) return 0;
    for (int i = 0; i < s->links; i++) link_keep(&s->link[i]);
    return links_broken(s->link, s->links) != NULL;
}

/* Collective. Begins to send the deltas of the lease, then END. With outer.stream the END alone. */
static void begin_to_send(Island *s, IslandWork work) {
    const Open *lease = &s->link->open;
    End         end = {lease->round, work.samples, work.tokens, 0.0, work.loss, lease->lease};
    s->has_lease = 0;
    s->used = work.samples, s->updates = work.updates, s->peer_updates = 0;
    s->link->has_open = s->link->has_closed = 0;
    if (s->turns.is_on) {
        s->turns.tokens += work.tokens;
        link_send_end(s->link, end);
        return;
    }
    int of_gradients = s->parts.config->outer.send == SEND_GRADIENTS;
    end.norm = of_gradients ? round_copy_gradients(&s->copy) : round_copy_subtract(&s->copy);
    for (int i = 0; i < s->links; i++) link_send(&s->link[i], end);
}

void island_count_bytes(Island *s, int64_t bytes[2]) {
    bytes[0] = bytes[1] = 0;
    for (int i = 0; i < s->links; i++) {
        const Channel *server = s->link[i].server;
        if (!server) continue;
        bytes[0] += (int64_t)channel_sent_bytes(server);
        bytes[1] += (int64_t)channel_received_bytes(server);
    }
    comm_all_reduce_i64(s->parts.comm, bytes, 2, COMM_SUM);
}

/* Returns 1 if no round follows. outer.every divides run.steps. */
static int is_last_round(const Island *s) {
    const Config *c = s->parts.config;
    return s->link->open.step + c->outer.every >= c->run.steps;
}

/* Collective. Takes back all fragments under way. In the last round, sends the steps that no fragment has sent. */
static Awaited end_turns(Island *s) {
    Awaited now = turns_finish(s);
    return now == MET && is_last_round(s) ? turns_send_rest(s) : now;
}

IslandState island_exchange(Island *s, IslandWork work, int *ended) {
    double  began_ms = clock_ms() - s->turns.waited_ms;
    int64_t before[2], after[2];
    Awaited now = MET;
    *ended = 0;
    island_count_bytes(s, before);
    if (s->turns.is_on) memcpy(before, s->turns.before, sizeof before), now = end_turns(s);
    if (now == MET) begin_to_send(s, work), now = await(s, is_closed);
    if (now == MET) now = begin_round(s, 0);
    if (now == STOPPED) return ISLAND_STOPPED;
    if (now == MET) {
        island_count_bytes(s, after);
        s->ended = (IslandExchange){s->link->closed, clock_ms() - began_ms, after[0] - before[0],
                                    after[1] - before[1]};
        *ended = 1;
        return state_of(s);
    }
    return island_join(s, work.updates);
}

/* --- leaving ------------------------------------------------------------------------------------------------------ */

/* Sends BYE and waits for the server to close the connection, which it does when it has read everything. */
static void say_goodbye(Island *s) {
    Link       *l = s->link;
    char        text[MESSAGE_TEXT];
    Bye         bye = {s->used};
    double      until_ms = clock_ms() + GOODBYE_MS;
    FrameHeader h;
    const void *payload;
    link_say(l, MESSAGE_BYE, l->open.round, text, bye_write(&bye, text));
    if (l->is_broken) return;
    channel_end(l->server);
    while (clock_ms() < until_ms && channel_next(l->server, &h, &payload) >= 0) {
        channel_wait(&l->server, 1, -1, LOOK_MS);
        tick(s);
    }
}

/* Rank 0 sends BYE after the answers to all PINGs: the server answers in order, so it has read every rank's END. */
void island_leave(Island *s, IslandWork work) {
    turns_halt(s);
    for (int i = 0; i < s->links; i++) link_give_up(&s->link[i]); /* the island may be stopped while x arrives */
    int64_t broken = links_broken(s->link, s->links) != NULL;
    comm_all_reduce_i64(s->parts.comm, &broken, 1, COMM_MAX);
    if (!broken && s->turns.is_on) broken = turns_send_rest(s) != MET;
    if (!broken && s->has_lease && work.samples > 0) begin_to_send(s, work);
    if (!broken && island_await(s, island_has_sent, 0) == MET) {
        for (int i = 0; i < s->links; i++) link_ping(&s->link[i]);
        island_await(s, has_answer, 0);
        if (is_first(s) && !s->link->is_broken) say_goodbye(s);
        comm_barrier(s->parts.comm);
    }
    hang_up(s);
}
