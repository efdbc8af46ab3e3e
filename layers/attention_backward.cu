/* attention_backward.cu - CUDA side of attention_backward in layers.h; the CPU twin is attention.c, kernels
 * for compute capability 9.0 are in attention_hopper_backward.cu.
 *
 * With p = exp(q.k - lse) recomputed tile by tile, delta_i = dy_i.y_i and ds_ij = p_ij (dy_i.v_j - delta_i):
 *     dv_j = sum_i p_ij dy_i      dk_j = scale sum_i ds_ij q_i      dq_i = scale sum_j ds_ij k_j
 * delta is given, or computed first. There are three kernels. The first prepares lse and delta. In
 * the second, blocks of keys walk the queries of one head of the group after another (dk, dv). In the third, blocks of
 * queries walk the keys (dq). Scores are computed twice: seven products a tile where five would do. In return no two
 * blocks add to one place, and the bits are the same every time.
 */
#include "layers/contracts.h"
#include "layers/attention_hopper.h"
#include "layers/attention_tile.cuh"

/* --- statistics of a query that are needed before its scores ------------------------------------------------------ */

enum { PREPARE_THREADS = 256 };

/* Sets minus: the negated lse and delta of each query, from which backward's products start. Each thread takes one
 * query of one head. grid ceil(heads * padded / 256), no shared memory. Bound by memory: 16 bytes a query. */
KERNEL attention_prepare_kernel(Minus minus, const float *lse, const float *delta, Heads h) {
    await_kernels();
    int64_t at = (int64_t)blockIdx.x * PREPARE_THREADS + threadIdx.x;
    int     row = (int)(at / minus.padded), t = (int)(at % minus.padded); /* row: number of the head among all heads of
                                                                           * all sequences; t: position of the query */
    if (row >= h.heads) return;
    bool there = t < h.T;
    minus.lse[at] = there ? -lse[(int64_t)row * h.T + t] / h.scale : -INFINITY;
    minus.delta[at] = there ? -delta[((int64_t)(row % h.H) * (h.heads / h.H) + row / h.H) * h.T + t] : 0.0f;
}

/* --- bf16 and fp16: tensor cores ---------------------------------------------------------------------------------- */

/* A block's own pair of tiles, (k, v) or (q, dy), stays in shared memory. The other pair passes through two stages,
 * STEP rows at once. */
template <int D> struct BackwardTile {
    static constexpr int ATOMS = D <= 64 ? 2 : 1, WARPS = 4, THREADS = WARPS * WARP, ROWS = ATOMS * ATOM,
                         OWN = WARPS * ROWS, STEP = 32;
    static constexpr int STRIDE = Row<bf16, D>::STRIDE, OWN_ELEMS = OWN * STRIDE, STEP_ELEMS = STEP * STRIDE;
    static constexpr int STAGES_AT = 2 * OWN_ELEMS, STAGE_ELEMS = 2 * STEP_ELEMS,
                         STATISTICS_AT = STAGES_AT + 2 * STAGE_ELEMS;
    /* the last term is for lse and delta of the queries in two stages */
    static constexpr int SHARED_BYTES = STATISTICS_AT * 2 + 2 * 2 * STEP * (int)sizeof(float);
};

/* Matrices in memory from which a pair of tiles is loaded: k and v, or q and dy. */
template <typename T> struct Pair {
    const T *first, *second;
    int      first_stride, second_stride;
};

template <typename T, int ROWS, int D, int THREADS>
DEVICE void load_pair(T *tiles, Pair<T> from, int row, const Heads &h) {
    load_tile<T, ROWS, D, THREADS>(tiles, from.first, from.first_stride, row, h);
    load_tile<T, ROWS, D, THREADS>(tiles + ROWS * Row<T, D>::STRIDE, from.second, from.second_stride, row, h);
    cp_async_commit();
}

/* Loads a tile of keys and one of values, from position `key` on, into shared memory. */
template <typename T, int ROWS, int D> DEVICE void load_keys(T *tiles, const T *keys, int key, const Heads &h) {
    KeyRows from = key_rows(h, key);
    load_pair<T, ROWS, D, BackwardTile<D>::THREADS>(
        tiles, {keys + from.owner, keys + from.owner + h.key_columns, h.key_stride, h.key_stride}, from.row, h);
}

