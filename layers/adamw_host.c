/* adamw_host.c - AdamW of a span in host memory, on this process' cores: one pass over the memory, each element on its
 * own, so any cut into spans or threads gives the same bits. In every build. */
#include "layers/act_simd.h"
#include "layers/adamw_factors.h"
#include "layers/contracts.h"
#include "layers/layers.h"

#define SIMD_FILE "layers/adamw_simd.h"
#include "core/simd_each.h"
SIMD_DISPATCH(void, adamw_block,
              (DType type, float *master, float *m, float *v, uint16_t *working, const float *grad, Factors f,
               int64_t elems),
              (type, master, m, v, working, grad, f, elems))

void adamw_update_host(AdamWSpan span, OptimizerStep h, float grad_scale) {
    Factors     f = adamw_factors(h, grad_scale);
    SpanFactors own = adamw_span_factors(&span, h);
    int64_t n = span.master.dim[0];
    DType   act = span.working.type;
    f.learning_rate = own.learning_rate, f.decay = own.decay;
    float       *p0 = (float *)span.master.data, *m0 = (float *)span.m.data, *v0 = (float *)span.v.data;
    uint16_t    *w0 = (uint16_t *)span.working.data; /* used only if working has 16 bits */
    const float *g0 = (const float *)span.grad.data;
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i += ACT_BLOCK) {
        int64_t elems = act_block_elems(i, n);
        adamw_block(act, p0 + i, m0 + i, v0 + i, act == BF16 ? w0 + i : NULL, g0 + i, f, elems);
        for (int64_t k = i; act == F16 && k < i + elems; k++) w0[k] = f16_from_f32(p0[k]);
    }
}
