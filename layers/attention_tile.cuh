/* attention_tile.cuh - shared by attention's kernels: a block's place, tiles in shared memory, tensor-core products of
 * tiles.
 *
 * A tile holds rows of one head's q, k, v or dy: D columns of T, padded with zeros to a multiple of 32 (zeros change no
 * product). 16 bytes separate the rows, so that the eight rows of a matrix load are in different banks for each of the
 * widths 32, 64, 96, 128. A warp of the tensor-core kernels owns ATOMS x 16 rows of a product. Scores become the left
 * factor of the next product in registers.
 */
#ifndef TRAIN_GPT_LAYERS_ATTENTION_TILE_CUH
#define TRAIN_GPT_LAYERS_ATTENTION_TILE_CUH

#include "core/kernel.cuh"
#include "core/batch.h"
#include "core/ptx.cuh"
#include "layers/layers.h"

enum { ATOM = 16, ATTENTION_MAX_D = 128, L2_SHARE_BYTES = 16 << 20, SUMMED_ROWS = 16, HEADS_SUMMED = 8 };

/* Parameters of a call of attention, in the form that each kernel gets. */
typedef struct {
    int   T, C, D, H, heads; /* T positions, H query heads of D channels, C = H*D, heads = B*H of B sequences */
    int   group;             /* number of query heads that share a head of keys */
    int   columns;           /* number of columns of qkv */
    int   key_columns;       /* elements from a key to its value in memory */
    Positions at;            /* positions of the rows of queries; without context ranks the position is the row */
    int   context;           /* number of context ranks; 1: keys and values are in qkv, in order */
    int   key_stride;        /* elements from a key to the next in memory */
    int64_t owner_stride;    /* elements from the keys of one context rank to the next rank's */
    int   section;           /* number of heads of keys that fit the L2 cache with their values */
    int   vector;            /* 1: the rows of a head are whole, aligned 16-byte vectors */
    const int32_t *starts;   /* [B,T] for each token the position of the first token of its document; NULL: each
                              * sequence is one document */
    float *row_sums;         /* [B,parts,columns] sums over groups of rows of each column of dqkv, written by the
                              * kernels that use wgmma; NULL: no sums are wanted */
    /* number of groups of rows of a sequence, each with sums of its own: one for every SUMMED_ROWS rows of dqkv, or
     * HEADS_SUMMED groups for the whole sequence */
    int   parts;
    float scale;             /* factor of the scores: 1/sqrt(D) */
    float scale_log2;        /* scale log2(e), because p = exp(scale (q.k - top)) is computed as a power of 2 */
} Heads;

/* Where a block works: on one tile of positions of one head. */
typedef struct {
    int     head, tile; /* head: number among all B*H query heads, the first of its group */
    int64_t qkv, y;     /* elements before the head's first row in qkv (its q) and in y */
    int64_t keys;       /* elements before the head's first row of keys */
} Place;

/* Backward's products start from these negated values of each query, which replaces a subtraction: p = exp(scale (q.k +
 * lse)) and ds = p (dy.v + delta). Rows are padded to a multiple of PADDED queries, where p = 0. */
enum { PADDED = 128 };
/* -lse/scale and -delta: [heads,padded] each, with padded queries a head */
typedef struct { float *lse, *delta; int padded; } Minus;

