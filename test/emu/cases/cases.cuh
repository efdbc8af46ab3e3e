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
void adamw(float *p, float *m, float *v, const float *g, size_t n, Stream *s); /* n must be a multiple of 4 */
void reverse_warps(float *out, const float *in, int n, Stream *s);             /* n must be a multiple of 128 */
void pairs_of_warps(float *out, const float *in, int n, Stream *s);
void fill(float *out, int n, float value, Stream *s);

/* n and k must be multiples of 8 */
template <typename T> void gemm(float *c, const T *a, const T *b, int m, int n, int k, Stream *s);
template <typename T> void gemm_hopper(float *c, const T *a, const T *b, int m, int n, int k, Stream *s);

/* out[64,N] = a b', with a [64,k] and b [N,k]. k * sizeof(A) is a multiple of 128. `turned` is a bit set of stored
 * transposes: 1: b is stored as [k,N]; 2: a is stored as [k,64]. */
template <typename A, typename B, int N, bool in_registers, int turned>
void product(float *out, const A *a, const B *b, int k, Stream *s);
void two_products(float *out, const bf16 *a, const bf16 *b, Stream *s);

/* Writes `in`, or its transpose, to out by TMA stores. A block stores 64 rows of `in`, reads back the first element
 * that it stored, and writes it to seen[block]. */
template <typename T, bool transposed> void store(T *out, T *seen, const T *in, int rows, int columns, Stream *s);
template <typename T> void sum_of_blocks(T *sum, int rows, int blocks, int rounds, Stream *s);
void hand_on(float *out, const float *in, int n, Stream *s);
/* out[i] = 8 in[i] for i < n, by three kernels that each double. Two of them are launched early, before the previous
 * kernel has ended. n must be a multiple of 128. */
void double_often(float *out, float *room, const float *in, int n, Stream *s);
/* Launches clusters of two blocks. Block b writes out[b][i] = in[i] + b, with `in` [64 tiles, 64] and out [2
 * clusters][size of in]. */
void share(float *out, const bf16 *in, int tiles, int clusters, Stream *s);