/* Loads the negated lse and delta of STEP queries, from element `at` on, into shared memory. */
template <int STEP> DEVICE void load_minus(float *to, const Minus &minus, int64_t at) {
    constexpr int PACK = PACK_BYTES / (int)sizeof(float), PACKS = STEP / PACK;
    int           i = (int)threadIdx.x % PACKS * PACK;
    if (threadIdx.x < PACKS) cp_async_16(to + i, minus.lse + at + i, PACK_BYTES);
    else if (threadIdx.x < 2 * PACKS) cp_async_16(to + STEP + i, minus.delta + at + i, PACK_BYTES);
}

/* Adds to s the product of the warp's own rows with the rows of a step, transposed. The left factor is reloaded for
 * each 16 columns. */
template <typename T, int D, int ATOMS, int N>
DEVICE void scores_of(float (&s)[ATOMS][N / 8][4], const T *own, const T *step) {
    #pragma unroll
    for (int d = 0; d < D; d += 16) {
        uint32_t a[ATOMS][4];
        load_left<T, ATOMS, D>(a, own, d);
        add_turned<T, ATOMS, N, D>(s, a, step, d);
    }
}

/* round_scores rounds scores to T and makes them left factors of the next product. add_scores adds that product: out +=
 * p x over a step's rows. */
template <typename T, int ATOMS, int N>
DEVICE void round_scores(uint32_t (&p)[N / 16][ATOMS][4], const float (&s)[ATOMS][N / 8][4]) {
    #pragma unroll
    for (int j = 0; j < N / 16; j++)
        #pragma unroll
        for (int atom = 0; atom < ATOMS; atom++) left_of<T>(p[j][atom], s[atom][2 * j], s[atom][2 * j + 1]);
}
template <typename T, int D, int ATOMS, int N16>
DEVICE void add_scores(float (&out)[ATOMS][D / 8][4], const uint32_t (&p)[N16][ATOMS][4], const T *x) {
    #pragma unroll
    for (int j = 0; j < N16; j++) add_straight<T, ATOMS, D>(out, p[j], x + j * 16 * BackwardTile<D>::STRIDE);
}

/* Sets each column of s to the value of `minus` for its query, -lse or -delta. The products are then added to s. */
template <int ATOMS, int N> DEVICE void begin_columns(float (&s)[ATOMS][N][4], const float *minus) {
    #pragma unroll
    for (int n = 0; n < N; n++) {
        float low = minus[accumulator_column(n, 0)], high = minus[accumulator_column(n, 1)];
        #pragma unroll
        for (int atom = 0; atom < ATOMS; atom++)
            s[atom][n][0] = s[atom][n][2] = low, s[atom][n][1] = s[atom][n][3] = high;
    }
}

/* Replaces s, the scores minus lse, by p = 2^(scale_log2 s). */
template <int ATOMS, int N> DEVICE void exponentials(float (&s)[ATOMS][N][4], float scale_log2) {
    each_accumulator<ATOMS, N>([&](int atom, int n, int e) {
        s[atom][n][e] = exp2_approx(s[atom][n][e] * scale_log2);
    });
}

/* Multiplies ds, which holds dp - delta, by p. p is the rounded one, because the exact p would take as many registers
 * again. */
template <typename T, int ATOMS, int N>
DEVICE void multiply_rounded(float (&ds)[ATOMS][N / 8][4], const uint32_t (&p)[N / 16][ATOMS][4]) {
    #pragma unroll
    for (int atom = 0; atom < ATOMS; atom++)
        #pragma unroll
        for (int n = 0; n < N / 8; n++)
            #pragma unroll
            for (int side = 0; side < 2; side++) {
                float2 pair = unpack_pair<T>(p[n / 2][atom][n % 2 * 2 + side]);
                ds[atom][n][2 * side] *= pair.x, ds[atom][n][2 * side + 1] *= pair.y;
            }
}

/* Position of a block of keys in its walk over the queries that see it: the first row of the step (begin <= query <
 * end) and the head of the group. If the group is one head (PLAIN), the row number alone shows whether queries are
 * left. That saves one register. At D = 64 the kernel has none to spare. */
