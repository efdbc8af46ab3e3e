/* draw.h - one token, drawn from logits: by temperature, top-k, top-p and min-p, in this order. */
#ifndef TRAIN_GPT_RUN_TEXT_DRAW_H
#define TRAIN_GPT_RUN_TEXT_DRAW_H

#include <stdint.h>

/* The probabilities of a rule are those of the logits divided by the temperature, over the tokens that the rules before
 * it left. Equal logits stay, or go, together. NaN never stays. */
typedef struct {
    double  temperature; /* 0 = the likeliest token each time, the first of equals                    */
    int64_t top_k;       /* the k likeliest tokens, and equals of the last; 0 = all                   */
    double  top_p;       /* the fewest likeliest tokens whose probability reaches p; 1 = all          */
    double  min_p;       /* those of at least p times the likeliest one's probability; 0 = all        */
} DrawRule;

/* Draws one token from logits [vocab] given a uniform u in [0,1). weight [vocab]: room. */
int32_t draw_token(const float *logits, int64_t vocab, DrawRule rule, double u, double *weight);

#endif
