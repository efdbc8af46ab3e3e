/* attention_hopper.h - which kernels a call of attention gets, and those for compute capability 9.0. */
#ifndef TRAIN_GPT_LAYERS_ATTENTION_HOPPER_H
#define TRAIN_GPT_LAYERS_ATTENTION_HOPPER_H

#include "layers/attention_tile.cuh"

/* Those of attention_hopper*.cu where the GPU has compute capability 9.0 and the program code for it (sm_90a), elements
 * have 16 bits, heads 64 or 128 channels, and rows are whole 16-byte vectors; else those of attention.cu and
 * attention_backward.cu, which take everything. TRAIN_GPT_ATTENTION=portable: these always. */
bool attention_takes_hopper(DType act, const Heads &h);

void attention_hopper_forward(Stream *s, Tensor y, Tensor lse, Tensor qkv, Tensor keys, Heads h);
/* After attention_prepare_kernel, which finds minus: dkeys' columns of keys and values, and dqkv's of queries. */
void attention_hopper_backward(Stream *s, Tensor dqkv, Tensor dkeys, Tensor dy, Minus minus, Tensor qkv, Tensor keys, Heads h);

#endif
