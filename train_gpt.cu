/* train_gpt - pretrains GPT models:  mpirun -np N ./train_gpt config.json [key=value ...]
 *
 * The program reads top to bottom here: main(), train_step(), evaluate(). What they call lives in layers/ (the ops), model/ (the model over
 * the ranks), comm/ (ranks), data/ (tokens) and run/ (everything around it). A CPU build compiles this file as plain C.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/injection.h"
#include "core/io.h"
#include "run/banner.h"
#include "run/run.h"
#include "run/sample.h"
#include "run/schedule.h"
#include "run/signals.h"
#include "run/start.h"
#include "run/verbs.h"

/* --- one optimizer step --------------------------------------------------------------------------------------------------------------- */

/* Forward and backward of this step's micro-batches: this rank's pieces of the gradients then hold their sum over micro-batches and ranks. */
static void compute_gradients(Run *r) {
    Model *m = r->model;
    float  token_weight = (float)(r->loss_scale.scale / (double)r->config->batch.global_tokens); /* gradients of the mean over the global batch */
    step_sums_zero(&m->sums, &m->stream);
    shards_begin(m->shards, &m->stream);
    for (int64_t micro = 0; micro < r->micro_steps; micro++) {
        watchdog_tick(r->watchdog, "a micro-batch");
        Batch batch = loader_next(r->loader, &m->stream, NULL);
        gpt_forward(&m->gpt, &m->stream, batch);
        gpt_backward(&m->gpt, &m->stream, batch, token_weight, micro == r->micro_steps - 1 ? MICRO_LAST : MICRO_EARLIER);
    }
    watchdog_tick(r->watchdog, "the reduction of the gradients");
    shards_finish(m->shards, &m->stream);
}

typedef struct { StepNumbers numbers; int stop, save, written, fed; } Agreed;

static void tell_saved(Run *r, double ms) {
    if (ms <= 0.0) return;
    requests_saved(&r->requests, ms);
    if (run_speaks(r))
        progress_note(&r->progress, "saved %s/checkpoints/step_%08lld in %.2f s, of which training waited %.4f s", r->config->run.dir,
                      (long long)saver_step(r->saver), ms * 1e-3, saver_stall_ms(r->saver) * 1e-3);
}

/* Every rank computes with the same weights, or nothing more is done with them. */
static void compare_weights(Run *r, int64_t step, int64_t hash) {
    char ranks[GUARD_TEXT];
    if (guard_is_same(r->comm, hash, ranks)) return;
    tell_saved(r, saver_finish(r->saver)); /* what is being written is of weights that were compared */
    fail(EXIT_NUMERIC, "the weights%s of step %lld are not the same on all ranks: those of %s differ; nothing more is saved, the same command goes on "
         "from the newest checkpoint", shards_state_is_shared(r->model->shards) ? " or moments" : "", (long long)step, ranks);
}

/* The one reduction of scalars in a step: mean loss, gradient norm, what any rank was asked from outside, how many ranks have done their
 * part of a checkpoint, and how many have the next step's batches. */
static Agreed agree(Run *r, int64_t step, double start_ms) {
    const Config *c = r->config;
    Model        *m = r->model;
    int           hashes = guard_hash_due(c, comm_size(r->comm), step);
    struct { Exact sums[SUMS]; int64_t stop, save, written, fed; } all;
    optimizer_numbers(&m->optimizer, &m->stream, (hashes ? NUMBERS_REPLICAS : 0) | (r->verifies ? NUMBERS_GRADS : 0));
    shards_await(m->shards, &m->stream);
    StepValues values = step_sums_fetch(&m->sums, &m->stream);
    memcpy(all.sums, values.sum, sizeof all.sums);
    if (hashes) compare_weights(r, step, values.hash[HASH_REPLICAS]);
    exact_add(&all.sums[SUM_LOSS], inject_loss((double)c->batch.global_tokens));
    double took_ms = clock_ms() - start_ms; /* the next step takes as long as this one, or is computed twice */
    all.stop = requests_stop(&r->requests, guard_verify_due(c, step + 1) ? 2.0 * took_ms : took_ms);
    all.save = requests_save(&r->requests);
    all.written = saver_ready(r->saver);
    all.fed = loader_is_ready(r->loader, 0.0);
    int own = comm_size(r->comm) > 1 ? SUM_RANK_CHECK : SUM_GRAD_SQUARES;
    int suspect = !isfinite(exact_value(&all.sums[SUM_LOSS])) || !isfinite(exact_value(&all.sums[own]));
    comm_all_reduce_i64(r->comm, all.sums[0].word, sizeof all / sizeof(int64_t), COMM_SUM);
    double      loss = exact_value(&all.sums[SUM_LOSS]) / (double)c->batch.global_tokens;
    double      norm = sqrt(exact_value(&all.sums[SUM_GRAD_SQUARES])) / r->loss_scale.scale;
    StepNumbers n = {loss, norm, suspect, values.hash[HASH_OWN_GRADS], values.hash[HASH_GRADS]};
    return (Agreed){n, all.stop > 0, all.save > 0, all.written == comm_size(r->comm), all.fed == comm_size(r->comm)};
}

