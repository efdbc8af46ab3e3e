/* attention_hopper.h - which kernels a call of attention gets, and those for compute capability 9.0. */
#ifndef TRAIN_GPT_LAYERS_ATTENTION_HOPPER_H
#define TRAIN_GPT_LAYERS_ATTENTION_HOPPER_H

#include "layers/attention_tile.cuh"

/* TRAIN_GPT_ATTENTION: unset; portable, hopper; of the latter's backward, hopper-heads or hopper-tiles. */
typedef enum { ATTENTION_CHOSEN, ATTENTION_PORTABLE, ATTENTION_HOPPER, ATTENTION_HEADS, ATTENTION_TILES } AttentionAsked;
AttentionAsked attention_asked(void);

/* Those of attention_hopper*.cu where the GPU has compute capability 9.0 and the program code for it (sm_90a), elements
 * have 16 bits, heads 64 or 128 channels, and rows are whole 16-byte vectors; else those of attention.cu and
 * attention_backward.cu, which take everything. Asked for portable ones: these always. */
bool attention_takes_hopper(DType act, const Heads &h);
/* The same before there are tensors; without a GPU as on an H100. */
bool attention_expects_hopper(DType act, int64_t D);

void attention_hopper_forward(Stream *s, Tensor y, Tensor lse, Tensor qkv, Tensor keys, Heads h);

/* After attention_prepare_kernel, which finds minus: dkeys' columns of keys and values, and dqkv's of queries. Two kernels
 * of blocks of keys and blocks of queries, seven products a tile. */
void attention_hopper_backward(Stream *s, Tensor dqkv, Tensor dkeys, Tensor dy, Minus minus, Tensor qkv, Tensor keys, Heads h);

/* The same by one kernel with a block a head, five products a tile. sums: attention_heads_bytes. f: NULL, or dqkv is codes of
 * its dy (fp8_attention_backward), which takes bf16 and 64 channels. Where every head has 64
 * or 128 channels and keys of its own, and whole sequences are on this GPU; and, where no kernels were asked
 * for by name, heads keep the multiprocessors busy for three quarters of the time (5/7 is where seven products are as
 * quick), and the sums of all blocks fit in L2. Without a GPU the answer is an H100's. The bits are the same either way. */
bool   attention_by_heads(DType act, int64_t heads, int64_t T, HeadShape h);
size_t attention_heads_bytes(int64_t heads, int64_t T, int64_t D);
void   attention_hopper_heads_backward(Stream *s, Tensor dqkv, const Fp8 *f, Tensor dy, Minus minus, float *sums, Tensor qkv, Heads h);

#endif
