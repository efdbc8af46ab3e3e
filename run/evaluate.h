/* evaluate.h - mean loss over data.val while a run trains. */
#ifndef TRAIN_GPT_RUN_EVALUATE_H
#define TRAIN_GPT_RUN_EVALUATE_H

#include "run/run.h"

#ifdef __cplusplus
extern "C" {
#endif

/* After so many steps: at multiples of eval.every, and at the end. */
int eval_is_due(const Run *r, int64_t step);
/* Whether the log lacks the evaluation due after `step`: a new run's, or one cut short before the resume. */
int eval_is_pending(Run *r, int64_t step);
/* Collective. The first eval.tokens tokens of data.val in plain order, whole samples, at least one; the ranks share the
 * work. Logs and prints the loss. Returns 0 where the run was asked to stop: it then logs nothing, and the resumed run
 * evaluates first. */
int evaluate(Run *r, int64_t step);

/* Of the checkpoints in the run's folder and the one of `step`: the step with the best validation loss; -1: none was
 * evaluated, or checkpoint.keep_best is off. Rank 0. */
int64_t eval_best_saved(const Run *r, int64_t step);

#ifdef __cplusplus
}
#endif
#endif
