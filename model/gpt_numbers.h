/* gpt_numbers.h - small numbers of the model that the host computes and the device reads. They are copied when they are
 * missing or change. Only gpt.c uses this file. */
#ifndef TRAIN_GPT_MODEL_GPT_NUMBERS_H
#define TRAIN_GPT_MODEL_GPT_NUMBERS_H

#include "model/gpt.h"

void gpt_take_frequencies(Gpt *g, Stream *s);              /* rotary frequencies; copied once     */
/* factor of the loss that balances experts, for each token */
void gpt_take_balance(Gpt *g, Stream *s, float grad_scale);

/* Returns the buffer for the column sums of dresidual where block l begins; l may be the part's end. Returns none
 * unless a block here reads these sums and another block here, or the final norm, computes them. */
Tensor gpt_sums_at(const Gpt *g, const GptPart *part, int64_t l);

#endif
