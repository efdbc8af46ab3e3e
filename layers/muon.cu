/* muon.cu - CUDA side of muon_momentum and muon_update in layers.h: each element on its own, as in muon.c. Products and
 * sums are written as fused multiply-adds, so that the compiler has no choice. */
#include "core/kernel.cuh"
#include "layers/contracts.h"
#include "layers/layers.h"

enum { THREADS = 256 };

/* Momentum. Thread: W elements. grid ceil(n / (THREADS W)), no shared memory. Bound: 16 bytes of traffic each. */
template <int W> KERNEL momentum_kernel(float *grad, float *m, float grad_scale, float away, float ahead, int64_t n) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * W;
    if (i >= n) return;
    Pack<float, W> g4 = pack_load_part<float, W>(grad + i, n - i), m4 = pack_load_part<float, W>(m + i, n - i);
    for (int j = 0; j < W; j++) {
        float d = fmaf(-grad_scale, g4.v[j], m4.v[j]);
        m4.v[j] = fmaf(-away, d, m4.v[j]);
        g4.v[j] = fmaf(-ahead, d, m4.v[j]);
    }
    pack_store_part(m + i, m4, n - i);
    pack_store_part(grad + i, g4, n - i);
}

/* Update. Thread: W elements. grid ceil(n / (THREADS W)), no shared memory. Bound: 12 bytes of traffic each. */
template <int W> KERNEL step_kernel(float *p, const float *u, float rate, float decay, int64_t n) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * W;
    if (i >= n) return;
    Pack<float, W> p4 = pack_load_part<float, W>(p + i, n - i), u4 = pack_load_part<float, W>(u + i, n - i);
    for (int j = 0; j < W; j++) p4.v[j] = fmaf(-rate, u4.v[j], fmaf(-decay, p4.v[j], p4.v[j]));
    pack_store_part(p + i, p4, n - i);
}

void muon_momentum(Stream *s, Tensor grad, Tensor m, double beta, float grad_scale) {
    int64_t n = grad.dim[0];
    if (muon_momentum_contract(s, grad, m) || n == 0) return;
    DISPATCH_PACK(float, packs_fit(PACK_BYTES, {grad.data, m.data}), W,
        LAUNCH((momentum_kernel<W>), blocks_for(n, THREADS * W), THREADS, 0, s, ptr<float>(grad), ptr<float>(m),
               grad_scale, (float)(1.0 - beta), (float)((1.0 - beta) * beta), n));
}

void muon_update(Stream *s, Tensor p, Tensor u, double rate, double decay) {
    int64_t n = p.dim[0];
    if (muon_update_contract(s, p, u) || n == 0) return;
    DISPATCH_PACK(float, packs_fit(PACK_BYTES, {p.data, u.data}), W,
        LAUNCH((step_kernel<W>), blocks_for(n, THREADS * W), THREADS, 0, s, ptr<float>(p), ptr<float>(u), (float)rate,
               (float)decay, n));
}
