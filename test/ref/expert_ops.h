/* expert_ops.h - the expert ops of layers/layers.h in float64 and plain loops, like the ops in ops.h. */
#ifndef TRAIN_GPT_TEST_REF_EXPERT_OPS_H
#define TRAIN_GPT_TEST_REF_EXPERT_OPS_H

#include <stdint.h>

/* Computes the probabilities of E experts for each of N tokens, and chooses k of them. bias [E] changes only the
 * choice; it may be NULL. normed: the weights of a token's chosen experts are divided by their sum. */
void ref_router_forward(double *probability, int32_t *expert, double *weight, const double *logits, const double *bias, int64_t N,
                        int64_t E, int64_t k, int normed);
/* Computes the gradient of the logits, given the experts chosen in forward. If counts is not NULL, the balance loss is
 * included: balance E/(k T) counts[n/T][e] is added to the gradient of probability[n][e]. counts [N/T,E]: how many
 * tokens of each sequence of T have chosen each expert. */
void ref_router_backward(double *dlogits, const double *dweight, const double *logits, const int32_t *expert, int64_t N, int64_t E,
                         int64_t k, int normed, const int32_t *counts, int64_t T, double balance);
/* Returns the balance loss summed over N tokens, not yet multiplied by its factor. A token adds E f p for each expert.
 * f is the expert's share of the assignments in the sequence, counts[n/T][e] / (k T). p is its probability for the
 * token, from the logits. */
double ref_router_balance(const double *logits, const int32_t *counts, int64_t N, int64_t E, int64_t k, int64_t T);
/* Products with experts, whose rows of x are sorted by expert: rows [first[e], first[e+1]) belong to expert e. w has a
 * matrix [M,K] for each of E experts; they are `stride` elements apart. */
void ref_expert_linear_forward(double *y, const double *x, const double *w, int64_t stride, const int32_t *first, int64_t E, int64_t M,
                               int64_t K);
void ref_expert_linear_backward(double *dx, double *dw, const double *dy, const double *x, const double *w, int64_t stride,
                                const int32_t *first, int64_t E, int64_t M, int64_t K);
/* SwiGLU of R rows, each multiplied by its weight: weight [R]. */
void ref_expert_swiglu_forward(double *y, const double *gate_up, const double *weight, int64_t R, int64_t F);
void ref_expert_swiglu_backward(double *dgate_up, double *dweight, const double *dy, const double *gate_up, const double *weight,
                                int64_t R, int64_t F);

#endif
