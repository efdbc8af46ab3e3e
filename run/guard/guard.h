/* guard.h - keeps wrong numbers out of the weights.
 *
 * The ranks agree on a step's loss and gradient norm before anything is updated. A step that is not finite, or far
 * above the recent losses, is computed once more from the same batches. The same again is the data's or the model's
 * doing, and run.on_nonfinite or run.on_spike decides; anything else is a machine that computes wrongly. The state is
 * equal on all ranks and kept in checkpoints: a run that was stopped decides as one that was not.
 *
 * Wrong numbers that look right are found by doubling. Hashes compare the state that all ranks hold: the working
 * weights and, with zero_stage 0, masters and moments. Every run.verify_every steps a step is computed twice from the
 * same batches, and the gradients' bits compared. Not seen is a bit that flips in the masters or moments of ZeRO-1:
 * they exist once.
 */
#ifndef TRAIN_GPT_RUN_GUARD_GUARD_H
#define TRAIN_GPT_RUN_GUARD_GUARD_H

#include "comm/comm.h"
#include "run/config/config.h"
#include "run/guard/spikes.h"

typedef struct {
    Spikes  spikes;
    int64_t skips;     /* steps left out in a row */
    int64_t rollbacks; /* since a step past `furthest` went well */
    int64_t furthest;  /* the latest step that a rollback gave up, as completed steps before it */
} Guard;

typedef enum { STEP_FINE, STEP_NOT_FINITE, STEP_SPIKE } StepJudgement;
typedef enum { GUARD_UPDATE, GUARD_SKIP, GUARD_ROLLBACK, GUARD_STOP } GuardAct;

/* step counts from 0. Steps of the warm-up are no spikes. */
StepJudgement guard_judge(const Guard *g, const Config *c, int64_t step, double loss, double grad_norm);

/* Decides whether the step updates, is skipped, rolls back or stops the run; counts it, and remembers its loss. */
GuardAct guard_act(Guard *g, const Config *c, int64_t step, double loss, StepJudgement judgement);

/* A sentence on the fault of a step that is not fine, before guard_act. Returns out. */
enum { GUARD_TEXT = 512 };
char *guard_describe(const Guard *g, const Config *c, StepJudgement judgement, double loss, double grad_norm, char out[GUARD_TEXT]);
/* After guard_act has returned GUARD_STOP: the reason, or the options that would avoid it. */
char *guard_advise(const Guard *g, const Config *c, StepJudgement judgement, char out[GUARD_TEXT]);

/* The results of a computed step: loss and norm, the same on all ranks, and this rank's own. */
typedef struct {
    double  loss, grad_norm;
    int     suspect;              /* this rank's own part is not finite */
    int64_t own_grads, grads;     /* hashes of its own gradients, and of the sums it updates with; 0 where they were not asked for */
    int64_t replicas;             /* hash of the state that all ranks hold alike (guard_hash_due) */
    int     replicas_differ;      /* the same on all ranks */
} StepNumbers;

int guard_verify_due(const Config *c, int64_t step);
/* Collective: 1 where both are the same bits on every rank. Else names the ranks whose own part differs; where none
 * does, those with other sums. */
int guard_is_repeated(Comm *comm, const StepNumbers *a, const StepNumbers *b, char out[GUARD_TEXT]);

/* Whether this step compares the state that all ranks hold alike: as often as that costs 0.5 % of the time at most, and
 * at least in every tenth step. It sees differences before the update: with ZeRO the gather after it overwrites a
 * rank's wrong copies of other ranks' pieces, and spreads wrong values of its own piece. */
enum { GUARD_HASH_EVERY = 10, GUARD_HASH_TOKENS = 10000, GUARD_HASH_TOKENS_STAGE_0 = 50000 };
int guard_hash_due(const Config *c, int ranks, int64_t step);
/* Collective: 1 where all ranks bring the same value. Else names the ranks without the majority's value, or all ranks
 * where there is no majority. */
int guard_is_same(Comm *comm, int64_t value, char out[GUARD_TEXT]);
int guard_is_outvoted(Comm *comm, int64_t value); /* Collective: whether it would name this rank */

/* Whether all ranks bring the same hash, from sums alone, so that it travels in a step's one reduction:
 * guard_hash_words fills a rank's words, and guard_hashes_differ looks at their sums over `ranks`. Exact: of 16-bit
 * parts p, ranks * sum p^2 = (sum p)^2 only where all are equal. */
enum { GUARD_HASH_WORDS = 8 };
void guard_hash_words(int64_t hash, int64_t words[GUARD_HASH_WORDS]);
int  guard_hashes_differ(const int64_t sums[GUARD_HASH_WORDS], int ranks);

/* Collective: writes the names of the `marked` ranks ("rank 2 (node7, GPU-...)"), or that the rank is not known. The
 * same on all ranks. */
char *guard_name_ranks(Comm *comm, int marked, char out[GUARD_TEXT]);

#endif
