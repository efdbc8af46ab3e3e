/* metrics.h - metrics.jsonl: one JSON object a line, train steps strictly increasing without a gap, across any kill and
 * resume. Written by rank 0 only. Numbers with %.9g, non-finite ones null; `time` is the wall clock's, in seconds
 * since 1970 with three decimals, `hours` the time that the run has trained, over its resumes.
 */
#ifndef TRAIN_GPT_RUN_LOG_METRICS_H
#define TRAIN_GPT_RUN_LOG_METRICS_H

#include <stdint.h>

#include "core/gpu_meter.h"
#include "core/mesh.h"
#include "data/blend.h"
#include "run/log/metrics_line.h"
#include "run/text/task_scores.h"

typedef struct {
    int64_t step;          /* completed optimizer steps, 1-based */
    int64_t tokens;        /* consumed since step 0              */
    double  loss, lr, grad_norm, tokens_per_s, mfu, ms, comm_ms, comm_exposed_ms;
    unsigned timed;        /* WITH_... of the axes that have a time of their own, as replica_ms */
    double  axis_ms[AXES];
    int     has_experts;   /* shares of experts: run/expert_load.h */
    double  busiest, entropy;
    int64_t rounds;        /* of ranks that divide them; written where it is more than 1 */
    int     has_fp8;       /* numbers of elements: run/fp8_steps.h */
    double  fp8_saturated, fp8_vanished;
    int     has_sent;      /* bytes a rank sends in the step, by axis */
    int64_t sent[AXES];
    double  epoch;         /* samples in the order of training, in passes over data.train (sample_epochs) */
    int64_t memory_bytes;  /* that rank 0 has used at most; 0: not known */
    GpuReading gpu;        /* of rank 0's GPU */
    int     sources;       /* of a blend, and the tokens of each in the order up to here; 0: there is none */
    int64_t source_tokens[BLEND_SOURCES];
} StepMetrics;

/* A round of islands (run/outer/), as the server or an island sees it. */
typedef struct {
    int64_t round, step;   /* that are over: the step is the schedule's */
    int64_t tokens;        /* since step 0: of all islands, or of this one */
    int     islands;       /* that counted in the round */
    int64_t staleness;     /* in rounds, of the last delta (outer.wait=none) */
    double  norm, ms, tokens_per_s, loss; /* of the mean delta; of the round; mean of the islands' */
    int     fragments;     /* outer.stream: that have travelled; 0: the whole model at once */
    double  waited_ms;     /* that an island's training waited, in all of the round */
    int64_t sent, received; /* its bytes; a server has none of these three */
} OuterMetrics;

/* The facts about a run that its lines and its picture need. */
typedef struct {
    double      bytes_per_token; /* of the validation data, for bits per byte; NaN: not known */
    const char *commit;          /* borrowed: of the program */
    int64_t     parameters;
    int         tensorboard;     /* the same numbers go to <dir>/tb, too */
} MetricsAbout;

typedef struct Metrics Metrics;

/* Opens <dir>/metrics.jsonl for a run that goes on after `step` completed steps. A torn last line and lines past step
 * are cut; step 0 starts the file anew. Foreign lines among ours stay; warnings count them and the missing lines.
 * Also reads the remaining losses for loss.svg. Exit 74 naming the path. */
Metrics *metrics_open(const char *dir, int64_t step, MetricsAbout about);
/* Whether <dir>/metrics.jsonl is the log of a run that evaluates (LINE_EVAL: losses, LINE_TASK: tasks), and has step's
 * train line but no such evaluation after it. At step 0 the file starts anew: 1. Changes nothing. */
int      metrics_lack_eval(const char *dir, int64_t step, LineKind kind);
void     metrics_train(Metrics *m, const StepMetrics *s);
void     metrics_outer(Metrics *m, const OuterMetrics *o); /* a server's rounds make its picture */
void     metrics_eval(Metrics *m, int64_t step, double loss);
void     metrics_tasks(Metrics *m, int64_t step, const TaskScores *scores, int tasks); /* a line each, in one write */
double   metrics_eval_loss(const Metrics *m, int64_t step); /* of the evaluation at that step; NaN: there was none */

/* Events are lines of their own: {"kind":"event","event":...,"step":...,"time":...}. A resume is one at the step it
 * goes on after. A save is one of its own step, written when the checkpoint stands, perhaps among the lines of later steps. */
void     metrics_resumed(Metrics *m, int64_t step, int ranks);
void     metrics_saved(Metrics *m, int64_t step, double ms);
void     metrics_copied(Metrics *m, int64_t step, double ms, double wait_ms); /* into memory: whole after ms, of which training waited wait_ms */
void     metrics_skipped(Metrics *m, int64_t step, const char *why); /* before the line of that step */
/* The run goes on after `to` instead: later lines are cut, and an event at that step says from where. */
void     metrics_rolled_back(Metrics *m, int64_t to, int64_t from);
/* An island goes on at the later step `to`, where the other islands are: an event at that step says from where. */
void     metrics_joined(Metrics *m, int64_t to, int64_t from);
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

#endif
