/* server_parts.c - several servers. The leader has part 0 of the model. It sends the other servers, its followers,
 * their parts of x, m and v. It sends the STEP messages that change them, and fetches the parts back for a checkpoint.
 * A follower holds a later part, receives the islands' deltas of it, and obeys the leader's STEP messages. It keeps no
 * leases and no checkpoint. See server_state.h.
 */
#include <stdio.h>
#include <stdlib.h>

#include "core/thread.h"
#include "core/error.h"
#include "run/guard/requests.h"
#include "run/outer/server_state.h"

static const double LOOK_MS = 100.0, TURN_MS = 200.0, PING_MS = 1000.0;

static int64_t begin_of(const Server *s, int part) { return outer_part_begin(s->elems, part, s->parts.parts); }
static int64_t elems_of(const Server *s, int part) { return begin_of(s, part + 1) - begin_of(s, part); }

void server_lose_follower(const Peer *p, const char *why) {
    if (p->part == PEER_LEADER)
        fail(EXIT_PEER,
             "%s: the first server of outer.server is lost, and this one ends: start the first one again, then this "
             "one",
             why);
    fail(EXIT_PEER,
         "%s: part %d of the model is lost; start the servers again, and they go on from the newest checkpoint", why,
         p->part);
}

static void lose_silent(const Server *s, const Peer *p) {
    char why[160];
    snprintf(why, sizeof why, "%s has been silent for %g s (outer.patience_seconds)", channel_peer(p->channel),
             s->patience_ms * 1e-3);
    server_lose_follower(p, why);
}

/* --- sending and waiting ------------------------------------------------------------------------------------------ */

/* Time of the last byte through a connection, and the number of bytes until then. */
typedef struct { uint64_t bytes; double since_ms; } Quiet;

static int is_quiet(const Server *s, const Peer *p, Quiet *q) {
    uint64_t bytes = channel_sent_bytes(p->channel) + channel_received_bytes(p->channel);
    if (bytes != q->bytes || q->since_ms == 0.0) *q = (Quiet){bytes, clock_ms()};
    return clock_ms() - q->since_ms > s->patience_ms;
}

/* Sends a frame once the channel has space for it. Returns 0 if the channel is broken or nothing moved for
 * outer.patience_seconds. */
static int send_frame(const Server *s, Peer *p, FrameHeader h, const void *payload) {
    int sent;
    for (Quiet quiet = {0}; (sent = channel_send(p->channel, h, payload)) == 0;) {
        if (channel_progress(p->channel) < 0 || is_quiet(s, p, &quiet)) return 0;
        channel_wait(&p->channel, 1, -1, LOOK_MS);
    }
    return sent > 0;
}

/* Sends the state of a part of the model: the tensors x, m and v (weights and optimizer state), frame by frame. Ends
 * the program if the peer is lost. */
static void send_state(Server *s, Peer *p, const ServerWeights *from, int64_t first, int64_t elems) {
    float *block = xmalloc(sizeof *block * MESSAGE_ELEMS, "a frame of weights");
    for (int64_t at = 0, n; at < elems * WEIGHTS_TENSORS; at += n) {
        int64_t inside = at % elems;
        n = elems - inside < MESSAGE_ELEMS ? elems - inside : MESSAGE_ELEMS;
        server_weights_read(from, (ServerTensor)(at / elems), first + inside, n, block);
        FrameHeader h = {.kind = MESSAGE_STATE, .type = FRAME_F32, .offset = first + inside, .elems = n,
                         .payload_bytes = (uint32_t)frame_value_bytes(FRAME_F32, n)};
        if (send_frame(s, p, h, block)) continue;
        server_lose_follower(p, channel_is_broken(p->channel) ? channel_fault(p->channel)->text
                                                              : channel_peer(p->channel));
    }
    free(block);
}

/* Stores one frame of the state of a part of the model: weights x or optimizer state m, v. Frames arrive in order.
 * Returns 0 with the reason in fault if the frame is not valid. */
static int take_state(Server *s, const FrameHeader *h, const void *payload, const ServerWeights *to, int64_t first,
                      int64_t elems, char *fault) {
    int64_t inside = s->had % elems;
    if (s->had >= elems * WEIGHTS_TENSORS || h->offset != first + inside || inside + h->elems > elems)
        return message_fault(fault, "sent STATE from element %lld on, which was not its turn", (long long)h->offset);
    server_weights_write(to, (ServerTensor)(s->had / elems), h->offset, h->elems, (const float *)payload);
    s->had += h->elems;
    return 1;
}

