/* guard.h - keeps wrong numbers out of the weights.
 *
 * The ranks agree on the loss and gradient norm of a step before anything is updated. A step whose numbers are not
 * finite, or whose loss is far above the recent ones, is computed once more from the same batches. If the result is the
 * same, the data or the model is the cause, and run.on_nonfinite or run.on_spike decides. If it differs, a machine
 * computes wrongly. The state of the guard is equal on all ranks and kept in checkpoints, so a run that was stopped
 * decides like one that was not.
 *
 * Wrong numbers that look right are found by comparing two results. Hashes compare the state that all ranks hold: the
 * working weights and, with zero_stage 0, masters and moments. Every run.verify_every steps a step is computed twice
 * from the same batches, and the bits of the gradients are compared. A bit that flips in the masters or moments of
 * ZeRO-1 is not seen, because they exist only once.
 */
#ifndef TRAIN_GPT_RUN_GUARD_GUARD_H
#define TRAIN_GPT_RUN_GUARD_GUARD_H

#include "comm/comm.h"
#include "run/config/config.h"
#include "run/guard/spikes.h"

typedef struct {
    Spikes  spikes;
    int64_t skips;     /* skipped steps in a row */
    int64_t rollbacks; /* rollbacks since a step after `furthest` was fine */
    int64_t furthest;  /* latest step that a rollback discarded, counted from 0 */
} Guard;

typedef enum { STEP_FINE, STEP_NOT_FINITE, STEP_SPIKE } StepJudgement;
typedef enum { GUARD_UPDATE, GUARD_SKIP, GUARD_ROLLBACK, GUARD_STOP } GuardAct;

/* Judges the numbers of a step. step counts from 0. A step of the warm-up is never a spike. */
StepJudgement guard_judge(const Guard *g, const Config *c, int64_t step, double loss, double grad_norm);

/* Decides whether the step updates, is skipped, rolls back or stops the run. Counts the step and stores its loss. */
GuardAct guard_act(Guard *g, const Config *c, int64_t step, double loss, StepJudgement judgement);

/* Writes a sentence about the fault of a step that is not fine. Called before guard_act. Returns out. */
enum { GUARD_TEXT = 512 };
char *guard_describe(const Guard *g, const Config *c, StepJudgement judgement, double loss, double grad_norm, char out[GUARD_TEXT]);
/* Writes the reason for the stop, or the options that would avoid it. Called after guard_act has returned GUARD_STOP.
 * Returns out. */
char *guard_advise(const Guard *g, const Config *c, StepJudgement judgement, char out[GUARD_TEXT]);

/* The results of a computed step. loss and grad_norm are equal on all ranks. */
typedef struct {
    double  loss, grad_norm;
    int     suspect;              /* the gradients of this rank are not finite */
    int64_t own_grads, grads;     /* hashes: gradients of this rank; sums that it updates with; 0: not requested */
    int64_t replicas;             /* hash of the state that all ranks hold (guard_hash_due) */
    int     replicas_differ;      /* equal on all ranks */
} StepNumbers;

int guard_verify_due(const Config *c, int64_t step);
/* Collective. Returns 1 if a and b have the same bits on every rank. Else writes the names of the ranks whose own
 * gradients differ to out. If none differs, it names those with other sums. */
int guard_is_repeated(Comm *comm, const StepNumbers *a, const StepNumbers *b, char out[GUARD_TEXT]);

/* Returns 1 if this step compares the state that all ranks hold. That happens as often as it costs 0.5 % of the time at
 * most, and at least in every tenth step. The comparison comes before the update. With ZeRO the gather after the update
 * overwrites wrong copies of pieces that other ranks own, and spreads wrong values of the piece that a rank owns. */
enum { GUARD_HASH_EVERY = 10, GUARD_HASH_TOKENS = 10000, GUARD_HASH_TOKENS_STAGE_0 = 50000 };
int guard_hash_due(const Config *c, int ranks, int64_t step);
/* Collective. Returns 1 if all ranks give the same value. Else writes the names of the ranks without the value of the
 * majority to out, or of all ranks if there is no majority. */
int guard_is_same(Comm *comm, int64_t value, char out[GUARD_TEXT]);
int guard_is_outvoted(Comm *comm, int64_t value); /* collective; returns 1 if guard_is_same would name this rank */

/* A comparison of hashes that needs only sums, so that the one reduction of a step carries it. guard_hash_words fills
 * the words of a rank. guard_hashes_differ returns 1 if the hashes of the ranks differ, from sums of the words over
 * `ranks`. It is exact: for 16-bit parts p, ranks * sum p^2 = (sum p)^2 only if all are equal. */
enum { GUARD_HASH_WORDS = 8 };
void guard_hash_words(int64_t hash, int64_t words[GUARD_HASH_WORDS]);
int  guard_hashes_differ(const int64_t sums[GUARD_HASH_WORDS], int ranks);

/* Collective. Writes the names of the ranks with `marked` set ("rank 2 (node7, GPU-...)"), or that the rank is not
 * known. All ranks get the same text. Returns out. */
char *guard_name_ranks(Comm *comm, int marked, char out[GUARD_TEXT]);

#endif
