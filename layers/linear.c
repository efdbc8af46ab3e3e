/* linear.c - CPU side of the linear ops in layers.h: matrix products of matmul.h, and GELU around them.
 *
 * GELU uses the pre-activation as stored, rounded in bf16, so that recomputing it from pre gives the same bits.
 */
#include "layers/act_simd.h"
#include "layers/contracts.h"
#include "layers/layers.h"
#include "layers/matmul.h"

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
                    gradient_write(dw),
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

/* Computes y alone, because no product of the CPU adds the stream. */
int linear_residual_forward(Stream *s, Tensor sum, Tensor y, Tensor stream, Tensor x, Tensor w, Tensor b) {
    residual_expect(sum, y, stream);
    linear_forward(s, y, x, w, b);
    return 0;
}

int head_residual_forward(Stream *s, Tensor sum, Tensor y, Tensor stream, Tensor x, Tensor w) {
    residual_expect(sum, y, stream);
    head_forward(s, y, x, w);
    return 0;
}

void linear_backward(Stream *s, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w) {
    EXPECT_ACT(x);
    linear_backward_expect(dx, dw, db, dy, x, w);
    matmul(s, input_gradient(dx, dy, w));
    matmul(s, weight_gradient(dw, x, dy));
    if (!tensor_is_none(db)) bias_backward(s, db, dy);
}

void linear_delta_backward(Stream *s, Tensor dx, Tensor delta, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w) {
    linear_backward(s, dx, dw, db, dy, x, w);
    attention_delta(s, delta, dx, x);
}

void linear_gelu_backward(Stream *s, Tensor dpre, Tensor dbias, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor pre, Tensor w) {
    linear_backward(s, dpre, dw, db, dy, x, w);
    gelu_backward(s, dpre, dbias, dpre, pre);
}
