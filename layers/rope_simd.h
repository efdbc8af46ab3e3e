/* rope_simd.h - the kernel of rope.c: the heads of one row turned. Compiled once per instruction set
 * (core/simd_each.h). */
#include "layers/act_simd.h"

/* Rotates channels i and i + half of each head, from element `at` of x on, by the angle of cosine c[i] and sine
 * s[i]. */
SIMD_INLINE void SIMD(rope_row_of)(DType type, void *x, int64_t at, const float *c, const float *s, int64_t heads, int64_t half) {
    for (int64_t head = 0; head < heads; head++, at += 2 * half)
        for (int64_t i = 0; i < half; i += LANES) {
            int64_t n = act16_count(i, half);
            f32x16  low = act16_load_n(x, at + i, n, type), high = act16_load_n(x, at + half + i, n, type),
                    cosine = f32x16_load(c + i), sine = f32x16_load(s + i);
            act16_store_n(x, at + i, n, type, low * cosine - high * sine);
            act16_store_n(x, at + half + i, n, type, high * cosine + low * sine);
        }
}
ACT_KERNEL(rope_row, (DType type, void *x, int64_t at, const float *c, const float *s, int64_t heads, int64_t half), x,
           at, c, s, heads, half)
