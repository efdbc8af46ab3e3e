/* adamw.c - CPU side of adamw_update in layers.h: one pass over the memory, each element on its own, so any cut into spans or threads
 * gives the same bits. */
#include "layers/act_simd.h"
#include "layers/layers.h"

#ifndef SIMD_PASS

typedef struct { /* the formula's constants, rounded once from float64 */
    float beta1, one_minus_beta1, beta2, one_minus_beta2;
    float grad_scale;
    float m_correction, v_correction; /* 1/(1-beta1^t), 1/(1-beta2^t) */
    float learning_rate, eps, decay;
} Factors;

#define SIMD_FILE "layers/adamw.c"
#include "core/simd_each.h"
SIMD_DISPATCH(void, adamw_block, (DType type, float *master, float *m, float *v, void *working, const float *grad, Factors f, int64_t first,
              int64_t elems), (type, master, m, v, working, grad, f, first, elems))

static Factors adamw_factors(AdamW h, float grad_scale) {
    double  beta1 = (double)h.beta1, beta2 = (double)h.beta2;
    Factors f;
    f.beta1 = h.beta1, f.one_minus_beta1 = (float)(1.0 - beta1);
    f.beta2 = h.beta2, f.one_minus_beta2 = (float)(1.0 - beta2);
    f.grad_scale = grad_scale;
    f.m_correction = (float)(1.0 / (1.0 - pow(beta1, (double)h.step)));
    f.v_correction = (float)(1.0 / (1.0 - pow(beta2, (double)h.step)));
    f.learning_rate = h.learning_rate, f.eps = h.eps, f.decay = h.weight_decay;
    return f;
}

void adamw_update(Stream *s, Tensor master, Tensor m, Tensor v, Tensor working, Tensor grad, AdamW h, float grad_scale) {
    (void)s;
    int64_t n = master.dim[0];
    EXPECT_ACT(working);
    EXPECT1(master, F32, n);
    EXPECT1(m, F32, n);
    EXPECT1(v, F32, n);
    EXPECT1(grad, F32, n);
    EXPECT1(working, working.type, n);
    CHECK(working.type != F32 || working.data == master.data, "an fp32 working copy is its own master");
    CHECK(h.step >= 1, "step %lld", (long long)h.step);
    Factors f = adamw_factors(h, grad_scale);
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i += ACT_BLOCK)
        adamw_block(working.type, (float *)master.data, (float *)m.data, (float *)v.data, working.data, (const float *)grad.data, f, i,
                    act_block_elems(i, n));
}

#else /* SIMD_PASS: the kernels, once per instruction set */

SIMD_INLINE void SIMD(adamw_block_of)(DType type, float *master, float *m, float *v, void *working, const float *grad, Factors f, int64_t first,
                                int64_t elems) {
    for (int64_t i = first; i < first + elems; i += LANES) {
        int64_t n = act16_count(i, first + elems);
        f32x16 g = act16_load_n(grad, i, n, F32) * f.grad_scale;
        f32x16 m16 = f.beta1 * act16_load_n(m, i, n, F32) + f.one_minus_beta1 * g;
        f32x16 v16 = f.beta2 * act16_load_n(v, i, n, F32) + f.one_minus_beta2 * (g * g);
        f32x16 p = act16_load_n(master, i, n, F32);
        f32x16 step = m16 * f.m_correction / (f32x16_sqrt(v16 * f.v_correction) + f.eps) + f.decay * p;
        p -= f.learning_rate * step;
        act16_store_n(m, i, n, F32, m16);
        act16_store_n(v, i, n, F32, v16);
        act16_store_n(master, i, n, F32, p);
        if (type == BF16) act16_store_n(working, i, n, BF16, p);
    }
}
ACT_KERNEL(adamw_block, (DType type, float *master, float *m, float *v, void *working, const float *grad, Factors f, int64_t first, int64_t elems),
           master, m, v, working, grad, f, first, elems)

#endif
