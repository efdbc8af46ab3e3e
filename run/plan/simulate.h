/* simulate.h - a step of a grid on a cluster that is not here, on clocks.
 *
 * Nothing of the program is written a second time. The model's own step runs dry on one rank of each stage that differs
 * (model_dry) and leaves its history in a ledger: operations, collectives, waits, in order. The work lists of
 * model/work.h say in which order the stages compute, and wait for each other's messages. Only the durations are a
 * model: run/plan/cluster.h.
 *
 *   compute    a stage does one thing at a time
 *   tensor, context   collectives keep it from computing
 *   shard, replica    collectives follow each other on a clock of their own, from when they start; a wait ends when
 *                     theirs has (clusters that do not overlap: they keep it from computing)
 *   stage      a message leaves when its receiver has begun the work before the one that takes it
 */
#ifndef TRAIN_GPT_RUN_PLAN_SIMULATE_H
#define TRAIN_GPT_RUN_PLAN_SIMULATE_H

#include "run/plan/cluster.h"
#include "run/plan/plan.h"

typedef struct {
    Mesh    mesh;
    int     parts, expert_ranks, zero_stage;
    int64_t micro_batch, micro_batches; /* sequences; of a data index and step */
    int     recompute;
    double  step_s;                /* of one step among many                           */
    double  compute_s;             /* of it, in operations; the mean over the stages   */
    double  exposed_s[AXES];       /* of it, in collectives or waiting for them; of the stage axis: waiting for other stages */
    double  sent[AXES];            /* bytes that a rank of the first stage sends       */
    double  bubble;                /* exposed_s[AXIS_STAGE] / step_s                   */
    double  memory_bytes;          /* of the fullest stage                             */
    int     fullest;               /* that stage                                       */
    ModelBytes memory;             /* of the fullest stage, in parts                   */
    double  tokens_per_s, tflops_per_gpu, mfu; /* of all ranks; of the model's FLOPs (model_flops_per_token) */
} Simulated;

/* The grid and the batch are the config's; ranks is a multiple of what the grid takes. zero_bubble: backward in two
 * halves (Qi et al., "Zero bubble pipeline parallelism", arXiv:2401.10241): a stage computes the gradients of weights
 * where it would wait. */
Simulated simulate(const Config *config, DType act, int ranks, const Cluster *cluster, int zero_bubble);

/* Its memory alone: memory_bytes, fullest, memory. */
Simulated simulate_memory(const Config *config, DType act, int ranks, const Cluster *cluster);

/* No grid of this config on so many ranks is quicker: its operations at the best rate, and the time that stages wait. */
double simulate_least_s(const Config *config, DType act, int ranks, const Cluster *cluster, int zero_bubble);

/* The first and best time between saves, and the part of the time in which training goes on (Young, "A first order
 * approximation to the optimum checkpoint interval", 1974): training stands still for save_s at a save, which is on disk
 * write_s later, and after each failure of the job, every mtbf_s, restart_s and the steps since are lost. */
typedef struct { double save_s, write_s, interval_s, goodput; } Goodput;
Goodput goodput_of(double save_s, double write_s, double restart_s, double mtbf_s);

#endif
