/* attention.cu - CUDA side of attention_forward, attention_delta and attention_last_forward in layers.h.
 * Backward is attention_backward.cu. attention_hopper.cu has kernels for compute capability 9.0.
 *
 * forward   A block has a tile of queries of one head and walks the tiles of keys up to the diagonal with a running
 *           maximum and sum per query, so that scores exist only in registers. Dao, FlashAttention-2, arXiv:2307.08691.
 *           The maximum is raised only if exp would grow by more than a factor 2^RAISE (any maximum near the true one
 *           gives the same quotient), so products are rarely rescaled.
 * last      A block has one query of one head and walks the keys up to its own, LAST_THREADS at a time, with a running
 *           maximum and sum. First each thread computes the score of one key. Then each warp adds the values of every
 *           LAST_WARPSth of these keys; a lane has D/32 channels.
 */
#include "core/kernel.cuh"
#include "layers/attention_hopper.h"
#include "layers/attention_tile.cuh"
#include "layers/contracts.h"
#include "layers/layers.h"

/* --- bf16 and fp16: tensor cores ---------------------------------------------------------------------------------- */

enum { RAISE = 8 }; /* log2 of the exponential at which the running maximum is raised to a higher score; so p <= 2^8,
                     * far below fp16's 65504 */

template <int D> struct ForwardTile {
    static constexpr int ATOMS = D <= 64 ? 2 : 1; /* groups of 16 rows in a warp: 2, so that a matrix load feeds four
                                                   * products, up to D = 64, where registers suffice */
    static constexpr int WARPS = 4, THREADS = WARPS * WARP, ROWS = ATOMS * ATOM, QUERIES = WARPS * ROWS, KEYS = 64;
    static constexpr int STRIDE = D + 8, KEYS_ELEMS = KEYS * STRIDE,
                         STAGE_ELEMS = 2 * KEYS_ELEMS; /* a stage holds a tile of k and one of v */
    static constexpr int SHARED_BYTES = 2 * STAGE_ELEMS * 2;
    static_assert(QUERIES <= 2 * KEYS, "the queries pass through a stage");
};

/* Running maximum of the scores, and sum of their exponentials, in each of a thread's rows. The sum covers only the
 * columns that the thread itself holds. */
template <int ATOMS> struct Softmax { float top[ATOMS][2], sum[ATOMS][2]; };

/* Returns the highest score of a row in s, over the four threads that share the row. side: 0 or 1, the upper or the
 * lower of this thread's two rows. */
template <int N> DEVICE float highest_score(const float (&s)[N][4], int side) {
    float high = fmaxf(s[0][2 * side], s[0][2 * side + 1]);
    #pragma unroll
    for (int n = 1; n < N; n++) high = fmaxf(high, fmaxf(s[n][2 * side], s[n][2 * side + 1]));
    high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 1));
    return fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 2));
}

/* Raises a row's running maximum (of the online softmax) if a score exceeds it by more than RAISE in base 2, and scales
 * down the sums taken so far. The values of a row depend on that row alone. */
template <int ATOMS, int N, int D8>
DEVICE void raise_top(Softmax<ATOMS> &m, float (&out)[ATOMS][D8][4], const float (&s)[ATOMS][N][4], float scale_log2) {
    float shrink[ATOMS][2];
    bool  raised = false;
    #pragma unroll
    for (int atom = 0; atom < ATOMS; atom++)
        #pragma unroll
        for (int side = 0; side < 2; side++) {
            float high = highest_score(s[atom], side),
                  rise = (high - m.top[atom][side]) * scale_log2; /* log2 of exp(highest score - maximum); infinite or
                                                                   * very large at a row's first keys, because top is
                                                                   * still -infinity or NO_SCORE */
            shrink[atom][side] = 1.0f;
            if (rise > (float)RAISE) {
                shrink[atom][side] = exp2_approx(-rise);
                m.top[atom][side] = high;
                raised = true;
            }
        }
    if (!__any_sync(0xffffffffu, raised)) return;
    #pragma unroll
    for (int atom = 0; atom < ATOMS; atom++)
        #pragma unroll
        for (int side = 0; side < 2; side++) {
            m.sum[atom][side] *= shrink[atom][side];
            #pragma unroll
            for (int n = 0; n < D8; n++)
                out[atom][n][2 * side] *= shrink[atom][side], out[atom][n][2 * side + 1] *= shrink[atom][side];
        }
}

