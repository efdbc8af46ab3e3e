/* fp8_ops.c - 8-bit numbers in float64 (fp8_ops.h). */
#include "test/ref/fp8_ops.h"

#include <math.h>

double ref_fp8_value(int code, DType type) {
    int    fraction_bits = type == E4M3 ? 3 : 2, bias = type == E4M3 ? 7 : 15;
    int    exponent = (code & 0x7f) >> fraction_bits, fraction = code % (1 << fraction_bits);
    double sign = code & 0x80 ? -1.0 : 1.0, part = (double)fraction / (double)(1 << fraction_bits);
    if (type == E4M3 && (code & 0x7f) == 0x7f) return NAN;
    if (type == E5M2 && exponent == 31) return fraction ? NAN : sign * INFINITY;
    return sign * (exponent ? (1.0 + part) * pow(2.0, exponent - bias) : part * pow(2.0, 1 - bias));
}

/* Returns the 8-bit code nearest to x. Values increase with their codes up to the sign bit, so the two neighbours of
 * |x| are searched in order. */
int ref_fp8_code(double x, DType type) {
    int    last = type == E4M3 ? 0x7e : 0x7b, above = 0, sign = signbit(x) ? 0x80 : 0;
    double size = fabs(x);
    if (!isfinite(x)) return 0x7f;
    while (above < last && ref_fp8_value(above, type) < size) above++;
    if (above == 0 || ref_fp8_value(above, type) <= size) return sign | above;
    double up = ref_fp8_value(above, type) - size, down = size - ref_fp8_value(above - 1, type);
    int    takes_upper = up < down || (up == down && above % 2 == 0);
    return sign | (takes_upper ? above : above - 1);
}

double ref_fp8_scale(double amax, DType type) {
    double largest = type == E4M3 ? 448.0 : 57344.0, s = ldexp(1.0, 100);
    if (!(amax > 0.0) || !isfinite(amax)) return 1.0;
    while (s * amax > largest / 2.0 && s > ldexp(1.0, -100)) s /= 2.0;
    return s;
}

RefLost ref_fp8_round(double *y, const double *x, int64_t n, double s, DType type) {
    RefLost lost = {0, 0, 0.0};
    for (int64_t i = 0; i < n; i++) {
        double value = ref_fp8_value(ref_fp8_code(s * x[i], type), type);
        if (isfinite(x[i]) && fabs(s * x[i]) > (type == E4M3 ? 448.0 : 57344.0)) lost.over++;
        if (x[i] != 0.0 && value == 0.0) lost.vanished++;
        if (fabs(x[i]) > lost.amax) lost.amax = fabs(x[i]);
        y[i] = value / s;
    }
    return lost;
}

Fp8 stage_fp8(Stage *s, const int exponent[FP8_TENSORS], int uses_own) {
    Fp8 f = {stage_tensor(s, F32, 1, FP8_SCALES * FP8_TENSORS, 1), stage_tensor(s, I32, 1, FP8_TENSORS, 1),
             stage_tensor(s, I64, 1, 2 * FP8_TENSORS, 1), uses_own};
    stage_settle();
    for (int k = 0; k < FP8_TENSORS; k++) {
        float *scale = (float *)f.scale.data + FP8_SCALES * k;
        scale[FP8_SCALE] = ldexpf(1.0f, exponent[k]), scale[FP8_INVERSE] = ldexpf(1.0f, -exponent[k]);
        ((int32_t *)f.amax.data)[k] = 0;
        ((int64_t *)f.counts.data)[2 * k] = ((int64_t *)f.counts.data)[2 * k + 1] = 0;
    }
    return f;
}
