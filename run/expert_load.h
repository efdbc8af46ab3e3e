/* expert_load.h - measures how evenly the experts of each block share the assignments of a step: for metrics, for the
 * balance of experts, and for a warning if few experts have nearly all. */
#ifndef TRAIN_GPT_RUN_EXPERT_LOAD_H
#define TRAIN_GPT_RUN_EXPERT_LOAD_H

#include <stdint.h>

#include "comm/comm.h"
#include "model/model.h"

typedef struct {
    int64_t *counts;          /* owned [n_layer * experts]: assignments in the step, over all ranks; NULL: no experts */
    double   busiest;         /* largest share of the assignments of one block that one expert had */
    double   entropy;         /* entropy of the shares, mean over blocks: 1 if all are equal, 0 if one expert has all */
    int64_t  rounds;          /* most rounds of a block on any rank (model/experts.h); 0: undivided experts */
    int      has_warned;
} ExpertLoad;

/* Collective. Called after the forwards of a step. Adds up the counts of the ranks. Rank 0 warns once a run if experts
 * collapse. */
void expert_load_take(ExpertLoad *l, Model *m, Comm *all, int64_t step);
void expert_load_drop(ExpertLoad *l);
/* The shares of n experts: share and index of the busiest expert, entropy, and the number of equal experts that would
 * have this entropy. counts [n] are divided by their sum. */
typedef struct { double busiest, entropy, effective; int64_t expert; } ExpertShares;
ExpertShares expert_shares(const int64_t *counts, int64_t n);

#endif
