/* progress.h - the lines of a run on stdout after the banner: one per log interval, lines of evaluations and samples,
 * notes, the end. Only rank 0 writes them. On a terminal the line of the current step is rewritten in place between log
 * lines. Elsewhere there are only plain lines.
 */
#ifndef TRAIN_GPT_RUN_LOG_PROGRESS_H
#define TRAIN_GPT_RUN_LOG_PROGRESS_H

#include <stddef.h>
#include <stdint.h>

#include "run/log/metrics.h"

enum { PROGRESS_RECENT = 20, PROGRESS_COLUMNS = 120 /* PROGRESS_COLUMNS: width of a line that is not on a terminal */ };

typedef struct {
    int64_t steps, first_step;   /* run.steps; step from which this process started                      */
    int64_t last_step;           /* step after which this process stops: run.steps, or run.stop_step      */
    int64_t log_every;
    double  started_ms;          /* clock_ms() when the first step began; 0: no step has begun          */
    double  recent_ms[PROGRESS_RECENT]; /* times of the last steps; the newest at index (seen - 1) % PROGRESS_RECENT */
    int64_t seen;                /* steps that this process has taken so far                            */
    /* time in steps so far; the other time since the start was for evals, saves and samples */
    double  stepping_ms;
} Progress;

/* Results of an evaluation, and of those before it in the run. */
typedef struct {
    double loss, last, best;     /* loss of this evaluation; newest and lowest loss before it, NaN: none */
    double bytes_per_token;      /* bytes of text per token; NaN: not known, and perplexity is shown instead */
    double ms;
} ProgressEval;

Progress progress_start(int64_t steps, int64_t first_step, int64_t last_step, int64_t log_every);
/* Prints: step 120/600 20.0% | loss 2.1034 | lr 1.98e-03 | norm 0.412 | 45.1k tok/s | MFU 63.2% | 0.31 GiB | 272ms |
 * ETA 9s Every field has the same column in each line. A line has at most 120 columns, or the width of the terminal.
 * Fields that do not fit are left out: first the state of the GPU (GPU 87% 312W 61C), then the time of a step, memory,
 * MFU, norm. s->ms is the whole wall time of the step. tok/s, MFU and ETA use the median of the last 20 steps. ETA is
 * the time until last_step. If MFU is not a number, its column is empty. */
void progress_step(Progress *p, const StepMetrics *s);
/* progress_task prints the scores of a task. progress_tasks prints how long all tasks took. It also prints CORE, the
 * mean score above guessing over the tasks of that benchmark, if it is a number. */
void progress_task(Progress *p, int64_t step, const TaskScores *t);
void progress_tasks(Progress *p, int64_t step, double core, double ms);
/* Prints: val  120/600  20.0% | loss 2.1034 | bits/byte 3.0346 | -0.1234 best | 1.2s */
void progress_eval(Progress *p, int64_t step, const ProgressEval *e);
void progress_sample(int64_t step, const char *text);
/* prints a note: a line that has no fixed columns */
void progress_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
