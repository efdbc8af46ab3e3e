/* server_peers.c - the connections of a server, and the messages of islands. In order: the list of connections,
 * sending, refusing and losing islands, comparing a HELLO with this server, frames. See server_state.h. */
#include "run/outer/server_state.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/thread.h"
#include "core/json.h"
#include "core/error.h"
#include "run/config/config.h"
#include "run/config/options.h"

struct PeerMessage {
    PeerMessage *next;
    MessageKind  kind;
    int64_t      round;
    size_t       bytes;  /* length of `text` in bytes */
    char         text[]; /* JSON of the message */
};

/* --- the list of peers -------------------------------------------------------------------------------------------- */

Peer *peers_add(Peers *p, Channel *c) {
    Peer *peer = xcalloc(1, sizeof *peer, "one more connection");
    p->peer = xrealloc(p->peer, sizeof *p->peer * (size_t)(p->count + 1), "one more connection");
    p->channel = xrealloc(p->channel, sizeof *p->channel * (size_t)(p->count + 1), "one more connection");
    *peer = (Peer){.channel = c, .since_ms = clock_ms()};
    p->peer[p->count++] = peer;
    return peer;
}

static void forget(Peer *p) {
    for (PeerMessage *next; p->first; p->first = next) next = p->first->next, free(p->first);
    free(p->get);
    p->last = NULL, p->get = NULL, p->gets = p->got = 0;
}

static void peers_remove(Peers *p, int i) {
    channel_close(p->peer[i]->channel);
    forget(p->peer[i]);
    free(p->peer[i]);
    memmove(p->peer + i, p->peer + i + 1, sizeof *p->peer * (size_t)(p->count - i - 1));
    p->count--;
}

void peers_destroy(Peers *p) {
    while (p->count) peers_remove(p, p->count - 1);
    free(p->peer);
    free(p->channel);
    *p = (Peers){0};
}

/* Returns the peer that is dropped first when there are too many connections: one that has sent nothing, then the older
 * one. a may be NULL. */
static Peer *sooner(Peer *a, Peer *b) {
    if (!a) return b;
    int a_spoke = channel_received_bytes(a->channel) > 0, b_spoke = channel_received_bytes(b->channel) > 0;
    if (a_spoke != b_spoke) return a_spoke ? b : a;
    return b->since_ms < a->since_ms ? b : a;
}

static void free_place(Peers *p) {
    Peer *last = NULL;
    int   unproven = 0;
    for (int i = 0; i < p->count; i++) {
        Channel *c = p->peer[i]->channel;
        if (!channel_is_open(c)) channel_progress(c); /* reads the connection, which may have received its first
                                                       * bytes */
        if (channel_is_open(c) || channel_is_broken(c)) continue;
        unproven++;
        last = sooner(last, p->peer[i]);
    }
    for (int i = 0; unproven >= PEERS_UNPROVEN && i < p->count; i++)
        if (p->peer[i] == last) {
            peers_remove(p, i);
            return;
        }
}

void peers_accept(Peers *p, int listening, const Key *key, int64_t most_elems) {
    Channel *c;
    for (int i = 0; i < PEERS_UNPROVEN && p->count < PEERS_MOST && (c = channel_accept(listening, key)); i++) {
        free_place(p);
        channel_limit(c, most_elems);
        peers_add(p, c);
    }
}

void peers_wait(Peers *p, int listening, double ms) {
    for (int i = 0; i < p->count; i++) p->channel[i] = p->peer[i]->channel;
    channel_wait(p->channel, p->count, listening, ms);
}

/* --- one peer ----------------------------------------------------------------------------------------------------- */

void peer_say(Peer *p, MessageKind kind, int64_t round, const void *m) {
    size_t bytes = 0;
    char  *text = m ? message_write(kind, m, &bytes) : NULL;
    if (m && !text) /* too long for a message: only the config in a FOLLOW message can be */
        fail(EXIT_CONFIG,
             "the config is too long for outer.server: %zu bytes, at most %d: name the files of data.train by a "
             "pattern, not one by one",
             bytes, MESSAGE_JSON_LIMIT);
    /* a broken channel takes no message; channel_next reports it */
    if (p->first || message_send(p->channel, kind, round, text, bytes) == 0) {
        PeerMessage *w = xmalloc(sizeof *w + bytes, "a message to an island");
        *w = (PeerMessage){.kind = kind, .round = round, .bytes = bytes};
        if (bytes) memcpy(w->text, text, bytes);
        if (p->last) p->last->next = w;
        else         p->first = w;
        p->last = w;
    }
    free(text);
}

