/* simulate.h - simulates a step of a grid of ranks on a cluster, with clocks for its pipeline stages.
 *
 * Nothing of the program is written a second time. The model's own step runs dry on one rank of each stage that differs
 * (model_dry). It records operations, collectives and waits in a ledger, in order. The work lists of model/pipeline.h
 * have the order in which stages compute and wait for each other's messages. Only the durations come from a model:
 * run/plan/cluster.h.
 *
 *   Operations: a stage does one thing at a time.
 *   Collectives of the axes tensor and context: the stage does not compute meanwhile.
 *   Collectives of the axes shard and replica: they follow each other on a clock of their own, and a wait ends when its
 *   collective has ended. On clusters without overlap the stage does not compute meanwhile.
 *   Messages between stages: a message leaves when its receiver has begun the work before the one that receives it.
 */
#ifndef TRAIN_GPT_RUN_PLAN_SIMULATE_H
#define TRAIN_GPT_RUN_PLAN_SIMULATE_H

#include "run/plan/cluster.h"
#include "run/plan/plan.h"

typedef struct {
    Mesh    mesh;
    int     parts, expert_ranks, zero_stage; /* parallel.interleave, parallel.expert, parallel.zero_stage */
    /* sequences of a micro-batch; micro-batches in a step of a group of ranks with the same data */
    int64_t micro_batch, micro_batches;
    int     recompute;             /* value of memory.recompute */
    double  step_s;                /* seconds of one step, in the middle of a run */
    double  compute_s;             /* seconds of step_s spent in operations; mean over the stages */
    double  exposed_s[AXES];       /* seconds of step_s in collectives, waiting for them or for other stages, by axis */
    double  sent[AXES];            /* bytes that a rank of the first stage sends in a step, by axis */
    double  bubble;                /* share of the step that stages wait: exposed_s[AXIS_STAGE] / step_s */
    double  memory_bytes;          /* memory of a rank, in the stage that needs the most */
    int     fullest;               /* the pipeline stage that needs the most memory */
    ModelBytes memory;             /* parts of memory_bytes that the model itself allocates */
    /* tokens/s of all ranks; TFLOP/s of a GPU and share of its peak, from the model's FLOPs (model_flops_per_token) */
    double  tokens_per_s, tflops_per_gpu, mfu;
} Simulated;

/* The job and machine that a config is simulated on: the type of activations, the number of ranks, and the cluster
 * (borrowed). The number of ranks is a multiple of what the grid needs. */
typedef struct { DType act; int ranks; const Cluster *cluster; } Target;

/* Simulates a step with the grid and batch of the config. */
Simulated simulate(const Config *config, Target on);

/* Simulates only the memory of a rank. Sets memory_bytes, fullest and memory. */
Simulated simulate_memory(const Config *config, Target on);

/* Returns a time that no grid of this config on this number of ranks can beat. It consists of the operations at the
 * best rate, and the time that stages wait. */
double simulate_least_s(const Config *config, Target on);

/* Returns the first-order best time between saves, and the share of time in which training runs (Young, "A first order
 * approximation to the optimum checkpoint interval", 1974). Training stops for save_s at a save, which is on disk
 * write_s later. Every mtbf_s the job fails, and restart_s and the steps since the last save on disk are lost. */
typedef struct { double save_s, write_s, interval_s, goodput; } Goodput;
Goodput goodput_of(double save_s, double write_s, double restart_s, double mtbf_s);

/* Returns an upper bound of the scratch memory of a CUDA build. It is the same on every build: the sum of what all
 * operations allocate, as if all did so at once (gpu_scratch.c). */
size_t gpu_scratch_bytes(const ModelSpec *spec);

#endif
