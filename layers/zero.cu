/* zero.cu - CUDA side of zero_tensors in layers.h: many tensors a launch, where a fill of each would be a launch
 * each. */
#include "core/kernel.cuh"
#include "layers/contracts.h"
#include "layers/layers.h"

enum { THREADS = 256, EACH = 16, MOST_PIECES = 160 /* most pieces of a launch: its parameters are 4 KiB at most */ };

/* A piece: one tensor of a launch. Blocks from first_block up to that of the next piece work on it. */
typedef struct { float *x; int64_t n; unsigned first_block; } Piece;
typedef struct {
    Piece    piece[MOST_PIECES];
    int      count;
    unsigned blocks;
} Pieces;

/* Returns the piece that a block works on: the last one that begins at or before it. */
DEVICE const Piece &piece_of(const Pieces &all, unsigned block) {
    int low = 0, high = all.count; /* piece[low] begins at or before the block, piece[high] after it */
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (all.piece[middle].first_block <= block) low = middle;
        else high = middle;
    }
    return all.piece[low];
}

/* Thread: EACH elements of its block's piece, THREADS apart, so that any alignment will do. grid the sum of ceil(n /
 * (THREADS EACH)), no shared memory. Bound: writing 4 bytes each. */
KERNEL zero_kernel(const __grid_constant__ Pieces all) {
    const Piece &p = piece_of(all, blockIdx.x);
    int64_t      first = (int64_t)(blockIdx.x - p.first_block) * THREADS * EACH + threadIdx.x;
    #pragma unroll
    for (int k = 0; k < EACH; k++)
        if (first + k * THREADS < p.n) p.x[first + k * THREADS] = 0.0f;
}

/* Sets as many tensors to zero as fit into one launch. Returns their number. */
static int zero_some(Stream *s, const Tensor *x, int count) {
    Pieces all = {};
    int    taken = 0;
    for (; taken < count && all.count < MOST_PIECES; taken++) {
        int64_t n = x[taken].dim[0];
        if (n == 0) continue;
        all.piece[all.count++] = {ptr<float>(x[taken]), n, all.blocks};
        all.blocks += (unsigned)blocks_for(n, THREADS * EACH);
    }
    if (all.blocks > 0) LAUNCH(zero_kernel, all.blocks, THREADS, 0, s, all);
    return taken;
}

void zero_tensors(Stream *s, const Tensor *x, int count) {
    if (zero_contract(s, x, count)) return;
    for (int done = 0; done < count;) done += zero_some(s, x + done, count - done);
}