/* A step is computed once more, from the same batches. The same bits again: what looks wrong is the data's or the model's doing. */
static Agreed compute_again(Run *r, int64_t step, Agreed first) {
    double start_ms = clock_ms();
    char   ranks[GUARD_TEXT];
    loader_seek(r->loader, run_first_sample(r, step));
    compute_gradients(r);
    Agreed again = agree(r, step, start_ms);
    again.stop |= first.stop, again.save |= first.save;
    if (!guard_is_repeated(r->comm, &first.numbers, &again.numbers, ranks))
        warn("step %lld: loss %.9g, gradient norm %.9g; computed again from the same batches: loss %.9g, gradient norm %.9g%s: silent corruption suspected, %s",
             (long long)step + 1, first.numbers.loss, first.numbers.grad_norm, again.numbers.loss, again.numbers.grad_norm,
             r->verifies ? ", gradients of other bits" : "", ranks);
    return again;
}

/* Nothing looks wrong, and the step is computed twice all the same; where bits differ a third time, and what came twice counts. Not for a run
 * that is asked to stop, or is while it waits for data. */
static Agreed verify(Run *r, int64_t step, Agreed first) {
    char ranks[GUARD_TEXT];
    if (first.stop || (!first.fed && !run_await_batches(r))) return first;
    Agreed second = compute_again(r, step, first);
    if (guard_is_repeated(r->comm, &first.numbers, &second.numbers, ranks)) return second;
    Agreed third = compute_again(r, step, second);
    if (guard_is_repeated(r->comm, &second.numbers, &third.numbers, ranks) || guard_is_repeated(r->comm, &first.numbers, &third.numbers, ranks)) return third;
    tell_saved(r, saver_finish(r->saver)); /* what is being written is of weights that were updated before this step */
    fail(EXIT_NUMERIC, "step %lld, computed three times from the same batches, never gave the same gradients: %s; the weights are those of step %lld "
         "(run.verify_every = 0 does not look)", (long long)step + 1, ranks, (long long)step);
}

/* An fp16 gradient overflows from time to time: no fault, but the loss scale's. */
static int overflows(Run *r, int64_t step, Agreed a) {
    if (!isfinite(a.numbers.loss) || isfinite(a.numbers.grad_norm) || !loss_scale_lower(&r->loss_scale)) return 0;
    if (run_speaks(r)) progress_note(&r->progress, "step %lld left out: a gradient overflows fp16; the loss scale is now %g", (long long)step + 1, r->loss_scale.scale);
    return 1;
}

