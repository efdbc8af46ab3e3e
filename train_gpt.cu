/* train_gpt - pretrains GPT models:  mpirun -np N ./train_gpt config.json [key=value ...]
 *
 * train_step() comes first and makes one optimizer step. train(), the loop over the steps, and main() come last. They
 * call layers/ (the ops), model/ (the model over the ranks), comm/ (ranks), data/ (tokens) and run/ (everything else).
 * Every build compiles this file as plain C.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/thread.h"
#include "core/io.h"
#include "model/optimizer.h"
#include "run/banner.h"
#include "run/evaluate.h"
#include "run/guard/guard.h"
#include "run/rounds.h"
#include "run/run.h"
#include "run/text/sample.h"
#include "run/config/config.h"
#include "run/guard/requests.h"
#include "run/start.h"
#include "run/step_numbers.h"
#include "run/verbs/verbs.h"

/* --- one optimizer step ------------------------------------------------------------------------------------------- */

static Batch next_batch(void *run) {
    Run *r = (Run *)run;
    watchdog_tick(r->watchdog, "a micro-batch");
    rounds_keep(r);
    return loader_next(r->loader, &r->model->stream, NULL);
}

/* Runs forward and backward for all micro-batches of this step. Afterwards each rank has its pieces (ZeRO shards) of
 * the gradients, summed over micro-batches and ranks. */
static void compute_gradients(Run *r) {
    Model *m = r->model;
    /* factor of the loss of each token: gradients become those of the mean loss over the global batch, times the loss
     * scale */
    float  token_weight = (float)(r->state.loss_scale.scale / (double)r->config->batch.global_tokens);
    step_sums_zero(&m->sums, &m->stream);
    shards_begin(m->shards, &m->stream);
    pipeline_step(&m->pipeline, &m->stream, token_weight, next_batch, r);
    watchdog_tick(r->watchdog, "the reduction of the gradients");
    shards_finish(m->shards, &m->stream);
}

/* Functions that guard_step calls to compute a step again from the same batches: they move the data back, and wait for
 * them. */
static void rewind_batches(Run *r, int64_t step) {
    r->between.began_ms = clock_ms();
    loader_seek(r->loader, run_position(r, step).samples);
}
static int has_time(Run *r) { return !r->between.stop && (r->between.fed || run_await_batches(r)); }

static void report_saved(Run *r, double ms) {
    if (ms <= 0.0) return;
    r->requests.save_ms = ms;
    if (!run_is_rank0(r)) return;
    metrics_event(r->metrics, "save", saver_step(r->saver), (Metric[]){{"ms", ms}}, 1);
    progress_note("saved %s/checkpoints/step_%08lld in %.2f s, training waited %.1f ms", r->config->run.dir,
                  (long long)saver_step(r->saver), ms * 1e-3, saver_stall_ms(r->saver));
}

/* Ends the job with exit code 76, because the weights are wrong. First finishes the save that is being written, which
 * holds good weights. Removes the copies of the training state in host memory, which may hold wrong weights. */
static NORETURN void stop_with(Run *r, const char *reason) {
    report_saved(r, saver_finish(r->saver));
    memory_copies_end(r->copies);
    fail(EXIT_NUMERIC, "%s", reason);
}

static OptimizerStep optimizer_step_at(const Run *r, int64_t step) {
    const Config *c = r->config;
    return (OptimizerStep){schedule_lr(c, step), c->optimizer.beta1, c->optimizer.beta2,
                   c->optimizer.eps, schedule_weight_decay(c, step), step + 1 - r->state.missed};
}

