/* plan_gpu.h - a whole run on a kind of GPU: `train_gpt plan config.json gpu=h100`. Private to
 * run/plan/plan_cluster.c. */
#ifndef TRAIN_GPT_RUN_PLAN_PLAN_GPU_H
#define TRAIN_GPT_RUN_PLAN_PLAN_GPU_H

#include "run/plan/plan_cluster.h"

/* Returns the largest batch.micro_batch that fits in the cluster's memory, of those that the rest of the config allows
 * on so many ranks; 0 if none fits. */
typedef struct { int64_t micro_batch; double memory_bytes; } LargestBatch;
LargestBatch plan_gpu_largest(const Config *config, DType act, int ranks, const Cluster *cluster);

/* Prints the totals of a run: memory, time, cost, tokens a parameter, epochs, disk. plan_gpu_json adds them to an
 * object as keys. */
void plan_gpu_print(const Config *config, DType act, const ClusterPlan *asked, const Cluster *cluster,
                    const Simulated *s);
void plan_gpu_json(cJSON *object, const Config *config, DType act, const ClusterPlan *asked, const Cluster *cluster,
                   const Simulated *s);

#endif
