/* activation.h - the activation functions of MLPs and their derivatives: a section for each Activation (layers.h).
 *
 * A GPU computes one float at a time, a CPU sixteen: an ActValue. A function that is written with the operators of C
 * and the value_... functions of this file serves both. NaN stays NaN in all functions.
 */
#ifndef TRAIN_GPT_LAYERS_ACTIVATION_H
#define TRAIN_GPT_LAYERS_ACTIVATION_H

#include "core/error.h"
#include "layers/layers.h"

#ifdef __cplusplus
#include "core/ptx.cuh"

#define ACT_FUNCTION DEVICE
typedef float ActValue;

/* Returns the larger of a and x; x if x is NaN. */
DEVICE float value_max(float a, float x) { return x < a ? a : x; }
DEVICE float value_exp(float x) { return exp_approx(x); }
/* Returns 1 with the sign of x, also of -0 and NaN. */
DEVICE float value_sign(float x) { return copysignf(1.0f, x); }
DEVICE float value_quotient(float x, float y) { return __fdividef(x, y); }
#else
#include "core/simd.h"

#define ACT_FUNCTION SIMD_INLINE
typedef f32x16 ActValue;

SIMD_INLINE f32x16 value_max(float a, f32x16 x) { return f32x16_max(f32x16_all(a), x); }
SIMD_INLINE f32x16 value_exp(f32x16 x) { return f32x16_exp(x); }
/* Returns 1 with the sign of x, also of -0 and NaN. */
SIMD_INLINE f32x16 value_sign(f32x16 x) { return (f32x16)(((u32x16)x & 0x80000000u) | 0x3f800000u); }
SIMD_INLINE f32x16 value_quotient(f32x16 x, f32x16 y) { return x / y; }
#endif

/* --- gelu_new: GELU by tanh ------------------------------------------------------------------------------------------
 *
 *     gelu(x) = x/2 (1 + tanh(u)) = x / (1 + exp(-2u)),   u = sqrt(2/pi) (x + 0.044715 x^3)
 *
 * The right-hand form needs one exponential and loses nothing where tanh is close to -1.
 */
#define GELU_SLOPE 1.5957691216f    /* 2 sqrt(2/pi): factor of x in 2u, where GELU by tanh is x / (1 + exp(-2u)) */
#define GELU_CUBIC 0.0713548162726f /* 0.044715 * 2 sqrt(2/pi): factor of x^3 in 2u, where GELU by tanh is x / (1 +
                                     * exp(-2u)) */
#define GELU_FAR   30.0f            /* limit of |x|, beyond which GELU is 0 or x in f32 */

#ifdef __cplusplus
/* The fast exponential and division err by a few units in the last place of f32, and by |2u| 2^-24, because the
 * argument 2u of the exponential is rounded. The bound of test_activation.c allows for both. NaN stays NaN through the
 * exponential. */
DEVICE float gelu_new(float x) {
    float two_u = x * (x * x * GELU_CUBIC + GELU_SLOPE);
    return __fdividef(fmaxf(x, -GELU_FAR), 1.0f + exp_approx(-two_u));
}

/* Returns the derivative p + x p (1-p) (2u)', where p = 1 / (1 + exp(-2u)) and 2u is the polynomial two_u of x. With e
 * = exp(-|2u|) nothing overflows; the smaller of p and 1-p is e / (1+e). */
DEVICE float gelu_new_slope(float x) {
    float two_u = x * (x * x * GELU_CUBIC + GELU_SLOPE);
    float e = exp_approx(-fabsf(two_u));
    float large = __fdividef(1.0f, 1.0f + e), small = e * large;
    float in = fminf(fmaxf(x, -GELU_FAR), GELU_FAR);
    return (two_u < 0.0f ? small : large) + in * large * small * (in * in * (3.0f * GELU_CUBIC) + GELU_SLOPE);
}
#else
/* Arguments below -GELU_FAR count as -GELU_FAR, so that the exponential stays finite. */
SIMD_INLINE f32x16 gelu_new(f32x16 x) {
    f32x16 low = value_max(-GELU_FAR, x);
    f32x16 e = f32x16_exp(-low * (low * low * GELU_CUBIC + GELU_SLOPE));
    return low / (e + 1.0f);
}

