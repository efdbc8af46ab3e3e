/* gelu.c - CPU side of the gelu ops in layers.h; the function itself is in gelu_simd.h. */
#include "layers/act_simd.h"
#include "layers/bias.h"
#include "layers/gelu_simd.h"
#include "layers/contracts.h"
#include "layers/layers.h"

#define SIMD_FILE "layers/gelu_blocks_simd.h"
#include "core/simd_each.h"
SIMD_DISPATCH(void, gelu_block, (DType type, void *y, const void *x, int64_t first, int64_t elems), (type, y, x, first, elems))
SIMD_DISPATCH(void, gelu_grad_block, (DType type, void *dx, const void *dy, const void *x, int64_t first, int64_t elems),
              (type, dx, dy, x, first, elems))

void gelu_forward(Stream *s, Tensor y, Tensor x) {
    EXPECT_ACT(x);
    if (gelu_forward_contract(s, y, x)) return;
    int64_t elems = tensor_elems(x);
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < elems; i += ACT_BLOCK) gelu_block(x.type, y.data, x.data, i, act_block_elems(i, elems));
}

void gelu_backward(Stream *s, Tensor dx, Tensor dbias, Tensor dy, Tensor x) {
    EXPECT_ACT(x);
    int64_t elems = gelu_backward_contract(s, dx, dbias, dy, x) ? 0 : tensor_elems(x);
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < elems; i += ACT_BLOCK) gelu_grad_block(x.type, dx.data, dy.data, x.data, i, act_block_elems(i, elems));
    if (!tensor_is_none(dbias)) bias_backward(s, dbias, dx);
}