/* Checks the tensors that forward and backward share, and returns the parameters. */
static inline Heads attention_heads(Tensor y, Tensor lse, Tensor qkv, Tensor starts, ContextPart context,
                                    HeadShape shape) {
    int64_t H = shape.query, T = lse.dim[1], B = lse.dim[0] / H, D = shape.size;
    CHECK(D <= ATTENTION_MAX_D, "a head of %lld channels; the GPU takes up to %d", (long long)D, ATTENTION_MAX_D);
    CHECK(B * T < INT32_MAX && B * H * T < INT32_MAX, "%lld x %lld positions of %lld heads", (long long)B, (long long)T,
          (long long)H);
    Heads h = {};
    h.T = (int)T, h.C = (int)(H * D), h.D = (int)D, h.H = (int)H, h.heads = (int)(B * H);
    h.group = (int)(H / shape.key), h.columns = (int)heads_columns(shape), h.key_columns = (int)(shape.key * D);
    h.at = positions_of(context, T);
    h.context = (int)context.ranks;
    h.key_stride = context.ranks > 1 ? 2 * h.key_columns : h.columns;
    h.owner_stride = B * T * h.key_stride;
    CHECK(B * T * context.ranks < INT32_MAX, "%lld x %lld positions on %lld ranks", (long long)B, (long long)T,
          (long long)context.ranks);
    int64_t fit = L2_SHARE_BYTES / (2 * T * D * (int64_t)dtype_bytes(qkv.type));
    h.section = (int)(fit < 1 ? 1 : fit < B * shape.key ? fit : B * shape.key);
    int64_t per_vector = PACK_BYTES / (int64_t)dtype_bytes(qkv.type);
    h.vector = D % per_vector == 0 && (uintptr_t)qkv.data % PACK_BYTES == 0 && (uintptr_t)y.data % PACK_BYTES == 0;
    h.starts = (const int32_t *)starts.data;
    h.scale = 1.0f / sqrtf((float)D);
    h.scale_log2 = h.scale * 1.44269504f;
    return h;
}

/* Runs the statements with WIDE as D rounded up to one of the widths that kernels are built for. */
#define DISPATCH_WIDE(D, WIDE, ...)                                            \
    do {                                                                       \
        if ((D) <= 32) { constexpr int WIDE = 32; __VA_ARGS__; }               \
        else if ((D) <= 64) { constexpr int WIDE = 64; __VA_ARGS__; }          \
        else if ((D) <= 96) { constexpr int WIDE = 96; __VA_ARGS__; }          \
        else { constexpr int WIDE = ATTENTION_MAX_D; __VA_ARGS__; }            \
    } while (0)

/* Returns the head and tile on which block or item number `block` works. Blocks start in the order of their numbers.
 * Heads follow section by section, so that the rows that tiles of a head share are read from the cache. Within a
 * section tile 0 of all heads comes first, or the last tile if later tiles have more work. A block has `members` query
 * heads: one, or a whole group. */
DEVICE Place attention_place(const Heads &h, int members, int tiles, bool last_first, int block = (int)blockIdx.x) {
    int   section = h.section * h.group / members, first = block / (section * tiles) * section,
          i = block - first * tiles;
    int   wide = min(section, h.heads / members - first);
    Place p;
    p.head = (first + i % wide) * members;
    p.tile = last_first ? tiles - 1 - i / wide : i / wide;
    int64_t row = (int64_t)(p.head / h.H) * h.T, column = (int64_t)(p.head % h.H) * h.D;
    p.qkv = row * h.columns + column;
    p.y = row * h.C + column;
    p.keys = row * h.key_stride + (p.head % h.H / h.group) * (int64_t)h.D + (h.context > 1 ? 0 : h.C);
    return p;
}

DEVICE int position_of(const Heads &h, int row) { return (int)POSITION_OF(h.at, row); }

/* Place in memory of the keys from position `key` on, up to the end of their chunk (whole tiles of 64). It has the
 * context rank that owns the keys, and their first row in that rank's part of the sequence. */
typedef struct { int64_t owner; int row; } KeyRows; /* owner: number of elements in memory before the keys of the
                                                     * context rank that has these keys */
DEVICE KeyRows key_rows(const Heads &h, int key) {
    if (h.context == 1) return {0, key};
    int half = (int)h.at.half, chunk = key / half, owner = chunk < h.context ? chunk : 2 * h.context - 1 - chunk;
    return {owner * h.owner_stride, (chunk < h.context ? 0 : half) + key % half};
}
/* Returns the positions of the rows that context rank `owner` has. */
DEVICE Positions owner_positions(const Heads &h, int owner) {
    Positions p = {h.at.half, owner * h.at.half, (2 * h.context - 2 - owner) * h.at.half}, in_order = {0, 0, 0};
    return h.context > 1 ? p : in_order;
}
/* Returns the first row, a multiple of `step`, whose query may see the key at this position. Later rows have later
 * positions. */
