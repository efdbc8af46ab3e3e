/* gpt_numbers.h - small numbers of the model that the host computes and the device reads: they come when they are missing, or
 * change. For gpt.c. */
#ifndef TRAIN_GPT_MODEL_GPT_NUMBERS_H
#define TRAIN_GPT_MODEL_GPT_NUMBERS_H

#include "model/gpt.h"

void gpt_take_frequencies(Gpt *g, Stream *s);              /* once: of rotary positions           */
void gpt_take_balance(Gpt *g, Stream *s, float grad_scale); /* the balance loss joins each token's, with this factor */

/* Where block l of this part begins, or its last one ends: dresidual's column sums, if a block here wants them and one here,
 * or the last norm, has them. */
Tensor gpt_sums_at(const Gpt *g, const GptPart *part, int64_t l);

#endif
