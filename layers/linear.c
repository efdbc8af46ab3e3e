/* linear.c - CPU side of the linear ops in layers.h: matrix products of matmul.h, the bias gradient, and GELU around
 * them.
 *
 * GELU works on the pre-activation as it was stored, rounded in bf16: recomputing it from pre gives the same bits.
 */
#include "layers/act_simd.h"
#include "layers/contracts.h"
#include "layers/layers.h"
#include "layers/matmul.h"

#define SIMD_FILE "layers/linear_simd.h"
#include "core/simd_each.h"
SIMD_DISPATCH(void, add_rows, (DType type, float *sum, const void *x, int64_t rows, int64_t M), (type, sum, x, rows, M))

/* Rows whose sum is one f32 partial; the partials are added in float64. */
enum { BIAS_ROWS = 64 };

static int64_t bias_blocks(int64_t N) { return (N + BIAS_ROWS - 1) / BIAS_ROWS; }

/* Blocks do not depend on the thread count. */
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

static Matmul forward_product(Tensor y, Tensor x, Tensor w, const void *bias) {
    return (Matmul){matrix_of(y, PLAIN), matrix_of(x, PLAIN), matrix_of(w, PLAIN), x.dim[0], w.dim[1], w.dim[0], MATMUL_SET, bias};
}
static Matmul input_gradient(Tensor dx, Tensor dy, Tensor w) {
    return (Matmul){matrix_of(dx, PLAIN),
                    matrix_of(dy, PLAIN),
                    matrix_of(w, TRANSPOSED),
                    dy.dim[0],
                    w.dim[0],
                    w.dim[1],
                    MATMUL_SET,
                    NULL};
}
static Matmul weight_gradient(Tensor dw, Tensor x, Tensor dy) {
    return (Matmul){matrix_of(dw, PLAIN),
                    matrix_of(x, TRANSPOSED),
                    matrix_of(dy, PLAIN),
                    x.dim[1],
                    dy.dim[1],
                    x.dim[0],
                    MATMUL_ADD,
                    NULL};
}

void linear_forward(Stream *s, Tensor y, Tensor x, Tensor w, Tensor b) {
    EXPECT_ACT(x);
    linear_expect(y, x, w, b);
    matmul(s, forward_product(y, x, w, b.data));
}

void linear_gelu_forward(Stream *s, Tensor y, Tensor pre, Tensor x, Tensor w, Tensor b) {
    linear_forward(s, pre, x, w, b);
    gelu_forward(s, y, pre);
}

void linear_backward(Stream *s, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w) {
    EXPECT_ACT(x);
    linear_backward_expect(dx, dw, db, dy, x, w);
    matmul(s, input_gradient(dx, dy, w));
    matmul(s, weight_gradient(dw, x, dy));
    if (!tensor_is_none(db)) bias_backward(s, db, dy);
}

void linear_gelu_backward(Stream *s, Tensor dpre, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor pre, Tensor w) {
    linear_backward(s, dpre, dw, db, dy, x, w);
    gelu_backward(s, dpre, dpre, pre);
}
