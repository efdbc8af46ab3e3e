/* add.c - CPU side of add_forward in layers.h: one addition an element, whatever the threads. */
#include "core/simd.h"
#include "layers/contracts.h"
#include "layers/layers.h"

SIMD_INLINE void add_body(float *restrict y, const float *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] += x[i];
}
SIMD_KERNEL(void, add, (float *restrict y, const float *restrict x, int64_t n), (y, x, n))

void add_forward(Stream *s, Tensor y, Tensor x) {
    enum { STRETCH = 1 << 14 }; /* elements of a thread's work item */
    int64_t n = y.dim[0];
    if (add_forward_contract(s, y, x)) return;
    #pragma omp parallel for schedule(static) if (n > STRETCH)
    for (int64_t i = 0; i < n; i += STRETCH) add((float *)y.data + i, (const float *)x.data + i, n - i < STRETCH ? n - i : STRETCH);
}
