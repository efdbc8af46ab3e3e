/* norm.c - CPU side of the layernorm, rmsnorm, head_norm and residual ops in layers.h.
 *
 * A thread owns a row of C channels and passes over it while it is in cache. layernorm: mean, then squared deviations
 * from it (two passes lose nothing to cancellation), then the output. rmsnorm: squares, then the output. Heads are rows
 * too, several to a row of the tensor.
 *
 * Backward cuts the rows into runs. Each run has its own partial sums of dw and db, which are added in order. The shape
 * alone fixes the runs, so the bits are the same for any number of threads.
 */
#include "layers/act_simd.h"
#include "layers/contracts.h"
#include "layers/layers.h"

/* Rows of C channels. Each row of a tensor has `heads` of them, contiguous from column `first` on. */
typedef struct { int64_t C, heads, first; } HeadRows;
typedef struct {
    const void *x, *update, *w, *b; /* inputs; update is added to x before the norm, NULL if there is none */
    void       *sum, *y;            /* outputs: sum = x + update, and the norm y, NULL if only the sum is computed */
    float      *mean, *rstd;        /* outputs: mean of each row, NULL for rmsnorm, and 1/standard deviation */
    float       eps;
    HeadRows    rows;
    int64_t     x_width, y_width;
} Forward;
typedef struct {
    void        *dx;
    const void  *dresidual, *dy, *x, *w;
    const float *mean, *rstd; /* statistics of each row from forward; mean is NULL for rmsnorm */
    HeadRows     rows;
    int64_t      dx_width, dy_width, x_width;
} Backward;

/* Returns the element at which row `row` begins in a tensor that is `width` wide. */
static inline int64_t row_start(HeadRows r, int64_t row, int64_t width) {
    return row / r.heads * width + r.first + row % r.heads * r.C;
}

/* --- forward. Loops process whole vectors, whose length the compiler knows, and then the rest: n values at c. ----- */

SIMD_INLINE void add_update(DType type, const Forward *f, int64_t c, int64_t n) {
    ActPair x = act32_load_n(f->x, c, n, type), u = act32_load_n(f->update, c, n, type);
    for (int k = 0; k < 2; k++) x.half[k] += u.half[k];
    act32_store_n(f->sum, c, n, type, x);
}

/* Returns x - mean for n <= 16 values from element i of x on. Lanes past n get 0. */
SIMD_INLINE f32x16 deviation16(const void *x, int64_t i, int64_t n, float mean, DType type) {
    return n == LANES ? act16_load(x, i, type) - mean : act16_load_part(x, i, n, type, mean) - mean;
}

SIMD_INLINE void layernorm_row(DType type, const Forward *f, const void *x, int64_t row) {
    int64_t C = f->rows.C, at = row * C;
    f32x16  sum = f32x16_all(0.0f);
    for (int64_t c = 0; c < C; c += LANES) sum += act16_load_n(x, at + c, act16_count(c, C), type);
    float  mean = f32x16_sum(sum) / (float)C;
    f32x16 square = f32x16_all(0.0f);
    for (int64_t c = 0; c < C; c += LANES) {
        f32x16 d = deviation16(x, at + c, act16_count(c, C), mean, type);
        square += d * d;
    }
    float rstd = 1.0f / sqrtf(f32x16_sum(square) / (float)C + f->eps);

    for (int64_t c = 0; c < C; c += LANES) {
        int64_t n = act16_count(c, C);
        f32x16  norm = deviation16(x, at + c, n, mean, type) * rstd;
        act16_store_n(f->y, at + c, n, type, norm * act16_load_n(f->w, c, n, type) + act16_load_n(f->b, c, n, type));
    }
    f->mean[row] = mean;
    f->rstd[row] = rstd;
}

