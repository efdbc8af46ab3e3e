/* step_numbers.h - the numbers of a step that need all ranks. They are the sums that one reduction computes, the load
 * of the experts, and the scales of fp8.
 */
#ifndef TRAIN_GPT_RUN_STEP_NUMBERS_H
#define TRAIN_GPT_RUN_STEP_NUMBERS_H

#include "comm/comm.h"
#include "model/model.h"
#include "run/guard/guard.h"

typedef struct Run Run;

/* Collective. Called after compute_gradients. Returns the numbers of the step, reduced over all ranks: loss, gradient
 * norm, hashes. Sets the requests in r->between. Waits for the stream. */
StepNumbers reduce_numbers(Run *r, int64_t step);

/* --- experts ------------------------------------------------------------------------------------------------------ */

/* How evenly the experts of each block share the assignments (tokens sent to experts) of a step. The result is for
 * metrics, for the balance of experts, and for a warning if few experts get nearly all. */
typedef struct {
    int64_t *counts;          /* owned [n_layer * experts]: assignments in the step, over all ranks; NULL: no experts */
    double   busiest;         /* largest share of one block's assignments that one expert had */
    double   entropy;         /* entropy of the shares, mean over blocks: 1 if all are equal, 0 if one expert has all */
    /* largest number of rounds in which a rank computed the experts of a block, because a round has a fixed number of
     * rows; 0: experts not divided among ranks */
    int64_t  rounds;
    int      has_warned;
} ExpertLoad;

/* --- fp8 ---------------------------------------------------------------------------------------------------------- */

/* Scales of fp8, kept from step to step (model/precision.h). The largest absolute values of tensors are reduced over
 * all ranks with the numbers of the step. They enter the scales once the step is accepted. */
typedef struct {
    Fp8History history;
    /* numbers of the step that was computed last, over all ranks */
    /* owned [cells]: the largest absolute value of each tensor in fp8; NULL: the run does not use fp8 */
    int64_t   *amax;
    /* owned [2 cells]: for each tensor in fp8 the elements that were clipped, and those that became zero */
    int64_t   *counts;
    int64_t    saturated, vanished; /* sums of the counts: elements that were clipped, and that became zero */
} Fp8Steps;

Fp8Steps fp8_steps_create(int64_t n_layer);
void     fp8_steps_destroy(Fp8Steps *f);
/* Accepts the step whose numbers were reduced last: sets the fp8 scales of the next step from the maxima of its
 * tensors. */
void     fp8_steps_accept(Fp8Steps *f, Model *m);

#endif
