/* server.c - see server.h. In order: giving leases, the loop, creating. server_islands.c reads what islands send, and
 * server_update.c makes a new x. */
#include "run/outer/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/thread.h"
#include "core/error.h"
#include "run/checkpoint/checkpoint_folders.h"
#include "run/guard/signals.h"
#include "run/outer/server_state.h"

int64_t server_step(const Server *s) { return s->members.round * s->every; }
int64_t server_tokens(const Server *s) { return s->tokens; }
int64_t server_next_sample(const Server *s) { return s->leases.next_sample; }
int     server_is_done(const Server *s) { return server_step(s) >= s->parts.config->run.steps; }
int     server_fragments(const Server *s) { return s->streams ? s->fragments : 0; }
void    server_address(const Server *s, char *out) { channel_listening(s->listening, out); }
int     server_islands(const Server *s) {
    return s->members.count - members_count(&s->members, MEMBER_GONE);
}
/* --- leases ------------------------------------------------------------------------------------------------------- */

/* Gives a lease to every island that waits. The leases are on disk before an island receives one. */
static void open_round(Server *s) {
    Members *ms = &s->members;
    int64_t  unit = ms->step_samples;
    char     text[MESSAGE_TEXT];
    int      islands = ms->wait == WAIT_NONE ? members_here(ms) : members_count(ms, MEMBER_WAITS);
    if (!ms->has_begun) s->round_began_ms = clock_ms();
    if (s->streams) s->turn = 0, s->squares = (Exact){{0}}; /* all islands may have been lost in mid-round */
    char *is_new = xcalloc((size_t)ms->count, 1, "opening a round");
    for (int i = 0; i < ms->count; i++) {
        Member *m = ms->member[i];
        if (m->state != MEMBER_WAITS) continue;
        members_give(ms, m, leases_give(&s->leases, s->every * unit, m->id, ms->round));
        is_new[i] = 1;
    }
    leases_sync(&s->leases);
    server_open_moments(s, is_new);
    for (int i = 0; i < ms->count; i++) {
        const Lease *l = &ms->member[i]->lease;
        Open open = {ms->round, server_step(s), l->range.samples / unit, l->range.first, l->range.samples, islands,
                     l->number, server_moments_of(s, ms->member[i])};
        Peer        *p = is_new[i] ? server_first_rank(s, ms->member[i]) : NULL;
        if (p) peer_say(p, MESSAGE_OPEN, open.round, text, open_write(&open, text));
    }
    free(is_new);
}

/* --- the loop ----------------------------------------------------------------------------------------------------- */

static void look_for_silence(Server *s) {
    Member *m;
    char    why[80];
    while ((m = members_silent(&s->members, clock_ms(), s->patience_ms))) {
        snprintf(why, sizeof why, "has been silent for %g s (outer.patience_seconds)", s->patience_ms * 1e-3);
        m->leaves = 0;
        server_lose_member(s, m, why);
    }
}

/* Informs islands that wait for a round, or come too late for one, that the run is over. */
static void tell_end(Server *s) {
    for (int i = 0; i < s->members.count; i++) {
        Member *m = s->members.member[i];
        if (m->state == MEMBER_WAITS && !m->knows_end) server_say_closed(s, m, 0, 0.0, 0);
    }
}

/* Frees the memory and connections of islands that are gone. */
static void sweep(Server *s) {
    for (int i = 0; i < s->members.count; i++) {
        Member *m = s->members.member[i];
        if (m->state != MEMBER_GONE || !m->said) continue;
        server_drop_connections(s, m, NULL);
        free(m->delta), free(m->said);
        m->delta = NULL, m->said = NULL;
        members_forget_turns(m);
        held_forget(&m->held);
    }
}

/* Returns 1 if islands may connect: a follower must have the values that they fetch. */
static int server_has_part(const Server *s) {
    return server_leads(s) || s->had == s->weights.elems * WEIGHTS_TENSORS;
}

/* Ends and begins rounds, on the server that leads. */
static void lead(Server *s) {
    server_count_arrivals(s);
    server_look_at_followers(s);
    server_keep_moments(s);
    if (s->streams) server_close_turns(s);
    if (members_may_close(&s->members)) server_close_round(s);
    sweep(s);
    if (server_is_done(s)) tell_end(s);
    else if (server_is_whole(s) && members_may_open(&s->members)) open_round(s);
    leases_sync(&s->leases);
}

