/* task_scores.h - what a model makes of a task's questions: acc, acc_norm, their standard errors and perplexity, as
 * lm-eval defines them (docs/evaluation.md).
 *
 * A text is one row of a forward pass. Rows of one length (gpt_scored_length) share a batch, and the batches, which are
 * the same whatever the ranks, are shared out among those that compute different ones. Each text's sum then goes to all
 * ranks, and these count: so any number of ranks gives the same scores, to the bit.
 */
#ifndef TRAIN_GPT_RUN_TEXT_TASK_SCORES_H
#define TRAIN_GPT_RUN_TEXT_TASK_SCORES_H

#include "model/pipeline.h"
#include "run/guard/watchdog.h"
#include "run/text/tasks.h"

typedef struct {
    Pipeline *pipeline;           /* borrowed, like all of these */
    Stream   *stream;
    Batch     room;               /* on the device: I32 [B,T], this rank's T tokens of a sequence */
    Comm     *all;                /* of all ranks; NULL: there is one */
    int       data, datas;        /* its place among ranks with different batches, and their number; 0 counts as 1 */
    Watchdog *watchdog;           /* ticked at every batch; NULL: none */
    int     (*stop)(void *ctx);   /* asked before every batch, on all ranks, whether to leave off; NULL: never */
    void     *ctx;
    int       says;               /* this rank shows how far it is, in a terminal */
} Scorer;

typedef struct {
    const char *name;             /* the task's */
    TaskKind    kind;
    int64_t     questions, cut;
    double      acc, acc_stderr;  /* stderr: NaN of one question */
    double      acc_norm, acc_norm_stderr; /* of questions with choices, else NaN */
    double      perplexity;       /* of continuations: exp of the mean of -log p of a whole one; else NaN */
    double      centered;         /* of a task of CORE: its score above guessing, 1 is all right; else NaN */
} TaskScores;

/* Collective. Returns 0 where it was left off. */
int    task_score(const Scorer *s, const Task *t, TaskScores *out);
/* The sums behind it, [texts]: log p of the scored tokens, and how many of these are not the likeliest. Returns 0
 * likewise. */
int    task_sums(const Scorer *s, const Task *t, double *log_p, double *missed);
/* The mean of the centered scores; NaN where none of the tasks is of CORE. */
double task_core(const TaskScores *scores, int tasks);

#endif
