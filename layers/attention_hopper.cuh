/* attention_hopper.cuh - shared by attention's kernels for compute capability 9.0 (attention_hopper.cu,
 * attention_hopper_backward.cu, attention_hopper_heads.cu): tiles in shared memory, queues of them, products of a
 * warpgroup, and the step of backward in which a warpgroup has 64 keys.
 *
 * A block stays on its multiprocessor and processes one item after another: 128 rows of one head. One thread of the
 * last warpgroup, the loader, makes TMA fill the tiles; the first two warpgroups multiply, 64 of the rows each. Loader
 * and consumers walk the same items in the same order and synchronize by queues alone. So the next item's tiles are
 * loaded while this one's results are stored. The loader's warpgroup gives its registers to the others. Shah et al.,
 * FlashAttention-3, arXiv:2407.08608.
 *
 * A tile has ROWS rows of D columns, in blocks of 64 columns. A row of such a block is 128 bytes, swizzled
 * (core/ptx.cuh). Rows past the end of a sequence hold the next sequence's rows, or zeros: finite either way,
 * and multiplied by p = 0.
 */
#ifndef TRAIN_GPT_LAYERS_ATTENTION_HOPPER_CUH
#define TRAIN_GPT_LAYERS_ATTENTION_HOPPER_CUH

#include "core/ptx.cuh"
#include "layers/attention_hopper.h"

enum {
    WARPGROUP = 128, GROUPS = 2, GROUP_ROWS = 64, BLOCK_ROWS = GROUPS * GROUP_ROWS,
    CONSUMER_WARPS = GROUPS * WARPGROUP / WARP, HOPPER_THREADS = (GROUPS + 1) * WARPGROUP, LOADER = GROUPS * WARPGROUP,
    LOADER_REGISTERS = 40, CONSUMER_REGISTERS = 232, /* registers of a thread; the block starts with 168 in each of its
                                                      * 3 warpgroups */
    BOX = 64, TILE_ALIGN = 1024, SWIZZLE_ROWS_BYTES = 8 * 128
};

/* --- host --------------------------------------------------------------------------------------------------------- */

template <typename T> static TensorMap map_of(Tensor matrix) {
    return tensor_map_2d(ptr<T>(matrix), matrix.dim[0], matrix.dim[1], BOX, BOX);
}

/* Runs the statements with T as bf16 or half and D as 64 or 128, which attention_takes_hopper has allowed. */
#define DISPATCH_HOPPER(type, d, T, D, ...)                                                             \
    do {                                                                                                \
        if ((type) == BF16 && (d) == 64) { typedef bf16 T; constexpr int D = 64; __VA_ARGS__; }         \
        else if ((type) == BF16) { typedef bf16 T; constexpr int D = 128; __VA_ARGS__; }                \
        else if ((d) == 64) { typedef half T; constexpr int D = 64; __VA_ARGS__; }                      \
        else { typedef half T; constexpr int D = 128; __VA_ARGS__; }                                    \
    } while (0)

#ifdef PTX_HOPPER

/* Returns true in the one thread that loads tiles. LOADER is the number of the first thread of the last warpgroup. All
 * lanes of each warp of that warpgroup call the function together. */
DEVICE bool is_loader() { return __shfl_sync(0xffffffffu, (int)threadIdx.x, 0) == LOADER && elect_one(); }

/* --- queues: the loader fills SLOTS places in rotation, the consumers take them in that order; n is from 0 -------- */

template <int SLOTS> struct Queue { uint64_t full[SLOTS], empty[SLOTS]; };

/* Queues of tiles from the loader. Tiles in `own` stay for a whole work item (128 rows of one head); tiles in `steps`
 * are read once and freed. */
template <int SLOTS> struct Queues { Queue<2> own; Queue<SLOTS> steps; };

/* Initializes a queue of tiles. fillers: number of warps that write a tile themselves, or 1 if the loader's TMA does.
 * takers: number of warps that read a tile. */
