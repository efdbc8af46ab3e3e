/* server.c - creates a server, runs its loop, opens and ends rounds; see server.h. In order: ending a round, opening
 * one, the loop, creating. */
#include "run/outer/server.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/thread.h"
#include "core/error.h"
#include "run/checkpoint/checkpoint_folders.h"
#include "run/config/config.h"
#include "run/guard/requests.h"
#include "run/outer/server_state.h"

int64_t server_step(const Server *s) { return s->members.round * s->every; }
Position server_position(const Server *s) { return (Position){server_step(s), s->tokens, s->leases.next_sample}; }
int     server_is_done(const Server *s) { return server_step(s) >= s->parts.config->run.steps; }
void    server_address(const Server *s, char *out) { channel_listening(s->listening, out); }
int     server_islands(const Server *s) {
    return s->members.count - members_count(&s->members, MEMBER_GONE);
}

/* --- ending a round ----------------------------------------------------------------------------------------------- */

static int takes_gradients(const Server *s) { return s->parts.config->outer.send == SEND_GRADIENTS; }

void server_count(Server *s, Member *m, double weight) {
    size_t most = (size_t)s->members.count;
    s->counted = xrealloc(s->counted, sizeof *s->counted * most, "a list of islands");
    s->weight = xrealloc(s->weight, sizeof *s->weight * most, "a list of islands");
    s->counted[s->counts] = m, s->weight[s->counts++] = weight;
    if (server_leads(s)) server_tell(s, MESSAGE_COUNT, &(Count){m->lease.number, weight});
}

/* Applies a STEP message to the part of the model that this server holds. STEP_MEAN leaves the mean of the counted
 * deltas in the memory of the first of them. With outer.wait=all every other step ends a round, so the server computes
 * the change of weights that it sends to islands. All counted islands have leases of that round. */
void server_step_part(Server *s, const Step *step, Exact *squares) {
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
    server_order(s, &step, &unused);
    s->norm = norm;
}

/* Applies a rule to the deltas that were counted. Returns the square root of the sum of squares that the rule
 * computes. */
static double step_outer(Server *s, StepRule rule, double scale) {
    Exact squares = {{0}};
    Step  step = {.rule = rule, .learning_rate = s->rule.learning_rate, .momentum = s->rule.momentum, .scale = scale};
    server_order(s, &step, &squares);
    return sqrt(exact_value(&squares));
}

void server_judge_early(Server *s, Member *m) {
    char fault[MESSAGE_FAULT_BYTES];
    m->norm = sqrt(exact_value(&m->squares));
    if (!isfinite(m->norm) && !members_judge(&s->members, m, fault)) server_refuse_member(s, m, EXIT_NUMERIC, fault);
}

/* Ends the open round. Messages that arrive after this call belong to the next round. */
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

/* Records that the weights x include the delta of the island. */
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
        server_refuse_member(s, m, EXIT_NUMERIC, fault);
        return;
    }
    if (server_is_done(s)) {
        server_take_back(s, m->lease.number);
        m->state = MEMBER_WAITS;
        return;
    }
    int     here = members_here(&s->members);
    int64_t staleness = members_staleness(&s->members, m);
    server_count(s, m, 1.0);
    if (takes_gradients(s)) step_adamw(s, m->norm);
    else step_outer(s, STEP_ARRIVAL, 1.0 / ((1.0 + (double)staleness) * (here ? here : 1)));
    if (staleness > s->staleness) s->staleness = staleness;
    has_counted(s, m);
    leases_sync(&s->leases);
    if (members_round_is_full(&s->members)) end_arrivals(s);
    server_say_closed(s, m, here, m->norm, staleness);
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

/* outer.wait=all: closes the round when no island trains any more. Refuses deltas with a bad norm and computes the new
 * weights x. */
