/* experts_simd.h - the kernel of experts.c: the sum of a token's rows. Compiled once per instruction set (core/simd_each.h). */
#include "layers/act_simd.h"

SIMD_INLINE void SIMD(sum_rows_of_of)(DType type, RowSum r, int64_t n) {
    for (int64_t c = 0; c < r.C; c += LANES) {
        int64_t count = act16_count(c, r.C);
        f32x16  sum = act16_load_n(r.x, r.place[n * r.k] * r.C + c, count, type);
        for (int64_t j = 1; j < r.k; j++) sum += act16_load_n(r.x, r.place[n * r.k + j] * r.C + c, count, type);
        act16_store_n(r.y, n * r.C + c, count, type, sum);
    }
}
ACT_KERNEL(sum_rows_of, (DType type, RowSum r, int64_t n), r, n)
