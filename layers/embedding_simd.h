/* embedding_simd.h - the kernels of embedding.c: rows added. Compiled once per instruction set (core/simd_each.h). */
#include "layers/act_simd.h"

SIMD_INLINE void SIMD(add_rows_of)(DType type, void *y, const void *a, const void *b, int64_t y_at, int64_t a_at,
                                   int64_t b_at, int64_t C) {
    for (int64_t c = 0; c < C; c += LANES) {
        int64_t n = act16_count(c, C);
        act16_store_n(y, y_at + c, n, type, act16_load_n(a, a_at + c, n, type) + act16_load_n(b, b_at + c, n, type));
    }
}
ACT_KERNEL(add_rows,
           (DType type, void *y, const void *a, const void *b, int64_t y_at, int64_t a_at, int64_t b_at, int64_t C), y,
           a, b, y_at, a_at, b_at, C)

/* sum[0..C) += x[at..at+C) */
SIMD_INLINE void SIMD(accumulate_row_of)(DType type, float *sum, const void *x, int64_t at, int64_t C) {
    for (int64_t c = 0; c < C; c += LANES) {
        int64_t n = act16_count(c, C);
        act16_store_n(sum, c, n, F32, act16_load_n(sum, c, n, F32) + act16_load_n(x, at + c, n, type));
    }
}
ACT_KERNEL(accumulate_row, (DType type, float *sum, const void *x, int64_t at, int64_t C), sum, x, at, C)