/* Sends REFUSE, the last message to this peer. Bytes that the peer sends from now on are dropped. */
static void peer_refuse(Peer *p, int code, const char *why) {
    Refuse refuse = {.code = code};
    if (p->is_ending) return;
    forget(p);
    snprintf(refuse.why, sizeof refuse.why, "%s", why);
    peer_say(p, MESSAGE_REFUSE, 0, &refuse);
    p->is_ending = 1;
}

/* Answers requests for weights x while the channel has space for a frame. A GET is answered with x itself. A GET_CHANGE
 * is answered with the change of x in the last round, or, if the server records what the island holds, since x was last
 * sent to it. */
static void send_values(Server *s, Peer *p) {
    HeldWeights *held = p->member && p->member->held.x ? &p->member->held : NULL;
    float       *block = NULL; /* [2 * MESSAGE_ELEMS] weights x of a frame, then the payload that holds their change */
    while (p->got < p->gets && channel_unsent(p->channel) <= CHANNEL_OUT_BYTES - CHANNEL_FRAME_BYTES) {
        PeerGet    *g = &p->get[p->got];
        int64_t     elems = g->elems < MESSAGE_ELEMS ? g->elems : MESSAGE_ELEMS;
        FrameType   type = g->kind != MESSAGE_CHANGE ? FRAME_F32 : held ? held->type : s->change.type;
        FrameHeader h = {.kind = (uint8_t)g->kind, .type = (uint8_t)type, .round = g->round, .offset = g->offset,
                         .elems = elems, .payload_bytes = (uint32_t)frame_value_bytes(type, elems)};
        const void *payload;
        if (g->kind == MESSAGE_CHANGE && !held) payload = round_change_frame(&s->change, g->offset, elems);
        else {
            if (!block) block = xmalloc(2 * sizeof *block * MESSAGE_ELEMS, "a frame of weights");
            server_weights_read(&s->weights, WEIGHTS_X, g->offset, elems, block);
            payload = g->kind == MESSAGE_CHANGE ? block + MESSAGE_ELEMS : block;
            if (g->kind == MESSAGE_CHANGE) held_change(held, g->offset, block, elems, block + MESSAGE_ELEMS);
            else if (held) held_fetch(held, g->offset, block, elems);
        }
        if (channel_send(p->channel, h, payload) != 1) break; /* the channel has space, so this result means that it is
                                                               * broken */
        g->offset += elems, g->elems -= elems;
        if (g->elems == 0) p->got++;
    }
    free(block);
    if (p->got == p->gets) p->got = p->gets = 0;
}

void peer_send(Server *s, Peer *p) {
    for (PeerMessage *w; (w = p->first); free(w)) {
        if (message_send(p->channel, w->kind, w->round, w->text, w->bytes) == 0) break;
        p->first = w->next;
        if (!w->next) p->last = NULL;
    }
    if (!p->first && p->is_ending) channel_end(p->channel);
    else if (!p->is_ending) send_values(s, p);
}

/* --- refusing and losing ------------------------------------------------------------------------------------------ */

Peer *server_first_rank(const Server *s, const Member *m) {
    for (int i = 0; i < s->peers.count; i++)
        if (s->peers.peer[i]->member == m && s->peers.peer[i]->rank == 0 && !s->peers.peer[i]->is_ending)
            return s->peers.peer[i];
    return NULL;
}

/* Writes the name of an island, "island 2 (id, address)", to out and returns out. */
static const char *name_of(const Server *s, const Member *m, char out[160]) {
    const Peer *p = NULL;
    for (int i = 0; i < s->peers.count; i++)
        if (s->peers.peer[i]->member == m && s->peers.peer[i]->rank == 0) p = s->peers.peer[i];
    snprintf(out, 160, "island %d (%s%s%s)", m->number, m->id, p ? ", " : "", p ? channel_peer(p->channel) : "");
    return out;
}

