/* gpu_scratch.h - the scratch memory of a GPU, for a plan on a build that does not run there. */
#ifndef TRAIN_GPT_RUN_PLAN_GPU_SCRATCH_H
#define TRAIN_GPT_RUN_PLAN_GPU_SCRATCH_H

#include "model/model.h"

/* Returns bytes that a CUDA build's scratch does not exceed, the same on every build: the sizes of what its operations take, as if all
 * took theirs at once. */
size_t gpu_scratch_bytes(const ModelSpec *spec);

#endif
