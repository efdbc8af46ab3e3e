/* state.h - where a run stands: all that a resume brings back beside weights and optimizer. The run owns it, a
 * checkpoint holds it. */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_STATE_H
#define TRAIN_GPT_RUN_CHECKPOINT_STATE_H

#include "model/fp8.h"
#include "model/precision.h"
#include "run/checkpoint/manifest.h"
#include "run/config/config.h"
#include "run/guard/guard.h"

/* After `step` steps: the tokens of the run's steps, and the global index of the sample that comes next. After a
 * rollback that is more than the steps have taken. */
typedef struct { int64_t step, tokens, samples; } Position;

typedef struct {
    Position  start;       /* where this process took over; a rollback moves it         */
    int64_t   missed;      /* steps that the moments have not seen: those before an island joined, less those it trained twice */
    Guard     guard;
    LossScale loss_scale;  /* the same bits as a run that was never stopped             */
    Fp8History *fp8;       /* borrowed; NULL in other precisions: the same */
    char      run_id[40];  /* made at the first start, kept by resumes, not by copies   */
    RunParent parent;      /* of a copied run                                           */
} TrainState;

/* After `step` steps of a run that stood at p. */
static inline Position position_after(Position p, const Config *c, int64_t step) {
    int64_t  own = step - p.step;
    Position after = {step, p.tokens + own * c->batch.global_tokens, p.samples + own * (c->batch.global_tokens / c->batch.seq_len)};
    return after;
}

#endif
