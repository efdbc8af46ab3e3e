/* plan_cluster.h - `train_gpt plan config.json cluster=...`, or gpu=: what a grid takes on a machine that is not here. Private to
 * the verb (run/verbs/plan.c).
 */
#ifndef TRAIN_GPT_RUN_PLAN_PLAN_CLUSTER_H
#define TRAIN_GPT_RUN_PLAN_PLAN_CLUSTER_H

#include "run/plan/search.h"

typedef struct {
    const char *cluster;      /* a name of configs/clusters/, or a file */
    const char *gpu;          /* in its place: a card's short name, with what its run takes */
    int         nodes;        /* of `gpu`; 0: as the card's file says   */
    double      price;        /* dollars an hour of one `gpu`; 0: not asked */
    int         ranks;
    int         searches, json, zero_bubble;
    unsigned    held;         /* of a search: HOLD_... */
    double      mtbf_hours;   /* of the whole job; 0: not asked */
} ClusterPlan;

/* Prints the simulated step, or the ten quickest grids, as text or as one JSON object. Every line with a figure says
 * "simulated". Exit 64 for a faulty cluster, 71 where a stage has no room in its memory. */
void plan_cluster(const Config *config, ClusterPlan asked);

#endif
