/* gelu.c - CPU side of the gelu ops in layers.h.
 *
 *     gelu(x) = x/2 (1 + tanh(u)) = x / (1 + exp(-2u)),   u = sqrt(2/pi) (x + 0.044715 x^3)
 *
 * The right-hand form needs one exponential and loses nothing where tanh is close to -1. Arguments are held within
 * +-30, where the function is 0 or x in fp32 and the exponential is still finite; NaN stays NaN.
 */
#include "layers/act_simd.h"
#include "layers/contracts.h"
#include "layers/layers.h"

#define GELU_SLOPE 1.5957691216f          /* 2 sqrt(2/pi) */
#define GELU_CUBIC 0.0713548162726f       /* 0.044715 * 2 sqrt(2/pi) */

SIMD_INLINE f32x16 gelu16(f32x16 x) {
    f32x16 low = f32x16_max(f32x16_all(-30.0f), x); /* NaN passes, because f32x16_max then returns its second
                                                     * argument */
    f32x16 e = f32x16_exp(-low * (low * low * GELU_CUBIC + GELU_SLOPE));
    return low / (e + 1.0f);
}

/* Returns gelu'(x) = p + x p (1-p) (2u)', p = 1 / (1 + exp(-2u)), 1 - p = exp(-2u) p */
SIMD_INLINE f32x16 gelu_grad16(f32x16 x) {
    f32x16 bound = f32x16_all(-30.0f);
    f32x16 in = -f32x16_max(bound, -f32x16_max(bound, x));
    f32x16 square = in * in;
    f32x16 e = f32x16_exp(-in * (square * GELU_CUBIC + GELU_SLOPE));
    f32x16 p = 1.0f / (e + 1.0f);
    return p + in * p * (e * p) * (square * (3.0f * GELU_CUBIC) + GELU_SLOPE);
}

SIMD_INLINE void gelu_block_of(DType type, void *y, const void *x, int64_t first, int64_t elems) {
    for (int64_t i = first; i < first + elems; i += LANES) {
        int64_t n = act16_count(i, first + elems);
        act16_store_n(y, i, n, type, gelu16(act16_load_n(x, i, n, type)));
    }
}
ACT_KERNEL(gelu_block, (DType type, void *y, const void *x, int64_t first, int64_t elems), y, x, first, elems)

SIMD_INLINE void gelu_grad_block_of(DType type, void *dx, const void *dy, const void *x, int64_t first, int64_t elems) {
    for (int64_t i = first; i < first + elems; i += LANES) {
        int64_t n = act16_count(i, first + elems);
        act16_store_n(dx, i, n, type, act16_load_n(dy, i, n, type) * gelu_grad16(act16_load_n(x, i, n, type)));
    }
}
ACT_KERNEL(gelu_grad_block, (DType type, void *dx, const void *dy, const void *x, int64_t first, int64_t elems), dx, dy,
           x, first, elems)

#if SIMD_HOST
void gelu_forward(Stream *s, Tensor y, Tensor x) {
    EXPECT_ACT(x);
    if (gelu_forward_contract(s, y, x, NULL)) return;
    int64_t elems = tensor_elems(x);
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < elems; i += ACT_BLOCK) gelu_block(x.type, y.data, x.data, i, act_block_elems(i, elems));
}

void gelu_backward(Stream *s, Tensor dx, Tensor dbias, Tensor dy, Tensor x) {
    EXPECT_ACT(x);
    int64_t elems = gelu_backward_contract(s, dx, dbias, dy, x, NULL) ? 0 : tensor_elems(x);
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < elems; i += ACT_BLOCK)
        gelu_grad_block(x.type, dx.data, dy.data, x.data, i, act_block_elems(i, elems));
    if (!tensor_is_none(dbias)) bias_backward(s, dbias, dx);
}
#endif