static StepMetrics step_metrics(Run *r, int64_t step, const StepNumbers *n, double ms) {
    Position          after = run_position(r, step + 1);
    const ExpertLoad *experts = &r->experts;
    StepMetrics       m = {.step = step + 1,
                           .tokens = after.tokens,
                           .epoch = sample_epochs(after.samples, r->train.samples),
                           .loss = n->loss,
                           .lr = schedule_lr(r->config, step),
                           .grad_norm = n->grad_norm,
                           .tokens_per_s = (double)r->config->batch.global_tokens / ms * 1e3,
                           .ms = ms,
                           .exchange = groups_times(&r->groups),
                           .mesh = r->groups.mesh};
    m.mfu = run_mfu(r, step, m.tokens_per_s);
    m.has_sent = mesh_ranks(m.mesh) > m.mesh.size[AXIS_SHARD] || r->config->parallel.zero_stage > 1;
    m.sources = dataset_source_tokens(&r->train, after.samples, m.source_tokens);
    if (experts->counts) {
        metric_add(&m, "train/busiest_expert", experts->busiest);
        metric_add(&m, "train/expert_entropy", experts->entropy);
    }
    if (experts->counts && experts->rounds > 1) metric_add(&m, "train/expert_rounds", (double)experts->rounds);
    if (r->fp8.amax) {
        metric_add(&m, "train/fp8_saturated", (double)r->fp8.saturated);
        metric_add(&m, "train/fp8_vanished", (double)r->fp8.vanished);
    }
    return m;
}

/* Makes one optimizer step over batch.global_tokens tokens. All ranks call it together. step: number of steps completed
 * before. Returns the number completed afterwards: step + 1, or fewer after a rollback to a checkpoint, which leaves *m
 * unset. */
static int64_t train_step(Run *r, int64_t step, StepMetrics *m) {
    Model *model = r->model;
    char   said[GUARD_SAID];
    /* scale: the loss scale, by which the gradients of this step are multiplied */
    double began_ms = clock_ms(), scale = r->state.loss_scale.scale;
    groups_forget_times(&r->groups);                                 /* so that evaluations and saves do not count */
    r->between = (Between){.began_ms = began_ms};
    model->shards->hashes_own = guard_verify_due(r->config, step);

    compute_gradients(r);                                            /* forward, backward, reduction */
    /* sums the loss, the gradient norm and the requests to stop or save over the ranks, in the only reduction of
     * scalars */
    StepNumbers n = reduce_numbers(r, step);
    Again       again = {rewind_batches, compute_gradients, reduce_numbers, has_time, r};
    GuardAct    act = guard_step(&r->state.guard, &r->state.loss_scale, r->numerics.act, r->config, r->comm, step, &n,
                                 again, shards_state_is_shared(model->shards), said);
    if (act != GUARD_STOP && said[0] && run_is_rank0(r)) progress_note("%s", said);
    switch (act) {
        case GUARD_STOP:     stop_with(r, said);
        case GUARD_ROLLBACK: {
            report_saved(r, saver_finish(r->saver));
            int64_t to = run_roll_back(r, step);
            if (run_is_rank0(r))
                progress_note("rolled back to step %lld, and skips the data of steps %lld to %lld", (long long)to,
                              (long long)to + 1, (long long)step + 1);
            return to;
        }
        case GUARD_SKIP:     metrics_skipped(r->metrics, step + 1, said); break;
        case GUARD_UPDATE:
            fp8_steps_accept(&r->fp8, model);                        /* sets the fp8 scales of the next step */
            if (rounds_send_gradients(r)) break;                     /* the server updates the weights */
            optimizer_update(&model->optimizer, &model->stream, optimizer_step_at(r, step),
                             (float)(clip_scale(n.grad_norm, r->config->optimizer.grad_clip) / scale));
            experts_balance(&model->optimizer, &model->stream, r->experts.counts);
            watchdog_tick(r->watchdog, "the exchange of the weights");
            shards_publish(model->shards, &model->stream);           /* weights arrive while the next forward starts */
    }
    *m = step_metrics(r, step, &n, clock_ms() - began_ms);
    return step + 1;
}

/* --- between steps ------------------------------------------------------------------------------------------------ */

static int is_due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

/* Generates a text with the model on all ranks, so that the watchdog sees progress on each. Rank 0 prints the text.
 * Returns 0 if a request to stop cut the text short. */
static int sample_now(Run *r, int64_t step) {
    shards_need_all(r->model->shards);
    requests_begin(&r->requests);
    char *text = sample_of_run(r->config, &r->model->pipeline, &r->model->stream, &r->tokenizer, step,
                               r->eval_batch.inputs, r->watchdog, rounds_stop, r);
    shards_rewind(r->model->shards, &r->model->stream);
    if (run_is_rank0(r) && text) progress_sample(step, text);
    else if (run_is_rank0(r))
        progress_note("the sample after step %lld is left out, because a stop was requested", (long long)step);
    free(text);
    return text != NULL;
}

