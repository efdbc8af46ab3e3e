/* balance.h - parallel.balance: ranks that compute faster get more of the micro-batches of a step. The gradient of the
 * step is the same sum of the same micro-batches. Only the rank that computes each of them changes.
 *
 * Every STRAGGLER_STEPS steps all ranks compare the medians of their own compute time (stragglers.h). A group of ranks
 * that computes the same micro-batches is as fast as its slowest rank.
 */
#ifndef TRAIN_GPT_RUN_BALANCE_H
#define TRAIN_GPT_RUN_BALANCE_H

#include "run/run.h"

/* Computes new numbers of micro-batches from ms [datas], the time that each group of ranks took for its own:
 * proportional to speed, at least 1 each, with an unchanged sum. Returns 1 if the slowest group would then take less
 * than BALANCE_GAIN of its present time; else leaves micro [datas] unchanged. Equal ms give equal results on all
 * ranks. */
static const double BALANCE_GAIN = 0.95;
int balance_shares(const double *ms, int64_t *micro, int datas);

/* Every rank calls this after each step, once stragglers_note has recorded the time of the step. At every
 * STRAGGLER_STEPS-th step the ranks exchange their times. If it helps, they change their numbers of micro-batches from
 * step `step` on. */
void balance_note(Run *r, int64_t step);

#endif