typedef struct { int query, head; } Walk;
template <bool PLAIN> DEVICE void walk_on(Walk &w, int step, int begin, int end) {
    w.query += step;
    if (PLAIN || w.query < end) return;
    w.query = begin;
    w.head++;
}
template <bool PLAIN> DEVICE bool has_more(const Walk &w, int end, int group) {
    return PLAIN ? w.query < end : w.head < group;
}
/* Returns the matrices from which head number `head` of the group is loaded, given those of the group's first head. */
template <typename T> DEVICE Pair<T> pair_of(Pair<T> first, int head, const Heads &h) {
    return {first.first + head * h.D, first.second + head * h.D, first.first_stride, first.second_stride};
}

/* Values that a block of keys reads once a step, or only at its end. They are in shared memory, because no register is
 * free. */
typedef struct { int64_t keys_at; const int32_t *starts; int begin, end; } KeysKept;

/* Computes dk and dv. A block has OWN keys of one head, a warp ROWS of them with dk and dv in registers. It walks the
 * queries of its group's heads from the diagonal to the end of the keys' documents. PLAIN: neither groups nor
 * documents. grid heads of keys * tiles, 55 KiB of shared memory at D = 64. No two blocks write to one place. Bound by
 * the tensor cores, with four products a tile. */
template <typename T, int D, bool PLAIN>
KERNEL __launch_bounds__(BackwardTile<D>::THREADS, 2)
attention_backward_keys_kernel(T *dkeys, const T *dy, Minus minus, const T *qkv, const T *keys, Heads h) {
    typedef BackwardTile<D> Tile;
    constexpr int ATOMS = Tile::ATOMS, STEP = Tile::STEP;
    SMEM_DYN(T, shared);
    SMEM(KeysKept, kept, [1]);
    const int     tiles = (h.T + Tile::OWN - 1) / Tile::OWN;
    const Place   p = attention_place(h, h.group, h.context * tiles, false);
    const int     owner = p.tile / tiles, warp = (int)threadIdx.x / WARP, block_key = p.tile % tiles * Tile::OWN,
              key = block_key + warp * Tile::ROWS;
    const int64_t keys_at = p.keys + owner * h.owner_stride;
    const Pair<T> own = {keys + keys_at, keys + keys_at + h.key_columns, h.key_stride, h.key_stride},
                  other = {qkv + p.qkv, dy + p.y, h.columns, h.C};
    const Positions at = owner_positions(h, owner);
    /* position: that of the warp's first key; begin: the first row of queries that may see the block's keys */
    const int     position = (int)POSITION_OF(at, key), begin = first_query(h, (int)POSITION_OF(at, block_key), STEP);
    T            *k_rows = shared + warp * Tile::ROWS * Tile::STRIDE, *v_rows = k_rows + Tile::OWN_ELEMS;
    float        *statistics = reinterpret_cast<float *>(shared + Tile::STATISTICS_AT);
    const int32_t *starts = PLAIN || !h.starts ? NULL : starts_of(h, p.head);
    const int last = min(block_key + Tile::OWN, h.T) - 1,
              end = starts ? rows_until(starts, (int)POSITION_OF(at, last), h) : h.T, group = PLAIN ? 1 : h.group;
    Walk          next = {begin, begin < end ? 0 : group};

    if (threadIdx.x == 0) kept[0] = {keys_at, starts, begin, end};
    __syncthreads(); /* after this all threads may read `kept` */
    load_pair<T, Tile::OWN, D, Tile::THREADS>(shared, own, block_key, h);
    if (has_more<PLAIN>(next, kept->end, group)) {
        load_minus<STEP>(statistics, minus, (int64_t)p.head * minus.padded + begin);
        load_pair<T, STEP, D, Tile::THREADS>(shared + Tile::STAGES_AT, other, begin, h);
    }
    float dk[ATOMS][D / 8][4] = {}, dv[ATOMS][D / 8][4] = {};
    #pragma unroll 1
    for (int stage = 0; has_more<PLAIN>(next, kept->end, group); stage ^= 1) {
        const int    query = next.query, query_position = position_of(h, query);
        const T     *q = shared + Tile::STAGES_AT + stage * Tile::STAGE_ELEMS, *d = q + Tile::STEP_ELEMS;
        const float *step_minus = statistics + stage * 2 * STEP;
        cp_async_wait<0>();
        __syncthreads(); /* after this the tiles of this step are loaded, and all threads have read the other stage */
        walk_on<PLAIN>(next, STEP, kept->begin, kept->end);
        if (has_more<PLAIN>(next, kept->end, group)) {
            load_minus<STEP>(statistics + (stage ^ 1) * 2 * STEP, minus,
                             (int64_t)(PLAIN ? p.head : p.head + next.head) * minus.padded + next.query);
            load_pair<T, STEP, D, Tile::THREADS>(shared + Tile::STAGES_AT + (stage ^ 1) * Tile::STAGE_ELEMS,
                                                 PLAIN ? other : pair_of(other, next.head, h), next.query, h);
        }
        if (position < query_position + STEP && key < h.T) { /* otherwise no query of the step sees a key of the warp */
            float    s[ATOMS][STEP / 8][4];
            uint32_t rounded[STEP / 16][ATOMS][4];
            begin_columns(s, step_minus);
            scores_of<T, D, ATOMS, STEP>(s, k_rows, q);
            if (position + Tile::ROWS - 1 > query_position) mask_scores<true>(s, query_position, position);
            if (!PLAIN && h.starts && position < start_at(kept->starts, query + STEP - 1, h))
                mask_documents<true>(s, kept->starts, query, position, h);
            exponentials(s, h.scale_log2);
            round_scores<T, ATOMS, STEP>(rounded, s);
            add_scores<T, D, ATOMS>(dv, rounded, d);
            begin_columns(s, step_minus + STEP);
            scores_of<T, D, ATOMS, STEP>(s, v_rows, d);
            multiply_rounded<T, ATOMS, STEP>(s, rounded);
            round_scores<T, ATOMS, STEP>(rounded, s);
            add_scores<T, D, ATOMS>(dk, rounded, q);
        }
    }
    /* Only the warp itself reads its rows of the block's own tiles, k and v, so its results pass through these rows. */
    float one[ATOMS][2], scale[ATOMS][2];
    for (int i = 0; i < ATOMS; i++) one[i][0] = one[i][1] = 1.0f, scale[i][0] = scale[i][1] = h.scale;
    cp_async_wait<0>(); /* waits for the loads of k and v, which still run if no query sees the keys */
    __syncthreads();
    put_rows<T, ATOMS, D>(k_rows, dk, scale);
    put_rows<T, ATOMS, D>(v_rows, dv, one);
    __syncwarp();
    store_rows<T, Tile::ROWS, D>(dkeys + kept->keys_at, h.key_stride, k_rows, key, h);
    store_rows<T, Tile::ROWS, D>(dkeys + kept->keys_at + h.key_columns, h.key_stride, v_rows, key, h);
}

