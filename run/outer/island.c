/* island.c - joins a server, exchanges weights with it and leaves; see island.h. Each rank has its own connections to
 * the servers (island_link.h). Functions of this file let the ranks agree on the state of these connections. */
#include "run/outer/island.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/thread.h"
#include "core/error.h"
#include "run/guard/requests.h"
#include "run/outer/island_link.h"
#include "run/outer/rule.h"

static const double LOOK_MS = 50.0, GOODBYE_MS = 10e3;

struct Island {
    IslandParts    parts;
    Key            key;                /* the shared key, from outer.key */
    Link          *link;               /* [links] one connection to each server; the first server leads the others;
                                        * owned */
    int            links;              /* number of connections, one to each server */
    /* copies of the weights at the start of the round, and the deltas (weight changes) that this rank sends */
    RoundCopy      copy;
    int            has_lease, is_over; /* has_lease: 1 while this job has samples to train on, whose deltas (weight
                                        * changes) are not sent yet. is_over: 1 if the server has no more rounds */
    int64_t        used;               /* number of samples of this round that were reported to the server as trained
                                        * on */
    IslandExchange ended;              /* numbers of the last completed round, for the logs */
    char           lost[MANIFEST_FAULT_BYTES]; /* why no server answers; island_lost() returns it */
};

typedef enum {
    MET,
    STOPPED,                           /* a rank received a request to stop */
    BROKEN                             /* the connection of a rank to a server is broken */
} Awaited;

/* --- creating ----------------------------------------------------------------------------------------------------- */

size_t island_bytes(const Config *c, const Layout *layout) {
    size_t copy = round_copy_bytes(layout, (int)c->parallel.zero_stage, round_change_type(c));
    size_t link = sizeof(float) * MESSAGE_ELEMS + FRAME_PAYLOAD_LIMIT + CHANNEL_BYTES;
    return copy + (size_t)outer_servers(c->outer.server) * link;
}

/* Collective. Ends the job if any rank has a fault that waiting cannot repair. code: exit code of this rank's fault; 0:
 * no fault. */
static void end_where_refused(Island *s, int code, const char *why) {
    char    fault[MANIFEST_FAULT_BYTES] = "";
    int64_t worst = code;
    if (code) snprintf(fault, sizeof fault, "%s", why);
    comm_all_reduce_i64(s->parts.comm, &worst, 1, COMM_MAX);
    if (comm_any_fault(s->parts.comm, fault)) fail((int)worst, "%s", fault);
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
    s->copy = round_copy_create(parts.optimizer, parts.stream, round_change_type(parts.config));
    s->links = outer_servers(parts.config->outer.server);
    s->link = xcalloc((size_t)s->links, sizeof *s->link, "the connections to the servers");
    for (int i = 0; i < s->links; i++)
        s->link[i] = link_create(&s->copy, parts.optimizer->shards->layout.elems, comm_rank(parts.comm),
                                 comm_size(parts.comm), parts.config->outer.patience_seconds, i, s->links);
    return s;
}

void island_destroy(Island *s) {
    if (!s) return;
    for (int i = 0; i < s->links; i++) link_destroy(&s->link[i]);
    free(s->link);
    round_copy_destroy(&s->copy);
    free(s);
}

const Open           *island_round(const Island *s) { return &s->link->open; }
const IslandExchange *island_ended(const Island *s) { return &s->ended; }
int                   island_number(const Island *s) { return s->link->welcome.number; }
const char           *island_lost(const Island *s) { return s->lost; }

/* --- waiting, all ranks together ---------------------------------------------------------------------------------- */

static void tick(const Island *s) { watchdog_tick(s->parts.watchdog, "the wait for the server"); }

/* Collective. Waits for an event on every connection of every rank, or until one breaks. With may_stop, also until a
 * rank receives a request to stop. Ends the job if a server has refused a rank. */
static Awaited await(Island *s, LinkEvent event, int may_stop) {
    if (may_stop) requests_begin(s->parts.requests);
    for (;;) {
        links_wait(s->link, s->links, event, LOOK_MS);
        tick(s);
        const Link *broken = links_broken(s->link, s->links);
        int64_t     all[3] = {links_have(s->link, s->links, event), !broken, broken ? -broken->refuse.code : 0};
        comm_all_reduce_i64(s->parts.comm, all, 3, COMM_MIN);
        if (all[2] < 0) end_where_broken(s);
        if (!all[1]) return BROKEN;
        if (all[0]) return MET;
        if (may_stop && requests_agree(s->parts.requests)) return STOPPED;
    }
}

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

/* Collective. Writes to s->lost of every rank why a connection to a server is broken. The first rank with a fault
 * decides. */
