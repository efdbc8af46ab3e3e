/* step_numbers.h - the one reduction of scalars in a step: loss, gradient norm, hashes, requests for the time between
 * steps. */
#ifndef TRAIN_GPT_RUN_STEP_NUMBERS_H
#define TRAIN_GPT_RUN_STEP_NUMBERS_H

#include "run/run.h"

/* Collective. Called after compute_gradients. Returns the numbers of the step, reduced over all ranks, and sets the
 * requests in r->between. Waits for the stream. */
StepNumbers reduce_numbers(Run *r, int64_t step);

#endif
