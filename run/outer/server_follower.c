/* server_follower.c - a server with part 1 or later of the model. It holds that part of x, m and v, receives the
 * islands' deltas of it, and runs the leader's STEP messages. It keeps no leases and no checkpoint. See
 * server_state.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/thread.h"
#include "core/error.h"
#include "run/guard/signals.h"
#include "run/outer/server_list.h"
#include "run/outer/server_state.h"

static const double TURN_MS = 200.0, PING_MS = 1000.0;

int64_t server_part_elems(const Server *s) { return s->weights.elems; }

void server_part_is_in(Server *s, Member *m) {
    char   text[MESSAGE_TEXT];
    PartIn part = {m->lease.number, m->squares};
    peer_say(s->leader, MESSAGE_PART_IN, 0, text, part_in_write(&part, text));
}

/* --- frames of the leader ----------------------------------------------------------------------------------------- */

static Member *ended_with(const Server *s, int64_t lease) {
    Member *m = members_of_lease(&s->members, lease);
    return m && m->state == MEMBER_ENDED ? m : NULL;
}

static int take_count(Server *s, const char *text, size_t bytes, char *fault) {
    Count count;
    if (!count_read(text, bytes, &count, fault)) return 0;
    Member *m = ended_with(s, count.lease);
    if (!m || s->counts == s->members.count) {
        snprintf(fault, MESSAGE_FAULT_BYTES, "counts lease %lld, of which there is no delta here",
                 (long long)count.lease);
        return 0;
    }
    size_t room = (size_t)s->members.count;
    s->counted = xrealloc(s->counted, sizeof *s->counted * room, "a list of islands");
    s->weight = xrealloc(s->weight, sizeof *s->weight * room, "a list of islands");
    s->counted[s->counts] = m, s->weight[s->counts++] = count.weight;
    return 1;
}

static void make_mean(Server *s) {
    const float **delta = xmalloc(sizeof *delta * (size_t)s->counts, "the mean of the islands");
    for (int i = 0; i < s->counts; i++) delta[i] = s->counted[i]->delta;
    outer_mean(s->counted[0]->delta, delta, s->weight, s->counts, s->weights.elems);
    free(delta);
}

static int take_step(Server *s, const char *text, size_t bytes, char *fault) {
    char    answer[MESSAGE_TEXT];
    Step    step;
    Stepped stepped = {{{0}}};
    if (!step_read(text, bytes, &step, fault)) return 0;
    if (s->counts == 0 && step.rule != STEP_MOMENTUM) {
        snprintf(fault, MESSAGE_FAULT_BYTES, "sent STEP %d without a delta that counts", step.rule);
        return 0;
    }
    if (step.rule == STEP_MEAN) make_mean(s);
    Member *one = s->counts ? s->counted[0] : NULL; /* wait=all: all counted islands have leases of one round */
    server_step_part(s, &step, one ? one->delta : NULL, &stepped.squares, one ? one->lease.round + 1 : 0);
    if (step.rule != STEP_MEAN && step.rule != STEP_MOMENTUM) {
        for (int i = 0; i < s->counts; i++) members_counted(&s->members, s->counted[i]);
        s->counts = 0;
    }
    peer_say(s->leader, MESSAGE_STEPPED, 0, answer, stepped_write(&stepped, answer));
    return 1;
}

static int take_drop(Server *s, const char *text, size_t bytes, char *fault) {
    Drop drop;
    if (!drop_read(text, bytes, &drop, fault)) return 0;
    Member *m = ended_with(s, drop.lease);
    if (m) members_counted(&s->members, m);
    return 1;
}

static int take_refuse(const Server *s, const char *text, size_t bytes, char *fault) {
    Refuse refuse;
    if (!refuse_read(text, bytes, &refuse, fault)) return 0;
    fail(refuse.code, "%s: %s", channel_peer(s->leader->channel), refuse.why);
}