static void share_fault(Island *s) {
    const Link *broken = links_broken(s->link, s->links);
    snprintf(s->lost, sizeof s->lost, "%s", broken && broken->fault[0] ? broken->fault : s->link->fault);
    comm_any_fault(s->parts.comm, s->lost);
}

/* Collective. Waits for CHANNEL_RETRY_MS. Returns STOPPED if a rank receives a request to stop, otherwise MET. */
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

/* --- joining ------------------------------------------------------------------------------------------------------ */

/* Collective. Fetches all parts of the weights x into s->copy. Each server has one part. Each chunk of it arrives at
 * one rank, which broadcasts it to all. get: MESSAGE_GET requests the weights,
 * MESSAGE_GET_CHANGE only their change in the last round. Servers that keep no changes get MESSAGE_GET. */
static Awaited fetch(Island *s, MessageKind get, int64_t round) {
    for (int i = 0; i < s->links; i++) link_fetch(&s->link[i], s->link[i].welcome.changes ? get : MESSAGE_GET, round);
    round_copy_begin(&s->copy);
    for (int i = 0; i < s->links; i++) {
        Link *l = &s->link[i];
        for (int64_t chunk = 0; chunk < l->fetch.chunks; chunk++) {
            l->fetch.awaited = chunk;
            Awaited now = await(s, LINK_CHUNK, 1);
            if (now != MET) return now;
            int64_t elems = link_chunk_elems(l, chunk);
            int     owns = link_owns(l, chunk);
            float  *x = owns ? l->fetch.chunk : (float *)(void *)l->payload;
            comm_broadcast(s->parts.comm, x, sizeof *x * (size_t)elems, (int)(chunk % l->ranks));
            round_copy_take(&s->copy, l->fetch.get == MESSAGE_GET_CHANGE ? ROUND_CHANGE : ROUND_X,
                            link_chunk_begin(l, chunk), x, elems);
            if (owns) l->fetch.has_chunk = 0;
        }
        l->fetch.awaited = -1;
    }
    return MET;
}

/* Collective. Begins a round when rank 0 has the server's OPEN message (the samples of the round), or knows that the
 * run is over. Broadcasts that message to all ranks, and loads the new weights. */
static Awaited begin_round(Island *s, int is_first_round) {
    Link   *l = s->link;
    int64_t is_over = l->has_closed && l->closed.is_done;
    comm_broadcast(s->parts.comm, &is_over, sizeof is_over, 0);
    comm_broadcast(s->parts.comm, &l->open, sizeof l->open, 0);
    comm_broadcast(s->parts.comm, &l->closed, sizeof l->closed, 0);
    int     has_last = !is_first_round && s->copy.type != FRAME_F32; /* 1 if s->copy holds the weights x of the last
                                                                      * round */
    Awaited now = fetch(s, has_last ? MESSAGE_GET_CHANGE : MESSAGE_GET, is_over ? l->closed.round : l->open.round);
    if (now == MET) round_copy_publish(&s->copy);
    s->is_over = now == MET && is_over;
    s->has_lease = now == MET && !is_over;
    s->used = 0;
    return now;
}

/* Breaks the connection if the server has another model, or another part of the model than its place in the list
 * outer.server says. */
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

/* Collective, after connecting. Sends the message HELLO to the servers and waits for the first lease (samples to train
 * on) and weights. */
static Awaited introduce(Island *s) {
    const Dataset *train = s->parts.train;
    Hello          hello = {.protocol = CHANNEL_PROTOCOL,
                            .rank = s->link->rank,
                            .ranks = s->link->ranks,
                            .config = config_to_json(s->parts.config),
                            .data = hello_data(train),
                            .data_files = train->shards,
                            .elems = s->link->elems,
                            .samples = train->samples};
    snprintf(hello.island, sizeof hello.island, "%s", s->parts.id);
    for (int i = 0; i < s->links; i++) message_send(s->link[i].server, MESSAGE_HELLO, 0, &hello);
    free(hello.data);
    cJSON_Delete(hello.config);
    Awaited now = await(s, LINK_WELCOME, 1);
    if (now != MET) return now;
    for (int i = 0; i < s->links; i++) check_welcome(&s->link[i]);
    end_where_broken(s);
    now = await(s, LINK_OPENED, 1);
    return now == MET ? begin_round(s, 1) : now;
}

