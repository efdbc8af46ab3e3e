/* products.c - see products.h. */
#include "model/products.h"

static int is_fp8(const BlockRun *r) { return !tensor_is_none(r->fp8.scale); }

static Fp8 fp8_of(const BlockRun *r, BlockProduct p) {
    int64_t first = p * FP8_TENSORS;
    Fp8     f = r->fp8;
    f.scale = tensor_slice(f.scale, 2 * first, 2 * FP8_TENSORS);
    f.amax = tensor_slice(f.amax, first, FP8_TENSORS);
    f.counts = tensor_slice(f.counts, 2 * first, 2 * FP8_TENSORS);
    return f;
}

void product_forward(const BlockRun *r, BlockProduct p, Tensor y, Tensor x, Tensor w, Tensor b) {
    if (is_fp8(r)) fp8_linear_forward(r->s, y, x, w, b, fp8_of(r, p));
    else linear_forward(r->s, y, x, w, b);
}

void product_gelu_forward(const BlockRun *r, BlockProduct p, Tensor y, Tensor pre, Tensor x, Tensor w, Tensor b) {
    if (!is_fp8(r)) {
        linear_gelu_forward(r->s, y, pre, x, w, b);
        return;
    }
    fp8_linear_forward(r->s, pre, x, w, b, fp8_of(r, p));
    gelu_forward(r->s, y, pre);
}

void product_backward(const BlockRun *r, BlockProduct p, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w) {
    if (is_fp8(r)) fp8_linear_backward(r->s, dx, dw, db, dy, x, w, fp8_of(r, p));
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

void product_gelu_backward(const BlockRun *r, BlockProduct p, Tensor dpre, Tensor dbias, Tensor dw, Tensor db, Tensor dy, Tensor x,
                           Tensor pre, Tensor w) {
    if (!is_fp8(r)) {
        linear_gelu_backward(r->s, dpre, dbias, dw, db, dy, x, pre, w);
        return;
    }
    fp8_linear_backward(r->s, dpre, dw, db, dy, x, w, fp8_of(r, p));
    gelu_backward(r->s, dpre, dbias, dpre, pre);
}

void product_head_forward(const BlockRun *r, BlockProduct p, Tensor y, Tensor x, Tensor w) {
    if (is_fp8(r)) fp8_head_forward(r->s, y, x, w, fp8_of(r, p));
    else head_forward(r->s, y, x, w);
}

void product_head_backward(const BlockRun *r, BlockProduct p, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w) {
    if (is_fp8(r)) fp8_head_backward(r->s, dx, dw, dy, x, w, fp8_of(r, p));
    else head_backward(r->s, dx, dw, dy, x, w);
}