/* Replaces the scores s by p = exp(s - top), where top is the running maximum of the row, and adds p to the sums. */
template <int ATOMS, int N> DEVICE void exponentials(float (&s)[ATOMS][N][4], Softmax<ATOMS> &m, float scale_log2) {
    #pragma unroll
    for (int atom = 0; atom < ATOMS; atom++)
        #pragma unroll
        for (int side = 0; side < 2; side++) {
            float top = m.top[atom][side] * scale_log2, sum = 0.0f;
            #pragma unroll
            for (int n = 0; n < N; n++)
                #pragma unroll
                for (int e = 2 * side; e < 2 * side + 2; e++) {
                    s[atom][n][e] = exp2_approx(fmaf(s[atom][n][e], scale_log2, -top));
                    sum += s[atom][n][e];
                }
            m.sum[atom][side] += sum;
        }
}

/* Loads a tile of keys and one of values, from position `key` on, into one stage of shared memory. */
template <typename T, int D> DEVICE void load_keys(T *stage, const T *k, int key, const Heads &h) {
    typedef ForwardTile<D> Tile;
    KeyRows from = key_rows(h, key);
    load_tile<T, Tile::KEYS, D, Tile::THREADS>(stage, k + from.owner, h.key_stride, from.row, h);
    load_tile<T, Tile::KEYS, D, Tile::THREADS>(stage + Tile::KEYS_ELEMS, k + from.owner + h.key_columns, h.key_stride,
                                               from.row, h);
    cp_async_commit();
}

/* Processes one tile of keys for a warp's queries: scores, softmax, out += p v. query: position of the warp's first
 * query; row: the row of that query. */
template <typename T, int D, int ATOMS, bool DOCUMENTS>
DEVICE void forward_tile(float (&out)[ATOMS][D / 8][4], Softmax<ATOMS> &m, const uint32_t (&q)[D / 16][ATOMS][4],
                         const T *k, const T *v, int query, int key, const int32_t *starts, int row, const Heads &h) {
    constexpr int KEYS = ForwardTile<D>::KEYS;
    float         s[ATOMS][KEYS / 8][4] = {};
    #pragma unroll
    for (int d = 0; d < D; d += 16) add_turned<T, ATOMS, KEYS, D>(s, q[d / 16], k, d);
    if (key + KEYS - 1 > query) mask_scores<false>(s, query, key);
    if (DOCUMENTS && key < start_at(starts, row + ForwardTile<D>::ROWS - 1, h))
        mask_documents<false>(s, starts, row, key, h);
    raise_top(m, out, s, h.scale_log2);
    exponentials(s, m, h.scale_log2);
    #pragma unroll
    for (int j = 0; j < KEYS; j += 16) {
        uint32_t p[ATOMS][4];
        #pragma unroll
        for (int atom = 0; atom < ATOMS; atom++) left_of<T>(p[atom], s[atom][j / 8], s[atom][j / 8 + 1]);
        add_straight<T, ATOMS, D>(out, p, v + j * ForwardTile<D>::STRIDE);
    }
}

/* Divides `out` by the sums and writes a warp's rows of y and lse. The rows of y pass through the warp's own rows of
 * shared memory. */
template <typename T, int D, int ATOMS>
DEVICE void forward_store(T *y, float *lse, T *rows, const float (&out)[ATOMS][D / 8][4], const Softmax<ATOMS> &m,
                          int query, const Heads &h) {
    float scale[ATOMS][2];
    #pragma unroll
    for (int atom = 0; atom < ATOMS; atom++)
        #pragma unroll
        for (int side = 0; side < 2; side++) {
            float sum = m.sum[atom][side];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            scale[atom][side] = 1.0f / sum;
            int row = query + accumulator_row(atom, 2 * side);
            if (threadIdx.x % 4 == 0 && row < h.T) lse[row] = m.top[atom][side] * h.scale + logf(sum);
        }
    put_rows<T, ATOMS, D>(rows, out, scale);
    __syncwarp();
    store_rows<T, ATOMS * ATOM, D>(y, h.C, rows, query, h);
}

