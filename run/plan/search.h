/* search.h - searches the quickest grids of a config on a cluster. */
#ifndef TRAIN_GPT_RUN_PLAN_SEARCH_H
#define TRAIN_GPT_RUN_PLAN_SEARCH_H

#include "run/plan/simulate.h"

enum { SEARCH_BEST = 10 };

typedef struct {
    Simulated best[SEARCH_BEST]; /* quickest first */
    int64_t   number[SEARCH_BEST]; /* place of each in the order of trial: of equally quick grids the first is kept */
    int       count;               /* grids in best */
    int64_t   allowed;             /* grids that the rules allow; each is tried with the zero_stage and recompute that
                                    * fit */
} Found;

/* Bits for the options that a search keeps as the config sets them. */
enum {
    HOLD_TENSOR = 1,
    HOLD_CONTEXT = 2,
    HOLD_PIPELINE = 4,
    HOLD_INTERLEAVE = 8,
    HOLD_REPLICAS = 16,
    HOLD_ZERO_STAGE = 32,
    HOLD_MICRO_BATCH = 64,
    HOLD_RECOMPUTE = 128
};
/* Returns the bits of the options that overrides ("parallel.tensor=8") set. */
unsigned search_held(char *const *overrides, int count);

/* Searches tensor within a node, context, pipeline, interleave, replicas, zero_stage, micro_batch and recompute. A grid
 * is left out if its least time (simulate_least_s) is above that of the tenth found, or if it does not fit in memory. A
 * higher zero_stage or more recompute sends or computes more, so it is tried only if less of it does not fit. */
Found search(const Config *config, DType act, int ranks, const Cluster *cluster, unsigned held, int zero_bubble);

/* Returns the config with this grid. */
Config search_config(const Config *config, const Simulated *grid);

/* Finds a grid that fits in a GPU's memory, with block recompute and the fewest ranks to a model. Returns 1 if there is
 * one. */
int search_room(const Config *config, DType act, int ranks, const Cluster *cluster, Simulated *room);

/* Returns the most ranks, at most `ranks`, that the config allows with its own grid and batch; 0 if none. */
int search_fit(const Config *config, int ranks);

#endif
