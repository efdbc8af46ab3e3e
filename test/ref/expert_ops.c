/* expert_ops.c - the ops of experts in float64 (expert_ops.h). */
#include "test/ref/expert_ops.h"

#include <math.h>
#include <string.h>

static void softmax(double *p, const double *x, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += p[i] = exp(x[i]);
    for (int64_t i = 0; i < n; i++) p[i] /= sum;
}

/* Returns how many experts are chosen before expert e: those with a higher score (p plus bias), and those with an equal
 * score and a lower number. */
static int64_t rank_of(const double *p, const double *bias, int64_t E, int64_t e) {
    int64_t before = 0;
    double  mine = p[e] + (bias ? bias[e] : 0.0);
    for (int64_t o = 0; o < E; o++) {
        double other = p[o] + (bias ? bias[o] : 0.0);
        before += other > mine || (other == mine && o < e);
    }
    return before;
}

void ref_router_forward(double *probability, int32_t *expert, double *weight, const double *logits, const double *bias, int64_t N,
                        int64_t E, int64_t k, int normed) {
    for (int64_t n = 0; n < N; n++) {
        double *p = probability + n * E, sum = 0.0;
        softmax(p, logits + n * E, E);
        for (int64_t e = 0; e < E; e++) {
            int64_t j = rank_of(p, bias, E, e);
            if (j >= k) continue;
            expert[n * k + j] = (int32_t)e, weight[n * k + j] = p[e];
            sum += p[e];
        }
        for (int64_t j = 0; j < k; j++) weight[n * k + j] /= normed ? sum : 1.0;
    }
}

/* The weight of chosen expert j is w_j = p_j / S, with S the sum of p over the chosen experts. So dw_j/dp_i = (i = j) /
 * S - p_j / S^2 for chosen i. */
void ref_router_backward(double *dlogits, const double *dweight, const double *logits, const int32_t *expert, int64_t N, int64_t E,
                         int64_t k, int normed, const int32_t *counts, int64_t T, double balance) {
    for (int64_t n = 0; n < N; n++) {
        double         p[4096], dp[4096], S = 0.0, dot = 0.0;
        const int32_t *chosen = expert + n * k;
        softmax(p, logits + n * E, E);
        for (int64_t e = 0; e < E; e++)
            dp[e] = counts ? balance * (double)E / (double)(k * T) * (double)counts[n / T * E + e] : 0.0;
        for (int64_t j = 0; j < k; j++) S += p[chosen[j]];
        for (int64_t i = 0; i < k; i++)
            for (int64_t j = 0; j < k; j++)
                dp[chosen[i]] += dweight[n * k + j] * (normed ? (i == j ? 1.0 / S : 0.0) - p[chosen[j]] / (S * S) : i == j ? 1.0 : 0.0);
        for (int64_t e = 0; e < E; e++) dot += p[e] * dp[e];
        for (int64_t e = 0; e < E; e++) dlogits[n * E + e] = p[e] * (dp[e] - dot);
    }
}

double ref_router_balance(const double *logits, const int32_t *counts, int64_t N, int64_t E, int64_t k, int64_t T) {
    double loss = 0.0;
    for (int64_t n = 0; n < N; n++) {
        double p[4096];
        softmax(p, logits + n * E, E);
        for (int64_t e = 0; e < E; e++) loss += (double)E * ((double)counts[n / T * E + e] / (double)(k * T)) * p[e];
    }
    return loss;
}

void ref_expert_linear_forward(double *y, const double *x, const double *w, int64_t stride, const int32_t *first, int64_t E, int64_t M,
                               int64_t K) {
    for (int64_t e = 0; e < E; e++)
        for (int64_t r = first[e]; r < first[e + 1]; r++)
            for (int64_t m = 0; m < M; m++) {
                y[r * M + m] = 0.0;
                for (int64_t c = 0; c < K; c++) y[r * M + m] += x[r * K + c] * w[e * stride + m * K + c];
            }
}

void ref_expert_linear_backward(double *dx, double *dw, const double *dy, const double *x, const double *w, int64_t stride,
                                const int32_t *first, int64_t E, int64_t M, int64_t K) {
    memset(dx, 0, sizeof *dx * (size_t)(first[E] * K));
    for (int64_t e = 0; e < E; e++)
        for (int64_t r = first[e]; r < first[e + 1]; r++)
            for (int64_t m = 0; m < M; m++)
                for (int64_t c = 0; c < K; c++) {
                    dx[r * K + c] += dy[r * M + m] * w[e * stride + m * K + c];
                    dw[e * stride + m * K + c] += dy[r * M + m] * x[r * K + c];
                }
}

void ref_expert_swiglu_forward(double *y, const double *gate_up, const double *weight, int64_t R, int64_t F) {
    for (int64_t i = 0; i < R * F; i++) {
        const double *at = gate_up + i / F * 2 * F + i % F;
        y[i] = weight[i / F] * at[0] / (1.0 + exp(-at[0])) * at[F];
    }
}

void ref_expert_swiglu_backward(double *dgate_up, double *dweight, const double *dy, const double *gate_up, const double *weight,
                                int64_t R, int64_t F) {
    memset(dweight, 0, sizeof *dweight * (size_t)R);
    for (int64_t i = 0; i < R * F; i++) {
        int64_t at = i / F * 2 * F + i % F;
        double  gate = gate_up[at], up = gate_up[at + F], p = 1.0 / (1.0 + exp(-gate)), d = dy[i] * weight[i / F];
        dgate_up[at] = d * up * p * (1.0 + gate * (1.0 - p));
        dgate_up[at + F] = d * gate * p;
        dweight[i / F] += dy[i] * gate * p * up;
    }
}
