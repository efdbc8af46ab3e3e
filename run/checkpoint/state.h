/* state.h - the position and counters of a run: everything that a resume restores besides weights and optimizer. The
 * run owns it, and a checkpoint holds it. */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_STATE_H
#define TRAIN_GPT_RUN_CHECKPOINT_STATE_H

#include "model/precision.h"
#include "run/checkpoint/manifest.h"
#include "run/config/config.h"
#include "run/guard/guard.h"

/* The position after `step` steps. tokens: tokens in these steps. samples: global index of the next sample, which after
 * a rollback is larger than the number of samples in the steps. */
typedef struct { int64_t step, tokens, samples; } Position;

typedef struct {
    Position  start;       /* where this process began; a rollback changes it           */
    int64_t   missed;      /* steps that the moments have not seen: before an island joined, less those trained twice */
    Guard     guard;
    LossScale loss_scale;  /* equal in all bits to that of a run never stopped          */
    Fp8History *fp8;       /* borrowed; NULL without fp8; equal bits, too               */
    char      run_id[40];  /* made at the first start; resumes keep it, copies do not   */
    RunParent parent;      /* the run that this one was copied from                     */
} TrainState;

/* Returns the position after `step` steps of a run that was at p. */
static inline Position position_after(Position p, const Config *c, int64_t step) {
    int64_t  own = step - p.step;
    Position after = {step, p.tokens + own * c->batch.global_tokens, p.samples + own * (c->batch.global_tokens / c->batch.seq_len)};
    return after;
}

#endif
