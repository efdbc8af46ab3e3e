/* products.c - see products.h. */
#include "model/products.h"

static int is_fp8(const BlockRun *r) { return !tensor_is_none(r->fp8.scale); }

static Fp8 fp8_of(const BlockRun *r, BlockProduct p) {
    int64_t first = p * FP8_TENSORS;
    Fp8     f = r->fp8;
    f.scale = tensor_slice(f.scale, FP8_SCALES * first, FP8_SCALES * FP8_TENSORS);
    f.amax = tensor_slice(f.amax, first, FP8_TENSORS);
    if (!tensor_is_none(f.counts)) f.counts = tensor_slice(f.counts, 2 * first, 2 * FP8_TENSORS);
    return f;
}

/* --- who writes codes ----------------------------------------------------------------------------------------------- */

static int writes_codes(const BlockRun *r, Tensor t) { return is_fp8(r) && !r->fp8.uses_own && t.dim[0] % 16 == 0; }

/* Returns x of product p in the type that the op before it writes. Attention's output stays bf16, because its backward
 * reads it again. */
static Tensor input_of(const BlockRun *r, BlockProduct p, Tensor x) {
    int is_written = p == PRODUCT_DOWN || (p != PRODUCT_ATTENTION && !r->tensor);
    if (is_written && writes_codes(r, x)) x.type = E4M3;
    return x;
}

/* --- products ------------------------------------------------------------------------------------------------------- */

void product_forward(const BlockRun *r, BlockProduct p, Tensor y, Tensor x, Tensor w, Tensor b) {
    if (is_fp8(r)) fp8_linear_forward(r->s, y, input_of(r, p, x), w, b, fp8_of(r, p));
    else linear_forward(r->s, y, x, w, b);
}

void product_gelu_forward(const BlockRun *r, BlockProduct p, Tensor y, Tensor pre, Tensor x, Tensor w, Tensor b) {
    if (!is_fp8(r)) {
        linear_gelu_forward(r->s, y, pre, x, w, b);
        return;
    }
    product_forward(r, p, pre, x, w, b);
    product_gelu(r, y, pre);
}

void product_backward(const BlockRun *r, BlockProduct p, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w) {
    if (is_fp8(r)) fp8_linear_backward(r->s, dx, dw, db, dy, input_of(r, p, x), w, fp8_of(r, p));
    else linear_backward(r->s, dx, dw, db, dy, x, w);
}

void product_delta_backward(const BlockRun *r, BlockProduct p, Tensor dx, Tensor delta, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w) {
    if (is_fp8(r) || tensor_is_none(delta)) {
        product_backward(r, p, dx, dw, db, dy, x, w);
        if (!tensor_is_none(delta)) attention_delta(r->s, delta, dx, x);
        return;
    }
    linear_delta_backward(r->s, dx, delta, dw, db, dy, x, w);
}

Tensor product_gelu_backward(const BlockRun *r, Tensor dpre, Tensor dbias, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor pre,
                             Tensor w) {
    if (!is_fp8(r)) {
        linear_gelu_backward(r->s, dpre, dbias, dw, db, dy, x, pre, w);
        return dpre;
    }
    product_backward(r, PRODUCT_DOWN, dpre, dw, db, dy, x, w);
    if (!writes_codes(r, dpre)) {
        gelu_backward(r->s, dpre, dbias, dpre, pre);
        return dpre;
    }
    x.type = E5M2;
    fp8_gelu_backward(r->s, x, dbias, dpre, pre, fp8_of(r, PRODUCT_UP));
    return x;
}

Tensor product_attend_backward(const BlockRun *r, Tensor *dbias, Tensor dqkv, Tensor dy, Tensor y, Tensor lse, Tensor delta, Tensor qkv) {
    Tensor codes = dqkv;
    codes.type = E5M2;
    int is_cast = writes_codes(r, dqkv) && !r->context &&
                  fp8_attention_backward(r->s, codes, *dbias, dy, y, lse, delta, qkv, r->starts, heads_of(r), fp8_of(r, PRODUCT_QKV));
    if (is_cast || attend_backward(r, dqkv, *dbias, dy, y, lse, delta, qkv)) *dbias = tensor_none();
    return is_cast ? codes : dqkv;
}

void product_head_forward(const BlockRun *r, BlockProduct p, Tensor y, Tensor x, Tensor w) {
    if (is_fp8(r)) fp8_head_forward(r->s, y, input_of(r, p, x), w, fp8_of(r, p));
    else head_forward(r->s, y, x, w);
}