void server_take_back(Server *s, int64_t lease) {
    if (lease < 0 || !server_leads(s)) return;
    leases_return(&s->leases, lease);
    server_tell(s, MESSAGE_DROP, &(Drop){lease});
}

void server_refuse_member(Server *s, Member *m, int code, const char *why) {
    char name[160];
    warn("%s is refused: %s", name_of(s, m, name), why);
    server_take_back(s, m->state >= MEMBER_TRAINS ? m->lease.number : -1);
    m->state = MEMBER_GONE;
    for (int i = 0; i < s->peers.count; i++)
        if (s->peers.peer[i]->member == m) peer_refuse(s->peers.peer[i], code, why);
}

/* Refuses a peer and all other ranks of its island. */
static void refuse(Server *s, Peer *p, int code, const char *fmt, ...) PRINTF_LIKE(4, 5);
static void refuse(Server *s, Peer *p, int code, const char *fmt, ...) {
    char    why[MESSAGE_FAULT_BYTES];
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
    name_of(s, m, name);
    server_take_back(s, members_lose(m));
    if (!is_known && server_leads(s))
        s->parts.note("%s %s%s", name, why,
                      was == MEMBER_TRAINS ? ": its samples go back" : was == MEMBER_ENDED ? ": its delta counts" : "");
}

/* Removes a peer whose channel is broken. Its island is lost, unless this rank has sent all its deltas. */
static void lose_peer(Server *s, int i) {
    Peer   *p = s->peers.peer[i];
    Member *m = p->member;
    if (p->part && !s->is_dismissed && !s->lingers) server_lose_follower(p, channel_fault(p->channel)->text);
    if (p->part > 0) s->follower[p->part] = NULL;
    if (m && !p->is_ending && m->state != MEMBER_GONE && !(m->state == MEMBER_TRAINS && m->received[p->rank] == 2))
        server_lose_member(s, m, "is lost");
    else if (!m && channel_fault(p->channel)->code == EXIT_CONFIG) warn("%s", channel_fault(p->channel)->text);
    peers_remove(&s->peers, i);
}

/* --- does it fit? ------------------------------------------------------------------------------------------------- */

typedef struct {
    char  *text;
    size_t capacity;
    int    count;
} Differences;

/* Returns 1 if an island must have the same value of this config key as the server. These are the keys that a resume
 * must not change, and the keys in `also`. They decide the model, the order of samples, a step or a round. */
static int must_agree(const char *key) {
    static const char *const also[] = {"run.steps", "outer.every", "outer.wait"};
    const Option *o = option_find(key);
    for (size_t i = 0; i < sizeof also / sizeof *also; i++)
        if (!strcmp(also[i], key)) return 1;
    return o && o->fixed;
}

static void add_difference(void *ctx, const char *key, const cJSON *here, const cJSON *there) {
    Differences *d = (Differences *)ctx;
    char         island[SHOWN_BYTES] = "missing", server[SHOWN_BYTES] = "missing";
    if (!must_agree(key)) return;
    if (here) value_text(here, server);
    if (there) value_text(there, island);
    size_t used = strlen(d->text);
    snprintf(d->text + used, d->capacity - used, "%s%s is %s, and the server has %s", d->count++ ? "; " : "", key,
             island, server);
}

int server_config_differs(const Server *s, const cJSON *there, char *why, size_t bytes) {
    cJSON      *here = config_to_json(s->parts.config);
    Differences d = {why, bytes, 0};
    *why = 0;
    config_diff(here, there, add_difference, &d);
    char  *ours = config_blend(here), *theirs = config_blend(there);
    size_t used = strlen(why);
    if (strcmp(ours, theirs))
        snprintf(why + used, bytes - used, "%sdata.train is %s, and the server has %s", d.count++ ? "; " : "", theirs,
                 ours);
    free(ours), free(theirs);
    cJSON_Delete(here);
    return d.count > 0;
}

/* Compares the training files of an island with those of the server. Returns 0 if they are the same, or exit code 65
 * with the difference in why [bytes]. */
