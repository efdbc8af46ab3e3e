/* evaluate.h - while a run trains: mean loss over data.val, and scores of eval.tasks. */
#ifndef TRAIN_GPT_RUN_EVALUATE_H
#define TRAIN_GPT_RUN_EVALUATE_H

#include "run/run.h"

/* The two parts of an evaluation; several are their sum. */
enum { EVAL_LOSS = 1, EVAL_TASKS = 2 };

/* After so many steps: at multiples of eval.every, tasks of eval.tasks_every, and at the end. 0: nothing is due. */
int eval_is_due(const Run *r, int64_t step);
/* What the log lacks of the evaluation due after `step`: a new run's, or one cut short before the resume. */
int eval_is_pending(Run *r, int64_t step);
/* Collective. The loss: of the first eval.tokens tokens of data.val in plain order, whole samples, at least one. The
 * tasks: all of eval.tasks. The ranks share the work. Logs and prints them. Returns 0 where the run was asked to stop: a
 * part that was cut short is not logged, and the resumed run does it first. */
int evaluate(Run *r, int64_t step, int parts);

/* Of the checkpoints in the run's folder and the one of `step`: the step with the best validation loss; -1: none was
 * evaluated, or checkpoint.keep_best is off. Rank 0. */
int64_t eval_best_saved(const Run *r, int64_t step);

#endif