void server_tell(Server *s, MessageKind kind, const void *m) {
    for (int k = 1; k < s->parts.parts; k++)
        if (s->follower[k]) message_send(s->follower[k]->channel, kind, 0, m);
}

/* --- frames of followers ------------------------------------------------------------------------------------------ */

/* Accepts another server as a follower. Sends it the part of the weights that it will hold, before anything else. */
int server_take_follow(Server *s, Peer *p, const void *payload, size_t bytes, char *fault) {
    char   differences[512] = "";
    Follow follow;
    if (!message_read(MESSAGE_FOLLOW, payload, bytes, &follow, fault)) return 0;
    int k = follow.part;
    if (follow.parts != s->parts.parts)
        message_fault(fault, "has part %d of %d, and outer.server names %d servers here", k, follow.parts,
                      s->parts.parts);
    else if (follow.elems != s->elems)
        message_fault(fault, "has a model of %lld parameters, and this one has %lld", (long long)follow.elems,
                      (long long)s->elems);
    else if (server_config_differs(s, follow.config, differences, sizeof differences))
        message_fault(fault, "has another config: %s", differences);
    else if (!server_leads(s)) message_fault(fault, "has part %d, and this server leads nobody", k);
    else if (s->follower[k]) message_fault(fault, "has part %d, which another has", k);
    message_free(MESSAGE_FOLLOW, &follow);
    if (*fault) return 0;
    p->part = k;
    s->follower[k] = p;
    s->parts.note("part %d of %d is held by %s", k, s->parts.parts, channel_peer(p->channel));
    send_state(s, p, &s->whole, begin_of(s, k), elems_of(s, k));
    return 1;
}

int server_take_of_follower(Server *s, Peer *p, const FrameHeader *h, const void *payload, char *fault) {
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
            else if ((m = members_of_lease(&s->members, in.lease))->state == MEMBER_ENDED) server_judge_early(s, m);
            return 1;
        case MESSAGE_STEPPED:
            if (!message_read(MESSAGE_STEPPED, payload, h->payload_bytes, &stepped, fault)) return 0;
            p->squares = stepped.squares, p->has_answer = 1;
            return 1;
        /* any other message is a second FOLLOW */
        default: return message_fault(fault, "sent a second %s", message_name(h->kind));
    }
}

/* --- orders to followers ------------------------------------------------------------------------------------------ */

/* Waits for one follower (another server), and reads no other connection. If state_elems is 0, waits until it has
 * answered a STEP message, otherwise until it has sent so many values of its weights and optimizer state. */
static void await_answer(Server *s, Peer *p, int64_t state_elems) {
    Quiet       quiet = {0};
    FrameHeader h;
    const void *payload;
    char        fault[MESSAGE_FAULT_BYTES] = "";
    while (state_elems ? s->had < state_elems : !p->has_answer) {
        int got = channel_next(p->channel, &h, &payload);
        if (got > 0 && (!message_check(&h, FROM_FOLLOWER, fault) || !server_take_of_follower(s, p, &h, payload, fault)))
            server_lose_follower(p, fault);
        if (got < 0) server_lose_follower(p, channel_fault(p->channel)->text);
        if (got == 0 && is_quiet(s, p, &quiet)) lose_silent(s, p);
        if (got == 0) channel_wait(&p->channel, 1, -1, LOOK_MS);
    }
}

void server_order(Server *s, const Step *step, Exact *squares) {
    for (int k = 1; k < s->parts.parts; k++) s->follower[k]->has_answer = 0;
    server_tell(s, MESSAGE_STEP, step);
    for (int k = 1; k < s->parts.parts; k++) channel_progress(s->follower[k]->channel);
    server_step_part(s, step, squares);
    for (int k = 1; k < s->parts.parts; k++) {
        await_answer(s, s->follower[k], 0);
        exact_merge(squares, &s->follower[k]->squares);
    }
}

void server_collect(Server *s) {
    for (int k = 1; k < s->parts.parts; k++) {
        if (!s->follower[k]) continue; /* no round was opened yet, so the leader still has all parts */
        s->had = 0;
        message_send(s->follower[k]->channel, MESSAGE_COLLECT, 0, NULL);
        await_answer(s, s->follower[k], elems_of(s, k) * WEIGHTS_TENSORS);
    }
}

