/* grad_norm.cu - CUDA side of norm_squared and sum_forward in layers.h. Threads add to exact sums in registers, then to
 * the block's in shared memory, then to the result. These are integer additions, which give the same sum in any order
 * and on every GPU. */
#include "core/kernel.cuh"
#include "layers/contracts.h"
#include "layers/layers.h"

enum {
    THREADS = 256, LANES = 16, PER_LANE = 4, /* LANES x PER_LANE are the 64 elements summed in float64 */
    TURNS = LANES,                           /* rounds of a warp's tile: afterwards each lane has a sum of 64 of its
                                              * own */
    TILE = TURNS * WARP * PER_LANE,          /* elements of a warp's tile                                          */
    LOADS = 4,                               /* packs that a thread loads at once */
    BLOCK_TILES = THREADS / WARP * 2, MAX_BLOCKS = 1024,
    MOST_PIECES = 160                        /* most pieces of a launch, whose parameters may take 4 KiB */
};

typedef enum { VALUES, SQUARES } Terms;

typedef struct { const float *x; int64_t n; unsigned first_tile; } Piece;
typedef struct {
    Piece    piece[MOST_PIECES];
    int      count;
    unsigned tiles;
} Pieces;

/* --- an exact sum in registers ------------------------------------------------------------------------------------ */

/* Words base .. base+3 of an exact sum, in registers. Squares of a gradient affect a handful of words. If the next
 * value needs other words, these move to shared memory, which is rare. */
enum { HELD = 4 };
typedef struct { int base; unsigned long long word[HELD]; } Held;

/* Adds the held words to the sum. In two's complement, sums of unsigned words are those of signed ones. */
DEVICE void held_give(unsigned long long *sum, Held &h) {
    for (int k = 0; k < HELD; k++)
        if (h.word[k]) atomicAdd(sum + h.base + k, h.word[k]);
}
DEVICE void held_add(unsigned long long *sum, Held &h, double x) {
    ExactParts p = exact_parts(x);
    if (x == 0.0) return; /* zero adds nothing */
    if (p.first < h.base || p.first > h.base + 1) {
        held_give(sum, h);
        h = {p.first < EXACT_WORDS - HELD ? p.first : EXACT_WORDS - HELD, {}};
    }
    bool up = p.first > h.base;
    for (int k = 0; k < HELD; k++) {
        int64_t low = k < 3 ? p.part[k] : 0, high = k > 0 ? p.part[k - 1] : 0;
        h.word[k] += (unsigned long long)(up ? high : low);
    }
}
/* Gives the words of all lanes to the sum. Lanes that hold the highest words, mostly all lanes, first add theirs
 * together. */
DEVICE void warp_give(unsigned long long *sum, Held &h) {
    int highest = h.base;
    for (int o = WARP / 2; o > 0; o /= 2) highest = max(highest, __shfl_xor_sync(0xffffffffu, highest, o));
    if (h.base != highest) {
        held_give(sum, h);
        h = {highest, {}};
    }
    for (int k = 0; k < HELD; k++)
        for (int o = WARP / 2; o > 0; o /= 2) h.word[k] += __shfl_xor_sync(0xffffffffu, h.word[k], o);
    if (threadIdx.x % WARP == 0) held_give(sum, h);
}

/* --- the kernel --------------------------------------------------------------------------------------------------- */

/* Loads four neighbours from `at` on; zeros beyond n. */
template <int W> DEVICE Pack<float, PER_LANE> four_at(const float *x, int64_t at, int64_t n) {
    Pack<float, PER_LANE> in = {};
    for (int j = 0; j < PER_LANE; j += W) {
        if (at + j >= n) break;
        Pack<float, W> part = pack_load_part<float, W>(x + at + j, n - at - j);
        for (int k = 0; k < W; k++) in.v[j + k] = part.v[k];
    }
    return in;
}

DEVICE double squares_of_4(Pack<float, PER_LANE> x) {
    double sum = 0.0;
    for (int j = 0; j < PER_LANE; j++)
        sum = fma((double)x.v[j], (double)x.v[j], sum); /* the product is exact either way */
    return sum;
}

/* Lane l has sum[i] of its share of round i. Returns the sum of round l % 16 over the 16 lanes of its half, by a tree:
 * each step adds the values of lane l ^ o, o = 8, 4, 2, 1. A lane gives away half of its rounds at each step. */
template <int o> DEVICE double sum_of_turn(double (&sum)[TURNS]) {
    bool upper = threadIdx.x & o;
    #pragma unroll
    for (int i = 0; i < o; i++) {
        double given = upper ? sum[i] : sum[i + o], kept = upper ? sum[i + o] : sum[i];
        sum[i] = kept + __shfl_xor_sync(0xffffffffu, given, o);
    }
    if constexpr (o > 1) return sum_of_turn<o / 2>(sum);
    else return sum[0];
}

