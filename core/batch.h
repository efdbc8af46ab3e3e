/* batch.h - the unit of work: B sequences of T tokens, the next token of each, and where their documents begin. */
#ifndef TRAIN_GPT_CORE_BATCH_H
#define TRAIN_GPT_CORE_BATCH_H

#include "core/tensor.h"

typedef struct {
    Tensor inputs;  /* [B,T] I32: tokens that the model reads */
    Tensor targets; /* [B,T] I32: for each input token the token after it, which the model must predict */
    Tensor starts;  /* [B,T] I32: position of the first token of the token's document; data is NULL if each sequence is
                     * one document */
} Batch;

/* How context-parallel ranks share each sequence. A sequence is cut into 2*ranks chunks. Each rank has two of them,
 * numbers `rank` and 2*ranks-1-rank, in this order, so that all ranks have the same work under a causal mask. A single
 * rank has the whole sequence. */
typedef struct { int64_t ranks, rank; } ContextPart;
#define WHOLE_SEQUENCE ((ContextPart){1, 0})

/* Maps token t of the T tokens of a context rank to its position in the whole sequence, POSITION_OF(p, t). That is t +
 * low if t < half, otherwise t + high. */
typedef struct { int64_t half, low, high; } Positions;
static inline Positions positions_of(ContextPart c, int64_t T) {
    Positions p = {T / 2, c.rank * (T / 2), (2 * c.ranks - 2 - c.rank) * (T / 2)}, in_order = {0, 0, 0};
    return c.ranks > 1 ? p : in_order;
}
#define POSITION_OF(p, t) ((t) + ((t) < (p).half ? (p).low : (p).high))

/* Fills starts [T] for a whole sequence with the position of the first token of each token's document. A document
 * starts at the end-of-text token before it, or at the sequence's first token. As an input the end-of-text token
 * belongs to the text after it, as in sampling; as a target it belongs to the text before it. */
static inline void document_starts(int32_t *starts, const int32_t *sequence, int64_t T, int32_t end_of_text) {
    int32_t start = 0;
    for (int64_t t = 0; t < T; t++) starts[t] = start = sequence[t] == end_of_text ? (int32_t)t : start;
}

/* Copies the T tokens of a whole sequence that belong to this context rank to out. */
static inline void context_take(int32_t *out, const int32_t *sequence, ContextPart c, int64_t T) {
    Positions p = positions_of(c, T);
    for (int64_t t = 0; t < T; t++) out[t] = sequence[POSITION_OF(p, t)];
}

#endif