SIMD_INLINE f32x16 add_square(f32x16 sum, DType type, const void *x, int64_t c, int64_t n) {
    f32x16 v = act16_load_n(x, c, n, type);
    return sum + v * v;
}
SIMD_INLINE void scale(DType type, const Forward *f, const void *x, float rstd, int64_t at, int64_t to, int64_t c,
                       int64_t n) {
    ActPair v = act32_load_n(x, at + c, n, type), w = act32_load_n(f->w, c, n, type);
    for (int k = 0; k < 2; k++) v.half[k] = v.half[k] * rstd * w.half[k];
    act32_store_n(f->y, to + c, n, type, v);
}
SIMD_INLINE void rmsnorm_row(DType type, const Forward *f, const void *x, int64_t row) {
    int64_t C = f->rows.C, at = row_start(f->rows, row, f->x_width), to = row_start(f->rows, row, f->y_width), c;
    f32x16  square = f32x16_all(0.0f);
    for (c = 0; c + LANES <= C; c += LANES) square = add_square(square, type, x, at + c, LANES);
    if (c < C) square = add_square(square, type, x, at + c, C - c);
    float rstd = 1.0f / sqrtf(f32x16_sum(square) / (float)C + f->eps);

    for (c = 0; c + PAIR <= C; c += PAIR) scale(type, f, x, rstd, at, to, c, PAIR);
    if (c < C) scale(type, f, x, rstd, at, to, c, C - c);
    f->rstd[row] = rstd;
}

/* Computes the norm of rows [first, end). If there is an update, a row's sum comes first. The statistics are those of
 * the row as stored. */
SIMD_INLINE void norm_rows_of(DType type, const Forward *f, int64_t first, int64_t end) {
    const void *x = f->update ? f->sum : f->x;
    for (int64_t row = first; row < end; row++) {
        int64_t C = f->rows.C, at = row * C, c = 0;
        for (; f->update && c + PAIR <= C; c += PAIR) add_update(type, f, at + c, PAIR);
        if (f->update && c < C) add_update(type, f, at + c, C - c);
        if (f->mean) layernorm_row(type, f, x, row);
        else if (f->y) rmsnorm_row(type, f, x, row);
    }
}
ACT_KERNEL(norm_rows, (DType type, const Forward *f, int64_t first, int64_t end), f, first, end)

/* --- backward: with the normed row n and d = dy w, ------------------------------------------------------------------
 *     layernorm   dx = dresidual + rstd (d - mean(d) - n mean(d n)),   dw = sum dy n,   db = sum dy
 *     rmsnorm     dx = dresidual + rstd (d - n mean(d n)),             dw = sum dy n
 */

SIMD_INLINE void layernorm_grad_row_of(DType type, const Backward *of, float *dw, float *db, int64_t row) {
    Backward k = *of;
    int64_t  C = k.rows.C, at = row * C;
    float    mean = k.mean[row], rstd = k.rstd[row];
    f32x16   sum_d = f32x16_all(0.0f), sum_dn = f32x16_all(0.0f);
    for (int64_t c = 0; c < C; c += LANES) {
        int64_t n = act16_count(c, C);
        f32x16  norm = deviation16(k.x, at + c, n, mean, type) * rstd;
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
        f32x16  norm = deviation16(k.x, at + c, n, mean, type) * rstd;
        f32x16  d = act16_load_n(k.dy, at + c, n, type) * act16_load_n(k.w, c, n, type);
        f32x16  dx = rstd * (d - mean_d - norm * mean_dn);
        if (k.dresidual) dx += act16_load_n(k.dresidual, at + c, n, type);
        act16_store_n(k.dx, at + c, n, type, dx);
    }
}

/* Adds dy w norm of n channels of a row, the first of which is c, to sum and returns it. norm = x rstd. Also adds dy
 * norm to dw. */
SIMD_INLINE f32x16 add_dn(f32x16 sum, DType type, const Backward *k, float *dw, float rstd, int64_t x_at, int64_t dy_at,
                          int64_t c, int64_t n) {
    f32x16 norm = act16_load_n(k->x, x_at + c, n, type) * rstd;
    f32x16 dy = act16_load_n(k->dy, dy_at + c, n, type);
    sum += dy * act16_load_n(k->w, c, n, type) * norm;
    act16_store_n(dw, c, n, F32, act16_load_n(dw, c, n, F32) + dy * norm);
    return sum;
}

