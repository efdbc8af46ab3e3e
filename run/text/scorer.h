/* scorer.h - what a model scores: its mean loss over data, and its answers to the questions of a task. The scores of a
 * task are acc, acc_norm, their standard errors and perplexity, as lm-eval defines them (docs/evaluation.md).
 *
 * A text of a task is one row of a forward pass. Rows of one length (gpt_scored_length) share a batch. The batches do
 * not depend on the number of ranks. Ranks that compute different batches divide them. Then all ranks get the sum of
 * each text, and compute the scores. So any number of ranks gives the same scores, to the bit.
 */
#ifndef TRAIN_GPT_RUN_TEXT_SCORER_H
#define TRAIN_GPT_RUN_TEXT_SCORER_H

#include "data/dataset.h"
#include "model/model.h"
#include "run/guard/watchdog.h"
#include "run/text/tasks.h"

typedef struct {
    Model    *model;              /* borrowed, like all pointers of this struct */
    /* buffers of a batch on the device: I32 [B,T], with T the tokens of a sequence on this rank */
    Batch     room;
    Comm     *all;                /* all ranks; NULL: one rank */
    /* index of this rank among the ranks with different batches, and the number of these ranks (datas; 0 counts as
     * 1) */
    int       data, datas;
    Watchdog *watchdog;           /* ticked at every batch; NULL: none */
    int     (*stop)(void *ctx);   /* called before every batch, on all ranks; 1 stops; NULL: never stops */
    void     *ctx;
    int       says;               /* 1 if this rank shows the progress on a terminal */
} Scorer;

typedef struct {
    const char *name;             /* name of the task; borrowed */
    TaskKind    kind;
    int64_t     questions, cut;
    double      acc, acc_stderr;  /* share of right answers, and its standard error; NaN with one question */
    /* share of right answers if sums of log probabilities are divided by the lengths of texts, and its standard error;
     * NaN for tasks of continuations */
    double      acc_norm, acc_norm_stderr;
    double      perplexity;       /* with continuations: exp of the mean of -log p of whole texts; else NaN */
    double      centered;         /* tasks of the benchmark CORE: 0 is guessing, 1 is all correct; else NaN */
} TaskScores;

/* Collective. Computes the mean loss over the first `wanted` tokens of data in plain order, in whole samples, at least
 * one. wanted 0: all tokens. end_of_text is the token that divides documents, or -1. is_exact: 1 if the loss must have
 * the same bits for any number of ranks. Returns 0 if stop() ended it. */
int    scorer_loss(const Scorer *s, const Dataset *data, int64_t wanted, int32_t end_of_text, int is_exact,
                   double *loss);

/* Collective. Scores a task. Returns 0 if stop() ended it. */
int    task_score(const Scorer *s, const Task *t, TaskScores *out);
/* Collective. Computes the sums that scores come from. log_p [texts]: log p of the scored tokens. missed [texts]: how
 * many of these are not the likeliest token. Returns 0 if stop() ended it. */
int    task_sums(const Scorer *s, const Task *t, double *log_p, double *missed);
/* Returns CORE, the mean of the centered scores (above guessing) of the tasks of that benchmark, or NaN if no task
 * belongs to it. */
double task_core(const TaskScores *scores, int tasks);

#endif
