/* plan.h - the memory and work of a run, computed from the very tables it allocates from. `plan config.json` prints
 * them; the banner sums them up. */
#ifndef TRAIN_GPT_RUN_PLAN_PLAN_H
#define TRAIN_GPT_RUN_PLAN_PLAN_H

#include <stdio.h>

#include "model/groups.h"
#include "model/model.h"
#include "run/config/config.h"

/* The ranks that share the work. */
typedef struct {
    int      count;
    CommKind comm;                          /* how they exchange buckets */
    int      stage;                         /* of the pipeline; -1: the one that takes the most memory */
    int      hosts;                         /* they are on; 0: one, as far as is known */
    int      joined;                        /* 1: NCCL is measured in library_bytes; 0: estimated in reserve_bytes */
} PlanRanks;

typedef struct {
    DType     act;
    PlanRanks ranks;
    int64_t   parameters;
    Mesh      mesh;
    int       parts;                        /* of a stage: parallel.interleave */
    int64_t   tokens_per_step, micro_steps; /* of all ranks; micro-batches of each */
    double    flops_per_token;               /* of the model, by formula                      */
    double    step_flops, step_bytes, step_sent; /* of a rank in a step, by the dry run: computed; bytes read and written; bytes sent */
    double    sent[AXES];                        /* of these, by axis                         */
    /* Where a rank computes: a GPU's memory, or the CPU's. */
    size_t    params_bytes, grads_bytes, optimizer_bytes, activation_bytes, scratch_bytes, batch_bytes;
    int       gradient_buffers;             /* parallel.deterministic: of grads_bytes, so many beside the gradients themselves */
    size_t    tree_bytes;                   /* the same: NCCL's device buffers */
    size_t    library_bytes;                /* not ours, measured: see device_overhead_bytes */
    size_t    reserve_bytes;                /* not ours, estimated: later allocations of libraries */
    size_t    device_bytes;                 /* the sum of these; on the CPU, where all memory is the host's, host_bytes and copies_bytes are part of it */
    /* Host memory; pinned on a rank with a GPU. */
    size_t    comm_bytes;                   /* chunks and, on a GPU, whole buckets on their way between ranks */
    size_t    host_copy_bytes;                /* the copy of a rank's state that a checkpoint is written from */
    size_t    ahead_bytes;                  /* batches read before their step */
    size_t    offload_bytes;                /* memory.offload: masters and moments, and their pages */
    size_t    island_bytes;                 /* outer.server: the copy of a round's weights, and what is sent of it */
    size_t    host_bytes;                   /* the sum of these five */
    size_t    copies_bytes;                 /* files of copies in memory, which are not pinned; of device_bytes on the CPU */
    size_t    checkpoint_bytes;             /* one checkpoint on disk */
    size_t    server_bytes;                 /* outer.server: of `serve`, where it runs, of several the first; 0: no islands */
    size_t    follower_bytes;               /* the largest of the other servers; 0: there are none */
} Plan;

/* The model of a run of this config on so many ranks. groups: NULL for a plan, of the stage's first rank. */
ModelSpec plan_model(const Config *config, DType act, int ranks, int stage, const Groups *groups);

/* By dry runs of the model and the batches. act is the resolved precision; scratch is for the threads now set. */
Plan plan_make(const Config *config, DType act, PlanRanks ranks);

/* The largest batch.micro_batch that keeps device_bytes of this config's `plan` within `bytes`; 0 if 1 does not. */
int64_t plan_largest_micro_batch(const Config *config, const Plan *plan, size_t bytes);

/* The rows above as a table; "1.88 GiB". */
void plan_print_memory(FILE *out, const Config *config, const Plan *plan);
typedef struct { char text[40]; } PlanText;
PlanText plan_bytes_text(double bytes);

/* "4 ranks", or "2 groups of 2 ranks": who computes different micro-batches. Returns out. */
char *plan_sharers(int datas, int ranks, char out[64]);

/* parallel.expert: "4 of 8 on each of 2 ranks; room for 160 rows, ..."; "" without. Returns out. */
char *plan_experts(const Config *config, DType act, char out[240]);

/* The lines of a run that finds no memory: the table, and one or two changes that take less. malloc'ed. */
char *plan_memory_advice(const Config *config, const Plan *plan);

/* The verb: table of bytes by category per rank, tokens, steps, FLOPs, estimated time from a 0.1 s probe of matrix
 * products. matmul_flops: of all ranks together; 0 = not measured. memory_bytes: of a rank's device, for the largest
 * micro-batch; 0 = not asked. */
void plan_print(const Config *config, const Plan *plan, double matmul_flops, size_t memory_bytes);

#endif
