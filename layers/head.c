/* head.c - the head ops of layers.h, on every backend: the output layer, tied to the embedding wte. Nothing but
 * products of matmul.h.
 *
 * The products run over all V' = padded columns of the logits and rows of wte, because libraries have fast kernels for
 * such sizes. The padding costs at most 127 columns and gives zeros, as in layers.h.
 */
#include "layers/layers.h"
#include "layers/matmul.h"

static Matmul logits_product(Tensor logits, Tensor x, Tensor wte) {
    return (Matmul){matrix_of(logits, PLAIN),
                    matrix_of(x, PLAIN),
                    matrix_of(wte, TRANSPOSED),
                    x.dim[0],
                    wte.dim[0],
                    x.dim[1],
                    MATMUL_SET,
                    NULL};
}
static Matmul input_gradient(Tensor dx, Tensor dlogits, Tensor wte) {
    return (Matmul){matrix_of(dx, PLAIN),
                    matrix_of(dlogits, PLAIN),
                    matrix_of(wte, PLAIN),
                    dx.dim[0],
                    dx.dim[1],
                    wte.dim[0],
                    MATMUL_SET,
                    NULL};
}
static Matmul weight_gradient(Tensor dwte, Tensor dlogits, Tensor x) {
    return (Matmul){matrix_of(dwte, PLAIN),
                    matrix_of(dlogits, TRANSPOSED),
                    matrix_of(x, PLAIN),
                    dwte.dim[0],
                    x.dim[1],
                    x.dim[0],
                    gradient_write(dwte),
                    NULL};
}

static void head_contract(Tensor x, Tensor logits, Tensor wte) {
    int64_t n = x.dim[0], C = x.dim[1], padded = wte.dim[0];
    EXPECT2(x, x.type, n, C);
    EXPECT2(logits, x.type, n, padded);
    EXPECT2(wte, x.type, padded, C);
}

void head_forward(Stream *s, Tensor logits, Tensor x, Tensor wte) {
    head_contract(x, logits, wte);
    matmul(s, logits_product(logits, x, wte));
}

void head_backward(Stream *s, Tensor dx, Tensor dwte, Tensor dlogits, Tensor x, Tensor wte) {
    head_contract(x, dlogits, wte);
    EXPECT2(dx, x.type, x.dim[0], x.dim[1]);
    EXPECT2(dwte, F32, wte.dim[0], wte.dim[1]);
    matmul(s, input_gradient(dx, dlogits, wte));
    matmul(s, weight_gradient(dwte, dlogits, x));
}