/* What becomes of a computed step: its numbers reach the weights only when they are right, or run.on_nonfinite or run.on_spike says so. */
static GuardAct decide(Run *r, int64_t step, Agreed *agreed) {
    const Config *c = r->config;
    StepNumbers  *n = &agreed->numbers;
    Guard        *guard = &r->checkpoint.guard;
    char          what[GUARD_TEXT], advice[GUARD_TEXT], ranks[GUARD_TEXT];
    if (overflows(r, step, *agreed)) return GUARD_SKIP;
    StepJudgement judgement = guard_judge(guard, c, step, n->loss, n->grad_norm);
    if (judgement != STEP_FINE) {
        *agreed = compute_again(r, step, *agreed);
        judgement = guard_judge(guard, c, step, n->loss, n->grad_norm);
        guard_describe(guard, c, judgement, n->loss, n->grad_norm, what);
    }
    GuardAct act = guard_act(guard, c, step, n->loss, judgement);
    if (act == GUARD_UPDATE) loss_scale_keep(&r->loss_scale, r->numerics.act);
    if (judgement == STEP_FINE) return act;
    if (act == GUARD_STOP) {
        guard_name_ranks(r->comm, n->suspect, ranks);
        tell_saved(r, saver_finish(r->saver)); /* what is being written is of good weights */
        fail(EXIT_NUMERIC, "step %lld: %s, twice from the same batches%s%s; the weights are those of step %lld (%s)", (long long)step + 1, what,
             judgement == STEP_SPIKE ? "" : "; ", judgement == STEP_SPIKE ? "" : ranks, (long long)step,
             guard_advise(guard, c, judgement, advice));
    }
    const char *so = act == GUARD_UPDATE ? "" : act == GUARD_SKIP ? " skipped" : " given up";
    if (run_speaks(r)) progress_note(&r->progress, "step %lld%s: %s", (long long)step + 1, so, what);
    return act;
}

/* Back to the newest checkpoint; returns its step. */
static int64_t roll_back(Run *r, int64_t step) {
    tell_saved(r, saver_finish(r->saver));
    int64_t to = run_roll_back(r, step);
    if (run_speaks(r))
        progress_note(&r->progress, "rolled back to step %lld, without the data of steps %lld to %lld", (long long)to, (long long)to + 1, (long long)step + 1);
    return to;
}

/* One optimizer step over batch.global_tokens tokens; all ranks call it together. step counts from 0. Returns the steps that are then
 * completed: step + 1, or fewer after a rollback, which leaves nothing in *m. */
static int64_t train_step(Run *r, int64_t step, Agreed *agreed, StepMetrics *m) {
    const Config *c = r->config;
    double        start_ms = clock_ms();
    comm_forget_times(r->comm); /* what came before (eval, checkpoint) is not this step's */
    r->verifies = r->model->shards->hashes_own = guard_verify_due(c, step);
    compute_gradients(r);
    double scale = r->loss_scale.scale; /* what this step's gradients carry */
    *agreed = agree(r, step, start_ms);
    if (r->verifies) *agreed = verify(r, step, *agreed);
    AdamW    h = {schedule_lr(c, step), c->optimizer.beta1, c->optimizer.beta2, c->optimizer.eps, c->optimizer.weight_decay, step + 1};
    GuardAct act = decide(r, step, agreed);
    if (act == GUARD_ROLLBACK) return roll_back(r, step);
    if (act == GUARD_UPDATE) {
        optimizer_update(&r->model->optimizer, &r->model->stream, h, (float)(clip_scale(agreed->numbers.grad_norm, c->optimizer.grad_clip) / scale));
        watchdog_tick(r->watchdog, "the exchange of the weights");
        shards_publish(r->model->shards);
    }

    double    ms = clock_ms() - start_ms, tokens_per_s = (double)c->batch.global_tokens / ms * 1e3;
    CommTimes t = comm_times(r->comm);
    *m = (StepMetrics){.step = step + 1, .tokens = run_tokens_after(r, step + 1), .loss = agreed->numbers.loss, .lr = schedule_lr(c, step),
                       .grad_norm = agreed->numbers.grad_norm, .tokens_per_s = tokens_per_s,
                       .mfu = r->plan.flops_per_token * tokens_per_s / r->matmul_flops, .ms = ms,
                       .comm_ms = t.comm_ms, .comm_exposed_ms = t.exposed_ms};
    return step + 1;
}

/* --- evaluation and samples ------------------------------------------------------------------------------------------------------------- */

/* Mean loss over the first eval.tokens tokens of data.val in plain order, whole samples, at least one; the ranks share the work. Returns 0
 * when it was cut short: the run was asked to stop. */
