/* metrics.h - metrics.jsonl: one JSON object a line, train steps strictly increasing without a gap, across any kill and resume.
 * Written by rank 0 only. Numbers with %.9g, non-finite ones null.
 */
#ifndef TRAIN_GPT_RUN_METRICS_H
#define TRAIN_GPT_RUN_METRICS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int64_t step;          /* completed optimizer steps, 1-based */
    int64_t tokens;        /* consumed since step 0              */
    double  loss, lr, grad_norm, tokens_per_s, mfu, ms, comm_ms, comm_exposed_ms;
} StepMetrics;

typedef struct Metrics Metrics;

/* Opens <dir>/metrics.jsonl for a run that goes on after `step` completed steps: a torn last line and lines past step are cut; step 0
 * starts the file anew. Also reads what remains for loss.svg and the ETA. Exit 74 naming the path. */
Metrics *metrics_open(const char *dir, int64_t step);
void     metrics_train(Metrics *m, const StepMetrics *s);
void     metrics_eval(Metrics *m, int64_t step, double loss);
void     metrics_flush(Metrics *m);      /* to the disk: before a checkpoint of that step is renamed */
void     metrics_draw(Metrics *m);       /* <dir>/loss.svg from everything so far */
void     metrics_close(Metrics *m);

#ifdef __cplusplus
}
#endif
#endif
