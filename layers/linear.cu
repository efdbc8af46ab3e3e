/* linear.cu - CUDA side of the linear ops in layers.h: products of matmul.h, with epilogues of matmul.cuh where they
 * pay, and a kernel for the bias gradient where they do not.
 *
 * In forward only the own product has GELU as an epilogue. cuBLASLt's uses the sum before it is stored. The contract is
 * gelu of pre as stored, so that memory.recompute = "light" computes the same bits again from it. cuBLASLt also has no
 * epilogue for attention's delta, and none that rounds a product before it adds it to the stream.
 */
#include "layers/bias.cuh"
#include "layers/contracts.h"
#include "layers/layers.h"
#include "layers/matmul.cuh"

/* --- products ----------------------------------------------------------------------------------------------------- */

static Matmul forward_product(Tensor y, Tensor x, Tensor w, const void *bias) {
    return {matrix_of(y, PLAIN), matrix_of(x, PLAIN), matrix_of(w, PLAIN), x.dim[0], w.dim[1], w.dim[0], MATMUL_SET, bias};
}
static Matmul input_gradient(Tensor dx, Tensor dy, Tensor w) {
    return {matrix_of(dx, PLAIN), matrix_of(dy, PLAIN), matrix_of(w, TRANSPOSED), dy.dim[0], w.dim[0], w.dim[1], MATMUL_SET, NULL};
}
static Matmul weight_gradient(Tensor dw, Tensor x, Tensor dy) {
    return {matrix_of(dw, PLAIN), matrix_of(x, TRANSPOSED), matrix_of(dy, PLAIN), x.dim[1], dy.dim[1], x.dim[0], gradient_write(dw), NULL};
}

/* Column sums of dy into separate memory, so that timing does not change db. */
typedef struct { Tensor aside, dy; } BiasSums;
static BiasSums bias_sums(Stream *s, Tensor dy) {
    return {tensor_1d(arena_take(&s->scratch, (size_t)dy.dim[1] * sizeof(float)), F32, dy.dim[1]), dy};
}
static void bias_aside(Stream *s, void *sums) {
    const BiasSums *b = (const BiasSums *)sums;
    bias_backward(s, b->aside, b->dy);
}

/* dw = or += x^T dy, db += column sums of dy. The sums are computed with the product, which reads dy anyway, or by
 * bias.cu's kernel. */
static void parameters_backward(Stream *s, Tensor dw, Tensor db, Tensor dy, Tensor x) {
    if (tensor_is_none(db)) {
        matmul(s, weight_gradient(dw, x, dy));
        return;
    }
    size_t   mark = arena_mark(&s->scratch);
    BiasSums b = bias_sums(s, dy);
    Rest     rest = {bias_aside, NULL, &b, bias_scratch_bytes(dy.dim[0], dy.dim[1]), NULL};
    if (matmul_fused(s, weight_gradient(dw, x, dy), EPILOGUE_COLUMN_SUMS, b.aside.data, rest))
        column_sums(s, ptr<float>(db), b.aside.data, F32, 1, 1, dy.dim[1], MATMUL_ADD);
    else
        bias_backward(s, db, dy);
    arena_release(&s->scratch, mark);
}

/* --- the ops ------------------------------------------------------------------------------------------------------ */

void linear_forward(Stream *s, Tensor y, Tensor x, Tensor w, Tensor b) {
    linear_expect(y, x, w, b);
    matmul(s, forward_product(y, x, w, b.data));
}

typedef struct { Tensor y, pre; } GeluForward;

static void gelu_of_pre(Stream *s, void *tensors) {
    const GeluForward *g = (const GeluForward *)tensors;
    gelu_forward(s, g->y, g->pre);
}

void linear_gelu_forward(Stream *s, Tensor y, Tensor pre, Tensor x, Tensor w, Tensor b) {
    linear_expect(pre, x, w, b);
    EXPECT2(y, pre.type, pre.dim[0], pre.dim[1]);
    GeluForward g = {y, pre};
    Rest        rest = {gelu_of_pre, NULL, &g, 0, NULL};
    if (!matmul_fused(s, forward_product(pre, x, w, b.data), EPILOGUE_GELU, y.data, rest)) gelu_forward(s, y, pre);
}

/* Work that a fused residual saves. After a plain product the next norm reads the update and writes the sum: two passes more
 * than over a complete stream, as many bytes as residual_forward over two thirds of the rows. That is timed, in the
 * memory of y. */
typedef struct { Tensor y, stream; } Join;

