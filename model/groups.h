/* groups.h - the groups of ranks that a model on a grid (core/mesh.h) exchanges with. */
#ifndef TRAIN_GPT_MODEL_GROUPS_H
#define TRAIN_GPT_MODEL_GROUPS_H

#include "comm/comm.h"
#include "core/mesh.h"

#define GROUP_OF_EXPERTS "expert" /* names of the groups in ledgers of communication */
#define GROUP_OF_EXPERT_STATE "expert shard"

enum { MOST_PAIRS = 6 };

typedef struct {
    Mesh  mesh;
    Comm *job;      /* borrowed: all ranks of the grid                                              */
    Comm *tensor;   /* ranks that divide each matrix. NULL: one rank                                */
    Comm *context;  /* ranks with other tokens of the same sequences. NULL: one rank                */
    Comm *state;    /* ranks that share one copy of masters and moments; job if that is all ranks   */
    Comm *replicas; /* ranks that hold the same piece of the state, one in each copy. NULL: one copy */
    Comm *stages;   /* ranks at the same place in other stages of the pipeline. NULL: one stage     */
    /* Neighbours in the ring of stages. Activations are sent forward, gradients backward. NULL: no neighbour on this
     * side. */
    Comm *forward_in, *forward_out, *backward_in, *backward_out;
    /* messages of the tied embedding: its gradient from the last stage to the first; its weights back */
    Comm *twin_up, *twin_down;
    /* the groups from forward_in to twin_down that are not NULL, in the order in which all ranks made them */
    Comm *pair[MOST_PAIRS];
    int   pairs;
    Comm *experts;  /* ranks that divide the experts; NULL: each rank has all experts               */
    Comm *expert_state; /* ranks that share the state of the same experts; NULL if experts is NULL  */
    /* all ranks of this pipeline stage, for an optimizer of whole matrices; NULL without groups_add_matrices */
    Comm *matrices;
    Comm *weights;  /* ranks that hold the same weights; job if that is all ranks                   */
    int   data, datas; /* this rank's place among the ranks that compute different micro-batches, and their number */
} Groups;

/* Makes the groups. All ranks of job, which is the whole grid, call it together. is_ring: the last stage also sends to
 * the first (parallel.interleave). */
Groups groups_create(Comm *job, Mesh mesh, int is_ring);
void   groups_free(Groups *g);

/* Sets g->experts and g->expert_state. `ranks` adjacent ranks of the shard axis divide the experts. Call it before
 * groups_set_kind; all ranks call it together. */
void   groups_add_experts(Groups *g, int ranks);
/* Sets g->matrices to the ranks of this pipeline stage. Call it before groups_set_kind; all ranks call it together. */
void   groups_add_matrices(Groups *g);
/* Prepares g->state for sums in the order of a tree (parallel.deterministic). Call it before groups_set_kind. */
void   groups_add_tree(Groups *g);
/* Sets the CommKind of all groups, and of the job (comm_set_kind), and reserves multiprocessors for NCCL's kernels. */
void   groups_set_kind(const Groups *g, CommKind kind);
/* Times and bytes of all groups since the last call (comm_times). ms, sent: milliseconds and bytes of collectives over
 * buckets, by axis. Those of the group of all ranks are added to AXIS_SHARD. waited_ms: the part of ms in which this
 * rank waited. */
typedef struct { double comm_ms, exposed_ms, ms[AXES], waited_ms[AXES]; int64_t sent[AXES]; } GroupTimes;
GroupTimes groups_times(const Groups *g);
void       groups_forget_times(const Groups *g);

/* Returns the bytes of buffers of all groups of this mesh (comm_buffer_bytes), if groups are of this CommKind. experts:
 * the ranks of groups_add_experts. */
size_t groups_buffer_bytes(Mesh mesh, CommKind kind, int experts);
/* Which groups exist in addition to those of groups_create. experts: ranks that divide the experts; has_matrices and
 * has_tree: 1 if groups_add_matrices and groups_add_tree were called. */
typedef struct { int experts, has_matrices, has_tree; } GroupsUse;
/* Returns the bytes of GPU memory that NCCL takes for these groups (comm_library_bytes). */
size_t groups_library_bytes(Mesh mesh, CommKind kind, GroupsUse use);

#endif
