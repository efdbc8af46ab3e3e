/* pieces.cuh - many spans of memory in one launch, where a launch for each would cost more than its work. The kernel's
 * parameters hold a table of the spans, and each block looks up its own.
 */
#ifndef TRAIN_GPT_LAYERS_PIECES_CUH
#define TRAIN_GPT_LAYERS_PIECES_CUH

#include "core/kernel.cuh"

/* The spans of memory of a launch, MOST at most, because a launch's parameters may take 4 KiB. Their work is cut into
 * units, blocks or tiles, which are numbered consecutively. The units of each span (piece) begin at its first_unit. */
template <typename P, int MOST> struct Pieces {
    P        piece[MOST];
    int      count;
    unsigned units;
};

/* Returns the index of the piece to which a unit belongs: the last piece whose first_unit is not above it. */
template <typename P, int MOST> DEVICE int piece_of(const Pieces<P, MOST> &all, unsigned unit) {
    int low = 0, high = all.count; /* piece[low] begins at or before the unit, piece[high] after it */
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (all.piece[middle].first_unit <= unit) low = middle;
        else high = middle;
    }
    return low;
}

/* A whole f32 tensor x [n] as one of the spans of a launch; its work units begin at number first_unit. */
typedef struct { float *x; int64_t n; unsigned first_unit; } TensorPiece;
typedef Pieces<TensorPiece, 160> TensorPieces;

/* Adds as many of the tensors x [count] to `all` as fit into one launch, in units of `per_unit` elements. Returns the
 * number of tensors taken, which includes empty ones. */
static inline int pieces_take(TensorPieces *all, const Tensor *x, int count, int64_t per_unit) {
    int taken = 0;
    for (; taken < count && all->count < (int)(sizeof all->piece / sizeof *all->piece); taken++) {
        int64_t n = x[taken].dim[0];
        if (n == 0) continue;
        all->piece[all->count++] = {ptr<float>(x[taken]), n, all->units};
        all->units += (unsigned)blocks_for(n, per_unit);
    }
    return taken;
}

#endif
