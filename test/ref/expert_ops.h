/* expert_ops.h - the expert ops of layers/layers.h in float64 and plain loops, like the ops in ops.h. */
#ifndef TRAIN_GPT_TEST_REF_EXPERT_OPS_H
#define TRAIN_GPT_TEST_REF_EXPERT_OPS_H

#include <stdint.h>

/* bias may be NULL. normed: the weights of the chosen experts are divided by their sum. */
void ref_router_forward(double *probability, int32_t *expert, double *weight, const double *logits, const double *bias, int64_t N,
                        int64_t E, int64_t k, int normed);
/* Computes the gradient of the logits for these chosen experts. If counts is not NULL, it includes the balance loss:
 * balance E/(k T) counts[n/T][e] is added to dp[n][e]. */
void ref_router_backward(double *dlogits, const double *dweight, const double *logits, const int32_t *expert, int64_t N, int64_t E,
                         int64_t k, int normed, const int32_t *counts, int64_t T, double balance);
/* Returns the balance loss, summed over tokens, without its factor. The shares f of experts come from the counts, their
 * mean probabilities P from the logits. */
double ref_router_balance(const double *logits, const int32_t *counts, int64_t N, int64_t E, int64_t k, int64_t T);
/* w: one matrix [M,K] for each of E experts, `stride` apart. Expert e has rows [first[e], first[e+1]) of x. */
void ref_expert_linear_forward(double *y, const double *x, const double *w, int64_t stride, const int32_t *first, int64_t E, int64_t M,
                               int64_t K);
void ref_expert_linear_backward(double *dx, double *dw, const double *dy, const double *x, const double *w, int64_t stride,
                                const int32_t *first, int64_t E, int64_t M, int64_t K);
/* weight [R] has one value for each row. */
void ref_expert_swiglu_forward(double *y, const double *gate_up, const double *weight, int64_t R, int64_t F);
void ref_expert_swiglu_backward(double *dgate_up, double *dweight, const double *dy, const double *gate_up, const double *weight,
                                int64_t R, int64_t F);

#endif