DEVICE int first_query(const Heads &h, int key, int step) {
    int low = key - (int)h.at.low, high = key - (int)h.at.high;
    if (h.context == 1) return key / step * step;
    if (low < (int)h.at.half) return low < 0 ? 0 : low / step * step;
    return high < (int)h.at.half ? (int)h.at.half : high / step * step;
}

/* --- documents: kernels with DOCUMENTS are for sequences that hold several ---------------------------------------- */

/* The softmax's running maximum before a query has met a key of its document. It is below every score, and finite, so
 * that exp(-infinity - NO_SCORE) is 0. */
constexpr float NO_SCORE = -1e38f;

/* Return the starts of a head's sequence: for each row the position of the first key that its query sees. Rows past T
 * have the value of the last row. */
DEVICE const int32_t *starts_of(const Heads &h, int head) { return h.starts + (int64_t)(head / h.H) * h.T; }
DEVICE int            start_at(const int32_t *starts, int row, const Heads &h) { return starts[min(row, h.T - 1)]; }

/* Returns the number of rows whose query's document begins at or before this position. They are the first rows, because
 * starts never fall. All lanes of a warp call it together. */
DEVICE int rows_until(const int32_t *starts, int position, const Heads &h) {
    int low = 0, high = h.T, lane = (int)threadIdx.x % WARP;
    while (low < high) {
        int step = (high - low + WARP - 1) / WARP, row = low + lane * step;
        int n = __popc(__ballot_sync(0xffffffffu, row < high && starts[min(row, h.T - 1)] <= position));
        high = n == 0 ? low : min(high, low + n * step);
        low = n == 0 ? low : low + (n - 1) * step + 1;
    }
    return low;
}

/* Layout of a tile's rows. PACK: elements of a vector; PACKS: vectors of a row; STRIDE: elements from one row to the
 * next. */
template <typename T, int D> struct Row {
    static constexpr int PACK = PACK_BYTES / (int)sizeof(T), PACKS = D / PACK, STRIDE = D + PACK;
};

/* Loads rows [first, first + ROWS) of a head into a tile. Rows of `from` are `stride` elements apart. Past T or D the
 * tile is zero. The block's THREADS share the work. Asynchronous copies belong to the cp.async group that this thread
 * commits next. */
template <typename T, int ROWS, int D, int THREADS>
DEVICE void load_tile(T *tile, const T *from, int stride, int first, const Heads &h) {
    constexpr int PACK = Row<T, D>::PACK, PACKS = Row<T, D>::PACKS, STRIDE = Row<T, D>::STRIDE;
    if (h.vector) {
        #pragma unroll 1 /* unrolling would gain nothing, because the copies are asynchronous, and would cost
                          * registers */
        for (int i = (int)threadIdx.x; i < ROWS * PACKS; i += THREADS) {
            int  row = i / PACKS, column = i % PACKS * PACK;
            bool inside = first + row < h.T && column < h.D;
            const T *source = from + (inside ? (int64_t)(first + row) * stride + column : 0);
            cp_async_16(tile + row * STRIDE + column, source, inside ? PACK_BYTES : 0);
        }
        return;
    }
    #pragma unroll 1
    for (int i = (int)threadIdx.x; i < ROWS * D; i += THREADS) {
        int row = i / D, column = i % D;
        bool inside = first + row < h.T && column < h.D;
        tile[row * STRIDE + column] = inside ? from[(int64_t)(first + row) * stride + column] : from_f32<T>(0.0f);
    }
}

/* Stores rows [first, first + ROWS) of a head from a tile, except rows at or past the sequence length h.T. One warp
 * does it. */