/* Computes dq. A block has OWN queries of one head, a warp ROWS of them with dq in registers, and walks the keys up to
 * the diagonal. grid, shared memory and determinism are those of the keys kernel. Bound by the tensor cores, with three
 * products a tile. */
template <typename T, int D, bool DOCUMENTS>
KERNEL __launch_bounds__(BackwardTile<D>::THREADS, 2)
attention_backward_queries_kernel(T *dqkv, const T *dy, Minus minus, const T *qkv, const T *keys, Heads h) {
    typedef BackwardTile<D> Tile;
    constexpr int ATOMS = Tile::ATOMS, STEP = Tile::STEP;
    SMEM_DYN(T, shared);
    const Place   p = attention_place(h, 1, (h.T + Tile::OWN - 1) / Tile::OWN, true);
    const Pair<T> own = {qkv + p.qkv, dy + p.y, h.columns, h.C};
    const int warp = (int)threadIdx.x / WARP, block_query = p.tile * Tile::OWN, query = block_query + warp * Tile::ROWS,
              position = position_of(h, query);
    T            *q_rows = shared + warp * Tile::ROWS * Tile::STRIDE, *d_rows = q_rows + Tile::OWN_ELEMS;
    const int32_t *starts = DOCUMENTS ? starts_of(h, p.head) : NULL;
    const int     begin = DOCUMENTS ? starts[block_query] / STEP * STEP : 0;

    load_pair<T, Tile::OWN, D, Tile::THREADS>(shared, own, block_query, h);
    load_keys<T, STEP, D>(shared + Tile::STAGES_AT, keys + p.keys, begin, h);
    float row_lse[ATOMS][2], row_delta[ATOMS][2], dq[ATOMS][D / 8][4] = {};
    for (int atom = 0; atom < ATOMS; atom++)
        for (int side = 0; side < 2; side++) {
            int row = query + accumulator_row(atom, 2 * side);
            row_lse[atom][side] = minus.lse[(int64_t)p.head * minus.padded + row];
            row_delta[atom][side] = minus.delta[(int64_t)p.head * minus.padded + row];
        }
    const int end = position_of(h, min(block_query + Tile::OWN, h.T) - 1) + 1;
    for (int key = begin, stage = 0; key < end; key += STEP, stage ^= 1) {
        const T *k = shared + Tile::STAGES_AT + stage * Tile::STAGE_ELEMS, *v = k + Tile::STEP_ELEMS;
        cp_async_wait<0>();
        __syncthreads(); /* after this the tiles of this step are loaded, and all threads have read the other stage */
        if (key + STEP < end)
            load_keys<T, STEP, D>(shared + Tile::STAGES_AT + (stage ^ 1) * Tile::STAGE_ELEMS, keys + p.keys, key + STEP,
                                  h);
        if (key < position + Tile::ROWS && query < h.T) {
            float s[ATOMS][STEP / 8][4], ds[ATOMS][STEP / 8][4];
            each_accumulator<ATOMS, STEP / 8>([&](int atom, int n, int e) { s[atom][n][e] = row_lse[atom][e / 2]; });
            each_accumulator<ATOMS, STEP / 8>([&](int atom, int n, int e) { ds[atom][n][e] = row_delta[atom][e / 2]; });
            scores_of<T, D, ATOMS, STEP>(s, q_rows, k);
            scores_of<T, D, ATOMS, STEP>(ds, d_rows, v);
            if (key + STEP - 1 > position) mask_scores<false>(s, position, key);
            if (DOCUMENTS && key < start_at(starts, query + Tile::ROWS - 1, h))
                mask_documents<false>(s, starts, query, key, h);
            exponentials(s, h.scale_log2);
            each_accumulator<ATOMS, STEP / 8>([&](int atom, int n, int e) { ds[atom][n][e] *= s[atom][n][e]; });
            uint32_t rounded[STEP / 16][ATOMS][4];
            round_scores<T, ATOMS, STEP>(rounded, ds);
            add_scores<T, D, ATOMS>(dq, rounded, k);
        }
    }
    float scale[ATOMS][2];
    for (int i = 0; i < ATOMS; i++) scale[i][0] = scale[i][1] = h.scale;
    __syncwarp();
    put_rows<T, ATOMS, D>(q_rows, dq, scale);
    __syncwarp();
    store_rows<T, Tile::ROWS, D>(dqkv + p.qkv, h.columns, q_rows, query, h);
}

