/* server.c - see server.h. In order: leases, a turn, making. What islands send: server_islands.c; a new x:
 * server_update.c. */
#include "run/outer/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/clock.h"
#include "run/checkpoint/checkpoint_folders.h"
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

/* A lease for everyone who waits: on the disk before anyone hears of it. */
static void open_round(Server *s) {
    Members *ms = &s->members;
    int64_t  unit = ms->step_samples;
    char     text[MESSAGE_TEXT];
    int      islands = ms->wait == WAIT_NONE ? members_here(ms) : members_count(ms, MEMBER_WAITS);
    if (!ms->has_begun) s->round_began_ms = clock_ms();
    if (s->streams) s->turn = 0, s->squares = 0.0; /* all may have been lost in mid-round */
    char *is_new = (char *)calloc((size_t)ms->count, 1);
    if (!is_new) fail(EXIT_MEMORY, "no memory to open a round of %d islands", ms->count);
    for (int i = 0; i < ms->count; i++) {
        Member *m = ms->member[i];
        if (m->state != MEMBER_WAITS) continue;
        members_give(ms, m, leases_give(&s->leases, s->every * unit, m->id, ms->round));
        is_new[i] = 1;
    }
    leases_sync(&s->leases);
    server_open_gift(s, is_new);
    for (int i = 0; i < ms->count; i++) {
        const Lease *l = &ms->member[i]->lease;
        Open open = {ms->round, server_step(s), l->range.samples / unit, l->range.first, l->range.samples, islands,
                     server_gift_of(s, ms->member[i])};
        Peer        *p = is_new[i] ? server_first_rank(s, ms->member[i]) : NULL;
        if (p) peer_say(p, MESSAGE_OPEN, open.round, text, open_write(&open, text));
    }
    free(is_new);
}

/* --- a turn ------------------------------------------------------------------------------------------------------- */

static void look_for_silence(Server *s) {
    Member *m;
    char    why[80];
    while ((m = members_silent(&s->members, clock_ms(), s->patience_ms))) {
        snprintf(why, sizeof why, "has been silent for %g s (outer.patience_seconds)", s->patience_ms * 1e-3);
        m->leaves = 0;
        server_lose_member(s, m, why);
    }
}

/* Whoever waits for another round, or comes too late for one. */
static void tell_end(Server *s) {
    for (int i = 0; i < s->members.count; i++) {
        Member *m = s->members.member[i];
        if (m->state == MEMBER_WAITS && !m->knows_end) server_say_closed(s, m, 0, 0.0, 0);
    }
}

/* Memory and connections of islands that are gone. */
static void sweep(Server *s) {
    for (int i = 0; i < s->members.count; i++) {
        Member *m = s->members.member[i];
        if (m->state != MEMBER_GONE || !m->said) continue;
        server_drop_connections(s, m, NULL);
        free(m->delta), free(m->said);
        m->delta = NULL, m->said = NULL;
        members_forget_turns(m);
    }
}

int server_turn(Server *s, double ms, ServerRound *over) {
    int      may_accept = s->peers.count < PEERS_MOST;
    double   before = clock_ms();
    if (before - s->looked_ms > s->patience_ms / 2) /* this process was held up: nobody was silent for that */
        for (int i = 0; i < s->members.count; i++) s->members.member[i]->heard_ms += before - s->looked_ms;
    peers_wait(&s->peers, may_accept ? s->listening : -1, ms);
    peers_accept(&s->peers, s->listening, &s->key, s->elems);
    for (int i = 0; i < s->peers.count && !s->is_over;)
        if (server_serve_peer(s, i)) i++;
    look_for_silence(s);
    server_keep_gift(s);
    if (s->streams) server_close_turns(s);
    if (members_may_close(&s->members)) server_close_round(s);
    sweep(s);
    if (server_is_done(s)) tell_end(s);
    else if (members_may_open(&s->members)) open_round(s);
    leases_sync(&s->leases);
    s->looked_ms = clock_ms();
    if (!s->is_over) return 0;
    *over = s->over, s->is_over = 0;
    return 1;
}

/* --- making ------------------------------------------------------------------------------------------------------- */

Server *server_create(ServerParts parts) {
    const Config *c = parts.config;
    char          why[KEY_FAULT_BYTES];
    ChannelFault  fault;
    Server       *s = (Server *)calloc(1, sizeof *s);
    if (!s) fail(EXIT_MEMORY, "no memory for the server");
    s->parts = parts;
    s->elems = parts.weights->shards->layout.elems, s->every = c->outer.every, s->tokens = parts.tokens;
    s->rule = (OuterRule){c->outer.learning_rate, c->outer.momentum};
    s->patience_ms = c->outer.patience_seconds * 1e3;
    s->streams = c->outer.stream, s->fragments = fragments_count(s->elems, s->every);
    int code = key_make(c->outer.key, why);
    if (!code) code = key_read(c->outer.key, &s->key, why);
    if (code) fail(code, "%s", why);
    s->listening = channel_listen(parts.listen, &fault);
    if (s->listening < 0) fail(fault.code, "%s", fault.text);
    int64_t round = parts.step / s->every;
    s->members = members_create(c, round);
    s->leases = leases_open(path_of("%s/leases.jsonl", c->run.dir).text, round, parts.samples);
    s->round_began_ms = s->looked_ms = clock_ms();
    return s;
}

void server_destroy(Server *s) {
    if (!s) return;
    server_end_gift(s);
    peers_destroy(&s->peers);
    members_destroy(&s->members);
    leases_close(&s->leases);
    close(s->listening);
    free(s);
}
