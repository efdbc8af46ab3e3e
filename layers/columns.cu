/* columns.cu - CUDA side of columns_copy in layers.h. */
#include "core/kernel.cuh"
#include "layers/contracts.h"
#include "layers/layers.h"

enum { THREADS = 256 };

/* Copies columns. Thread: one element. grid ceil(R n / THREADS), no shared memory. Bound: 8 bytes of traffic each. */
KERNEL columns_copy_kernel(float *y, int64_t y_width, const float *x, int64_t x_width, int64_t R, int64_t n) {
    await_kernels();
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < R * n) y[i / n * y_width + i % n] = x[i / n * x_width + i % n];
}

void columns_copy(Stream *s, Tensor y, int64_t to, Tensor x, int64_t from, int64_t n) {
    int64_t R = y.dim[0];
    if (columns_copy_contract(s, y, to, x, from, n) || R * n == 0) return;
    LAUNCH_EARLY(columns_copy_kernel, blocks_for(R * n, THREADS), THREADS, 0, s, ptr<float>(y) + to, y.dim[1], ptr<float>(x) + from,
           x.dim[1], R, n);
}
