/* bias.c - CPU side of bias.h. */
#include "layers/bias.h"
#include "layers/act_simd.h"
#include "layers/contracts.h"

#define SIMD_FILE "layers/bias_simd.h"
#include "core/simd_each.h"
SIMD_DISPATCH(void, add_rows, (DType type, float *sum, const void *x, int64_t rows, int64_t M), (type, sum, x, rows, M))

/* Rows whose sum is one f32 partial sum; partial sums are added in float64. */
enum { BIAS_ROWS = 64 };

static int64_t bias_blocks(int64_t N) { return (N + BIAS_ROWS - 1) / BIAS_ROWS; }

/* Adds column sums of dy to db. The blocks do not depend on the number of threads. */
static void add_columns(Tensor db, Tensor dy, float *partial) {
    int64_t N = dy.dim[0], M = dy.dim[1], blocks = bias_blocks(N);
    #pragma omp parallel
    {
        #pragma omp for schedule(static)
        for (int64_t i = 0; i < blocks; i++) {
            int64_t first = i * BIAS_ROWS, rows = N - first < BIAS_ROWS ? N - first : BIAS_ROWS;
            add_rows(dy.type, partial + i * M, (const char *)dy.data + (size_t)(first * M) * dtype_bytes(dy.type), rows, M);
        }
        #pragma omp for schedule(static)
        for (int64_t c = 0; c < M; c++) {
            double sum = 0.0;
            for (int64_t i = 0; i < blocks; i++) sum += partial[i * M + c];
            ((float *)db.data)[c] += (float)sum;
        }
    }
}

void bias_backward(Stream *s, Tensor db, Tensor dy) {
    int    is_dry = bias_backward_contract(s, db, dy);
    size_t mark = arena_mark(&s->scratch);
    float *partial = (float *)arena_take(&s->scratch, (size_t)(bias_blocks(dy.dim[0]) * dy.dim[1]) * sizeof(float));
    if (!is_dry) add_columns(db, dy, partial);
    arena_release(&s->scratch, mark);
}
