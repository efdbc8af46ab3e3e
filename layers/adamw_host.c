/* adamw_host.c - AdamW of a span in host memory, on this process' cores: one pass over the memory, each element on its
 * own, so any cut into spans or threads gives the same bits. Every build has this file. */
#include "layers/act_simd.h"
#include "layers/adamw_factors.h"
#include "layers/contracts.h"
#include "layers/layers.h"

/* Updates whole vectors only. Never inlined, because compilers choose in each copy which product of a*b + c*d a fused
 * multiply-add takes. */
static __attribute__((noinline)) void adamw_vectors(DType type, float *master, float *m, float *v, uint16_t *working,
                                                    const float *grad, Factors f, int64_t elems) {
    for (int64_t i = 0; i < elems; i += LANES) {
        f32x16 g = f32x16_load(grad + i) * f.grad_scale;
        f32x16 m16 = f.beta1 * f32x16_load(m + i) + f.one_minus_beta1 * g;
        f32x16 v16 = f.beta2 * f32x16_load(v + i) + f.one_minus_beta2 * (g * g);
        f32x16 p = f32x16_load(master + i);
        f32x16 step = m16 * f.m_correction / (f32x16_sqrt(v16 * f.v_correction) + f.eps) + f.decay * p;
        p -= f.learning_rate * step;
        f32x16_store(m + i, m16);
        f32x16_store(v + i, v16);
        f32x16_store(master + i, p);
        if (type == BF16) f32x16_store_bf16(working + i, p);
    }
}

void SIMD(adamw_block)(DType type, float *master, float *m, float *v, uint16_t *working, const float *grad, Factors f,
                       int64_t elems) {
    int64_t whole = elems / LANES * LANES, rest = elems - whole;
    adamw_vectors(type, master, m, v, working, grad, f, whole);
    if (rest == 0) return;
    float    p16[LANES] = {0}, m16[LANES] = {0}, v16[LANES] = {0}, g16[LANES] = {0};
    uint16_t w16[LANES];
    size_t   bytes = (size_t)rest * sizeof(float);
    memcpy(p16, master + whole, bytes), memcpy(m16, m + whole, bytes), memcpy(v16, v + whole, bytes),
        memcpy(g16, grad + whole, bytes);
    adamw_vectors(type, p16, m16, v16, w16, g16, f, LANES);
    memcpy(master + whole, p16, bytes), memcpy(m + whole, m16, bytes), memcpy(v + whole, v16, bytes);
    if (type == BF16) memcpy(working + whole, w16, (size_t)rest * sizeof(uint16_t));
}
SIMD_DISPATCH(void, adamw_block,
              (DType type, float *master, float *m, float *v, uint16_t *working, const float *grad, Factors f,
               int64_t elems),
              (type, master, m, v, working, grad, f, elems))

#if SIMD_HOST
void adamw_update_host(OptimizerSpan span, OptimizerStep h, float grad_scale) {
    Factors     f = adamw_factors(h, grad_scale);
    SpanFactors own = adamw_span_factors(&span, h);
    int64_t n = span.master.dim[0];
    DType   act = span.working.type;
    f.learning_rate = own.learning_rate, f.decay = own.decay;
    float       *p0 = (float *)span.master.data, *m0 = (float *)span.m.data, *v0 = (float *)span.v.data;
    uint16_t    *w0 = (uint16_t *)span.working.data; /* the working copy of the weights as 16-bit words; not used if it
                                                      * is f32 */
    const float *g0 = (const float *)span.grad.data;
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i += ACT_BLOCK) {
        int64_t elems = act_block_elems(i, n);
        adamw_block(act, p0 + i, m0 + i, v0 + i, act == BF16 ? w0 + i : NULL, g0 + i, f, elems);
        for (int64_t k = i; act == F16 && k < i + elems; k++) w0[k] = f16_from_f32(p0[k]);
    }
}
#endif
