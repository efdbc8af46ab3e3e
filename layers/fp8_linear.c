/* fp8_linear.c - CPU side of the products in fp8 of layers.h: operands are rounded to what 8 bits would hold, and
 * multiplied as bf16 by matmul.h. A rounded value, three bits of fraction times a power of two, is exact in bf16, and a
 * product of two is exact in f32. Only the order of the sums differs from a GPU's. */
#include "layers/contracts.h"
#include "layers/fp8_contracts.h"
#include "layers/fp8_round.h"
#include "layers/layers.h"
#include "layers/matmul.h"

/* Returns x, w or dy, rounded, in scratch, or as an op of fp8_outputs.c has written it. copies: the number of copies
 * that a GPU writes of it. */
static Tensor rounded(Stream *s, Tensor x, int which, Fp8 f, Noting noting, int copies) {
    if (fp8_is_codes(x)) return tensor_2d(x.data, BF16, x.dim[0], x.dim[1]);
    Tensor y = arena_tensor(&s->scratch, BF16, 2, x.dim[0], x.dim[1], 1);
    if (!fp8_cast_contract(s, x, copies)) fp8_round(y, x, which, f, noting);
    return y;
}

/* Computes a product. A dry stream notes the GPU's product instead. */
static void product(Stream *s, Matmul p, DType a, DType b) {
    Matmul  noted = p;
    int64_t times = s->ledger ? s->ledger->times : 0;
    noted.a.type = a, noted.b.type = b;
    if (matmul_note(s, noted)) s->ledger->times = -1;
    matmul(s, p);
    if (s->ledger) s->ledger->times = times;
}

static void forward(Stream *s, Tensor y, Tensor x, Tensor w, const void *bias, Fp8 f, int is_turned) {
    fp8_expect(y, x, w, f, is_turned);
    size_t mark = arena_mark(&s->scratch);
    Tensor x8 = rounded(s, x, FP8_X, f, NOTED, 1), w8 = rounded(s, w, FP8_W, f, NOTED, 1);
    Matrix b = matrix_of(w8, is_turned ? TRANSPOSED : PLAIN);
    product(s, (Matmul){matrix_of(y, PLAIN), matrix_of(x8, PLAIN), b, x.dim[0], y.dim[1], x.dim[1], MATMUL_SET, bias}, E4M3, E4M3);
    arena_release(&s->scratch, mark);
}

static void backward(Stream *s, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w, Fp8 f, int is_turned) {
    size_t mark = arena_mark(&s->scratch);
    Tensor dy8 = rounded(s, dy, FP8_DY, f, NOTED, 2), w8 = rounded(s, w, FP8_W, f, NOT_NOTED, 1);
    Tensor x8 = rounded(s, x, FP8_X, f, NOT_NOTED, 1);
    Matrix w_turned = matrix_of(w8, is_turned ? PLAIN : TRANSPOSED);
    int64_t N = x.dim[0], K = x.dim[1], M = dy.dim[1];
    product(s, (Matmul){matrix_of(dx, PLAIN), matrix_of(dy8, PLAIN), w_turned, N, K, M, MATMUL_SET, NULL}, E5M2, E4M3);
    Matmul sums = {matrix_of(dw, PLAIN), matrix_of(x8, TRANSPOSED), matrix_of(dy8, PLAIN), K, M, N, gradient_write(dw), NULL};
    if (is_turned) sums.a = matrix_of(dy8, TRANSPOSED), sums.b = matrix_of(x8, PLAIN), sums.m = M, sums.n = K;
    product(s, sums, is_turned ? E5M2 : E4M3, is_turned ? E4M3 : E5M2);
    arena_release(&s->scratch, mark);
}

void fp8_linear_forward(Stream *s, Tensor y, Tensor x, Tensor w, Tensor b, Fp8 f) { forward(s, y, x, w, b.data, f, 0); }

void fp8_linear_backward(Stream *s, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w, Fp8 f) {
    fp8_backward_expect(dx, dw, db, dy, x, w, f, 0);
    backward(s, dx, dw, dy, x, w, f, 0);
    if (!tensor_is_none(db)) bias_backward(s, db, dy);
}

void fp8_head_forward(Stream *s, Tensor y, Tensor x, Tensor w, Fp8 f) { forward(s, y, x, w, NULL, f, 1); }

void fp8_head_backward(Stream *s, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w, Fp8 f) {
    fp8_backward_expect(dx, dw, tensor_none(), dy, x, w, f, 1);
    backward(s, dx, dw, dy, x, w, f, 1);
}
