/* mesh.h - the ranks of a job as a grid of five axes. Arithmetic alone: no communication, so plan, loader and simulator
 * may use it as well.
 *
 * The order, innermost first, is that of Axis: rank = (((stage R + replica) S + shard) C + context) T + tensor, where
 * R, S, C and T are the sizes of the axes replica, shard, context and tensor. Neighbours along the first axis have
 * neighbouring ranks. So they share a host if any ranks do.
 */
#ifndef TRAIN_GPT_CORE_MESH_H
#define TRAIN_GPT_CORE_MESH_H

typedef enum { AXIS_TENSOR, AXIS_CONTEXT, AXIS_SHARD, AXIS_REPLICA, AXIS_STAGE, AXES } Axis;
typedef struct { int size[AXES]; } Mesh;    /* each at least 1 */
typedef struct { int at[AXES]; } MeshPlace; /* each in [0, size) */

enum {
    WITH_TENSOR = 1 << AXIS_TENSOR,
    WITH_CONTEXT = 1 << AXIS_CONTEXT,
    WITH_SHARD = 1 << AXIS_SHARD,
    WITH_REPLICA = 1 << AXIS_REPLICA,
    WITH_STAGE = 1 << AXIS_STAGE,
    WITH_STATE = WITH_CONTEXT | WITH_SHARD,    /* ranks that share one copy of masters and moments */
    WITH_WEIGHTS = WITH_STATE | WITH_REPLICA,  /* ranks that hold the same weights        */
    WITH_DATA = WITH_SHARD | WITH_REPLICA      /* ranks that compute different micro-batches */
};

/* Sizes of four axes of the grid; stages is that of AXIS_STAGE. The state exists in `replicas` copies. mesh_of divides
 * `ranks` by the product of the four, without remainder. The quotient is the size of the shard axis. */
typedef struct { int tensor, context, stages, replicas; } MeshSizes;
Mesh      mesh_of(int ranks, MeshSizes sizes);
const char *mesh_axis_name(Axis axis); /* name of the axis: "tensor" */
enum { MESH_TEXT = 120 };
char       *mesh_text(Mesh m, char out[MESH_TEXT]); /* writes "tensor 2 x shard 4": the shard axis, and the axes with
                                                     * more than one rank. Returns out */
/* Writes the axes whose neighbours are on different hosts: "shard, stage" or "none". Each host has `host` ranks.
 * Returns out. */
char       *mesh_crossing(Mesh m, int host, char out[MESH_TEXT]);
int       mesh_ranks(Mesh m);      /* number of ranks in the grid */
MeshPlace mesh_place(Mesh m, int rank);
int       mesh_rank(Mesh m, MeshPlace p);
/* Writes the place of a rank: "tensor 1 of 2, stage 0 of 2", counted from 0, on the axes with more than one rank.
 * Returns out. */
char     *mesh_place_text(Mesh m, int rank, char out[MESH_TEXT]);
/* Writes to `ranks` the ranks that differ from `rank` at most in these axes (WITH_...), `rank` among them, in ascending
 * order. Returns how many. ranks holds mesh_ranks(m) entries at most. */
int mesh_group(Mesh m, int rank, unsigned axes, int *ranks);

#endif
