/* matmul_simd.h - the kernels of matmul.c: rows widened, turned and narrowed. Compiled once per instruction set
 * (core/simd_each.h). */
#include "layers/act_simd.h"
#include "layers/transpose_simd.h"

static void SIMD(widen_row)(float *y, const uint16_t *x, int64_t n) {
    for (int64_t i = 0; i < n; i += LANES) {
        int64_t lanes = act16_count(i, n);
        act16_store_n(y, i, lanes, F32, act16_load_n(x, i, lanes, BF16));
    }
}

static void SIMD(widen_turned)(float *y, int64_t y_step, const uint16_t *x, int64_t x_step, int64_t rows, int64_t columns) {
    transpose(y, y_step, x, x_step, rows, columns, BF16, 1.0f);
}

static void SIMD(turn)(float *y, int64_t y_step, const float *x, int64_t x_step, int64_t rows, int64_t columns) {
    transpose(y, y_step, x, x_step, rows, columns, F32, 1.0f);
}

/* y = x + bias, rounded; bias may be NULL. */
static void SIMD(narrow_row)(uint16_t *y, const float *x, const uint16_t *bias, int64_t n) {
    for (int64_t i = 0; i < n; i += LANES) {
        int64_t lanes = act16_count(i, n);
        f32x16  v = act16_load_n(x, i, lanes, F32);
        if (bias) v += act16_load_n(bias, i, lanes, BF16);
        act16_store_n(y, i, lanes, BF16, v);
    }
}
