/* plan_cluster.h - `train_gpt plan config.json cluster=...` or gpu=...: memory and time of a grid on a machine
 * described in a file. Private to the verb (run/verbs/plan.c).
 */
#ifndef TRAIN_GPT_RUN_PLAN_PLAN_CLUSTER_H
#define TRAIN_GPT_RUN_PLAN_PLAN_CLUSTER_H

#include "run/plan/search.h"

typedef struct {
    const char *cluster;      /* a name of configs/clusters/, or a file */
    const char *gpu;          /* or a card's short name: then the whole run is printed, too */
    int         nodes;        /* with gpu; 0: as in the card's file */
    double      price;        /* dollars an hour of one `gpu`; 0 if not set */
    int         ranks;        /* ranks of the job */
    int         searches, json, zero_bubble; /* 1 if the verb's key is set: search, json, zero_bubble */
    unsigned    held;         /* options that a search keeps: HOLD_... */
    double      mtbf_hours;   /* mean time between failures of the whole job; 0 if not set */
} ClusterPlan;

/* Prints the simulated step, or the ten quickest grids, as text or as one JSON object. Every line with a figure
 * contains "simulated". Exit 64 for a faulty cluster, 71 if a stage does not fit in its memory. */
void plan_cluster(const Config *config, ClusterPlan asked);

#endif