/* Returns the derivative p + x p (1-p) (2u)', where p = 1 / (1 + exp(-2u)), 1 - p = exp(-2u) p, and 2u = GELU_SLOPE x +
 * GELU_CUBIC x^3. */
SIMD_INLINE f32x16 gelu_new_slope(f32x16 x) {
    f32x16 in = -value_max(-GELU_FAR, -value_max(-GELU_FAR, x));
    f32x16 square = in * in;
    f32x16 e = f32x16_exp(-in * (square * GELU_CUBIC + GELU_SLOPE));
    f32x16 p = 1.0f / (e + 1.0f);
    return p + in * p * (e * p) * (square * (3.0f * GELU_CUBIC) + GELU_SLOPE);
}
#endif

/* --- relu2: ReLU squared, max(x, 0)^2 ----------------------------------------------------------------------------- */

ACT_FUNCTION ActValue relu2(ActValue x) {
    ActValue in = value_max(0.0f, x);
    return in * in;
}
ACT_FUNCTION ActValue relu2_slope(ActValue x) { return value_max(0.0f, x) * 2.0f; }

/* --- silu: x / (1 + exp(-x)), also called swish -------------------------------------------------------------------
 *
 * Its derivative is p + x p (1-p),  p = 1 / (1 + exp(-x)),  1 - p = exp(-x) p. swiglu needs the derivative and the
 * value, which share the exponential: silu_grad returns the derivative and sets the value.
 */
#define SILU_FAR 80.0f /* limit of |x|: beyond it silu is 0 or x in f32; up to it exp(-x) is finite */

#ifdef __cplusplus
/* The fast exponential errs by some |x| units in the last place of f32, the fast division by two: the bound of
 * test_swiglu.c allows for both. NaN stays NaN through the exponential; where that is infinite the quotient is 0. */
DEVICE float silu(float x) { return __fdividef(fmaxf(x, -SILU_FAR), 1.0f + exp_approx(-x)); }

/* Returns the derivative of silu, and silu(x) in *value. With p = 1 / (1 + exp(-x)) and e = exp(-|x|) nothing
 * overflows: the smaller of p and 1-p is e / (1+e). */
DEVICE float silu_grad(float *value, float x) {
    float e = exp_approx(-fabsf(x)), large = __fdividef(1.0f, 1.0f + e), small = e * large,
          p = x < 0.0f ? small : large;
    *value = fmaxf(x, -SILU_FAR) * p;
    return p + fminf(fmaxf(x, -SILU_FAR), SILU_FAR) * large * small;
}
#else
/* Arguments below -SILU_FAR count as -SILU_FAR, and in the derivative those above SILU_FAR as SILU_FAR, so that the
 * exponential stays finite. */
SIMD_INLINE f32x16 silu(f32x16 x) {
    f32x16 low = value_max(-SILU_FAR, x);
    return low / (f32x16_exp(-low) + 1.0f);
}
SIMD_INLINE f32x16 silu_grad(f32x16 *value, f32x16 x) {
    f32x16 low = value_max(-SILU_FAR, x), in = -value_max(-SILU_FAR, -low);
    f32x16 e = f32x16_exp(-in), p = 1.0f / (e + 1.0f);
    *value = low * p;
    return p + in * p * (e * p);
}
#endif
ACT_FUNCTION ActValue silu_slope(ActValue x) {
    ActValue value;
    return silu_grad(&value, x);
}

/* --- gelu: the exact GELU, x Phi(x) = x/2 (1 + erf(x / sqrt(2))) ----------------------------------------------------
 *
 * With z = |x| the complementary form loses nothing where Phi is close to 0:
 *
 *     1 - Phi(z) = erfc(z / sqrt(2)) / 2 = e R(z),   e = exp(-z^2/2)
 *     gelu(x)  = max(x, 0) - z e R(z)
 *     gelu'(x) = Phi(x) + x phi(x) = (x < 0 ? 0 : 1) + sign(x) e (z / sqrt(2 pi) - R(z))
 *
 * R(z) is smooth and falls from 1/2 to 1 / (z sqrt(2 pi)). Here it is a quotient of polynomials of degrees 4 and 5. Its
 * coefficients are our own minimax fit: least squares of the relative error over 0 <= z <= GELU_END, with weights that
 * level the largest errors. R(0) is exactly 1/2. All coefficients are positive, so no sum cancels.
 *
 * Relative errors on a CPU, in units of 2^-24: the fit 0.1, R(z) in f32 at most 8, gelu(x) at most 8 + x^2 for
 * |x| <= 13. The growth comes from the exponential's argument z^2/2, which is rounded. For x below -6 |gelu(x)| is
 * under 10^-8, below -13 under 10^-36. The absolute error of erf(x / sqrt(2)) = 2 Phi(x) - 1 is at most 4. A GPU's fast
 * exponential and division add a few units: test_gelu_tail in test_activation.c has the bound.
 */