template <typename T, int ROWS, int D>
DEVICE void store_rows(T *to, int stride, const T *tile, int first, const Heads &h) {
    constexpr int PACK = Row<T, D>::PACK, PACKS = Row<T, D>::PACKS, STRIDE = Row<T, D>::STRIDE;
    int           lane = (int)threadIdx.x % WARP;
    if (h.vector) {
        for (int i = lane; i < ROWS * PACKS; i += WARP) {
            int row = i / PACKS, column = i % PACKS * PACK;
            if (first + row < h.T && column < h.D)
                pack_store(to + (int64_t)(first + row) * stride + column,
                           pack_load<T, PACK>(tile + row * STRIDE + column));
        }
        return;
    }
    #pragma unroll 1
    for (int i = lane; i < ROWS * D; i += WARP) {
        int row = i / D, column = i % D;
        if (first + row < h.T && column < h.D)
            to[(int64_t)(first + row) * stride + column] = tile[row * STRIDE + column];
    }
}

/* --- products of 16-bit tiles: fragments as in core/ptx.cuh, g = lane / 4, t = lane % 4 --------------------------- */

/* Loads the left factor of a tensor-core product from a tile in shared memory: ATOMS x 16 rows, 16 columns from
 * `column` on. */
template <typename T, int ATOMS, int D>
DEVICE void load_left(uint32_t (&a)[ATOMS][4], const T *rows, int column) {
    int lane = (int)threadIdx.x % WARP;
    #pragma unroll
    for (int atom = 0; atom < ATOMS; atom++)
        ldmatrix_x4(a[atom], rows + (atom * ATOM + lane % 16) * Row<T, D>::STRIDE + column + lane / 16 * 8);
}

/* Makes the left factor of the next tensor-core product from accumulators: 16 columns, rounded to T. */
template <typename T>
DEVICE void left_of(uint32_t (&a)[4], const float (&low)[4], const float (&high)[4]) {
    a[0] = pack_pair<T>(low[0], low[1]), a[1] = pack_pair<T>(low[2], low[3]);
    a[2] = pack_pair<T>(high[0], high[1]), a[3] = pack_pair<T>(high[2], high[3]);
}

/* s[i][j] += sum over 16 columns d from `column` of a[i][d] rows[j][d]: one step of a product with N rows of a tile,
 * transposed. */
template <typename T, int ATOMS, int N, int D>
DEVICE void add_turned(float (&s)[ATOMS][N / 8][4], const uint32_t (&a)[ATOMS][4], const T *rows, int column) {
    int lane = (int)threadIdx.x % WARP;
    #pragma unroll
    for (int n = 0; n < N; n += 16) {
        uint32_t b[4];
        ldmatrix_x4(b, rows + (n + lane / 16 * 8 + lane % 8) * Row<T, D>::STRIDE + column + lane / 8 % 2 * 8);
        uint32_t b_low[2] = {b[0], b[1]}, b_high[2] = {b[2], b[3]};
        #pragma unroll
        for (int atom = 0; atom < ATOMS; atom++) {
            mma_m16n8k16<T>(s[atom][n / 8], a[atom], b_low);
            mma_m16n8k16<T>(s[atom][n / 8 + 1], a[atom], b_high);
        }
    }
}

/* out[i][d] += sum over 16 rows j of a[i][j] rows[j][d]: one step of a product with a tile that is not transposed. */
template <typename T, int ATOMS, int D>
DEVICE void add_straight(float (&out)[ATOMS][D / 8][4], const uint32_t (&a)[ATOMS][4], const T *rows) {
    int lane = (int)threadIdx.x % WARP;
    #pragma unroll
    for (int d = 0; d < D; d += 16) {
        uint32_t b[4];
        ldmatrix_x4_transposed(b, rows + lane % 16 * Row<T, D>::STRIDE + d + lane / 16 * 8);
        uint32_t b_low[2] = {b[0], b[1]}, b_high[2] = {b[2], b[3]};
        #pragma unroll
        for (int atom = 0; atom < ATOMS; atom++) {
            mma_m16n8k16<T>(out[atom][d / 8], a[atom], b_low);
            mma_m16n8k16<T>(out[atom][d / 8 + 1], a[atom], b_high);
        }
    }
}

