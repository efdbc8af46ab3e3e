/* gpu_scratch.h - estimates the scratch memory of a GPU, for a plan on a build that does not run there. */
#ifndef TRAIN_GPT_RUN_PLAN_GPU_SCRATCH_H
#define TRAIN_GPT_RUN_PLAN_GPU_SCRATCH_H

#include "model/model.h"

/* Returns an upper bound of a CUDA build's scratch bytes, the same on every build: the sum of what its operations
 * allocate, as if all did so at once. */
size_t gpu_scratch_bytes(const ModelSpec *spec);

#endif
