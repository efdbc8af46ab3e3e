/* vectors.c - CPU side of the ops in layers.h that set, add and copy elements: zero_tensors, add_forward, copy_columns
 * and cast_forward, which rounds to nearest even where it narrows. */
#include <string.h>

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
SIMD_DISPATCH(void, cast_block, (DType from, DType to, void *y, const void *x, int64_t first, int64_t elems),
              (from, to, y, x, first, elems))

#if SIMD_HOST
void zero_tensors(Stream *s, const Tensor *x, int count) {
    if (zero_contract(s, x, count)) return;
    for (int i = 0; i < count; i++) {
        int64_t n = x[i].dim[0];
        #pragma omp parallel for schedule(static) if (n > ACT_BLOCK)
        for (int64_t at = 0; at < n; at += ACT_BLOCK)
            memset((float *)x[i].data + at, 0, sizeof(float) * (size_t)act_block_elems(at, n));
    }
}

SIMD_INLINE void add_body(float *restrict y, const float *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] += x[i];
}
SIMD_KERNEL(void, add, (float *restrict y, const float *restrict x, int64_t n), (y, x, n))

void add_forward(Stream *s, Tensor y, Tensor x) {
    int64_t n = y.dim[0];
    if (add_forward_contract(s, y, x)) return;
    #pragma omp parallel for schedule(static) if (n > ACT_BLOCK)
    for (int64_t i = 0; i < n; i += ACT_BLOCK)
        add((float *)y.data + i, (const float *)x.data + i, act_block_elems(i, n));
}

void copy_columns(Stream *s, Tensor to, int64_t to_first, Tensor from, int64_t from_first, int64_t columns) {
    size_t elem = dtype_bytes(from.type), bytes = (size_t)columns * elem;
    if (copy_columns_contract(s, to, to_first, from, from_first, columns)) return;
    #pragma omp parallel for schedule(static) if (from.dim[0] * columns > ACT_BLOCK)
    for (int64_t n = 0; n < from.dim[0]; n++)
        memcpy((char *)to.data + (size_t)(n * to.dim[1] + to_first) * elem,
               (const char *)from.data + (size_t)(n * from.dim[1] + from_first) * elem, bytes);
}

void cast_forward(Stream *s, Tensor y, Tensor x) {
    int64_t n = x.dim[0];
    EXPECT_ACT(x);
    EXPECT_ACT(y);
    if (cast_forward_contract(s, y, x)) return;
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i += ACT_BLOCK) cast_block(x.type, y.type, y.data, x.data, i, act_block_elems(i, n));
}
#endif
