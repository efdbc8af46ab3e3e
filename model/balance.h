/* balance.h - gives experts equal shares of the tokens, by a bias that is added when experts are chosen. After each
 * step the bias falls by balance_rate for an expert with more than its share of the step's assignments, and rises by
 * balance_rate for one with less. Wang et al., arXiv:2408.15664. The bias is a row of the parameters; its gradient is
 * always zero, so the optimizer does not change it.
 */
#ifndef TRAIN_GPT_MODEL_BALANCE_H
#define TRAIN_GPT_MODEL_BALANCE_H

#include "model/optimizer.h"

/* Moves the biases. Call it after optimizer_update and before the weights are published. counts [n_layer * E]: the
 * step's assignments, summed over all ranks; NULL in a dry run. Does nothing in models without such a bias. */
void experts_balance(Optimizer *o, Stream *s, const int64_t *counts);

#endif
