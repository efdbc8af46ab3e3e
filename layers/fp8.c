/* fp8.c - CPU side of the ops in fp8 of layers.h.
 *
 * Operands of products are rounded to what 8 bits would hold, and multiplied as bf16 by matmul.h. A rounded value,
 * three bits of fraction times a power of two, is exact in bf16, and a product of two is exact in f32. Only the order
 * of the sums differs from a GPU's.
 */
#include "core/tensor.h"
#include "layers/contracts.h"
#include "layers/layers.h"
#include "layers/matmul.h"

/* --- rounding ----------------------------------------------------------------------------------------------------- */

enum { SPLIT_ELEMS = 1 << 14 }; /* a tensor with fewer elements is processed by one thread */

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}
static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static int32_t largest_bits(Tensor x) {
    const uint16_t *in = (const uint16_t *)x.data;
    int32_t         most = 0;
    int64_t         n = tensor_elems(x);
    #pragma omp parallel for schedule(static) reduction(max : most) if (n > SPLIT_ELEMS)
    for (int64_t i = 0; i < n; i++) {
        int32_t size = in[i] & 0x7fff;
        most = size > most ? size : most;
    }
    return most << 16;
}

typedef struct { int64_t over, vanished; } Lost;

/* y = fp8(scale x) / scale. Rounds to the nearest multiple of u = 2^(exponent - bits of fraction), ties to even, by
 * f32's own rounding: with a = |scale x|, a + 2^23 u is a number of 23 bits. */
static Lost round_values(uint16_t *out, const uint16_t *in, int64_t n, DType type, float scale, float inverse) {
    const float    largest = fp8_largest(type);
    const uint32_t bottom = (uint32_t)(127 + fp8_bottom(type)) << 23, lift = (uint32_t)(23 - (type == E4M3 ? 3 : 2))
                                                                             << 23;
    int64_t        over = 0, vanished = 0;
    #pragma omp parallel for schedule(static) reduction(+ : over, vanished) if (n > SPLIT_ELEMS)
    for (int64_t i = 0; i < n; i++) {
        uint32_t sign = in[i] & 0x8000u, size = in[i] & 0x7fffu, is_finite = size < 0x7f80u;
        float    a = float_of(size << 16) * scale;
        over += is_finite && a > largest;
        a = a > largest ? largest : a;
        uint32_t exponent = bits_of(a) & 0x7f800000u;
        float    step = float_of((exponent > bottom ? exponent : bottom) + lift);
        float    rounded = (a + step) - step;
        vanished += size != 0 && rounded == 0.0f;
        out[i] = (uint16_t)(is_finite ? sign | bits_of(rounded * inverse) >> 16 : 0x7fc0u);
    }
    return (Lost){over, vanished};
}

static DType type_of(int which) { return which == FP8_DY ? E5M2 : E4M3; }

typedef enum { NOTED, NOT_NOTED } Noting;

/* Sets y = fp8(s x) / s, both bf16; y may be x. `which` is FP8_X, FP8_W or FP8_DY: it selects the scale s in f, and the
 * maximum and counts that are updated if noting is NOTED. */
static void fp8_round(Tensor y, Tensor x, int which, Fp8 f, Noting noting) {
    const float *scale = (const float *)f.scale.data + FP8_SCALES * which;
    int32_t      now = f.uses_own || noting == NOTED ? largest_bits(x) : 0; /* bits of the largest |x|, found before y
                                                                             * is written, because y may be x */
    float        own = f.uses_own ? fp8_power(fp8_exponent((uint32_t)now, type_of(which))) : scale[FP8_SCALE];
    Lost lost = round_values((uint16_t *)y.data, (const uint16_t *)x.data, tensor_elems(x), type_of(which), own,
                             1.0f / own);
    if (noting == NOT_NOTED) return;
    int32_t *amax = (int32_t *)f.amax.data + which;
    if (now > *amax) *amax = now;
    if (tensor_is_none(f.counts)) return;
    int64_t *counts = (int64_t *)f.counts.data + 2 * which;
    counts[0] += lost.over, counts[1] += lost.vanished;
}

/* --- products ----------------------------------------------------------------------------------------------------- */

/* Returns x, w or dy rounded to fp8: in scratch, or unchanged if an op has already written it as fp8 codes. copies:
 * number of 8-bit copies that a GPU would write. Only a dry stream (one that notes costs and computes nothing) uses it,
 * for their cost. */
static Tensor rounded(Stream *s, Tensor x, int which, Fp8 f, Noting noting, int copies) {
    if (fp8_is_codes(x)) return tensor_2d(x.data, BF16, x.dim[0], x.dim[1]);
    Tensor y = arena_tensor(&s->scratch, BF16, 2, x.dim[0], x.dim[1], 1);
    if (!fp8_cast_contract(s, x, copies)) fp8_round(y, x, which, f, noting);
    return y;
}

