/* add.cu - CUDA side of add_forward in layers.h. */
#include "core/kernel.cuh"
#include "layers/contracts.h"
#include "layers/layers.h"

enum { THREADS = 256 };

/* y = y + x. Thread: W elements. grid ceil(n / (THREADS W)), no shared memory. Bound: 12 bytes of traffic each. */
template <int W> KERNEL add_kernel(float *y, const float *x, int64_t n) {
    await_kernels();
    int64_t i = pack_place<W, 1>(0);
    if (i >= n) return;
    Pack<float, W> sum = pack_load_part<float, W>(y + i, n - i), part = pack_load_part<float, W>(x + i, n - i);
    for (int k = 0; k < W; k++) sum.v[k] += part.v[k];
    pack_store_part(y + i, sum, n - i);
}

void add_forward(Stream *s, Tensor y, Tensor x) {
    int64_t n = y.dim[0];
    if (add_forward_contract(s, y, x) || n == 0) return;
    DISPATCH_PACK(float, packs_fit(PACK_BYTES, {y.data, x.data}), W,
        LAUNCH_EARLY(add_kernel<W>, blocks_for(n, THREADS * W), THREADS, 0, s, ptr<float>(y), ptr<float>(x), n));
}
