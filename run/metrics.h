/* metrics.h - metrics.jsonl: one JSON object a line, train steps strictly increasing without a gap, across any kill and
 * resume. Written by rank 0 only. Numbers with %.9g, non-finite ones null.
 */
#ifndef TRAIN_GPT_RUN_METRICS_H
#define TRAIN_GPT_RUN_METRICS_H

#include <stdint.h>

#include "core/mesh.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int64_t step;          /* completed optimizer steps, 1-based */
    int64_t tokens;        /* consumed since step 0              */
    double  loss, lr, grad_norm, tokens_per_s, mfu, ms, comm_ms, comm_exposed_ms;
    unsigned timed;        /* WITH_... of the axes that have a time of their own, as replica_ms */
    double  axis_ms[AXES];
    int     has_sent;      /* bytes a rank sends in the step, by axis */
    int64_t sent[AXES];
} StepMetrics;

typedef struct Metrics Metrics;

/* Opens <dir>/metrics.jsonl for a run that goes on after `step` completed steps. A torn last line and lines past step
 * are cut; step 0 starts the file anew. Foreign lines among ours stay; warnings count them and the missing lines.
 * Also reads the remaining losses for loss.svg. Exit 74 naming the path. */
Metrics *metrics_open(const char *dir, int64_t step);
void     metrics_rewind(Metrics *m, int64_t step); /* goes on after `step` instead: later lines are cut */
/* Whether <dir>/metrics.jsonl is the log of a run that evaluates, and has step's train line but no evaluation after it.
 * At step 0 the file starts anew: 1. Changes nothing. */
int      metrics_lack_eval(const char *dir, int64_t step);
void     metrics_train(Metrics *m, const StepMetrics *s);
void     metrics_eval(Metrics *m, int64_t step, double loss);
/* The newest validation loss that the file has, and the lowest finite one; NaN: none. */
void     metrics_evals(const Metrics *m, double *last, double *best);

/* A line that cannot be written (a full disk) waits in memory, with those after it: one warning names the path, every
 * line tries again, and no checkpoint is saved until all are out. metrics_catch_up tries now: 1, or 0 and a phrase with
 * the path in fault [METRICS_FAULT_BYTES]. A checkpoint syncs the file, by its descriptor, before it gets its name. */
enum { METRICS_FAULT_BYTES = 1024 };
int      metrics_catch_up(Metrics *m, char *fault);
const char *metrics_path(const Metrics *m);
int      metrics_fd(const Metrics *m);

void     metrics_draw(Metrics *m);       /* <dir>/loss.svg from everything so far */
void     metrics_close(Metrics *m);      /* exit 74 when lines are left that cannot be written */

#ifdef __cplusplus
}
#endif
#endif
