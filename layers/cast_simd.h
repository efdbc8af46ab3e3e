/* cast_simd.h - the kernels of cast.c: a block of values, rounded. Compiled once per instruction set
 * (core/simd_each.h). */
#include "layers/act_simd.h"

SIMD_INLINE void SIMD(cast_block_of)(DType type, DType to, void *y, const void *x, int64_t first, int64_t elems) {
    for (int64_t i = first; i < first + elems; i += LANES) {
        int64_t n = act16_count(i, first + elems);
        act16_store_n(y, i, n, to, act16_load_n(x, i, n, type));
    }
}
static void SIMD(cast_block)(DType from, DType to, void *y, const void *x, int64_t first, int64_t elems) {
    int64_t bytes = (int64_t)dtype_bytes(to);
    if (from == to)      memcpy((char *)y + first * bytes, (const char *)x + first * bytes, (size_t)(elems * bytes));
    else if (to == BF16) SIMD(cast_block_of)(F32, BF16, y, x, first, elems);
    else                 SIMD(cast_block_of)(BF16, F32, y, x, first, elems);
}
