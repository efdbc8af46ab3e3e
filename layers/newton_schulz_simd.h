/* newton_schulz_simd.h - the kernels of newton_schulz.c. Compiled once per instruction set (core/simd_each.h). */
#include "layers/act_simd.h"

static double SIMD(row_squares)(const float *x, int64_t n) {
    f64x8  sum = {0};
    double lane[8], all = 0.0;
    for (int64_t i = 0; i < n; i += 8) {
        f32x8 part = {0};
        memcpy(&part, x + i, sizeof(float) * (size_t)(n - i < 8 ? n - i : 8));
        f64x8 wide = __builtin_convertvector(part, f64x8);
        sum += wide * wide; /* squares of f32 are exact in f64, so a fused sum is the same */
    }
    memcpy(lane, &sum, sizeof lane);
    for (int i = 0; i < 8; i++) all += lane[i];
    return all;
}

SIMD_INLINE void SIMD(narrow_row_of)(DType type, void *X, int64_t at, const float *x, float factor, int64_t n) {
    for (int64_t i = 0; i < n; i += LANES) {
        int64_t lanes = act16_count(i, n);
        act16_store_n(X, at + i, lanes, type, factor * act16_load_n(x, i, lanes, F32));
    }
}
ACT_KERNEL(narrow_row, (DType type, void *X, int64_t at, const float *x, float factor, int64_t n), X, at, x, factor, n)

SIMD_INLINE void SIMD(widen_row_of)(DType type, float *x, const void *X, int64_t at, int64_t n) {
    for (int64_t i = 0; i < n; i += LANES) {
        int64_t lanes = act16_count(i, n);
        act16_store_n(x, i, lanes, F32, act16_load_n(X, at + i, lanes, type));
    }
}
ACT_KERNEL(widen_row, (DType type, float *x, const void *X, int64_t at, int64_t n), x, X, at, n)

SIMD_INLINE void SIMD(mix_block_of)(DType type, void *x, float inner, const void *y, float outer, int64_t first,
                                    int64_t n) {
    for (int64_t i = first; i < first + n; i += LANES) {
        int64_t lanes = act16_count(i, first + n);
        f32x16  sum = act16_load_n(y, i, lanes, type) + inner * act16_load_n(x, i, lanes, type);
        act16_store_n(x, i, lanes, type, outer * sum);
    }
}
ACT_KERNEL(mix_block, (DType type, void *x, float inner, const void *y, float outer, int64_t first, int64_t n),
           x, inner, y, outer, first, n)
