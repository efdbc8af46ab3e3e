/* cluster.h - the description of a machine for the simulator (run/plan/simulate.h): its GPUs and the links between
 * them. It is read from a file of configs/clusters/, strict JSON; docs/simulator.md has the keys.
 */
#ifndef TRAIN_GPT_RUN_PLAN_CLUSTER_H
#define TRAIN_GPT_RUN_PLAN_CLUSTER_H

#include "core/json.h"
#include "core/ledger.h"
#include "core/mesh.h"
#include "core/tensor.h"
#include "run/config/faults.h"

enum { CLUSTER_LINKS = 4, CLUSTER_NAME = 64 };

/* A link between the GPUs of each block of `ranks` neighbouring ranks; ranks 0: all GPUs. */
typedef struct { double ranks, bytes_per_s, latency_s; } Link;

typedef struct {
    char   name[CLUSTER_NAME];     /* name of the file, without folder and ending */
    char   gpu[CLUSTER_NAME];      /* name of the GPU card */
    double gpus_per_node;
    double memory_bytes, reserved_bytes; /* bytes of memory of a GPU; bytes of it that its context and kernels use */
    /* number of multiprocessors, from which follows how full the last wave of a matrix product is; 0 if not a GPU */
    double processors;
    double fp32, tf32, bf16, fp16, fp8; /* FLOP/s of matrix products in each type; 0 if the GPU has none */
    double bytes_per_s;            /* rate of the memory of a GPU */
    Link   link[CLUSTER_LINKS];    /* links from near to far; the last connects all ranks */
    int    links;                  /* number of entries of `link` */
    /* shares, 0 to 1, of the peak rates that programs reach: FLOP/s of products and attention, memory, links */
    double product, attention, memory, link_efficiency;
    /* a matrix product with inner size k runs at the share k/(k + ramp) of the peak rate */
    double ramp;
    double op_s;                   /* seconds that any operation takes before its work begins */
    double attention_passes;       /* how often attention scores pass through memory; 0 in this program's kernels */
    int    fp8_casts;              /* 1: each operand is cast to fp8 by a separate kernel, as in programs that scale
                                    * each tensor by itself; 0: as in this program, where other kernels cast */
    /* 0 if collectives of shards and replicas, or messages between stages, stop a rank from computing, as on CPUs */
    int    overlaps, messages_overlap;
    /* for checkpoints: copy rate from GPU to host, write rate of all ranks to disk, seconds of a restart; 0: not set */
    double copy_bytes_per_s, write_bytes_per_s, restart_s;
} Cluster;

/* Reads a cluster by the name of a file in configs/clusters/, or by a path. Ends the program with exit 64 and lists
 * every fault with its place and what is expected. */
Cluster cluster_load(const char *name_or_file);

/* Reads the file of configs/clusters/ for a GPU by its short name ("h100"), with ranks / nodes GPUs in a node. nodes 0:
 * as many as in the file. Exit 64 for an unknown name, or if the ranks do not fill the nodes evenly. */
Cluster cluster_of_gpu(const char *gpu, int ranks, int nodes);

/* A JSON file that is read strictly, with a list of its faults. For run/plan/ only. */
typedef struct {
    const char *path;
    char       *text; /* owned */
    Json        json;
    Faults      faults;
} PlanFile;

/* Reads a file whose root is an object. Exit 64 if it cannot be read or is no JSON. key: "cluster=here: " or "rates=",
 * which stands before the path in the message. */
PlanFile plan_file_open(const char *key, const char *path);
/* Frees the file. If it has faults, ends the program with exit 64 and lists them. */
void     plan_file_close(PlanFile *f);
/* Adds a fault at the place of a key in the file. Its message is the key, and then the text. */
void     plan_file_fault(PlanFile *f, const char *key, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Reads a number from least to most into *out. Returns 1, or 0 after it has added a fault with the text `expected`. */
int      plan_file_number(PlanFile *f, const char *key, const cJSON *node, double least, double most, int is_whole,
                          const char *expected, double *out);

/* Returns the FLOP/s of matrix products of a type, or 0 if the GPU has none. precision: a value of Precision, which
 * says whether fp32 products run as tf32. */
double cluster_flops(const Cluster *c, DType type, int precision);

/* Returns the seconds that one operation of a ledger computes, with matrix products at `flops` a second:
 *   Products: FLOP / (flops product sqrt(wave fill) k/(k + ramp)), at least bytes / (memory rate). In fp8 the fp8 rate
 *   replaces `flops`.
 *   Attention: FLOP / (flops attention), at least bytes / (memory rate). With attention_passes, all scores are
 *   computed, at the efficiency of products, and pass through memory.
 *   Other operations: bytes / memory rate.
 * The wave fill is the part of the multiprocessors that 128 x 256 tiles keep busy on average over all waves: the last
 * wave is not full. k is the inner size of a product. product, attention, memory and ramp are fields of the cluster. */
double cluster_op_seconds(const Cluster *c, const LedgerEntry *e, double flops, size_t element_bytes);

/* How far apart the ranks of a group are: the first link that connects all of them, and the summed latency of a ring
 * over them. cluster_reach is for the ranks that differ along these axes of the grid. */
typedef struct { int ranks, farthest; double latency_s; } Reach;
Reach cluster_reach(const Cluster *c, Mesh mesh, unsigned axes);
/* Returns the reach (farthest link, latency of a ring) of the group of ranks 0, stride, 2 stride, ... */
Reach cluster_every_reach(const Cluster *c, int stride, int ranks);
/* Returns the reach (farthest link, latency) of a message between two ranks. */
Reach cluster_pair_reach(const Cluster *c, int rank, int other);
/* Returns the seconds of a collective in which each rank sends `bytes` around a ring. They are bytes over the rate of
 * the farthest link, and a latency for each hop. The hops are those of the ring, or of a tree if that is less. rounds:
 * 2 for an all-reduce, otherwise 1. */
double cluster_collective_seconds(const Cluster *c, Reach r, double bytes, int rounds);
double cluster_message_seconds(const Cluster *c, Reach r, double bytes);

#endif
