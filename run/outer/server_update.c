/* server_update.c - ends a round of the server: judges the deltas and makes a new x. See server_state.h. */
#include <math.h>
#include <stdlib.h>

#include "core/clock.h"
#include "core/xalloc.h"
#include "run/config/config.h"
#include "run/outer/server_state.h"

static int takes_gradients(const Server *s) { return s->parts.config->outer.send == SEND_GRADIENTS; }

/* Sends COUNT: the next STEP includes the followers' parts of this island's delta. */
static void tell_count(Server *s, const Member *m, double weight) {
    char  text[MESSAGE_TEXT];
    Count count = {m->lease.number, weight};
    server_tell(s, MESSAGE_COUNT, text, count_write(&count, text));
}

/* If changes are kept (wait=all), every step that moves x ends a round, so each makes a change. */
void server_step_part(Server *s, const Step *step, float *d, Exact *squares, int64_t round) {
    int moves = step->rule != STEP_MEAN;
    if (moves) round_change_begin(&s->change, &s->weights, server_weights_all(&s->weights));
    server_weights_step(&s->weights, step, server_weights_all(&s->weights), d, squares);
    if (moves) round_change_end(&s->change, &s->weights, server_weights_all(&s->weights), round);
}

/* Applies AdamW with a gradient of this norm. Its bias correction counts the updates since the moments were zero. */
static void step_adamw(Server *s, float *gradient, double norm) {
    const Config *c = s->parts.config;
    Exact         unused = {{0}};
    int64_t       before = s->members.wait == WAIT_ALL ? server_step(s)
                                                       : (s->tokens + s->round_tokens) / c->batch.global_tokens;
    Step step = {.rule = STEP_ADAMW, .learning_rate = schedule_lr(c, server_step(s)), .momentum = c->optimizer.beta1,
                 .scale = clip_scale(norm, c->optimizer.grad_clip), .beta2 = c->optimizer.beta2, .eps = c->optimizer.eps,
                 .weight_decay = schedule_weight_decay(c, server_step(s)), .update = before + 1};
    server_order(s, &step, gradient, &unused);
    s->norm = norm;
}

/* Applies a rule to deltas. Returns the square root of the sum of squares that the step gives. */
static double step_outer(Server *s, StepRule rule, float *d, double scale) {
    Exact squares = {{0}};
    Step  step = {.rule = rule, .learning_rate = s->rule.learning_rate, .momentum = s->rule.momentum, .scale = scale};
    server_order(s, &step, d, &squares);
    return sqrt(exact_value(&squares));
}

void server_judge_early(Server *s, Member *m) {
    char fault[MEMBER_FAULT_BYTES];
    m->norm = sqrt(s->streams ? m->turn_squares : exact_value(&m->squares));
    if (!isfinite(m->norm) && !members_judge(&s->members, m, fault)) server_refuse_member(s, m, EXIT_NUMERIC, fault);
}

/* Ends the open round. What follows belongs to the next. */
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

/* wait=none: applies momentum and ends a round of arrivals. */
static void end_arrivals(Server *s) {
    double norm = takes_gradients(s) ? s->norm : step_outer(s, STEP_MOMENTUM, NULL, 0.0);
    end_round(s, (int)s->members.of_round, norm);
}

static void count_arrival(Server *s, Member *m) {
    char fault[MEMBER_FAULT_BYTES];
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
    tell_count(s, m, 1.0);
    if (takes_gradients(s)) step_adamw(s, m->delta, m->norm);
    else step_outer(s, STEP_ARRIVAL, m->delta, 1.0 / ((1.0 + (double)staleness) * (here ? here : 1)));
    if (staleness > s->staleness) s->staleness = staleness;
    count(s, m);
    leases_sync(&s->leases);
    if (members_round_is_full(&s->members)) end_arrivals(s);
    server_say_closed(s, m, here, m->norm, staleness);
}

void server_count_arrivals(Server *s) {
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

/* Makes a new x of the mean of all islands' deltas. Returns the norm of the mean. */
static double step_mean(Server *s, int islands) {
    Members      *ms = &s->members;
    const float **delta = xmalloc(sizeof *delta * (size_t)islands, "closing a round");
    double       *weight = xmalloc(sizeof *weight * (size_t)islands, "closing a round"), norm;
    float        *mean = NULL;
    for (int i = 0, at = 0; i < ms->count; i++) {
        Member *m = ms->member[i];
        if (m->state != MEMBER_ENDED) continue;
        if (!mean) mean = m->delta;
        delta[at] = m->delta, weight[at++] = (double)m->end.tokens;
        tell_count(s, m, (double)m->end.tokens);
    }
    outer_mean(mean, delta, weight, islands, s->weights.elems);
    norm = step_outer(s, STEP_MEAN, mean, 0.0);
    if (takes_gradients(s)) step_adamw(s, mean, norm);
    else step_outer(s, STEP_NESTEROV, mean, 0.0);
    free(delta);
    free(weight);
    return norm;
}

void server_close_round(Server *s) {
    Members *ms = &s->members;
    char     fault[MEMBER_FAULT_BYTES];
    for (int i = 0; i < ms->count; i++)
        if (ms->member[i]->state == MEMBER_ENDED && !members_judge(ms, ms->member[i], fault))
            server_refuse_member(s, ms->member[i], EXIT_NUMERIC, fault);
    int islands = members_count(ms, MEMBER_ENDED);
    if (islands == 0) return;
    double norm = s->streams ? server_end_turns(s, islands) : step_mean(s, islands);
    for (int i = 0; i < ms->count; i++)
        if (ms->member[i]->state == MEMBER_ENDED) count(s, ms->member[i]);
    leases_sync(&s->leases);
    end_round(s, islands, norm);
    for (int i = 0; i < ms->count; i++)
        if (ms->member[i]->state == MEMBER_WAITS) server_say_closed(s, ms->member[i], islands, norm, 0);
}
