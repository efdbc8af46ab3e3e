/* plan.h - the memory and work of a run, computed from the same tables that the run allocates from. `plan config.json`
 * prints them; the banner prints a summary.
 */
#ifndef TRAIN_GPT_RUN_PLAN_PLAN_H
#define TRAIN_GPT_RUN_PLAN_PLAN_H

#include <stdio.h>

#include "core/format.h"
#include "model/optimizer.h"
#include "run/config/spec.h"

/* The ranks of the job that a plan is for. */
typedef struct {
    int      count;  /* number of ranks */
    CommKind comm;   /* library that sums gradients between the ranks */
    int      stage;  /* pipeline stage to plan for; -1: the stage with the most memory */
    int      hosts;  /* hosts that the ranks are on; 0 if not known, which counts as one host */
    int      joined; /* 1: library_bytes includes the measured memory of NCCL; 0: reserve_bytes has an estimate of it */
} PlanRanks;

typedef struct {
    DType     act;                          /* type of activations */
    PlanRanks ranks;
    int64_t   parameters;                   /* parameters of the model */
    Mesh      mesh;
    int       parts;                        /* parts of the model on each pipeline stage: parallel.interleave */
    int64_t   tokens_per_step, micro_steps; /* tokens of all ranks; micro-batches of each rank */
    double    flops_per_token;              /* FLOPs of the model for a token, computed by a formula */
    /* work of one rank in a step: FLOPs, bytes read and written, bytes sent; counted by a dry run, which computes
     * nothing */
    double    step_flops, step_bytes, step_sent;
    double    sent[AXES];                   /* bytes that one rank sends in a step, by axis of the grid */

    /* The next fields, up to device_bytes, are the memory that a rank computes in: a GPU's, or the CPU's. */
    size_t    params_bytes, grads_bytes, optimizer_bytes, activation_bytes, scratch_bytes, batch_bytes;
    /* number of buffers in grads_bytes besides the gradients, for sums in a fixed order (parallel.deterministic) */
    int       gradient_buffers;
    size_t    tree_bytes;        /* parallel.deterministic: device buffers of NCCL for sums in a fixed order */
    size_t    library_bytes;     /* measured: device memory that libraries and other programs use */
    size_t    reserve_bytes;     /* estimated: device memory that libraries allocate later */
    /* device memory in all; on the CPU, where all memory is the host's, it includes host_bytes and copies_bytes */
    size_t    device_bytes;

    /* The next fields, up to host_bytes, are host memory; on a rank with a GPU it is pinned. */
    size_t    comm_bytes;        /* buffers for exchange between ranks: chunks and, on a GPU, whole buckets */
    size_t    host_copy_bytes;   /* copy of the state of a rank, from which a checkpoint is written */
    size_t    ahead_bytes;       /* batches that are read ahead of their step */
    /* memory.offload: fp32 weights (masters), moments, and the buffers through which they are copied */
    size_t    offload_bytes;
    /* memory for outer.server: weights at the start of a round, their changes, buffers of the connections */
    size_t    island_bytes;
    size_t    host_bytes;        /* host memory in all: comm_bytes + host_copy_bytes + ahead_bytes + offload_bytes +
                                  * island_bytes */
    /* checkpoints that are kept in memory (checkpoint.memory_every), not pinned; on the CPU part of device_bytes */
    size_t    copies_bytes;
    size_t    checkpoint_bytes;  /* size of one checkpoint on disk */
    /* memory of the first server (`train_gpt serve`), which leads; 0 without outer.server */
    size_t    server_bytes;
    size_t    follower_bytes;    /* memory of the largest server that does not lead; 0 if there is one server */
} Plan;

/* Returns the library that parallel.comm names. For "auto" it is NCCL if may_be_nccl is 1, otherwise the ring. */
CommKind plan_comm(const Config *config, int may_be_nccl);
/* Makes a plan by dry runs of the model and the batches. act is the resolved type of activations. The scratch memory is
 * counted for the number of threads that is set now. */
Plan plan_make(const Config *config, DType act, PlanRanks ranks);

/* Returns the largest batch.micro_batch for which the device memory of `plan` is at most `bytes`; 0 if 1 does not
 * fit. */
int64_t plan_largest_micro_batch(const Config *config, const Plan *plan, size_t bytes);

/* Prints the rows of memory of a plan as a table. */
void plan_print_memory(FILE *out, const Config *config, const Plan *plan);

/* Writes the ranks that compute different micro-batches to out: "4 ranks" or "2 groups of 2 ranks". Returns out. */
char *plan_sharers(int datas, int ranks, char out[64]);

/* Describes the experts of a rank in out: "4 of 8 on each of 2 ranks; room for 160 rows, ...", or "" without
 * parallel.expert. Returns out. */
char *plan_experts(const Config *config, DType act, char out[240]);

/* Returns the message for a run that has too little memory: the table, and one or two changes that save memory. From
 * malloc; free it with free(). */
char *plan_memory_advice(const Config *config, const Plan *plan);

/* --- lines about data and disk ------------------------------------------------------------------------------------ */

/* Functions that print lines about data and disk. They accept missing token files, because a user may plan a run before
 * making its data. */

/* Returns a short text for a count: "1.88 M", "12.3 k"; below ten thousand a plain number. */
ShortText plan_count_text(double value);

/* Prints files, tokens, samples and epochs of data.train, or of each source of a blend, as far as the files exist. */
void plan_print_data(const Config *config);

/* Prints how many checkpoints of `checkpoint_bytes` exist at once. With DISK_HERE it also prints the free space for
 * run.dir. */
typedef enum { DISK_HERE, DISK_ELSEWHERE } PlanDisk;
void plan_print_disk(const Config *config, double checkpoint_bytes, PlanDisk where);

/* --- the memory of a server of islands: serve_memory.c ------------------------------------------------------------ */

/* The memory of a server of islands (jobs that train one model together), computed from the tables that it allocates
 * from. `train_gpt serve` allocates the memory; `train_gpt plan` counts it. */

/* The weights x of a server and their optimizer states. The server that leads has the whole model in an optimizer of
 * one rank in host memory. Another server has its part in one block of memory. */
typedef struct {
    Arena     params, grads, state, sums;
    Shards   *shards;    /* owned; memory is allocated only on the first server */
    Optimizer optimizer; /* owned; memory is allocated only on the first server */
    /* [WEIGHTS_TENSORS, elements of the part]: the weights x and their moments m and v, zeros at first; owned. NULL on
     * the first server */
    float    *part;
} ServeWeights;

/* Allocates the weights of a server. part: its part of the model, from 0; the server with part 0 leads. Ends the
 * program with 71 if the memory of serve_bytes cannot be allocated. */
ServeWeights serve_weights_create(const Config *config, int part);
void         serve_weights_destroy(ServeWeights *w);

/* Bytes of memory of a server. Each connection needs CHANNEL_BYTES more. */
typedef struct {
    size_t weights;      /* the weights x, and the memory that an update of x needs */
    size_t copy;         /* the copy that checkpoints are written from, on the server that leads */
    /* outer.compress: change of the weights in a round, and its rounding errors. outer.wait = "none": a copy of the
     * weights that each of outer.least_islands islands holds. */
    size_t changes;
    size_t deltas;       /* the changes of weights (deltas) that outer.least_islands islands send */
    size_t all;          /* sum of weights, copy, changes and deltas */
} ServeBytes;
ServeBytes serve_bytes(const Config *config, int part);

#endif
