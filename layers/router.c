/* router.c - CPU side of the router ops in layers.h. A thread owns a token. */
#include <math.h>

#include "layers/act_simd.h"
#include "layers/expert_contracts.h"
#include "layers/layers.h"

static float value_at(Tensor t, int64_t i) {
    return t.type == BF16 ? bf16_to_f32(((const uint16_t *)t.data)[i]) : ((const float *)t.data)[i];
}

/* Sets p[E] to the softmax of row n. */
static void softmax_row(float *p, Tensor logits, int64_t n, int64_t E) {
    float most = -INFINITY, sum = 0.0f;
    for (int64_t e = 0; e < E; e++) most = fmaxf(most, value_at(logits, n * E + e));
    for (int64_t e = 0; e < E; e++) sum += p[e] = expf(value_at(logits, n * E + e) - most);
    for (int64_t e = 0; e < E; e++) p[e] /= sum;
}

/* Returns the expert that follows one of this score: the largest score that is less, or equal with a higher number. */
typedef struct { float score; int32_t expert; } Pick;
static Pick next_pick(const float *p, Tensor bias, int64_t E, Pick last) {
    Pick best = {-INFINITY, -1};
    for (int32_t e = 0; e < E; e++) {
        float score = p[e] + (bias.data ? value_at(bias, e) : 0.0f);
        if (isnan(score)) score = -INFINITY;
        int comes_after = score < last.score || (score == last.score && e > last.expert);
        if (comes_after && (best.expert < 0 || score > best.score)) best = (Pick){score, e};
    }
    return best;
}

void router_forward(Stream *s, Tensor probability, Tensor expert, Tensor weight, Tensor logits, Tensor bias, RouterWeights kind) {
    EXPECT_ACT(logits);
    if (router_forward_contract(s, probability, expert, weight, logits, bias)) return;
    int64_t N = logits.dim[0], E = logits.dim[1], k = expert.dim[1];
    #pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < N; n++) {
        float   *p = (float *)probability.data + n * E, *w = (float *)weight.data + n * k, sum = 0.0f;
        int32_t *chosen = (int32_t *)expert.data + n * k;
        Pick     pick = {INFINITY, -1};
        softmax_row(p, logits, n, E);
        for (int64_t j = 0; j < k; j++) {
            pick = next_pick(p, bias, E, pick);
            chosen[j] = pick.expert;
            sum += w[j] = p[pick.expert];
        }
        for (int64_t j = 0; j < k && kind == WEIGHTS_NORMED; j++) w[j] /= sum;
    }
}

void router_count(Stream *s, Tensor counts, Tensor total, Tensor expert) {
    if (router_count_contract(s, counts, total, expert)) return;
    int64_t  B = counts.dim[0], E = counts.dim[1], each = tensor_elems(expert) / B;
    int32_t *count = (int32_t *)counts.data;
    memset(count, 0, tensor_bytes(counts));
    #pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < B; b++)
        for (int64_t i = b * each; i < (b + 1) * each; i++) count[b * E + ((const int32_t *)expert.data)[i]]++;
    for (int64_t i = 0; i < B * E && total.data; i++) ((int64_t *)total.data)[i % E] += count[i];
}

/* Computes dlogits = p (dp - sum_e p_e dp_e). With WEIGHTS_NORMED w_j = p_j / S, so dp_j = (dw_j - sum_i dw_i w_i) /
 * S. */
void router_backward(Stream *s, Tensor dlogits, Tensor dweight, Tensor probability, Tensor expert, Tensor weight,
                     RouterWeights kind, Tensor counts, Tensor balance) {
    EXPECT_ACT(dlogits);
    int     is_dry = router_backward_contract(s, dlogits, dweight, probability, expert, weight, counts, balance);
    int64_t N = dlogits.dim[0], E = dlogits.dim[1], k = expert.dim[1];
    int64_t each = counts.data ? N / counts.dim[0] : 1; /* number of tokens in a sequence */
    size_t  mark = arena_mark(&s->scratch);
    float  *rows = (float *)arena_take(&s->scratch, (size_t)(N * E) * sizeof(float));
    float   rate = counts.data && !is_dry ? *(const float *)balance.data * (float)E / (float)(k * each) : 0.0f;
    #pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < (is_dry ? 0 : N); n++) {
        const float   *p = (const float *)probability.data + n * E, *w = (const float *)weight.data + n * k,
                      *dw = (const float *)dweight.data + n * k;
        const int32_t *chosen = (const int32_t *)expert.data + n * k;
        float         *dp = rows + n * E, sum = 0.0f, mean = 0.0f, dot = 0.0f;
        for (int64_t e = 0; e < E; e++) dp[e] = counts.data ? rate * (float)((const int32_t *)counts.data)[n / each * E + e] : 0.0f;
        for (int64_t j = 0; j < k; j++) sum += p[chosen[j]], mean += dw[j] * w[j];
        for (int64_t j = 0; j < k; j++) dp[chosen[j]] += kind == WEIGHTS_NORMED ? (dw[j] - mean) / sum : dw[j];
        for (int64_t e = 0; e < E; e++) dot += p[e] * dp[e];
        for (int64_t e = 0; e < E; e++) {
            float d = p[e] * (dp[e] - dot);
            if (dlogits.type == BF16) ((uint16_t *)dlogits.data)[n * E + e] = bf16_from_f32(d);
            else ((float *)dlogits.data)[n * E + e] = d;
        }
    }
    arena_release(&s->scratch, mark);
}
