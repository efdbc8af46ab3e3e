/* rmsnorm_simd.h - the kernels of rmsnorm.c: a row's norm, forward and backward. Compiled once per instruction set
 * (core/simd_each.h). */
#include "layers/act_simd.h"

/* The sum first, where there is an update. The statistics are those of the row as stored. */
SIMD_INLINE void SIMD(forward_row_of)(DType type, Forward f, int64_t row) {
    int64_t     C = f.rows.C, at = row_start(f.rows, row, f.x_width), to = row_start(f.rows, row, f.y_width);
    const void *x = f.update ? f.sum : f.x;
    if (f.update)
        for (int64_t c = 0; c < C; c += LANES) {
            int64_t n = act16_count(c, C);
            act16_store_n(f.sum, at + c, n, type,
                          act16_load_n(f.x, at + c, n, type) + act16_load_n(f.update, at + c, n, type));
        }

    f32x16 square = f32x16_all(0.0f);
    for (int64_t c = 0; c < C; c += LANES) {
        f32x16 v = act16_load_n(x, at + c, act16_count(c, C), type);
        square += v * v;
    }
    float rstd = 1.0f / sqrtf(f32x16_sum(square) / (float)C + f.eps);

    for (int64_t c = 0; c < C; c += LANES) {
        int64_t n = act16_count(c, C);
        act16_store_n(f.y, to + c, n, type, act16_load_n(x, at + c, n, type) * rstd * act16_load_n(f.w, c, n, type));
    }
    f.rstd[row] = rstd;
}
ACT_KERNEL(forward_row, (DType type, Forward f, int64_t row), f, row)

/* --- backward: with n = x rstd and d = dy w,  dx = dresidual + rstd (d - n mean(d n)),  dw = sum dy n ------------- */

SIMD_INLINE void SIMD(backward_row_of)(DType type, Backward k, float *dw, int64_t row) {
    int64_t C = k.rows.C, x_at = row_start(k.rows, row, k.x_width), dy_at = row_start(k.rows, row, k.dy_width);
    int64_t dx_at = row_start(k.rows, row, k.dx_width);
    float   rstd = k.rstd[row];
    f32x16  sum_dn = f32x16_all(0.0f);
    for (int64_t c = 0; c < C; c += LANES) {
        int64_t n = act16_count(c, C);
        f32x16  norm = act16_load_n(k.x, x_at + c, n, type) * rstd;
        f32x16  dy = act16_load_n(k.dy, dy_at + c, n, type);
        sum_dn += dy * act16_load_n(k.w, c, n, type) * norm;
        act16_store_n(dw, c, n, F32, act16_load_n(dw, c, n, F32) + dy * norm);
    }
    float mean_dn = f32x16_sum(sum_dn) / (float)C;
    for (int64_t c = 0; c < C; c += LANES) {
        int64_t n = act16_count(c, C);
        f32x16  norm = act16_load_n(k.x, x_at + c, n, type) * rstd;
        f32x16  d = act16_load_n(k.dy, dy_at + c, n, type) * act16_load_n(k.w, c, n, type);
        f32x16  dx = rstd * (d - norm * mean_dn);
        if (k.dresidual) dx += act16_load_n(k.dresidual, dx_at + c, n, type);
        act16_store_n(k.dx, dx_at + c, n, type, dx);
    }
}
ACT_KERNEL(backward_row, (DType type, Backward k, float *dw, int64_t row), k, dw, row)