/* Computes y and lse with tensor cores. A block of 4 warps has QUERIES queries of one head, a warp ROWS of them. Keys
 * and values pass through two stages of shared memory: one is copied while the other is multiplied. grid heads * tiles,
 * 36 KiB of shared memory at D = 64. No two blocks write to one place. Bound by the tensor cores and the exp units
 * about equally (256 products per exp at D = 64). */
template <typename T, int D, bool DOCUMENTS>
KERNEL __launch_bounds__(ForwardTile<D>::THREADS, 2)
    attention_forward_kernel(T *y, float *lse, const T *qkv, const T *keys, Heads h) {
    typedef ForwardTile<D> Tile;
    SMEM_DYN(T, shared);
    const Place p = attention_place(h, 1, (h.T + Tile::QUERIES - 1) / Tile::QUERIES, true);
    const T    *q = qkv + p.qkv, *k = keys + p.keys;
    const int warp = (int)threadIdx.x / WARP, block_query = p.tile * Tile::QUERIES,
              query = block_query + warp * Tile::ROWS;
    const int   position = position_of(h, query); /* position of the warp's first query; the positions of the warp's
                                                   * rows are consecutive */
    const int32_t *starts = DOCUMENTS ? starts_of(h, p.head) : NULL;
    const int   begin = DOCUMENTS ? starts[block_query] / Tile::KEYS * Tile::KEYS : 0,
                warp_begin = DOCUMENTS ? start_at(starts, query, h) : 0;

    load_tile<T, Tile::QUERIES, D, Tile::THREADS>(shared + Tile::STAGE_ELEMS, q, h.columns, block_query, h);
    load_keys<T, D>(shared, k, begin, h);
    cp_async_wait<0>();
    __syncthreads();
    uint32_t q_left[D / 16][Tile::ATOMS][4];
    #pragma unroll
    for (int d = 0; d < D; d += 16)
        load_left<T, Tile::ATOMS, D>(q_left[d / 16], shared + Tile::STAGE_ELEMS + warp * Tile::ROWS * Tile::STRIDE, d);

    float                out[Tile::ATOMS][D / 8][4] = {};
    Softmax<Tile::ATOMS> m;
    for (int i = 0; i < Tile::ATOMS; i++)
        m.top[i][0] = m.top[i][1] = DOCUMENTS ? NO_SCORE : -INFINITY, m.sum[i][0] = m.sum[i][1] = 0.0f;
    const int end = position_of(h, min(block_query + Tile::QUERIES, h.T) - 1) + 1;
    for (int key = begin, stage = 0; key < end; key += Tile::KEYS, stage ^= 1) {
        cp_async_wait<0>();
        __syncthreads(); /* after this the tile is in shared memory, and all threads have read the other stage, which
                          * may be overwritten */
        if (key + Tile::KEYS < end) load_keys<T, D>(shared + (stage ^ 1) * Tile::STAGE_ELEMS, k, key + Tile::KEYS, h);
        const T *tile = shared + stage * Tile::STAGE_ELEMS;
        if (key < position + Tile::ROWS && query < h.T && /* otherwise all of the warp's queries precede these keys and
                                                           * see none of them */
            (!DOCUMENTS || key + Tile::KEYS > warp_begin))
            forward_tile<T, D, Tile::ATOMS, DOCUMENTS>(out, m, q_left, tile, tile + Tile::KEYS_ELEMS, position, key,
                                                       starts, query, h);
    }
    __syncthreads(); /* after this both stages have been read, so outputs may pass through them */
    forward_store<T, D, Tile::ATOMS>(y + p.y, lse + (int64_t)p.head * h.T, shared + warp * Tile::ROWS * Tile::STRIDE,
                                     out, m, query, h);
}

/* --- fp32: scalar ------------------------------------------------------------------------------------------------- */

/* Replaces the scores s by p = exp(s - top) and updates the running sum and maximum; scales down `out` where the
 * maximum rises. */
