/* classifier.c - CPU side of the classifier ops in layers.h. One thread owns one row and walks it while it is in cache:
 * maximum, sum of exponentials, gradient. The sum is taken in f32 over STRETCH elements and in float64 across them. */
#include "layers/act_simd.h"
#include "layers/contracts.h"
#include "layers/layers.h"

enum { STRETCH = 32 * LANES }; /* number of elements that are summed in f32, 32 in each lane; these sums are added in
                                * float64 */

typedef struct { float max; double sum; } Softmax; /* softmax[v] = exp(x[v] - max) / sum */

/* Returns tanh(u) with a relative error of a few units in the last place. Below 1/2 it uses a polynomial in u^2, fitted
 * to (tanh(u) / u - 1) / u^2 at Chebyshev's points; above, the exponential. NaN stays NaN. */
SIMD_INLINE f32x16 tanh16(f32x16 u) {
    i32x16 bits = (i32x16)u, sign = bits & INT32_MIN;
    f32x16       size = (f32x16)(bits ^ sign), low = -f32x16_max(f32x16_all(-0.5f), -size), square = low * low;
    f32x16       p = square * -0.00694698468f + 0.0214727111f;
    p = p * square - 0.0539337881f;
    p = p * square + 0.133332267f;
    p = p * square - 0.333333313f;
    f32x16       e = f32x16_exp(-2.0f * size), far = (1.0f - e) / (1.0f + e), near = low + low * (square * p);
    i32x16 is_low = size < 0.5f; /* mask: lanes of |u| below 1/2 have all bits set, the others none */
    return (f32x16)((((i32x16)near & is_low) | ((i32x16)far & ~is_low)) | sign);
}
/* Returns 1 - tanh(u)^2 = 4 e / (1 + e)^2, e = exp(-2 |u|). */
SIMD_INLINE f32x16 tanh_slope16(f32x16 u) {
    f32x16 size = (f32x16)((i32x16)u & INT32_MAX), e = f32x16_exp(-2.0f * size);
    return 4.0f * e / ((1.0f + e) * (1.0f + e));
}

/* Returns capped logits y = c tanh(x / c), c = softcap. Never inlined, because the y of the target alone must equal, to
 * the bit, that of the same logit in a vector. */
static __attribute__((noinline)) f32x16 soft_capped(f32x16 x, float softcap) { return softcap * tanh16(x / softcap); }

/* Returns 16 logits of a row, those of columns v to v + 15, capped unless softcap is 0. Columns V and above are padding
 * and give -infinity. */
SIMD_INLINE f32x16 logits16(const void *row, int64_t v, int64_t V, DType type, float softcap) {
    if (softcap == 0.0f)
        return v + LANES <= V ? act16_load(row, v, type) : act16_load_part(row, v, V - v, type, -INFINITY);
    f32x16 y = soft_capped(act16_load_n(row, v, act16_count(v, V), type), softcap);
    if (v + LANES <= V) return y;
    float part[LANES];
    f32x16_store(part, y);
    for (int64_t k = V - v; k < LANES; k++) part[k] = -INFINITY;
    return f32x16_load(part);
}

SIMD_INLINE double y_of(const void *row, int64_t v, DType type, float softcap) {
    float x = act_get(row, v, type);
    return (double)(softcap == 0.0f ? x : soft_capped(f32x16_all(x), softcap)[0]);
}

/* --- kernels of a row of logits: V columns of this rank, in memory of `stride` columns. A target of V or more belongs
 * to another rank's columns. */

SIMD_INLINE void row_most_of(DType type, float *most, const void *row, int64_t V, float softcap) {
    f32x16 top = f32x16_all(-INFINITY);
    for (int64_t v = 0; v < V; v += LANES) top = f32x16_max(top, logits16(row, v, V, type, softcap));
    *most = f32x16_top(top);
}
ACT_KERNEL(row_most, (DType type, float *most, const void *row, int64_t V, float softcap), most, row, V, softcap)

/* Sets *sum to the sum of exp(y - most) over the capped logits y, and *at_target to the target's y, or to 0 if another
 * rank has the target's column. */
SIMD_INLINE void row_sums_of(DType type, double *sum, double *at_target, const void *row, int64_t target, int64_t V,
                             float most, float softcap) {
    *sum = 0.0;
    for (int64_t first = 0; first < V; first += STRETCH) {
        f32x16  part = f32x16_all(0.0f);
        int64_t end = first + STRETCH < V ? first + STRETCH : V;
        for (int64_t v = first; v < end; v += LANES) part += f32x16_exp(logits16(row, v, V, type, softcap) - most);
        *sum += (double)f32x16_sum(part);
    }
    *at_target = target < V ? y_of(row, target, type, softcap) : 0.0;
}
ACT_KERNEL(row_sums,
           (DType type, double *sum, double *at_target, const void *row, int64_t target, int64_t V, float most,
            float softcap),
           sum, at_target, row, target, V, most, softcap)

