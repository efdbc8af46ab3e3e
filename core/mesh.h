/* mesh.h - the ranks of a job as a grid of five axes. Arithmetic alone: no communication, so plan, loader and simulator
 * may use it as well.
 *
 * The order, innermost first, is that of Axis: rank = (((stage R + replica) S + shard) C + context) T + tensor.
 * Neighbours along the first axis have neighbouring ranks, and so share a host where anything does.
 */
#ifndef TRAIN_GPT_CORE_MESH_H
#define TRAIN_GPT_CORE_MESH_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { AXIS_TENSOR, AXIS_CONTEXT, AXIS_SHARD, AXIS_REPLICA, AXIS_STAGE, AXES } Axis;
typedef struct { int size[AXES]; } Mesh;    /* each at least 1 */
typedef struct { int at[AXES]; } MeshPlace; /* each in [0, size) */

enum {
    WITH_TENSOR = 1 << AXIS_TENSOR,
    WITH_CONTEXT = 1 << AXIS_CONTEXT,
    WITH_SHARD = 1 << AXIS_SHARD,
    WITH_REPLICA = 1 << AXIS_REPLICA,
    WITH_STAGE = 1 << AXIS_STAGE,
    WITH_STATE = WITH_CONTEXT | WITH_SHARD,    /* share one copy of masters and moments   */
    WITH_WEIGHTS = WITH_STATE | WITH_REPLICA,  /* hold the same weights                   */
    WITH_DATA = WITH_SHARD | WITH_REPLICA      /* compute different micro-batches         */
};

/* The ranks that tensor, context and stage leave compute different micro-batches, and there are `replicas` copies of the
 * state. ranks is a multiple of all of them. */
typedef struct { int tensor, context, stages, replicas; } MeshSizes;
Mesh      mesh_of(int ranks, MeshSizes sizes);
const char *mesh_axis_name(Axis axis); /* "tensor" */
enum { MESH_TEXT = 120 };
char       *mesh_text(Mesh m, char out[MESH_TEXT]); /* "tensor 2 x shard 4": those of more than one rank, and shard. Returns out */
/* "shard, stage": the axes whose neighbours are on different hosts of so many ranks, or "none". Returns out. */
char       *mesh_crossing(Mesh m, int host, char out[MESH_TEXT]);
int       mesh_ranks(Mesh m);      /* of the whole grid */
MeshPlace mesh_place(Mesh m, int rank);
int       mesh_rank(Mesh m, MeshPlace p);
/* "tensor 1 of 2, stage 0 of 2", counted from 0: the axes of more than one rank. Returns out. */
char     *mesh_place_text(Mesh m, int rank, char out[MESH_TEXT]);
/* The ranks that differ from `rank` in these axes (WITH_...) alone, `rank` among them, in ascending order. ranks has
 * room for all of them: mesh_ranks(m) is enough. Returns how many. */
int mesh_group(Mesh m, int rank, unsigned axes, int *ranks);

#ifdef __cplusplus
}
#endif
#endif
