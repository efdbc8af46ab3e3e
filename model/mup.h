/* mup.h - µP, the maximal update parametrization: first values and learning rates that follow the width, so that the best
 * learning rate of a narrow model is that of a wide one. Yang et al., arXiv:2203.03466, table 8.
 *
 * With m = n_embd / mup_base_n_embd and D the size of a head, against the model of the base width:
 *   matrices of blocks   standard deviation x 1/sqrt(m), Adam's rate x 1/m
 *   logits               x 1/m
 *   attention            scores x sqrt(D_base) / D, not 1 / sqrt(D)
 * Embeddings, a head of its own, gains and biases are as at the base.
 *
 * A factor of a result is one of the weights before it: first values and Adam's rate times f train f times those weights, on
 * the same path. So logits take theirs from the last norm's gain and bias, x 1/m, and scores theirs from q, k and v, each x
 * b = (D_base / D)^(1/4), with the projection after attention x 1/b. Nothing else of the program sees the width: the
 * weights are those of a plain model, in every file.
 */
#ifndef TRAIN_GPT_MODEL_MUP_H
#define TRAIN_GPT_MODEL_MUP_H

#include "model/params.h"

typedef struct {
    double init;      /* of the first values: mean and standard deviation                                        */
    double rate;      /* of AdamW's learning rate; rate x decay stays as it is                                    */
    double muon_rate; /* of Muon's: 1/sqrt(m) where AdamW has 1/m, since 0.2 sqrt(max(R,M)) grows with the width
                         (spectral norms of updates stay: Yang, Simon & Bernstein, arXiv:2310.17813)             */
} MupFactors;

/* Of a row of `bucket`. All are exactly 1 where mup_base_n_embd is 0, or the width itself. */
MupFactors mup_factors(ModelShape shape, int bucket, const ParamRow *row);
/* Whether attention's factor has rows to lie in, in blocks of this kind. */
int        mup_knows_attention(ModelShape shape);

#endif