/* Adds the warp's tile of x from `first` on. */
template <Terms terms, int W>
DEVICE void add_tile(unsigned long long *word, Held &h, const float *x, int64_t first, int64_t n) {
    double sum[TURNS];
    #pragma unroll
    for (int turn = 0; turn < TURNS; turn += LOADS) {
        Pack<float, PER_LANE> in[LOADS];
        #pragma unroll
        for (int k = 0; k < LOADS; k++)
            in[k] = four_at<W>(x, first + ((turn + k) * WARP + threadIdx.x % WARP) * PER_LANE, n);
#pragma unroll
        for (int k = 0; k < LOADS; k++) {
            if (terms == SQUARES) sum[turn + k] = squares_of_4(in[k]);
            else for (int j = 0; j < PER_LANE; j++) held_add(word, h, (double)in[k].v[j]);
        }
    }
    if (terms == SQUARES) held_add(word, h, sum_of_turn<LANES / 2>(sum));
}

/* Returns the piece that holds a tile: the last one that begins at or before it. */
DEVICE int piece_of(const Pieces &all, unsigned tile) {
    int low = 0, high = all.count; /* piece[low] begins at or before the tile, piece[high] after it */
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (all.piece[middle].first_tile <= tile) low = middle;
        else high = middle;
    }
    return low;
}

/* sum += the terms of all pieces. Each block takes a contiguous range of tiles, over which its warps alternate. No
 * thread leaves the loop before its warp. Static shared memory: an exact sum. Bound by memory: 4 bytes an element. */
template <Terms terms, int W> KERNEL exact_sum_kernel(unsigned long long *sum, const __grid_constant__ Pieces all) {
    await_kernels();
    SMEM(unsigned long long, word, [EXACT_WORDS]);
    for (int i = (int)threadIdx.x; i < EXACT_WORDS; i += THREADS) word[i] = 0;
    __syncthreads(); /* all words of the block's sum are zero now */
    unsigned tile = (unsigned)((uint64_t)all.tiles * blockIdx.x / gridDim.x) + threadIdx.x / WARP;
    unsigned end = (unsigned)((uint64_t)all.tiles * (blockIdx.x + 1) / gridDim.x);
    Held     h = {};
    for (int at = piece_of(all, tile); tile < end; tile += THREADS / WARP) {
        while (at + 1 < all.count && all.piece[at + 1].first_tile <= tile) at++;
        const Piece &p = all.piece[at];
        add_tile<terms, W>(word, h, p.x, (int64_t)(tile - p.first_tile) * TILE, p.n);
    }
    warp_give(word, h);
    __syncthreads(); /* every thread's terms are added */
    for (int i = (int)threadIdx.x; i < EXACT_WORDS; i += THREADS)
        if (word[i]) atomicAdd(sum + i, word[i]);
}

/* --- launches ----------------------------------------------------------------------------------------------------- */

/* Adds as many pieces as fit into one launch. Returns their number. */
template <Terms terms, int W> static int add_some(Stream *s, Tensor sum, const Tensor *x, int count) {
    Pieces all = {};
    int    taken = 0;
    for (; taken < count && all.count < MOST_PIECES; taken++) {
        int64_t n = x[taken].dim[0];
        if (n == 0) continue;
        all.piece[all.count++] = {ptr<float>(x[taken]), n, all.tiles};
        all.tiles += (unsigned)blocks_for(n, TILE);
    }
    int64_t blocks = blocks_for(all.tiles, BLOCK_TILES);
    if (blocks > 0)
        LAUNCH_EARLY((exact_sum_kernel<terms, W>), blocks < MAX_BLOCKS ? blocks : (int64_t)MAX_BLOCKS, THREADS, 0, s,
                     ptr<unsigned long long>(sum), all);
    return taken;
}

template <Terms terms> static void add_terms(Stream *s, Tensor sum, const Tensor *x, int count) {
    bool fit = true;
    for (int i = 0; i < count; i++) fit = fit && packs_fit(PACK_BYTES, {x[i].data});
    for (int done = 0; done < count;)
        DISPATCH_PACK(float, fit, W, (done += add_some<terms, W>(s, sum, x + done, count - done)));
}

void norm_squared(Stream *s, Tensor sum, const Tensor *x, int count) {
    if (!norm_squared_contract(s, sum, x, count)) add_terms<SQUARES>(s, sum, x, count);
}
void sum_forward(Stream *s, Tensor sum, Tensor x) {
    if (!sum_forward_contract(s, sum, x)) add_terms<VALUES>(s, sum, &x, 1);
}
