/* server.c - see server.h. In order: refusing and losing, frames, rounds, a turn. */
#include "run/outer/server.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "run/checkpoint/checkpoint_folders.h"
#include "run/config/schedule.h"
#include "run/outer/server_hello.h"

enum { WHY_BYTES = 1024 };

struct Server {
    ServerParts parts;
    Key         key;
    int         listening;
    Leases      leases;
    Members     members;
    Peers       peers;
    OuterRule   rule;
    int64_t     elems, every, tokens;
    double      patience_ms, round_began_ms, looked_ms;
    int64_t     round_tokens, staleness; /* of the open round: what counted of it */
    double      round_loss;              /* the same: weighted by tokens */
    double      norm;                    /* send=gradients: of the last one */
    ServerRound over;
    int         is_over;
};

int64_t server_step(const Server *s) { return s->members.round * s->every; }
int64_t server_tokens(const Server *s) { return s->tokens; }
int64_t server_next_sample(const Server *s) { return s->leases.next_sample; }
int     server_is_done(const Server *s) { return server_step(s) >= s->parts.config->run.steps; }
void    server_address(const Server *s, char *out) { channel_listening(s->listening, out); }
int     server_islands(const Server *s) {
    return s->members.count - members_count(&s->members, MEMBER_GONE);
}

/* --- refusing and losing ------------------------------------------------------------------------------------------ */

static const char *name_of(const Server *s, const Member *m, char out[160]) {
    const char *address = "";
    for (int i = 0; i < s->peers.count; i++)
        if (s->peers.peer[i]->member == m && s->peers.peer[i]->rank == 0)
            address = channel_peer(s->peers.peer[i]->channel);
    snprintf(out, 160, "island %d (%s%s%s)", m->number, m->id, *address ? ", " : "", address);
    return out;
}

static void take_back(Server *s, int64_t lease) {
    if (lease >= 0) leases_return(&s->leases, lease);
}

/* All its connections end with this sentence; what it has sent does not count. */
static void refuse_member(Server *s, Member *m, int code, const char *why) {
    char name[160];
    warn("%s is refused: %s", name_of(s, m, name), why);
    take_back(s, m->state >= MEMBER_TRAINS ? m->lease.number : -1);
    m->state = MEMBER_GONE;
    for (int i = 0; i < s->peers.count; i++)
        if (s->peers.peer[i]->member == m) peer_refuse(s->peers.peer[i], code, why);
}

