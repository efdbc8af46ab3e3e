/* guard_step.h - judges a computed step before it reaches the weights, has it computed again where that decides
 * something, and names ranks. This is where a step's exit 76 (EXIT_NUMERIC) is decided, as GUARD_STOP;
 * train_gpt.cu ends the job. Before a save it asks guard_compare; a state that is not finite ends a save: checkpoint.h.
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

/* How a step is computed once more, from the same batches. */
typedef struct {
    void      (*rewind)(void *ctx, int64_t step);
    void      (*compute)(void *ctx);
    StepNumbers (*numbers)(void *ctx, int64_t step); /* collective: reduces them over the ranks       */
    int       (*has_time)(void *ctx);                /* 0: the run is asked to stop, nothing is verified */
    void       *ctx;
} Again;

enum { GUARD_SAID = 2 * GUARD_TEXT };

/* Collective. *n is replaced by the numbers that count. said: a line for the log, "" for none; with GUARD_STOP the
 * reason, which names step and ranks, for exit 76. shares_moments: all ranks hold the same moments, too. */
GuardAct guard_step(Guard *g, LossScale *scale, DType act, const Config *c, Comm *comm, int64_t step, StepNumbers *n,
                    Again again, int shares_moments, char said[GUARD_SAID]);

/* Collective. Every rank computes with the same weights, or nothing more is done with them: 1, or 0 and the reason, for
 * exit 76. replicas: the hash of everything that all ranks hold alike. */
int guard_compare(Comm *comm, int64_t step, int64_t replicas, int shares_moments, char said[GUARD_SAID]);

#endif
