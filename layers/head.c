/* head.c - the head ops of layers.h, on every backend: the output layer, tied to the embedding wte. Nothing but products of matmul.h.
 *
 * Logits have a row of V' >= V columns; the products work on the first V of them, so the padding is neither read nor written.
 */
#include "layers/layers.h"
#include "layers/matmul.h"

static Matmul logits_product(Tensor logits, Tensor x, Tensor wte, int64_t V) {
    return (Matmul){matrix_of(logits, PLAIN), matrix_of(x, PLAIN), matrix_of(wte, TRANSPOSED), x.dim[0], V, x.dim[1], MATMUL_SET, NULL};
}
static Matmul input_gradient(Tensor dx, Tensor dlogits, Tensor wte, int64_t V) {
    return (Matmul){matrix_of(dx, PLAIN), matrix_of(dlogits, PLAIN), matrix_of(wte, PLAIN), dx.dim[0], dx.dim[1], V, MATMUL_SET, NULL};
}
static Matmul weight_gradient(Tensor dwte, Tensor dlogits, Tensor x, int64_t V) {
    return (Matmul){matrix_of(dwte, PLAIN), matrix_of(dlogits, TRANSPOSED), matrix_of(x, PLAIN), V, x.dim[1], x.dim[0], MATMUL_ADD, NULL};
}

static void head_contract(Tensor x, Tensor logits, Tensor wte, int64_t V) {
    int64_t n = x.dim[0], C = x.dim[1], padded = wte.dim[0];
    EXPECT2(x, x.type, n, C);
    EXPECT2(logits, x.type, n, padded);
    EXPECT2(wte, x.type, padded, C);
    CHECK(V <= padded, "%lld of %lld rows", (long long)V, (long long)padded);
}

void head_forward(Stream *s, Tensor logits, Tensor x, Tensor wte, int64_t V) {
    head_contract(x, logits, wte, V);
    matmul(s, logits_product(logits, x, wte, V));
}

void head_backward(Stream *s, Tensor dx, Tensor dwte, Tensor dlogits, Tensor x, Tensor wte, int64_t V) {
    head_contract(x, dlogits, wte, V);
    EXPECT2(dx, x.type, x.dim[0], x.dim[1]);
    EXPECT2(dwte, F32, wte.dim[0], wte.dim[1]);
    matmul(s, input_gradient(dx, dlogits, wte, V));
    matmul(s, weight_gradient(dwte, dlogits, x, V));
}

size_t head_scratch_bytes(int64_t n, int64_t C, int64_t V, DType act) {
    Tensor logits = tensor_2d(NULL, act, n, V), x = tensor_2d(NULL, act, n, C), wte = tensor_2d(NULL, act, V, C);
    Tensor dwte = tensor_2d(NULL, F32, V, C);
    Matmul products[] = {logits_product(logits, x, wte, V), input_gradient(x, logits, wte, V), weight_gradient(dwte, logits, x, V)};
    size_t most = 0;
    for (int i = 0; i < 3; i++) {
        size_t bytes = matmul_scratch_bytes(products[i]);
        if (bytes > most) most = bytes;
    }
    return most;
}
