/* columns.c - CPU side of columns_copy in layers.h. */
#include <string.h>

#include "layers/contracts.h"
#include "layers/layers.h"

void columns_copy(Stream *s, Tensor y, int64_t to, Tensor x, int64_t from, int64_t n) {
    int64_t R = y.dim[0], wide = y.dim[1], narrow = x.dim[1];
    if (columns_copy_contract(s, y, to, x, from, n)) return;
    #pragma omp parallel for schedule(static) if (R * n > 1 << 14)
    for (int64_t r = 0; r < R; r++)
        memcpy((float *)y.data + r * wide + to, (const float *)x.data + r * narrow + from, sizeof(float) * (size_t)n);
}
