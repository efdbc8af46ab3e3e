/* fp8_outputs.c - CPU side of the ops of layers.h that write a product's operand in fp8: the op in bf16, whose memory
 * is as large, and fp8_round.h's rounding in place. */
#include "layers/fp8_contracts.h"
#include "layers/fp8_round.h"
#include "layers/layers.h"

static Tensor as_bf16(Tensor y) {
    y.type = BF16;
    return y;
}
static void round_output(Tensor y, Fp8 f) { fp8_round(as_bf16(y), as_bf16(y), y.type == E4M3 ? FP8_X : FP8_DY, f, NOTED); }

void fp8_gelu_forward(Stream *s, Tensor y, Tensor x, Fp8 f) {
    if (fp8_gelu_forward_contract(s, y, x, f)) return;
    gelu_forward(s, as_bf16(y), x);
    round_output(y, f);
}

/* Computes the op in bf16, so dbias has bf16's sums. A dry stream notes only this op, but takes the scratch of the
 * other. */
void fp8_gelu_backward(Stream *s, Tensor dx, Tensor dbias, Tensor dy, Tensor x, Fp8 f) {
    int     is_dry = fp8_gelu_backward_contract(s, dx, dbias, dy, x, f);
    int64_t times = is_dry ? s->ledger->times : 0;
    if (is_dry) s->ledger->times = -1;
    gelu_backward(s, as_bf16(dx), dbias, dy, x);
    if (is_dry) s->ledger->times = times;
    else round_output(dx, f);
}

void fp8_swiglu_forward(Stream *s, Tensor y, Tensor gate_up, Fp8 f) {
    if (fp8_swiglu_forward_contract(s, y, gate_up, f)) return;
    swiglu_forward(s, as_bf16(y), gate_up);
    round_output(y, f);
}

void fp8_swiglu_backward(Stream *s, Tensor dgate_up, Tensor dy, Tensor gate_up, Fp8 f) {
    if (fp8_swiglu_backward_contract(s, dgate_up, dy, gate_up, f)) return;
    swiglu_backward(s, as_bf16(dgate_up), dy, gate_up);
    round_output(dgate_up, f);
}

int fp8_attention_backward(Stream *s, Tensor dqkv, Tensor dbias, Tensor dy, Tensor y, Tensor lse, Tensor delta, Tensor qkv, Tensor starts,
                           HeadShape h, Fp8 f) {
    (void)s, (void)dqkv, (void)dbias, (void)dy, (void)y, (void)lse, (void)delta, (void)qkv, (void)starts, (void)h, (void)f;
    return 0;
}

void fp8_layernorm_forward(Stream *s, Tensor sum, Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor update, Tensor w, Tensor b,
                           float eps, Fp8 f) {
    if (fp8_layernorm_forward_contract(s, sum, y, mean, rstd, x, update, w, b, f)) return;
    if (tensor_is_none(update)) layernorm_forward(s, as_bf16(y), mean, rstd, x, w, b, eps);
    else residual_layernorm_forward(s, sum, as_bf16(y), mean, rstd, x, update, w, b, eps);
    round_output(y, f);
}

void fp8_rmsnorm_forward(Stream *s, Tensor sum, Tensor y, Tensor rstd, Tensor x, Tensor update, Tensor w, float eps, Fp8 f) {
    if (fp8_rmsnorm_forward_contract(s, sum, y, rstd, x, update, w, f)) return;
    if (tensor_is_none(update)) rmsnorm_forward(s, as_bf16(y), rstd, x, w, eps);
    else residual_rmsnorm_forward(s, sum, as_bf16(y), rstd, x, update, w, eps);
    round_output(y, f);
}
