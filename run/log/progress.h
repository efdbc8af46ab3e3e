/* progress.h - a run's lines on stdout after the banner: one per log interval, eval and sample lines, notes, the end.
 * Written by rank 0 only. On a terminal the current step's line is rewritten in place between log lines; elsewhere
 * plain lines only.
 */
#ifndef TRAIN_GPT_RUN_LOG_PROGRESS_H
#define TRAIN_GPT_RUN_LOG_PROGRESS_H

#include <stddef.h>
#include <stdint.h>

#include "run/log/metrics.h"

enum { PROGRESS_RECENT = 20, PROGRESS_COLUMNS = 120 /* of a line in a file */ };

typedef struct {
    int64_t steps, first_step;   /* run.steps; step this process started from                           */
    int64_t last_step;           /* after which it stops: run.steps, or run.stop_step                     */
    int64_t log_every;
    double  started_ms;          /* clock_ms() when the first step began; 0 = not yet                   */
    double  recent_ms[PROGRESS_RECENT]; /* of the last steps, the newest at `seen` - 1, modulo           */
    int64_t seen;                /* steps so far                                                        */
    double  stepping_ms;         /* in steps so far; the rest since the start went to evals, saves, samples */
} Progress;

/* A validation, and those before it in the run. */
typedef struct {
    double loss, last, best;     /* NaN for the two: there was none before                              */
    double bytes_per_token;      /* NaN: not known, and perplexity is shown                              */
    double ms;
} ProgressEval;

Progress progress_start(int64_t steps, int64_t first_step, int64_t last_step, int64_t log_every);
/* step 120/600  20.0% | loss 2.1034 | lr 1.98e-03 | norm 0.412 | 45.1k tok/s | MFU 63.2% | 0.31 GiB | 272ms | ETA 9s
 * Every column has the same place in each line. A line has 120 columns at most, on a terminal its width: what has no
 * room is left out, the GPU's state (GPU 87% 312W 61C) first, then the time of a step, memory, MFU, norm. s->ms is the
 * step's whole wall time. tok/s, MFU and ETA are of the median of the last 20 steps, ETA is to last_step; where MFU is
 * not a number its column is empty. */
void progress_step(Progress *p, const StepMetrics *s);
/* A line of a task's scores; then one of how long all of them took, with CORE where it is a number. */
void progress_task(Progress *p, int64_t step, const TaskScores *t);
void progress_tasks(Progress *p, int64_t step, double core, double ms);
/* val  120/600  20.0% | loss 2.1034 | bits/byte 3.0346 | -0.1234 best | 1.2s */
void progress_eval(Progress *p, int64_t step, const ProgressEval *e);
void progress_sample(int64_t step, const char *text);
void progress_note(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* any other line */

/* "8s", "2m08s", "1h47m", "3d04h" into out; "?" when ms is no time. */
void progress_duration(char out[32], double ms);

#endif