#define GELU_END   14.0f            /* least z for which value_exp(-z^2/2) returns 0; the true value is subnormal */
#define GELU_PHI_0 0.3989422804014f /* 1/sqrt(2 pi) */

/* Returns R(z) = exp(z^2/2) (1 - Phi(z)) for z >= 0, where Phi is the normal distribution function. gelu() is computed
 * from it. */
ACT_FUNCTION ActValue gelu_tail(ActValue z) {
    ActValue p = z * 0.00404755304181f + 0.0401844527855f;
    p = p * z + 0.181925075484f;
    p = p * z + 0.436559568581f;
    p = p * z + 0.5f;
    ActValue q = z * 0.0101455792136f + 0.10073443184f;
    q = q * z + 0.466005667284f;
    q = q * z + 1.1971147136f;
    q = q * z + 1.67100396471f;
    q = q * z + 1.0f;
    return value_quotient(p, q);
}
ACT_FUNCTION ActValue gelu(ActValue x) {
    ActValue z = -value_max(-GELU_END, -value_sign(x) * x);
    return value_max(0.0f, x) - z * value_exp(z * z * -0.5f) * gelu_tail(z);
}
ACT_FUNCTION ActValue gelu_slope(ActValue x) {
    ActValue sign = value_sign(x), z = -value_max(-GELU_END, -sign * x);
    ActValue e = value_exp(z * z * -0.5f);
    return sign * 0.5f + 0.5f + sign * (e * (z * GELU_PHI_0 - gelu_tail(z)));
}

/* --- the choice --------------------------------------------------------------------------------------------------- */

/* Return the activation function `kind` of x, and its derivative. `kind` is a constant where they are called
 * (DISPATCH_ACTIVATION), so the compiler makes the choice. */
ACT_FUNCTION ActValue activate(Activation kind, ActValue x) {
    switch (kind) {
        case ACTIVATION_GELU_NEW: return gelu_new(x);
        case ACTIVATION_RELU2: return relu2(x);
        case ACTIVATION_SILU: return silu(x);
        case ACTIVATION_GELU: return gelu(x);
        case ACTIVATION_COUNT: break;
    }
    return x;
}
ACT_FUNCTION ActValue activation_slope(Activation kind, ActValue x) {
    switch (kind) {
        case ACTIVATION_GELU_NEW: return gelu_new_slope(x);
        case ACTIVATION_RELU2: return relu2_slope(x);
        case ACTIVATION_SILU: return silu_slope(x);
        case ACTIVATION_GELU: return gelu_slope(x);
        case ACTIVATION_COUNT: break;
    }
    return x;
}

/* Runs the statement with a constant K, the Activation `kind`: a loop in it makes no choice for an element. */
#define DISPATCH_ACTIVATION(kind, K, ...)                                                                    \
    do {                                                                                                     \
        switch (kind) {                                                                                      \
            case ACTIVATION_GELU_NEW: { const Activation K = ACTIVATION_GELU_NEW; __VA_ARGS__; break; }      \
            case ACTIVATION_RELU2: { const Activation K = ACTIVATION_RELU2; __VA_ARGS__; break; }            \
            case ACTIVATION_SILU: { const Activation K = ACTIVATION_SILU; __VA_ARGS__; break; }              \
            case ACTIVATION_GELU: { const Activation K = ACTIVATION_GELU; __VA_ARGS__; break; }              \
            case ACTIVATION_COUNT: CHECK(0, "no activation %d", (int)(kind));                                \
        }                                                                                                    \
    } while (0)

#endif
