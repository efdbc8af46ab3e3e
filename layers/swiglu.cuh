/* swiglu.cuh - silu and its derivative on one float; the CPU's are in swiglu.c.
 *
 *     silu(x) = x / (1 + exp(-x)),   silu'(x) = p + x p (1-p),   p = 1 / (1 + exp(-x)),   1 - p = exp(-x) p
 *
 * The fast exponential errs by some |x| units in the last place of f32, the fast division by two: the bound of
 * test_swiglu.c allows for both.
 */
#ifndef TRAIN_GPT_LAYERS_SWIGLU_CUH
#define TRAIN_GPT_LAYERS_SWIGLU_CUH

#include "core/ptx.cuh"

#define SILU_FAR 80.0f /* beyond +-80 silu is 0 or x in f32, and the exponential still finite */

/* Returns silu(x). NaN stays NaN through the exponential; where that is infinite the quotient is 0. */
DEVICE float silu(float x) { return __fdividef(fmaxf(x, -SILU_FAR), 1.0f + exp_approx(-x)); }

/* Returns silu'(x), and silu(x) by reference, which shares the exponential. With e = exp(-|x|) nothing overflows; the
 * smaller of p and 1-p is e / (1+e). */
DEVICE float silu_grad(float &silu, float x) {
    float e = exp_approx(-fabsf(x)), large = __fdividef(1.0f, 1.0f + e), small = e * large,
          p = x < 0.0f ? small : large;
    silu = fmaxf(x, -SILU_FAR) * p;
    return p + fminf(fmaxf(x, -SILU_FAR), SILU_FAR) * large * small;
}

#endif
