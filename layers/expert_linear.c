/* expert_linear.c - CPU side of the expert_linear ops in layers.h: the experts' products one after another. The host
 * reads how many rows each expert has, because its memory holds the tensors. */
#include "layers/act_simd.h"
#include "layers/expert_contracts.h"
#include "layers/layers.h"
#include "layers/matmul.h"

/* The rows of an expert: [first[e], first[e+1]). On a dry stream expert 0 has all rows and the others none, which takes
 * the most memory. */
typedef struct { int64_t begin, count; } Rows;
static Rows rows_of(Stream *s, Tensor first, int64_t e, int64_t all) {
    const int32_t *start = (const int32_t *)first.data;
    return s->ledger ? (Rows){0, all} : (Rows){start[e], start[e + 1] - start[e]};
}
static int64_t experts_to_visit(Stream *s, Tensor first) { return s->ledger ? 1 : first.dim[0] - 1; }

static Matrix rows_matrix(Tensor t, Rows rows, MatrixOrder order) { return matrix_of(tensor_rows(t, rows.begin, rows.count), order); }

static Matrix weight_of(Tensor w, int64_t stride, int64_t e, MatrixOrder order) {
    Matrix m = matrix_of(w, order);
    m.data = (char *)m.data + (size_t)(e * stride) * dtype_bytes(w.type);
    return m;
}

void expert_linear_forward(Stream *s, Tensor y, Tensor x, Tensor w, int64_t stride, Tensor first) {
    EXPECT_ACT(x);
    expert_linear_forward_contract(s, y, x, w, stride, first);
    for (int64_t e = 0; e < experts_to_visit(s, first); e++) {
        Rows   rows = rows_of(s, first, e, x.dim[0]);
        Matmul p = {rows_matrix(y, rows, PLAIN), rows_matrix(x, rows, PLAIN), weight_of(w, stride, e, TRANSPOSED),
                    rows.count, w.dim[0], w.dim[1], MATMUL_SET, NULL};
        matmul_ragged(s, p, RAGGED_M);
    }
}

void expert_linear_backward(Stream *s, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w, int64_t stride, Tensor first) {
    EXPECT_ACT(x);
    expert_linear_backward_contract(s, dx, dw, dy, x, w, stride, first);
    for (int64_t e = 0; e < experts_to_visit(s, first); e++) {
        Rows   rows = rows_of(s, first, e, x.dim[0]);
        Matmul to_x = {rows_matrix(dx, rows, PLAIN), rows_matrix(dy, rows, PLAIN), weight_of(w, stride, e, PLAIN),
                       rows.count, w.dim[1], w.dim[0], MATMUL_SET, NULL};
        Matmul to_w = {weight_of(dw, stride, e, PLAIN), rows_matrix(dy, rows, TRANSPOSED), rows_matrix(x, rows, PLAIN),
                       w.dim[0], w.dim[1], rows.count, gradient_write(dw), NULL};
        matmul_ragged(s, to_x, RAGGED_M);
        matmul_ragged(s, to_w, RAGGED_K);
    }
}