static int evaluate(Run *r, double *loss) {
    const Config *c = r->config;
    int64_t T = c->batch.seq_len, B = c->batch.micro_batch, ranks = comm_size(r->comm), rank = comm_rank(r->comm);
    int64_t samples = c->eval.tokens > 0 ? c->eval.tokens / T : r->val.samples;
    if (samples < 1) samples = 1;
    if (samples > r->val.samples) samples = r->val.samples;

    /* Where no number of ranks may change a bit, whole batches are shared out: a row's bits depend on how many are computed with it. */
    int64_t share = c->parallel.deterministic ? B : 1, shares = (samples + share - 1) / share;
    int64_t first = shares * rank / ranks * share, end = shares * (rank + 1) / ranks * share;
    if (end > samples) end = samples;
    int64_t most = (shares + ranks - 1) / ranks * share; /* of any rank: all ask equally often whether to stop */
    Model *m = r->model;
    step_sums_zero(&m->sums, &m->stream);
    requests_begin(&r->requests);
    for (int64_t i = first; i < first + most; i += B) {
        watchdog_tick(r->watchdog, "an evaluation");
        if (requests_agree(&r->requests)) return 0;
        if (i >= end) break;
        Batch batch = run_eval_batch(r, i, end - i < B ? end - i : B);
        gpt_forward(&m->gpt, &m->stream, batch);
        gpt_loss(&m->gpt, &m->stream, batch);
    }
    Exact sum = step_sums_fetch(&m->sums, &m->stream).sum[SUM_LOSS];
    comm_all_reduce_i64(r->comm, sum.word, EXACT_WORDS, COMM_SUM);
    *loss = exact_value(&sum) / ((double)samples * (double)T);
    return 1;
}

/* --- what happens between steps ------------------------------------------------------------------------------------------------------------ */

static int is_due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

/* Returns 0 when it was cut short: it is not logged, and whoever goes on from here does it first. */
static int eval_now(Run *r, int64_t step) {
    shards_need_all(r->model->shards);
    double start_ms = clock_ms(), loss;
    int    whole = evaluate(r, &loss);
    if (!run_speaks(r)) return whole;
    if (!whole) {
        progress_note(&r->progress, "the evaluation after step %lld waits until the run goes on", (long long)step);
        return 0;
    }
    metrics_eval(r->metrics, step, loss);
    metrics_draw(r->metrics);
    progress_eval(&r->progress, step, loss, clock_ms() - start_ms);
    return 1;
}

static int eval_is_due(const Run *r, int64_t step) {
    const Config *c = r->config;
    return r->val.shards > 0 && c->eval.every > 0 && (is_due(step, c->eval.every) || step == c->run.steps);
}

/* Whether the evaluation due after `step` is still to be done: that of a new run, and one that was cut short before the run was resumed. */
static int owes_eval(Run *r, int64_t step) {
    if (!eval_is_due(r, step) || step > r->config->run.steps) return 0;
    int64_t owes = run_speaks(r) && metrics_lack_eval(r->config->run.dir, step);
    comm_broadcast(r->comm, &owes, sizeof owes, 0);
    return (int)owes;
}

static int asked_to_stop(void *run) { return requests_agree(&((Run *)run)->requests); }

/* All ranks draw the same text, so that none waits in silence; rank 0 prints it. Returns 0 when it was cut short. */
static int sample_now(Run *r, int64_t step) {
    const Config *c = r->config;
    shards_need_all(r->model->shards);
    requests_begin(&r->requests);
    SamplePlan plan = {c->sample.prompt, c->sample.tokens, c->sample.temperature, c->sample.top_k, (uint64_t)(c->run.seed + step),
                       r->watchdog, r->eval_batch.inputs, asked_to_stop, r};
    char      *text = sample_text(&r->model->gpt, &r->model->stream, &r->tokenizer, plan);
    if (run_speaks(r) && text) progress_sample(&r->progress, step, text);
    else if (run_speaks(r)) progress_note(&r->progress, "the sample after step %lld is left out", (long long)step);
    free(text);
    return text != NULL;
}