int server_turn(Server *s, double ms, ServerRound *over) {
    int      may_accept = s->peers.count < PEERS_MOST && server_has_part(s);
    double   before = clock_ms();
    if (before - s->looked_ms > s->patience_ms / 2) /* this process stood still, not the islands */
        for (int i = 0; i < s->members.count; i++) s->members.member[i]->heard_ms += before - s->looked_ms;
    peers_wait(&s->peers, may_accept ? s->listening : -1, ms);
    if (may_accept) peers_accept(&s->peers, s->listening, &s->key, s->elems);
    for (int i = 0; i < s->peers.count && !s->is_over;) {
        if (server_serve_peer(s, i)) i++;
        if (server_leads(s)) server_count_arrivals(s);
    }
    look_for_silence(s);
    if (server_leads(s)) lead(s);
    else sweep(s);
    s->looked_ms = clock_ms();
    if (!s->is_over) return 0;
    *over = s->over, s->is_over = 0;
    return 1;
}

/* --- creating ----------------------------------------------------------------------------------------------------- */

/* Waits for the leader to make the key file: it may do so on this machine, just now. */
static void await_key(const Server *s) {
    const char *path = s->parts.config->outer.key;
    for (double until_ms = clock_ms() + s->patience_ms; access(path, F_OK) != 0 && clock_ms() < until_ms;) {
        if (signals_stop()) return;
        usleep(50000);
    }
}

static void take_weights(Server *s) {
    const ServerParts *p = &s->parts;
    int64_t            first = outer_part_begin(s->elems, p->part, p->parts);
    int64_t            elems = outer_part_begin(s->elems, p->part + 1, p->parts) - first;
    if (elems == 0 || outer_part_begin(s->elems, 1, p->parts) == 0)
        fail(EXIT_CONFIG, "outer.server names %d servers, too many for a model of %lld parameters: each has %d at least",
             p->parts, (long long)s->elems, OUTER_BLOCK);
    s->follower = xcalloc((size_t)p->parts, sizeof *s->follower, "a list of servers");
    s->weights = p->weights ? server_weights_of(p->weights, first, elems) : server_weights_in(p->shards, first, elems, p->memory);
    if (p->weights) s->whole = server_weights_of(p->weights, 0, s->elems);
}

Server *server_create(ServerParts parts) {
    const Config *c = parts.config;
    char          why[KEY_FAULT_BYTES];
    ChannelFault  fault;
    Server       *s = xcalloc(1, sizeof *s, "the server");
    s->parts = parts;
    s->elems = parts.shards->layout.elems, s->every = c->outer.every, s->tokens = parts.tokens;
    take_weights(s);
    s->change = round_change_create(c, &s->weights);
    s->rule = (OuterRule){c->outer.learning_rate, c->outer.momentum};
    s->patience_ms = c->outer.patience_seconds * 1e3;
    s->streams = c->outer.stream, s->fragments = fragments_count(s->elems, s->every);
    if (!server_leads(s)) await_key(s);
    int code = server_leads(s) ? key_make(c->outer.key, why) : 0;
    if (!code) code = key_read(c->outer.key, &s->key, why);
    if (code) fail(code, "%s", why);
    s->listening = channel_listen(parts.listen, &fault);
    if (s->listening < 0) fail(fault.code, "%s", fault.text);
    int64_t round = parts.step / s->every;
    s->members = members_create(c, round);
    s->members.parts = server_leads(s) ? parts.parts : 1;
    if (server_leads(s)) s->leases = leases_open(path_of("%s/leases.jsonl", c->run.dir).text, round, parts.samples);
    s->round_began_ms = s->looked_ms = s->made_ms = clock_ms();
    return s;
}

void server_destroy(Server *s) {
    if (!s) return;
    server_end_moments(s);
    peers_destroy(&s->peers);
    members_destroy(&s->members);
    if (server_leads(s)) leases_close(&s->leases);
    round_change_destroy(&s->change);
    server_weights_destroy(&s->weights), server_weights_destroy(&s->whole);
    free(s->follower), free(s->counted), free(s->weight);
    close(s->listening);
    free(s);
}
