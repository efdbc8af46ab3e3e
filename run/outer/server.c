/* server.c - the server of a run of islands, which are jobs that train one model together; see server.h.
 *
 * There may be several servers. The leader has part 0 of the model. It gives islands leases (samples to train on),
 * closes rounds and saves checkpoints. A follower holds a later part, receives the islands' deltas of it, and obeys the
 * leader's STEP messages. It keeps no leases and no checkpoint.
 */
#include "run/outer/server.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/thread.h"
#include "core/error.h"
#include "core/format.h"
#include "core/io.h"
#include "core/json.h"
#include "run/config/config.h"
#include "run/config/options.h"
#include "run/guard/requests.h"
#include "run/outer/server_peers.h"

static const double LOOK_MS = 100.0, TURN_MS = 200.0, PING_MS = 1000.0;

struct Server {
    ServerParts parts;
    Key         key;
    int         listening;               /* descriptor of the socket that accepts connections */
    Leases      leases;
    Members     members;
    Peers       peers;
    int64_t     elems, every, tokens;    /* number of parameters of the model; optimizer steps of a round; tokens of
                                          * completed rounds */
    double      patience_ms, round_began_ms, looked_ms; /* outer.patience_seconds in ms; time when the round began; time
                                                         * when server_turn last ended */
    int64_t     round_tokens, staleness; /* tokens of the deltas (weight changes) that were applied in the open round;
                                          * greatest age of these deltas, in rounds */
    double      round_loss;              /* sum of loss times tokens over the deltas (weight changes) that were applied
                                          * in the open round */
    double      norm;                    /* outer.send=gradients: norm of the last gradient */
    ServerWeights whole, weights;        /* whole: the whole model, on the first server. weights: the part of this
                                          * server */
    RoundChange change;                  /* outer.compress: rounded change of this server's part of the weights in the
                                          * last round */
    Peer      **follower;                /* first server (leader): [parts] connections to the other servers; NULL if not
                                          * connected, and for part 0; owned list */
    Peer       *leader;                  /* connection of a follower (server other than the first) to the leader (first
                                          * server) */
    Member    **counted;                 /* [counts] the training jobs whose deltas the next step applies; owned list */
    double     *weight;                  /* [counts] weights of the deltas in `counted`; owned */
    int         counts;                  /* number of entries in each of the lists `counted` and `weight` */
    int64_t     had;                     /* number of values of weights and optimizer state (STATE messages) that have
                                          * arrived */
    int         is_dismissed, code;      /* is_dismissed: 1 once the message OVER was sent or received. code: the exit
                                          * code in it */
    int         lingers;                 /* 1 after server_linger, when the run is over and saved; a server that
                                          * disconnects is then no fault */
    double      pinged_ms, made_ms;      /* time of the last PING to the first server (leader); time when this server
                                          * was created */
    ServerRound over;                    /* numbers of the round that ended last */
    int         is_over;                 /* 1 from the end of a round until server_turn or server_end_round has returned
                                          * `over` */
};

static int leads(const Server *s) { return s->parts.part == 0; }

int64_t server_step(const Server *s) { return s->members.round * s->every; }
Position server_position(const Server *s) { return (Position){server_step(s), s->tokens, s->leases.next_sample}; }
int     server_is_done(const Server *s) { return server_step(s) >= s->parts.config->run.steps; }
void    server_address(const Server *s, char *out) { channel_listening(s->listening, out); }
int64_t server_part_elems(const Server *s) { return s->weights.elems; }
int     server_islands(const Server *s) {
    return s->members.count - members_count(&s->members, MEMBER_GONE);
}

/* Returns 1 if all values of this server's part of the model have arrived from the first server. */
static int has_part(const Server *s) { return leads(s) || s->had == s->weights.elems * WEIGHTS_TENSORS; }

/* --- refusing and losing islands ---------------------------------------------------------------------------------- */

/* Returns the connection of rank 0 of the island (training job), or NULL. */
static Peer *first_rank(const Server *s, const Member *m) {
    for (int i = 0; i < s->peers.count; i++)
        if (s->peers.peer[i]->member == m && s->peers.peer[i]->rank == 0 && !s->peers.peer[i]->is_ending)
            return s->peers.peer[i];
    return NULL;
}

/* Writes the name of an island, "island 2 (id, address)", to out and returns out. */
static const char *name_of(const Server *s, const Member *m, char out[160]) {
    const Peer *p = first_rank(s, m);
    snprintf(out, 160, "island %d (%s%s%s)", m->number, m->id, p ? ", " : "", p ? channel_peer(p->channel) : "");
    return out;
}

/* Sends a message to all other servers, without waiting for an answer. */
static void tell_followers(Server *s, MessageKind kind, const void *m) {
    for (int k = 1; k < s->parts.parts; k++)
        if (s->follower[k]) message_send(s->follower[k]->channel, kind, 0, m);
}

/* Makes the samples of a lease (range of samples that an island had) free again. lease -1: does nothing. */
static void take_back(Server *s, int64_t lease) {
    if (lease < 0 || !leads(s)) return;
    leases_return(&s->leases, lease);
    tell_followers(s, MESSAGE_DROP, &(Drop){lease});
}

/* Refuses an island. All its connections end with the sentence `why`, and what it has sent does not count. */
static void refuse_member(Server *s, Member *m, int code, const char *why) {
    char name[160];
    warn("%s is refused: %s", name_of(s, m, name), why);
    take_back(s, m->state >= MEMBER_TRAINS ? m->lease.number : -1);
    m->state = MEMBER_GONE;
    for (int i = 0; i < s->peers.count; i++)
        if (s->peers.peer[i]->member == m) peer_refuse(s->peers.peer[i], code, why);
}

/* Refuses a peer and all other ranks of its island. The sentence is `who` and `why`; who may be "". */
static void refuse(Server *s, Peer *p, int code, const char *who, const char *why) {
    char text[MESSAGE_FAULT_BYTES];
    snprintf(text, sizeof text, "%s%.*s", who, MESSAGE_FAULT_BYTES - 32, why);
    if (p->member && p->member->state != MEMBER_GONE) {
        refuse_member(s, p->member, code, text);
    } else if (!p->is_ending) {
        warn("%s is refused: %s", channel_peer(p->channel), text);
        peer_refuse(p, code, text);
    }
}

