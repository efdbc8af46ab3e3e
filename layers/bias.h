/* bias.h - the gradient of a bias: column sums of the gradient of what it was added to. A step of the ops of layers.h that
 * have one; bias.c is the CPU's, bias.cu CUDA's.
 */
#ifndef TRAIN_GPT_LAYERS_BIAS_H
#define TRAIN_GPT_LAYERS_BIAS_H

#include "core/device.h"
#include "core/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* db [M] f32 += column sums of dy [N,M]. It takes its memory from s->scratch and gives it back. */
void bias_backward(Stream *s, Tensor db, Tensor dy);

#ifdef __cplusplus
}
#endif
#endif
