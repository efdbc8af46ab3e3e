/* attention_last_simd.h - the kernel of attention_last.c: one query of one head over the keys before it. Compiled once
 * per instruction set (core/simd_each.h). */
#include "layers/act_simd.h"

/* Returns q . k over a head's D channels; q is padded with zeros. */
SIMD_INLINE float SIMD(last_score)(DType type, const float *q, const void *qkv, int64_t at, int64_t D) {
    f32x16 sum = f32x16_all(0.0f);
    for (int64_t d = 0; d < D; d += LANES)
        sum += f32x16_load(q + d) * act16_load_n(qkv, at + d, act16_count(d, D), type);
    return f32x16_sum(sum);
}

/* Writes the scores of `keys` keys from element `at` of qkv on. Scores past them are -infinity. Returns the largest. */
SIMD_INLINE float SIMD(last_scores)(DType type, float *score, const Last *job, const float *q, int64_t at,
                                    int64_t keys) {
    f32x16 high = f32x16_all(-INFINITY);
    for (int64_t k = 0; k < KEYS; k++)
        score[k] = k < keys ? SIMD(last_score)(type, q, job->qkv, at + k * job->columns, job->D) : -INFINITY;
    for (int64_t k = 0; k < KEYS; k += LANES) high = f32x16_max(high, f32x16_load(score + k));
    return f32x16_top(high);
}

SIMD_INLINE void SIMD(last_item_of)(DType type, const Last *job, int64_t item, float *q, float *sums) {
    int64_t row = item / job->H, head = item % job->H, T = job->T - job->n + row + 1, step = job->columns, D = job->D;
    int64_t query = (T - 1) * step + head * D, keys = job->C + head / job->group * D, values = keys + (step - job->C) / 2;
    float   top = -INFINITY, score[KEYS];
    f32x16  total = f32x16_all(0.0f);
    for (int64_t d = 0; d < job->wide; d += LANES) {
        f32x16_store(q + d, f32x16_all(job->scale) * act16_load_n(job->qkv, query + d, act16_count(d, D), type));
        f32x16_store(sums + d, f32x16_all(0.0f));
    }
    for (int64_t first = 0; first < T; first += KEYS) {
        int64_t count = T - first < KEYS ? T - first : KEYS;
        float   high = SIMD(last_scores)(type, score, job, q, keys + first * step, count);
        f32x16  before = f32x16_all(top), now = f32x16_all(high > top ? high : top), shrink = f32x16_exp(before - now);
        top = high > top ? high : top;
        total *= shrink;
        for (int64_t k = 0; k < KEYS; k += LANES) {
            f32x16 p = f32x16_exp(f32x16_load(score + k) - now);
            f32x16_store(score + k, p);
            total += p;
        }
        for (int64_t d = 0; d < D; d += LANES) {
            int64_t elems = act16_count(d, D);
            f32x16  sum = f32x16_load(sums + d) * shrink;
            for (int64_t k = 0; k < count; k++)
                sum += f32x16_all(score[k]) * act16_load_n(job->qkv, values + (first + k) * step + d, elems, type);
            f32x16_store(sums + d, sum);
        }
    }
    f32x16 divisor = f32x16_all(f32x16_sum(total));
    for (int64_t d = 0; d < D; d += LANES)
        act16_store_n(job->y, row * job->C + head * D + d, act16_count(d, D), type, f32x16_load(sums + d) / divisor);
}
ACT_KERNEL(last_item, (DType type, const Last *job, int64_t item, float *q, float *sums), job, item, q, sums)
