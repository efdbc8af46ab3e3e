/* plan_gpu.h - a whole run on a kind of GPU: `train_gpt plan config.json gpu=h100`. Private to run/plan/plan_cluster.c. */
#ifndef TRAIN_GPT_RUN_PLAN_PLAN_GPU_H
#define TRAIN_GPT_RUN_PLAN_PLAN_GPU_H

#include "run/plan/plan_cluster.h"

/* The largest batch.micro_batch that has room in the cluster's memory, of those that the rest of the config allows on
 * so many ranks; 0: none. */
typedef struct { int64_t micro_batch; double memory_bytes; } LargestBatch;
LargestBatch plan_gpu_largest(const Config *config, DType act, int ranks, const Cluster *cluster);

/* What the steps of a run add up to: room, time, cost, tokens a parameter, epochs, disk. As lines, or as keys of an
 * object. */
void plan_gpu_print(const Config *config, DType act, const ClusterPlan *asked, const Cluster *cluster,
                    const Simulated *s);
void plan_gpu_json(cJSON *object, const Config *config, DType act, const ClusterPlan *asked, const Cluster *cluster,
                   const Simulated *s);

#endif
