/* plan.h - what a run will take, computed from the very tables the run allocates from: `plan config.json` prints it, the banner sums it up.
 */
#ifndef TRAIN_GPT_RUN_PLAN_H
#define TRAIN_GPT_RUN_PLAN_H

#include <stdio.h>

#include "comm/comm.h"
#include "model/model.h"
#include "run/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Who shares the work. */
typedef struct {
    int      count;
    CommKind comm;                          /* how they exchange buckets */
    int      joined;                        /* they have, so what NCCL takes is among library_bytes; else it is estimated */
} PlanRanks;

typedef struct {
    DType     act;
    PlanRanks ranks;
    int64_t   parameters;
    int64_t   tokens_per_step, micro_steps; /* of all ranks; micro-batches of each */
    double    flops_per_token;               /* of the model, by formula                      */
    double    step_flops, step_bytes, step_sent; /* of a rank in a step, by the dry run: computed; bytes read and written; bytes sent */
    /* Where a rank computes: a GPU's memory, or the CPU's. */
    size_t    params_bytes, grads_bytes, optimizer_bytes, activation_bytes, scratch_bytes, batch_bytes;
    int       gradient_buffers;             /* parallel.deterministic: of grads_bytes, so many beside the gradients themselves */
    size_t    tree_bytes;                   /* the same: what NCCL receives */
    size_t    library_bytes;                /* not ours, measured: see device_overhead_bytes */
    size_t    reserve_bytes;                /* not ours, estimated: what libraries take later */
    size_t    device_bytes;                 /* the sum of these; on the CPU, where all memory is the host's, host_bytes is part of it */
    /* Host memory, a GPU's rank has it pinned. */
    size_t    comm_bytes;                   /* chunks and, on a GPU, whole buckets on their way between ranks */
    size_t    host_copy_bytes;                /* the copy of a rank's state that a checkpoint is written from */
    size_t    ahead_bytes;                  /* batches read before their step */
    size_t    host_bytes;                   /* the sum of these three */
    size_t    checkpoint_bytes;             /* one checkpoint on disk */
} Plan;

/* The model that a run of this config has, with so many ranks; comm may be NULL, for a plan. */
ModelSpec plan_model(const Config *config, DType act, int ranks, Comm *comm);

/* By dry runs of the model and the batches. act is the resolved precision; scratch is for the threads now set. */
Plan plan_make(const Config *config, DType act, PlanRanks ranks);

/* The largest batch.micro_batch with which `plan`, of this config, keeps device_bytes within `bytes`; 0 if not even one sequence does. */
int64_t plan_largest_micro_batch(const Config *config, const Plan *plan, size_t bytes);

/* The rows above as a table; "1.88 GiB". */
void plan_print_memory(FILE *out, const Config *config, const Plan *plan);
typedef struct { char text[40]; } PlanText;
PlanText plan_bytes_text(double bytes);

/* What a run that finds no memory should say: the table, and the two changes that cost least. malloc'ed lines. */
char *plan_memory_advice(const Config *config, const Plan *plan);

/* The verb: table of bytes by category per rank, tokens, steps, FLOPs, estimated time from a 0.1 s probe of matrix products.
 * matmul_flops: of all ranks together; 0 = not measured. memory_bytes: of a rank's device, for the largest micro-batch; 0 = not asked. */
void plan_print(const Config *config, const Plan *plan, double matmul_flops, size_t memory_bytes);

#ifdef __cplusplus
}
#endif
#endif
