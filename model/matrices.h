/* matrices.h - whole matrices of blocks, each on one rank at a time, for an optimizer that cannot work on pieces.
 *
 * The matrices are shared out among all ranks of a stage by the cost of their products, the dearest first, each to the
 * rank with least so far. They come in turns: of each turn a rank has one at most. One exchange brings it the pieces that
 * other ranks of its copy of the state hold, with tensor ranks their parts joined; another takes the result to all ranks
 * that hold a piece, those of other copies as well. So a matrix is computed once, and all copies get the same bits. The
 * next turn's pieces travel while this one's matrix is computed.
 *
 *   ZeRO stage   copies of the state                  pieces of a copy
 *   0            each rank of the state, each replica   one
 *   1 to 3       replicas                               one for each rank of the state
 *
 * Matrices of experts that ranks divide are shared out by themselves, among the ranks that hold the same experts. Each copy of
 * the state computes them for itself.
 */
#ifndef TRAIN_GPT_MODEL_MATRICES_H
#define TRAIN_GPT_MODEL_MATRICES_H

#include "model/shards.h"

typedef struct { int param, owner, turn; } WholeMatrix;

typedef struct {
    const Shards *shards;       /* borrowed                                                             */
    Comm         *comm;         /* borrowed: ranks in the order of copy, piece, tensor; NULL: one alone */
    int           copies, pieces, tensor, rank;
    WholeMatrix  *matrix;       /* owned [count], in the order in which they were given away            */
    int           count, turns;
    int64_t       part_elems;   /* room for one tensor rank's part of any of them                       */
    int64_t       whole_elems;  /* for any whole one; 0: none has parts to be joined                    */
    CommMessage  *message;      /* owned: of one exchange                                               */
    int           messages;
} Matrices;

/* All that all ranks have, experts' too where each has all of them; those of divided experts. */
typedef enum { MATRICES_OF_ALL, MATRICES_OF_EXPERTS } MatricesOf;
Matrices matrices_create(const Shards *shards, MatricesOf of);
void     matrices_destroy(Matrices *m);

enum { MATRIX_FIELDS = 2 };
/* What travels: `fields` numbers of each element, f32. `of` returns this rank's of a span, 1-d; `work` changes those of a whole
 * matrix [R,M] in place. */
typedef struct {
    int         fields;
    Tensor    (*of)(const void *ctx, int field, Span span);
    void      (*work)(const void *ctx, Stream *s, int param, const Tensor whole[MATRIX_FIELDS]);
    const void *ctx;            /* borrowed */
} MatrixWork;
/* All ranks call it together. Takes scratch. */
void matrices_each(Matrices *m, Stream *s, MatrixWork w);

#endif
