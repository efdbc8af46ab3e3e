/* adamw.cu - CUDA side of adamw_update in layers.h: one pass over the memory, each element on its own. Products and sums are written as
 * fused multiply-adds, so that no compiler chooses and any cut of the tensor into spans gives the same bits. */
#include "core/kernel.cuh"
#include "layers/layers.h"

enum { THREADS = 256 };

typedef struct { /* the formula's constants, rounded once from float64 */
    float beta1, one_minus_beta1, beta2, one_minus_beta2;
    float grad_scale;
    float m_correction, v_correction; /* 1/(1-beta1^t), 1/(1-beta2^t) */
    float learning_rate, eps, decay;
} Factors;

static Factors adamw_factors(AdamW h, float grad_scale) {
    Factors f;
    f.beta1 = (float)h.beta1, f.one_minus_beta1 = (float)(1.0 - h.beta1);
    f.beta2 = (float)h.beta2, f.one_minus_beta2 = (float)(1.0 - h.beta2);
    f.grad_scale = grad_scale;
    f.m_correction = (float)(1.0 / (1.0 - pow(h.beta1, (double)h.step)));
    f.v_correction = (float)(1.0 / (1.0 - pow(h.beta2, (double)h.step)));
    f.learning_rate = (float)h.learning_rate, f.eps = (float)h.eps, f.decay = (float)h.weight_decay;
    return f;
}

DEVICE void adamw_element(float &p, float &m, float &v, float grad, const Factors &f) {
    float g = grad * f.grad_scale;
    m = fmaf(f.beta1, m, f.one_minus_beta1 * g);
    v = fmaf(f.beta2, v, f.one_minus_beta2 * (g * g));
    float step = fmaf(f.decay, p, m * f.m_correction / (sqrtf(v * f.v_correction) + f.eps));
    p = fmaf(-f.learning_rate, step, p);
}

/* Thread: W elements, four loads at once. grid ceil(n / (THREADS W)), no shared memory. Bound: 28 bytes of traffic each, 30 with a
 * 16-bit working copy. */
template <typename T, int W>
KERNEL adamw_kernel(float *master, float *m, float *v, T *working, const float *grad, Factors f, int64_t n) {
    int64_t i = pack_place<W, 1>(0);
    if (i >= n) return;
    Pack<float, W> p4 = pack_load_part<float, W>(master + i, n - i), m4 = pack_load_part<float, W>(m + i, n - i);
    Pack<float, W> v4 = pack_load_part<float, W>(v + i, n - i), g4 = pack_load_part<float, W>(grad + i, n - i);
    for (int j = 0; j < W; j++) adamw_element(p4.v[j], m4.v[j], v4.v[j], g4.v[j], f);
    pack_store_part(master + i, p4, n - i);
    pack_store_part(m + i, m4, n - i);
    pack_store_part(v + i, v4, n - i);
    if constexpr (!std::is_same<T, float>::value) pack_store_part(working + i, pack_from_f32<T>(p4), n - i);
}

void adamw_update(Stream *s, Tensor master, Tensor m, Tensor v, Tensor working, Tensor grad, AdamW h, float grad_scale) {
    int64_t n = master.dim[0];
    EXPECT1(master, F32, n);
    EXPECT1(m, F32, n);
    EXPECT1(v, F32, n);
    EXPECT1(grad, F32, n);
    EXPECT1(working, working.type, n);
    CHECK(working.type != F32 || working.data == master.data, "an fp32 working copy is its own master");
    CHECK(h.step >= 1, "step %lld", (long long)h.step);
    if (n == 0) return;
    Factors f = adamw_factors(h, grad_scale);
    bool    fit = packs_fit(PACK_BYTES, {master.data, m.data, v.data, working.data, grad.data});
    DISPATCH_ACT(working.type, T, DISPATCH_PACK(float, fit, W,
        LAUNCH((adamw_kernel<T, W>), blocks_for(n, THREADS * W), THREADS, 0, s, ptr<float>(master), ptr<float>(m), ptr<float>(v),
               ptr<T>(working), ptr<float>(grad), f, n)));
}
