/* mup.h - µP, the maximal update parametrization: first values and learning rates that follow the width, so that the best
 * learning rate of a narrow model is that of a wide one. Yang et al., arXiv:2203.03466, table 8.
 *
 * With m = n_embd / mup_base_n_embd and D the size of a head, against the model of the base width:
 *   matrices of blocks   standard deviation x 1/sqrt(m), Adam's rate x 1/m
 *   logits               x 1/m
 *   attention            scores x sqrt(D_base) / D, not 1 / sqrt(D)
 * Embeddings, a head of its own, gains and biases are as at the base.
 *
 * A factor f of a result is applied through the weights before it. If their first values and Adam's rate are multiplied
 * by f, training follows the same path with f times those weights. Logits get their factor from the final norm's gain
 * and bias, x 1/m. Scores get theirs from q, k and v, each x b = (D_base / D)^(1/4); the projection after attention is
 * x 1/b. No other code depends on the base width, and files hold the weights of a plain model.
 */
#ifndef TRAIN_GPT_MODEL_MUP_H
#define TRAIN_GPT_MODEL_MUP_H

#include "model/params.h"

typedef struct {
    double init;      /* factor of the first values: of their mean and standard deviation                        */
    double rate;      /* factor of AdamW's learning rate; rate x decay is unchanged                               */
    double muon_rate; /* factor of Muon's rate: 1/sqrt(m), not 1/m, since 0.2 sqrt(max(R,M)) grows with the width
                         (so spectral norms of updates do not: Yang, Simon & Bernstein, arXiv:2310.17813)        */
} MupFactors;

/* Returns the factors of a row of `bucket`. All are exactly 1 if mup_base_n_embd is 0 or equals the width. */
MupFactors mup_factors(ModelShape shape, int bucket, const ParamRow *row);
/* Returns whether blocks of this kind have rows that can hold attention's factor. */
int        mup_knows_attention(ModelShape shape);

#endif
