/* memory_rescue.h - turns the copies in memory that a lost job left into an ordinary checkpoint. For
 * checkpoint_resume.c. */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_MEMORY_RESCUE_H
#define TRAIN_GPT_RUN_CHECKPOINT_MEMORY_RESCUE_H

#include "run/checkpoint/checkpoint.h"
#include "run/checkpoint/checkpoint_folders.h"

/* Collective, called before anything is read. newest: step of the newest checkpoint on the disk; -1: none. Looks for a
 * later step of this run whose copies exist and are whole for all ranks, on their own host or on the next. Writes the
 * newest such step as a checkpoint for any grid, and returns 1 with its folder in *at (rank 0). Else returns 0. Warns
 * of each damaged copy. Exit 64 if config and copies do not fit each other. Exit 74 if the checkpoint cannot be
 * written; the copies then stay. */
int memory_rescue(const CheckpointState *state, int64_t newest, StepFolder *at);

#endif
