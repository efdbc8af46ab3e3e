/* attention_hopper.h - chooses the kernels for a call of attention, and declares those for compute capability 9.0. */
#ifndef TRAIN_GPT_LAYERS_ATTENTION_HOPPER_H
#define TRAIN_GPT_LAYERS_ATTENTION_HOPPER_H

#include "layers/attention_tile.cuh"

/* Values of the environment variable TRAIN_GPT_ATTENTION: not set, "portable", "hopper", and "hopper-heads" or
 * "hopper-tiles", which also choose hopper's backward pass. */
typedef enum {
    ATTENTION_CHOSEN, ATTENTION_PORTABLE, ATTENTION_HOPPER, ATTENTION_HEADS, ATTENTION_TILES
} AttentionAsked;
AttentionAsked attention_asked(void);

/* Returns whether the kernels of attention_hopper*.cu compute a call. The GPU must have compute capability 9.0 and the
 * program code for it (sm_90a). Elements have 16 bits, heads 64 or 128 channels, and rows are whole 16-byte vectors.
 * Otherwise the kernels of attention.cu and attention_backward.cu are used, which take everything, and always with
 * TRAIN_GPT_ATTENTION=portable. */
bool attention_takes_hopper(DType act, const Heads &h);
/* Returns what attention_takes_hopper is expected to return, before there are tensors. Without a GPU it is the answer
 * for an H100. */
bool attention_expects_hopper(DType act, int64_t D);

void attention_hopper_forward(Stream *s, Tensor y, Tensor lse, Tensor qkv, Tensor keys, Heads h);

/* Computes the key and value columns of dkeys and the query columns of dqkv, after attention_prepare_kernel, which
 * computes `minus`, the negated lse and delta of each query. Two kernels, with blocks of keys and blocks of queries;
 * seven products a tile. */
void attention_hopper_backward(Stream *s, Tensor dqkv, Tensor dkeys, Tensor dy, Minus minus, Tensor qkv, Tensor keys,
                               Heads h);

/* attention_hopper_heads_backward computes dqkv by one kernel with a block a head, five products a tile. sums is memory
 * of attention_heads_bytes() bytes. With f (not NULL) dqkv is written as fp8 codes, the operand dy of the product that
 * f belongs to (fp8_attention_backward); that takes bf16 and 64 channels. The bits are those of
 * attention_hopper_backward's two kernels.
 *
 * attention_by_heads returns whether this kernel is used. Every head has 64 or 128 channels and keys of its own, and
 * whole sequences are on this GPU. If no kernels were requested by name, heads must also keep the multiprocessors busy
 * for three quarters of the time, and the sums of all blocks must fit in L2. (The two kernels of
 * attention_hopper_backward compute seven products a tile, and are as fast if these five use 5/7 of the GPU.) Without a
 * GPU the answer is that for an H100. */
bool   attention_by_heads(DType act, int64_t heads, int64_t T, HeadShape h);
size_t attention_heads_bytes(int64_t heads, int64_t T, int64_t D);
void attention_hopper_heads_backward(Stream *s, Tensor dqkv, const Fp8 *f, Tensor dy, Minus minus, float *sums,
                                     Tensor qkv, Heads h);

#endif
