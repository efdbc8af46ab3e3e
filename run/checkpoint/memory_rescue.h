/* memory_rescue.h - copies in memory that a lost job has left become an ordinary checkpoint. For checkpoint_resume.c. */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_MEMORY_RESCUE_H
#define TRAIN_GPT_RUN_CHECKPOINT_MEMORY_RESCUE_H

#include "run/checkpoint/checkpoint.h"
#include "run/checkpoint/checkpoint_folders.h"

/* Collective, before anything is read. Where this run's copies of a step after `newest` (the disk's; -1: it has none) are
 * all there and whole, own ones or a neighbour's, writes the newest such step as a checkpoint of any grid: 1 and its
 * folder in *at (rank 0). Warns of each that is damaged. Exit 64 where config and copies do not fit each other, 74 when the
 * checkpoint cannot be written: the copies stay. */
int memory_rescue(const CheckpointState *state, int64_t newest, StepFolder *at);

#endif