IslandState island_join(Island *s) {
    double patience_ms = s->parts.config->outer.patience_seconds * 1e3, until_ms = clock_ms() + patience_ms;
    s->has_lease = 0;
    end_where_broken(s);
    share_fault(s);
    if (s->lost[0]) warn("%s; this job joins again, and repeats the steps since the last exchange of weights", s->lost);
    hang_up(s);
    round_copy_forget(&s->copy);
    for (int failures = 0;;) { /* failures: number of failed tries to connect since the last connection */
        int     is_connected = try_to_connect(s);
        Awaited now = is_connected ? introduce(s) : BROKEN;
        if (now == MET) return s->is_over ? ISLAND_DONE : ISLAND_TRAINS;
        if (now == STOPPED) return ISLAND_STOPPED;
        share_fault(s);
        if (is_connected) warn("%s; this job joins again", s->lost);
        if (is_connected && s->link->has_welcome) until_ms = clock_ms() + patience_ms;
        int64_t is_late = clock_ms() > until_ms;
        comm_all_reduce_i64(s->parts.comm, &is_late, 1, COMM_MAX);
        if (is_late) return ISLAND_LOST;
        failures = is_connected ? 0 : failures + 1;
        if (failures == 1)
            warn("%s; this job tries again for %g s (outer.patience_seconds)", s->lost, patience_ms * 1e-3);
        if (pause_a_second(s) == STOPPED) return ISLAND_STOPPED;
    }
}

/* --- the end of a round ------------------------------------------------------------------------------------------- */

int island_keep(Island *s) {
    for (int i = 0; i < s->links; i++) link_keep(&s->link[i]);
    return links_broken(s->link, s->links) != NULL;
}

/* Collective. Begins to send the deltas (weight changes) of this round to the servers. An END message follows the last
 * of them. */
static void begin_to_send(Island *s, IslandWork work) {
    const Open *lease = &s->link->open;
    End         end = {lease->round, work.samples, work.tokens, 0.0, work.loss, lease->lease};
    s->has_lease = 0;
    s->used = work.samples;
    s->link->has_open = s->link->has_closed = 0;
    end.norm = round_copy_gather(&s->copy, (OuterSend)s->parts.config->outer.send);
    for (int i = 0; i < s->links; i++) link_send(&s->link[i], end);
}

/* Collective. Sets bytes to the numbers of bytes sent to and received from the servers so far, summed over all
 * ranks. */
static void count_bytes(Island *s, int64_t bytes[2]) {
    bytes[0] = bytes[1] = 0;
    for (int i = 0; i < s->links; i++) {
        const Channel *server = s->link[i].server;
        if (!server) continue;
        bytes[0] += (int64_t)channel_sent_bytes(server);
        bytes[1] += (int64_t)channel_received_bytes(server);
    }
    comm_all_reduce_i64(s->parts.comm, bytes, 2, COMM_SUM);
}

IslandState island_exchange(Island *s, IslandWork work, int *ended) {
    double  began_ms = clock_ms();
    int64_t before[2], after[2];
    *ended = 0;
    count_bytes(s, before);
    begin_to_send(s, work);
    Awaited now = await(s, LINK_CLOSED, 1);
    if (now == MET) now = begin_round(s, 0);
    if (now == STOPPED) return ISLAND_STOPPED;
    if (now == BROKEN) return island_join(s);
    count_bytes(s, after);
    s->ended = (IslandExchange){s->link->closed, clock_ms() - began_ms, after[0] - before[0], after[1] - before[1]};
    *ended = 1;
    return s->is_over ? ISLAND_DONE : ISLAND_TRAINS;
}

/* --- leaving ------------------------------------------------------------------------------------------------------ */

/* Sends the message BYE and waits for the server to close the connection. The server closes it when it has read
 * everything. */
static void say_goodbye(Island *s) {
    Link       *l = s->link;
    Bye         bye = {s->used};
    double      until_ms = clock_ms() + GOODBYE_MS;
    FrameHeader h;
    const void *payload;
    message_send(l->server, MESSAGE_BYE, l->open.round, &bye);
    channel_end(l->server);
    while (clock_ms() < until_ms && channel_next(l->server, &h, &payload) >= 0) {
        channel_wait(&l->server, 1, -1, LOOK_MS);
        tick(s);
    }
}

/* Leaves all servers. Sends the deltas of an unfinished lease, the samples that the server gave. Rank 0 sends BYE after
 * all PINGs are answered. The server answers in order, so it has then read the END message of every rank. */
void island_leave(Island *s, IslandWork work) {
    for (int i = 0; i < s->links; i++) link_give_up(&s->link[i]); /* drops new weights that may still arrive, if this
                                                                   * job was stopped while it fetched them */
    int64_t broken = links_broken(s->link, s->links) != NULL;
    comm_all_reduce_i64(s->parts.comm, &broken, 1, COMM_MAX);
    if (!broken && s->has_lease && work.samples > 0) begin_to_send(s, work);
    if (!broken && await(s, LINK_SENT, 0) == MET) {
        for (int i = 0; i < s->links; i++) link_ping(&s->link[i]);
        await(s, LINK_ANSWERED, 0);
        if (comm_rank(s->parts.comm) == 0 && !s->link->is_broken) say_goodbye(s);
        comm_barrier(s->parts.comm);
    }
    hang_up(s);
}