static void refuse_peer(Server *s, Peer *p, int code, const char *fmt, ...) PRINTF_LIKE(4, 5);
static void refuse_peer(Server *s, Peer *p, int code, const char *fmt, ...) {
    char    why[WHY_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    if (p->member && p->member->state != MEMBER_GONE) {
        refuse_member(s, p->member, code, why);
    } else if (!p->is_ending) {
        warn("%s is refused: %s", channel_peer(p->channel), why);
        peer_refuse(p, code, why);
    }
}

/* Those of an island that is not there any more, but for one. */
static void drop_connections(Server *s, const Member *m, const Peer *but) {
    for (int i = s->peers.count; i-- > 0;) {
        const Peer *p = s->peers.peer[i];
        if (p != but && p->member == m && !p->is_ending) peers_remove(&s->peers, i);
    }
}

static void lose_member(Server *s, Member *m, const char *why) {
    char        name[160];
    MemberState was = m->state;
    int         is_known = m->leaves;
    name_of(s, m, name);
    take_back(s, members_lose(m));
    if (!is_known)
        s->parts.note("%s %s%s", name, why,
                      was == MEMBER_TRAINS ? ": its samples go back" : was == MEMBER_ENDED ? ": its delta counts" : "");
}

/* Its channel is broken. An island that has sent all of its deltas may go. */
static void lose_peer(Server *s, int i) {
    Peer   *p = s->peers.peer[i];
    Member *m = p->member;
    if (m && !p->is_ending && m->state != MEMBER_GONE && !(m->state == MEMBER_TRAINS && m->said[p->rank] == 2))
        lose_member(s, m, "is lost");
    else if (!m && channel_fault_code(p->channel) == EXIT_CONFIG) warn("%s", channel_fault(p->channel));
    peers_remove(&s->peers, i);
}

/* --- frames ------------------------------------------------------------------------------------------------------- */

static void say_closed(Server *s, Member *m, int islands, double norm, int64_t staleness) {
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
    Welcome w = {.number = m->number, .round = s->members.round, .elems = s->elems, .parts = 1};
    peer_say(p, MESSAGE_WELCOME, w.round, text, welcome_write(&w, text));
    if (m->state != MEMBER_WAITS) return;
    s->parts.note("%s has joined with %d rank%s", name_of(s, m, name), m->ranks, m->ranks == 1 ? "" : "s");
}

static void take_hello(Server *s, Peer *p, const char *text, size_t bytes) {
    char    fault[MESSAGE_FAULT_BYTES] = "", why[WHY_BYTES];
    Hello   hello;
    int64_t was = -1;
    if (p->member) {
        refuse_peer(s, p, EXIT_PEER, "the island sent a second HELLO");
        return;
    }
    if (!hello_read(text, bytes, &hello, fault)) {
        refuse_peer(s, p, EXIT_PEER, "the island %s", fault);
        return;
    }
    int     code = hello_refuse(&hello, s->parts.config, s->parts.train, s->elems, why, sizeof why);
    Member *m = code ? NULL : members_join(&s->members, &hello, clock_ms(), &was, fault);
    if (code) refuse_peer(s, p, code, "%s", why);
    else if (!m) refuse_peer(s, p, EXIT_PEER, "%s", fault);
    take_back(s, was);
    if (m && m->joined == 1) drop_connections(s, m, p);
    if (m) {
        p->member = m, p->rank = hello.rank;
        welcome(s, p);
    }
    hello_free(&hello);
}

static void take_delta(Server *s, Peer *p, const FrameHeader *h, const void *payload) {
    Member *m = p->member;
    if (m->state != MEMBER_TRAINS || m->said[p->rank] != 1 || h->round != m->lease.round) {
        refuse_peer(s, p, EXIT_PEER, "the island sent deltas of round %lld without a lease in it", (long long)h->round);
        return;
    }
    if (m->elems + h->elems > s->elems) {
        refuse_peer(s, p, EXIT_PEER, "the island sent more than the %lld elements of its delta", (long long)s->elems);
        return;
    }
    if (!m->delta) m->delta = (float *)malloc(sizeof *m->delta * (size_t)s->elems);
    if (!m->delta) {
        refuse_peer(s, p, EXIT_MEMORY, "the server has no memory for the delta of one more island");
        return;
    }
    frame_unpack((FrameType)h->type, m->delta + h->offset, payload, h->elems);
    m->elems += h->elems;
}

static void count_arrival(Server *s, Member *m);

static void take_end(Server *s, Peer *p, const char *text, size_t bytes) {
    char    fault[MESSAGE_FAULT_BYTES] = "";
    End     end;
    Member *m = p->member;
    if (!end_read(text, bytes, &end, fault)) {
        refuse_peer(s, p, EXIT_PEER, "the island %s", fault);
        return;
    }
    int ended = members_end(&s->members, m, p->rank, &end, s->elems, fault);
    if (ended < 0) refuse_peer(s, p, EXIT_PEER, "the island %s", fault);
    if (ended <= 0) return;
    if (m->state == MEMBER_WAITS) {
        take_back(s, m->lease.number); /* no step was taken */
        return;
    }
    m->norm = sqrt(outer_squares(m->delta, s->elems));
    if (!isfinite(m->norm) && !members_judge(&s->members, m, fault)) refuse_member(s, m, EXIT_NUMERIC, fault);
    else if (s->members.wait == WAIT_NONE) count_arrival(s, m);
}

static void take_bye(Server *s, Peer *p) {
    Member *m = p->member;
    if (m->state == MEMBER_TRAINS && m->said[p->rank] == 2) m->leaves = 1; /* other ranks' ENDs are on their way */
    else lose_member(s, m, "leaves");
}

/* Returns 0 when the peer is not to be read on. */
static int take_frame(Server *s, Peer *p, const FrameHeader *h, const void *payload) {
    char        fault[MESSAGE_FAULT_BYTES] = "";
    const char *text = (const char *)payload;
    if (!message_check(h, FROM_ISLAND, fault)) {
        refuse_peer(s, p, EXIT_PEER, "the island %s", fault);
        return 0;
    }
    if (!p->member && h->kind != MESSAGE_HELLO) {
        refuse_peer(s, p, EXIT_PEER, "the island sent %s before HELLO", message_name(h->kind));
        return 0;
    }
    if (p->member) p->member->heard_ms = clock_ms();
    switch (h->kind) {
        case MESSAGE_HELLO: take_hello(s, p, text, h->payload_bytes); break;
        case MESSAGE_DELTA: take_delta(s, p, h, payload); break;
        case MESSAGE_END:   take_end(s, p, text, h->payload_bytes); break;
        case MESSAGE_PING:  peer_say(p, MESSAGE_PING, 0, NULL, 0); break;
        case MESSAGE_BYE:   take_bye(s, p); return 0;
        case MESSAGE_GET:
            if (!peer_ask(p, (PeerGet){s->members.wait == WAIT_ALL ? s->members.round : h->round, h->offset, h->elems}))
                refuse_peer(s, p, EXIT_PEER, "the island asked for more than %d pieces at a time", PEER_GETS_MOST);
            break;
        default: break;
    }
    return !p->is_ending;
}

/* Returns 0 when it is gone. */
static int serve_peer(Server *s, int i) {
    Peer       *p = s->peers.peer[i];
    FrameHeader h;
    const void *payload;
    int         got, count = s->peers.count;
    if (channel_is_open(p->channel)) peer_send(p, s->parts.weights);
    while ((got = channel_next(p->channel, &h, &payload)) > 0) {
        int goes_on = take_frame(s, p, &h, payload);
        if (s->peers.count < count) return 0; /* others are gone: the list is looked at again */
        if (!goes_on) break;
    }
    if (got > 0 && !p->is_ending) got = -1; /* BYE */
    if (got == 0 && !p->member && !p->is_ending && clock_ms() - p->since_ms > PEER_HELLO_MS) got = -1;
    if (got < 0) lose_peer(s, i);
    else if (channel_is_open(p->channel)) peer_send(p, s->parts.weights);
    return got >= 0;
}

/* --- rounds ------------------------------------------------------------------------------------------------------- */

static int takes_gradients(const Server *s) { return s->parts.config->outer.send == SEND_GRADIENTS; }

/* AdamW with a gradient of this norm. Its bias correction counts the updates since the moments were zero. */
static void step_adamw(Server *s, float *gradient, double norm) {
    const Config *c = s->parts.config;
    int64_t       before = s->members.wait == WAIT_ALL ? server_step(s) : (s->tokens + s->round_tokens) / c->batch.global_tokens;
    AdamW         h = {schedule_lr(c, server_step(s)), c->optimizer.beta1,        c->optimizer.beta2,
                       c->optimizer.eps,               c->optimizer.weight_decay, before + 1};
    served_adamw(s->parts.weights, h, clip_scale(norm, c->optimizer.grad_clip), gradient);
    s->norm = norm;
}

/* The open round is over; what follows belongs to the next. */
static void end_round(Server *s, int islands, double norm) {
    double now = clock_ms();
    members_next_round(&s->members);
    s->tokens += s->round_tokens;
    s->over = (ServerRound){.round = s->members.round, .step = server_step(s), .tokens = s->tokens, .islands = islands,
                            .staleness = s->staleness, .norm = norm, .loss = s->round_loss / (double)s->round_tokens,
                            .ms = now - s->round_began_ms, .own_tokens = s->round_tokens};
    s->is_over = 1;
    s->round_tokens = s->staleness = 0, s->round_loss = 0.0, s->round_began_ms = now;
}

static void count(Server *s, Member *m) {
    leases_done(&s->leases, m->lease.number, m->end.samples, s->members.round);
    s->round_tokens += m->end.tokens;
    s->round_loss += m->end.loss * (double)m->end.tokens;
    members_counted(&s->members, m);
}

/* wait=none: a round of deltas ends with momentum. */
static void end_arrivals(Server *s) {
    double norm = takes_gradients(s) ? s->norm : served_momentum(s->parts.weights, s->rule);
    end_round(s, (int)s->members.of_round, norm);
}

/* wait=none: the delta changes x at once. */
static void count_arrival(Server *s, Member *m) {
    char fault[MEMBER_FAULT_BYTES];
    if (!members_judge(&s->members, m, fault)) {
        refuse_member(s, m, EXIT_NUMERIC, fault);
        return;
    }
    if (server_is_done(s)) {
        take_back(s, m->lease.number);
        m->state = MEMBER_WAITS;
        return;
    }
    int     here = members_here(&s->members);
    int64_t staleness = members_staleness(&s->members, m);
    if (takes_gradients(s)) step_adamw(s, m->delta, m->norm);
    else served_arrival(s->parts.weights, s->rule, m->delta, 1.0 / ((1.0 + (double)staleness) * (here ? here : 1)));
    if (staleness > s->staleness) s->staleness = staleness;
    count(s, m);
    leases_sync(&s->leases);
    if (members_round_is_full(&s->members)) end_arrivals(s);
    say_closed(s, m, here, m->norm, staleness);
}

int server_end_round(Server *s, ServerRound *over) {
    if (s->members.wait == WAIT_ALL || s->members.of_round == 0) return 0;
    end_arrivals(s);
    *over = s->over, s->is_over = 0;
    return 1;
}

/* wait=all: nobody trains any more. */
static void close_round(Server *s) {
    Members      *ms = &s->members;
    const float **delta = (const float **)malloc(sizeof *delta * (size_t)ms->count);
    double       *weight = (double *)malloc(sizeof *weight * (size_t)ms->count), norm;
    char          fault[MEMBER_FAULT_BYTES];
    int           islands = 0;
    float        *mean = NULL;
    if (!delta || !weight) fail(EXIT_MEMORY, "no memory to close a round of %d islands", ms->count);
    for (int i = 0; i < ms->count; i++)
        if (ms->member[i]->state == MEMBER_ENDED && !members_judge(ms, ms->member[i], fault))
            refuse_member(s, ms->member[i], EXIT_NUMERIC, fault);
    for (int i = 0; i < ms->count; i++) {
        Member *m = ms->member[i];
        if (m->state != MEMBER_ENDED) continue;
        if (!mean) mean = m->delta;
        delta[islands] = m->delta, weight[islands++] = (double)m->end.tokens;
    }
    if (islands > 0) {
        outer_mean(mean, delta, weight, islands, s->elems);
        norm = sqrt(outer_squares(mean, s->elems));
        if (takes_gradients(s)) step_adamw(s, mean, norm);
        else served_step(s->parts.weights, s->rule, mean);
        for (int i = 0; i < ms->count; i++)
            if (ms->member[i]->state == MEMBER_ENDED) count(s, ms->member[i]);
        leases_sync(&s->leases);
        end_round(s, islands, norm);
        for (int i = 0; i < ms->count; i++)
            if (ms->member[i]->state == MEMBER_WAITS) say_closed(s, ms->member[i], islands, norm, 0);
    }
    free(delta);
    free(weight);
}

static Peer *first_rank(Server *s, const Member *m) {
    for (int i = 0; i < s->peers.count; i++)
        if (s->peers.peer[i]->member == m && s->peers.peer[i]->rank == 0 && !s->peers.peer[i]->is_ending)
            return s->peers.peer[i];
    return NULL;
}

/* A lease for everyone who waits: on the disk before anyone hears of it. */
static void open_round(Server *s) {
    Members *ms = &s->members;
    int64_t  unit = ms->step_samples;
    char     text[MESSAGE_TEXT];
    int      islands = ms->wait == WAIT_NONE ? members_here(ms) : members_count(ms, MEMBER_WAITS);
    if (!ms->has_begun) s->round_began_ms = clock_ms();
    char *is_new = (char *)calloc((size_t)ms->count, 1);
    if (!is_new) fail(EXIT_MEMORY, "no memory to open a round of %d islands", ms->count);
    for (int i = 0; i < ms->count; i++) {
        Member *m = ms->member[i];
        if (m->state != MEMBER_WAITS) continue;
        members_give(ms, m, leases_give(&s->leases, s->every * unit, m->id, ms->round));
        is_new[i] = 1;
    }
    leases_sync(&s->leases);
    for (int i = 0; i < ms->count; i++) {
        const Lease *l = &ms->member[i]->lease;
        Open open = {ms->round, server_step(s), l->range.samples / unit, l->range.first, l->range.samples, islands};
        Peer        *p = is_new[i] ? first_rank(s, ms->member[i]) : NULL;
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
        lose_member(s, m, why);
    }
}

/* Whoever waits for another round, or comes too late for one. */
static void tell_end(Server *s) {
    for (int i = 0; i < s->members.count; i++) {
        Member *m = s->members.member[i];
        if (m->state == MEMBER_WAITS && !m->knows_end) say_closed(s, m, 0, 0.0, 0);
    }
}

/* Memory and connections of islands that are gone. */
static void sweep(Server *s) {
    for (int i = 0; i < s->members.count; i++) {
        Member *m = s->members.member[i];
        if (m->state != MEMBER_GONE || !m->said) continue;
        drop_connections(s, m, NULL);
        free(m->delta), free(m->said);
        m->delta = NULL, m->said = NULL;
    }
}

int server_turn(Server *s, double ms, ServerRound *over) {
    Channel *c;
    int      may_accept = s->peers.count < PEERS_MOST;
    double   before = clock_ms();
    if (before - s->looked_ms > s->patience_ms / 2) /* this process was held up: nobody was silent for that */
        for (int i = 0; i < s->members.count; i++) s->members.member[i]->heard_ms += before - s->looked_ms;
    peers_wait(&s->peers, may_accept ? s->listening : -1, ms);
    while (s->peers.count < PEERS_MOST && (c = channel_accept(s->listening, &s->key))) {
        channel_limit(c, s->elems);
        peers_add(&s->peers, c, clock_ms());
    }
    for (int i = 0; i < s->peers.count && !s->is_over;)
        if (serve_peer(s, i)) i++;
    look_for_silence(s);
    if (members_may_close(&s->members)) close_round(s);
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
    peers_destroy(&s->peers);
    members_destroy(&s->members);
    leases_close(&s->leases);
    close(s->listening);
    free(s);
}
