/* grad_norm.c - CPU side of norm_squared and sum_forward in layers.h. Threads add parts of the tensor to exact sums,
 * which no order changes. */
#include "layers/act_simd.h"
#include "layers/contracts.h"
#include "layers/layers.h"

enum { NORM_BLOCK = 64 }; /* elements whose squares are summed in float64; ACT_BLOCK is a multiple of it */

typedef float  f32x8 __attribute__((vector_size(32)));
typedef double f64x8 __attribute__((vector_size(64)));

SIMD_INLINE double block_squares(const float *x) {
    f64x8 sum[2] = {{0}, {0}};
    for (int64_t i = 0; i < NORM_BLOCK; i += 8) {
        f32x8 part;
        memcpy(&part, x + i, sizeof part);
        f64x8 wide = __builtin_convertvector(part, f64x8); /* values of `part` as f64, in which squares of f32 values
                                                            * are exact */
        sum[i / 8 % 2] += wide * wide;
    }
    double lane[8];
    f64x8  both = sum[0] + sum[1];
    memcpy(lane, &both, sizeof lane);
    for (int half = 4; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
}

void SIMD(add_squares)(Exact *sum, const float *x, int64_t n) {
    int64_t i = 0;
    for (; i + NORM_BLOCK <= n; i += NORM_BLOCK) exact_add(sum, block_squares(x + i));
    if (i == n) return;
    float last[NORM_BLOCK] = {0};
    memcpy(last, x + i, (size_t)(n - i) * sizeof *x);
    exact_add(sum, block_squares(last));
}
SIMD_DISPATCH(void, add_squares, (Exact *sum, const float *x, int64_t n), (sum, x, n))

#if SIMD_HOST
static void add_values(Exact *sum, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) exact_add(sum, (double)x[i]);
}

/* Adds the values of x, or their squares, to the exact sum `sum`, as add() does for n elements. */
static void add_terms(Tensor sum, Tensor x, void (*add)(Exact *sum, const float *x, int64_t n)) {
    int64_t n = x.dim[0];
    #pragma omp parallel if (n > ACT_BLOCK)
    {
        Exact part = {{0}};
        #pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < n; i += ACT_BLOCK) add(&part, (const float *)x.data + i, act_block_elems(i, n));
        #pragma omp critical(exact_sum)
        exact_merge((Exact *)sum.data, &part);
    }
}

void norm_squared(Stream *s, Tensor sum, const Tensor *x, int count) {
    if (norm_squared_contract(s, sum, x, count)) return;
    for (int i = 0; i < count; i++) add_terms(sum, x[i], add_squares);
}
void sum_forward(Stream *s, Tensor sum, Tensor x) {
    if (!sum_forward_contract(s, sum, x)) add_terms(sum, x, add_values);
}
#endif