SIMD_INLINE void rmsnorm_grad_row_of(DType type, const Backward *of, float *dw, int64_t row) {
    Backward k = *of;
    int64_t C = k.rows.C, x_at = row_start(k.rows, row, k.x_width), dy_at = row_start(k.rows, row, k.dy_width);
    int64_t dx_at = row_start(k.rows, row, k.dx_width), c = 0;
    float   rstd = k.rstd[row];
    f32x16  sum_dn = f32x16_all(0.0f);
    /* bf16 only. A compiler may round copies of a loop differently, so for fp32 the second loop computes all
     * channels. */
    for (; type == BF16 && c + LANES <= C; c += LANES)
        sum_dn = add_dn(sum_dn, type, &k, dw, rstd, x_at, dy_at, c, LANES);
    for (; c < C; c += LANES) sum_dn = add_dn(sum_dn, type, &k, dw, rstd, x_at, dy_at, c, act16_count(c, C));
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
/* Computes the gradients of one row. Never inlined, because compilers choose in each copy which product of a b - c d a
 * fused multiply-add takes. */
static __attribute__((noinline)) void rmsnorm_grad_row(DType type, const Backward *k, float *dw, int64_t row) {
    if (type == BF16) rmsnorm_grad_row_of(BF16, k, dw, row);
    else              rmsnorm_grad_row_of(F32, k, dw, row);
}
static __attribute__((noinline)) void layernorm_grad_row(DType type, const Backward *k, float *dw, float *db,
                                                         int64_t row) {
    if (type == BF16) layernorm_grad_row_of(BF16, k, dw, db, row);
    else              layernorm_grad_row_of(F32, k, dw, db, row);
}

/* Computes dx of rows [first, end). Adds the rows' terms of the gradients of w and b to dw and db. */
void SIMD(norm_grad_rows)(DType type, const Backward *k, float *dw, float *db, int64_t first, int64_t end) {
    for (int64_t row = first; row < end; row++)
        if (k->mean) layernorm_grad_row(type, k, dw, db, row);
        else rmsnorm_grad_row(type, k, dw, row);
}
SIMD_DISPATCH(void, norm_grad_rows, (DType type, const Backward *k, float *dw, float *db, int64_t first, int64_t end),
              (type, k, dw, db, first, end))

#if SIMD_HOST
static void forward(DType type, Forward f, int64_t rows) {
    enum { ROWS_AT_ONCE = 16 };
    #pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row += ROWS_AT_ONCE)
        norm_rows(type, &f, row, rows - row < ROWS_AT_ONCE ? rows : row + ROWS_AT_ONCE);
}

void layernorm_forward(Stream *s, Tensor sum, Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor update, Tensor w,
                       Tensor b, float eps) {
    int64_t C = x.dim[1];
    EXPECT_ACT(x);
    if (norm_forward_contract(s, sum, y, mean, rstd, x, update, w, b, NULL)) return;
    forward(x.type, (Forward){x.data, update.data, w.data, b.data, sum.data, y.data, (float *)mean.data,
                              (float *)rstd.data, eps, {C, 1, 0}, C, C}, x.dim[0]);
}

void residual_forward(Stream *s, Tensor sum, Tensor x, Tensor update) {
    EXPECT_ACT(x);
    if (residual_forward_contract(s, sum, x, update)) return;
    forward(x.type, (Forward){.sum = sum.data, .x = x.data, .update = update.data, .rows = {x.dim[1], 1, 0}}, x.dim[0]);
}

void head_norm_forward(Stream *s, Tensor y, Tensor rstd, Tensor x, int64_t first, int64_t heads, Tensor w, float eps) {
    EXPECT_ACT(x);
    if (head_norm_forward_contract(s, y, rstd, x, first, heads, w)) return;
    Forward f = {.x = x.data, .w = w.data, .y = y.data, .rstd = (float *)rstd.data, .eps = eps,
                 .rows = {w.dim[0], heads, first}, .x_width = x.dim[1], .y_width = y.dim[1]};
    forward(x.type, f, x.dim[0] * heads);
}

/* total[c] += the sum over runs of partial[run * stride + c], in order, for c < C. */
static void add_partials(float *total, const float *partial, int64_t stride, int64_t runs, int64_t C) {
    #pragma omp parallel for schedule(static) if (C * runs > ACT_BLOCK)
    for (int64_t first = 0; first < C; first += LANES) {
        float   sum[LANES] = {0};
        int64_t n = C - first < LANES ? C - first : LANES;
        for (int64_t p = 0; p < runs; p++)
            for (int64_t c = 0; c < n; c++) sum[c] += partial[p * stride + first + c];
        for (int64_t c = 0; c < n; c++) total[first + c] += sum[c];
    }
}

/* Computes dx of all rows, and dw, and db for layernorm. The rows are divided into `runs` ranges, one to a thread at a
 * time. Range p is rows [N p / runs, N (p+1) / runs), and has partial sums of dw and db of its own. A range has enough
 * rows that its sums cost little in comparison. */
static void backward(Stream *s, int is_dry, DType type, Tensor dw, Tensor db, Backward k, int64_t rows) {
    enum { LEAST_ROWS = 16, MOST_RUNS = 64 };
    int64_t runs = (rows + LEAST_ROWS - 1) / LEAST_ROWS;
    if (runs > MOST_RUNS) runs = MOST_RUNS;
    int64_t half = (k.rows.C + 15) / 16 * 16; /* C partial sums are padded to whole cache lines */
    int64_t stride = tensor_is_none(db) ? half : 2 * half;
    size_t  mark = arena_mark(&s->scratch);
    float  *partial = (float *)arena_take(&s->scratch, (size_t)(runs * stride) * sizeof(float));
    #pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < (is_dry ? 0 : runs); p++) {
        float *part = partial + p * stride;
        memset(part, 0, (size_t)stride * sizeof(float));
        norm_grad_rows(type, &k, part, part + half, rows * p / runs, rows * (p + 1) / runs);
    }
    if (!is_dry) add_partials((float *)dw.data, partial, stride, runs, k.rows.C);
    if (!is_dry && !tensor_is_none(db)) add_partials((float *)db.data, partial + half, stride, runs, k.rows.C);
    arena_release(&s->scratch, mark);
}