/* Starts a save: copies the training state, whose files are then written while training continues. Exits with 76 if
 * ranks hold different weights, or if replicas hold different pieces of masters and moments. */
static void save_now(Run *r, int64_t step) {
    char said[GUARD_SAID], fault[METRICS_FAULT_BYTES] = "";
    shards_need_all(r->model->shards);
    if (comm_size(r->comm) > 1 &&
        !guard_compare(r->comm, step, run_hash_replicas(r), shards_state_is_shared(r->model->shards), said))
        stop_with(r, said);
    if (r->groups.replicas) {
        /* Only the ranks that hold copies of the same piece find out that the copies differ. comm_any_fault sends the
         * fault to all ranks, and rank 0 prints it. */
        char differ[MANIFEST_FAULT_BYTES] = "";
        if (!guard_compare(r->groups.replicas, step, run_hash_pieces(r), 1, said))
            snprintf(differ, sizeof differ, "%s", said);
        if (comm_any_fault(r->comm, differ)) stop_with(r, differ);
    }
    report_saved(r, saver_finish(r->saver));
    if (r->metrics) r->checkpoint.best_step = eval_best_saved(r, step);
    int logged = !r->metrics || metrics_catch_up(r->metrics, fault);
    saver_start(r->saver, step, logged ? NULL : fault);
}

/* Logs the metrics of a step on rank 0. Draws the picture loss.svg again about fifty times in a run; evaluations also
 * draw it. */
static void log_step(Run *r, StepMetrics *m) {
    if (!run_is_rank0(r)) return;
    if (lock_is_lost(r->lock)) lock_fail(r->lock); /* another job has locked the folder: nothing more is logged */
    int64_t every = r->config->run.steps / 50 + 1;
    m->memory_bytes = (int64_t)device_memory_peak(), m->gpu = gpu_meter_read(r->gpu);
    metrics_train(r->metrics, m);
    progress_step(&r->progress, m);
    if (r->progress.seen == 1)
        progress_note("memory %s after the first step, %s planned",
                      bytes_text((double)m->memory_bytes).text, bytes_text((double)r->plan.device_bytes).text);
    if (slowness_note(&r->slowness, m->ms)) slowness_warn(&r->slowness, m->ms);
    if (m->step % every == 0) metrics_draw(r->metrics);
}

/* --- the loop ----------------------------------------------------------------------------------------------------- */

/* Progress of the training in this process: steps done and to do, and the work that is due between steps. */
typedef struct {
    int64_t     step, last; /* number of completed steps now, and the number at which this process ends */
    /* set of the kinds of evaluation that are due after `step` and not done yet (run/evaluate.h) */
    int         eval;
    int         save;       /* 1: a user has requested a save; a rollback keeps the request */
    StepMetrics metrics;    /* metrics of the last step */
} Course;

/* Does the evaluations that are due. Sets r->between.stop if a request to stop came before they were done. */
static void evaluate_due(Run *r, Course *c) {
    Between *b = &r->between;
    if (c->eval && !b->stop && evaluate(r, c->step, c->eval)) c->eval = 0;
    b->stop |= c->eval != 0;
}

/* Does what is due after a step. Reports saves, and copies of the training state in host memory. Evaluates, prints a
 * sample, and starts such a copy or a save. Sets r->between.stop if a request to stop cut one of these short. */
static void after_step(Run *r, Course *c) {
    const Config *config = r->config;
    Between      *b = &r->between;
    MemoryCopied  copied;
    stragglers_note(&r->stragglers, r->comm, &c->metrics);
    balance_note(r, c->step);
    if (memory_copies_next(r->copies, &copied) && r->metrics)
        metrics_event(r->metrics, "memory", copied.step,
                      (Metric[]){{"ms", copied.ms}, {"wait_ms", copied.wait_ms}}, 2);
    if (b->written) report_saved(r, saver_next(r->saver));
    c->eval = eval_is_due(r, c->step);
    evaluate_due(r, c);
    if (is_due(c->step, config->sample.every) && !b->stop) b->stop = !sample_now(r, c->step);
    if (is_due(c->step, config->checkpoint.memory_every)) memory_copies_start(r->copies, c->step);
    if (is_due(c->step, config->checkpoint.every) || c->save) save_now(r, c->step), c->save = 0;
}

