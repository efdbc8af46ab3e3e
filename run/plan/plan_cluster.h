/* plan_cluster.h - `train_gpt plan config.json cluster=...` or gpu=...: memory and time of a grid on a machine. A file
 * describes the machine. Also searches the quickest grids on it. Private to the verb (run/verbs/plan.c).
 */
#ifndef TRAIN_GPT_RUN_PLAN_PLAN_CLUSTER_H
#define TRAIN_GPT_RUN_PLAN_PLAN_CLUSTER_H

#include "run/plan/simulate.h"

typedef struct {
    const char *cluster;      /* a name of configs/clusters/, or a file */
    const char *gpu;          /* short name of a card, given instead of cluster; then time and cost of the whole
                               * run are planned, not only a step */
    int         nodes;        /* number of nodes with cards of the kind `gpu`; 0: as in the file of that card */
    double      price;        /* dollars for an hour of one GPU; 0 if not set */
    int         ranks;        /* ranks of the job */
    int         searches, json; /* 1 if search= or json= is set */
    unsigned    held;         /* options that a search does not change: HOLD_... bits */
    double      mtbf_hours;   /* mean time between failures of the whole job; 0 if not set */
} ClusterPlan;

/* Prints the simulated step, or the ten quickest grids, as text or as one JSON object. Every line with a figure
 * contains "simulated". Exit 64 for a faulty cluster, 71 if a stage does not fit in its memory. */
void plan_cluster(const Config *config, ClusterPlan asked);

/* --- the quickest grids of a config on a cluster: search.c -------------------------------------------------------- */

enum { SEARCH_BEST = 10 };

typedef struct {
    Simulated best[SEARCH_BEST]; /* the best grids, the quickest first */
    int64_t   number[SEARCH_BEST]; /* order in which each of the best grids was tried; of equally quick grids the first
                                    * is kept */
    int       count;               /* number of grids in `best` */
    /* number of grids that the rules allow, each tried with a zero_stage and recompute that fit */
    int64_t   allowed;
} Found;

/* Bits for the options that a search keeps as the config sets them. */
enum { HOLD_TENSOR = 1, HOLD_CONTEXT = 2, HOLD_PIPELINE = 4, HOLD_INTERLEAVE = 8, HOLD_REPLICAS = 16,
       HOLD_ZERO_STAGE = 32, HOLD_MICRO_BATCH = 64, HOLD_RECOMPUTE = 128 };
/* Returns the bits of the options that overrides ("parallel.tensor=8") set. */
unsigned search_held(char *const *overrides, int count);

/* Searches the quickest grids. Varies tensor within a node, context, pipeline, interleave, replicas, zero_stage,
 * micro_batch and recompute. A grid is left out if its least time (simulate_least_s) is above that of the tenth found,
 * or if it does not fit in memory. A higher zero_stage or more recompute sends or computes more. So it is tried only if
 * a lower one does not fit. */
Found search(const Config *config, Target on, unsigned held);

/* Returns config with the grid and batch of a simulated step. */
Config search_config(const Config *config, const Simulated *grid);

/* Finds a grid that fits in a GPU's memory, with recompute of whole blocks and the fewest ranks to a copy of the model.
 * Returns 1 and writes the grid to *room if there is one. */
int search_fitting(const Config *config, Target on, Simulated *room);

/* Returns the largest batch.micro_batch that fits in the memory of the cluster's GPUs. Tries only sizes that the rest
 * of the config allows on this number of ranks. micro_batch is 0 if none fits. */
typedef struct { int64_t micro_batch; double memory_bytes; } LargestBatch;
LargestBatch search_largest_batch(const Config *config, Target on);

/* Returns the largest number of ranks, at most `ranks`, that the config allows with its own grid and batch; 0 if
 * none. */
int search_fit(const Config *config, int ranks);

#endif
