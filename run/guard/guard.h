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
 *
 *   fp16 gradients overflow: GUARD_SKIP, and half the loss scale.
 *   The weights of the ranks differ: GUARD_STOP.
 *   Every run.verify_every steps: the step is computed again, and a third time if the results differ. The result that
 *   came twice counts. Three different results, or weights that differ after that: GUARD_STOP.
 *   Loss or norm not finite, or a spike: the step is computed again once. Then run.on_nonfinite or run.on_spike gives
 *   GUARD_STOP, GUARD_SKIP, GUARD_ROLLBACK or GUARD_UPDATE.
 *
 * guard_step decides exit 76 (EXIT_NUMERIC) of a step by returning GUARD_STOP, and train_gpt.cu then ends the job.
 * train_gpt.cu calls guard_compare before a save. A state that is not finite ends a save: checkpoint.h.
 */
#ifndef TRAIN_GPT_RUN_GUARD_GUARD_H
#define TRAIN_GPT_RUN_GUARD_GUARD_H

#include "comm/comm.h"
#include "model/precision.h"
#include "run/config/config.h"

/* --- spikes ------------------------------------------------------------------------------------------------------- */

/* A spike is a loss far above the recent ones: above spikes_limit. Single outliers and losses that are no numbers do
 * not disturb this limit. A resume does not either, because the only state is a window of losses, which a checkpoint
 * holds. */
enum { SPIKES_WINDOW = 128, SPIKES_LEAST = 32 }; /* number of recent losses in the window; least number of losses for
                                                  * which spikes_limit is finite */

typedef struct {
    int    count;
    double loss[SPIKES_WINDOW]; /* the latest finite losses, oldest first */
} Spikes;

/* Returns median + max(threshold * 1.4826 * MAD, SPIKES_RISE). A loss above it is a spike. MAD is the median of
 * distances from the median. 1.4826 MAD estimates the standard deviation of normal noise and ignores outliers
 * (Rousseeuw and Croux 1993). Infinite with fewer than SPIKES_LEAST losses, or for threshold 0. */
double spikes_limit(const Spikes *s, double threshold);
double spikes_median(const Spikes *s);           /* returns the median of the window; NaN if it is empty */
void   spikes_add(Spikes *s, double loss);       /* adds a loss to the window, unless the loss is not finite */

/* --- what is done about a step ------------------------------------------------------------------------------------ */

typedef struct {
    Spikes  spikes;
    int64_t skips;     /* skipped steps in a row */
    int64_t rollbacks; /* number of rollbacks since a step later than `furthest` was applied */
    int64_t furthest;  /* latest step that a rollback discarded, counted from 0 */
} Guard;

typedef enum { STEP_FINE, STEP_NOT_FINITE, STEP_SPIKE } StepJudgement;
typedef enum { GUARD_UPDATE, GUARD_SKIP, GUARD_ROLLBACK, GUARD_STOP } GuardAct;

/* Judges loss and gradient norm of a step: fine, not finite, or a spike, which is a loss far above the recent ones.
 * step counts from 0. A step of the warm-up is never a spike. */
StepJudgement guard_judge(const Guard *g, const Config *c, int64_t step, double loss, double grad_norm);

/* Decides what is done about a step, and returns it: update the weights, skip the step, roll back or stop the run.
 * Counts skips and rollbacks in g, and stores the loss. */
GuardAct guard_act(Guard *g, const Config *c, int64_t step, double loss, StepJudgement judgement);

/* The results of a computed step. loss and grad_norm are equal on all ranks. */
typedef struct {
    double  loss, grad_norm;
    int     suspect;              /* 1 if the gradients of this rank are not finite */
    /* Hashes of this rank's own gradients, and of the summed gradients that it updates with; 0: not requested. */
    int64_t own_grads, grads;
    int64_t replicas;             /* hash of the state that all ranks hold, such as the working weights
                                   * (guard_hash_due) */
    /* 1 if ranks hold different state that should be equal; all ranks have the same value here */
    int     replicas_differ;
} StepNumbers;