/* Replaces a row of logits by the gradient of its loss. */
SIMD_INLINE void row_gradient_of(DType type, void *row, Softmax r, int64_t target, int64_t V, int64_t stride,
                                 LossTerms terms, float scale) {
    float  c = terms.softcap, at_target = 0.0f;
    double pull = 1.0 + 2.0 * (double)terms.z * (log(r.sum) + (double)r.max);
    float  factor = (float)((double)scale * pull / r.sum);
    /* At the target the softmax term and the 1 that is subtracted nearly cancel once the model is sure. So the target's
     * element is computed separately, in f64. */
    if (target < V) {
        double y = y_of(row, target, type, c);
        at_target = (float)((double)scale * (pull * exp(y - (double)r.max) / r.sum - 1.0));
        if (c != 0.0f) at_target *= tanh_slope16(f32x16_all(act_get(row, target, type) / c))[0];
    }
    for (int64_t v = 0; v < V; v += LANES) {
        f32x16 g = f32x16_exp(logits16(row, v, V, type, c) - r.max) * factor;
        if (c != 0.0f) g *= tanh_slope16(act16_load_n(row, v, act16_count(v, V), type) / c);
        act16_store_n(row, v, act16_count(v, V), type, g);
    }
    for (int64_t v = V; v < stride; v += LANES) act16_store_n(row, v, act16_count(v, stride), type, f32x16_all(0.0f));
    if (target < V) act16_store_part(row, target, 1, type, f32x16_all(at_target));
}

ACT_KERNEL(row_gradient,
           (DType type, void *row, Softmax r, int64_t target, int64_t V, int64_t stride, LossTerms terms, float scale),
           row, r, target, V, stride, terms, scale)

#if SIMD_HOST
void classifier_loss(Stream *s, Tensor loss, Tensor logits, Tensor targets, int64_t V, LossTerms terms, float scale) {
    const int32_t *target = (const int32_t *)targets.data;
    EXPECT_ACT(logits);
    if (classifier_contract(s, loss, logits, targets, V, scale != 0.0f)) return;
    for (int64_t i = 0; i < targets.dim[0]; i++)
        CHECK(target[i] >= 0 && target[i] < V, "target %d at %lld, V = %lld", target[i], (long long)i, (long long)V);
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < logits.dim[0]; i++) {
        void  *row = tensor_rows(logits, i, 1).data;
        float  most;
        double sum, at_target;
        row_most(logits.type, &most, row, V, terms.softcap);
        row_sums(logits.type, &sum, &at_target, row, target[i], V, most, terms.softcap);
        ((float *)loss.data)[i] = (float)(log(sum) + ((double)most - at_target));
        if (scale != 0.0f)
            row_gradient(logits.type, row, (Softmax){most, sum}, target[i], V, logits.dim[1], terms, scale);
    }
}

/* --- a row of several ranks --------------------------------------------------------------------------------------- */

/* Checks that each target is one of this rank's V columns, or equals `columns`, which means that another rank has
 * it. */
static void expect_part_targets(Tensor targets, int64_t V, int64_t columns) {
    const int32_t *target = (const int32_t *)targets.data;
    for (int64_t i = 0; i < targets.dim[0]; i++)
        CHECK((target[i] >= 0 && target[i] < V) || target[i] == columns, "target %d at %lld, V = %lld of %lld",
              target[i], (long long)i, (long long)V, (long long)columns);
}

void classifier_part_most(Stream *s, Tensor most, Tensor logits, int64_t V, LossTerms terms) {
    EXPECT_ACT(logits);
    if (classifier_part_most_contract(s, most, logits, V)) return;
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < logits.dim[0]; i++)
        row_most(logits.type, (float *)most.data + i, tensor_rows(logits, i, 1).data, V, terms.softcap);
}

void classifier_part_sums(Stream *s, Tensor sums, Tensor logits, Tensor targets, int64_t V, Tensor most,
                          LossTerms terms) {
    EXPECT_ACT(logits);
    if (classifier_part_contract(s, "classifier_part_sums", logits, targets, V, most, sums, 1.0)) return;
    expect_part_targets(targets, V, logits.dim[1]);
    float *sum = (float *)sums.data, *at_target = sum + logits.dim[0];
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < logits.dim[0]; i++) {
        double all, y;
        row_sums(logits.type, &all, &y, tensor_rows(logits, i, 1).data, ((const int32_t *)targets.data)[i], V,
                 ((const float *)most.data)[i], terms.softcap);
        sum[i] = (float)all, at_target[i] = (float)y;
    }
}

void classifier_part_loss(Stream *s, Tensor loss, Tensor logits, Tensor targets, int64_t V, Tensor most, Tensor sums,
                          LossTerms terms, float scale) {
    int64_t n = logits.dim[0];
    EXPECT_ACT(logits);
    EXPECT1(loss, F32, n);
    if (classifier_part_contract(s, "classifier_part_loss", logits, targets, V, most, sums, scale != 0.0f ? 2.0 : 0.0))
        return;
    expect_part_targets(targets, V, logits.dim[1]);
    const float *top = (const float *)most.data, *sum = (const float *)sums.data, *at_target = sum + n;
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++) {
        ((float *)loss.data)[i] = (float)(log((double)sum[i]) + ((double)top[i] - (double)at_target[i]));
        if (scale != 0.0f)
            row_gradient(logits.type, tensor_rows(logits, i, 1).data, (Softmax){top[i], (double)sum[i]},
                         ((const int32_t *)targets.data)[i], V, logits.dim[1], terms, scale);
    }
}
#endif
