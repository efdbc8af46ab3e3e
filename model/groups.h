/* groups.h - the groups of ranks that a model on a grid (core/mesh.h) exchanges with. */
#ifndef TRAIN_GPT_MODEL_GROUPS_H
#define TRAIN_GPT_MODEL_GROUPS_H

#include "comm/comm.h"
#include "core/mesh.h"

#define GROUP_OF_EXPERTS "expert" /* names in ledgers */
#define GROUP_OF_EXPERT_STATE "expert shard"

enum { MOST_PAIRS = 6 };

typedef struct {
    Mesh  mesh;
    Comm *job;      /* borrowed: all ranks of the grid                                              */
    Comm *tensor;   /* ranks that divide each matrix between them. NULL: there is one               */
    Comm *context;  /* ranks with other tokens of the same sequences. NULL: there is one            */
    Comm *state;    /* ranks that share one copy of masters and moments; the job where that is all  */
    Comm *replicas; /* ranks that hold the same piece of it: one of each copy. NULL: there is one   */
    Comm *stages;   /* ranks at the same place in other stages of the pipeline. NULL: there is one  */
    /* Its neighbours, in a ring: the stream of activations goes forward, that of gradients back. NULL: none on this side. */
    Comm *forward_in, *forward_out, *backward_in, *backward_out;
    Comm *twin_up, *twin_down; /* the tied embedding's gradient, from the last stage to the first; its weights, back */
    Comm *pair[MOST_PAIRS]; /* groups among the six above that are not NULL, in the order in which all ranks made them */
    int   pairs;
    Comm *experts;  /* ranks that divide the experts; NULL: each has all                            */
    Comm *expert_state; /* ranks that share the state of the same experts; NULL where experts is    */
    Comm *matrices; /* all ranks of this stage of the pipeline, for an optimizer of whole matrices; NULL: nobody asked */
    Comm *weights;  /* ranks that hold the same weights; the job where that is all                  */
    int   data, datas; /* this rank's place among those that compute different micro-batches, and their number */
} Groups;

/* All ranks of job, which is the whole grid, call these together. is_ring: the last stage sends to the first, too
 * (parallel.interleave). */
Groups groups_create(Comm *job, Mesh mesh, int is_ring);
void   groups_free(Groups *g);

/* Sets g->experts and g->expert_state, before groups_set_kind: `ranks` of the shard axis divide the experts, neighbours
 * among those that share a state. All ranks call it together. */
void   groups_add_experts(Groups *g, int ranks);
/* Sets g->matrices, before groups_set_kind. All ranks call it together. */
void   groups_add_matrices(Groups *g);
/* Before groups_set_kind: sums over g->state will go in the order of a tree (parallel.deterministic). */
void   groups_add_tree(Groups *g);
/* Sets how the collectives of the groups travel (comm_set_kind), the job's too, and leaves multiprocessors to NCCL's. */
void   groups_set_kind(const Groups *g, CommKind kind);
/* Times and bytes of all groups together, since the last call: comm_times. ms, sent: over buckets, by axis; that of
 * the job counts for AXIS_SHARD. waited_ms: of them, exposed. */
typedef struct { double comm_ms, exposed_ms, ms[AXES], waited_ms[AXES]; int64_t sent[AXES]; } GroupTimes;
GroupTimes groups_times(const Groups *g);
void       groups_forget_times(const Groups *g);

/* Bytes of buffers that groups of this mesh take with this kind: comm_buffer_bytes. experts: as in groups_add_experts. */
size_t groups_buffer_bytes(Mesh mesh, CommKind kind, int experts);
/* Bytes of GPU memory that NCCL takes for these groups: comm_library_bytes. */
typedef struct { int experts, has_matrices, has_tree; /* of groups_add_experts, groups_add_matrices, groups_add_tree */ } GroupsUse;
size_t groups_library_bytes(Mesh mesh, CommKind kind, GroupsUse use);

#endif