static int refuse_data(const Hello *hello, const Dataset *train, char *why, size_t bytes) {
    HelloData *here = hello_data(train);
    int        files = hello->data_files < train->shards ? hello->data_files : train->shards, code = 0;
    for (int i = 0; i < files && !code; i++) {
        const HelloData *a = &hello->data[i], *b = &here[i];
        if (json_reads_as(a->name, b->name) && a->tokens == b->tokens) continue;
        snprintf(why, bytes, "data.train: file %d is %s of %" PRId64 " tokens, and the server has %s of %" PRId64, i,
                 a->name, a->tokens, b->name, b->tokens);
        code = EXIT_DATA;
    }
    if (!code && (hello->data_files != train->shards || hello->samples != train->samples)) {
        snprintf(why, bytes, "data.train is %d files of %" PRId64 " samples, and the server has %d of %" PRId64,
                 hello->data_files, hello->samples, train->shards, train->samples);
        code = EXIT_DATA;
    }
    if (!code && strcmp(hello->data[0].fingerprint, here[0].fingerprint) != 0) {
        snprintf(why, bytes,
                 "data.train has the fingerprint %s, and the server %s: files of the same names and sizes hold other "
                 "tokens, or have another tokenizer beside them",
                 hello->data[0].fingerprint, here[0].fingerprint);
        code = EXIT_DATA;
    }
    free(here);
    return code;
}

/* Compares the HELLO message of an island with this server. Returns 0 if the island may join. Otherwise returns an exit
 * code for it, with a sentence in why [bytes] that has the values of both. Only the first server (the leader) compares
 * data. */
static int hello_refuse(const Server *s, const Hello *hello, char *why, size_t bytes) {
    if (server_config_differs(s, hello->config, why, bytes)) return EXIT_CONFIG;
    int code = s->parts.train ? refuse_data(hello, s->parts.train, why, bytes) : 0;
    if (code || hello->elems == s->elems) return code;
    snprintf(why, bytes, "the island's model has %" PRId64 " parameters, and the server's %" PRId64, hello->elems,
             s->elems);
    return EXIT_CONFIG;
}

/* --- frames ------------------------------------------------------------------------------------------------------- */

void server_say_closed(Server *s, Member *m, int islands, double norm, int64_t staleness) {
    Closed closed = {s->members.round, islands, norm, staleness, server_is_done(s)};
    for (int i = 0; i < s->peers.count; i++)
        if (s->peers.peer[i]->member == m && !s->peers.peer[i]->is_ending)
            peer_say(s->peers.peer[i], MESSAGE_CLOSED, closed.round, &closed);
    m->knows_end = closed.is_done;
}

static void welcome(Server *s, Peer *p) {
    char    name[160];
    Member *m = p->member;
    Welcome w = {.number = m->number, .round = s->members.round, .elems = s->elems, .part = s->parts.part,
                 .parts = s->parts.parts, .changes = round_change_type(s->parts.config) != FRAME_F32};
    peer_say(p, MESSAGE_WELCOME, w.round, &w);
    if (m->state != MEMBER_WAITS || !server_leads(s)) return;
    s->parts.note("%s has joined with %d rank%s", name_of(s, m, name), m->ranks, m->ranks == 1 ? "" : "s");
}

static void take_hello(Server *s, Peer *p, const void *payload, size_t bytes) {
    char    fault[MESSAGE_FAULT_BYTES] = "", why[MESSAGE_FAULT_BYTES];
    Hello   hello;
    int64_t was = -1;
    if (p->member) {
        refuse(s, p, EXIT_PEER, "the island sent a second HELLO");
        return;
    }
    if (!message_read(MESSAGE_HELLO, payload, bytes, &hello, fault)) {
        refuse(s, p, EXIT_PEER, "the island %s", fault);
        return;
    }
    int     code = hello_refuse(s, &hello, why, sizeof why);
    Member *m = code ? NULL : members_join(&s->members, &hello, clock_ms(), &was, fault);
    if (code) refuse(s, p, code, "%s", why);
    else if (!m) refuse(s, p, EXIT_PEER, "%s", fault);
    server_take_back(s, was);
    if (m) {
        if (m->joined == 1) server_drop_connections(s, m, p);
        const char *compress = cJSON_GetStringValue(json_member(json_member(hello.config, "outer"), "compress"));
        p->member = m, p->rank = hello.rank;
        m->takes_changes = compress && strcmp(compress, "none") != 0;
        welcome(s, p);
    }
    message_free(MESSAGE_HELLO, &hello);
}

