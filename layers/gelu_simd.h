/* gelu_simd.h - the tanh form of GELU and its derivative on sixteen floats. CPU only; included in every pass of
 * core/simd_each.h.
 *
 *     gelu(x) = x/2 (1 + tanh(u)) = x / (1 + exp(-2u)),   u = sqrt(2/pi) (x + 0.044715 x^3)
 *
 * The right-hand form needs one exponential and loses nothing where tanh is close to -1. Arguments are held within
 * +-30, where the function is 0 or x in fp32 and the exponential is still finite; NaN stays NaN.
 */
#ifndef TRAIN_GPT_LAYERS_GELU_SIMD_H
#define TRAIN_GPT_LAYERS_GELU_SIMD_H

#include "core/simd.h"

#define GELU_SLOPE 1.5957691216f          /* 2 sqrt(2/pi) */
#define GELU_CUBIC 0.0713548162726f       /* 0.044715 * 2 sqrt(2/pi) */

#define gelu16 SIMD(gelu16)
#define gelu_grad16 SIMD(gelu_grad16)

#endif

#ifdef SIMD_PASS
SIMD_INLINE f32x16 gelu16(f32x16 x) {
    f32x16 low = f32x16_max(f32x16_all(-30.0f), x); /* NaN passes, because f32x16_max then returns its second
                                                     * argument */
    f32x16 e = f32x16_exp(-low * (low * low * GELU_CUBIC + GELU_SLOPE));
    return low / (e + 1.0f);
}

/* gelu'(x) = p + x p (1-p) (2u)',  p = 1 / (1 + exp(-2u)),  1 - p = exp(-2u) p */
SIMD_INLINE f32x16 gelu_grad16(f32x16 x) {
    f32x16 bound = f32x16_all(-30.0f);
    f32x16 in = -f32x16_max(bound, -f32x16_max(bound, x));
    f32x16 square = in * in;
    f32x16 e = f32x16_exp(-in * (square * GELU_CUBIC + GELU_SLOPE));
    f32x16 p = 1.0f / (e + 1.0f);
    return p + in * p * (e * p) * (square * (3.0f * GELU_CUBIC) + GELU_SLOPE);
}
#endif