/* --- fp32: scalar ------------------------------------------------------------------------------------------------- */

/* Replaces one score s by its probability p, and ds, which holds the gradient of p, by the gradient of the score. The
 * query's lse and delta are at element `at` of minus; it sees keys `first` to `position`. */
DEVICE void f32_ds(float &s, float &ds, const Minus &minus, int64_t at, int first, int position, int key,
                   float scale_log2) {
    s = key >= first && key <= position ? exp2f((s + minus.lse[at]) * scale_log2) : 0.0f;
    ds = s * (ds + minus.delta[at]);
}

/* Computes the gradients of keys and values in fp32; for 16-bit types attention_backward_keys_kernel does. A block has
 * F32Tile::ROWS keys. Each thread computes M x M transposed scores of a tile. */
template <int D, bool PLAIN>
KERNEL __launch_bounds__(F32Tile<D>::THREADS, 1)
    attention_backward_keys_f32_kernel(float *dkeys, const float *dy, Minus minus, const float *qkv, const float *keys,
                                       Heads h) {
    typedef F32Tile<D> Tile;
    constexpr int     M = Tile::M;
    SMEM_DYN(float, shared);
    const int         tiles = (h.T + Tile::ROWS - 1) / Tile::ROWS;
    const Place       p = attention_place(h, h.group, h.context * tiles, false);
    const int         owner = p.tile / tiles, block_key = p.tile % tiles * Tile::ROWS;
    const int64_t     keys_at = p.keys + owner * h.owner_stride;
    const Pair<float> own = {keys + keys_at, keys + keys_at + h.key_columns, h.key_stride, h.key_stride},
                      other = {qkv + p.qkv, dy + p.y, h.columns, h.C};
    const Positions   at = owner_positions(h, owner);
    const int         position = (int)POSITION_OF(at, block_key), begin = first_query(h, position, Tile::ROWS);
    float *k = shared, *v = k + Tile::ELEMS, *q = v + Tile::ELEMS, *d = q + Tile::ELEMS, *p_tile = d + Tile::ELEMS;
    float             dk[M][Tile::COLUMNS] = {}, dv[M][Tile::COLUMNS] = {}, one[M], scale[M];
    for (int i = 0; i < M; i++) one[i] = 1.0f, scale[i] = h.scale;
    load_pair<float, Tile::ROWS, D, Tile::THREADS>(k, own, block_key, h);
    const int32_t *starts = PLAIN || !h.starts ? NULL : starts_of(h, p.head);
    const int last = min(block_key + Tile::ROWS, h.T) - 1,
              end = starts ? rows_until(starts, (int)POSITION_OF(at, last), h) : h.T, group = PLAIN ? 1 : h.group;
    for (Walk now = {begin, begin < end ? 0 : group}; now.head < group; walk_on<false>(now, Tile::ROWS, begin, end)) {
        const int     query_position = position_of(h, now.query);
        const int64_t minus_at = (int64_t)(p.head + now.head) * minus.padded + now.query;
        __syncthreads(); /* after this all threads have read the previous step's tiles, which may be overwritten */
        load_pair<float, Tile::ROWS, D, Tile::THREADS>(q, PLAIN ? other : pair_of(other, now.head, h), now.query, h);
        cp_async_wait<0>();
        __syncthreads(); /* after this the tiles of this step are complete in shared memory */
        float s[M][M], ds[M][M];
        f32_scores<D>(s, k, q);
        f32_scores<D>(ds, v, d);
        for (int i = 0; i < M; i++)
            for (int j = 0; j < M; j++)
                f32_ds(s[i][j], ds[i][j], minus, minus_at + f32_tx() + 16 * j,
                       !PLAIN && starts ? start_at(starts, now.query + f32_tx() + 16 * j, h) : INT32_MIN,
                       query_position + f32_tx() + 16 * j, position + f32_ty() * M + i, h.scale_log2);
        f32_add<D>(dv, p_tile, s, d);
        f32_add<D>(dk, p_tile, ds, q);
    }
    cp_async_wait<0>(); /* waits for the loads of k and v, which still run if no query sees the keys */
    f32_store<D>(dkeys + keys_at, h.key_stride, dk, scale, block_key, h);
    f32_store<D>(dkeys + keys_at + h.key_columns, h.key_stride, dv, one, block_key, h);
}

