/* fp8_steps.h - the scales of fp8 from step to step (model/precision.h). The maxima of all ranks are reduced with the numbers
 * of the step. They enter the scales once the step is accepted. */
#ifndef TRAIN_GPT_RUN_FP8_STEPS_H
#define TRAIN_GPT_RUN_FP8_STEPS_H

#include "comm/comm.h"
#include "model/model.h"

typedef struct {
    Fp8History history;
    int64_t   *amax;             /* owned [cells]: maxima of the last computed step, over all ranks; NULL: not in fp8 */
    int64_t   *counts;           /* owned [2 cells]: counts of the same step, over all ranks */
    int64_t    saturated, vanished; /* elements of all tensors that were clipped; that became zero */
} Fp8Steps;

Fp8Steps fp8_steps_create(int64_t n_layer);
void     fp8_steps_destroy(Fp8Steps *f);
/* Collective. Takes maxima and counts after the backwards of a step, before its sums are used again. */
void     fp8_steps_take(Fp8Steps *f, Model *m, Comm *all);
/* Accepts the step that fp8_steps_take took last: sets the scales of the next step from its maxima. */
void     fp8_steps_accept(Fp8Steps *f, Model *m);

#endif