/* Writes accumulators times scale[atom][upper or lower half] to a warp's own rows of a tile. */
template <typename T, int ATOMS, int D>
DEVICE void put_rows(T *rows, const float (&out)[ATOMS][D / 8][4], const float (&scale)[ATOMS][2]) {
    int g = (int)threadIdx.x % WARP / 4, t = (int)threadIdx.x % 4;
    #pragma unroll
    for (int atom = 0; atom < ATOMS; atom++)
        #pragma unroll
        for (int n = 0; n < D / 8; n++)
            #pragma unroll
            for (int side = 0; side < 2; side++)
                *reinterpret_cast<uint32_t *>(rows + (atom * ATOM + side * 8 + g) * Row<T, D>::STRIDE + n * 8 +
                                              2 * t) = pack_pair<T>(out[atom][n][2 * side] * scale[atom][side],
                                                                    out[atom][n][2 * side + 1] * scale[atom][side]);
}

/* Return the row and column, in a warp's product, of element e of accumulator n in an atom (16 rows). */
DEVICE int accumulator_row(int atom, int e) { return atom * ATOM + e / 2 * 8 + (int)threadIdx.x % WARP / 4; }
DEVICE int accumulator_column(int n, int e) { return n * 8 + (int)threadIdx.x % 4 * 2 + e % 2; }

/* Calls f(atom, n, e) for element e of each accumulator n of a thread, in each atom (16 rows) of the warp's product. */
template <int ATOMS, int N, class F> DEVICE void each_accumulator(F f) {
    #pragma unroll
    for (int atom = 0; atom < ATOMS; atom++)
        #pragma unroll
        for (int n = 0; n < N; n++)
            #pragma unroll
            for (int e = 0; e < 4; e++) f(atom, n, e);
}

/* Masks later keys: scores of keys after their query become -infinity. Rows are queries from position `query` on and
 * columns are keys from `key` on; if TURNED, rows are keys and columns queries. */
template <bool TURNED, int ATOMS, int N> DEVICE void mask_scores(float (&s)[ATOMS][N][4], int query, int key) {
    each_accumulator<ATOMS, N>([&](int atom, int n, int e) {
        int row = accumulator_row(atom, e), column = accumulator_column(n, e);
        if (key + (TURNED ? row : column) > query + (TURNED ? column : row)) s[atom][n][e] = -INFINITY;
    });
}

/* Masks earlier documents: scores of keys before their query's document become -infinity. row: row of the first query,
 * in `starts`. */
template <bool TURNED, int ATOMS, int N>
DEVICE void mask_documents(float (&s)[ATOMS][N][4], const int32_t *starts, int row, int key, const Heads &h) {
    each_accumulator<ATOMS, N>([&](int atom, int n, int e) {
        int down = accumulator_row(atom, e), across = accumulator_column(n, e);
        if (key + (TURNED ? down : across) < start_at(starts, row + (TURNED ? across : down), h))
            s[atom][n][e] = -INFINITY;
    });
}

/* --- fp32: products of tiles, for attention in strict f32. No tensor core multiplies two f32 numbers exactly enough. -
 *
 * 256 threads as 16 x 16, (ty, tx). A thread has M x M scores of a ROWS x ROWS tile, rows ty M + i, columns tx + 16
 * j, and M x D/16 elements of a product with D columns, the same rows. The 16 threads of a row are half a warp. They
 * alone write and read its scores in the shared tile, and __syncwarp() orders that.
 */

enum { F32_SIDE = 16 }; /* fp32 kernels: a block has F32_SIDE x F32_SIDE threads */