/* Closes the connections of an island that is gone, except the connection `but`. */
static void drop_connections(Server *s, const Member *m, const Peer *but) {
    for (int i = s->peers.count; i-- > 0;) {
        const Peer *p = s->peers.peer[i];
        if (p != but && p->member == m && !p->is_ending) peers_remove(&s->peers, i);
    }
}

/* Records that an island has left or is lost. why: the reason, for the log. */
static void lose_member(Server *s, Member *m, const char *why) {
    char        name[160];
    MemberState was = m->state;
    int         is_known = m->leaves;
    name_of(s, m, name);
    take_back(s, members_lose(m));
    if (!is_known && leads(s))
        s->parts.note("%s %s%s", name, why,
                      was == MEMBER_TRAINS ? ": its samples go back" : was == MEMBER_ENDED ? ": its delta counts" : "");
}

/* Refuses an island if the norm of its delta is not finite. Called as soon as the sum of squares of the delta is
 * known. */
static void judge_early(Server *s, Member *m) {
    char fault[MESSAGE_FAULT_BYTES];
    m->norm = sqrt(exact_value(&m->squares));
    if (!isfinite(m->norm) && !members_judge(&s->members, m, fault)) refuse_member(s, m, EXIT_NUMERIC, fault);
}

/* --- several servers: sending and waiting ------------------------------------------------------------------------- */

static int64_t begin_of(const Server *s, int part) { return outer_part_begin(s->elems, part, s->parts.parts); }
static int64_t elems_of(const Server *s, int part) { return begin_of(s, part + 1) - begin_of(s, part); }

/* Ends the program because another server, with its part of the model, is lost. */
static void lose_server(const Peer *p, const char *why) {
    if (p->part == PEER_LEADER)
        fail(EXIT_PEER,
             "%s: the first server of outer.server is lost, so this server ends: start the first server again, then "
             "this one",
             why);
    fail(EXIT_PEER,
         "%s: part %d of the model is lost; start all servers again, and they go on from the newest checkpoint", why,
         p->part);
}

static void lose_silent(const Server *s, const Peer *p) {
    char why[160];
    snprintf(why, sizeof why, "%s has been silent for %g s (outer.patience_seconds)", channel_peer(p->channel),
             s->patience_ms * 1e-3);
    lose_server(p, why);
}

/* Time of the last byte through a connection, and the number of bytes until then. */
typedef struct { uint64_t bytes; double since_ms; } Quiet;

static int is_quiet(const Server *s, const Peer *p, Quiet *q) {
    uint64_t bytes = channel_sent_bytes(p->channel) + channel_received_bytes(p->channel);
    if (bytes != q->bytes || q->since_ms == 0.0) *q = (Quiet){bytes, clock_ms()};
    return clock_ms() - q->since_ms > s->patience_ms;
}

/* Sends the state of a part of the model: the tensors x, m and v (weights and optimizer state), frame by frame. Ends
 * the program if the peer is lost, or if nothing moves for outer.patience_seconds. */
static void send_state(Server *s, Peer *p, const ServerWeights *from, int64_t first, int64_t elems) {
    float *block = xmalloc(sizeof *block * MESSAGE_ELEMS, "a frame of weights");
    for (int64_t at = 0, n; at < elems * WEIGHTS_TENSORS; at += n) {
        int64_t inside = at % elems;
        n = smaller_of(elems - inside, MESSAGE_ELEMS);
        server_weights_read(from, (ServerTensor)(at / elems), first + inside, n, block);
        FrameHeader h = {.kind = MESSAGE_STATE, .type = FRAME_F32, .offset = first + inside, .elems = n,
                         .payload_bytes = (uint32_t)frame_value_bytes(FRAME_F32, n)};
        int sent;
        for (Quiet quiet = {0}; (sent = channel_send(p->channel, h, block)) == 0;) {
            if (channel_progress(p->channel) < 0 || is_quiet(s, p, &quiet)) break;
            channel_wait(&p->channel, 1, -1, LOOK_MS);
        }
        if (sent <= 0)
            lose_server(p, channel_is_broken(p->channel) ? channel_fault(p->channel)->text : channel_peer(p->channel));
    }
    free(block);
}

/* Stores one frame of the state of a part of the model: weights x or optimizer state m, v. Frames arrive in order.
 * Returns 0 with the reason in fault if the frame is not valid. */
static int take_state(Server *s, const FrameHeader *h, const void *payload, const ServerWeights *to, int64_t first,
                      int64_t elems, char *fault) {
    int64_t inside = s->had % elems;
    if (s->had >= elems * WEIGHTS_TENSORS || h->offset != first + inside || inside + h->elems > elems)
        return message_fault(fault, "sent STATE from element %lld on, out of order", (long long)h->offset);
    server_weights_write(to, (ServerTensor)(s->had / elems), h->offset, h->elems, (const float *)payload);
    s->had += h->elems;
    return 1;
}

/* --- does another program fit? ------------------------------------------------------------------------------------ */

typedef struct { char *text; size_t capacity; int count; } Differences;

/* Adds a config key if an island must have the same value of it as the server. These are the keys that a resume must
 * not change, and the keys in `also`. They decide the model, the order of samples, a step or a round. */
static void add_difference(void *ctx, const char *key, const cJSON *here, const cJSON *there) {
    static const char *const also[] = {"run.steps", "outer.every", "outer.wait"};
    Differences  *d = (Differences *)ctx;
    char          island[SHOWN_BYTES] = "missing", server[SHOWN_BYTES] = "missing";
    const Option *o = option_find(key);
    int           must_agree = o && o->fixed;
    for (size_t i = 0; i < sizeof also / sizeof *also; i++) must_agree |= !strcmp(also[i], key);
    if (!must_agree) return;
    if (here) value_text(here, server);
    if (there) value_text(there, island);
    size_t used = strlen(d->text);
    snprintf(d->text + used, d->capacity - used, "%s%s is %s, and the server has %s", d->count++ ? "; " : "", key,
             island, server);
}

/* Compares the config of another program with the config of this server. Returns 1 if values that must be equal differ,
 * with the differences in why [bytes]. */
