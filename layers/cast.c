/* cast.c - CPU side of cast_forward in layers.h: a copy that rounds to nearest even where it narrows. */
#include "layers/act_simd.h"
#include "layers/contracts.h"
#include "layers/layers.h"

SIMD_INLINE void cast_block_of(DType type, DType to, void *y, const void *x, int64_t first, int64_t elems) {
    for (int64_t i = first; i < first + elems; i += LANES) {
        int64_t n = act16_count(i, first + elems);
        act16_store_n(y, i, n, to, act16_load_n(x, i, n, type));
    }
}
void SIMD(cast_block)(DType from, DType to, void *y, const void *x, int64_t first, int64_t elems) {
    int64_t bytes = (int64_t)dtype_bytes(to);
    if (from == to)      memcpy((char *)y + first * bytes, (const char *)x + first * bytes, (size_t)(elems * bytes));
    else if (to == BF16) cast_block_of(F32, BF16, y, x, first, elems);
    else                 cast_block_of(BF16, F32, y, x, first, elems);
}

#if SIMD_HOST
SIMD_DISPATCH(void, cast_block, (DType from, DType to, void *y, const void *x, int64_t first, int64_t elems),
              (from, to, y, x, first, elems))

void cast_forward(Stream *s, Tensor y, Tensor x) {
    int64_t n = x.dim[0];
    EXPECT_ACT(x);
    EXPECT_ACT(y);
    if (cast_forward_contract(s, y, x)) return;
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i += ACT_BLOCK) cast_block(x.type, y.type, y.data, x.data, i, act_block_elems(i, n));
}
#endif
