/* evaluate.c - evaluations during a training run, on validation data and tasks: see evaluate.h. */
#include "run/evaluate.h"

#include <math.h>
#include <stdlib.h>

#include "core/thread.h"
#include "core/terminal.h"
#include "core/error.h"
#include "run/checkpoint/checkpoint_folders.h"
#include "run/rounds.h"
#include "run/text/task_scores.h"

static int is_time(const Run *r, int64_t step, int64_t every) {
    return every > 0 && (step % every == 0 || step == r->config->run.steps);
}

int eval_is_due(const Run *r, int64_t step) {
    const Config *c = r->config;
    int loss = r->val.shards > 0 && is_time(r, step, c->eval.every);
    int tasks = r->tasks > 0 && is_time(r, step, c->eval.tasks_every > 0 ? c->eval.tasks_every : c->eval.every);
    return (loss ? EVAL_LOSS : 0) | (tasks ? EVAL_TASKS : 0);
}

int eval_is_pending(Run *r, int64_t step) {
    int64_t     due = step > r->config->run.steps ? 0 : eval_is_due(r, step);
    const char *dir = r->config->run.dir;
    if (!due) return 0;
    if (!run_is_rank0(r)) due = 0;
    if (due & EVAL_LOSS && !metrics_lack_eval(dir, step, LINE_EVAL)) due -= EVAL_LOSS;
    if (due & EVAL_TASKS && !metrics_lack_eval(dir, step, LINE_TASK)) due -= EVAL_TASKS;
    comm_broadcast(r->comm, &due, sizeof due, 0);
    return (int)due;
}

/* Returns the validation sequences [first, first + count) as one batch. count is at most batch.micro_batch. */
static Batch eval_batch(Run *r, int64_t first, int64_t count) {
    ContextPart part = context_part(r->groups.context);
    int64_t     whole = r->config->batch.seq_len, T = whole / part.ranks, B = r->config->batch.micro_batch;
    int32_t    *inputs = r->eval_tokens, *targets = inputs + B * T, *starts = targets + B * T, *sample = starts + B * T;
    int         divides = r->end_of_text >= 0;
    for (int64_t i = 0; i < count; i++) {
        dataset_sample(&r->val, first + i, sample, sample + whole);
        context_take(inputs + i * T, sample, part, T);
        context_take(targets + i * T, sample + whole, part, T);
        document_starts(sample + 2 * whole, sample, whole, r->end_of_text);
        context_take(starts + i * T, sample + 2 * whole, part, T);
    }
    Batch batch = {tensor_2d(r->eval_batch.inputs.data, I32, count, T),
                   tensor_2d(r->eval_batch.targets.data, I32, count, T),
                   divides ? tensor_2d(r->eval_batch.starts.data, I32, count, T) : tensor_none()};
    device_from_host(&r->model->stream, batch.inputs, inputs);
    device_from_host(&r->model->stream, batch.targets, targets);
    if (divides) device_from_host(&r->model->stream, batch.starts, starts);
    return batch;
}