template <int D> struct F32Tile {
    static constexpr int THREADS = F32_SIDE * F32_SIDE;
    /* M: rows of a tile that a thread has; ROWS: rows of a tile; COLUMNS: columns that a thread has of a product with D
     * columns */
    static constexpr int M = D <= 64 ? 4 : 2, ROWS = M * F32_SIDE, COLUMNS = D / F32_SIDE;
    static constexpr int ELEMS = ROWS * Row<float, D>::STRIDE;                     /* floats that a tile of positions
                                                                                    * takes */
    static constexpr int SCORE_STRIDE = Row<float, ROWS>::STRIDE, SCORE_ELEMS = ROWS * SCORE_STRIDE;
};

DEVICE int f32_tx() { return (int)threadIdx.x % 16; }
DEVICE int f32_ty() { return (int)threadIdx.x / 16; }

/* s = a b^T over D columns. Rows of b that half a warp reads together are in different banks; those of a are
 * broadcast. */
template <int D> DEVICE void f32_scores(float (&s)[F32Tile<D>::M][F32Tile<D>::M], const float *a, const float *b) {
    constexpr int M = F32Tile<D>::M, STRIDE = Row<float, D>::STRIDE;
    for (int i = 0; i < M; i++)
        for (int j = 0; j < M; j++) s[i][j] = 0.0f;
    #pragma unroll 2
    for (int d = 0; d < D; d += 4) {
        Pack<float, 4> left[M], right[M];
        #pragma unroll
        for (int i = 0; i < M; i++) {
            left[i] = pack_load<float, 4>(a + (f32_ty() * M + i) * STRIDE + d);
            right[i] = pack_load<float, 4>(b + (f32_tx() + 16 * i) * STRIDE + d);
        }
        #pragma unroll
        for (int i = 0; i < M; i++)
            #pragma unroll
            for (int j = 0; j < M; j++)
                #pragma unroll
                for (int e = 0; e < 4; e++) s[i][j] = fmaf(left[i].v[e], right[j].v[e], s[i][j]);
    }
}

/* Writes a thread's scores to the shared tile p, then out += p x. The first barrier protects threads that still read
 * p's old scores. */
template <int D>
DEVICE void f32_add(float (&out)[F32Tile<D>::M][F32Tile<D>::COLUMNS], float *p,
                    const float (&s)[F32Tile<D>::M][F32Tile<D>::M], const float *x) {
    constexpr int M = F32Tile<D>::M, STRIDE = Row<float, D>::STRIDE, SCORES = F32Tile<D>::SCORE_STRIDE;
    __syncwarp();
    #pragma unroll
    for (int i = 0; i < M; i++)
        #pragma unroll
        for (int j = 0; j < M; j++) p[(f32_ty() * M + i) * SCORES + f32_tx() + 16 * j] = s[i][j];
    __syncwarp();
    #pragma unroll 1
    for (int row = 0; row < F32Tile<D>::ROWS; row += 4) {
        Pack<float, 4> left[M];
        #pragma unroll
        for (int i = 0; i < M; i++) left[i] = pack_load<float, 4>(p + (f32_ty() * M + i) * SCORES + row);
        #pragma unroll
        for (int e = 0; e < 4; e++)
            #pragma unroll
            for (int c = 0; c < F32Tile<D>::COLUMNS; c++) {
                float right = x[(row + e) * STRIDE + f32_tx() + 16 * c];
                #pragma unroll
                for (int i = 0; i < M; i++) out[i][c] = fmaf(left[i].v[e], right, out[i][c]);
            }
    }
}

/* Stores rows [first, first + ROWS) of a head: `out`, with each row i of the thread multiplied by scale[i]. */
template <int D>
DEVICE void f32_store(float *to, int stride, const float (&out)[F32Tile<D>::M][F32Tile<D>::COLUMNS],
                      const float (&scale)[F32Tile<D>::M], int first, const Heads &h) {
    for (int i = 0; i < F32Tile<D>::M; i++)
        for (int c = 0; c < F32Tile<D>::COLUMNS; c++) {
            int row = first + f32_ty() * F32Tile<D>::M + i, column = f32_tx() + 16 * c;
            if (row < h.T && column < h.D) to[(int64_t)row * stride + column] = out[i][c] * scale[i];
        }
}

#endif
