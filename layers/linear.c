/* linear.c - CPU side of the linear ops in layers.h: matrix products of matmul.h, and activations around them.
 *
 * An activation uses the pre-activation as stored, rounded in bf16, so that recomputing it from pre gives the same
 * bits. The head's products run over all V' = padded columns of the logits and rows of wte, because libraries have fast
 * kernels for such sizes. The padding costs at most 127 columns and gives zeros, as in layers.h.
 */
#include "layers/act_simd.h"
#include "layers/contracts.h"
#include "layers/layers.h"
#include "layers/matmul.h"

/* Sets sum [M] to the sum of `rows` rows of x, four rows at a time. */
SIMD_INLINE void sum_rows_of(DType type, float *sum, const void *x, int64_t rows, int64_t M) {
    memset(sum, 0, (size_t)M * sizeof(float));
    for (int64_t r = 0; r < rows; r += 4) {
        for (int64_t c = 0; c < M; c += LANES) {
            int64_t n = act16_count(c, M);
            f32x16  total = act16_load_n(x, r * M + c, n, type);
            for (int64_t k = r + 1; k < rows && k < r + 4; k++) total += act16_load_n(x, k * M + c, n, type);
            act16_store_n(sum, c, n, F32, act16_load_n(sum, c, n, F32) + total);
        }
    }
}
ACT_KERNEL(sum_rows, (DType type, float *sum, const void *x, int64_t rows, int64_t M), sum, x, rows, M)

#if SIMD_HOST
/* Rows whose sum is one f32 partial sum; partial sums are added in float64. */
enum { BIAS_ROWS = 64 };

/* Cuts dy into blocks of BIAS_ROWS rows. The number of threads does not change them, so it changes no bit. */
void bias_backward(Stream *s, Tensor db, Tensor dy) {
    int64_t N = dy.dim[0], M = dy.dim[1], blocks = (N + BIAS_ROWS - 1) / BIAS_ROWS;
    int     is_dry = bias_backward_contract(s, db, dy);
    size_t  mark = arena_mark(&s->scratch);
    float  *partial = (float *)arena_take(&s->scratch, (size_t)(blocks * M) * sizeof(float));
    #pragma omp parallel if (!is_dry)
    if (!is_dry) {
        #pragma omp for schedule(static)
        for (int64_t i = 0; i < blocks; i++) {
            int64_t first = i * BIAS_ROWS, rows = N - first < BIAS_ROWS ? N - first : BIAS_ROWS;
            sum_rows(dy.type, partial + i * M, tensor_rows(dy, first, rows).data, rows, M);
        }
        #pragma omp for schedule(static)
        for (int64_t c = 0; c < M; c++) {
            double sum = 0.0;
            for (int64_t i = 0; i < blocks; i++) sum += partial[i * M + c];
            ((float *)db.data)[c] += (float)sum;
        }
    }
    arena_release(&s->scratch, mark);
}

void linear_forward(Stream *s, Tensor y, Tensor x, Tensor w, Tensor b, MatrixOrder order) {
    EXPECT_ACT(x);
    linear_expect(y, x, w, b, order);
    matmul(s, forward_product(y, x, w, order, b.data));
}

void linear_activation_forward(Stream *s, Activation kind, Tensor y, Tensor pre, Tensor x, Tensor w, Tensor b) {
    linear_forward(s, pre, x, w, b, PLAIN);
    activation_forward(s, kind, y, pre);
}

/* Computes y alone, because no product on the CPU adds the residual stream. */
int linear_residual_forward(Stream *s, Tensor sum, Tensor y, Tensor stream, Tensor x, Tensor w, Tensor b,
                            MatrixOrder order) {
    residual_expect(sum, y, stream);
    linear_forward(s, y, x, w, b, order);
    return 0;
}

void linear_backward(Stream *s, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w, MatrixOrder order) {
    EXPECT_ACT(x);
    linear_backward_expect(dx, dw, db, dy, x, w, order);
    matmul(s, input_gradient(dx, dy, w, order));
    matmul(s, weight_gradient(dw, x, dy, order));
    if (!tensor_is_none(db)) bias_backward(s, db, dy);
}

void linear_delta_backward(Stream *s, Tensor dx, Tensor delta, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w) {
    linear_backward(s, dx, dw, db, dy, x, w, PLAIN);
    attention_delta(s, delta, dx, x);
}

void linear_activation_backward(Stream *s, Activation kind, Tensor dpre, Tensor dbias, Tensor dw, Tensor db, Tensor dy,
                                Tensor x, Tensor pre, Tensor w) {
    linear_backward(s, dpre, dw, db, dy, x, w, PLAIN);
    activation_backward(s, kind, dpre, dbias, dpre, pre);
}
#endif