/* Computes the mean loss over the validation data. Returns 0 if a request to stop interrupted it. */
static int mean_loss(Run *r, double *loss) {
    const Config *c = r->config;
    int64_t T = c->batch.seq_len, B = c->batch.micro_batch, ranks = r->groups.datas, rank = r->groups.data;
    int64_t samples = dataset_first_samples(&r->val, c->eval.tokens);

    /* `ranks` counts the groups of ranks that compute different batches. With parallel.deterministic the number of
     * groups must not change any bit of the loss. The bits of a row's loss depend on the number of rows in its batch,
     * so each group gets whole batches. */
    int64_t share = c->parallel.deterministic ? B : 1, shares = (samples + share - 1) / share;
    int64_t first = shares * rank / ranks * share, end = shares * (rank + 1) / ranks * share;
    if (end > samples) end = samples;
    int64_t most = (shares + ranks - 1) / ranks * share, rounds = 0;
    /* rounds = the most batches that any rank has. All ranks go through as many rounds, because each calls the
     * collective requests_agree. */
    for (int64_t few = most - share; few <= most; few++) {
        int64_t batches = 0;
        for (int64_t left = few; left > 0; left -= model_batch(B, left)) batches++;
        if (batches > rounds) rounds = batches;
    }
    Model *m = r->model;
    step_sums_zero(&m->sums, &m->stream);
    requests_begin(&r->requests);
    for (int64_t i = first, count = 0; rounds-- > 0; i += count) {
        watchdog_tick(r->watchdog, "an evaluation");
        if (rounds_stop(r)) return 0;
        if (run_is_rank0(r)) say_part("validation", i - first, most);
        if (i >= end && !shards_gathers(m->shards)) break;
        count = i < end ? model_batch(B, end - i) : 0;
        Batch batch = count ? eval_batch(r, i, count) : eval_batch(r, 0, 1);
        pipeline_forward(&m->pipeline, &m->stream, batch);
        if (count) pipeline_loss(&m->pipeline, &m->stream, batch);
    }
    Exact sum = step_sums_fetch(&m->sums, &m->stream).sum[SUM_LOSS];
    comm_all_reduce_i64(r->comm, sum.word, EXACT_WORDS, COMM_SUM);
    *loss = exact_value(&sum) / ((double)samples * (double)T);
    return 1;
}

static int evaluate_loss(Run *r, int64_t step) {
    double start_ms = clock_ms(), loss;
    int    whole = mean_loss(r, &loss);
    if (!run_is_rank0(r) || !whole) return whole;
    ProgressEval shown = {.loss = loss, .bytes_per_token = r->bytes_per_token, .ms = clock_ms() - start_ms};
    metrics_evals(r->metrics, &shown.last, &shown.best);
    metrics_eval(r->metrics, step, loss);
    metrics_draw(r->metrics);
    progress_eval(&r->progress, step, &shown);
    return 1;
}

/* Scores the tasks in eval.tasks. Scores all of them before it logs the first, so that a resumed run scores all again
 * or none. */
static int evaluate_tasks(Run *r, int64_t step) {
    Scorer      s = {&r->model->pipeline, &r->model->stream, r->eval_batch, r->comm, r->groups.data,
                     r->groups.datas,     r->watchdog,       rounds_stop, r,             run_is_rank0(r)};
    double      start_ms = clock_ms();
    int         whole = 1;
    TaskScores *scores = xcalloc((size_t)r->tasks, sizeof *scores, "the scores of the tasks");
    requests_begin(&r->requests);
    for (int i = 0; i < r->tasks && whole; i++) whole = task_score(&s, &r->task[i], &scores[i]);
    if (whole && run_is_rank0(r)) {
        metrics_tasks(r->metrics, step, scores, r->tasks);
        for (int i = 0; i < r->tasks; i++) progress_task(&r->progress, step, &scores[i]);
        progress_tasks(&r->progress, step, task_core(scores, r->tasks), clock_ms() - start_ms);
    }
    free(scores);
    return whole;
}

int evaluate(Run *r, int64_t step, int parts) {
    shards_need_all(r->model->shards);
    int whole = (!(parts & EVAL_LOSS) || evaluate_loss(r, step)) && (!(parts & EVAL_TASKS) || evaluate_tasks(r, step));
    shards_rewind(r->model->shards, &r->model->stream);
    if (!whole && run_is_rank0(r))
        progress_note("the evaluation after step %lld waits until the run goes on", (long long)step);
    return whole;
}

int64_t eval_best_saved(const Run *r, int64_t step) {
    StepFolder *list = NULL;
    if (!r->config->checkpoint.keep_best) return -1;
    int     count = folders_list(path_of("%s/checkpoints", r->config->run.dir).text, &list);
    double  least = metrics_eval_loss(r->metrics, step);
    int64_t best = isfinite(least) ? step : -1;
    for (int i = 0; i < count; i++) {
        double loss = list[i].step < step ? metrics_eval_loss(r->metrics, list[i].step) : NAN;
        if (isfinite(loss) && !(least <= loss)) least = loss, best = list[i].step;
    }
    free(list);
    return best;
}
