/* step_numbers.h - a step's one reduction of scalars: loss, gradient norm, hashes, requests between steps. */
#ifndef TRAIN_GPT_RUN_STEP_NUMBERS_H
#define TRAIN_GPT_RUN_STEP_NUMBERS_H

#include "run/run.h"

/* Collective, after compute_gradients. Waits for the stream. Sets r->between. */
StepNumbers reduce_numbers(Run *r, int64_t step);

#endif
