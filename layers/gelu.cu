/* gelu.cu - CUDA side of the gelu ops in layers.h; the function itself is in gelu.cuh. */
#include "layers/gelu.cuh"
#include "layers/contracts.h"
#include "layers/layers.h"

enum { THREADS = 256, PACKS = 2 }; /* packs of a thread: two loads of each array on their way at once */

/* y = gelu(x). Thread: PACKS packs. grid ceil(n / (THREADS PACKS W)), no shared memory. Bound: 2 elements of traffic
 * each. */
template <typename T, int W> KERNEL gelu_forward_kernel(T *y, const T *x, int64_t n) {
    Pack<T, W> in[PACKS];
    #pragma unroll
    for (int k = 0; k < PACKS; k++) {
        int64_t i = pack_place<W, PACKS>(k);
        if (i < n) in[k] = pack_load_part<T, W>(x + i, n - i);
    }
    #pragma unroll
    for (int k = 0; k < PACKS; k++) {
        int64_t i = pack_place<W, PACKS>(k);
        if (i >= n) continue;
        Pack<float, W> v = pack_to_f32(in[k]);
        for (int j = 0; j < W; j++) v.v[j] = gelu(v.v[j]);
        pack_store_part(y + i, pack_from_f32<T>(v), n - i);
    }
}

/* dx = dy gelu'(x); dx may be dy: each element is read and written by one thread. As above; bound: 3 elements of
 * traffic each. */
template <typename T, int W> KERNEL gelu_backward_kernel(T *dx, const T *dy, const T *x, int64_t n) {
    Pack<T, W> in[PACKS], grad[PACKS];
    #pragma unroll
    for (int k = 0; k < PACKS; k++) {
        int64_t i = pack_place<W, PACKS>(k);
        if (i >= n) continue;
        in[k] = pack_load_part<T, W>(x + i, n - i);
        grad[k] = pack_load_part<T, W>(dy + i, n - i);
    }
    #pragma unroll
    for (int k = 0; k < PACKS; k++) {
        int64_t i = pack_place<W, PACKS>(k);
        if (i >= n) continue;
        Pack<float, W> v = pack_to_f32(in[k]), d = pack_to_f32(grad[k]);
        for (int j = 0; j < W; j++) v.v[j] = d.v[j] * gelu_grad(v.v[j]);
        pack_store_part(dx + i, pack_from_f32<T>(v), n - i);
    }
}

void gelu_forward(Stream *s, Tensor y, Tensor x) {
    int64_t n = tensor_elems(x);
    if (gelu_forward_contract(s, y, x) || n == 0) return;
    DISPATCH_ACT(x.type, T, DISPATCH_PACK(T, packs_fit(PACK_BYTES, {y.data, x.data}), W,
        LAUNCH((gelu_forward_kernel<T, W>), blocks_for(n, THREADS * PACKS * W), THREADS, 0, s, ptr<T>(y), ptr<T>(x), n)));
}

void gelu_backward(Stream *s, Tensor dx, Tensor dy, Tensor x) {
    int64_t n = tensor_elems(x);
    if (gelu_backward_contract(s, dx, dy, x) || n == 0) return;
    DISPATCH_ACT(x.type, T,
                 DISPATCH_PACK(T, packs_fit(PACK_BYTES, {dx.data, dy.data, x.data}), W,
                               LAUNCH((gelu_backward_kernel<T, W>), blocks_for(n, THREADS * PACKS * W), THREADS, 0, s,
                                      ptr<T>(dx), ptr<T>(dy), ptr<T>(x), n)));
}