/* Does what attention_backward_queries_kernel does, for fp32. A block has ROWS queries. */
template <int D, bool DOCUMENTS>
KERNEL __launch_bounds__(F32Tile<D>::THREADS, 1)
    attention_backward_queries_f32_kernel(float *dqkv, const float *dy, Minus minus, const float *qkv,
                                          const float *keys, Heads h) {
    typedef F32Tile<D> Tile;
    constexpr int     M = Tile::M;
    SMEM_DYN(float, shared);
    const Place       p = attention_place(h, 1, (h.T + Tile::ROWS - 1) / Tile::ROWS, true);
    const Pair<float> own = {qkv + p.qkv, dy + p.y, h.columns, h.C};
    const int         block_query = p.tile * Tile::ROWS, position = position_of(h, block_query);
    float *q = shared, *d = q + Tile::ELEMS, *k = d + Tile::ELEMS, *v = k + Tile::ELEMS, *p_tile = v + Tile::ELEMS;
    const int32_t    *starts = DOCUMENTS ? starts_of(h, p.head) : NULL;
    const int         begin = DOCUMENTS ? starts[block_query] / Tile::ROWS * Tile::ROWS : 0;
    float             dq[M][Tile::COLUMNS] = {}, scale[M];
    for (int i = 0; i < M; i++) scale[i] = h.scale;
    load_pair<float, Tile::ROWS, D, Tile::THREADS>(q, own, block_query, h);
    for (int key = begin; key <= position; key += Tile::ROWS) {
        KeyRows from = key_rows(h, key);
        __syncthreads(); /* after this all threads have read the previous step's tiles, which may be overwritten */
        load_pair<float, Tile::ROWS, D, Tile::THREADS>(
            k,
            {keys + p.keys + from.owner, keys + p.keys + from.owner + h.key_columns, h.key_stride, h.key_stride},
            from.row, h);
        cp_async_wait<0>();
        __syncthreads(); /* after this the tiles of this step are complete in shared memory */
        float s[M][M], ds[M][M];
        f32_scores<D>(s, q, k);
        f32_scores<D>(ds, d, v);
        for (int i = 0; i < M; i++)
            for (int j = 0; j < M; j++)
                f32_ds(s[i][j], ds[i][j], minus, (int64_t)p.head * minus.padded + block_query + f32_ty() * M + i,
                       DOCUMENTS ? start_at(starts, block_query + f32_ty() * M + i, h) : INT32_MIN,
                       position + f32_ty() * M + i, key + f32_tx() + 16 * j, h.scale_log2);
        f32_add<D>(dq, p_tile, ds, k);
    }
    f32_store<D>(dqkv + p.qkv, h.columns, dq, scale, block_query, h);
}