template <bool DOCUMENTS, int M, int COLUMNS>
DEVICE void f32_softmax(float (&s)[M][M], float (&top)[M], float (&sum)[M], float (&out)[M][COLUMNS], int query,
                        int key, const int32_t *starts, int row, const Heads &h) {
    const float scale_log2 = h.scale_log2;
    for (int i = 0; i < M; i++) {
        float high = top[i];
        for (int j = 0; j < M; j++) {
            if (key + f32_tx() + 16 * j > query + i) s[i][j] = -INFINITY;
            if (DOCUMENTS && key + f32_tx() + 16 * j < start_at(starts, row + i, h)) s[i][j] = -INFINITY;
            high = fmaxf(high, s[i][j]);
        }
        high = warp_max<F32_SIDE>(high);
        float shrink = exp2f((top[i] - high) * scale_log2), part = 0.0f;
        top[i] = high;
        for (int j = 0; j < M; j++) part += s[i][j] = exp2f((s[i][j] - high) * scale_log2);
        sum[i] = sum[i] * shrink + part;
        for (int c = 0; c < COLUMNS; c++) out[i][c] *= shrink;
    }
}

/* Does what attention_forward_kernel does, for fp32. A block has ROWS queries of one head, a thread M x M scores of a
 * tile; see attention_tile.cuh. grid heads * tiles. Bound by the f32 units. */
template <int D, bool DOCUMENTS>
KERNEL __launch_bounds__(F32Tile<D>::THREADS, 2)
    attention_forward_f32_kernel(float *y, float *lse, const float *qkv, const float *keys, Heads h) {
    typedef F32Tile<D> Tile;
    SMEM_DYN(float, shared);
    float        *k_tile = shared + Tile::ELEMS, *v_tile = k_tile + Tile::ELEMS, *p_tile = v_tile + Tile::ELEMS;
    const Place   p = attention_place(h, 1, (h.T + Tile::ROWS - 1) / Tile::ROWS, true);
    const float  *q = qkv + p.qkv, *k = keys + p.keys;
    const int     block_query = p.tile * Tile::ROWS, query = block_query + f32_ty() * Tile::M,
              block_position = position_of(h, block_query);
    const int32_t *starts = DOCUMENTS ? starts_of(h, p.head) : NULL;
    const int     begin = DOCUMENTS ? starts[block_query] / Tile::ROWS * Tile::ROWS : 0;
    float         out[Tile::M][Tile::COLUMNS] = {}, top[Tile::M], sum[Tile::M], scale[Tile::M];
    for (int i = 0; i < Tile::M; i++) top[i] = DOCUMENTS ? NO_SCORE : -INFINITY, sum[i] = 0.0f;
    load_tile<float, Tile::ROWS, D, Tile::THREADS>(shared, q, h.columns, block_query, h);
    for (int key = begin; key <= block_position; key += Tile::ROWS) {
        KeyRows from = key_rows(h, key);
        __syncthreads(); /* after this all threads have read the previous tile, which may be overwritten */
        load_tile<float, Tile::ROWS, D, Tile::THREADS>(k_tile, k + from.owner, h.key_stride, from.row, h);
        load_tile<float, Tile::ROWS, D, Tile::THREADS>(v_tile, k + from.owner + h.key_columns, h.key_stride, from.row,
                                                       h);
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads(); /* after this the tile is complete in shared memory */
        float s[Tile::M][Tile::M];
        f32_scores<D>(s, shared, k_tile);
        f32_softmax<DOCUMENTS>(s, top, sum, out, block_position + f32_ty() * Tile::M, key, starts, query, h);
        f32_add<D>(out, p_tile, s, v_tile);
    }
    for (int i = 0; i < Tile::M; i++) {
        sum[i] = warp_sum<F32_SIDE>(sum[i]);
        scale[i] = 1.0f / sum[i];
        if (f32_tx() == 0 && query + i < h.T) lse[(int64_t)p.head * h.T + query + i] = top[i] * h.scale + logf(sum[i]);
    }
    f32_store<D>(y + p.y, h.C, out, scale, block_query, h);
}

/* --- host --------------------------------------------------------------------------------------------------------- */