/* Copies the state; what follows is written while training goes on. */
static void save_now(Run *r, int64_t step) {
    shards_need_all(r->model->shards);
    if (comm_size(r->comm) > 1) compare_weights(r, step, run_hash_replicas(r));
    tell_saved(r, saver_finish(r->saver));
    saver_start(r->saver, step);
}

static int is_saved(const Run *r, int64_t step) { return (r->resumed.ranks > 0 && r->resumed.step == step) || saver_step(r->saver) == step; }

/* loss.svg is kept fresh: at every eval, else about fifty times a run. */
static void log_step(Run *r, const StepMetrics *m) {
    if (!run_speaks(r)) return;
    if (lock_is_lost(r->lock)) lock_fail(r->lock); /* not a line more */
    int64_t every = r->config->run.steps / 50 + 1;
    metrics_train(r->metrics, m);
    progress_step(&r->progress, m, device_memory_peak());
    if (slowness_note(&r->slowness, m->ms)) slowness_warn(&r->slowness, m->ms);
    if (m->step % every == 0) metrics_draw(r->metrics);
}

/* --- main -------------------------------------------------------------------------------------------------------------------------------- */

static Config load_config(int argc, char **argv, Launch launch) {
    Config config;
    char  *faults = config_load(argv[1], argv + 2, argc - 2, launch.launched ? launch.size : 1, &config);
    if (faults) fail_lines(EXIT_CONFIG, faults);
    return config;
}

int main(int argc, char **argv) {
    start_process(argv);
    io_hold_standard();
    if (is_verb(argc, argv)) return verb_main(argc, argv); /* plan, check, sample, --help ...: no MPI */
    signals_install();
    Launch launch = launch_detect();
    world_expect(launch);                                  /* from here on a fault ends every rank */
    start_computing();
    Config config = load_config(argc, argv, launch);

    Run run, *r = &run;
    run_create(r, &config, launch);                        /* the only place that allocates */
    int64_t step = r->resumed.step, steps = config.run.steps;
    int     owes = owes_eval(r, step), save = 0; /* asked for and not yet done: a rollback does not forget it */
    if (step >= steps && !owes) {
        if (run_speaks(r)) printf("%s is at step %lld of run.steps = %lld already: nothing to do\n", config.run.dir, (long long)step, (long long)steps);
        run_destroy(r), config_free(&config);
        return EXIT_DONE;
    }
    run_begin(r);
    banner_print(r);

    Agreed agreed = {0};
    if (owes) agreed.stop = owes = !eval_now(r, step);
    while (step < steps && !agreed.stop) {
        error_set_step(step);
        if (!agreed.fed && !run_await_batches(r)) break;
        StepMetrics m;
        int64_t     before = step;
        step = train_step(r, step, &agreed, &m);
        watchdog_started(r->watchdog);
        save |= agreed.save;
        if (step <= before) { /* rolled back: nothing was done; whether to stop is asked again by the next step */
            agreed = (Agreed){0};
            continue;
        }
        log_step(r, &m);
        stragglers_note(&r->stragglers, r->comm, &m);
        if (agreed.written) tell_saved(r, saver_next(r->saver));
        if (eval_is_due(r, step)) {
            owes = agreed.stop || !eval_now(r, step);
            agreed.stop |= owes;
        }
        if (is_due(step, config.sample.every) && !agreed.stop) agreed.stop = !sample_now(r, step);
        if (is_due(step, config.checkpoint.every) || save) save_now(r, step), save = 0;
    }
    if (!is_saved(r, step)) save_now(r, step); /* 75 promises it, however early */
    tell_saved(r, saver_finish_last(r->saver));

    int stopped = step < steps || owes;
    if (run_speaks(r)) {
        metrics_draw(r->metrics);
        progress_note(&r->progress, stopped ? "stopped at step %lld of %lld, saved; the same command goes on from here" : "done: step %lld of %lld",
                      (long long)step, (long long)steps);
    }
    requests_end(&r->requests);
    run_destroy(r), config_free(&config);
    return stopped ? EXIT_STOPPED : EXIT_DONE;
}
