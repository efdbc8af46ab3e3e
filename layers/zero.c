/* zero.c - CPU side of zero_tensors in layers.h. */
#include <string.h>

#include "layers/contracts.h"
#include "layers/layers.h"

void zero_tensors(Stream *s, const Tensor *x, int count) {
    enum { STRETCH = 1 << 14 }; /* elements of a thread's work item */
    if (zero_contract(s, x, count)) return;
    for (int i = 0; i < count; i++) {
        int64_t n = x[i].dim[0];
        #pragma omp parallel for schedule(static) if (n > STRETCH)
        for (int64_t at = 0; at < n; at += STRETCH)
            memset((float *)x[i].data + at, 0, sizeof(float) * (size_t)(n - at < STRETCH ? n - at : STRETCH));
    }
}