int server_take_of_leader(Server *s, const FrameHeader *h, const void *payload, char *fault) {
    const char *text = (const char *)payload;
    size_t      bytes = h->payload_bytes;
    const ServerWeights *w = &s->weights;
    Over          over;
    switch (h->kind) {
        case MESSAGE_STATE:  return server_take_state(s, h, payload, w, w->first, w->elems, fault);
        case MESSAGE_COUNT:  return take_count(s, text, bytes, fault);
        case MESSAGE_STEP:   return take_step(s, text, bytes, fault);
        case MESSAGE_DROP:   return take_drop(s, text, bytes, fault);
        case MESSAGE_REFUSE: return take_refuse(s, text, bytes, fault);
        case MESSAGE_COLLECT:
            if (!server_send_state(s, s->leader, w, w->first, w->elems))
                server_lose_follower(s->leader, server_fault(s->leader));
            return 1;
        case MESSAGE_OVER:
            if (!over_read(text, bytes, &over, fault)) return 0;
            s->is_dismissed = 1, s->code = over.code;
            return 1;
        default: return 1; /* PING */
    }
}

/* --- the follower's loop ------------------------------------------------------------------------------------------ */

static int is_stopped(void *unused) {
    (void)unused;
    return signals_stop();
}

static void say_follow(Server *s) {
    cJSON *config = config_to_json(s->parts.config);
    size_t bytes = 0;
    Follow follow = {.protocol = CHANNEL_PROTOCOL, .part = s->parts.part, .parts = s->parts.parts, .elems = s->elems,
                     .config = config};
    char  *text = follow_write(&follow, &bytes);
    if (!text)
        fail(EXIT_CONFIG, "the config is too long for outer.server: %zu bytes, at most %d", bytes, MESSAGE_JSON_LIMIT);
    FrameHeader h = {.kind = MESSAGE_FOLLOW, .type = FRAME_BYTES, .payload_bytes = (uint32_t)bytes};
    server_send(s, s->leader, h, text);
    free(text);
    cJSON_Delete(config);
}

/* Connects to the leader. Returns 0 if this server is requested to stop before it answers. */
static int find_leader(Server *s) {
    char         address[OUTER_ADDRESS_BYTES];
    ChannelFault fault = {0};
    outer_server(s->parts.config->outer.server, 0, address);
    Channel *c = channel_connect(address, &s->key, s->patience_ms, is_stopped, NULL, &fault);
    if (!c && signals_stop()) return 0;
    if (!c) fail(fault.code, "%s", fault.text);
    channel_limit(c, s->elems);
    s->leader = peers_add(&s->peers, c, clock_ms());
    s->leader->part = PEER_LEADER;
    say_follow(s);
    return 1;
}

static void ping_leader(Server *s) {
    char   why[160];
    double now = clock_ms();
    if (now - s->pinged_ms >= PING_MS) {
        peer_say(s->leader, MESSAGE_PING, 0, NULL, 0);
        s->pinged_ms = now;
    }
    if (channel_silent_ms(s->leader->channel) <= s->patience_ms) return;
    snprintf(why, sizeof why, "%s has been silent for %g s (outer.patience_seconds)", channel_peer(s->leader->channel),
             s->patience_ms * 1e-3);
    server_lose_follower(s->leader, why);
}

int server_follow(Server *s, void (*ready)(const Server *s)) {
    ServerRound over;
    int         is_ready = 0, heard = 0;
    if (!find_leader(s)) return EXIT_STOPPED;
    while (!s->is_dismissed) {
        server_turn(s, TURN_MS, &over);
        if (!s->is_dismissed) ping_leader(s);
        if (!is_ready && s->had == s->weights.elems * WEIGHTS_TENSORS) is_ready = 1, ready(s);
        if (signals_stop() && !heard) {
            heard = 1;
            s->parts.note("this server ends when the first of outer.server does: stop that one");
        }
    }
    return s->code;
}