static int config_differs(const Server *s, const cJSON *there, char *why, size_t bytes) {
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
    int        files = hello->data_files < train->shards ? hello->data_files : train->shards;
    *why = 0;
    for (int i = 0; i < files && !*why; i++) {
        const HelloData *a = &hello->data[i], *b = &here[i];
        if (json_reads_as(a->name, b->name) && a->tokens == b->tokens) continue;
        snprintf(why, bytes, "data.train: file %d is %s of %" PRId64 " tokens, and the server has %s of %" PRId64, i,
                 a->name, a->tokens, b->name, b->tokens);
    }
    if (!*why && (hello->data_files != train->shards || hello->samples != train->samples))
        snprintf(why, bytes, "data.train is %d files of %" PRId64 " samples, and the server has %d of %" PRId64,
                 hello->data_files, hello->samples, train->shards, train->samples);
    if (!*why && strcmp(hello->data[0].fingerprint, here[0].fingerprint) != 0)
        snprintf(why, bytes,
                 "data.train has the fingerprint %s, and the server %s: files of the same names and sizes hold other "
                 "tokens, or have another tokenizer beside them",
                 hello->data[0].fingerprint, here[0].fingerprint);
    free(here);
    return *why ? EXIT_DATA : 0;
}

/* --- the leader: frames of followers, and orders to them ---------------------------------------------------------- */

/* Handles the FOLLOW message of another server, and accepts it as a follower. Sends it the part of the weights that it
 * will hold, before anything else. Returns 0 with the reason in fault if it cannot follow. */
static int take_follow(Server *s, Peer *p, const void *payload, size_t bytes, char *fault) {
    char   differences[512] = "";
    Follow follow;
    if (!message_read(MESSAGE_FOLLOW, payload, bytes, &follow, fault)) return 0;
    int k = follow.part;
    if (follow.parts != s->parts.parts)
        message_fault(fault, "has part %d of %d, and outer.server names %d servers here: give all servers the "
                      "same outer.server", k, follow.parts, s->parts.parts);
    else if (follow.elems != s->elems)
        message_fault(fault, "has a model of %lld parameters, and this one has %lld", (long long)follow.elems,
                      (long long)s->elems);
    else if (config_differs(s, follow.config, differences, sizeof differences))
        message_fault(fault, "has another config: %s", differences);
    else if (!leads(s)) message_fault(fault, "has part %d, and this server has part %d: the first address of "
                                        "outer.server must be that of part 0", k, s->parts.part);
    else if (s->follower[k]) message_fault(fault, "has part %d, which another has: give each server a part= "
                                              "of its own", k);
    message_free(MESSAGE_FOLLOW, &follow);
    if (*fault) return 0;
    p->part = k;
    s->follower[k] = p;
    s->parts.note("part %d of %d is held by %s", k, s->parts.parts, channel_peer(p->channel));
    send_state(s, p, &s->whole, begin_of(s, k), elems_of(s, k));
    return 1;
}

static int take_of_follower(Server *s, Peer *p, const FrameHeader *h, const void *payload, char *fault) {
    PartIn  in;
    Stepped stepped;
    Member *m;
    switch (h->kind) {
        case MESSAGE_PING: message_send(p->channel, MESSAGE_PING, 0, NULL); return 1;
        case MESSAGE_STATE:
            return take_state(s, h, payload, &s->whole, begin_of(s, p->part), elems_of(s, p->part), fault);
        case MESSAGE_PART_IN:
            if (!message_read(MESSAGE_PART_IN, payload, h->payload_bytes, &in, fault)) return 0;
            if (!members_part_in(&s->members, in.lease, &in.squares))
                message_send(p->channel, MESSAGE_DROP, 0, &(Drop){in.lease});
            else if ((m = members_of_lease(&s->members, in.lease))->state == MEMBER_ENDED) judge_early(s, m);
            return 1;
        case MESSAGE_STEPPED:
            if (!message_read(MESSAGE_STEPPED, payload, h->payload_bytes, &stepped, fault)) return 0;
            p->squares = stepped.squares, p->has_answer = 1;
            return 1;
        /* any other message is a second FOLLOW */
        default: return message_fault(fault, "sent a second %s", message_name(h->kind));
    }
}

/* Adds the delta (weight change) of an island to those that the next step applies. weight: weight of the delta in their
 * mean. */
static void count_delta(Server *s, Member *m, double weight) {
    size_t most = (size_t)s->members.count;
    s->counted = xrealloc(s->counted, sizeof *s->counted * most, "a list of islands");
    s->weight = xrealloc(s->weight, sizeof *s->weight * most, "a list of islands");
    s->counted[s->counts] = m, s->weight[s->counts++] = weight;
    if (leads(s)) tell_followers(s, MESSAGE_COUNT, &(Count){m->lease.number, weight});
}

/* Applies a step to the part of the model that this server holds. STEP_MEAN leaves the mean of the counted deltas in
 * the memory of the first of them. With outer.wait=all any other rule ends a round. The server then computes the change
 * of the weights that it sends to islands. All counted islands have leases of the same round. */
static void step_part(Server *s, const Step *step, Exact *squares) {
    const Member *one = s->counts ? s->counted[0] : NULL;
    float        *d = one ? one->delta : NULL;
    if (step->rule == STEP_MEAN) {
        const float **delta = xmalloc(sizeof *delta * (size_t)s->counts, "the mean of the islands");
        for (int i = 0; i < s->counts; i++) delta[i] = s->counted[i]->delta;
        outer_mean(d, delta, s->weight, s->counts, s->weights.elems);
        free(delta);
        server_weights_step(&s->weights, step, d, squares);
        return;
    }
    round_change_begin(&s->change, &s->weights);
    server_weights_step(&s->weights, step, d, squares);
    round_change_end(&s->change, &s->weights, one ? one->lease.round + 1 : 0);
    if (step->rule != STEP_MOMENTUM) s->counts = 0;
}

/* Waits for one follower (another server), and reads no other connection. If state_elems is 0, waits until it has
 * answered a STEP message. Otherwise waits until it has sent so many values of its weights and optimizer state. */
