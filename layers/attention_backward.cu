/* attention_backward.cu - CUDA side of attention_backward in layers.h; the CPU twin is attention_backward.c.
 *
 * With p = exp(q.k - lse) computed anew tile by tile, delta_i = dy_i.y_i and ds_ij = p_ij (dy_i.v_j - delta_i):
 *     dv_j = sum_i p_ij dy_i      dk_j = scale sum_i ds_ij q_i      dq_i = scale sum_j ds_ij k_j
 * Three kernels: delta; then blocks of keys that walk the queries (dk, dv); then blocks of queries that walk the keys (dq). Scores are
 * computed twice, seven products a tile where five would do, and in return no two blocks add to one place: same bits every time.
 */
#include "layers/attention_f32.cuh"
#include "layers/attention_tile.cuh"

#define LOG2_E 1.44269504f

/* --- delta ------------------------------------------------------------------------------------------------------------------------------ */

enum { DELTA_LANES = 8, DELTA_THREADS = 256 };

/* Eight threads share a row of one head. grid ceil(rows * heads / 32), no shared memory; bound: reading y and dy once. */
template <typename T>
KERNEL attention_delta_kernel(float *delta, const T *dy, const T *y, Heads h) {
    constexpr int PACK = Row<T, 32>::PACK;
    int64_t       item = ((int64_t)blockIdx.x * DELTA_THREADS + threadIdx.x) / DELTA_LANES, row = item / h.H;
    int           lane = (int)threadIdx.x % DELTA_LANES, head = (int)(item % h.H);
    bool          there = item < (int64_t)h.heads * h.T;
    const T      *a = dy + row * h.C + (int64_t)head * h.D, *b = y + row * h.C + (int64_t)head * h.D;
    float         sum = 0.0f;
    if (there && h.vector) {
        for (int d = lane * PACK; d < h.D; d += DELTA_LANES * PACK) {
            Pack<T, PACK> left = pack_load<T, PACK>(a + d), right = pack_load<T, PACK>(b + d);
            for (int e = 0; e < PACK; e++) sum = fmaf(to_f32(left.v[e]), to_f32(right.v[e]), sum);
        }
    } else if (there) {
        for (int d = lane; d < h.D; d += DELTA_LANES) sum = fmaf(to_f32(a[d]), to_f32(b[d]), sum);
    }
    for (int o = DELTA_LANES / 2; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
    if (there && lane == 0) delta[(row / h.T * h.H + head) * h.T + row % h.T] = sum;
}

/* --- bf16 and fp16: tensor cores ------------------------------------------------------------------------------------------------------- */

/* The block's own pair of tiles, (k, v) or (q, dy), stays in shared memory; the other pair passes through two stages, STEP rows at a time. */
template <int D> struct BackwardTile {
    static constexpr int ATOMS = D <= 64 ? 2 : 1, WARPS = 4, THREADS = WARPS * WARP, ROWS = ATOMS * ATOM, OWN = WARPS * ROWS, STEP = 32;
    static constexpr int STRIDE = Row<bf16, D>::STRIDE, OWN_ELEMS = OWN * STRIDE, STEP_ELEMS = STEP * STRIDE;
    static constexpr int STAGES_AT = 2 * OWN_ELEMS, STAGE_ELEMS = 2 * STEP_ELEMS, STATISTICS_AT = STAGES_AT + 2 * STAGE_ELEMS;
    static constexpr int SHARED_BYTES = STATISTICS_AT * 2 + 2 * 2 * STEP * (int)sizeof(float); /* the last: lse and delta of two stages */
};

/* Where a pair of tiles comes from. */
template <typename T> struct Pair {
    const T *first, *second;
    int      first_stride, second_stride;
};

template <typename T, int ROWS, int D> DEVICE void load_pair(T *tile, Pair<T> from, int row, const Heads &h) {
    constexpr int THREADS = BackwardTile<D>::THREADS;
    load_tile<T, ROWS, D, THREADS>(tile, from.first, from.first_stride, row, h);
    load_tile<T, ROWS, D, THREADS>(tile + ROWS * BackwardTile<D>::STRIDE, from.second, from.second_stride, row, h);
    cp_async_commit();
}

/* exp2's exponent of a query's row: infinite past the sequence, so that p = 0. */
DEVICE float query_lse(const float *lse, int query, const Heads &h) { return query < h.T ? lse[query] * LOG2_E : INFINITY; }
DEVICE float query_delta(const float *delta, int query, const Heads &h) { return query < h.T ? delta[query] : 0.0f; }

/* out = own rows times a step's rows, turned; the left factor is loaded anew for each 16 columns. */
template <typename T, int D, int ATOMS, int N>
DEVICE void scores_of(float (&s)[ATOMS][N / 8][4], const T *own, const T *step) {
    set_zero(s);
    #pragma unroll
    for (int d = 0; d < D; d += 16) {
        uint32_t a[ATOMS][4];
        load_left<T, ATOMS, D>(a, own, d);
        add_turned<T, ATOMS, N, D>(s, a, step, d);
    }
}

/* out += p x, p rounded to T, over a step's rows. */
template <typename T, int D, int ATOMS, int N>
DEVICE void add_scores(float (&out)[ATOMS][D / 8][4], const float (&p)[ATOMS][N / 8][4], const T *x) {
    #pragma unroll
    for (int j = 0; j < N; j += 16) {
        uint32_t a[ATOMS][4];
        #pragma unroll
        for (int atom = 0; atom < ATOMS; atom++) left_of<T>(a[atom], p[atom][j / 8], p[atom][j / 8 + 1]);
        add_straight<T, ATOMS, D>(out, a, x + j * BackwardTile<D>::STRIDE);
    }
}

/* Turned scores of a warp's keys and a step's queries become p; ds comes as dp. statistics is lse, then delta of the step's queries. */
template <int ATOMS, int N>
DEVICE void keys_softmax(float (&p)[ATOMS][N / 8][4], const float *lse, int key, int query, bool diagonal, float scale_log2) {
    #pragma unroll
    for (int n = 0; n < N / 8; n++)
        #pragma unroll
        for (int e = 0; e < 2; e++) {
            int   column = accumulator_column(n, e);
            float minus = -lse[column];
            #pragma unroll
            for (int atom = 0; atom < ATOMS; atom++)
                #pragma unroll
                for (int i = e; i < 4; i += 2) {
                    p[atom][n][i] = exp2_approx(fmaf(p[atom][n][i], scale_log2, minus));
                    if (diagonal && key + accumulator_row(atom, i) > query + column) p[atom][n][i] = 0.0f;
                }
        }
}
template <int ATOMS, int N> DEVICE void keys_ds(float (&ds)[ATOMS][N / 8][4], const float (&p)[ATOMS][N / 8][4], const float *delta) {
    #pragma unroll
    for (int n = 0; n < N / 8; n++)
        #pragma unroll
        for (int e = 0; e < 2; e++) {
            float off = delta[accumulator_column(n, e)];
            #pragma unroll
            for (int atom = 0; atom < ATOMS; atom++)
                #pragma unroll
                for (int i = e; i < 4; i += 2) ds[atom][n][i] = p[atom][n][i] * (ds[atom][n][i] - off);
        }
}

/* A block has OWN keys of one head, a warp ROWS of them with dk and dv in registers, and walks the queries from the diagonal on. grid heads *
 * tiles, 55 KiB of shared memory at D = 64; no two blocks write to one place. Bound: tensor cores, four products a tile. */
template <typename T, int D>
KERNEL __launch_bounds__(BackwardTile<D>::THREADS, 2)
attention_backward_keys_kernel(T *dqkv, const T *dy, const float *lse, const float *delta, const T *qkv, Heads h) {
    typedef BackwardTile<D> Tile;
    constexpr int ATOMS = Tile::ATOMS, STEP = Tile::STEP;
    SMEM_DYN(T, shared);
    const Place   p = attention_place(h, (h.T + Tile::OWN - 1) / Tile::OWN, false);
    const Pair<T> own = {qkv + p.qkv + h.C, qkv + p.qkv + 2 * h.C, 3 * h.C, 3 * h.C}, other = {qkv + p.qkv, dy + p.y, 3 * h.C, h.C};
    const int     warp = (int)threadIdx.x / WARP, block_key = p.tile * Tile::OWN, key = block_key + warp * Tile::ROWS;
    T            *k_rows = shared + warp * Tile::ROWS * Tile::STRIDE, *v_rows = k_rows + Tile::OWN_ELEMS;
    float        *statistics = reinterpret_cast<float *>(shared + Tile::STATISTICS_AT);

    /* The first 32 threads fetch the next step's lse, the second its deltas, while a step is computed. */
    const bool   for_lse = threadIdx.x < STEP, fetches = threadIdx.x < 2 * STEP;
    const int    fetch_query = (int)threadIdx.x % STEP;
    const float *row_lse = lse + (int64_t)p.head * h.T, *row_delta = delta + (int64_t)p.head * h.T;
    auto fetch = [&](int query) { return for_lse ? query_lse(row_lse, query + fetch_query, h) : query_delta(row_delta, query + fetch_query, h); };

    load_pair<T, Tile::OWN, D>(shared, own, block_key, h);
    load_pair<T, STEP, D>(shared + Tile::STAGES_AT, other, block_key, h);
    if (fetches) statistics[threadIdx.x] = fetch(block_key);
    float dk[ATOMS][D / 8][4], dv[ATOMS][D / 8][4];
    set_zero(dk);
    set_zero(dv);
    for (int query = block_key, stage = 0; query < h.T; query += STEP, stage ^= 1) {
        const T     *q = shared + Tile::STAGES_AT + stage * Tile::STAGE_ELEMS, *d = q + Tile::STEP_ELEMS;
        const float *step_lse = statistics + stage * 2 * STEP;
        float        fetched = 0.0f;
        cp_async_wait<0>();
        __syncthreads(); /* this step is there; the other stage has been read by all */
        if (query + STEP < h.T) {
            load_pair<T, STEP, D>(shared + Tile::STAGES_AT + (stage ^ 1) * Tile::STAGE_ELEMS, other, query + STEP, h);
            if (fetches) fetched = fetch(query + STEP);
        }
        if (key < query + STEP && key < h.T) { /* else no query of the step sees a key of the warp */
            float s[ATOMS][STEP / 8][4], ds[ATOMS][STEP / 8][4];
            scores_of<T, D, ATOMS, STEP>(s, k_rows, q);
            keys_softmax<ATOMS, STEP>(s, step_lse, key, query, key + Tile::ROWS - 1 > query, h.scale_log2);
            scores_of<T, D, ATOMS, STEP>(ds, v_rows, d);
            add_scores<T, D, ATOMS, STEP>(dv, s, d);
            keys_ds<ATOMS, STEP>(ds, s, step_lse + STEP);
            add_scores<T, D, ATOMS, STEP>(dk, ds, q);
        }
        if (fetches) statistics[(stage ^ 1) * 2 * STEP + (int)threadIdx.x] = fetched;
    }
    /* A warp's rows of the own tiles are read by that warp alone: its results pass through them. */
    float one[ATOMS][2], scale[ATOMS][2];
    for (int i = 0; i < ATOMS; i++) one[i][0] = one[i][1] = 1.0f, scale[i][0] = scale[i][1] = h.scale;
    __syncwarp();
    put_rows<T, ATOMS, D>(k_rows, dk, scale);
    put_rows<T, ATOMS, D>(v_rows, dv, one);
    __syncwarp();
    store_rows<T, Tile::ROWS, D>(dqkv + p.qkv + h.C, 3 * h.C, k_rows, key, h);
    store_rows<T, Tile::ROWS, D>(dqkv + p.qkv + 2 * h.C, 3 * h.C, v_rows, key, h);
}

/* Scores of a warp's queries become ds; ds comes as dp. */
template <int ATOMS, int N>
DEVICE void queries_ds(float (&ds)[ATOMS][N / 8][4], const float (&s)[ATOMS][N / 8][4], const float (&lse)[ATOMS][2],
                       const float (&delta)[ATOMS][2], int query, int key, bool diagonal, float scale_log2) {
    #pragma unroll
    for (int atom = 0; atom < ATOMS; atom++)
        #pragma unroll
        for (int n = 0; n < N / 8; n++)
            #pragma unroll
            for (int e = 0; e < 4; e++) {
                float p = exp2_approx(fmaf(s[atom][n][e], scale_log2, -lse[atom][e / 2]));
                if (diagonal && key + accumulator_column(n, e) > query + accumulator_row(atom, e)) p = 0.0f;
                ds[atom][n][e] = p * (ds[atom][n][e] - delta[atom][e / 2]);
            }
}

/* A block has OWN queries of one head, a warp ROWS of them with dq in registers, and walks the keys up to the diagonal. grid, shared memory
 * and determinism as above. Bound: tensor cores, three products a tile. */
template <typename T, int D>
KERNEL __launch_bounds__(BackwardTile<D>::THREADS, 2)
attention_backward_queries_kernel(T *dqkv, const T *dy, const float *lse, const float *delta, const T *qkv, Heads h) {
    typedef BackwardTile<D> Tile;
    constexpr int ATOMS = Tile::ATOMS, STEP = Tile::STEP;
    SMEM_DYN(T, shared);
    const Place   p = attention_place(h, (h.T + Tile::OWN - 1) / Tile::OWN, true);
    const Pair<T> own = {qkv + p.qkv, dy + p.y, 3 * h.C, h.C}, other = {qkv + p.qkv + h.C, qkv + p.qkv + 2 * h.C, 3 * h.C, 3 * h.C};
    const int     warp = (int)threadIdx.x / WARP, block_query = p.tile * Tile::OWN, query = block_query + warp * Tile::ROWS;
    T            *q_rows = shared + warp * Tile::ROWS * Tile::STRIDE, *d_rows = q_rows + Tile::OWN_ELEMS;

    load_pair<T, Tile::OWN, D>(shared, own, block_query, h);
    load_pair<T, STEP, D>(shared + Tile::STAGES_AT, other, 0, h);
    float row_lse[ATOMS][2], row_delta[ATOMS][2], dq[ATOMS][D / 8][4];
    for (int atom = 0; atom < ATOMS; atom++)
        for (int side = 0; side < 2; side++) {
            int row = query + accumulator_row(atom, 2 * side);
            row_lse[atom][side] = query_lse(lse + (int64_t)p.head * h.T, row, h);
            row_delta[atom][side] = query_delta(delta + (int64_t)p.head * h.T, row, h);
        }
    set_zero(dq);
    const int end = min(block_query + Tile::OWN, h.T);
    for (int key = 0, stage = 0; key < end; key += STEP, stage ^= 1) {
        const T *k = shared + Tile::STAGES_AT + stage * Tile::STAGE_ELEMS, *v = k + Tile::STEP_ELEMS;
        cp_async_wait<0>();
        __syncthreads(); /* this step is there; the other stage has been read by all */
        if (key + STEP < end) load_pair<T, STEP, D>(shared + Tile::STAGES_AT + (stage ^ 1) * Tile::STAGE_ELEMS, other, key + STEP, h);
        if (key < query + Tile::ROWS && query < h.T) {
            float s[ATOMS][STEP / 8][4], ds[ATOMS][STEP / 8][4];
            scores_of<T, D, ATOMS, STEP>(s, q_rows, k);
            scores_of<T, D, ATOMS, STEP>(ds, d_rows, v);
            queries_ds<ATOMS, STEP>(ds, s, row_lse, row_delta, query, key, key + STEP - 1 > query, h.scale_log2);
            add_scores<T, D, ATOMS, STEP>(dq, ds, k);
        }
    }
    float scale[ATOMS][2];
    for (int i = 0; i < ATOMS; i++) scale[i][0] = scale[i][1] = h.scale;
    __syncwarp();
    put_rows<T, ATOMS, D>(q_rows, dq, scale);
    __syncwarp();
    store_rows<T, Tile::ROWS, D>(dqkv + p.qkv, 3 * h.C, q_rows, query, h);
}

/* --- fp32: scalar ------------------------------------------------------------------------------------------------------------------------ */

template <int D> struct BackwardF32 {
    static constexpr int SHARED_BYTES = (4 * F32Tile<D>::ELEMS + F32Tile<D>::SCORE_ELEMS) * 4; /* q, dy, k, v, and p or ds */
};

template <int D> DEVICE void load_pair_f32(float *tile, Pair<float> from, int row, const Heads &h) {
    typedef F32Tile<D> Tile;
    load_tile<float, Tile::ROWS, D, Tile::THREADS>(tile, from.first, from.first_stride, row, h);
    load_tile<float, Tile::ROWS, D, Tile::THREADS>(tile + Tile::ELEMS, from.second, from.second_stride, row, h);
    cp_async_commit();
}

/* s becomes p and ds, which comes as dp, ds; of one score. */
DEVICE void f32_ds(float &s, float &ds, const float *lse, const float *delta, int query, int key, const Heads &h) {
    s = key <= query ? exp2f(s * h.scale_log2 - query_lse(lse, query, h)) : 0.0f;
    ds = s * (ds - query_delta(delta, query, h));
}

/* As attention_backward_keys_kernel: a block has ROWS keys, a thread M x M turned scores of a tile; see attention_f32.cuh. */
template <int D>
KERNEL __launch_bounds__(F32Tile<D>::THREADS)
attention_backward_keys_f32_kernel(float *dqkv, const float *dy, const float *lse, const float *delta, const float *qkv, Heads h) {
    typedef F32Tile<D> Tile;
    constexpr int     M = Tile::M;
    SMEM_DYN(float, shared);
    const Place       p = attention_place(h, (h.T + Tile::ROWS - 1) / Tile::ROWS, false);
    const Pair<float> own = {qkv + p.qkv + h.C, qkv + p.qkv + 2 * h.C, 3 * h.C, 3 * h.C}, other = {qkv + p.qkv, dy + p.y, 3 * h.C, h.C};
    const int         block_key = p.tile * Tile::ROWS;
    float            *k = shared, *v = k + Tile::ELEMS, *q = v + Tile::ELEMS, *d = q + Tile::ELEMS, *p_tile = d + Tile::ELEMS;
    float             dk[M][Tile::COLUMNS], dv[M][Tile::COLUMNS], one[M], scale[M];
    f32_zero(dk);
    f32_zero(dv);
    for (int i = 0; i < M; i++) one[i] = 1.0f, scale[i] = h.scale;
    load_pair_f32<D>(k, own, block_key, h);
    for (int query = block_key; query < h.T; query += Tile::ROWS) {
        __syncthreads(); /* the step before has been read */
        load_pair_f32<D>(q, other, query, h);
        cp_async_wait<0>();
        __syncthreads(); /* this one is there */
        float s[M][M], ds[M][M];
        f32_scores<D>(s, k, q);
        f32_scores<D>(ds, v, d);
        for (int i = 0; i < M; i++)
            for (int j = 0; j < M; j++)
                f32_ds(s[i][j], ds[i][j], lse + (int64_t)p.head * h.T, delta + (int64_t)p.head * h.T, query + f32_tx() + 16 * j,
                       block_key + f32_ty() * M + i, h);
        f32_add<D>(dv, p_tile, s, d);
        f32_add<D>(dk, p_tile, ds, q);
    }
    f32_store<D>(dqkv + p.qkv + h.C, 3 * h.C, dk, scale, block_key, h);
    f32_store<D>(dqkv + p.qkv + 2 * h.C, 3 * h.C, dv, one, block_key, h);
}

/* As attention_backward_queries_kernel: a block has ROWS queries. */
template <int D>
KERNEL __launch_bounds__(F32Tile<D>::THREADS)
attention_backward_queries_f32_kernel(float *dqkv, const float *dy, const float *lse, const float *delta, const float *qkv, Heads h) {
    typedef F32Tile<D> Tile;
    constexpr int     M = Tile::M;
    SMEM_DYN(float, shared);
    const Place       p = attention_place(h, (h.T + Tile::ROWS - 1) / Tile::ROWS, true);
    const Pair<float> own = {qkv + p.qkv, dy + p.y, 3 * h.C, h.C}, other = {qkv + p.qkv + h.C, qkv + p.qkv + 2 * h.C, 3 * h.C, 3 * h.C};
    const int         block_query = p.tile * Tile::ROWS;
    float            *q = shared, *d = q + Tile::ELEMS, *k = d + Tile::ELEMS, *v = k + Tile::ELEMS, *p_tile = v + Tile::ELEMS;
    float             dq[M][Tile::COLUMNS], scale[M];
    f32_zero(dq);
    for (int i = 0; i < M; i++) scale[i] = h.scale;
    load_pair_f32<D>(q, own, block_query, h);
    for (int key = 0; key <= block_query; key += Tile::ROWS) {
        __syncthreads(); /* the step before has been read */
        load_pair_f32<D>(k, other, key, h);
        cp_async_wait<0>();
        __syncthreads(); /* this one is there */
        float s[M][M], ds[M][M];
        f32_scores<D>(s, q, k);
        f32_scores<D>(ds, d, v);
        for (int i = 0; i < M; i++)
            for (int j = 0; j < M; j++)
                f32_ds(s[i][j], ds[i][j], lse + (int64_t)p.head * h.T, delta + (int64_t)p.head * h.T, block_query + f32_ty() * M + i,
                       key + f32_tx() + 16 * j, h);
        f32_add<D>(dq, p_tile, ds, k);
    }
    f32_store<D>(dqkv + p.qkv, 3 * h.C, dq, scale, block_query, h);
}

/* --- host --------------------------------------------------------------------------------------------------------------------------------- */

template <typename T, int D>
static void backward_launch(Stream *s, T *dqkv, const T *dy, const float *lse, const float *delta, const T *qkv, Heads h) {
    if constexpr (std::is_same<T, float>::value) {
        unsigned grid = (unsigned)(h.heads * blocks_for(h.T, F32Tile<D>::ROWS));
        LAUNCH(attention_backward_keys_f32_kernel<D>, grid, F32Tile<D>::THREADS, BackwardF32<D>::SHARED_BYTES, s, dqkv, dy, lse, delta, qkv, h);
        LAUNCH(attention_backward_queries_f32_kernel<D>, grid, F32Tile<D>::THREADS, BackwardF32<D>::SHARED_BYTES, s, dqkv, dy, lse, delta, qkv, h);
    } else {
        typedef BackwardTile<D> Tile;
        unsigned grid = (unsigned)(h.heads * blocks_for(h.T, Tile::OWN));
        LAUNCH((attention_backward_keys_kernel<T, D>), grid, Tile::THREADS, Tile::SHARED_BYTES, s, dqkv, dy, lse, delta, qkv, h);
        LAUNCH((attention_backward_queries_kernel<T, D>), grid, Tile::THREADS, Tile::SHARED_BYTES, s, dqkv, dy, lse, delta, qkv, h);
    }
}

void attention_backward(Stream *s, Tensor dqkv, Tensor dy, Tensor y, Tensor lse, Tensor qkv, int64_t H) {
    Heads h = attention_heads(y, lse, qkv, H);
    EXPECT2(dqkv, qkv.type, qkv.dim[0], qkv.dim[1]);
    EXPECT2(dy, qkv.type, y.dim[0], y.dim[1]);
    h.vector = h.vector && (uintptr_t)dqkv.data % PACK_BYTES == 0 && (uintptr_t)dy.data % PACK_BYTES == 0;
    size_t   mark = arena_mark(&s->scratch);
    float   *delta = (float *)arena_take(&s->scratch, (size_t)tensor_elems(lse) * sizeof(float));
    unsigned blocks = (unsigned)blocks_for(tensor_elems(lse), DELTA_THREADS / DELTA_LANES);
    DISPATCH_ACT(qkv.type, T,
        LAUNCH(attention_delta_kernel<T>, blocks, DELTA_THREADS, 0, s, delta, (const T *)dy.data, (const T *)y.data, h);
        DISPATCH_WIDE(h.D, D, (backward_launch<T, D>(s, ptr<T>(dqkv), ptr<T>(dy), ptr<float>(lse), delta, ptr<T>(qkv), h))));
    arena_release(&s->scratch, mark);
}

size_t attention_scratch_bytes(int64_t B, int64_t T, int64_t C, int64_t H, DType act) {
    (void)C, (void)act;
    return (size_t)(B * H * T) * sizeof(float) + ARENA_ALIGN;
}
