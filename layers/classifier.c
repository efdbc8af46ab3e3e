/* classifier.c - CPU side of the classifier ops in layers.h. One thread owns one row and walks it while it is in cache:
 * maximum, sum of exponentials, gradient. The sum is taken in f32 over STRETCH elements and in float64 across them. */
#include "layers/act_simd.h"
#include "layers/contracts.h"
#include "layers/layers.h"

enum { STRETCH = 32 * LANES }; /* elements that are added in f32 before float64 takes over: 32 a lane */

typedef struct { float max; double sum; } Softmax; /* softmax[v] = exp(x[v] - max) / sum */

#define SIMD_FILE "layers/classifier_simd.h"
#include "core/simd_each.h"
SIMD_DISPATCH(void, loss_row, (DType type, float *loss, const void *row, int64_t target, int64_t V, LossTerms terms),
              (type, loss, row, target, V, terms))
SIMD_DISPATCH(void, grad_row,
              (DType type, float *loss, void *row, int64_t target, int64_t V, int64_t stride, LossTerms terms, float scale),
              (type, loss, row, target, V, stride, terms, scale))

SIMD_DISPATCH(void, part_most, (DType type, float *most, const void *row, int64_t V, LossTerms terms), (type, most, row, V, terms))
SIMD_DISPATCH(void, part_sums,
              (DType type, float *sum, float *at_target, const void *row, int64_t target, int64_t V, float most, LossTerms terms),
              (type, sum, at_target, row, target, V, most, terms))
SIMD_DISPATCH(void, part_gradient,
              (DType type, void *row, int64_t target, int64_t V, int64_t stride, float most, float sum, LossTerms terms, float scale),
              (type, row, target, V, stride, most, sum, terms, scale))

static void expect_targets(Tensor targets, int64_t V) {
    const int32_t *target = (const int32_t *)targets.data;
    for (int64_t i = 0; i < targets.dim[0]; i++)
        CHECK(target[i] >= 0 && target[i] < V, "target %d at %lld, V = %lld", target[i], (long long)i, (long long)V);
}

static void *logits_row(Tensor logits, int64_t i) {
    return (char *)logits.data + (size_t)(i * logits.dim[1]) * dtype_bytes(logits.type);
}

void classifier_forward(Stream *s, Tensor loss, Tensor logits, Tensor targets, int64_t V, LossTerms terms) {
    EXPECT_ACT(logits);
    if (classifier_contract(s, loss, logits, targets, V, 0)) return;
    expect_targets(targets, V);
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < logits.dim[0]; i++)
        loss_row(logits.type, (float *)loss.data + i, logits_row(logits, i), ((const int32_t *)targets.data)[i], V, terms);
}

void classifier_forward_backward(Stream *s, Tensor loss, Tensor logits, Tensor targets, int64_t V, LossTerms terms, float scale) {
    EXPECT_ACT(logits);
    if (classifier_contract(s, loss, logits, targets, V, 1)) return;
    expect_targets(targets, V);
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < logits.dim[0]; i++)
        grad_row(logits.type, (float *)loss.data + i, logits_row(logits, i), ((const int32_t *)targets.data)[i], V,
                 logits.dim[1], terms, scale);
}

/* --- a row of several ranks --------------------------------------------------------------------------------------- */

/* Checks targets: each is one of this rank's columns, or V' for another rank's. */
static void expect_part_targets(Tensor targets, int64_t V, int64_t columns) {
    const int32_t *target = (const int32_t *)targets.data;
    for (int64_t i = 0; i < targets.dim[0]; i++)
        CHECK((target[i] >= 0 && target[i] < V) || target[i] == columns, "target %d at %lld, V = %lld of %lld",
              target[i], (long long)i, (long long)V,
              (long long)columns);
}

void classifier_part_most(Stream *s, Tensor most, Tensor logits, int64_t V, LossTerms terms) {
    EXPECT_ACT(logits);
    if (classifier_part_most_contract(s, most, logits, V)) return;
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < logits.dim[0]; i++) part_most(logits.type, (float *)most.data + i, logits_row(logits, i), V, terms);
}

void classifier_part_sums(Stream *s, Tensor sums, Tensor logits, Tensor targets, int64_t V, Tensor most, LossTerms terms) {
    EXPECT_ACT(logits);
    if (classifier_part_contract(s, "classifier_part_sums", logits, targets, V, most, sums, 1.0)) return;
    expect_part_targets(targets, V, logits.dim[1]);
    float *sum = (float *)sums.data, *at_target = sum + logits.dim[0];
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < logits.dim[0]; i++)
        part_sums(logits.type, sum + i, at_target + i, logits_row(logits, i), ((const int32_t *)targets.data)[i], V,
                  ((const float *)most.data)[i], terms);
}

void classifier_part_loss(Stream *s, Tensor loss, Tensor logits, Tensor targets, int64_t V, Tensor most, Tensor sums, LossTerms terms,
                          float scale) {
    int64_t n = logits.dim[0];
    EXPECT_ACT(logits);
    EXPECT1(loss, F32, n);
    if (classifier_part_contract(s, "classifier_part_loss", logits, targets, V, most, sums, scale != 0.0f ? 2.0 : 0.0)) return;
    expect_part_targets(targets, V, logits.dim[1]);
    const float *top = (const float *)most.data, *sum = (const float *)sums.data, *at_target = sum + n;
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++) {
        ((float *)loss.data)[i] = (float)(log((double)sum[i]) + ((double)top[i] - (double)at_target[i]));
        if (scale != 0.0f)
            part_gradient(logits.type, logits_row(logits, i), ((const int32_t *)targets.data)[i], V, logits.dim[1],
                          top[i], sum[i], terms, scale);
    }
}
