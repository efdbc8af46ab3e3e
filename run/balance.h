/* balance.h - parallel.balance: ranks that compute faster take more of a step's micro-batches. The step's gradient is the
 * same sum of the same micro-batches; only who computes which changes.
 *
 * Every STRAGGLER_STEPS steps all ranks compare the medians of their own time a step, as stragglers.h has them. A group
 * of ranks that computes the same micro-batches is as fast as its slowest.
 */
#ifndef TRAIN_GPT_RUN_BALANCE_H
#define TRAIN_GPT_RUN_BALANCE_H

#include "run/run.h"

/* From the milliseconds that each of `datas` ranks took for its micro-batches: new numbers of them, in proportion to
 * speed, with the same sum, at least 1 each. Returns whether the slowest would take less than BALANCE_GAIN of its time
 * now; else micro stays. The same on every rank for the same ms. */
static const double BALANCE_GAIN = 0.95;
int balance_shares(const double *ms, int64_t *micro, int datas);

/* Every rank calls this after each step, once stragglers_note has recorded the step's time. At every STRAGGLER_STEPS-th
 * step the ranks exchange their times and, if that helps, change their numbers of micro-batches from step `step` on. */
void balance_note(Run *r, int64_t step);

#endif
