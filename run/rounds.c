/* rounds.c - the rounds of a job that trains one model with other jobs through a server: see rounds.h. */
#include "run/rounds.h"

#include <stdio.h>

#include "core/thread.h"

int rounds_send_gradients(const Run *r) { return r->island && r->config->outer.send == SEND_GRADIENTS; }

/* --- where the run stands ----------------------------------------------------------------------------------------- */

/* Moves the run from `step` to the step `to`, at which the server is. The optimizer moments stay, and state.missed
 * counts the steps that the moments have not seen. If `to` is smaller, steps that will be trained again are removed
 * from the log. */
static void move_to(Run *r, int64_t step, int64_t to) {
    r->state.missed += to - step;
    if (to == step) return;
    /* The weights are now those of the server, even if the step is that of the resumed checkpoint. Step -1 keeps the
     * last save from being skipped as if that checkpoint had them. */
    r->resumed.step = -1;
    if (!run_is_rank0(r)) return;
    if (to < step) metrics_rolled_back(r->metrics, to, step);
    else           metrics_joined(r->metrics, to, step);
}

static int64_t go_on(Run *r, int64_t step, IslandState state) {
    Position now = run_position(r, step);
    r->server_is_lost = state == ISLAND_LOST;
    r->between.lost = 0;
    if (state == ISLAND_TRAINS) {
        const Open *lease = island_round(r->island);
        int64_t     given_up = step > lease->step ? (step - lease->step) * r->config->batch.global_tokens : 0;
        move_to(r, step, lease->step);
        r->state.start = (Position){lease->step, now.tokens > given_up ? now.tokens - given_up : 0, lease->first};
        r->round = (RoundWork){.began_ms = clock_ms()};
        if (step != lease->step || now.samples != lease->first) {
            loader_seek(r->loader, lease->first);
            r->between.fed = 0;
        }
        return lease->step;
    }
    if (state == ISLAND_DONE) { /* the server has completed all steps; this job may have trained fewer of them */
        int64_t steps = r->config->run.steps;
        move_to(r, step, steps);
        r->state.start = (Position){steps, now.tokens, now.samples};
        return steps;
    }
    r->between.stop = 1;
    return step;
}

static IslandWork work_of(const Run *r, int64_t step) {
    const Open *lease = island_round(r->island);
    int64_t     steps = step > lease->step ? step - lease->step : 0;
    int64_t     tokens = steps * r->config->batch.global_tokens;
    double      loss = r->round.steps ? r->round.losses / (double)r->round.steps : 0.0;
    return (IslandWork){tokens / r->config->batch.seq_len, tokens, loss};
}

/* --- lines -------------------------------------------------------------------------------------------------------- */

static void say_joined(const Run *r, IslandState state) {
    const Open *lease = island_round(r->island);
    if (!run_is_rank0(r) || state != ISLAND_TRAINS) return;
    progress_note("joined %s as island %d: round %lld begins at step %lld, with %d island%s", r->config->outer.server,
                  island_number(r->island), (long long)lease->round, (long long)lease->step, lease->islands,
                  plural(lease->islands));
}

/* Joins the server, for the first time or after a lost connection. Returns the number of completed steps at which the
 * lease (the samples that the server assigns) begins. */
static int64_t join(Run *r, int64_t step) {
    IslandState state = island_join(r->island);
    say_joined(r, state);
    return go_on(r, step, state);
}

/* Logs and prints the numbers of a round: the steps between two exchanges of weights with the server. step: completed
 * steps at its end. */
static void log_round(Run *r, int64_t step, IslandWork work) {
    const IslandExchange *e = island_ended(r->island);
    double                ms = clock_ms() - r->round.began_ms;
    char                  how[64];
    if (!run_is_rank0(r)) return;
    OuterMetrics line = {.round = e->closed.round,
                         .step = step,
                         .tokens = run_position(r, step).tokens,
                         .islands = e->closed.islands,
                         .staleness = e->closed.staleness,
                         .norm = e->closed.norm,
                         .ms = ms,
                         .tokens_per_s = (double)work.tokens / ms * 1e3,
                         .loss = work.loss,
                         .waited_ms = e->ms,
                         .sent = e->sent,
                         .received = e->received};
    metrics_outer(r->metrics, &line);
    /* with outer.send=gradients every step is a round, so not every round is printed */
    if (rounds_send_gradients(r) && step % r->config->log.every) return;
    if (r->config->outer.wait == WAIT_ALL) snprintf(how, sizeof how, "is over");
    else snprintf(how, sizeof how, "has its delta, staleness %lld", (long long)e->closed.staleness);
    progress_note("round %lld %s: %d island%s, norm of the mean delta %.4g; %s sent, %s fetched, waited %.0f ms",
                  (long long)e->closed.round, how, e->closed.islands, plural(e->closed.islands), e->closed.norm,
                  bytes_text((double)e->sent).text, bytes_text((double)e->received).text, e->ms);
}

/* --- the run's calls ---------------------------------------------------------------------------------------------- */

int64_t rounds_begin(Run *r, int64_t step) {
    if (!*r->config->outer.server) return step;
    r->island = island_create((IslandParts){.config = r->config,
                                            .comm = r->comm,
                                            .optimizer = &r->model->optimizer,
                                            .stream = &r->model->stream,
                                            .train = &r->train,
                                            .watchdog = r->watchdog,
                                            .requests = &r->requests,
                                            .id = r->state.run_id});
    return join(r, step);
}

void rounds_keep(Run *r) {
    if (r->island) island_keep(r->island);
}

int rounds_stop(void *run) {
    Run *r = (Run *)run;
    rounds_keep(r);
    return requests_agree(&r->requests);
}

int64_t rounds_step(Run *r, int64_t step, double loss) {
    if (!r->island) return step;
    const Open *lease = island_round(r->island);
    r->round.losses += loss, r->round.steps++;
    if (r->between.lost) return join(r, step);
    if (step < lease->step + lease->steps) return step;
    int         ended;
    IslandWork  work = work_of(r, step);
    IslandState state = island_exchange(r->island, work, &ended);
    if (!ended) say_joined(r, state);
    /* islands is 0 if the changes of weights arrived too late to count; then nothing is logged */
    else if (island_ended(r->island)->closed.islands > 0) log_round(r, step, work);
    return go_on(r, step, state);
}

void rounds_leave(Run *r, int64_t step) {
    if (r->island) island_leave(r->island, work_of(r, step));
}

void rounds_end(Run *r) {
    if (r->server_is_lost)
        fail(EXIT_PEER, "%s; the run is saved, and the same command joins again", island_lost(r->island));
}
