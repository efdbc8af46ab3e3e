/* adamw.c - CPU side of adamw_update in layers.h: one pass over the memory, each element on its own, so any cut into spans or threads
 * gives the same bits. */
#include "layers/act_simd.h"
#include "layers/contracts.h"
#include "layers/layers.h"

#ifndef SIMD_PASS

typedef struct { /* the formula's constants, rounded once from float64 */
    float beta1, one_minus_beta1, beta2, one_minus_beta2;
    float grad_scale;
    float m_correction, v_correction; /* 1/(1-beta1^t), 1/(1-beta2^t) */
    float learning_rate, eps, decay;  /* 0 for a piece that does not decay */
} Factors;

#define SIMD_FILE "layers/adamw.c"
#include "core/simd_each.h"
SIMD_DISPATCH(void, adamw_block, (DType type, float *master, float *m, float *v, uint16_t *working, const float *grad, Factors f, int64_t elems),
              (type, master, m, v, working, grad, f, elems))

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

static void update_span(AdamWSpan span, Factors f) {
    int64_t n = span.master.dim[0];
    DType   act = span.working.type;
    EXPECT_ACT(span.working);
    if (!span.decays) f.decay = 0.0f;
    float       *p0 = (float *)span.master.data, *m0 = (float *)span.m.data, *v0 = (float *)span.v.data;
    uint16_t    *w0 = (uint16_t *)span.working.data; /* where it is bf16 */
    const float *g0 = (const float *)span.grad.data;
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i += ACT_BLOCK)
        adamw_block(act, p0 + i, m0 + i, v0 + i, act == BF16 ? w0 + i : NULL, g0 + i, f, act_block_elems(i, n));
}

void adamw_update(Stream *s, const AdamWSpan *span, int spans, AdamW h, float grad_scale) {
    if (adamw_contract(s, span, spans, h)) return;
    Factors f = adamw_factors(h, grad_scale);
    for (int i = 0; i < spans; i++) update_span(span[i], f);
}

#else /* SIMD_PASS: the kernels, once per instruction set */

/* Whole vectors only, and never inlined: compilers choose which product of a*b + c*d a fused multiply-add takes, copy by copy. */
static __attribute__((noinline)) void SIMD(adamw_vectors)(DType type, float *master, float *m, float *v, uint16_t *working, const float *grad,
                                                          Factors f, int64_t elems) {
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

static void SIMD(adamw_block)(DType type, float *master, float *m, float *v, uint16_t *working, const float *grad, Factors f, int64_t elems) {
    int64_t whole = elems / LANES * LANES, rest = elems - whole;
    SIMD(adamw_vectors)(type, master, m, v, working, grad, f, whole);
    if (rest == 0) return;
    float    p16[LANES] = {0}, m16[LANES] = {0}, v16[LANES] = {0}, g16[LANES] = {0};
    uint16_t w16[LANES];
    size_t   bytes = (size_t)rest * sizeof(float);
    memcpy(p16, master + whole, bytes), memcpy(m16, m + whole, bytes), memcpy(v16, v + whole, bytes), memcpy(g16, grad + whole, bytes);
    SIMD(adamw_vectors)(type, p16, m16, v16, w16, g16, f, LANES);
    memcpy(master + whole, p16, bytes), memcpy(m + whole, m16, bytes), memcpy(v + whole, v16, bytes);
    if (type == BF16) memcpy(working + whole, w16, (size_t)rest * sizeof(uint16_t));
}

#endif