/* Computes a product of rounded operands. A dry stream (one that computes nothing) notes the cost of the GPU's 8-bit
 * product instead. */
static void product(Stream *s, Matmul p, DType a, DType b) {
    Matmul  noted = p;
    int64_t times = s->ledger ? s->ledger->times : 0;
    noted.a.type = a, noted.b.type = b;
    if (matmul_note(s, noted)) s->ledger->times = -1;
    matmul(s, p);
    if (s->ledger) s->ledger->times = times;
}

void fp8_linear_forward(Stream *s, Tensor y, Tensor x, Tensor w, Tensor b, MatrixOrder order, Fp8 f) {
    fp8_expect(y, x, w, f, order);
    size_t mark = arena_mark(&s->scratch);
    Tensor x8 = rounded(s, x, FP8_X, f, NOTED, 1), w8 = rounded(s, w, FP8_W, f, NOTED, 1);
    product(s, forward_product(y, x8, w8, order, b.data), E4M3, E4M3);
    arena_release(&s->scratch, mark);
}

void fp8_linear_backward(Stream *s, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w, MatrixOrder order,
                         Fp8 f) {
    fp8_backward_expect(dx, dw, db, dy, x, w, f, order);
    size_t mark = arena_mark(&s->scratch);
    Tensor dy8 = rounded(s, dy, FP8_DY, f, NOTED, 2), w8 = rounded(s, w, FP8_W, f, NOT_NOTED, 1);
    Tensor x8 = rounded(s, x, FP8_X, f, NOT_NOTED, 1);
    product(s, input_gradient(dx, dy8, w8, order), E5M2, E4M3);
    Matmul sums = weight_gradient(dw, x8, dy8, order);
    product(s, sums, order == PLAIN ? E4M3 : E5M2, order == PLAIN ? E5M2 : E4M3);
    arena_release(&s->scratch, mark);
    if (!tensor_is_none(db)) bias_backward(s, db, dy);
}

/* --- outputs: the op in bf16, whose memory is as large, and rounding in place ------------------------------------- */

static Tensor as_bf16(Tensor y) {
    y.type = BF16;
    return y;
}
static void round_output(Tensor y, Fp8 f) {
    fp8_round(as_bf16(y), as_bf16(y), y.type == E4M3 ? FP8_X : FP8_DY, f, NOTED);
}

void fp8_activation_forward(Stream *s, Activation kind, Tensor y, Tensor x, Fp8 f) {
    if (activation_forward_contract(s, y, x, &f)) return;
    activation_forward(s, kind, as_bf16(y), x);
    round_output(y, f);
}

/* Computes the activation's gradient in bf16, so dbias sums values rounded to bf16. A dry stream (one that computes
 * nothing) notes only this op, but takes the scratch of activation_backward. */
void fp8_activation_backward(Stream *s, Activation kind, Tensor dx, Tensor dbias, Tensor dy, Tensor x, Fp8 f) {
    int     is_dry = activation_backward_contract(s, dx, dbias, dy, x, &f);
    int64_t times = is_dry ? s->ledger->times : 0;
    if (is_dry) s->ledger->times = -1;
    activation_backward(s, kind, as_bf16(dx), dbias, dy, x);
    if (is_dry) s->ledger->times = times;
    else round_output(dx, f);
}

void fp8_swiglu_forward(Stream *s, Tensor y, Tensor gate_up, Fp8 f) {
    if (swiglu_forward_contract(s, y, gate_up, &f)) return;
    swiglu_forward(s, as_bf16(y), gate_up);
    round_output(y, f);
}

void fp8_swiglu_backward(Stream *s, Tensor dgate_up, Tensor dy, Tensor gate_up, Fp8 f) {
    if (swiglu_backward_contract(s, dgate_up, dy, gate_up, &f)) return;
    swiglu_backward(s, as_bf16(dgate_up), dy, gate_up);
    round_output(dgate_up, f);
}

int fp8_attention_backward(Stream *s, Tensor dqkv, Tensor dbias, Tensor dy, Tensor y, Tensor lse, Tensor delta,
                           Tensor qkv, Tensor starts, HeadShape h, Fp8 f) {
    (void)s, (void)dqkv, (void)dbias, (void)dy, (void)y, (void)lse, (void)delta, (void)qkv, (void)starts, (void)h,
        (void)f;
    return 0;
}

void fp8_layernorm_forward(Stream *s, Tensor sum, Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor update, Tensor w,
                           Tensor b, float eps, Fp8 f) {
    if (norm_forward_contract(s, sum, y, mean, rstd, x, update, w, b, &f)) return;
    layernorm_forward(s, sum, as_bf16(y), mean, rstd, x, update, w, b, eps);
    round_output(y, f);
}
