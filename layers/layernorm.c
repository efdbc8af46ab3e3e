/* layernorm.c - CPU side of the layernorm ops in layers.h. A thread owns a row and passes over it while it is in cache:
 * mean, then squared deviations from it (two passes lose nothing to cancellation), then the output. Backward keeps
 * partial sums of dw and db for runs of rows, which the shape alone fixes, and adds them in order. So the bits are the
 * same for any number of threads. */
#include "layers/act_simd.h"
#include "layers/bias.h"
#include "layers/contracts.h"
#include "layers/layers.h"
#include "layers/row_runs.h"

typedef struct { void *sum, *y; float *mean, *rstd; const void *x, *update, *w, *b; float eps; int64_t C; } Forward;
typedef struct { void *dx; const void *dresidual, *dy, *x, *w; const float *mean, *rstd; int64_t C; } Backward;

#define SIMD_FILE "layers/layernorm_simd.h"
#include "core/simd_each.h"
SIMD_DISPATCH(void, forward_row, (DType type, Forward f, int64_t row), (type, f, row))
SIMD_DISPATCH(void, sum_row, (DType type, Forward f, int64_t row), (type, f, row))
SIMD_DISPATCH(void, backward_row, (DType type, Backward k, float *dw, float *db, int64_t row), (type, k, dw, db, row))

static void forward_rows(Tensor x, Forward f) {
    #pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < x.dim[0]; row++) forward_row(x.type, f, row);
}

void layernorm_forward(Stream *s, Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor w, Tensor b, float eps) {
    EXPECT_ACT(x);
    if (layernorm_forward_contract(s, y, mean, rstd, x, w, b)) return;
    Forward f = {NULL, y.data, (float *)mean.data, (float *)rstd.data, x.data, NULL, w.data, b.data, eps, x.dim[1]};
    forward_rows(x, f);
}

void residual_layernorm_forward(Stream *s, Tensor sum, Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor update,
                                Tensor w, Tensor b, float eps) {
    EXPECT_ACT(x);
    if (residual_layernorm_forward_contract(s, sum, y, mean, rstd, x, update, w, b)) return;
    Forward f = {sum.data, y.data, (float *)mean.data, (float *)rstd.data, x.data, update.data, w.data, b.data, eps, x.dim[1]};
    forward_rows(x, f);
}

void residual_forward(Stream *s, Tensor sum, Tensor x, Tensor update) {
    EXPECT_ACT(x);
    if (residual_forward_contract(s, sum, x, update)) return;
    Forward f = {.sum = sum.data, .x = x.data, .update = update.data, .C = x.dim[1]};
    #pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < x.dim[0]; row++) sum_row(x.type, f, row);
}

/* Computes runs of rows in parallel, then adds their partial sums in order. partial [runs][2][half] */
static void backward_rows(Tensor dw, Tensor db, Tensor x, Backward k, float *partial) {
    int64_t N = x.dim[0], runs = runs_of(N), half = partial_elems(k.C);
    #pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < runs; p++) {
        float *dw_part = partial + p * 2 * half, *db_part = dw_part + half;
        memset(dw_part, 0, 2 * (size_t)half * sizeof(float));
        for (int64_t row = N * p / runs; row < N * (p + 1) / runs; row++) backward_row(x.type, k, dw_part, db_part, row);
    }
    add_partials((float *)dw.data, partial, 2 * half, runs, k.C);
    add_partials((float *)db.data, partial + half, 2 * half, runs, k.C);
}

void layernorm_backward(Stream *s, Tensor dx, Tensor dbias, Tensor dw, Tensor db, Tensor dresidual, Tensor dy, Tensor x, Tensor w,
                        Tensor mean, Tensor rstd) {
    EXPECT_ACT(x);
    int      is_dry = layernorm_backward_contract(s, dx, dbias, dw, db, dresidual, dy, x, w, mean, rstd);
    size_t   mark = arena_mark(&s->scratch);
    float   *partial = (float *)arena_take(&s->scratch, (size_t)(runs_of(x.dim[0]) * 2 * partial_elems(x.dim[1])) * sizeof(float));
    Backward k = {dx.data, dresidual.data, dy.data, x.data, w.data, (const float *)mean.data, (const float *)rstd.data, x.dim[1]};
    if (!is_dry) backward_rows(dw, db, x, k, partial);
    arena_release(&s->scratch, mark);
    if (!tensor_is_none(dbias)) bias_backward(s, dbias, dx);
}
