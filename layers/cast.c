/* cast.c - CPU side of cast_forward in layers.h: a copy that rounds to nearest even where it narrows. */
#include "layers/act_simd.h"
#include "layers/contracts.h"
#include "layers/layers.h"

#define SIMD_FILE "layers/cast_simd.h"
#include "core/simd_each.h"
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