/* Gives an island a lease on a follower, a server that does not know the leases. The first frame that an island sends
 * in a round shows that it has a lease. The END message of the island has the number of the lease. */
static void take_unknown_lease(Server *s, Member *m, int64_t round) {
    if (server_leads(s) || m->state != MEMBER_WAITS) return;
    members_give(&s->members, m, (Lease){.number = -1, .range.samples = MESSAGE_COUNT_LIMIT, .round = round});
}

static void take_delta(Server *s, Peer *p, const FrameHeader *h, const void *payload) {
    Member *m = p->member;
    int64_t from = h->offset - s->weights.first, elems = s->weights.elems;
    take_unknown_lease(s, m, h->round);
    if (m->state != MEMBER_TRAINS || m->received[p->rank] != 1 || h->round != m->lease.round)
        refuse(s, p, EXIT_PEER, "the island sent deltas of round %lld without a lease in it", (long long)h->round);
    else if (from < 0 || from + h->elems > elems)
        refuse(s, p, EXIT_PEER, "the island sent %lld elements from %lld on, which another server has",
               (long long)h->elems, (long long)h->offset);
    else if (m->elems + h->elems > elems)
        refuse(s, p, EXIT_PEER, "the island sent more than the %lld elements of its delta", (long long)elems);
    else if (!m->delta && !(m->delta = malloc(sizeof *m->delta * (size_t)elems)))
        refuse(s, p, EXIT_MEMORY, "the server has no memory for the delta of one more island");
    else {
        frame_unpack((FrameType)h->type, m->delta + from, payload, h->elems);
        m->elems += h->elems;
    }
}

static void take_end(Server *s, Peer *p, const void *payload, size_t bytes) {
    char    fault[MESSAGE_FAULT_BYTES] = "";
    End     end;
    Member *m = p->member;
    if (!message_read(MESSAGE_END, payload, bytes, &end, fault)) {
        refuse(s, p, EXIT_PEER, "the island %s", fault);
        return;
    }
    take_unknown_lease(s, m, end.round);
    if (!server_leads(s) && m->lease.number < 0) m->lease.number = end.lease;
    int ended = members_end(&s->members, m, p->rank, &end, s->weights.elems, fault);
    if (ended < 0) refuse(s, p, EXIT_PEER, "the island %s", fault);
    if (ended <= 0) return;
    if (m->state == MEMBER_WAITS) {
        server_take_back(s, m->lease.number); /* the island made no step, so the samples of its lease become free */
        return;
    }
    outer_squares(m->delta, s->weights.elems, &m->squares);
    if (!server_leads(s)) peer_say(s->leader, MESSAGE_PART_IN, 0, &(PartIn){m->lease.number, m->squares});
    else if (m->state == MEMBER_ENDED) server_judge_early(s, m);
}

static void take_bye(Server *s, Peer *p) {
    Member *m = p->member;
    if (m->state == MEMBER_TRAINS && m->received[p->rank] == 2) m->leaves = 1; /* the END messages of the other ranks of
                                                                                * the island are on their way */
    else server_lose_member(s, m, "leaves");
}

/* outer.wait=none: begins the record of the weights that an island with outer.compress fetches. Returns 0 if there is
 * no memory for it. */
static int may_hold(Server *s, Member *m) {
    FrameType type = held_type(s->parts.config);
    return type == FRAME_F32 || !m->takes_changes || m->held.x ||
           held_begin(&m->held, type, s->weights.first, s->weights.elems);
}

/* Queues an island's request for weights. With outer.wait=all the leader answers with the weights of the open round,
 * whichever round the request names. */