static void await_answer(Server *s, Peer *p, int64_t state_elems) {
    Quiet       quiet = {0};
    FrameHeader h;
    const void *payload;
    char        fault[MESSAGE_FAULT_BYTES] = "";
    while (state_elems ? s->had < state_elems : !p->has_answer) {
        int got = channel_next(p->channel, &h, &payload);
        if (got > 0 && (!message_check(&h, FROM_FOLLOWER, fault) || !take_of_follower(s, p, &h, payload, fault)))
            lose_server(p, fault);
        if (got < 0) lose_server(p, channel_fault(p->channel)->text);
        if (got == 0 && is_quiet(s, p, &quiet)) lose_silent(s, p);
        if (got == 0) channel_wait(&p->channel, 1, -1, LOOK_MS);
    }
}

/* Applies a step to all parts of the model, of which each server has one. Waits until all other servers have done it,
 * and adds their sums of squares to *squares. */
static void order_step(Server *s, const Step *step, Exact *squares) {
    for (int k = 1; k < s->parts.parts; k++) s->follower[k]->has_answer = 0;
    tell_followers(s, MESSAGE_STEP, step);
    for (int k = 1; k < s->parts.parts; k++) channel_progress(s->follower[k]->channel);
    step_part(s, step, squares);
    for (int k = 1; k < s->parts.parts; k++) {
        await_answer(s, s->follower[k], 0);
        exact_merge(squares, &s->follower[k]->squares);
    }
}

void server_collect(Server *s) {
    for (int k = 1; k < s->parts.parts; k++) {
        if (!s->follower[k]) continue; /* no round was opened yet, so this first server still has all parts of the
                                        * model */
        s->had = 0;
        message_send(s->follower[k]->channel, MESSAGE_COLLECT, 0, NULL);
        await_answer(s, s->follower[k], elems_of(s, k) * WEIGHTS_TENSORS);
    }
}

void server_dismiss(Server *s, int code) {
    s->is_dismissed = 1;
    tell_followers(s, MESSAGE_OVER, &(Over){code});
    for (int k = 1; k < s->parts.parts; k++)
        if (s->follower[k]) channel_flush(s->follower[k]->channel, s->patience_ms);
}

static int is_whole(const Server *s) {
    for (int k = 1; k < s->parts.parts; k++)
        if (!s->follower[k]) return 0;
    return 1;
}

void server_linger(Server *s) { s->lingers = 1; }

/* --- a follower: frames of the leader ----------------------------------------------------------------------------- */

static Member *ended_with(const Server *s, int64_t lease) {
    Member *m = members_of_lease(&s->members, lease);
    return m && m->state == MEMBER_ENDED ? m : NULL;
}

static int take_step(Server *s, const Step *step, char *fault) {
    Stepped stepped = {{{0}}};
    int     counts = s->counts;
    if (counts == 0 && step->rule != STEP_MOMENTUM)
        return message_fault(fault, "sent STEP %d without a delta that counts", step->rule);
    step_part(s, step, &stepped.squares);
    for (int i = 0; s->counts == 0 && i < counts; i++) members_counted(&s->members, s->counted[i]);
    message_send(s->leader->channel, MESSAGE_STEPPED, 0, &stepped);
    return 1;
}

/* Handles a frame that the first server (the leader) sent. Returns 1, or 0 with the reason in fault. */
static int take_of_leader(Server *s, const FrameHeader *h, const void *payload, char *fault) {
    union { Count count; Drop drop; Step step; Refuse refuse; Over over; } in;
    const ServerWeights *w = &s->weights;
    Member              *m;
    int                  is_json = h->type == FRAME_BYTES && h->payload_bytes > 0;
    if (is_json && !message_read((MessageKind)h->kind, payload, h->payload_bytes, &in, fault)) return 0;
    switch (h->kind) {
        case MESSAGE_STATE: return take_state(s, h, payload, w, w->first, w->elems, fault);
        case MESSAGE_STEP:  return take_step(s, &in.step, fault);
        case MESSAGE_COUNT:
            m = ended_with(s, in.count.lease);
            if (!m || s->counts == s->members.count)
                return message_fault(fault, "counts lease %lld, of which there is no delta here",
                                     (long long)in.count.lease);
            count_delta(s, m, in.count.weight);
            break;
        case MESSAGE_DROP:
            if ((m = ended_with(s, in.drop.lease))) members_counted(&s->members, m);
            break;
        case MESSAGE_COLLECT: send_state(s, s->leader, w, w->first, w->elems); break;
        case MESSAGE_REFUSE:  fail(in.refuse.code, "%s: %s", channel_peer(s->leader->channel), in.refuse.why);
        case MESSAGE_OVER:    s->is_dismissed = 1, s->code = in.over.code; break;
        default: break; /* PING: nothing to do */
    }
    return 1;
}

/* --- frames of islands --------------------------------------------------------------------------------------------
 * Each take_ function handles a frame. It returns 0, or an exit code if the island must be refused. Then it writes the
 * reason to why [MESSAGE_FAULT_BYTES]: with EXIT_PEER the rest of a sentence about the island, otherwise a sentence. */

static void say_closed(Server *s, Member *m, int islands, double norm, int64_t staleness) {
    Closed closed = {s->members.round, islands, norm, staleness, server_is_done(s)};
    for (int i = 0; i < s->peers.count; i++)
        if (s->peers.peer[i]->member == m && !s->peers.peer[i]->is_ending)
            message_send(s->peers.peer[i]->channel, MESSAGE_CLOSED, closed.round, &closed);
    m->knows_end = closed.is_done;
}

static int take_hello(Server *s, Peer *p, const void *payload, size_t bytes, char *why) {
    Hello   hello;
    int64_t was = -1;
    if (p->member) return fault_text(why, MESSAGE_FAULT_BYTES, EXIT_PEER, "sent the message HELLO twice" OTHER_VERSION);
    if (!message_read(MESSAGE_HELLO, payload, bytes, &hello, why)) return EXIT_PEER;
    int code = config_differs(s, hello.config, why, MESSAGE_FAULT_BYTES) ? EXIT_CONFIG : 0;
    /* only the first server (the leader) has the data */
    if (!code && s->parts.train) code = refuse_data(&hello, s->parts.train, why, MESSAGE_FAULT_BYTES);
    if (!code && hello.elems != s->elems)
        code = fault_text(why, MESSAGE_FAULT_BYTES, EXIT_CONFIG,
                          "the island's model has %" PRId64 " parameters, and the server's %" PRId64, hello.elems,
                          s->elems);
    Member *m = code ? NULL : members_join(&s->members, &hello, clock_ms(), &was, why);
    if (!code && !m) code = EXIT_PEER;
    take_back(s, was);
    if (m) {
        if (m->joined == 1) drop_connections(s, m, p);
        const char *compress = cJSON_GetStringValue(json_member(json_member(hello.config, "outer"), "compress"));
        p->member = m, p->rank = hello.rank;
        m->takes_changes = compress && strcmp(compress, "none") != 0;
        Welcome w = {.number = m->number, .round = s->members.round, .elems = s->elems, .part = s->parts.part,
                     .parts = s->parts.parts, .changes = round_change_type(s->parts.config) != FRAME_F32};
        message_send(p->channel, MESSAGE_WELCOME, w.round, &w);
        char name[160];
        if (m->state == MEMBER_WAITS && leads(s))
            s->parts.note("%s has joined with %d rank%s", name_of(s, m, name), m->ranks, plural(m->ranks));
    }
    message_free(MESSAGE_HELLO, &hello);
    return code;
}