template <typename T, int D, bool DOCUMENTS>
static void forward_launch(Stream *s, T *y, float *lse, const T *qkv, const T *keys, Heads h) {
    if constexpr (std::is_same_v<T, float>) {
        typedef F32Tile<D> Tile;
        constexpr int      BYTES = (3 * Tile::ELEMS + Tile::SCORE_ELEMS) * 4; /* shared memory: tiles of q, k, v and
                                                                               * p */
        LAUNCH((attention_forward_f32_kernel<D, DOCUMENTS>), (unsigned)(h.heads * blocks_for(h.T, Tile::ROWS)),
               Tile::THREADS, BYTES, s, y, lse, qkv, keys, h);
    } else {
        typedef ForwardTile<D> Tile;
        LAUNCH((attention_forward_kernel<T, D, DOCUMENTS>), (unsigned)(h.heads * blocks_for(h.T, Tile::QUERIES)),
               Tile::THREADS, Tile::SHARED_BYTES, s, y, lse, qkv, keys, h);
    }
}

void attention_context_forward(Stream *s, Tensor y, Tensor lse, Tensor qkv, Tensor keys, Tensor starts,
                               ContextPart context, HeadShape shape) {
    if (attention_forward_contract(s, y, lse, qkv, keys, starts, context, shape)) return;
    if (tensor_is_none(keys)) keys = qkv;
    Heads h = attention_heads(y, lse, qkv, starts, context, shape);
    h.vector = h.vector && (uintptr_t)keys.data % PACK_BYTES == 0;
    if (attention_takes_hopper(qkv.type, h)) {
        attention_hopper_forward(s, y, lse, qkv, keys, h);
        return;
    }
    DISPATCH_ACT(qkv.type, T, DISPATCH_WIDE(h.D, D, {
        auto launch = h.starts ? forward_launch<T, D, true> : forward_launch<T, D, false>;
        launch(s, ptr<T>(y), ptr<float>(lse), ptr<T>(qkv), ptr<T>(keys), h);
    }));
}

/* --- delta, for where no product's epilogue finds it (linear.cu) -------------------------------------------------- */

enum { DELTA_LANES = 8, DELTA_ROWS = 8, DELTA_THREADS = 256 };

/* Computes delta as attention_delta in layers.h. Eight threads share a row of one head. A block has 32 such rows, eight
 * rows for each head, so that it reads and writes whole sectors. grid ceil(ceil(N / 8) 8 H / 32), no shared memory.
 * Bound by memory: dy and y are read once. */
template <typename T, int PACK>
KERNEL attention_delta_kernel(float *delta, const T *dy, const T *y, int64_t N, int H, int D) {
    await_kernels();
    int64_t item = ((int64_t)blockIdx.x * DELTA_THREADS + threadIdx.x) / DELTA_LANES, rows = item / DELTA_ROWS;
    int64_t head = rows % H, row = rows / H * DELTA_ROWS + item % DELTA_ROWS, from = (row * H + head) * D;
    int     lane = (int)threadIdx.x % DELTA_LANES;
    float   sum = 0.0f;
    for (int d = lane * PACK; row < N && d < D; d += DELTA_LANES * PACK) {
        Pack<T, PACK> left = pack_load<T, PACK>(dy + from + d), right = pack_load<T, PACK>(y + from + d);
        for (int e = 0; e < PACK; e++) sum = fmaf(to_f32(left.v[e]), to_f32(right.v[e]), sum);
    }
    sum = warp_sum<DELTA_LANES>(sum);
    if (row < N && lane == 0) delta[head * N + row] = sum;
}

void attention_delta(Stream *s, Tensor delta, Tensor dy, Tensor y) {
    int64_t H = delta.dim[0], N = y.dim[0], D = y.dim[1] / H;
    if (attention_delta_contract(s, delta, dy, y)) return;
    unsigned blocks = (unsigned)blocks_for(blocks_for(N, DELTA_ROWS) * DELTA_ROWS * H, DELTA_THREADS / DELTA_LANES);
    DISPATCH_ACT(y.type, T, DISPATCH_PACK(T, packs_fit((size_t)D * sizeof(T), {dy.data, y.data}), PACK,
        LAUNCH_EARLY((attention_delta_kernel<T, PACK>), blocks, DELTA_THREADS, 0, s, ptr<float>(delta), ptr<T>(dy),
                     ptr<T>(y), N, (int)H, (int)D)));
}

/* --- the last queries of a sequence ------------------------------------------------------------------------------- */

enum { LAST_THREADS = 256, LAST_WARPS = LAST_THREADS / WARP, MOST_D = 128, HELD = MOST_D / WARP };

