/* metrics.h - metrics.jsonl: one JSON object a line. Train steps increase without a gap, across any kill and resume.
 * Only rank 0 writes it. Numbers have %.9g, and non-finite ones are null. `time` is the wall clock in seconds since
 * 1970 with three decimals. `hours` is the time that the run has trained, summed over its resumes.
 */
#ifndef TRAIN_GPT_RUN_LOG_METRICS_H
#define TRAIN_GPT_RUN_LOG_METRICS_H

#include <stdint.h>

#include "core/gpu_meter.h"
#include "data/blend.h"
#include "model/groups.h"
#include "run/log/run_log.h"
#include "run/log/tensorboard.h"
#include "run/text/scorer.h"

enum { METRICS_MORE = 8 };

typedef struct {
    int64_t step;          /* number of completed optimizer steps, this one included */
    int64_t tokens;        /* tokens consumed since step 0       */
    double  loss, lr, grad_norm, tokens_per_s, mfu, ms;
    GroupTimes exchange;   /* time and bytes of the messages between ranks */
    /* the grid; each axis with more than one rank, except shard, has a key of its own in the line, as replica_ms */
    Mesh    mesh;
    int     has_sent;      /* 1 if the line has the bytes that a rank sends along each axis */
    Metric  more[METRICS_MORE]; /* [mores] further numbers of the line, in its order (metric_add) */
    int     mores;
    double  epoch;         /* passes over data.train so far (sample_epochs) */
    int64_t memory_bytes;  /* largest memory that rank 0 has used so far; 0: not known */
    GpuReading gpu;        /* state of the GPU of rank 0 */
    int     sources;       /* number of sources if data.train is a blend (data sources mixed by weight); else 0 */
    int64_t source_tokens[BLEND_SOURCES]; /* number of tokens that training has read from each source so far */
} StepMetrics;

/* Adds a number to the line of a step. tag: its name in TensorBoard, such as "train/epochs". The part
 * after the last slash is its key in the line. A new number needs this call, and its row in docs/looking-at-runs.md. */
void metric_add(StepMetrics *s, const char *tag, double value);

/* Numbers of a round of islands (jobs that train one model through a server, run/outer/). The server or an island logs
 * them. */
typedef struct {
    int64_t round, step;   /* completed rounds, and completed steps of the schedule */
    /* tokens since step 0: of all islands (training jobs) in the server's log, else of this island */
    int64_t tokens;
    /* number of islands (training jobs) whose changes of weights (deltas) counted in the round */
    int     islands;
    int64_t staleness;     /* rounds by which the last delta of an island (training job) was late (outer.wait=none) */
    /* norm of the mean delta (change of weights), ms of the round, tokens per second, mean loss of the islands
     * (training jobs) */
    double  norm, ms, tokens_per_s, loss;
    double  waited_ms;     /* ms that the training of an island (training job) waited in the whole round */
    int64_t sent, received; /* bytes that an island sent and received; for a server they and waited_ms are 0 */
} OuterMetrics;

/* Facts about a run for its log lines and its picture. */
typedef struct {
    double      bytes_per_token; /* bytes of validation text per token, for bits per byte; NaN: not known */
    const char *commit;          /* borrowed: commit of the program */
    int64_t     parameters;
    int         tensorboard;     /* 1: the numbers are also written to <dir>/tb */
} MetricsAbout;

typedef struct Metrics Metrics;

/* Opens <dir>/metrics.jsonl for a run that continues after `step` completed steps. Cuts a torn last line and lines of
 * later steps. Step 0 empties the file. Lines of other programs between ours stay. Warnings give the number of these
 * and of missing lines. Also reads the remaining losses for loss.svg. Exit 74 naming the path. */
Metrics *metrics_open(const char *dir, int64_t step, MetricsAbout about);
/* Returns 1 if <dir>/metrics.jsonl has the train line of `step` but no evaluation after it, and is of a run that
 * evaluates. kind: LINE_EVAL for losses, LINE_TASK for tasks. Returns 1 at step 0, where the file is emptied. Changes
 * nothing. */
int      metrics_lack_eval(const char *dir, int64_t step, LineKind kind);
void     metrics_train(Metrics *m, const StepMetrics *s);
/* Writes the line of a round of jobs that train together (outer.server). loss.svg of the server is drawn from these
 * lines. */
void     metrics_outer(Metrics *m, const OuterMetrics *o);
void     metrics_eval(Metrics *m, int64_t step, double loss);
/* writes one line for each task, all in one write */
void     metrics_tasks(Metrics *m, int64_t step, const TaskScores *scores, int tasks);
/* returns the loss of the evaluation at that step; NaN if there is none */
double   metrics_eval_loss(const Metrics *m, int64_t step);

/* Writes an event, a line of its own: {"kind":"event","event":...,"step":...,"time":...}, then `numbers` [count]:
 *   "resume"  step: completed steps that the run continues after; ranks
 *   "save"    step: that of the checkpoint, which is complete now, perhaps among the lines of later steps; ms
 *   "memory"  a copy of a checkpoint in memory is complete; ms, wait_ms */
void     metrics_event(Metrics *m, const char *event, int64_t step, const Metric *numbers, int count);
/* writes the event that a step was skipped; called before the line of that step; does nothing if m is NULL */
void     metrics_skipped(Metrics *m, int64_t step, const char *why);
/* Continues the log after step `to`: cuts later lines, and writes an event at that step which names `from`. */
void     metrics_rolled_back(Metrics *m, int64_t to, int64_t from);
/* Continues the log of a job with outer.server at the later step `to`, where the other jobs are. Adds an event that
 * names `from`. */
void     metrics_joined(Metrics *m, int64_t to, int64_t from);
/* Writes the newest validation loss in the file to *last, and the lowest finite one to *best; NaN if there is none. */
void     metrics_evals(const Metrics *m, double *last, double *best);

/* A line that cannot be written, as on a full disk, waits in memory with those after it. One warning names the path,
 * every line tries again, and no checkpoint is saved until all are written. metrics_catch_up tries now. It returns 1,
 * or 0 with a phrase that has the path in fault [METRICS_FAULT_BYTES]. A checkpoint syncs the file by metrics_fd before
 * it gets its final name. */
enum { METRICS_FAULT_BYTES = 1024 };
int      metrics_catch_up(Metrics *m, char *fault);
const char *metrics_path(const Metrics *m);
int      metrics_fd(const Metrics *m);

void     metrics_draw(Metrics *m);       /* writes <dir>/loss.svg from everything so far */
void     metrics_close(Metrics *m);      /* closes the log; exit 74 if lines that wait in memory cannot be written */

#endif