/* Gives an island a lease (samples) on a follower, a server that does not know the leases. The first frame that an
 * island sends in a round shows that it has a lease. The END message of the island has the number of the lease. */
static void take_unknown_lease(Server *s, Member *m, int64_t round) {
    if (leads(s) || m->state != MEMBER_WAITS) return;
    members_give(&s->members, m, (Lease){.number = -1, .range.samples = MESSAGE_COUNT_LIMIT, .round = round});
}

static int take_delta(Server *s, Peer *p, const FrameHeader *h, const void *payload, char *why) {
    Member *m = p->member;
    int64_t from = h->offset - s->weights.first, elems = s->weights.elems;
    take_unknown_lease(s, m, h->round);
    if (m->state != MEMBER_TRAINS || m->received[p->rank] != 1 || h->round != m->lease.round)
        return fault_text(why, MESSAGE_FAULT_BYTES, EXIT_PEER,
                          "sent weight changes of round %lld, for which the server gave it no samples" OTHER_VERSION,
                          (long long)h->round);
    if (from < 0 || from + h->elems > elems)
        return fault_text(why, MESSAGE_FAULT_BYTES, EXIT_PEER,
                          "sent weight changes of the %lld parameters from %lld on, which belong to another "
                          "server" OTHER_VERSION,
                          (long long)h->elems, (long long)h->offset);
    if (m->elems + h->elems > elems)
        return fault_text(why, MESSAGE_FAULT_BYTES, EXIT_PEER,
                          "sent weight changes of more than the %lld parameters of this server" OTHER_VERSION,
                          (long long)elems);
    if (!m->delta && !(m->delta = malloc(sizeof *m->delta * (size_t)elems)))
        return fault_text(why, MESSAGE_FAULT_BYTES, EXIT_MEMORY,
                          "the server is out of memory for the weight changes of one more training job; give the "
                          "server more memory, or start fewer jobs");
    frame_unpack((FrameType)h->type, m->delta + from, payload, h->elems);
    m->elems += h->elems;
    return 0;
}

static int take_end(Server *s, Peer *p, const void *payload, size_t bytes, char *why) {
    End     end;
    Member *m = p->member;
    if (!message_read(MESSAGE_END, payload, bytes, &end, why)) return EXIT_PEER;
    take_unknown_lease(s, m, end.round);
    if (!leads(s) && m->lease.number < 0) m->lease.number = end.lease;
    int ended = members_end(&s->members, m, p->rank, &end, s->weights.elems, why);
    if (ended <= 0) return ended < 0 ? EXIT_PEER : 0;
    if (m->state == MEMBER_WAITS) {
        take_back(s, m->lease.number); /* the training job made no step, so the samples of its lease become free */
        return 0;
    }
    outer_squares(m->delta, s->weights.elems, &m->squares);
    if (!leads(s)) message_send(s->leader->channel, MESSAGE_PART_IN, 0, &(PartIn){m->lease.number, m->squares});
    else if (m->state == MEMBER_ENDED) judge_early(s, m);
    return 0;
}

/* Queues the request of an island for weights. With outer.wait=all the first server (the leader) answers with the
 * weights of the open round, whichever round the request names. */
static int take_get(Server *s, Peer *p, const FrameHeader *h, char *why) {
    int64_t round = leads(s) && s->members.wait == WAIT_ALL ? s->members.round : h->round;
    int     is_here = h->offset >= s->weights.first && h->offset + h->elems <= s->weights.first + s->weights.elems;
    Member *m = p->member;
    int     has_change = held_is_whole(&m->held) ||
                     (h->round == s->change.round && round_change_frame(&s->change, h->offset, h->elems));
    if (!is_here)
        return fault_text(why, MESSAGE_FAULT_BYTES, EXIT_PEER,
                          "asked for weights that another server has" OTHER_VERSION);
    /* outer.wait=none with outer.compress: the server records the weights that an island fetches */
    FrameType type = held_type(s->parts.config);
    if (h->kind == MESSAGE_GET && type != FRAME_F32 && m->takes_changes && !m->held.x &&
        !held_begin(&m->held, type, s->weights.first, s->weights.elems))
        return fault_text(why, MESSAGE_FAULT_BYTES, EXIT_MEMORY,
                          "the server is out of memory for one more training job with outer.compress: give the server "
                          "more memory, start fewer jobs, or start this job with outer.compress=none");
    if (h->kind == MESSAGE_GET_CHANGE && !has_change)
        return fault_text(why, MESSAGE_FAULT_BYTES, EXIT_PEER,
                          "asked for the change of %lld weights from %lld on in round %lld, and the last that the "
                          "server has is of round %lld (-1: none)" OTHER_VERSION,
                          (long long)h->elems, (long long)h->offset, (long long)h->round, (long long)s->change.round);
    if (p->gets == PEER_GETS_MOST)
        return fault_text(why, MESSAGE_FAULT_BYTES, EXIT_PEER,
                          "has more than %d requests for weights open at a time" OTHER_VERSION, PEER_GETS_MOST);
    p->get = xrealloc(p->get, sizeof *p->get * (size_t)(p->gets + 1), "what an island asks for");
    p->get[p->gets++] = (PeerGet){message_answer(h->kind), round, h->offset, h->elems};
    return 0;
}

