/* fp8_linear.c - CPU side of the products in fp8 of layers.h: operands are rounded to what 8 bits would hold, and
 * multiplied as bf16 by matmul.h. A rounded value, three bits of fraction times a power of two, is exact in bf16, and a
 * product of two is exact in f32: only the order of the sums is another than a GPU's.
 */
#include <math.h>

#include "core/fp8.h"
#include "layers/bias.h"
#include "layers/contracts.h"
#include "layers/layers.h"
#include "layers/matmul.h"

enum { SPLIT_ELEMS = 1 << 14 }; /* fewer are one thread's */

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

/* y = fp8(scale x) / scale. To the nearest multiple of u = 2^(exponent - bits of fraction), ties to even, by f32's own
 * rounding: a + 2^23 u is one, of 23 bits. */
static Lost round_values(uint16_t *out, const uint16_t *in, int64_t n, DType type, float scale, float inverse) {
    const float    largest = fp8_largest(type);
    const uint32_t bottom = (uint32_t)(127 + fp8_bottom(type)) << 23, lift = (uint32_t)(23 - (type == E4M3 ? 3 : 2)) << 23;
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

/* One of x, w and dy, rounded, in scratch. copies: what a GPU writes for it. */
static Tensor rounded(Stream *s, Tensor x, int which, Fp8 f, Noting noting, int copies) {
    Tensor y = arena_tensor(&s->scratch, BF16, 2, x.dim[0], x.dim[1], 1);
    if (fp8_cast_contract(s, x, copies)) return y;
    const float *scale = (const float *)f.scale.data + 2 * which;
    float        own = f.uses_own ? fp8_power(fp8_exponent((uint32_t)largest_bits(x), type_of(which))) : scale[0];
    Lost lost = round_values((uint16_t *)y.data, (const uint16_t *)x.data, tensor_elems(x), type_of(which), own, 1.0f / own);
    if (noting == NOT_NOTED) return y;
    int32_t *amax = (int32_t *)f.amax.data + which, now = largest_bits(x);
    if (now > *amax) *amax = now;
    if (tensor_is_none(f.counts)) return y;
    int64_t *counts = (int64_t *)f.counts.data + 2 * which;
    counts[0] += lost.over, counts[1] += lost.vanished;
    return y;
}

/* A dry stream notes the GPU's product. */
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
    Matmul sums = {matrix_of(dw, PLAIN), matrix_of(x8, TRANSPOSED), matrix_of(dy8, PLAIN), K, M, N, MATMUL_ADD, NULL};
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
