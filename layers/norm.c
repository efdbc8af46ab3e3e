/* norm.c - CPU side of norm_squared and sum_forward in layers.h. The blocks of a norm are fixed by the tensor alone, and their sums are
 * added in order: the same bits for any number of threads. */
#include "layers/act_simd.h"
#include "layers/layers.h"

#ifndef SIMD_PASS

enum { NORM_BLOCK = 1 << 14, NORM_GROUP = 256 }; /* elements of a block; blocks summed at once, their sums on the stack */

typedef float  f32x8 __attribute__((vector_size(32)));
typedef double f64x8 __attribute__((vector_size(64)));

#define SIMD_FILE "layers/norm.c"
#include "core/simd_each.h"
SIMD_DISPATCH(double, squares, (const float *x, int64_t n), (x, n))

size_t norm_scratch_bytes(int64_t n) { return (void)n, 0; }

void norm_squared(Stream *s, Tensor sum, Tensor x) {
    (void)s;
    EXPECT1(sum, F64, 1);
    int64_t n = x.dim[0];
    EXPECT1(x, F32, n);
    const float *value = (const float *)x.data;
    for (int64_t first = 0; first < n; first += (int64_t)NORM_BLOCK * NORM_GROUP) {
        double  partial[NORM_GROUP];
        int64_t blocks = (n - first + NORM_BLOCK - 1) / NORM_BLOCK;
        if (blocks > NORM_GROUP) blocks = NORM_GROUP;
        #pragma omp parallel for schedule(static)
        for (int64_t b = 0; b < blocks; b++) {
            int64_t at = first + b * NORM_BLOCK;
            partial[b] = squares(value + at, n - at < NORM_BLOCK ? n - at : NORM_BLOCK);
        }
        for (int64_t b = 0; b < blocks; b++) *(double *)sum.data += partial[b];
    }
}

void sum_forward(Stream *s, Tensor sum, Tensor x) {
    (void)s;
    EXPECT1(sum, F64, 1);
    EXPECT1(x, F32, x.dim[0]);
    const float *value = (const float *)x.data;
    double total = 0.0;
    for (int64_t i = 0; i < x.dim[0]; i++) total += (double)value[i];
    *(double *)sum.data += total;
}

#else /* SIMD_PASS: the kernels, once per instruction set */

static double SIMD(squares)(const float *x, int64_t n) {
    f64x8   sum[2] = {{0}, {0}};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        for (int k = 0; k < 2; k++) {
            f32x8 part;
            memcpy(&part, x + i + 8 * k, sizeof part);
            f64x8 wide = __builtin_convertvector(part, f64x8);
            sum[k] += wide * wide;
        }
    }
    double total = 0.0;
    for (int lane = 0; lane < 8; lane++) total += sum[0][lane] + sum[1][lane];
    for (; i < n; i++) total += (double)x[i] * (double)x[i];
    return total;
}

#endif
