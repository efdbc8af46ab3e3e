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
typedef struct { int size[AXES]; } Mesh;    /* number of ranks along each axis, at least 1 */
typedef struct { int at[AXES]; } MeshPlace; /* place of a rank on each axis, in [0, size) */

enum {
    WITH_TENSOR = 1 << AXIS_TENSOR,
    WITH_CONTEXT = 1 << AXIS_CONTEXT,
    WITH_SHARD = 1 << AXIS_SHARD,
    WITH_REPLICA = 1 << AXIS_REPLICA,
    WITH_STAGE = 1 << AXIS_STAGE,
    WITH_STATE = WITH_CONTEXT | WITH_SHARD,    /* ranks that share one copy of fp32 masters and moments */
    WITH_WEIGHTS = WITH_STATE | WITH_REPLICA,  /* ranks that hold the same weights        */
    WITH_DATA = WITH_SHARD | WITH_REPLICA      /* ranks that compute different micro-batches */
};

/* Sizes of four axes of the grid. `stages` is that of AXIS_STAGE. `replicas` is the number of copies of masters and
 * moments. mesh_of divides `ranks` by the product of the four, without remainder. The quotient is the size of the shard
 * axis. */
typedef struct { int tensor, context, stages, replicas; } MeshSizes;
Mesh      mesh_of(int ranks, MeshSizes sizes);
const char *mesh_axis_name(Axis axis); /* returns the name of the axis, such as "tensor" */
enum { MESH_TEXT = 120 };
char       *mesh_text(Mesh m, char out[MESH_TEXT]); /* writes the shard axis and the axes with more than one rank:
                                                     * "tensor 2 x shard 4". Returns out */
/* Writes the names of the axes along which neighbours are on different hosts: "shard, stage" or "none". Each host has
 * `host` ranks. Returns out. */
char       *mesh_crossing(Mesh m, int host, char out[MESH_TEXT]);
int       mesh_ranks(Mesh m);      /* returns the number of ranks in the grid */
MeshPlace mesh_place(Mesh m, int rank);
int       mesh_rank(Mesh m, MeshPlace p);
/* Writes the place of a rank: "tensor 1 of 2, stage 0 of 2", counted from 0, on the axes with more than one rank.
 * Returns out. */
char     *mesh_place_text(Mesh m, int rank, char out[MESH_TEXT]);
/* Writes to `ranks` the ranks that differ from `rank` only along these axes (a mask of WITH_...), `rank` among them, in
 * ascending order. Returns their number, at most mesh_ranks(m). */
int mesh_group(Mesh m, int rank, unsigned axes, int *ranks);

#endif
