/* balance.h - experts come to equal shares: after each step the bias of an expert that had more than its share of the step's
 * assignments falls by balance_rate, and that of one that had less rises; Wang et al., arXiv:2408.15664. The bias is a row of the
 * parameters, whose gradient is always zero, so the optimizer leaves it alone.
 */
#ifndef TRAIN_GPT_MODEL_BALANCE_H
#define TRAIN_GPT_MODEL_BALANCE_H

#include "model/optimizer.h"

/* After optimizer_update, before the weights are published. counts [n_layer * E]: of the step, over all ranks; NULL in a dry run. Does
 * nothing in models whose balance is not a bias. */
void experts_balance(Optimizer *o, Stream *s, const int64_t *counts);

#endif
