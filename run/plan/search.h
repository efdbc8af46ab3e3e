/* search.h - the quickest grids of a config on a cluster. */
#ifndef TRAIN_GPT_RUN_PLAN_SEARCH_H
#define TRAIN_GPT_RUN_PLAN_SEARCH_H

#include "run/plan/simulate.h"

enum { SEARCH_BEST = 10 };

typedef struct {
    Simulated best[SEARCH_BEST]; /* the quickest first */
    int64_t   number[SEARCH_BEST]; /* its place among all: of equally quick ones the first */
    int       count;
    int64_t   allowed;             /* grids that the rules allow; each is tried with the zero_stage and recompute that fit */
} Found;

/* Bits for the options that a search leaves as the config sets them. */
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
/* Those of them that overrides ("parallel.tensor=8") set. */
unsigned search_held(char *const *overrides, int count);

/* Over tensor within a node, context, pipeline, interleave, replicas, zero_stage, micro_batch and recompute. A grid is
 * left out where its least time (simulate_least_s) is above that of the tenth found, or the memory is too small; and a
 * higher zero_stage, or more recompute, where less of it fits: it sends or computes more. */
Found search(const Config *config, DType act, int ranks, const Cluster *cluster, unsigned held, int zero_bubble);

/* The config with this grid. */
Config search_config(const Config *config, const Simulated *grid);

/* A grid that has room in a GPU's memory, with block recompute and the fewest ranks to a model; returns whether there is
 * one. */
int search_room(const Config *config, DType act, int ranks, const Cluster *cluster, Simulated *room);

/* The most ranks, at most `ranks`, that the config allows with its own grid and batch; 0: none. */
int search_fit(const Config *config, int ranks);

#endif