template <int SLOTS> DEVICE void queue_init(Queue<SLOTS> &q, unsigned fillers = 1, unsigned takers = CONSUMER_WARPS) {
    for (int i = 0; i < SLOTS; i++) {
        mbarrier_init(&q.full[i], fillers);
        mbarrier_init(&q.empty[i], takers);
    }
}
/* Initializes the block's queues of tiles. All threads of the block call it together, once. */
template <int SLOTS> DEVICE void queues_init(Queues<SLOTS> &queues) {
    if (threadIdx.x == LOADER) {
        queue_init(queues.own);
        queue_init(queues.steps);
        mbarrier_init_fence();
    }
    __syncthreads(); /* after this all threads may use the mbarriers; it is the last barrier of the whole block */
}
template <int SLOTS> DEVICE void queue_await_room(Queue<SLOTS> &q, unsigned n) {
    mbarrier_wait(&q.empty[n % SLOTS], (n / SLOTS & 1) ^ 1);
}
/* Waits until the n-th place of the queue is free, announces the bytes to its barrier and returns the barrier. */
template <int SLOTS> DEVICE uint64_t *queue_fill(Queue<SLOTS> &q, unsigned n, unsigned bytes) {
    queue_await_room(q, n);
    mbarrier_arrive_expect(&q.full[n % SLOTS], bytes);
    return &q.full[n % SLOTS];
}
template <int SLOTS> DEVICE void queue_take(Queue<SLOTS> &q, unsigned n) {
    mbarrier_wait(&q.full[n % SLOTS], n / SLOTS & 1);
}
/* Frees the n-th place of the queue. Each warp calls it after it has read that place. */
template <int SLOTS> DEVICE void queue_free(Queue<SLOTS> &q, unsigned n) {
    __syncwarp();
    if (threadIdx.x % WARP == 0) mbarrier_arrive(&q.empty[n % SLOTS]);
}
/* Announces the n-th place of the queue as full. Each warp that fills places calls it after it has written its
 * share. */
template <int SLOTS> DEVICE void queue_give(Queue<SLOTS> &q, unsigned n) {
    __syncwarp();
    if (threadIdx.x % WARP == 0) mbarrier_arrive(&q.full[n % SLOTS]);
}

/* --- loads: 64 rows and D columns of a matrix, into a tile of ROWS rows ------------------------------------------- */

template <typename T, int ROWS, int D>
DEVICE void load_box(T *tile, const TensorMap *map, uint64_t *full, int column, int row) {
#pragma unroll
    for (int c = 0; c < D; c += BOX) tma_load_2d(tile + c * ROWS, map, full, column + c, row);
}
template <typename T, int ROWS, int D>
DEVICE void load_rows(T *tile, const TensorMap *map, uint64_t *full, int column, int row) {
    for (int r = 0; r < ROWS; r += BOX) load_box<T, ROWS, D>(tile + r * BOX, map, full, column, row + r);
}
/* Loads ROWS keys from position `key` on, of the sequence whose rows begin at first_row on each rank. */
template <typename T, int ROWS, int D>
DEVICE void load_positions(T *tile, const TensorMap *keys, uint64_t *full, int column, int first_row, int key,
                           const Heads &h) {
    for (int r = 0; r < ROWS; r += BOX) {
        KeyRows from = key_rows(h, key + r);
        int     owner_row = from.owner ? (int)(from.owner / h.key_stride) : 0;
        load_box<T, ROWS, D>(tile + r * BOX, keys, full, column, owner_row + first_row + from.row);
    }
}

/* Return the first row of a head's sequence, and its columns in y (or in the q of qkv) and in keys. */
DEVICE int sequence_row(const Heads &h, int head) { return head / h.H * h.T; }
DEVICE int head_column(const Heads &h, int head) { return head % h.H * h.D; }
DEVICE int key_column(const Heads &h, int head) { return (h.context > 1 ? 0 : h.C) + head % h.H / h.group * h.D; }

/* --- products: element i of [64,N] is in row held_row() + 8 held_side(i), column held_column(i) ------------------- */

DEVICE int           held_row() { return (int)threadIdx.x % WARPGROUP / WARP * 16 + (int)threadIdx.x % WARP / 4; }
DEVICE constexpr int held_side(int i) { return i / 2 % 2; }
DEVICE int           held_column(int i) { return i / 4 * 8 + (int)threadIdx.x % 4 * 2 + i % 2; }

/* s = a b' (+ s): 64 rows of tile a, from `row` on, times the N rows of tile b, transposed. A_ROWS: rows of the whole
 * tile a. */
