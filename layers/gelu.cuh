/* gelu.cuh - the tanh form of GELU and its derivative on one float; the CPU's are in gelu.c.
 *
 *     gelu(x) = x/2 (1 + tanh(u)) = x / (1 + exp(-2u)),   u = sqrt(2/pi) (x + 0.044715 x^3)
 *
 * The right-hand form needs one exponential and loses nothing where tanh is close to -1. The fast exponential and
 * division err by a few units in the last place of f32, and by |2u| 2^-24 of the argument's rounding: the bound of
 * test_gelu.c allows for both.
 */
#ifndef TRAIN_GPT_LAYERS_GELU_CUH
#define TRAIN_GPT_LAYERS_GELU_CUH

#include "core/ptx.cuh"

#define GELU_SLOPE 1.5957691216f    /* 2 sqrt(2/pi) */
#define GELU_CUBIC 0.0713548162726f /* 0.044715 * 2 sqrt(2/pi) */
#define GELU_FAR   30.0f            /* beyond +-30 the function is 0 or x in f32 */

/* Returns gelu(x). NaN stays NaN through the exponential. */
DEVICE float gelu(float x) {
    float two_u = x * (x * x * GELU_CUBIC + GELU_SLOPE);
    return __fdividef(fmaxf(x, -GELU_FAR), 1.0f + exp_approx(-two_u));
}

/* Returns gelu'(x) = p + x p (1-p) (2u)',  p = 1 / (1 + exp(-2u)). With e = exp(-|2u|) nothing overflows; the smaller
 * of p and 1-p is e / (1+e). */
DEVICE float gelu_grad(float x) {
    float two_u = x * (x * x * GELU_CUBIC + GELU_SLOPE);
    float e = exp_approx(-fabsf(two_u));
    float large = __fdividef(1.0f, 1.0f + e), small = e * large;
    float in = fminf(fmaxf(x, -GELU_FAR), GELU_FAR);
    return (two_u < 0.0f ? small : large) + in * large * small * (in * in * (3.0f * GELU_CUBIC) + GELU_SLOPE);
}

#endif
