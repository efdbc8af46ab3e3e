/* state_copy.h - masters and moments of a rank, copied to host memory while training waits. For saves and for copies in
 * memory. */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_STATE_COPY_H
#define TRAIN_GPT_RUN_CHECKPOINT_STATE_COPY_H

#include "run/checkpoint/checkpoint.h"
#include "run/checkpoint/exchange.h"

/* Collective over the tensor ranks. The elements of runs: masters, then each state, to `to`; scratch has room for
 * exchange_scratch_elems. Returns when they are there. */
void state_copy(const CheckpointState *state, const FileRuns *runs, float *to, float *scratch);

#endif
