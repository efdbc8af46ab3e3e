/* ops.h - every op of layers/layers.h in float64 and plain loops, as the reference for the real ops.
 *
 * The references are written from the formulas, not from the implementations, and checked in two ways: gradients by
 * finite differences, values by PyTorch's (test/ref/generate.py). Symbols are those of layers.h. Forward and activation
 * gradients are set, weight gradients are added to, as in layers.h. The vocabulary is not padded: logits and weights
 * have V columns or rows, unless a stride is given. */
#ifndef TRAIN_GPT_TEST_REF_OPS_H
#define TRAIN_GPT_TEST_REF_OPS_H

#include <stdint.h>

#include "layers/layers.h"

void ref_embedding_forward(double *y, const int32_t *tokens, const double *wte, const double *wpe, const int32_t *starts,
                           int64_t B, int64_t T, int64_t C);
void ref_embedding_backward(double *dwte, double *dwpe, const double *dy, const int32_t *tokens, const int32_t *starts,
                            int64_t B, int64_t T, int64_t C);

void ref_layernorm_forward(double *y, double *mean, double *rstd, const double *x, const double *w, const double *b,
                           int64_t N, int64_t C, double eps);
/* sums [C] += column sums of x [N,C]. If x is the gradient of an output, this is the gradient of the output's bias. */
void ref_column_sums(double *sums, const double *x, int64_t N, int64_t C);
/* dresidual [N,C] is added to dx; NULL: nothing is added. mean and rstd are computed again from x. */
void ref_layernorm_backward(double *dx, double *dw, double *db, const double *dresidual, const double *dy,
                            const double *x, const double *w, int64_t N, int64_t C, double eps);

void ref_rmsnorm_forward(double *y, double *rstd, const double *x, const double *w, int64_t N, int64_t C, double eps);
/* dresidual [N,C] is added to dx; NULL: nothing is added. rstd is computed again from x. */
void ref_rmsnorm_backward(double *dx, double *dw, const double *dresidual, const double *dy, const double *x,
                          const double *w, int64_t N, int64_t C, double eps);

void ref_linear_forward(double *y, const double *x, const double *w, const double *b, int64_t N, int64_t K, int64_t M);
void ref_linear_backward(double *dx, double *dw, double *db, const double *dy, const double *x, const double *w,
                         int64_t N, int64_t K, int64_t M);

void ref_activation_forward(Activation kind, double *y, const double *x, int64_t n);
void ref_activation_backward(Activation kind, double *dx, const double *dy, const double *x, int64_t n);

/* gate_up [N,2F] has F gate values, then F up values */
void ref_swiglu_forward(double *y, const double *gate_up, int64_t N, int64_t F);
void ref_swiglu_backward(double *dgate_up, const double *dy, const double *gate_up, int64_t N, int64_t F);

/* Rotates the first `heads` heads, of D channels each, in every row n of x [N,columns]: channels i and i + D/2 of a
 * head by the angle position[n] * frequency[i]. backward rotates back. */
void ref_rope_forward(double *x, const double *frequency, const int64_t *position, int64_t N, int64_t columns, int64_t heads, int64_t D);
void ref_rope_backward(double *dx, const double *frequency, const int64_t *position, int64_t N, int64_t columns, int64_t heads, int64_t D);

/* qkv [B*T, (H + 2 KH) D]: H heads of queries, KH heads of keys and KH of values, with D channels each */
void ref_attention_forward(double *y, double *lse, const double *qkv, const int32_t *starts, int64_t B, int64_t T, int64_t H,
                            int64_t KH, int64_t D);
void ref_attention_delta(double *delta, const double *dy, const double *y, int64_t N, int64_t H, int64_t D);
void ref_attention_backward(double *dqkv, const double *dy, const double *qkv, const int32_t *starts, int64_t B, int64_t T, int64_t H,
                            int64_t KH, int64_t D);

/* Sets logits[i, 0..V) = x[i] wte^T for each row i; rows of logits are `stride` elements apart. */
void ref_head_forward(double *logits, const double *x, const double *wte, int64_t n, int64_t C, int64_t V, int64_t stride);
void ref_head_backward(double *dx, double *dwte, const double *dlogits, const double *x, const double *wte, int64_t n,
                       int64_t C, int64_t V, int64_t stride);

void ref_classifier_forward(double *loss, const double *logits, const int32_t *targets, int64_t n, int64_t V, int64_t stride,
                            double softcap);
/* Computes the gradient of loss + z lse^2 (z-loss), where lse is the log of the sum of exponentials of the logits. Sets
 * the padding dlogits[i, V..stride) to 0. */
void ref_classifier_backward(double *dlogits, const double *logits, const int32_t *targets, int64_t n, int64_t V, int64_t stride,
                             double softcap, double z, double scale);

void ref_adamw(double *p, double *m, double *v, const double *grad, int64_t n, double learning_rate, double beta1,
               double beta2, double eps, double decay, int64_t step, double grad_scale);
/* Updates the momentum m, and replaces grad [n] by the direction of Muon's step, before it is made orthogonal. */
void ref_muon_momentum(double *grad, double *m, int64_t n, double beta, double grad_scale);
/* Makes one matrix [R,M], whose rows are `stride` elements apart, nearly orthogonal by five Newton-Schulz
 * iterations. They use one quintic polynomial, or the five of Polar Express if is_polar is 1. */
void ref_newton_schulz(double *x, int64_t R, int64_t M, int64_t stride, int is_polar);
/* Normalizes a matrix x [R,M] for NorMuon. Updates v, the moving mean of squares of each row (of each column if
 * are_rows is 0), and divides by its root. Then the whole matrix gets the norm sqrt(min(R,M)). v has the layout of x,
 * rows `stride` elements apart, with one value repeated along a row or column. */
void ref_normuon(double *x, double *v, int64_t R, int64_t M, int64_t stride, int are_rows, double beta2);
void ref_muon_update(double *p, const double *u, int64_t n, double rate, double decay);

#endif
