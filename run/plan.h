/* plan.h - what a run will take, computed from the very tables the run allocates from: `plan config.json` prints it, the banner sums it up.
 */
#ifndef TRAIN_GPT_RUN_PLAN_H
#define TRAIN_GPT_RUN_PLAN_H

#include <stdio.h>

#include "core/layout.h"
#include "layers/gpt.h"
#include "run/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int64_t parameters;
    int64_t tokens_per_step, micro_steps;   /* of all ranks; micro-batches of each */
    double  flops_per_token;
    size_t  params_bytes, grads_bytes, optimizer_bytes, activation_bytes, scratch_bytes, batch_bytes, comm_bytes, library_bytes;
    size_t  comm_staging_bytes;             /* host memory: buckets on their way between ranks that share a GPU */
    size_t  staging_bytes;                  /* host memory: the copy of a rank's state that a checkpoint is written from */
    size_t  total_bytes;                    /* the peak of one rank on its device; on the CPU with staging_bytes */
    size_t  checkpoint_bytes;               /* one checkpoint on disk */
} Plan;

/* By dry runs of gpt_create, optimizer_create and the batches. act is the resolved precision; scratch is for the threads now set. */
Plan plan_make(const Config *config, DType act, int ranks);

/* The largest batch.micro_batch of this config whose peak stays within `bytes` per rank; 0 if not even one sequence does. */
int64_t plan_largest_micro_batch(const Config *config, DType act, int ranks, size_t bytes);

/* The rows above as a table; "1.88 GiB". */
void plan_print_memory(FILE *out, const Config *config, const Plan *plan, DType act, int ranks);
typedef struct { char text[40]; } PlanText;
PlanText plan_bytes_text(double bytes);

/* The verb: table of bytes by category per rank, tokens, steps, FLOPs, estimated time from a 0.1 s probe of matrix products.
 * matmul_flops: of all ranks together; 0 = not measured. memory_bytes: of a rank's device, for the largest micro-batch; 0 = not asked. */
void plan_print(const Config *config, const Plan *plan, DType act, int ranks, double matmul_flops, size_t memory_bytes);

#ifdef __cplusplus
}
#endif
#endif