static void take_get(Server *s, Peer *p, const FrameHeader *h) {
    int64_t round = server_leads(s) && s->members.wait == WAIT_ALL ? s->members.round : h->round;
    int     is_here = h->offset >= s->weights.first && h->offset + h->elems <= s->weights.first + s->weights.elems;
    int     has_change = held_is_whole(&p->member->held) ||
                     (h->round == s->change.round && round_change_frame(&s->change, h->offset, h->elems));
    if (!is_here) refuse(s, p, EXIT_PEER, "the island asked for weights that another server has");
    else if (h->kind == MESSAGE_GET && !may_hold(s, p->member))
        refuse(s, p, EXIT_MEMORY, "the server has no memory for what one more island holds (outer.compress)");
    else if (h->kind == MESSAGE_GET_CHANGE && !has_change)
        refuse(s, p, EXIT_PEER,
               "the island asked for the change of %lld weights from %lld on in round %lld, and the last is of round "
               "%lld",
               (long long)h->elems, (long long)h->offset, (long long)h->round, (long long)s->change.round);
    else if (p->gets == PEER_GETS_MOST)
        refuse(s, p, EXIT_PEER, "the island asked for more than %d pieces at a time", PEER_GETS_MOST);
    else {
        p->get = xrealloc(p->get, sizeof *p->get * (size_t)(p->gets + 1), "what an island asks for");
        p->get[p->gets++] = (PeerGet){message_answer(h->kind), round, h->offset, h->elems};
    }
}

/* Handles a frame of another server. Returns 0 if no more frames of this peer are to be read. */
static int take_of_server(Server *s, Peer *p, const FrameHeader *h, const void *payload) {
    char fault[MESSAGE_FAULT_BYTES] = "";
    int  is_good = message_check(h, p->part == PEER_LEADER ? FROM_LEADER : FROM_FOLLOWER, fault);
    if (is_good) is_good = p->part == PEER_LEADER ? server_take_of_leader(s, h, payload, fault)
                           : p->part              ? server_take_of_follower(s, p, h, payload, fault)
                                                  : server_take_follow(s, p, payload, h->payload_bytes, fault);
    if (is_good) return 1;
    if (p->part) server_lose_follower(p, fault);
    refuse(s, p, EXIT_CONFIG, "the follower %s", fault);
    return 0;
}

/* Handles a frame of any peer. Returns 0 if no more frames of this peer are to be read. */
static int take_frame(Server *s, Peer *p, const FrameHeader *h, const void *payload) {
    char fault[MESSAGE_FAULT_BYTES] = "";
    if (p->part || (!p->member && h->kind == MESSAGE_FOLLOW)) return take_of_server(s, p, h, payload);
    if (!message_check(h, FROM_ISLAND, fault)) {
        refuse(s, p, EXIT_PEER, "the island %s", fault);
        return 0;
    }
    if (!p->member && h->kind != MESSAGE_HELLO) {
        refuse(s, p, EXIT_PEER, "the island sent %s before HELLO", message_name(h->kind));
        return 0;
    }
    if (p->member) p->member->heard_ms = clock_ms();
    switch (h->kind) {
        case MESSAGE_HELLO: take_hello(s, p, payload, h->payload_bytes); break;
        case MESSAGE_DELTA: take_delta(s, p, h, payload); break;
        case MESSAGE_END:   take_end(s, p, payload, h->payload_bytes); break;
        case MESSAGE_PING:  peer_say(p, MESSAGE_PING, 0, NULL); break;
        case MESSAGE_BYE:   take_bye(s, p); return 0;
        case MESSAGE_GET:
        case MESSAGE_GET_CHANGE: take_get(s, p, h); break;
        default: break;
    }
    return !p->is_ending;
}

int server_serve_peer(Server *s, int i) {
    Peer       *p = s->peers.peer[i];
    FrameHeader h;
    const void *payload;
    int         got, count = s->peers.count;
    if (channel_is_open(p->channel)) peer_send(s, p);
    while ((got = channel_next(p->channel, &h, &payload)) > 0) {
        int goes_on = take_frame(s, p, &h, payload);
        if (s->peers.count < count) return 0; /* other connections were removed, so the caller must read the list
                                               * again */
        if (!goes_on) break;
    }
    if (got > 0 && !p->is_ending) got = -1; /* the peer has sent BYE, so its connection is closed */
    if (got == 0 && !p->member && !p->part && !p->is_ending && clock_ms() - p->since_ms > PEER_HELLO_MS) got = -1;
    if (got < 0) lose_peer(s, i);
    else if (channel_is_open(p->channel)) peer_send(s, p);
    return got >= 0;
}
