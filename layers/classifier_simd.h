/* classifier_simd.h - the kernels of classifier.c: a row's loss and its gradient. Compiled once per instruction set
 * (core/simd_each.h). */
#include "layers/act_simd.h"

SIMD_INLINE f32x16 SIMD(logits16)(const void *row, int64_t v, int64_t V, DType type) {
    return v + LANES <= V ? act16_load(row, v, type) : act16_load_part(row, v, V - v, type, -INFINITY);
}

SIMD_INLINE float SIMD(row_most_of)(DType type, const void *row, int64_t V) {
    f32x16 top = f32x16_all(-INFINITY);
    for (int64_t v = 0; v < V; v += LANES) top = f32x16_max(top, SIMD(logits16)(row, v, V, type));
    return f32x16_top(top);
}

/* The sum of the exponentials below max. */
SIMD_INLINE Softmax SIMD(row_sum)(const void *row, int64_t V, DType type, float max) {
    Softmax r = {max, 0.0};
    for (int64_t first = 0; first < V; first += STRETCH) {
        f32x16  sum = f32x16_all(0.0f);
        int64_t end = first + STRETCH < V ? first + STRETCH : V;
        for (int64_t v = first; v < end; v += LANES) sum += f32x16_exp(SIMD(logits16)(row, v, V, type) - r.max);
        r.sum += (double)f32x16_sum(sum);
    }
    return r;
}

SIMD_INLINE Softmax SIMD(row_softmax)(const void *row, int64_t V, DType type) {
    return SIMD(row_sum)(row, V, type, SIMD(row_most_of)(type, row, V));
}

SIMD_INLINE float SIMD(act_get)(const void *row, int64_t v, DType type) {
    return type == BF16 ? bf16_to_f32(((const uint16_t *)row)[v]) : ((const float *)row)[v];
}

SIMD_INLINE float SIMD(row_loss)(Softmax r, const void *row, int64_t target, DType type) {
    return (float)(log(r.sum) + ((double)r.max - (double)SIMD(act_get)(row, target, type)));
}

SIMD_INLINE void SIMD(loss_row_of)(DType type, float *loss, const void *row, int64_t target, int64_t V) {
    *loss = SIMD(row_loss)(SIMD(row_softmax)(row, V, type), row, target, type);
}
ACT_KERNEL(loss_row, (DType type, float *loss, const void *row, int64_t target, int64_t V), loss, row, target, V)

/* A target from V on is not among these columns. */
SIMD_INLINE void SIMD(set_gradient)(DType type, void *row, Softmax r, int64_t target, int64_t V, int64_t stride, float scale) {
    float factor = (float)((double)scale / r.sum), at_target = 0.0f;
    /* At the target the two terms nearly cancel once the model is sure, so it is computed apart. */
    if (target < V)
        at_target =
            (float)((double)scale * (exp((double)SIMD(act_get)(row, target, type) - (double)r.max) / r.sum - 1.0));
    for (int64_t v = 0; v < V; v += LANES)
        act16_store_n(row, v, act16_count(v, V), type, f32x16_exp(SIMD(logits16)(row, v, V, type) - r.max) * factor);
    for (int64_t v = V; v < stride; v += LANES) act16_store_n(row, v, act16_count(v, stride), type, f32x16_all(0.0f));
    if (target < V) act16_store_part(row, target, 1, type, f32x16_all(at_target));
}

SIMD_INLINE void SIMD(grad_row_of)(DType type, float *loss, void *row, int64_t target, int64_t V, int64_t stride, float scale) {
    Softmax r = SIMD(row_softmax)(row, V, type);
    *loss = SIMD(row_loss)(r, row, target, type);
    SIMD(set_gradient)(type, row, r, target, V, stride, scale);
}
ACT_KERNEL(grad_row, (DType type, float *loss, void *row, int64_t target, int64_t V, int64_t stride, float scale), loss,
           row, target, V, stride, scale)

/* --- a row of several ranks --------------------------------------------------------------------------------------- */

SIMD_INLINE void SIMD(part_most_of)(DType type, float *most, const void *row, int64_t V) {
    *most = SIMD(row_most_of)(type, row, V);
}
ACT_KERNEL(part_most, (DType type, float *most, const void *row, int64_t V), most, row, V)

SIMD_INLINE void SIMD(part_sums_of)(DType type, float *sum, float *at_target, const void *row, int64_t target,
                                    int64_t V, float most) {
    *sum = (float)SIMD(row_sum)(row, V, type, most).sum;
    *at_target = target < V ? SIMD(act_get)(row, target, type) : 0.0f;
}
ACT_KERNEL(part_sums,
           (DType type, float *sum, float *at_target, const void *row, int64_t target, int64_t V, float most), sum,
           at_target, row,
           target, V, most)

SIMD_INLINE void SIMD(part_gradient_of)(DType type, void *row, int64_t target, int64_t V, int64_t stride, float most,
                                        float sum, float scale) {
    SIMD(set_gradient)(type, row, (Softmax){most, (double)sum}, target, V, stride, scale);
}
ACT_KERNEL(part_gradient,
           (DType type, void *row, int64_t target, int64_t V, int64_t stride, float most, float sum, float scale), row,
           target, V,
           stride, most, sum, scale)