/* --- frames of any peer ------------------------------------------------------------------------------------------- */

/* Answers requests for weights x while the channel has space for a frame. A GET is answered with x itself. A GET_CHANGE
 * is answered with the change of x in the last round. If the server records what the island holds, it is answered with
 * the change since x was last sent to it. A frame of values has the round of its request. */
static void send_values(Server *s, Peer *p) {
    HeldWeights *held = p->member && p->member->held.x ? &p->member->held : NULL;
    float       *block = NULL; /* [2 * MESSAGE_ELEMS] weights x of a frame, then the payload that holds their change */
    while (!p->is_ending && p->got < p->gets && channel_has_space(p->channel)) {
        PeerGet    *g = &p->get[p->got];
        int64_t     elems = smaller_of(g->elems, MESSAGE_ELEMS);
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

/* Handles a frame of another server. Returns 0 if no more frames of this peer are to be read. */
static int take_of_server(Server *s, Peer *p, const FrameHeader *h, const void *payload) {
    char fault[MESSAGE_FAULT_BYTES] = "";
    int  is_good = message_check(h, p->part == PEER_LEADER ? FROM_LEADER : FROM_FOLLOWER, fault);
    if (is_good) is_good = p->part == PEER_LEADER ? take_of_leader(s, h, payload, fault)
                           : p->part              ? take_of_follower(s, p, h, payload, fault)
                                                  : take_follow(s, p, payload, h->payload_bytes, fault);
    if (is_good) return 1;
    if (p->part) lose_server(p, fault);
    refuse(s, p, EXIT_CONFIG, "the follower ", fault);
    return 0;
}

/* Handles a frame of any peer. Returns 0 if no more frames of this peer are to be read. */
static int take_frame(Server *s, Peer *p, const FrameHeader *h, const void *payload) {
    char why[MESSAGE_FAULT_BYTES] = "";
    int  code = 0;
    if (p->part || (!p->member && h->kind == MESSAGE_FOLLOW)) return take_of_server(s, p, h, payload);
    if (p->member) p->member->heard_ms = clock_ms();
    if (!message_check(h, FROM_ISLAND, why)) code = EXIT_PEER;
    else if (!p->member && h->kind != MESSAGE_HELLO)
        code = fault_text(why, sizeof why, EXIT_PEER, "sent the message %s before HELLO" OTHER_VERSION,
                          message_name(h->kind));
    else
        switch (h->kind) {
            case MESSAGE_HELLO: code = take_hello(s, p, payload, h->payload_bytes, why); break;
            case MESSAGE_DELTA: code = take_delta(s, p, h, payload, why); break;
            case MESSAGE_END:   code = take_end(s, p, payload, h->payload_bytes, why); break;
            case MESSAGE_PING:  message_send(p->channel, MESSAGE_PING, 0, NULL); break;
            case MESSAGE_BYE:
                /* 2: this rank has sent its END message, and those of other ranks of the job are on their way */
                if (p->member->state == MEMBER_TRAINS && p->member->received[p->rank] == 2) p->member->leaves = 1;
                else lose_member(s, p->member, "leaves");
                return 0;
            default:            code = take_get(s, p, h, why); break; /* GET or GET_CHANGE */
        }
    if (code) refuse(s, p, code, code == EXIT_PEER ? "the island " : "", why);
    return !p->is_ending;
}

/* Removes a peer whose channel is broken. Its island is lost, unless this rank has sent all its deltas. */
static void lose_peer(Server *s, int i) {
    Peer   *p = s->peers.peer[i];
    Member *m = p->member;
    if (p->part && !s->is_dismissed && !s->lingers) lose_server(p, channel_fault(p->channel)->text);
    if (p->part > 0) s->follower[p->part] = NULL;
    if (m && !p->is_ending && m->state != MEMBER_GONE && !(m->state == MEMBER_TRAINS && m->received[p->rank] == 2))
        lose_member(s, m, "is lost");
    else if (!m && channel_fault(p->channel)->code == EXIT_CONFIG) warn("%s", channel_fault(p->channel)->text);
    peers_remove(&s->peers, i);
}

/* Reads what connection number i has sent, and sends to it. Returns 0 if a connection was removed from the list; the
 * caller must then read the list again. */
static int serve_peer(Server *s, int i) {
    Peer       *p = s->peers.peer[i];
    FrameHeader h;
    const void *payload;
    int         got, count = s->peers.count;
    if (channel_is_open(p->channel)) send_values(s, p);
    while ((got = channel_next(p->channel, &h, &payload)) > 0) {
        int goes_on = take_frame(s, p, &h, payload);
        if (s->peers.count < count) return 0; /* other connections were removed, so the caller must read the list
                                               * again */
        if (!goes_on) break;
    }
    /* take_frame() ended the loop. Unless the peer is refused, it has sent BYE (it leaves), and its connection is
     * closed. */
    if (got > 0 && !p->is_ending) got = -1;
    if (got == 0 && !p->member && !p->part && !p->is_ending && clock_ms() - p->since_ms > PEER_HELLO_MS) got = -1;
    if (got < 0) lose_peer(s, i);
    else if (channel_is_open(p->channel)) send_values(s, p);
    return got >= 0;
}

/* --- ending a round ----------------------------------------------------------------------------------------------- */

static int takes_gradients(const Server *s) { return s->parts.config->outer.send == SEND_GRADIENTS; }

/* Applies AdamW with the mean gradient that islands sent. norm: norm of that gradient. The bias correction counts the
 * updates since the moments were zero. */
static void step_adamw(Server *s, double norm) {
    const Config *c = s->parts.config;
    Exact         unused = {{0}};
    int64_t       before = s->members.wait == WAIT_ALL ? server_step(s)
                                                       : (s->tokens + s->round_tokens) / c->batch.global_tokens;
    Step step = {.rule = STEP_ADAMW, .learning_rate = schedule_lr(c, server_step(s)), .momentum = c->optimizer.beta1,
                 .scale = clip_scale(norm, c->optimizer.grad_clip), .beta2 = c->optimizer.beta2,
                 .eps = c->optimizer.eps, .weight_decay = schedule_weight_decay(c, server_step(s)),
                 .update = before + 1};
    order_step(s, &step, &unused);
    s->norm = norm;
}

/* Applies a rule to the deltas that were counted. scale: factor of the delta for STEP_ARRIVAL. Returns the square root
 * of the sum of squares that the rule computes. */
static double step_outer(Server *s, StepRule rule, double scale) {
    const Config *c = s->parts.config;
    Exact         squares = {{0}};
    Step step = {.rule = rule, .learning_rate = c->outer.learning_rate, .momentum = c->outer.momentum, .scale = scale};
    order_step(s, &step, &squares);
    return sqrt(exact_value(&squares));
}

/* Ends the open round. What the server receives after this call belongs to the next round. */
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

/* Records that the delta of an island was applied to the weights: marks its samples as used, and adds its tokens and
 * loss to the numbers of the round. */
static void has_counted(Server *s, Member *m) {
    leases_done(&s->leases, m->lease.number, m->end.samples, s->members.round);
    s->round_tokens += m->end.tokens;
    s->round_loss += m->end.loss * (double)m->end.tokens;
    members_counted(&s->members, m);
}

/* outer.wait=none: applies momentum, and ends the round that consists of the deltas that have arrived. */
static void end_arrivals(Server *s) {
    double norm = takes_gradients(s) ? s->norm : step_outer(s, STEP_MOMENTUM, 0.0);
    end_round(s, (int)s->members.of_round, norm);
}

static void count_arrival(Server *s, Member *m) {
    char fault[MESSAGE_FAULT_BYTES];
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
    count_delta(s, m, 1.0);
    if (takes_gradients(s)) step_adamw(s, m->norm);
    else step_outer(s, STEP_ARRIVAL, 1.0 / ((1.0 + (double)staleness) * (double)larger_of(here, 1)));
    if (staleness > s->staleness) s->staleness = staleness;
    has_counted(s, m);
    leases_sync(&s->leases);
    if (members_round_is_full(&s->members)) end_arrivals(s);
    say_closed(s, m, here, m->norm, staleness);
}

/* outer.wait=none: applies each delta that has arrived to the weights x, until the round ends. */
static void count_arrivals(Server *s) {
    if (s->members.wait == WAIT_ALL) return;
    for (int i = 0; i < s->members.count && !s->is_over; i++)
        if (s->members.member[i]->state == MEMBER_ENDED) count_arrival(s, s->members.member[i]);
}

int server_end_round(Server *s, ServerRound *over) {
    if (s->members.wait == WAIT_ALL || s->members.of_round == 0) return 0;
    end_arrivals(s);
    *over = s->over, s->is_over = 0;
    return 1;
}

/* Closes a round of outer.wait=all, in which every island has sent its delta or left. Refuses deltas whose norm is not
 * finite or too far from the others. Computes the new weights from the rest. */
static void close_round(Server *s) {
    Members *ms = &s->members;
    char     fault[MESSAGE_FAULT_BYTES];
    for (int i = 0; i < ms->count; i++)
        if (ms->member[i]->state == MEMBER_ENDED && !members_judge(ms, ms->member[i], fault))
            refuse_member(s, ms->member[i], EXIT_NUMERIC, fault);
    int islands = members_count(ms, MEMBER_ENDED);
    if (islands == 0) return;
    for (int i = 0; i < ms->count; i++)
        if (ms->member[i]->state == MEMBER_ENDED) count_delta(s, ms->member[i], (double)ms->member[i]->end.tokens);
    double norm = step_outer(s, STEP_MEAN, 0.0);
    if (takes_gradients(s)) step_adamw(s, norm);
    else step_outer(s, STEP_NESTEROV, 0.0);
    for (int i = 0; i < ms->count; i++)
        if (ms->member[i]->state == MEMBER_ENDED) has_counted(s, ms->member[i]);
    leases_sync(&s->leases);
    end_round(s, islands, norm);
    for (int i = 0; i < ms->count; i++)
        if (ms->member[i]->state == MEMBER_WAITS) say_closed(s, ms->member[i], islands, norm, 0);
}

/* --- opening a round ---------------------------------------------------------------------------------------------- */

/* Gives a lease to every island that waits. The leases are on disk before an island receives one. */
static void open_round(Server *s) {
    Members *ms = &s->members;
    int64_t  unit = ms->step_samples;
    int      islands = ms->wait == WAIT_NONE ? members_here(ms) : members_count(ms, MEMBER_WAITS);
    if (!ms->has_begun) s->round_began_ms = clock_ms();
    char *is_new = xcalloc((size_t)ms->count, 1, "opening a round");
    for (int i = 0; i < ms->count; i++) {
        Member *m = ms->member[i];
        if (m->state != MEMBER_WAITS) continue;
        members_give(ms, m, leases_give(&s->leases, s->every * unit, m->id, ms->round));
        is_new[i] = 1;
    }
    leases_sync(&s->leases);
    for (int i = 0; i < ms->count; i++) {
        const Lease *l = &ms->member[i]->lease;
        Open  open = {ms->round, server_step(s), l->range.samples / unit, l->range.first, l->range.samples, islands,
                      l->number};
        Peer *p = is_new[i] ? first_rank(s, ms->member[i]) : NULL;
        if (p) message_send(p->channel, MESSAGE_OPEN, open.round, &open);
    }
    free(is_new);
}

/* --- the loop ----------------------------------------------------------------------------------------------------- */

/* Frees the memory and connections of islands that are gone. */
static void sweep(Server *s) {
    for (int i = 0; i < s->members.count; i++) {
        Member *m = s->members.member[i];
        if (m->state != MEMBER_GONE || !m->received) continue;
        drop_connections(s, m, NULL);
        free(m->delta), free(m->received);
        m->delta = NULL, m->received = NULL;
        held_forget(&m->held);
    }
}

/* Ends and begins rounds. Only the first server, which leads the others, calls it. At the end of the run it informs the
 * islands that wait for a round. It also informs those whose deltas arrive too late for one. */
static void lead(Server *s) {
    Members *ms = &s->members;
    count_arrivals(s);
    for (int k = 1; k < s->parts.parts && !s->lingers; k++) {
        const Peer *p = s->follower[k];
        if (!p && clock_ms() - s->made_ms > s->patience_ms)
            fail(EXIT_PEER,
                 "the server with part=%d/%d has not connected for %g s (outer.patience_seconds): start "
                 "that server, then this one again",
                 k, s->parts.parts, s->patience_ms * 1e-3);
        if (p && !s->is_dismissed && channel_silent_ms(p->channel) > s->patience_ms) lose_silent(s, p);
    }
    if (members_may_close(ms)) close_round(s);
    sweep(s);
    if (!server_is_done(s) && is_whole(s) && members_may_open(ms)) open_round(s);
    for (int i = 0; server_is_done(s) && i < ms->count; i++)
        if (ms->member[i]->state == MEMBER_WAITS && !ms->member[i]->knows_end)
            say_closed(s, ms->member[i], 0, 0.0, 0);
    leases_sync(&s->leases);
}

int server_turn(Server *s, double ms, ServerRound *over) {
    int      may_accept = s->peers.count < PEERS_MOST && has_part(s);
    double   before = clock_ms();
    if (before - s->looked_ms > s->patience_ms / 2) /* this server's process did not run for long, so silence in that
                                                     * time does not count against the training jobs */
        for (int i = 0; i < s->members.count; i++) s->members.member[i]->heard_ms += before - s->looked_ms;
    peers_wait(&s->peers, may_accept ? s->listening : -1, ms);
    if (may_accept) peers_accept(&s->peers, s->listening, &s->key, s->elems);
    for (int i = 0; i < s->peers.count && !s->is_over;) {
        if (serve_peer(s, i)) i++;
        if (leads(s)) count_arrivals(s);
    }
    char    why[80];
    Member *silent;
    while ((silent = members_silent(&s->members, clock_ms(), s->patience_ms))) {
        snprintf(why, sizeof why, "has been silent for %g s (outer.patience_seconds)", s->patience_ms * 1e-3);
        silent->leaves = 0;
        lose_member(s, silent, why);
    }
    if (leads(s)) lead(s);
    else sweep(s);
    s->looked_ms = clock_ms();
    if (!s->is_over) return 0;
    *over = s->over, s->is_over = 0;
    return 1;
}

/* --- a follower: its loop ----------------------------------------------------------------------------------------- */

static int is_stopped(void *unused) {
    (void)unused;
    return signals_stop();
}

int server_follow(Server *s, void (*ready)(const Server *s)) {
    ServerRound  over;
    ChannelFault fault = {0};
    char         address[OUTER_ADDRESS_BYTES];
    int          is_ready = 0, heard = 0;
    outer_server(s->parts.config->outer.server, 0, address);
    Channel *c = channel_connect(address, &s->key, s->patience_ms, is_stopped, NULL, &fault);
    if (!c && signals_stop()) return EXIT_STOPPED;
    if (!c) fail(fault.code, "%s", fault.text);
    channel_limit(c, s->elems);
    s->leader = peers_add(&s->peers, c);
    s->leader->part = PEER_LEADER;
    Follow follow = {.protocol = CHANNEL_PROTOCOL, .part = s->parts.part, .parts = s->parts.parts, .elems = s->elems,
                     .config = config_to_json(s->parts.config)};
    message_send(c, MESSAGE_FOLLOW, 0, &follow);
    cJSON_Delete(follow.config);
    while (!s->is_dismissed) {
        server_turn(s, TURN_MS, &over);
        double now = clock_ms();
        if (!s->is_dismissed && now - s->pinged_ms >= PING_MS) {
            message_send(c, MESSAGE_PING, 0, NULL);
            s->pinged_ms = now;
        }
        if (!s->is_dismissed && channel_silent_ms(c) > s->patience_ms) lose_silent(s, s->leader);
        if (!is_ready && has_part(s)) is_ready = 1, ready(s);
        if (signals_stop() && !heard) {
            heard = 1;
            s->parts.note("this server ends when the first of outer.server does: stop that one");
        }
    }
    return s->code;
}

/* --- creating ----------------------------------------------------------------------------------------------------- */

Server *server_create(ServerParts parts) {
    const Config *c = parts.config;
    char          why[KEY_FAULT_BYTES];
    ChannelFault  fault;
    Server       *s = xcalloc(1, sizeof *s, "the server");
    s->parts = parts;
    s->elems = parts.shards->layout.elems, s->every = c->outer.every, s->tokens = parts.tokens;
    int64_t first = begin_of(s, parts.part), elems = elems_of(s, parts.part);
    if (elems == 0 || elems_of(s, 0) == 0)
        fail(EXIT_CONFIG,
             "outer.server names %d servers, too many for a model of %lld parameters: name fewer; each needs at least "
             "%d parameters",
             parts.parts, (long long)s->elems, OUTER_BLOCK);
    s->follower = xcalloc((size_t)parts.parts, sizeof *s->follower, "a list of servers");
    s->weights = server_weights_create(parts.shards, parts.weights, parts.memory, first, elems);
    if (parts.weights) s->whole = server_weights_create(parts.shards, parts.weights, NULL, 0, s->elems);
    s->change = round_change_create(c, &s->weights);
    s->patience_ms = c->outer.patience_seconds * 1e3;
    /* the first server makes the file outer.key, perhaps on this machine at this moment */
    if (!leads(s)) {
        double until_ms = clock_ms() + s->patience_ms;
        while (access(c->outer.key, F_OK) != 0 && clock_ms() < until_ms && !signals_stop()) usleep(50000);
    }
    int code = leads(s) ? key_make(c->outer.key, why) : 0;
    if (!code) code = key_read(c->outer.key, &s->key, why);
    if (code) fail(code, "%s", why);
    s->listening = channel_listen(parts.listen, &fault);
    if (s->listening < 0) fail(fault.code, "%s", fault.text);
    int64_t round = parts.step / s->every;
    s->members = members_create(c, round);
    s->members.parts = leads(s) ? parts.parts : 1;
    if (leads(s)) s->leases = leases_open(path_of("%s/leases.jsonl", c->run.dir).text, round, parts.samples);
    s->round_began_ms = s->looked_ms = s->made_ms = clock_ms();
    return s;
}

void server_destroy(Server *s) {
    if (!s) return;
    peers_destroy(&s->peers);
    members_destroy(&s->members);
    if (leads(s)) leases_close(&s->leases);
    round_change_destroy(&s->change);
    server_weights_destroy(&s->weights), server_weights_destroy(&s->whole);
    free(s->follower), free(s->counted), free(s->weight);
    close(s->listening);
    free(s);
}
