/* expert_load.h - how evenly the experts of each block share a step's assignments, for metrics, the balance of experts, and a warning
 * when few experts have nearly all. */
#ifndef TRAIN_GPT_RUN_EXPERT_LOAD_H
#define TRAIN_GPT_RUN_EXPERT_LOAD_H

#include <stdint.h>

#include "comm/comm.h"
#include "model/model.h"

typedef struct {
    int64_t *counts;          /* owned [n_layer * experts]: assignments of the step, over all ranks; NULL: a model without experts */
    double   busiest;         /* the largest share of a block's assignments that one expert had */
    double   entropy;         /* of the shares, the mean over blocks: 1 where all are equal, 0 where one expert has all */
    int64_t  rounds;          /* the most that a block of any rank took (model/expert_ranks.h); 0: each rank has all experts */
    int      has_warned;
} ExpertLoad;

/* Collective. After a step's forwards: adds the ranks' counts up; rank 0 warns, once a run, of experts that collapse. */
void expert_load_take(ExpertLoad *l, Model *m, Comm *all, int64_t step);
void expert_load_drop(ExpertLoad *l);
/* The share of the busiest expert, and the number of equal experts that would have this entropy. shares sum to 1; counts [n]. */
typedef struct { double busiest, entropy, effective; int64_t expert; } ExpertShares;
ExpertShares expert_shares(const int64_t *counts, int64_t n);

#endif