enum { GUARD_TEXT = 512 };

int guard_verify_due(const Config *c, int64_t step);
/* Collective. Compares the results of two computations of one step. Returns 1 if a and b have the same bits on every
 * rank. Otherwise returns 0 and writes to out the names of the ranks whose own gradients differ. If none differs, it
 * names the ranks whose summed gradients differ. */
int guard_is_repeated(Comm *comm, const StepNumbers *a, const StepNumbers *b, char out[GUARD_TEXT]);

/* Returns 1 if this step compares the state that all ranks hold. The comparison is made as often as it costs at most
 * 0.5 % of the time, and at least in every tenth step. It must come before the update. With ZeRO each rank owns a part
 * of the weights, and the gather after the update sends every part to all ranks. That gather would overwrite a wrong
 * copy of a part, and would spread a wrong value from the rank that owns it. */
enum { GUARD_HASH_EVERY = 10, GUARD_HASH_TOKENS = 10000, GUARD_HASH_TOKENS_STAGE_0 = 50000 };
int guard_hash_due(const Config *c, int ranks, int64_t step);
/* Collective. Returns 1 if all ranks give the same value. Otherwise returns 0, and writes to out the names of the ranks
 * whose value is not that of the majority. Without a majority it names all ranks. */
int guard_is_same(Comm *comm, int64_t value, char out[GUARD_TEXT]);
int guard_is_outvoted(Comm *comm, int64_t value); /* collective; returns 1 if the ranks have different values, and that
                                                   * of this rank is not the value of more than half of them */

/* A comparison of hashes that needs only sums, so that the one reduction of a step carries it. guard_hash_words fills
 * the words of a rank. guard_hashes_differ returns 1 if the hashes of the ranks differ, from sums of the words over
 * `ranks`. It is exact: for 16-bit parts p, ranks * sum p^2 = (sum p)^2 only if all are equal. */
enum { GUARD_HASH_WORDS = 8 };
void guard_hash_words(int64_t hash, int64_t words[GUARD_HASH_WORDS]);
int  guard_hashes_differ(const int64_t sums[GUARD_HASH_WORDS], int ranks);

/* Collective. Writes the names of the ranks with `marked` set ("rank 2 (node7, GPU-...)"), or that the rank is not
 * known. All ranks get the same text. Returns out. */
char *guard_name_ranks(Comm *comm, int marked, char out[GUARD_TEXT]);

/* --- the judgement of a computed step before it reaches the weights ----------------------------------------------- */

typedef struct Run Run;

/* Callbacks that compute a step once more, from the same batches. */
typedef struct {
    void      (*rewind)(Run *run, int64_t step);
    void      (*compute)(Run *run);
    /* collective: returns the numbers of the step, reduced over all ranks */
    StepNumbers (*numbers)(Run *run, int64_t step);
    /* returns 0 after a request to stop the run; steps are then not computed again for verification */
    int       (*has_time)(Run *run);
    Run        *run;
} Again;

enum { GUARD_SAID = 2 * GUARD_TEXT };

/* Collective. Judges a step before its update is applied, and returns what to do. Replaces *n with the results that are
 * used, of the first or a later computation. said gets a line for the log, or "". With GUARD_STOP it gets the reason
 * for exit 76, which names step and ranks. shares_moments: all ranks hold equal optimizer moments, too. */
GuardAct guard_step(Guard *g, LossScale *scale, DType act, const Config *c, Comm *comm, int64_t step, StepNumbers *n,
                    Again again, int shares_moments, char said[GUARD_SAID]);

/* Collective. Returns 1 if all ranks hold the same weights, or 0 with the reason for exit 76 in said. replicas: this
 * rank's hash of the state that must be equal on all ranks. shares_moments: the hash includes the optimizer moments. */
int guard_compare(Comm *comm, int64_t step, int64_t replicas, int shares_moments, char said[GUARD_SAID]);

#endif
