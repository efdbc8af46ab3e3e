/* rmsnorm_simd.h - the kernels of rmsnorm.c: the norms of a run of rows, forward and backward. Compiled once per instruction set
 * (core/simd_each.h). */
#include "layers/act_simd.h"

/* Loops over a row process whole vectors, whose length the compiler knows, and then the rest: n values at c. */
SIMD_INLINE void SIMD(add_update)(DType type, const Forward *f, int64_t c, int64_t n) {
    ActPair x = act32_load_n(f->x, c, n, type), u = act32_load_n(f->update, c, n, type);
    for (int k = 0; k < 2; k++) x.half[k] += u.half[k];
    act32_store_n(f->sum, c, n, type, x);
}
SIMD_INLINE f32x16 SIMD(add_square)(f32x16 sum, DType type, const void *x, int64_t c, int64_t n) {
    f32x16 v = act16_load_n(x, c, n, type);
    return sum + v * v;
}
SIMD_INLINE void SIMD(scale)(DType type, const Forward *f, const void *x, float rstd, int64_t at, int64_t to, int64_t c, int64_t n) {
    ActPair v = act32_load_n(x, at + c, n, type), w = act32_load_n(f->w, c, n, type);
    for (int k = 0; k < 2; k++) v.half[k] = v.half[k] * rstd * w.half[k];
    act32_store_n(f->y, to + c, n, type, v);
}

/* Computes a row. If there is an update, the sum comes first. The statistics are those of the row as stored. */
SIMD_INLINE void SIMD(forward_row)(DType type, const Forward *f, int64_t row) {
    int64_t     C = f->rows.C, at = row_start(f->rows, row, f->x_width), to = row_start(f->rows, row, f->y_width), c;
    const void *x = f->update ? f->sum : f->x;
    if (f->update) {
        for (c = 0; c + PAIR <= C; c += PAIR) SIMD(add_update)(type, f, at + c, PAIR);
        if (c < C) SIMD(add_update)(type, f, at + c, C - c);
    }

    f32x16 square = f32x16_all(0.0f);
    for (c = 0; c + LANES <= C; c += LANES) square = SIMD(add_square)(square, type, x, at + c, LANES);
    if (c < C) square = SIMD(add_square)(square, type, x, at + c, C - c);
    float rstd = 1.0f / sqrtf(f32x16_sum(square) / (float)C + f->eps);

    for (c = 0; c + PAIR <= C; c += PAIR) SIMD(scale)(type, f, x, rstd, at, to, c, PAIR);
    if (c < C) SIMD(scale)(type, f, x, rstd, at, to, c, C - c);
    f->rstd[row] = rstd;
}

SIMD_INLINE void SIMD(forward_run_of)(DType type, const Forward *f, int64_t first, int64_t end) {
    for (int64_t row = first; row < end; row++) SIMD(forward_row)(type, f, row);
}
ACT_KERNEL(forward_run, (DType type, const Forward *f, int64_t first, int64_t end), f, first, end)

/* --- backward: with n = x rstd and d = dy w,  dx = dresidual + rstd (d - n mean(d n)),  dw = sum dy n ------------- */

/* sum += d n, and adds the row's share to dw, for n values at c. */
SIMD_INLINE f32x16 SIMD(add_dn)(f32x16 sum, DType type, const Backward *k, float *dw, float rstd, int64_t x_at, int64_t dy_at, int64_t c,
                                int64_t n) {
    f32x16 norm = act16_load_n(k->x, x_at + c, n, type) * rstd;
    f32x16 dy = act16_load_n(k->dy, dy_at + c, n, type);
    sum += dy * act16_load_n(k->w, c, n, type) * norm;
    act16_store_n(dw, c, n, F32, act16_load_n(dw, c, n, F32) + dy * norm);
    return sum;
}

SIMD_INLINE void SIMD(backward_row_of)(DType type, const Backward *of, float *dw, int64_t row) {
    Backward k = *of;
    int64_t C = k.rows.C, x_at = row_start(k.rows, row, k.x_width), dy_at = row_start(k.rows, row, k.dy_width);
    int64_t dx_at = row_start(k.rows, row, k.dx_width), c = 0;
    float   rstd = k.rstd[row];
    f32x16  sum_dn = f32x16_all(0.0f);
    /* fp32 needs only the second loop; a copy of it would round differently. */
    for (; type == BF16 && c + LANES <= C; c += LANES) sum_dn = SIMD(add_dn)(sum_dn, type, &k, dw, rstd, x_at, dy_at, c, LANES);
    for (; c < C; c += LANES) sum_dn = SIMD(add_dn)(sum_dn, type, &k, dw, rstd, x_at, dy_at, c, act16_count(c, C));
    float mean_dn = f32x16_sum(sum_dn) / (float)C;
    for (c = 0; type == BF16 && c + PAIR <= C; c += PAIR) {
        ActPair x = act32_load_n(k.x, x_at + c, PAIR, type), dy = act32_load_n(k.dy, dy_at + c, PAIR, type),
                w = act32_load_n(k.w, c, PAIR, type);
        for (int h = 0; h < 2; h++) x.half[h] = rstd * (dy.half[h] * w.half[h] - x.half[h] * rstd * mean_dn);
        if (k.dresidual) {
            ActPair more = act32_load_n(k.dresidual, dx_at + c, PAIR, type);
            for (int h = 0; h < 2; h++) x.half[h] += more.half[h];
        }
        act32_store_n(k.dx, dx_at + c, PAIR, type, x);
    }
    for (; c < C; c += LANES) {
        int64_t n = act16_count(c, C);
        f32x16  norm = act16_load_n(k.x, x_at + c, n, type) * rstd;
        f32x16  d = act16_load_n(k.dy, dy_at + c, n, type) * act16_load_n(k.w, c, n, type);
        f32x16  dx = rstd * (d - norm * mean_dn);
        if (k.dresidual) dx += act16_load_n(k.dresidual, dx_at + c, n, type);
        act16_store_n(k.dx, dx_at + c, n, type, dx);
    }
}
/* Never inlined, because compilers choose in each copy which product of a b - c d a fused multiply-add takes. */
static __attribute__((noinline)) void SIMD(backward_row)(DType type, const Backward *k, float *dw, int64_t row);
ACT_KERNEL(backward_row, (DType type, const Backward *k, float *dw, int64_t row), k, dw, row)

static void SIMD(backward_run)(DType type, const Backward *k, float *dw, int64_t first, int64_t end) {
    for (int64_t row = first; row < end; row++) SIMD(backward_row)(type, k, dw, row);
}
