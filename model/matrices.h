/* matrices.h - gathers each matrix of the blocks on one rank, for an optimizer such as Muon that needs whole matrices.
 *
 * The matrices are assigned to all ranks of a pipeline stage by the cost of their products: the most expensive first,
 * each to the rank with the least work so far. They are computed in rounds; a rank owns at most one matrix of a round.
 * One exchange sends the owner the pieces that other ranks of its copy of the state hold, and the slices of tensor
 * ranks. Another exchange sends the result to all ranks that hold a piece, also in other copies. So each matrix is
 * computed once, and all copies get the same bits. The pieces of the next round are sent while the current matrix is
 * computed.
 *
 * A copy of the state is a complete set of weights, masters and moments. A replica (parallel.replicas) is a group of
 * ranks that together hold at least one copy. Tensor ranks are not counted: each has slices of the matrices.
 *   ZeRO stage   copies of the state                  pieces of a copy
 *   0            one on each rank of each replica     one
 *   1 to 3       one in each replica                  one on each rank of the replica
 *
 * If ranks divide the experts, the matrices of experts are assigned separately, among the ranks that hold the same
 * experts. Each copy of the state then computes them for itself. */
#ifndef TRAIN_GPT_MODEL_MATRICES_H
#define TRAIN_GPT_MODEL_MATRICES_H

#include "model/shards.h"

typedef struct { int param, owner, turn; } WholeMatrix;

typedef struct {
    const Shards *shards;       /* borrowed: the parameters and gradients of this rank */
    /* borrowed: ranks that share matrices, in the order of copy, piece, tensor rank; NULL: one rank */
    Comm         *comm;
    int           copies, pieces, tensor, rank;
    /* owned [count]: for each matrix the rank that owns it and the round (turn) in which it is computed; in the order
     * of assignment */
    WholeMatrix  *matrix;
    int           count, turns;
    int64_t       part_elems;   /* elements of the largest slice of a matrix on one tensor rank, with padding */
    int64_t       whole_elems;  /* elements of the largest whole matrix that must be joined from slices; 0: none */
    CommMessage  *message;      /* owned: the messages of one exchange                                  */
    int           messages;
} Matrices;

/* Which matrices are gathered. MATRICES_OF_ALL: those that all ranks have, with those of experts if each rank has all
 * experts. MATRICES_OF_EXPERTS: those of experts that ranks divide. */
typedef enum { MATRICES_OF_ALL, MATRICES_OF_EXPERTS } MatricesOf;
Matrices matrices_create(const Shards *shards, MatricesOf of);
void     matrices_destroy(Matrices *m);

enum { MATRIX_FIELDS = 2 };
/* An optimizer's work on whole matrices. Each element of a matrix has `fields` f32 numbers, which ranks exchange. `of`
 * returns one field of a span (part of a parameter) of this rank, as a 1-d tensor. `work` changes the numbers of a
 * whole matrix [R,M] in place. */
typedef struct {
    int         fields;
    Tensor    (*of)(const void *ctx, int field, Span span);
    void      (*work)(const void *ctx, Stream *s, int param, const Tensor whole[MATRIX_FIELDS]);
    const void *ctx;            /* borrowed: passed to of() and work() */
} MatrixWork;
/* Runs the work w on each matrix: gathers it on the rank that owns it, computes, and sends the result back. All ranks
 * call it together. Uses scratch memory. */
void matrices_each(Matrices *m, Stream *s, MatrixWork w);

#endif
