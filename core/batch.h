/* batch.h - the unit of work: B sequences of T tokens, and the next token of each. */
#ifndef TRAIN_GPT_CORE_BATCH_H
#define TRAIN_GPT_CORE_BATCH_H

#include "core/tensor.h"

typedef struct {
    Tensor inputs;  /* [B,T] I32                                      */
    Tensor targets; /* [B,T] I32: inputs shifted by one token         */
} Batch;

/* Context ranks share each sequence: it is cut into 2*ranks chunks, of which each rank has two, numbers `rank` and
 * 2*ranks-1-rank, in this order. So all have equally much to do where a token sees those before it. ranks 1: all of it. */
typedef struct { int64_t ranks, rank; } ContextPart;
#define WHOLE_SEQUENCE ((ContextPart){1, 0})

/* Token t of a rank's T stands at POSITION_OF(p, t) of its sequence: at t + low where t < half, else at t + high. */
typedef struct { int64_t half, low, high; } Positions;
static inline Positions positions_of(ContextPart c, int64_t T) {
    Positions p = {T / 2, c.rank * (T / 2), (2 * c.ranks - 2 - c.rank) * (T / 2)}, in_order = {0, 0, 0};
    return c.ranks > 1 ? p : in_order;
}
#define POSITION_OF(p, t) ((t) + ((t) < (p).half ? (p).low : (p).high))

/* This rank's T tokens of a whole sequence. */
static inline void context_take(int32_t *out, const int32_t *sequence, ContextPart c, int64_t T) {
    Positions p = positions_of(c, T);
    for (int64_t t = 0; t < T; t++) out[t] = sequence[POSITION_OF(p, t)];
}

#endif