/* --- host --------------------------------------------------------------------------------------------------------- */

template <typename T, int D, bool PLAIN, bool DOCUMENTS>
static void backward_launch(Stream *s, T *dqkv, T *dkeys, const T *dy, Minus minus, const T *qkv, const T *keys,
                            Heads h) {
    if constexpr (std::is_same_v<T, float>) {
        /* shared memory: tiles of q, dy, k and v, and one of p or ds */
        constexpr int THREADS = F32Tile<D>::THREADS, BYTES = (4 * F32Tile<D>::ELEMS + F32Tile<D>::SCORE_ELEMS) * 4;
        unsigned      grid = (unsigned)(h.heads * blocks_for(h.T, F32Tile<D>::ROWS)),
                      keys_grid = grid / (unsigned)h.group * (unsigned)h.context;
        LAUNCH((attention_backward_keys_f32_kernel<D, PLAIN>), keys_grid, THREADS, BYTES, s, dkeys, dy, minus, qkv,
               keys, h);
        LAUNCH((attention_backward_queries_f32_kernel<D, DOCUMENTS>), grid, THREADS, BYTES, s, dqkv, dy, minus, qkv,
               keys, h);
    } else {
        typedef BackwardTile<D> Tile;
        unsigned grid = (unsigned)(h.heads * blocks_for(h.T, Tile::OWN)),
                 keys_grid = grid / (unsigned)h.group * (unsigned)h.context;
        LAUNCH((attention_backward_keys_kernel<T, D, PLAIN>), keys_grid, Tile::THREADS, Tile::SHARED_BYTES, s, dkeys,
               dy, minus, qkv, keys, h);
        LAUNCH((attention_backward_queries_kernel<T, D, DOCUMENTS>), grid, Tile::THREADS, Tile::SHARED_BYTES, s, dqkv,
               dy, minus, qkv, keys, h);
    }
}

/* Checks a call of attention's backward pass, computes delta if the caller has none, and queues the kernels. f: NULL,
 * or dqkv is written as 8-bit codes with the scale in f. Returns whether the kernels have added to dbias. For that they
 * take memory for row_sums and a pass over it, both small compared to dqkv. */
