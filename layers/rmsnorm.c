/* rmsnorm.c - CPU side of the rmsnorm and head_norm ops in layers.h. A thread owns a row of C channels and passes over
 * it while it is in cache: squares, then the output. Heads are rows too, several to a row of the tensor. */
#include "layers/act_simd.h"
#include "layers/contracts.h"
#include "layers/layers.h"
#include "layers/row_runs.h"

/* Rows of C channels. Each row of a tensor has `heads` of them, contiguous from column `first` on. */
typedef struct { int64_t C, heads, first; } HeadRows;
typedef struct {
    const void *x, *update, *w;
    void       *sum, *y;
    float      *rstd, eps;
    HeadRows    rows;
    int64_t     x_width, y_width;
} Forward;
typedef struct {
    void       *dx;
    const void *dresidual, *dy, *x, *w;
    const float *rstd;
    HeadRows    rows;
    int64_t     dx_width, dy_width, x_width;
} Backward;

/* Returns the element at which row `row` begins in a tensor that is `width` wide. */
static inline int64_t row_start(HeadRows r, int64_t row, int64_t width) {
    return row / r.heads * width + r.first + row % r.heads * r.C;
}

#define SIMD_FILE "layers/rmsnorm_simd.h"
#include "core/simd_each.h"
SIMD_DISPATCH(void, forward_run, (DType type, const Forward *f, int64_t first, int64_t end), (type, f, first, end))
SIMD_DISPATCH(void, backward_run, (DType type, const Backward *k, float *dw, int64_t first, int64_t end),
              (type, k, dw, first, end))

enum { ROWS_AT_ONCE = 16 };

static void forward_rows(DType type, Forward f, int64_t rows) {
    #pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row += ROWS_AT_ONCE)
        forward_run(type, &f, row, rows - row < ROWS_AT_ONCE ? rows : row + ROWS_AT_ONCE);
}

/* Computes all rows by runs, then adds partial [runs][partial_elems(C)] to dw. */
static void backward_rows(DType type, Tensor dw, Backward k, int64_t rows, float *partial) {
    int64_t runs = runs_of(rows), stride = partial_elems(k.rows.C);
    #pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < runs; p++) {
        float *dw_part = partial + p * stride;
        memset(dw_part, 0, (size_t)stride * sizeof(float));
        backward_run(type, &k, dw_part, rows * p / runs, rows * (p + 1) / runs);
    }
    add_partials((float *)dw.data, partial, stride, runs, k.rows.C);
}

static void backward(Stream *s, int is_dry, DType type, Tensor dw, Backward k, int64_t rows) {
    size_t mark = arena_mark(&s->scratch);
    size_t bytes = (size_t)(runs_of(rows) * partial_elems(k.rows.C)) * sizeof(float);
    float *partial = (float *)arena_take(&s->scratch, bytes);
    if (!is_dry) backward_rows(type, dw, k, rows, partial);
    arena_release(&s->scratch, mark);
}

void rmsnorm_forward(Stream *s, Tensor y, Tensor rstd, Tensor x, Tensor w, float eps) {
    EXPECT_ACT(x);
    if (rmsnorm_forward_contract(s, y, rstd, x, w)) return;
    int64_t C = x.dim[1];
    Forward f = {x.data, NULL, w.data, NULL, y.data, (float *)rstd.data, eps, {C, 1, 0}, C, C};
    forward_rows(x.type, f, x.dim[0]);
}

void residual_rmsnorm_forward(Stream *s, Tensor sum, Tensor y, Tensor rstd, Tensor x, Tensor update, Tensor w,
                              float eps) {
    EXPECT_ACT(x);
    if (residual_rmsnorm_forward_contract(s, sum, y, rstd, x, update, w)) return;
    int64_t C = x.dim[1];
    Forward f = {x.data, update.data, w.data, sum.data, y.data, (float *)rstd.data, eps, {C, 1, 0}, C, C};
    forward_rows(x.type, f, x.dim[0]);
}

void rmsnorm_backward(Stream *s, Tensor dx, Tensor dw, Tensor dresidual, Tensor dy, Tensor x, Tensor w, Tensor rstd) {
    EXPECT_ACT(x);
    int      is_dry = rmsnorm_backward_contract(s, dx, dw, dresidual, dy, x, w, rstd);
    int64_t  C = x.dim[1];
    Backward k = {dx.data, dresidual.data, dy.data, x.data, w.data, (const float *)rstd.data, {C, 1, 0}, C, C, C};
    backward(s, is_dry, x.type, dw, k, x.dim[0]);
}

void head_norm_forward(Stream *s, Tensor y, Tensor rstd, Tensor x, int64_t first, int64_t heads, Tensor w, float eps) {
    EXPECT_ACT(x);
    if (head_norm_forward_contract(s, y, rstd, x, first, heads, w)) return;
    Forward f = {.x = x.data, .w = w.data, .y = y.data, .rstd = (float *)rstd.data, .eps = eps,
                 .rows = {w.dim[0], heads, first}, .x_width = x.dim[1], .y_width = y.dim[1]};
    forward_rows(x.type, f, x.dim[0] * heads);
}

void head_norm_backward(Stream *s, Tensor dx, Tensor dw, Tensor dy, Tensor x, int64_t first, int64_t heads, Tensor w,
                        Tensor rstd) {
    EXPECT_ACT(x);
    int      is_dry = head_norm_backward_contract(s, dx, dw, dy, x, first, heads, w, rstd);
    HeadRows rows = {w.dim[0], heads, first};
    Backward k = {dx.data, NULL, dy.data, x.data, w.data, (const float *)rstd.data, rows,
                  dx.dim[1], dy.dim[1], x.dim[1]};
    backward(s, is_dry, x.type, dw, k, x.dim[0] * heads);
}
