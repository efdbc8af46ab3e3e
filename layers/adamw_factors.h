/* adamw_factors.h - the constants of an AdamW step, for its host and CUDA sides. */
#ifndef TRAIN_GPT_LAYERS_ADAMW_FACTORS_H
#define TRAIN_GPT_LAYERS_ADAMW_FACTORS_H

#include <math.h>

#include "layers/layers.h"

typedef struct { /* constants of AdamW's formula (adamw_update in layers.h), each rounded once from float64 to f32 */
    float beta1, one_minus_beta1, beta2, one_minus_beta2;
    float grad_scale;
    float m_correction, v_correction; /* bias corrections of m and v at step t: 1/(1-beta1^t), 1/(1-beta2^t) */
    /* learning_rate and decay hold for the whole step; adamw_update_host replaces them by those of its span (range of
     * parameters) */
    float learning_rate, eps, decay;
} Factors;

/* The learning rate and decay of one span (range of parameters). A span's `rate` multiplies the learning rate and
 * divides the decay, so their product does not depend on it. */
typedef struct { float learning_rate, decay; } SpanFactors;
static inline SpanFactors adamw_span_factors(const OptimizerSpan *span, OptimizerStep h) {
    double rate = span->rate > 0.0f ? (double)span->rate : 1.0;
    return (SpanFactors){(float)(h.learning_rate * rate), span->decays ? (float)(h.weight_decay / rate) : 0.0f};
}

static inline Factors adamw_factors(OptimizerStep h, float grad_scale) {
    Factors f;
    f.beta1 = (float)h.beta1, f.one_minus_beta1 = (float)(1.0 - h.beta1);
    f.beta2 = (float)h.beta2, f.one_minus_beta2 = (float)(1.0 - h.beta2);
    f.grad_scale = grad_scale;
    f.m_correction = (float)(1.0 / (1.0 - pow(h.beta1, (double)h.step)));
    f.v_correction = (float)(1.0 / (1.0 - pow(h.beta2, (double)h.step)));
    f.learning_rate = (float)h.learning_rate, f.eps = (float)h.eps, f.decay = (float)h.weight_decay;
    return f;
}

#endif