void product_head_backward(const BlockRun *r, BlockProduct p, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w) {
    if (is_fp8(r)) fp8_head_backward(r->s, dx, dw, dy, input_of(r, p, x), w, fp8_of(r, p));
    else head_backward(r->s, dx, dw, dy, x, w);
}

/* --- the ends of branches ------------------------------------------------------------------------------------------- */

/* Returns whether a product may add its result to the stream. Not with tensor ranks, which first sum their results, nor
 * in fp8, whose products are cuBLASLt's. */
static int may_join(const BlockRun *r) { return !r->tensor && !is_fp8(r); }

Tensor product_join(const BlockRun *r, BlockProduct p, Tensor after, Tensor before, Tensor x, Tensor w, Tensor b) {
    if (!may_join(r)) product_forward(r, p, r->update, x, w, b);
    else if (linear_residual_forward(r->s, after, r->update, before, x, w, b)) return tensor_none();
    return sum_rows(r, r->update);
}

Tensor product_head_join(const BlockRun *r, BlockProduct p, Tensor after, Tensor before, Tensor x, Tensor w) {
    if (!may_join(r)) product_head_forward(r, p, r->update, x, w);
    else if (head_residual_forward(r->s, after, r->update, before, x, w)) return tensor_none();
    return sum_rows(r, r->update);
}

/* --- before them ---------------------------------------------------------------------------------------------------- */

void product_layernorm(const BlockRun *r, BlockProduct p, Tensor y, Tensor mean, Tensor rstd, Tensor stream, Tensor before, Tensor update,
                       Tensor w, Tensor b, float eps) {
    int    is_whole = tensor_is_none(update);
    Tensor codes = input_of(r, p, y), x = is_whole ? stream : before, sum = is_whole ? update : stream;
    if (codes.type != y.type) fp8_layernorm_forward(r->s, sum, codes, mean, rstd, x, update, w, b, eps, fp8_of(r, p));
    else if (is_whole) layernorm_forward(r->s, y, mean, rstd, x, w, b, eps);
    else residual_layernorm_forward(r->s, sum, y, mean, rstd, x, update, w, b, eps);
}

void product_rmsnorm(const BlockRun *r, BlockProduct p, Tensor y, Tensor rstd, Tensor stream, Tensor before, Tensor update, Tensor w, float eps) {
    int    is_whole = tensor_is_none(update);
    Tensor codes = input_of(r, p, y), x = is_whole ? stream : before, sum = is_whole ? update : stream;
    if (codes.type != y.type) fp8_rmsnorm_forward(r->s, sum, codes, rstd, x, update, w, eps, fp8_of(r, p));
    else if (is_whole) rmsnorm_forward(r->s, y, rstd, x, w, eps);
    else residual_rmsnorm_forward(r->s, sum, y, rstd, x, update, w, eps);
}

void product_gelu(const BlockRun *r, Tensor y, Tensor x) {
    Tensor codes = input_of(r, PRODUCT_DOWN, y);
    if (codes.type != y.type) fp8_gelu_forward(r->s, codes, x, fp8_of(r, PRODUCT_DOWN));
    else gelu_forward(r->s, y, x);
}

void product_swiglu(const BlockRun *r, Tensor y, Tensor gate_up) {
    Tensor codes = input_of(r, PRODUCT_DOWN, y);
    if (codes.type != y.type) fp8_swiglu_forward(r->s, codes, gate_up, fp8_of(r, PRODUCT_DOWN));
    else swiglu_forward(r->s, y, gate_up);
}

void product_swiglu_backward(const BlockRun *r, Tensor dx, Tensor dw, Tensor dswiglu, Tensor gate_up, Tensor x, Tensor w) {
    size_t mark = arena_mark(&r->s->scratch);
    Tensor gradient = gate_up;
    if (writes_codes(r, gate_up)) {
        gradient = arena_tensor(&r->s->scratch, BF16, 2, gate_up.dim[0], gate_up.dim[1], 1);
        gradient.type = E5M2;
        fp8_swiglu_backward(r->s, gradient, dswiglu, gate_up, fp8_of(r, PRODUCT_UP));
    } else {
        swiglu_backward(r->s, gate_up, dswiglu, gate_up);
    }
    product_head_backward(r, PRODUCT_UP, dx, dw, gradient, x, w);
    arena_release(&r->s->scratch, mark);
}
