/* classifier.c - CPU side of the classifier ops in layers.h. One thread owns one row and walks it while it is in cache:
 * maximum, sum of exponentials, gradient. The sum is taken in f32 over stretches and in float64 across them. */
#include "layers/act_simd.h"
#include "layers/contracts.h"
#include "layers/layers.h"

enum { STRETCH = 32 * LANES }; /* f32 adds per lane before float64 takes over */

typedef struct { float max; double sum; } Softmax; /* softmax[v] = exp(x[v] - max) / sum */

#define SIMD_FILE "layers/classifier_simd.h"
#include "core/simd_each.h"
SIMD_DISPATCH(void, loss_row, (DType type, float *loss, const void *row, int64_t target, int64_t V), (type, loss, row, target, V))
SIMD_DISPATCH(void, grad_row, (DType type, float *loss, void *row, int64_t target, int64_t V, int64_t stride, float scale),
              (type, loss, row, target, V, stride, scale))

static void expect_targets(Tensor targets, int64_t V) {
    const int32_t *target = (const int32_t *)targets.data;
    for (int64_t i = 0; i < targets.dim[0]; i++)
        CHECK(target[i] >= 0 && target[i] < V, "target %d at %lld, V = %lld", target[i], (long long)i, (long long)V);
}

static void *logits_row(Tensor logits, int64_t i) { return (char *)logits.data + (size_t)(i * logits.dim[1]) * dtype_bytes(logits.type); }

void classifier_forward(Stream *s, Tensor loss, Tensor logits, Tensor targets, int64_t V) {
    EXPECT_ACT(logits);
    if (classifier_contract(s, loss, logits, targets, V, 0)) return;
    expect_targets(targets, V);
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < logits.dim[0]; i++)
        loss_row(logits.type, (float *)loss.data + i, logits_row(logits, i), ((const int32_t *)targets.data)[i], V);
}

void classifier_forward_backward(Stream *s, Tensor loss, Tensor logits, Tensor targets, int64_t V, float scale) {
    EXPECT_ACT(logits);
    if (classifier_contract(s, loss, logits, targets, V, 1)) return;
    expect_targets(targets, V);
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < logits.dim[0]; i++)
        grad_row(logits.type, (float *)loss.data + i, logits_row(logits, i), ((const int32_t *)targets.data)[i], V, logits.dim[1], scale);
}