static void join_two_thirds(Stream *s, void *tensors) {
    const Join *j = (const Join *)tensors;
    int64_t     rows = (2 * j->y.dim[0] + 2) / 3;
    residual_forward(s, tensor_rows(j->y, 0, rows), tensor_rows(j->stream, 0, rows), tensor_rows(j->y, 0, rows));
}

/* Computes the product p into sum with the stream added, if that is faster. Returns whether it did. */
static int joined(Stream *s, Matmul p, Tensor sum, Tensor y, Tensor stream) {
    residual_expect(sum, y, stream);
    Join j = {y, stream};
    Rest rest = {join_two_thirds, NULL, &j, 0, NULL, 0, y.data};
    return matmul_fused(s, p, EPILOGUE_RESIDUAL, stream.data, rest) != 0;
}

int linear_residual_forward(Stream *s, Tensor sum, Tensor y, Tensor stream, Tensor x, Tensor w, Tensor b) {
    linear_expect(sum, x, w, b);
    return joined(s, forward_product(sum, x, w, b.data), sum, y, stream);
}

int head_residual_forward(Stream *s, Tensor sum, Tensor y, Tensor stream, Tensor x, Tensor w) {
    EXPECT2(x, x.type, sum.dim[0], w.dim[1]);
    EXPECT2(w, x.type, sum.dim[1], w.dim[1]);
    Matmul p = {matrix_of(sum, PLAIN), matrix_of(x, PLAIN), matrix_of(w, TRANSPOSED), x.dim[0], w.dim[0], w.dim[1], MATMUL_SET, NULL};
    return joined(s, p, sum, y, stream);
}

void linear_backward(Stream *s, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w) {
    linear_backward_expect(dx, dw, db, dy, x, w);
    matmul(s, input_gradient(dx, dy, w));
    parameters_backward(s, dw, db, dy, x);
}

typedef struct { Tensor delta, dx, x; } DeltaOf;

static void delta_of_dx(Stream *s, void *tensors) {
    const DeltaOf *d = (const DeltaOf *)tensors;
    attention_delta(s, d->delta, d->dx, d->x);
}

void linear_delta_backward(Stream *s, Tensor dx, Tensor delta, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w) {
    linear_backward_expect(dx, dw, db, dy, x, w);
    EXPECT2(delta, F32, delta.dim[0], x.dim[0]);
    DeltaOf d = {delta, dx, x};
    Rest    rest = {delta_of_dx, NULL, &d, 0, ptr<float>(delta), (int)(x.dim[1] / delta.dim[0])};
    if (!matmul_fused(s, input_gradient(dx, dy, w), EPILOGUE_DELTA, x.data, rest)) delta_of_dx(s, &d);
    parameters_backward(s, dw, db, dy, x);
}

typedef struct { Tensor dpre, dbias, pre; } GeluBackward;

static void gelu_backward_in_place(Stream *s, void *tensors) {
    const GeluBackward *g = (const GeluBackward *)tensors;
    gelu_backward(s, g->dpre, g->dbias, g->dpre, g->pre);
}
static void dbias_of_dpre(Stream *s, void *tensors) {
    const GeluBackward *g = (const GeluBackward *)tensors;
    bias_backward(s, g->dbias, g->dpre);
}

/* gelu's kernel has dpre in registers and adds it to dbias; so does the own product. After cuBLASLt's epilogue the sums
 * take a pass. */
void linear_gelu_backward(Stream *s, Tensor dpre, Tensor dbias, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor pre, Tensor w) {
    linear_backward_expect(dpre, dw, db, dy, x, w);
    EXPECT2(pre, x.type, x.dim[0], x.dim[1]);
    int          sums = !tensor_is_none(dbias);
    size_t       mark = arena_mark(&s->scratch);
    GeluBackward g = {dpre, dbias, pre}, timed = {dpre, sums ? bias_sums(s, dpre).aside : dbias, pre};
    Rest         rest = {gelu_backward_in_place, sums ? dbias_of_dpre : NULL, &timed, sums ? bias_scratch_bytes(x.dim[0], x.dim[1]) : 0,
                         sums ? ptr<float>(timed.dbias) : NULL};
    int          done = matmul_fused(s, input_gradient(dpre, dy, w), EPILOGUE_GELU_BACKWARD, pre.data, rest);
    if (!done) gelu_backward_in_place(s, &g);
    else if (done == 1 && sums) dbias_of_dpre(s, &g);
    else if (sums) column_sums(s, ptr<float>(dbias), rest.sums, F32, 1, 1, dbias.dim[0], MATMUL_ADD);
    parameters_backward(s, dw, db, dy, x);
    arena_release(&s->scratch, mark);
}