template <typename T, int N, int D, int A_ROWS>
DEVICE void multiply_rows(float (&s)[N / 2], const T *a, int row, const T *b, bool add) {
    const uint64_t left = descriptor_afresh(matrix_descriptor(a + row * BOX, 16, SWIZZLE_ROWS_BYTES)),
                   right = matrix_descriptor(b, 16, SWIZZLE_ROWS_BYTES);
    #pragma unroll
    for (int d = 0; d < D; d += 16)
        wgmma<T, T, N>(s, descriptor_after(left, (d / BOX * BOX * A_ROWS + d % BOX) * 2),
                       descriptor_after(right, (d / BOX * BOX * N + d % BOX) * 2), add || d > 0);
    wgmma_commit();
}
/* out += p x: p [64,N] is in registers, x is a tile of N rows in shared memory. */
template <typename T, int N, int D>
DEVICE void add_rows(float (&out)[D / 2], const uint32_t (&p)[N / 16][4], const T *x) {
    const uint64_t right = matrix_descriptor(x, BOX * N * 2, SWIZZLE_ROWS_BYTES);
    #pragma unroll
    for (int j = 0; j < N; j += 16)
        wgmma_from_registers<T, T, D, 1>(out, p[j / 16], descriptor_after(right, j * BOX * 2), 1);
    wgmma_commit();
}
/* Rounds a product to T, in the order of registers that wgmma expects of the left factor of the next product. */
template <typename T, int N> DEVICE void round_product(uint32_t (&p)[N / 16][4], const float (&s)[N / 2]) {
    #pragma unroll
    for (int i = 0; i < N / 4; i++) p[i / 4][i % 4] = pack_pair<T>(s[2 * i], s[2 * i + 1]);
}
template <int N> DEVICE void set_zero(float (&x)[N]) {
    #pragma unroll
    for (int i = 0; i < N; i++) x[i] = 0.0f;
}

/* --- masks set scores to -infinity. Rows are queries and columns keys, from the given positions on; if TURNED, rows
 * are keys and columns queries. */

/* Masks scores of later keys: no query sees a key after its own position. */
template <bool TURNED, int N> DEVICE void mask_later(float (&s)[N], int query, int key) {
    #pragma unroll
    for (int i = 0; i < N; i++) {
        const int row = held_row() + 8 * held_side(i), column = held_column(i);
        if (key + (TURNED ? row : column) > query + (TURNED ? column : row)) s[i] = -INFINITY;
    }
}
/* Masks scores of earlier documents: no query sees a key before its own document. row: row of the first query, in
 * `starts`. */
template <bool TURNED, int N>
DEVICE void mask_earlier(float (&s)[N], const int32_t *starts, int row, int key, const Heads &h) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int down = held_row() + 8 * held_side(i), across = held_column(i);
        if (key + (TURNED ? down : across) < start_at(starts, row + (TURNED ? across : down), h)) s[i] = -INFINITY;
    }
}

/* --- results pass through the warp's own 16 rows of a tile, which no product reads any more ----------------------- */

/* Writes a product, times scale and rounded, into a tile of ROWS rows in shared memory. scale has a factor for the
 * upper and one for the lower half of the warp's rows. row: the warp's first row. */
template <typename T, int ROWS, int D>
DEVICE void put_product(T *tile, int row, const float (&x)[D / 2], const float (&scale)[2]) {
    constexpr int PACK = PACK_BYTES / (int)sizeof(T);
    const int     lane = (int)threadIdx.x % WARP;
    #pragma unroll
    for (int d = 0; d < D; d += 16) {
        uint32_t r[4];
        for (int e = 0; e < 4; e++)
            r[e] = pack_pair<T>(x[d / 2 + 2 * e] * scale[e % 2], x[d / 2 + 2 * e + 1] * scale[e % 2]);
        int in_box = row + lane % 16, pack = (d % BOX + lane / 16 * 8) / PACK ^ in_box % 8;
        stmatrix_x4(tile + d / BOX * BOX * ROWS + in_box * BOX + pack * PACK, r);
    }
    __syncwarp();
}
/* Writes the 16 rows of a product that a warp holds, by way of the tile in shared memory, to the rows of a head that
 * begin at row `first`. Leaves out rows beyond the end of the sequence (h.T). */
template <typename T, int ROWS, int D>
DEVICE void store_product(T *to, int stride, int first, T *tile, int row, const float (&x)[D / 2],
                          const float (&scale)[2], const Heads &h) {
    constexpr int PACK = PACK_BYTES / (int)sizeof(T), PACKS = D / PACK;
    const int     lane = (int)threadIdx.x % WARP;
    put_product<T, ROWS, D>(tile, row, x, scale);
    for (int i = lane; i < 16 * PACKS; i += WARP) {
        int in_box = row + i / PACKS, column = i % PACKS * PACK, pack = column % BOX / PACK ^ in_box % 8;
        if (first + i / PACKS < h.T)
            pack_store(to + (int64_t)(first + i / PACKS) * stride + column,
                       pack_load<T, PACK>(tile + column / BOX * BOX * ROWS + in_box * BOX + pack * PACK));
    }
}

