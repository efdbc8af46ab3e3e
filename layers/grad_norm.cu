/* grad_norm.cu - CUDA side of norm_squared and sum_forward in layers.h. Threads add to exact sums in registers, then to
 * the block's in shared memory, then to the result. These are integer additions, which give the same sum in any order
 * and on every GPU. */
#include "layers/contracts.h"
#include "layers/layers.h"
#include "layers/pieces.cuh"

enum {
    THREADS = 256, LANES = 16, PER_LANE = 4, /* norm_squared: squares of LANES x PER_LANE = 64 neighbouring elements
                                              * are first summed in float64, and that sum is added to the exact sum
                                              * (sum_forward adds each element alone) */
    TURNS = LANES,                           /* number of rounds over a warp's tile; after them each lane holds the sum
                                              * of its own 64 elements */
    TILE = TURNS * WARP * PER_LANE,          /* elements of a warp's tile                                          */
    LOADS = 4,                               /* number of packs whose loads are in flight together in a thread */
    BLOCK_TILES = THREADS / WARP * 2, MAX_BLOCKS = 1024
};

typedef enum { VALUES, SQUARES } Terms;

/* --- an exact sum in registers ------------------------------------------------------------------------------------ */

/* Words base .. base+3 of an exact sum, in registers. Squares of a gradient affect a handful of words. If the next
 * value needs other words, these move to shared memory, which is rare. */
enum { HELD = 4 };
typedef struct { int base; unsigned long long word[HELD]; } Held;

/* Adds the words that a thread holds in registers to the exact sum. In two's complement, sums of unsigned words are
 * those of signed ones. */
DEVICE void held_give(unsigned long long *sum, Held &h) {
    for (int k = 0; k < HELD; k++)
        if (h.word[k]) atomicAdd(sum + h.base + k, h.word[k]);
}
/* Adds x to the exact sum, in the words that a thread holds. If x needs other words, the held ones first move to
 * `sum`. */
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
/* Adds the words that all lanes hold to the exact sum. Lanes that hold the highest words, mostly all lanes, first add
 * theirs together. */
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

/* Loads the elements at .. at+3 of x [n]. Elements beyond n count as zero. */
template <int W> DEVICE Pack<float, PER_LANE> four_at(const float *x, int64_t at, int64_t n) {
    Pack<float, PER_LANE> in = {};
    for (int j = 0; j < PER_LANE; j += W) {
        if (at + j >= n) break;
        Pack<float, W> part = pack_load_part<float, W>(x + at + j, n - at - j);
        for (int k = 0; k < W; k++) in.v[j + k] = part.v[k];
    }
    return in;
}

/* Lane l has sum[i], its share of round i, for each of 16 rounds. Returns the sum of round l % 16 over the 16 lanes of
 * the lane's half, by a tree: each step adds the values of lane l ^ o, o = 8, 4, 2, 1. A lane gives away half of its
 * rounds at each step. */
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

/* Adds the terms of a warp's tile of x [n] to the exact sum: its elements, or their squares. The tile begins at element
 * `first`. Sums stay in h; if a value needs other words, those of h first move to `word`, in shared memory. */
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
            double four = 0.0;
            for (int j = 0; j < PER_LANE; j++) {
                double v = (double)in[k].v[j];
                if (terms == SQUARES) four = fma(v, v, four); /* a square of an f32 is exact in f64, so a fused
                                                               * multiply-add changes no bit */
                else held_add(word, h, v);
            }
            if (terms == SQUARES) sum[turn + k] = four;
        }
    }
    if (terms == SQUARES) held_add(word, h, sum_of_turn<LANES / 2>(sum));
}

/* sum += the terms of all pieces. Each block takes a contiguous range of tiles, over which its warps alternate. No
 * thread leaves the loop before its warp. Static shared memory: an exact sum. Bound by memory: 4 bytes an element. */
template <Terms terms, int W>
KERNEL exact_sum_kernel(unsigned long long *sum, const __grid_constant__ TensorPieces all) {
    await_kernels();
    SMEM(unsigned long long, word, [EXACT_WORDS]);
    for (int i = (int)threadIdx.x; i < EXACT_WORDS; i += THREADS) word[i] = 0;
    __syncthreads(); /* after this all words of the block's sum are zero */
    unsigned tile = (unsigned)((uint64_t)all.units * blockIdx.x / gridDim.x) + threadIdx.x / WARP;
    unsigned end = (unsigned)((uint64_t)all.units * (blockIdx.x + 1) / gridDim.x);
    Held     h = {};
    for (int at = piece_of(all, tile); tile < end; tile += THREADS / WARP) {
        while (at + 1 < all.count && all.piece[at + 1].first_unit <= tile) at++;
        const TensorPiece &p = all.piece[at];
        add_tile<terms, W>(word, h, p.x, (int64_t)(tile - p.first_unit) * TILE, p.n);
    }
    warp_give(word, h);
    __syncthreads(); /* after this every thread's terms are in the block's sum */
    for (int i = (int)threadIdx.x; i < EXACT_WORDS; i += THREADS)
        if (word[i]) atomicAdd(sum + i, word[i]);
}

/* --- launches ----------------------------------------------------------------------------------------------------- */

template <Terms terms> static void add_terms(Stream *s, Tensor sum, const Tensor *x, int count) {
    bool fit = true;
    for (int i = 0; i < count; i++) fit = fit && packs_fit(PACK_BYTES, {x[i].data});
    for (int done = 0; done < count;) {
        TensorPieces all = {};
        done += pieces_take(&all, x + done, count - done, TILE);
        int64_t blocks = blocks_for(all.units, BLOCK_TILES);
        if (blocks > MAX_BLOCKS) blocks = MAX_BLOCKS;
        if (blocks > 0)
            DISPATCH_PACK(float, fit, W, LAUNCH_EARLY((exact_sum_kernel<terms, W>), blocks, THREADS, 0, s,
                                                      ptr<unsigned long long>(sum), all));
    }
}

void norm_squared(Stream *s, Tensor sum, const Tensor *x, int count) {
    if (!norm_squared_contract(s, sum, x, count)) add_terms<SQUARES>(s, sum, x, count);
}
void sum_forward(Stream *s, Tensor sum, Tensor x) {
    if (!sum_forward_contract(s, sum, x)) add_terms<VALUES>(s, sum, &x, 1);
}
