/* draw.h - draws one token from logits by temperature, top-k, top-p and min-p, in this order. */
#ifndef TRAIN_GPT_RUN_TEXT_DRAW_H
#define TRAIN_GPT_RUN_TEXT_DRAW_H

#include <stdint.h>

/* Rules that limit the tokens to draw from. The probabilities for a rule are those of the logits divided by the
 * temperature, over the tokens that the rules before it kept. Equal logits are kept or dropped together. NaN is always
 * dropped. */
typedef struct {
    double  temperature; /* 0: always the likeliest token, the first if several are equal             */
    int64_t top_k;       /* keeps the k likeliest tokens, and equals of the last; 0: all              */
    double  top_p;       /* keeps the fewest likeliest tokens whose probabilities sum to p; 1: all    */
    double  min_p;       /* keeps those with at least min_p times the largest probability; 0: all     */
} DrawRule;

/* Draws one token from logits [vocab] for a uniform u in [0,1). weight [vocab]: scratch. */
int32_t draw_token(const float *logits, int64_t vocab, DrawRule rule, double u, double *weight);

#endif