#endif

/* --- backward: what its kernels share -----------------------------------------------------------------------------
 *
 * A warpgroup queues the products of a step in the order s dp (exp) dv (ds) dk. Each runs while the next is queued: dp
 * during exp, dv during ds, dk together with the next step's s. While one warpgroup computes exp and ds, the other's
 * products run. With D = 128 dk and dv take half of the registers, and dp waits for exp.
 */

enum { KEYS_STEP = 64 }; /* number of queries in a step of backward */

/* The negated lse and delta of queries pass through TMA as rows of 32 values. */
enum { MINUS_ROW = 32, MINUS_BOX_ROWS = 2, MINUS_BYTES = MINUS_ROW * MINUS_BOX_ROWS * 4 };

static inline TensorMap map_of_minus(const float *minus, int64_t values) {
    return tensor_map_2d(minus, values / MINUS_ROW, MINUS_ROW, MINUS_BOX_ROWS, MINUS_ROW);
}

#ifdef PTX_HOPPER

/* Returns two values of `minus` (-lse or -delta of queries): those of column held_column(i) and of the next one. TMA
 * has stored them swizzled. */
DEVICE float2 column_pair(const float *minus, int i) {
    return *reinterpret_cast<const float2 *>(minus + (held_column(i) ^ i * 2 / MINUS_ROW * 4));
}
/* Replaces s by p = exp(s - lse), with one value of lse for each column. */
template <int N> DEVICE void exponentials(float (&s)[N], const float *lse, float scale_log2) {
    #pragma unroll
    for (int i = 0; i < N; i += 4) {
        const float2 minus = column_pair(lse, i);
        const float  low = minus.x * scale_log2, high = minus.y * scale_log2;
        s[i] = exp2_approx(fmaf(s[i], scale_log2, low)), s[i + 1] = exp2_approx(fmaf(s[i + 1], scale_log2, high));
        s[i + 2] = exp2_approx(fmaf(s[i + 2], scale_log2, low)),
              s[i + 3] = exp2_approx(fmaf(s[i + 3], scale_log2, high));
    }
}
/* Replaces dp by ds = p (dp - delta). p is the rounded one, because the exact p would take as many registers again. */
template <typename T, int N>
DEVICE void multiply_by_scores(float (&dp)[N], const uint32_t (&p)[N / 8][4], const float *delta) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        const float2 minus = column_pair(delta, i), low = unpack_pair<T>(p[i / 8][i / 2 % 4]),
                     high = unpack_pair<T>(p[i / 8][i / 2 % 4 + 1]);
        dp[i] = low.x * (dp[i] + minus.x), dp[i + 1] = low.y * (dp[i + 1] + minus.y);
        dp[i + 2] = high.x * (dp[i + 2] + minus.x), dp[i + 3] = high.y * (dp[i + 3] + minus.y);
    }
}

/* Tiles of a step: 128 keys, of which each warpgroup has 64; KEYS_STEP queries; the negated statistics of these
 * queries. */
template <typename T> struct KeysTiles {
    const T     *k, *v, *q, *dy;
    const float *lse, *delta;
};

/* Computes one step of backward for a warpgroup's 64 keys and KEYS_STEP queries: s and dp, whose rows are keys, and
 * what they add to dv and dk.
 * When it is called, the previous step's product for dk may still run. When it returns, this step's product still runs
 * and reads ds. free_last() is called when the previous product has ended, use(ds) before this step's product begins.
 * Until the caller waits for the product, only the product may read the registers of ds.
 * starts: NULL, or the starts of documents. TIGHT: ds takes the registers of p, after dv's product. */
