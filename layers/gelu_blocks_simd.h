/* gelu_blocks_simd.h - the kernels of gelu.c: GELU and its gradient of a block. Compiled once per instruction set
 * (core/simd_each.h). */
#include "layers/act_simd.h"
#include "layers/gelu_simd.h"

SIMD_INLINE void SIMD(gelu_block_of)(DType type, void *y, const void *x, int64_t first, int64_t elems) {
    for (int64_t i = first; i < first + elems; i += LANES) {
        int64_t n = act16_count(i, first + elems);
        act16_store_n(y, i, n, type, gelu16(act16_load_n(x, i, n, type)));
    }
}
ACT_KERNEL(gelu_block, (DType type, void *y, const void *x, int64_t first, int64_t elems), y, x, first, elems)

SIMD_INLINE void SIMD(gelu_grad_block_of)(DType type, void *dx, const void *dy, const void *x, int64_t first, int64_t elems) {
    for (int64_t i = first; i < first + elems; i += LANES) {
        int64_t n = act16_count(i, first + elems);
        act16_store_n(dx, i, n, type, act16_load_n(dy, i, n, type) * gelu_grad16(act16_load_n(x, i, n, type)));
    }
}
ACT_KERNEL(gelu_grad_block, (DType type, void *dx, const void *dy, const void *x, int64_t first, int64_t elems), dx, dy,
           x, first, elems)