void layernorm_backward(Stream *s, Tensor dx, Tensor dbias, Tensor dw, Tensor db, Tensor dresidual, Tensor dy, Tensor x,
                        Tensor w, Tensor mean, Tensor rstd) {
    EXPECT_ACT(x);
    int      is_dry = norm_backward_contract(s, dx, dbias, dw, db, dresidual, dy, x, w, mean, rstd);
    int64_t  C = x.dim[1];
    Backward k = {dx.data, dresidual.data, dy.data, x.data, w.data, (const float *)mean.data, (const float *)rstd.data,
                  {C, 1, 0}, C, C, C};
    backward(s, is_dry, x.type, dw, db, k, x.dim[0]);
    if (!tensor_is_none(dbias)) bias_backward(s, dbias, dx);
}

void head_norm_backward(Stream *s, Tensor dx, Tensor dw, Tensor dy, Tensor x, int64_t first, int64_t heads, Tensor w,
                        Tensor rstd) {
    EXPECT_ACT(x);
    int      is_dry = head_norm_backward_contract(s, dx, dw, dy, x, first, heads, w, rstd);
    HeadRows rows = {w.dim[0], heads, first};
    Backward k = {dx.data, NULL,      dy.data,   x.data,  w.data, NULL, (const float *)rstd.data,
                  rows,    dx.dim[1], dy.dim[1], x.dim[1]};
    backward(s, is_dry, x.type, dw, tensor_none(), k, x.dim[0] * heads);
}
#endif
