/* draw.c - see draw.h. Each rule is a least logit. Floats are mapped to unsigned numbers in the same order, and the
 * least one is found bit by bit, so that nothing is sorted. */
#include "run/text/draw.h"

#include <math.h>
#include <string.h>

/* Maps floats to unsigned numbers in the same order. NaN is the least. */
static uint32_t order_of(float x) {
    uint32_t u;
    if (isnan(x)) return 0;
    memcpy(&u, &x, sizeof u);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Returns the order of the k-th largest logit: the greatest value that at least k logits reach. */
static uint32_t kth_largest(const float *logits, int64_t vocab, int64_t k) {
    uint32_t least = 0;
    for (int bit = 31; bit >= 0; bit--) {
        uint32_t candidate = least | 1u << bit;
        int64_t  reach = 0;
        for (int64_t v = 0; v < vocab; v++) reach += order_of(logits[v]) >= candidate;
        if (reach >= k) least = candidate;
    }
    return least > 0 ? least : 1; /* leaves NaNs out if k includes them */
}

static double weight_from(const float *logits, int64_t vocab, const double *weight, uint32_t least) {
    double sum = 0;
    for (int64_t v = 0; v < vocab; v++)
        if (order_of(logits[v]) >= least) sum += weight[v];
    return sum;
}

/* Returns the greatest order such that logits of at least that order have the fraction `part` of the weight of those
 * from `floor` on. */
static uint32_t part_of_weight(const float *logits, int64_t vocab, const double *weight, uint32_t floor, double part) {
    uint32_t least = 0;
    double   wanted = part * weight_from(logits, vocab, weight, floor);
    for (int bit = 31; bit >= 0; bit--) {
        uint32_t candidate = least | 1u << bit;
        if (weight_from(logits, vocab, weight, candidate > floor ? candidate : floor) >= wanted) least = candidate;
    }
    return least;
}

static int64_t likeliest(const float *logits, int64_t vocab) {
    int64_t best = 0;
    for (int64_t v = 1; v < vocab; v++)
        if (order_of(logits[v]) > order_of(logits[best])) best = v;
    return best;
}

int32_t draw_token(const float *logits, int64_t vocab, DrawRule rule, double u, double *weight) {
    int64_t best = likeliest(logits, vocab);
    if (rule.temperature <= 0 || !isfinite(logits[best])) return (int32_t)best;

    for (int64_t v = 0; v < vocab; v++)
        weight[v] = isnan(logits[v]) ? 0 : exp(((double)logits[v] - (double)logits[best]) / rule.temperature);
    uint32_t least = rule.top_k > 0 && rule.top_k < vocab ? kth_largest(logits, vocab, rule.top_k) : 1;
    if (rule.top_p < 1) least = part_of_weight(logits, vocab, weight, least, rule.top_p);
    if (least > order_of(logits[best])) least = order_of(logits[best]);

    int64_t drawn = best; /* remains only if u * total is beyond the sum by rounding */
    double  total = 0, reached = 0;
    for (int64_t v = 0; v < vocab; v++) {
        if (order_of(logits[v]) < least || weight[v] < rule.min_p) weight[v] = 0; /* the likeliest token has weight 1 */
        total += weight[v];
    }
    for (int64_t v = 0; v < vocab; v++) {
        if (weight[v] == 0) continue;
        reached += weight[v];
        drawn = v;
        if (reached > u * total) break;
    }
    return (int32_t)drawn;
}
