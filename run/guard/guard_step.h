/* guard_step.h - judges a computed step before it reaches the weights. Computes it again where that decides something,
 * and names ranks. It decides exit 76 (EXIT_NUMERIC) of a step by returning GUARD_STOP, and train_gpt.cu then ends the
 * job. train_gpt.cu calls guard_compare before a save. A state that is not finite ends a save: checkpoint.h.
 *
 *   seen                                          computed again       then
 *   fp16 gradients overflow                       no                   GUARD_SKIP, half the loss scale
 *   the ranks' weights differ                     no                   GUARD_STOP
 *   every run.verify_every steps                  once, or twice       the result that came twice counts; three different ones: GUARD_STOP
 *   the ranks' weights differ after that          -                    GUARD_STOP
 *   loss or norm not finite, or a spike           once                 run.on_nonfinite, run.on_spike: GUARD_STOP, _SKIP, _ROLLBACK or _UPDATE
 */
#ifndef TRAIN_GPT_RUN_GUARD_GUARD_STEP_H
#define TRAIN_GPT_RUN_GUARD_GUARD_STEP_H

#include "model/precision.h"
#include "run/guard/guard.h"

/* Callbacks that compute a step once more, from the same batches. */
typedef struct {
    void      (*rewind)(void *ctx, int64_t step);
    void      (*compute)(void *ctx);
    StepNumbers (*numbers)(void *ctx, int64_t step); /* collective: the numbers, reduced over all ranks */
    int       (*has_time)(void *ctx);                /* returns 0 after a request to stop: no verification */
    void       *ctx;
} Again;

enum { GUARD_SAID = 2 * GUARD_TEXT };

/* Collective. Judges the step and returns what to do. Replaces *n with the numbers that count. said gets a line for the
 * log, or "". With GUARD_STOP it gets the reason for exit 76, which names step and ranks. shares_moments: all ranks
 * hold equal moments, too. */
GuardAct guard_step(Guard *g, LossScale *scale, DType act, const Config *c, Comm *comm, int64_t step, StepNumbers *n,
                    Again again, int shares_moments, char said[GUARD_SAID]);

/* Collective. Returns 1 if all ranks hold the same weights, or 0 with the reason for exit 76 in said. replicas: the
 * hash of everything that all ranks hold. */
int guard_compare(Comm *comm, int64_t step, int64_t replicas, int shares_moments, char said[GUARD_SAID]);

#endif
