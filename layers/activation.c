/* activation.c - CPU side of the activation ops in layers.h; the functions themselves are in activation.h. */
#include "layers/activation.h"
#include "layers/act_simd.h"
#include "layers/contracts.h"
#include "layers/layers.h"

SIMD_INLINE void activation_block_of(DType type, Activation kind, void *y, const void *x, int64_t first,
                                     int64_t elems) {
    DISPATCH_ACTIVATION(kind, K, for (int64_t i = first; i < first + elems; i += LANES) {
        int64_t n = act16_count(i, first + elems);
        act16_store_n(y, i, n, type, activate(K, act16_load_n(x, i, n, type)));
    });
}
ACT_KERNEL(activation_block, (DType type, Activation kind, void *y, const void *x, int64_t first, int64_t elems), kind,
           y, x, first, elems)

SIMD_INLINE void activation_grad_block_of(DType type, Activation kind, void *dx, const void *dy, const void *x,
                                          int64_t first, int64_t elems) {
    DISPATCH_ACTIVATION(kind, K, for (int64_t i = first; i < first + elems; i += LANES) {
        int64_t n = act16_count(i, first + elems);
        f32x16  slope = activation_slope(K, act16_load_n(x, i, n, type));
        act16_store_n(dx, i, n, type, act16_load_n(dy, i, n, type) * slope);
    });
}
ACT_KERNEL(activation_grad_block,
           (DType type, Activation kind, void *dx, const void *dy, const void *x, int64_t first, int64_t elems), kind,
           dx, dy, x, first, elems)

#if SIMD_HOST
void activation_forward(Stream *s, Activation kind, Tensor y, Tensor x) {
    EXPECT_ACT(x);
    if (activation_forward_contract(s, y, x, NULL)) return;
    int64_t elems = tensor_elems(x);
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < elems; i += ACT_BLOCK)
        activation_block(x.type, kind, y.data, x.data, i, act_block_elems(i, elems));
}

void activation_backward(Stream *s, Activation kind, Tensor dx, Tensor dbias, Tensor dy, Tensor x) {
    EXPECT_ACT(x);
    int64_t elems = activation_backward_contract(s, dx, dbias, dy, x, NULL) ? 0 : tensor_elems(x);
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < elems; i += ACT_BLOCK)
        activation_grad_block(x.type, kind, dx.data, dy.data, x.data, i, act_block_elems(i, elems));
    if (!tensor_is_none(dbias)) bias_backward(s, dbias, dx);
}
#endif