static int backward(Stream *s, Tensor dqkv, const Fp8 *f, Tensor dbias, Tensor dkeys, Tensor dy, Tensor y, Tensor lse,
                    Tensor delta, Tensor qkv, Tensor keys, Tensor starts, ContextPart context, HeadShape shape) {
    size_t mark = arena_mark(&s->scratch);
    bool   by_heads = tensor_is_none(keys) && attention_by_heads(qkv.type, lse.dim[0], lse.dim[1], shape);
    if (tensor_is_none(delta)) {
        delta = arena_tensor(&s->scratch, F32, 2, shape.query, y.dim[0], 1);
        attention_delta(s, delta, dy, y);
    }
    Tensor noted = dqkv; /* dqkv as bf16, for counting FLOPs and bytes: the two copies as 8-bit codes have as many
                          * bytes */
    fp8_output_expect(&noted, E5M2, qkv.dim[0], qkv.dim[1], f);
    attention_backward_contract(s, noted, dbias, dkeys, dy, y, lse, delta, qkv, keys, starts, context, shape);
    if (tensor_is_none(keys)) dkeys = dqkv, keys = qkv;

    Heads        h = attention_heads(y, lse, qkv, starts, context, shape);
    const Tensor others[] = {dqkv, dkeys, dy, keys};
    for (const Tensor &t : others) h.vector = h.vector && (uintptr_t)t.data % PACK_BYTES == 0;
    bool   is_hopper = !s->ledger && attention_takes_hopper(qkv.type, h),
           has_sums = !tensor_is_none(dbias) && (s->ledger ? attention_expects_hopper(qkv.type, h.D) : is_hopper);
    Minus  minus = {NULL, NULL, (int)(blocks_for(h.T, PADDED) * PADDED)};
    size_t bytes = (size_t)h.heads * (size_t)minus.padded * sizeof(float); /* bytes of one statistic, lse or delta, of
                                                                            * all queries; a multiple of ARENA_ALIGN */
    minus.lse = (float *)arena_take(&s->scratch, bytes);
    minus.delta = (float *)arena_take(&s->scratch, bytes);
    float *sums = by_heads ? (float *)arena_take(&s->scratch, attention_heads_bytes(h.heads, h.T, h.D)) : NULL;
    Tensor row_sums = tensor_none();
    h.parts = by_heads && h.T > HEADS_SUMMED * SUMMED_ROWS ? HEADS_SUMMED : (int)blocks_for(h.T, SUMMED_ROWS);
    if (has_sums) row_sums = arena_tensor(&s->scratch, F32, 2, h.heads / h.H * h.parts, h.columns, 1);
    h.row_sums = ptr<float>(row_sums);
    LAUNCH_EARLY(attention_prepare_kernel, (unsigned)blocks_for((int64_t)h.heads * minus.padded, PREPARE_THREADS),
                 PREPARE_THREADS, 0, s, minus, ptr<float>(lse), ptr<float>(delta), h);
    CHECK(!f || s->ledger || is_hopper, "tensors for codes that are not aligned to %d bytes", PACK_BYTES);
    DISPATCH_ACT(qkv.type, T,
        if (is_hopper && by_heads) attention_hopper_heads_backward(s, dqkv, f, dy, minus, sums, qkv, h);
        else if (is_hopper) attention_hopper_backward(s, dqkv, dkeys, dy, minus, qkv, keys, h);
        else DISPATCH_WIDE(h.D, D, {
            auto launch = h.starts       ? backward_launch<T, D, false, true>
                          : h.group > 1  ? backward_launch<T, D, false, false>
                                         : backward_launch<T, D, true, false>;
            launch(s, ptr<T>(dqkv), ptr<T>(dkeys), ptr<T>(dy), minus, ptr<T>(qkv), ptr<T>(keys), h);
        }));
    if (has_sums) bias_backward(s, dbias, row_sums);
    arena_release(&s->scratch, mark);
    return has_sums;
}

int attention_context_backward(Stream *s, Tensor dqkv, Tensor dbias, Tensor dkeys, Tensor dy, Tensor y, Tensor lse,
                               Tensor delta, Tensor qkv, Tensor keys, Tensor starts, ContextPart context,
                               HeadShape shape) {
    return backward(s, dqkv, NULL, dbias, dkeys, dy, y, lse, delta, qkv, keys, starts, context, shape);
}

int fp8_attention_backward(Stream *s, Tensor dqkv, Tensor dbias, Tensor dy, Tensor y, Tensor lse, Tensor delta,
                           Tensor qkv, Tensor starts, HeadShape shape, Fp8 f) {
    if (shape.size != 64 || lse.dim[1] % 16 != 0 || !attention_by_heads(qkv.type, lse.dim[0], lse.dim[1], shape))
        return 0;
    backward(s, dqkv, &f, dbias, tensor_none(), dy, y, lse, delta, qkv, tensor_none(), starts, WHOLE_SEQUENCE, shape);
    return 1;
}
