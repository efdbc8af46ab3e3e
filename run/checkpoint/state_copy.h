/* state_copy.h - copies masters and moments of a rank to host memory while training waits. For saves and for copies in
 * memory. */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_STATE_COPY_H
#define TRAIN_GPT_RUN_CHECKPOINT_STATE_COPY_H

#include "run/checkpoint/checkpoint.h"
#include "run/checkpoint/exchange.h"

/* Collective over the tensor ranks. Copies the elements of all file runs to `to`: masters, then each state. scratch
 * [exchange_scratch_elems]. Returns when the copy is complete. */
void state_copy(const CheckpointState *state, const FileRuns *runs, float *to, float *scratch);

#endif