template <typename T, int D, bool DOCUMENTS, bool TIGHT = false, class F, class G>
DEVICE void keys_step(float (&dk)[D / 2], float (&dv)[D / 2], uint32_t (&ds)[KEYS_STEP / 16][4], const KeysTiles<T> &at,
                      int position, int query, const int32_t *starts, const Heads &h, F free_last, G use) {
    constexpr int  STEP = KEYS_STEP;
    constexpr bool EARLY = D == 64; /* true: the product dp is queued together with s. At D = 128 the registers do not
                                     * suffice for both */
    const int     query_position = position_of(h, query), own = (int)threadIdx.x / WARPGROUP * GROUP_ROWS;
    float         s[STEP / 2], dp[STEP / 2];
    uint32_t      p[STEP / 16][4], kept[STEP / 16][4]; /* kept: a copy of p, whose own registers dv's product uses until
                                                        * a wait */
    wgmma_fence();
    multiply_rows<T, STEP, D, BLOCK_ROWS>(s, at.k, own, at.q, false);
    if (EARLY) multiply_rows<T, STEP, D, BLOCK_ROWS>(dp, at.v, own, at.dy, false);
    wgmma_wait<EARLY ? 1 : 0>(dk, s);
    free_last();
    if (position + GROUP_ROWS - 1 > query_position) mask_later<true>(s, query_position, position);
    if (DOCUMENTS && starts && position < start_at(starts, query + STEP - 1, h))
        mask_earlier<true>(s, starts, query, position, h);
    exponentials(s, at.lse, h.scale_log2);
    round_product<T, STEP>(p, s);
    #pragma unroll
    for (int i = 0; !TIGHT && i < STEP / 4; i++) kept[i / 4][i % 4] = afresh(p[i / 4][i % 4]);
    wgmma_fence();
    if (!EARLY) multiply_rows<T, STEP, D, BLOCK_ROWS>(dp, at.v, own, at.dy, false);
    add_rows<T, STEP, D>(dv, p, at.dy);
    if (TIGHT) wgmma_wait<0>(dp, dv);
    else wgmma_wait<1>(dp);
    multiply_by_scores<T>(dp, TIGHT ? p : kept, at.delta);
    round_product<T, STEP>(ds, dp);
    use(ds);
    wgmma_fence();
    add_rows<T, STEP, D>(dk, ds, at.q);
    if (!TIGHT) wgmma_wait<1>(dv); /* waits for dv's product, which reads p's registers */
}

/* Calls put(), which writes a product into a tile. Then adds up the columns of the warp's rows, as written there, and
 * stores the sums in row_sums. If a sequence has more slices of SUMMED_ROWS rows than h.parts, a later slice adds to a
 * sum that the same warp has stored before. That sum is loaded while put works. A lane has pairs of columns. Rows past
 * T are zeros. first: the warp's first position   column: the tile's first column in dqkv. */
template <typename T, int ROWS, int D, class F>
DEVICE void sum_product(int first, const T *tile, int row, int head, int column, const Heads &h, F put) {
    const int     lane = (int)threadIdx.x % WARP, part = first / SUMMED_ROWS;
    const bool    is_summed = h.row_sums && first < h.T;
    const int64_t at = ((int64_t)(head / h.H) * h.parts + part % h.parts) * h.columns + column;
    float2       *sums = reinterpret_cast<float2 *>(h.row_sums) + at / 2 + lane, sum[D / BOX] = {};
    if (is_summed && part >= h.parts)
        #pragma unroll
        for (int d = 0; d < D / BOX; d++) sum[d] = sums[d * WARP];
    put();
    if (!is_summed) return;
    #pragma unroll 4
    for (int r = row; r < row + SUMMED_ROWS; r++)
        #pragma unroll
        for (int d = 0; d < D / BOX; d++) {
            const T     *pair = tile + d * BOX * ROWS + r * BOX + (lane / 4 ^ r % 8) * 8 + lane % 4 * 2;
            const float2 two = unpack_pair<T>(*reinterpret_cast<const uint32_t *>(pair));
            sum[d].x += two.x, sum[d].y += two.y;
        }
    #pragma unroll
    for (int d = 0; d < D / BOX; d++) sums[d * WARP] = sum[d];
}
/* Writes a tile of a product, x times scale, to global memory by way of `tile` in shared memory. If h.row_sums is set,
 * also writes the sum of each column of the tile to it. to: columns of the head in the first row of the sequence.
 * first: position of the first row of the tile. */
template <typename T, int ROWS, int D>
DEVICE void store_summed(T *to, int stride, int first, T *tile, int row, const float (&x)[D / 2],
                         const float (&scale)[2], int head, int column, const Heads &h) {
    sum_product<T, ROWS, D>(first, tile, row, head, column, h,
                            [&] { store_product<T, ROWS, D>(to, stride, first, tile, row, x, scale, h); });
}

#endif

#endif
