/* cluster.h - a machine that is not here: its GPUs and the links between them, for the simulator (run/plan/simulate.h). A file
 * of configs/clusters/, strict JSON; docs/simulator.md has its keys.
 */
#ifndef TRAIN_GPT_RUN_PLAN_CLUSTER_H
#define TRAIN_GPT_RUN_PLAN_CLUSTER_H

#include "core/ledger.h"
#include "core/mesh.h"
#include "core/tensor.h"

enum { CLUSTER_LINKS = 4, CLUSTER_NAME = 64 };

/* A GPU's own link to others of a block of `ranks` neighbouring ranks; 0: all. */
typedef struct { double ranks, bytes_per_s, latency_s; } Link;

typedef struct {
    char   name[CLUSTER_NAME];     /* of the file, without folder and ending            */
    char   gpu[CLUSTER_NAME];
    double gpus_per_node;
    double memory_bytes, reserved_bytes; /* of a GPU; of them, taken by its context and kernels */
    double processors;             /* multiprocessors, for the tail of a product; 0: it is no GPU */
    double fp32, tf32, bf16, fp16, fp8; /* FLOP/s of matrix products; 0: the GPU has none */
    double bytes_per_s;            /* of its memory                                     */
    Link   link[CLUSTER_LINKS];    /* from near to far; the last reaches all            */
    int    links;
    double product, attention, memory, link_efficiency; /* parts of these rates that are reached */
    double ramp;                   /* products of inner size k reach k/(k + ramp) of their rate */
    double op_s;                   /* of any operation, before its work begins          */
    double attention_passes;       /* times that attention's scores go through memory; 0: never, as our kernels */
    int    fp8_casts;              /* operands in fp8 are cast by kernels of their own; 0: what stands before writes them, as ours */
    int    overlaps, messages_overlap; /* 0: shards' and replicas' collectives, or stages' messages, keep the GPU from computing, as on processors */
    double copy_bytes_per_s, write_bytes_per_s, restart_s; /* of checkpoints: GPU to host, all ranks to disk; 0: not said */
} Cluster;

/* Reads a cluster by the name of a file in configs/clusters/, or by its path. Exit 64 with every fault, its place and
 * what is expected. */
Cluster cluster_load(const char *name_or_file);

/* The file of configs/clusters/ for a GPU by its short name ("h100"), with ranks / nodes of them in a node; nodes 0: as in
 * the file. Exit 64 for an unknown name, or where the ranks do not fill the nodes evenly. */
Cluster cluster_of_gpu(const char *gpu, int ranks, int nodes);

/* FLOP/s of matrix products in this precision, 0 if there are none. */
double cluster_flops(const Cluster *c, DType type, int is_tf32);

/* Seconds that one operation of a ledger computes, of matrix products at `flops` a second:
 *   products   FLOP / (flops product sqrt(wave fill) k/(k + ramp)), at least bytes / (memory rate)
 *              in fp8 at that rate, for `flops`
 *   attention  the same at its own efficiency; with attention_passes, all of the scores are computed and go through memory
 *   others     bytes / memory rate
 * The wave fill is the part of the multiprocessors that the last wave of 128 x 256 tiles keeps busy, over all waves. */
double cluster_op_seconds(const Cluster *c, const LedgerEntry *e, double flops, size_t element_bytes);

/* How far the ranks that differ along these axes are apart: the first link that reaches all of them, and hops of a ring
 * over each link. */
typedef struct { int ranks, farthest; double latency_s; } Reach;
Reach cluster_reach(const Cluster *c, Mesh mesh, unsigned axes);
Reach cluster_every_reach(const Cluster *c, int stride, int ranks); /* of ranks 0, stride, 2 stride, ... */
Reach cluster_pair_reach(const Cluster *c, int rank, int other); /* of a message between two ranks */
/* A collective in which each rank sends `bytes` around a ring: bytes over the farthest link's rate, and a latency for
 * each hop of the ring, or of a tree where that is quicker. rounds: 1, of an all-reduce 2. */
double cluster_collective_seconds(const Cluster *c, Reach r, double bytes, int rounds);
double cluster_message_seconds(const Cluster *c, Reach r, double bytes);

#endif