/* Prints the last lines of a run, and removes the files by which users request a stop or a save. Returns the exit
 * code. */
static int last_lines(Run *r, const Course *c) {
    const char *line = "stopped at step %lld of %lld, saved; the same command goes on from here";
    int64_t     steps = r->config->run.steps;
    int         is_complete = c->step >= steps && !c->eval;
    if (is_complete) line = "done: step %lld of %lld";
    else if (c->step == c->last && !c->eval)
        line = "stopped at step %lld of %lld, saved, as run.stop_step says; without it the same command goes on from "
               "here";
    if (run_is_rank0(r)) {
        metrics_draw(r->metrics);
        progress_note(line, (long long)c->step, (long long)steps);
        if (is_complete) banner_next(r);
    }
    requests_end(&r->requests);
    if (is_complete) return EXIT_DONE;
    /* When a rank ends with another code than 0, mpirun of Open MPI 5 drops text that it has not forwarded yet. So rank
     * 0, for which the others wait before they end, gives it time to forward these lines. */
    if (run_is_rank0(r) && comm_size(r->comm) > 1) usleep(300000);
    return EXIT_STOPPED;
}

/* Ends a run that is complete at its start. A job that was requeued although it is at run.stop_step ends here, too. */
static int nothing_to_do(Run *r, const Course *c) {
    int is_early = c->step < r->config->run.steps;
    if (run_is_rank0(r))
        progress_note("%s is at step %lld of %s = %lld already: nothing to do%s", r->config->run.dir,
                      (long long)c->step, is_early ? "run.stop_step" : "run.steps", (long long)c->last,
                      is_early ? "; run.stop_step=0 trains until run.steps" : "");
    memory_copies_sweep(&r->checkpoint);
    return EXIT_DONE;
}

/* Trains from c->step to c->last completed steps, or until a request to stop. Then saves. Returns the exit code. */
static int train(Run *r, Course *c) {
    Between *b = &r->between;
    run_begin(r);
    banner_print(r);
    c->step = rounds_begin(r, c->step);
    evaluate_due(r, c);
    while (c->step < c->last && !b->stop) {
        error_set_step(c->step);
        if (!b->fed && !run_await_batches(r)) break;
        int64_t before = c->step, after = train_step(r, before, &c->metrics);
        watchdog_started(r->watchdog);
        c->save |= b->save;
        c->step = after;
        /* after a rollback nothing that the ranks agreed on holds any more, so the step that follows reads the requests
         * again */
        if (after <= before) {
            *b = (Between){0};
            continue;
        }
        log_step(r, &c->metrics);
        c->step = rounds_step(r, after, c->metrics.loss);
        /* otherwise the step belongs to a round of an island (a job that trains with others) which is trained again */
        if (c->step > before) after_step(r, c);
    }
    rounds_leave(r, c->step);
    int is_saved = (r->resumed.ranks > 0 && r->resumed.step == c->step) || saver_step(r->saver) == c->step;
    /* saves even before the first step, because exit code 75 promises a checkpoint */
    if (!is_saved) save_now(r, c->step);
    report_saved(r, saver_finish_last(r->saver));
    rounds_end(r);
    return last_lines(r, c);
}

int main(int argc, char **argv) {
    start_process(argv);
    io_hold_standard();
    verbs_plain_keys(argc, argv);
    if (is_verb(argc, argv)) return verb_main(argc, argv); /* verbs such as plan and check, and --help, need no MPI */
    signals_install();
    Launch launch = launch_detect();
    signals_answer(launch);
    world_expect(launch);                                  /* from here on a fault on one rank ends all ranks */
    start_computing();
    Config config;
    char  *faults = config_load(argv[1], argv + 2, argc - 2, launch.launched ? launch.size : 1, &config);
    if (faults) fail_lines(EXIT_CONFIG, faults);

    Run run, *r = &run;
    /* opens inputs, joins the ranks, allocates memory, sets the weights */
    run_create(r, &config, launch);
    Course c = {.step = r->resumed.step,
                .last = schedule_last_step(&config),
                .eval = eval_is_pending(r, r->resumed.step)};
    int    code = c.step < c.last || c.eval ? train(r, &c) : nothing_to_do(r, &c);
    run_destroy(r), config_free(&config);
    return code;
}
