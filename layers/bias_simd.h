/* bias_simd.h - the kernels of bias.c: rows added for the bias gradient. Compiled once per instruction set
 * (core/simd_each.h). */
#include "layers/act_simd.h"

/* Sets sum [M] to the sum of `rows` rows of x, four rows at a time. */
SIMD_INLINE void SIMD(add_rows_of)(DType type, float *sum, const void *x, int64_t rows, int64_t M) {
    memset(sum, 0, (size_t)M * sizeof(float));
    for (int64_t r = 0; r < rows; r += 4) {
        for (int64_t c = 0; c < M; c += LANES) {
            int64_t n = act16_count(c, M);
            f32x16  total = act16_load_n(x, r * M + c, n, type);
            for (int64_t k = r + 1; k < rows && k < r + 4; k++) total += act16_load_n(x, k * M + c, n, type);
            act16_store_n(sum, c, n, F32, act16_load_n(sum, c, n, F32) + total);
        }
    }
}
ACT_KERNEL(add_rows, (DType type, float *sum, const void *x, int64_t rows, int64_t M), sum, x, rows, M)
