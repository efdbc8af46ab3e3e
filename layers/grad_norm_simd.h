/* grad_norm_simd.h - the kernels of grad_norm.c: squares added exactly. Compiled once per instruction set
 * (core/simd_each.h). */
#include "layers/act_simd.h"

SIMD_INLINE double SIMD(block_squares)(const float *x) {
    f64x8 sum[2] = {{0}, {0}};
    for (int64_t i = 0; i < NORM_BLOCK; i += 8) {
        f32x8 part;
        memcpy(&part, x + i, sizeof part);
        f64x8 wide = __builtin_convertvector(part, f64x8); /* squares of f32 are exact in f64 */
        sum[i / 8 % 2] += wide * wide;
    }
    double lane[8];
    f64x8  both = sum[0] + sum[1];
    memcpy(lane, &both, sizeof lane);
    for (int half = 4; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
}

static void SIMD(add_squares)(Exact *sum, const float *x, int64_t n) {
    int64_t i = 0;
    for (; i + NORM_BLOCK <= n; i += NORM_BLOCK) exact_add(sum, SIMD(block_squares)(x + i));
    if (i == n) return;
    float last[NORM_BLOCK] = {0};
    memcpy(last, x + i, (size_t)(n - i) * sizeof *x);
    exact_add(sum, SIMD(block_squares)(last));
}
