/* evaluate.c - evaluations during a training run, on validation data and tasks: see evaluate.h. */
#include "run/evaluate.h"

#include <math.h>
#include <stdlib.h>

#include "core/thread.h"
#include "core/error.h"
#include "run/checkpoint/checkpoint_folders.h"
#include "run/rounds.h"
#include "run/text/scorer.h"

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

static Scorer scorer_of(Run *r) {
    return (Scorer){r->model,   r->eval_batch, r->comm, r->groups.data, r->groups.datas,
                    r->watchdog, rounds_stop,   r,       run_is_rank0(r)};
}

static int evaluate_loss(Run *r, int64_t step) {
    const Config *c = r->config;
    Scorer        s = scorer_of(r);
    double        start_ms = clock_ms(), loss;
    requests_begin(&r->requests);
    int whole = scorer_loss(&s, &r->val, c->eval.tokens, r->end_of_text, c->parallel.deterministic, &loss);
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
    Scorer      s = scorer_of(r);
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
        progress_note("the evaluation after step %lld stops, because a stop was requested; the same command repeats it",
                      (long long)step);
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
