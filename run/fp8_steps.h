/* fp8_steps.h - a run's scales of fp8 from step to step (model/fp8.h): the ranks' maxima meet with the step's numbers, and count
 * once the step does. */
#ifndef TRAIN_GPT_RUN_FP8_STEPS_H
#define TRAIN_GPT_RUN_FP8_STEPS_H

#include "comm/comm.h"
#include "model/model.h"

typedef struct {
    Fp8History history;
    int64_t   *amax;             /* owned [cells]: of the last step that was computed, over all ranks; NULL: not in fp8 */
    int64_t   *counts;           /* owned [2 cells]: the same                                  */
    int64_t    saturated, vanished; /* of all tensors: elements above the largest value; that became zero */
} Fp8Steps;

Fp8Steps fp8_steps_create(int64_t n_layer);
void     fp8_steps_destroy(Fp8Steps *f);
/* Collective. After a step's backwards, before its sums are used again. */
void     fp8_steps_take(Fp8Steps *f, Model *m, Comm *all);
/* The step that was taken last counts: the next one has the scales that it gives. */
void     fp8_steps_accept(Fp8Steps *f, Model *m);

#endif
