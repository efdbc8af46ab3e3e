/* experts.c - CPU side of the ops in layers.h that sort rows by expert, and of rows_dispatch and rows_combine. */
#include <stdlib.h>

#include "layers/act_simd.h"
#include "layers/expert_contracts.h"
#include "layers/layers.h"

/* y[n] = the sum of the k rows of x with the numbers place[n k], ..., place[n k + k - 1]; C columns. */
typedef struct { void *y; const void *x; const int32_t *place; int64_t k, C; } RowSum;

SIMD_INLINE void combine_row_of(DType type, RowSum r, int64_t n) {
    for (int64_t c = 0; c < r.C; c += LANES) {
        int64_t count = act16_count(c, r.C);
        f32x16  sum = act16_load_n(r.x, r.place[n * r.k] * r.C + c, count, type);
        for (int64_t j = 1; j < r.k; j++) sum += act16_load_n(r.x, r.place[n * r.k + j] * r.C + c, count, type);
        act16_store_n(r.y, n * r.C + c, count, type, sum);
    }
}
ACT_KERNEL(combine_row, (DType type, RowSum r, int64_t n), r, n)

#if SIMD_HOST
SIMD_DISPATCH(void, combine_row, (DType type, RowSum r, int64_t n), (type, r, n))

/* Sorts by counting, which is stable: one pass counts, one places. */
void experts_sort(Stream *s, Tensor order, Tensor place, Tensor first, Tensor expert) {
    int64_t  R = order.dim[0], E = first.dim[0] - 1;
    int      is_dry = experts_sort_contract(s, order, place, first, expert);
    size_t   mark = arena_mark(&s->scratch);
    int32_t *next = (int32_t *)arena_take(&s->scratch, (size_t)E * sizeof(int32_t)), *start = (int32_t *)first.data;
    const int32_t *of = (const int32_t *)expert.data;
    if (!is_dry) {
        memset(start, 0, tensor_bytes(first));
        for (int64_t i = 0; i < R; i++) {
            CHECK(of[i] >= 0 && of[i] < E, "expert %d of %lld", of[i], (long long)E);
            start[of[i] + 1]++;
        }
        for (int64_t e = 0; e < E; e++) next[e] = start[e], start[e + 1] += start[e];
        for (int64_t i = 0; i < R; i++) {
            int32_t row = next[of[i]]++;
            ((int32_t *)order.data)[row] = (int32_t)i;
            ((int32_t *)place.data)[i] = row;
        }
    }
    arena_release(&s->scratch, mark);
}

void rows_dispatch(Stream *s, Tensor y, Tensor x, Tensor order) {
    if (rows_contract(s, "rows_dispatch", y, x, order) || y.dim[0] == 0) return;
    int64_t k = y.dim[0] / x.dim[0];
    size_t  bytes = (size_t)y.dim[1] * dtype_bytes(y.type);
    #pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < y.dim[0]; r++)
        memcpy((char *)y.data + (size_t)r * bytes, (const char *)x.data + (size_t)(((const int32_t *)order.data)[r] / k) * bytes, bytes);
}

void rows_combine(Stream *s, Tensor y, Tensor x, Tensor place) {
    EXPECT_ACT(y);
    if (rows_contract(s, "rows_combine", x, y, place) || x.dim[0] == 0) return;
    RowSum r = {y.data, x.data, (const int32_t *)place.data, x.dim[0] / y.dim[0], y.dim[1]};
    #pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < y.dim[0]; n++) combine_row(y.type, r, n);
}
#endif
