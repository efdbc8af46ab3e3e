/* groups.h - the groups of ranks that exchange data for a model on a grid of ranks (core/mesh.h). */
#ifndef TRAIN_GPT_MODEL_GROUPS_H
#define TRAIN_GPT_MODEL_GROUPS_H

#include "comm/comm.h"
#include "core/mesh.h"

#define GROUP_OF_EXPERTS "expert" /* name of the group of ranks that divide the experts, in the ledger of communication
                                   * that a plan makes */
#define GROUP_OF_EXPERT_STATE "expert shard"

enum { MOST_PAIRS = 6 };

typedef struct {
    Mesh  mesh;
    Comm *job;      /* borrowed: all ranks of the grid                                              */
    Comm *tensor;   /* ranks that divide each matrix. NULL: one rank                                */
    Comm *context;  /* ranks that have other tokens of the same sequences. NULL: one rank */
    Comm *state;    /* ranks that share one copy of masters and moments (the state); equal to `job` if these are all
                     * ranks */
    Comm *replicas; /* ranks that hold the same piece of masters and moments, one in each copy. NULL: one copy */
    Comm *stages;   /* ranks with the same place in each pipeline stage. NULL: one stage */
    /* Pairs of this rank and its neighbours in the ring of pipeline stages. Activations are sent forward, gradients
     * backward. NULL: no neighbour on this side. */
    Comm *forward_in, *forward_out, *backward_in, *backward_out;
    /* pairs of the last and the first pipeline stage, for a tied embedding: its gradient goes to the first stage, its
     * weights back */
    Comm *twin_up, *twin_down;
    /* the pairs from forward_in to twin_down that are not NULL, in the order in which all ranks made them */
    Comm *pair[MOST_PAIRS];
    int   pairs;
    Comm *experts;  /* ranks that divide the experts among them; NULL: each rank has all experts */
    Comm *expert_state; /* ranks that share masters and moments of the same experts; NULL if experts is NULL */
    /* all ranks of this pipeline stage, for an optimizer of whole matrices; NULL without groups_add_matrices */
    Comm *matrices;
    Comm *weights;  /* ranks that hold the same weights; equal to `job` if these are all ranks */
    /* index of this rank among the ranks that compute different micro-batches, and the number of these */
    int   data, datas;
} Groups;

/* Makes the groups of ranks. All ranks of job, which is the whole grid, call it together. is_ring: the last pipeline
 * stage also sends to the first (parallel.interleave). */
Groups groups_create(Comm *job, Mesh mesh, int is_ring);
void   groups_free(Groups *g);

/* Sets g->experts and g->expert_state. `ranks` adjacent ranks of the shard axis divide the experts. Call it before
 * groups_set_kind; all ranks call it together. */
void   groups_add_experts(Groups *g, int ranks);
/* Sets g->matrices to the ranks of this pipeline stage. Call it before groups_set_kind; all ranks call it together. */
void   groups_add_matrices(Groups *g);
/* Prepares g->state for sums in the order of a tree (parallel.deterministic). Call it before groups_set_kind. */
void   groups_add_tree(Groups *g);
/* Sets how all groups communicate, including that of all ranks (comm_set_kind). Reserves multiprocessors for NCCL's
 * kernels. */
void   groups_set_kind(const Groups *g, CommKind kind);
/* Times and bytes of all groups since the last call of groups_times or groups_forget_times. ms, sent: milliseconds and
 * bytes of collectives over buckets of weights or gradients, by axis of the grid. Those of the group of all ranks are
 * added to AXIS_SHARD. waited_ms: the part of ms in which this rank waited. */
typedef struct { double comm_ms, exposed_ms, ms[AXES], waited_ms[AXES]; int64_t sent[AXES]; } GroupTimes;
GroupTimes groups_times(const Groups *g);
void       groups_forget_times(const Groups *g);

/* Returns the bytes of communication buffers of all groups of this grid (comm_buffer_bytes), if they communicate by
 * `kind`. experts: number of ranks that divide the experts. */
size_t groups_buffer_bytes(Mesh mesh, CommKind kind, int experts);
/* Groups that exist besides those of groups_create. experts: number of ranks that divide the experts. has_matrices,
 * has_tree: 1 if groups_add_matrices or groups_add_tree was called. */
typedef struct { int experts, has_matrices, has_tree; } GroupsUse;
/* Returns the bytes of GPU memory that NCCL takes for these groups (comm_library_bytes). */
size_t groups_library_bytes(Mesh mesh, CommKind kind, GroupsUse use);

#endif
