/* cases.cuh - the kernels that prove the emulator, and the faults planted in them.
 *
 * One program holds all: `cases NAME [BUG]` runs a case with fault number BUG switched on. The same code must run clean
 * without the fault. Under nvcc there are no faults.
 */
#pragma once
#include "core/ptx.cuh"

#ifdef CUDA_EMU
extern int planted; /* number of the planted fault; 0: none */
#define BUG(n) (planted == (n))
#else
#define BUG(n) false
#endif

void layernorm(bf16 *out, float *mean, float *rstd, const bf16 *in, const bf16 *gain, const bf16 *bias, int rows,
               int columns, Stream *s);
void softmax(float *out, const float *in, int rows, int columns, Stream *s);
void column_sums(float *sums, const float *in, int rows, int columns, Stream *s);
void adamw(float *p, float *m, float *v, const float *g, size_t n, Stream *s); /* n a multiple of 4 */
void reverse_warps(float *out, const float *in, int n, Stream *s);             /* n a multiple of 128 */
void pairs_of_warps(float *out, const float *in, int n, Stream *s);
void fill(float *out, int n, float value, Stream *s);

template <typename T> void gemm(float *c, const T *a, const T *b, int m, int n, int k, Stream *s);        /* n and k multiples of 8 */
template <typename T> void gemm_hopper(float *c, const T *a, const T *b, int m, int n, int k, Stream *s);

/* c = a b'. k * sizeof(A) is a multiple of 128. turned is a bit set: 1: b is [k,n] instead of [n,k]; 2: a is [k,64] */
template <typename A, typename B, int N, bool in_registers, int turned>
void product(float *out, const A *a, const B *b, int k, Stream *s);
void two_products(float *out, const bf16 *a, const bf16 *b, Stream *s);

/* seen: the first element of out for each 64 rows of `in`, as its block saw it */
template <typename T, bool transposed> void store(T *out, T *seen, const T *in, int rows, int columns, Stream *s);
template <typename T> void sum_of_blocks(T *sum, int rows, int blocks, int rounds, Stream *s);
void hand_on(float *out, const float *in, int n, Stream *s);
/* out [n] = 8 in, by three kernels, two of which are launched early; n % 128 == 0 */
void double_often(float *out, float *room, const float *in, int n, Stream *s);
/* clusters of two blocks; out[2 clusters][in] = in + the block's number, in [64 tiles, 64] */
void share(float *out, const bf16 *in, int tiles, int clusters, Stream *s);
