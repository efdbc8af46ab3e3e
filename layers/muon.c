/* muon.c - CPU side of muon_momentum and muon_update in layers.h. Each statement has one product to fuse with its
 * sum, so any cut into spans, vectors or threads gives the same bits. */
#include "core/simd.h"
#include "layers/contracts.h"
#include "layers/layers.h"

enum { STRETCH = 1 << 14 }; /* elements of a thread's work item */
static int64_t stretch_at(int64_t i, int64_t n) { return n - i < STRETCH ? n - i : STRETCH; }

/* With d = m - g, the new m is m - (1-beta) d, and g + beta (m - g) is the new m minus (1-beta) beta d. */
SIMD_INLINE void momentum_body(float *restrict grad, float *restrict m, float grad_scale, float away,
                               float ahead, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float d = m[i] - grad_scale * grad[i], now = m[i] - away * d;
        m[i] = now;
        grad[i] = now - ahead * d;
    }
}
SIMD_KERNEL(void, momentum,
            (float *restrict grad, float *restrict m, float grad_scale, float away, float ahead, int64_t n),
            (grad, m, grad_scale, away, ahead, n))

SIMD_INLINE void step_body(float *restrict p, const float *restrict u, float rate, float decay, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float kept = p[i] - decay * p[i];
        p[i] = kept - rate * u[i];
    }
}
SIMD_KERNEL(void, step, (float *restrict p, const float *restrict u, float rate, float decay, int64_t n),
            (p, u, rate, decay, n))

void muon_momentum(Stream *s, Tensor grad, Tensor m, double beta, float grad_scale) {
    int64_t n = grad.dim[0];
    if (muon_momentum_contract(s, grad, m)) return;
    #pragma omp parallel for schedule(static) if (n > STRETCH)
    for (int64_t i = 0; i < n; i += STRETCH)
        momentum((float *)grad.data + i, (float *)m.data + i, grad_scale, (float)(1.0 - beta),
                 (float)((1.0 - beta) * beta), stretch_at(i, n));
}

void muon_update(Stream *s, Tensor p, Tensor u, double rate, double decay) {
    int64_t n = p.dim[0];
    if (muon_update_contract(s, p, u)) return;
    #pragma omp parallel for schedule(static) if (n > STRETCH)
    for (int64_t i = 0; i < n; i += STRETCH)
        step((float *)p.data + i, (const float *)u.data + i, (float)rate, (float)decay, stretch_at(i, n));
}
