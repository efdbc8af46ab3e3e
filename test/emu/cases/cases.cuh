/* cases.cuh - the kernels that prove the emulator, and the faults planted in them.
 *
 * One program holds all: `cases NAME [BUG]` runs a case with fault number BUG switched on. The same code must run clean
 * without the fault. Under nvcc there are no faults.
 */
#pragma once
#include "core/ptx.cuh"

#ifdef CUDA_EMU
extern int planted; /* 0: none */
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
