/* fp8_round.c - see fp8_round.h. */
#include "layers/fp8_round.h"

#include "core/tensor.h"

enum { SPLIT_ELEMS = 1 << 14 }; /* fewer elements are processed by one thread */

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
 * f32's own rounding: a + 2^23 u is a number of 23 bits. */
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

void fp8_round(Tensor y, Tensor x, int which, Fp8 f, Noting noting) {
    const float *scale = (const float *)f.scale.data + FP8_SCALES * which;
    int32_t      now = f.uses_own || noting == NOTED ? largest_bits(x) : 0; /* read first, because y may be x */
    float        own = f.uses_own ? fp8_power(fp8_exponent((uint32_t)now, type_of(which))) : scale[FP8_SCALE];
    Lost lost = round_values((uint16_t *)y.data, (const uint16_t *)x.data, tensor_elems(x), type_of(which), own, 1.0f / own);
    if (noting == NOT_NOTED) return;
    int32_t *amax = (int32_t *)f.amax.data + which;
    if (now > *amax) *amax = now;
    if (tensor_is_none(f.counts)) return;
    int64_t *counts = (int64_t *)f.counts.data + 2 * which;
    counts[0] += lost.over, counts[1] += lost.vanished;
}
