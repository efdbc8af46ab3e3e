/* adamw_simd.h - the kernels of adamw_host.c: AdamW of a block of elements. Compiled once per instruction set
 * (core/simd_each.h). */
#include "layers/act_simd.h"

/* Updates whole vectors only. Never inlined, because compilers choose in each copy which product of a*b + c*d a fused
 * multiply-add takes. */
static __attribute__((noinline)) void SIMD(adamw_vectors)(DType type, float *master, float *m, float *v,
                                                          uint16_t *working, const float *grad, Factors f,
                                                          int64_t elems) {
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

static void SIMD(adamw_block)(DType type, float *master, float *m, float *v, uint16_t *working, const float *grad,
                              Factors f, int64_t elems) {
    int64_t whole = elems / LANES * LANES, rest = elems - whole;
    SIMD(adamw_vectors)(type, master, m, v, working, grad, f, whole);
    if (rest == 0) return;
    float    p16[LANES] = {0}, m16[LANES] = {0}, v16[LANES] = {0}, g16[LANES] = {0};
    uint16_t w16[LANES];
    size_t   bytes = (size_t)rest * sizeof(float);
    memcpy(p16, master + whole, bytes), memcpy(m16, m + whole, bytes), memcpy(v16, v + whole, bytes),
        memcpy(g16, grad + whole, bytes);
    SIMD(adamw_vectors)(type, p16, m16, v16, w16, g16, f, LANES);
    memcpy(master + whole, p16, bytes), memcpy(m + whole, m16, bytes), memcpy(v + whole, v16, bytes);
    if (type == BF16) memcpy(working + whole, w16, (size_t)rest * sizeof(uint16_t));
}
