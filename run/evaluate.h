/* evaluate.h - evaluations during a training run: mean loss over data.val, and scores of eval.tasks. */
#ifndef TRAIN_GPT_RUN_EVALUATE_H
#define TRAIN_GPT_RUN_EVALUATE_H

#include "run/run.h"

/* The two kinds of evaluation. Functions that take or return several kinds use the sum of the values. */
enum { EVAL_LOSS = 1, EVAL_TASKS = 2 };

/* Returns which kinds of evaluation are due after `step` completed steps; 0 if none. They are due at multiples of
 * eval.every (tasks: eval.tasks_every) and at the end of the run. */
int eval_is_due(const Run *r, int64_t step);
/* Returns the kinds of evaluation (EVAL_LOSS, EVAL_TASKS) that are due after `step` and are missing in the log of the
 * run. They are missing in a new run, or if the run was stopped during the evaluation. */
int eval_is_pending(Run *r, int64_t step);
/* Collective. Evaluates what `parts` names (EVAL_LOSS, EVAL_TASKS or their sum), logs and prints. The loss is the loss
 * of the first eval.tokens tokens of data.val in plain order: whole samples, at least one. The tasks are all of
 * eval.tasks. The ranks share the work. Returns 0 if a request to stop interrupted it. The interrupted kind is not
 * logged, and the resumed run evaluates it first. */
int evaluate(Run *r, int64_t step, int parts);

/* Rank 0. Returns the step with the lowest validation loss among `step` and the steps of the checkpoints in the folder
 * of the run. Returns -1 if none was evaluated, or if checkpoint.keep_best is off. */
int64_t eval_best_saved(const Run *r, int64_t step);

#endif