static void close_round(Server *s) {
    Members *ms = &s->members;
    char     fault[MESSAGE_FAULT_BYTES];
    for (int i = 0; i < ms->count; i++)
        if (ms->member[i]->state == MEMBER_ENDED && !members_judge(ms, ms->member[i], fault))
            server_refuse_member(s, ms->member[i], EXIT_NUMERIC, fault);
    int islands = members_count(ms, MEMBER_ENDED);
    if (islands == 0) return;
    for (int i = 0; i < ms->count; i++)
        if (ms->member[i]->state == MEMBER_ENDED) server_count(s, ms->member[i], (double)ms->member[i]->end.tokens);
    double norm = step_outer(s, STEP_MEAN, 0.0);
    if (takes_gradients(s)) step_adamw(s, norm);
    else step_outer(s, STEP_NESTEROV, 0.0);
    for (int i = 0; i < ms->count; i++)
        if (ms->member[i]->state == MEMBER_ENDED) has_counted(s, ms->member[i]);
    leases_sync(&s->leases);
    end_round(s, islands, norm);
    for (int i = 0; i < ms->count; i++)
        if (ms->member[i]->state == MEMBER_WAITS) server_say_closed(s, ms->member[i], islands, norm, 0);
}

/* --- opening a round ---------------------------------------------------------------------------------------------- */

/* Gives a lease (samples to train on) to every island that waits. The leases are on disk before an island receives
 * one. */
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
        Peer *p = is_new[i] ? server_first_rank(s, ms->member[i]) : NULL;
        if (p) peer_say(p, MESSAGE_OPEN, open.round, &open);
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

/* Frees the memory and connections of islands that are gone. */
static void sweep(Server *s) {
    for (int i = 0; i < s->members.count; i++) {
        Member *m = s->members.member[i];
        if (m->state != MEMBER_GONE || !m->received) continue;
        server_drop_connections(s, m, NULL);
        free(m->delta), free(m->received);
        m->delta = NULL, m->received = NULL;
        held_forget(&m->held);
    }
}

/* Ends and begins rounds. Only the first server, which leads the others, calls it. At the end of the run it informs the
 * islands that wait for a round, and those whose deltas arrive too late for one. */
static void lead(Server *s) {
    Members *ms = &s->members;
    count_arrivals(s);
    server_look_at_followers(s);
    if (members_may_close(ms)) close_round(s);
    sweep(s);
    if (!server_is_done(s) && server_is_whole(s) && members_may_open(ms)) open_round(s);
    for (int i = 0; server_is_done(s) && i < ms->count; i++)
        if (ms->member[i]->state == MEMBER_WAITS && !ms->member[i]->knows_end)
            server_say_closed(s, ms->member[i], 0, 0.0, 0);
    leases_sync(&s->leases);
}

int server_turn(Server *s, double ms, ServerRound *over) {
    int      may_accept = s->peers.count < PEERS_MOST && server_has_part(s);
    double   before = clock_ms();
    if (before - s->looked_ms > s->patience_ms / 2) /* this server's process did not run for long, so silence in that
                                                     * time does not count against the islands */
        for (int i = 0; i < s->members.count; i++) s->members.member[i]->heard_ms += before - s->looked_ms;
    peers_wait(&s->peers, may_accept ? s->listening : -1, ms);
    if (may_accept) peers_accept(&s->peers, s->listening, &s->key, s->elems);
    for (int i = 0; i < s->peers.count && !s->is_over;) {
        if (server_serve_peer(s, i)) i++;
        if (server_leads(s)) count_arrivals(s);
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

/* Waits until the key file exists. The first server makes it, perhaps on this machine at this moment. */
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
        fail(EXIT_CONFIG,
             "outer.server names %d servers, too many for a model of %lld parameters: each has %d at least", p->parts,
             (long long)s->elems, OUTER_BLOCK);
    s->follower = xcalloc((size_t)p->parts, sizeof *s->follower, "a list of servers");
    s->weights = server_weights_create(p->shards, p->weights, p->memory, first, elems);
    if (p->weights) s->whole = server_weights_create(p->shards, p->weights, NULL, 0, s->elems);
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
    peers_destroy(&s->peers);
    members_destroy(&s->members);
    if (server_leads(s)) leases_close(&s->leases);
    round_change_destroy(&s->change);
    server_weights_destroy(&s->weights), server_weights_destroy(&s->whole);
    free(s->follower), free(s->counted), free(s->weight);
    close(s->listening);
    free(s);
}
