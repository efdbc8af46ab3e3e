/* layernorm_simd.h - the kernels of layernorm.c: a row's norm, forward and backward. Compiled once per instruction set
 * (core/simd_each.h). */
#include "layers/act_simd.h"

/* Returns x - mean. Lanes past the row's end are filled with `mean`, so that they deviate by 0. */
SIMD_INLINE f32x16 SIMD(deviation16)(const void *x, int64_t i, int64_t n, float mean, DType type) {
    return n == LANES ? act16_load(x, i, type) - mean : act16_load_part(x, i, n, type, mean) - mean;
}

/* sum = x + update */
SIMD_INLINE void SIMD(sum_row_of)(DType type, Forward f, int64_t row) {
    int64_t at = row * f.C, C = f.C;
    for (int64_t c = 0; c < C; c += LANES) {
        int64_t n = act16_count(c, C);
        act16_store_n(f.sum, at + c, n, type, act16_load_n(f.x, at + c, n, type) + act16_load_n(f.update, at + c, n, type));
    }
}
ACT_KERNEL(sum_row, (DType type, Forward f, int64_t row), f, row)

/* Computes a row. If there is an update, the sum comes first. The statistics are those of the row as stored. */
SIMD_INLINE void SIMD(forward_row_of)(DType type, Forward f, int64_t row) {
    int64_t at = row * f.C, C = f.C;
    if (f.update) SIMD(sum_row_of)(type, f, row);
    const void *x = f.update ? f.sum : f.x;

    f32x16 sum = f32x16_all(0.0f);
    for (int64_t c = 0; c < C; c += LANES) sum += act16_load_n(x, at + c, act16_count(c, C), type);
    float  mean = f32x16_sum(sum) / (float)C;
    f32x16 square = f32x16_all(0.0f);
    for (int64_t c = 0; c < C; c += LANES) {
        f32x16 d = SIMD(deviation16)(x, at + c, act16_count(c, C), mean, type);
        square += d * d;
    }
    float rstd = 1.0f / sqrtf(f32x16_sum(square) / (float)C + f.eps);

    for (int64_t c = 0; c < C; c += LANES) {
        int64_t n = act16_count(c, C);
        f32x16  norm = SIMD(deviation16)(x, at + c, n, mean, type) * rstd;
        act16_store_n(f.y, at + c, n, type, norm * act16_load_n(f.w, c, n, type) + act16_load_n(f.b, c, n, type));
    }
    f.mean[row] = mean;
    f.rstd[row] = rstd;
}
ACT_KERNEL(forward_row, (DType type, Forward f, int64_t row), f, row)

/* --- backward: with n = (x-mean) rstd and d = dy w,  dx = rstd (d - mean(d) - n mean(d n)),  dw = sum dy n,  db = sum dy ------------ */

SIMD_INLINE void SIMD(backward_row_of)(DType type, Backward k, float *dw, float *db, int64_t row) {
    int64_t at = row * k.C, C = k.C;
    float   mean = k.mean[row], rstd = k.rstd[row];
    f32x16  sum_d = f32x16_all(0.0f), sum_dn = f32x16_all(0.0f);
    for (int64_t c = 0; c < C; c += LANES) {
        int64_t n = act16_count(c, C);
        f32x16  norm = SIMD(deviation16)(k.x, at + c, n, mean, type) * rstd;
        f32x16  dy = act16_load_n(k.dy, at + c, n, type);
        f32x16  d = dy * act16_load_n(k.w, c, n, type);
        sum_d += d;
        sum_dn += d * norm;
        act16_store_n(dw, c, n, F32, act16_load_n(dw, c, n, F32) + dy * norm);
        act16_store_n(db, c, n, F32, act16_load_n(db, c, n, F32) + dy);
    }
    float mean_d = f32x16_sum(sum_d) / (float)C, mean_dn = f32x16_sum(sum_dn) / (float)C;
    for (int64_t c = 0; c < C; c += LANES) {
        int64_t n = act16_count(c, C);
        f32x16  norm = SIMD(deviation16)(k.x, at + c, n, mean, type) * rstd;
        f32x16  d = act16_load_n(k.dy, at + c, n, type) * act16_load_n(k.w, c, n, type);
        f32x16  dx = rstd * (d - mean_d - norm * mean_dn);
        if (k.dresidual) dx += act16_load_n(k.dresidual, at + c, n, type);
        act16_store_n(k.dx, at + c, n, type, dx);
    }
}
ACT_KERNEL(backward_row, (DType type, Backward k, float *dw, float *db, int64_t row), k, dw, db, row)