/* Parameters of attention_last_kernel: the last n of T positions, C columns of y, `columns` columns of qkv, heads of D
 * channels. `group` query heads share a head of keys. */
typedef struct { int64_t T, n, C, columns; int D, group; float scale; } Last;

/* Returns q . k of D channels, W at a time. */
template <typename T, int W> DEVICE float last_score(const float *q, const T *k, int D) {
    float score = 0.0f;
    for (int d = 0; d < D; d += W) {
        Pack<float, W> part = pack_to_f32(pack_load<T, W>(k + d));
        for (int i = 0; i < W; i++) score += q[d + i] * part.v[i];
    }
    return score;
}

/* Computes attention_last_forward. Each block takes query blockIdx.y of head blockIdx.x. grid (H, n). Sums have a fixed
 * order. Bound by memory: keys and values are read once. */
template <typename T, int W> KERNEL attention_last_kernel(T *y, const T *qkv, Last job) {
    SMEM(float, q, [MOST_D]);
    SMEM(float, p, [LAST_THREADS]);
    SMEM(float, part, [WARP]);
    SMEM(float, sums, [LAST_WARPS * MOST_D]);
    int      thread = (int)threadIdx.x, lane = thread % WARP, warp = thread / WARP, D = job.D;
    int64_t  seen = job.T - job.n + blockIdx.y + 1, step = job.columns;
    const T *row = qkv + (seen - 1) * step + blockIdx.x * (int64_t)D;
    const T *keys = qkv + job.C + blockIdx.x / job.group * (int64_t)D, *values = keys + (job.columns - job.C) / 2;
    float    top = -INFINITY, total = 0.0f, sum[HELD] = {};
    if (thread < D) q[thread] = to_f32(row[thread]) * job.scale;
    __syncthreads(); /* after this the query q is complete in shared memory */
    for (int64_t first = 0; first < seen; first += LAST_THREADS) {
        int   left = (int)(seen - first), count = left < LAST_THREADS ? left : (int)LAST_THREADS;
        float score = thread < count ? last_score<T, W>(q, keys + (first + thread) * step, D) : -INFINITY;
        float high = fmaxf(top, block_max(score, part)), shrink = expf(top - high);
        top = high;
        p[thread] = expf(score - high); /* overwrites p of the earlier keys, which all warps have used before the
                                         * barrier in block_max */
        total = total * shrink + p[thread];
        __syncthreads(); /* after this the exponentials p are complete in shared memory */
        for (int i = 0; i < HELD; i++) sum[i] *= shrink;
        for (int k = warp; k < count; k += LAST_WARPS)
            for (int i = 0; i < HELD; i++) {
                int d = lane + i * WARP;
                if (d < D) sum[i] += p[k] * to_f32(values[(first + k) * step + d]);
            }
    }
    total = block_sum(total, part);
    for (int i = 0; i < HELD; i++) sums[warp * MOST_D + lane + i * WARP] = sum[i];
    __syncthreads(); /* after this the sums of all warps are complete */
    if (thread >= D) return;
    float all = 0.0f;
    for (int w = 0; w < LAST_WARPS; w++) all += sums[w * MOST_D + thread];
    y[blockIdx.y * job.C + blockIdx.x * (int64_t)D + thread] = from_f32<T>(all / total);
}

void attention_last_forward(Stream *s, Tensor y, Tensor qkv, HeadShape h) {
    if (attention_last_forward_contract(s, y, qkv, h) || tensor_elems(y) == 0) return;
    int64_t D = h.size;
    CHECK(D <= MOST_D, "%lld channels in a head, the GPU's kernels take %d", (long long)D, MOST_D);
    Last job = {qkv.dim[0], y.dim[0], y.dim[1], qkv.dim[1], (int)D, (int)(h.query / h.key), 1.0f / sqrtf((float)D)};
    DISPATCH_ACT(qkv.type, T, DISPATCH_PACK(T, packs_fit((size_t)D * sizeof(T), {qkv.data}), W,
        LAUNCH((attention_last_kernel<T, W>), dim3((unsigned)h.query, (unsigned)job.n), LAST_THREADS, 0, s, ptr<T>(y),
               ptr<T>(qkv), job)));
}