void server_dismiss(Server *s, int code) {
    s->is_dismissed = 1;
    server_tell(s, MESSAGE_OVER, &(Over){code});
    for (int k = 1; k < s->parts.parts; k++) {
        if (s->follower[k]) channel_flush(s->follower[k]->channel, s->patience_ms);
    }
}

/* --- which followers are connected -------------------------------------------------------------------------------- */

int server_is_whole(const Server *s) {
    for (int k = 1; k < s->parts.parts; k++)
        if (!s->follower[k]) return 0;
    return 1;
}

void server_linger(Server *s) { s->lingers = 1; }

void server_look_at_followers(Server *s) {
    for (int k = 1; k < s->parts.parts && !s->lingers; k++) {
        const Peer *p = s->follower[k];
        if (!p && clock_ms() - s->made_ms > s->patience_ms)
            fail(EXIT_PEER, "the server with part=%d/%d has not connected for %g s (outer.patience_seconds): start it "
                 "there, then this one again", k, s->parts.parts, s->patience_ms * 1e-3);
        if (p && !s->is_dismissed && channel_silent_ms(p->channel) > s->patience_ms) lose_silent(s, p);
    }
}

/* --- a follower: frames of the leader ----------------------------------------------------------------------------- */

int64_t server_part_elems(const Server *s) { return s->weights.elems; }

int server_has_part(const Server *s) { return server_leads(s) || s->had == s->weights.elems * WEIGHTS_TENSORS; }

static Member *ended_with(const Server *s, int64_t lease) {
    Member *m = members_of_lease(&s->members, lease);
    return m && m->state == MEMBER_ENDED ? m : NULL;
}

static int take_step(Server *s, const Step *step, char *fault) {
    Stepped stepped = {{{0}}};
    int     counts = s->counts;
    if (counts == 0 && step->rule != STEP_MOMENTUM)
        return message_fault(fault, "sent STEP %d without a delta that counts", step->rule);
    server_step_part(s, step, &stepped.squares);
    for (int i = 0; s->counts == 0 && i < counts; i++) members_counted(&s->members, s->counted[i]);
    message_send(s->leader->channel, MESSAGE_STEPPED, 0, &stepped);
    return 1;
}

int server_take_of_leader(Server *s, const FrameHeader *h, const void *payload, char *fault) {
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
            server_count(s, m, in.count.weight);
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

/* --- a follower: its loop ----------------------------------------------------------------------------------------- */

static int is_stopped(void *unused) {
    (void)unused;
    return signals_stop();
}

/* Connects to the leader, the first server. Returns 0 if this server receives a request to stop before the leader
 * answers. */
static int find_leader(Server *s) {
    char         address[OUTER_ADDRESS_BYTES];
    ChannelFault fault = {0};
    outer_server(s->parts.config->outer.server, 0, address);
    Channel *c = channel_connect(address, &s->key, s->patience_ms, is_stopped, NULL, &fault);
    if (!c && signals_stop()) return 0;
    if (!c) fail(fault.code, "%s", fault.text);
    channel_limit(c, s->elems);
    s->leader = peers_add(&s->peers, c);
    s->leader->part = PEER_LEADER;
    Follow follow = {.protocol = CHANNEL_PROTOCOL, .part = s->parts.part, .parts = s->parts.parts, .elems = s->elems,
                     .config = config_to_json(s->parts.config)};
    message_send(s->leader->channel, MESSAGE_FOLLOW, 0, &follow);
    cJSON_Delete(follow.config);
    return 1;
}

static void ping_leader(Server *s) {
    double now = clock_ms();
    if (now - s->pinged_ms >= PING_MS) {
        message_send(s->leader->channel, MESSAGE_PING, 0, NULL);
        s->pinged_ms = now;
    }
    if (channel_silent_ms(s->leader->channel) > s->patience_ms) lose_silent(s, s->leader);
}

int server_follow(Server *s, void (*ready)(const Server *s)) {
    ServerRound over;
    int         is_ready = 0, heard = 0;
    if (!find_leader(s)) return EXIT_STOPPED;
    while (!s->is_dismissed) {
        server_turn(s, TURN_MS, &over);
        if (!s->is_dismissed) ping_leader(s);
        if (!is_ready && server_has_part(s)) is_ready = 1, ready(s);
        if (signals_stop() && !heard) {
            heard = 1;
            s->parts.note("this server ends when the first of outer.server does: stop that one");
        }
    }
    return s->code;
}
