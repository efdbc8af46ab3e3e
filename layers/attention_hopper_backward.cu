/* attention_hopper_backward.cu - attention_backward of layers.h on wgmma and TMA, for compute capability 9.0, by blocks
 * of keys and blocks of queries; formulas and the portable kernels are in attention_backward.cu.
 *
 * As in that file, one kernel has blocks of keys that walk the queries (dk, dv), the other blocks of queries that walk
 * the keys (dq): seven products a tile. Five are enough if a block has a whole head (attention_hopper_heads.cu). But
 * then dq passes through L2 in fp32, 8 D bytes a query for each 128 keys, and a batch of few heads leaves most of the
 * GPU idle. So these kernels are for few heads, long sequences, grouped keys and context ranks. A sum stays in the
 * registers of one warpgroup, in one order. The bits are the same in every run, for any number of context ranks, and
 * equal to those of attention_hopper_heads.cu.
 */
#include "layers/attention_hopper.cuh"

/* Shared memory of the keys kernel: keys and values of two work items (tiles of keys), queries and dy of STAGES steps.
 * 136 and 196 KiB at D = 64 and 128. */
template <typename T, int D> struct alignas(TILE_ALIGN) KeysShared {
    static constexpr int STEP = KEYS_STEP, STAGES = D == 64 ? 4 : 2;
    T     k[2][BLOCK_ROWS * D], v[2][BLOCK_ROWS * D], q[STAGES][STEP * D], dy[STAGES][STEP * D];
    float lse[STAGES][TILE_ALIGN / 4], delta[STAGES][TILE_ALIGN / 4]; /* [stage][query] negated lse and delta of STEP
                                                                       * queries */
};
/* Shared memory of the queries kernel: queries and dy of two work items (tiles of queries), keys and values of STAGES
 * steps. 160 and 224 KiB at D = 64 and 128. */
template <typename T, int D> struct alignas(TILE_ALIGN) QueriesShared {
    static constexpr int STEP = D == 64 ? 128 : 64, STAGES = 3;
    T q[2][BLOCK_ROWS * D], dy[2][BLOCK_ROWS * D], k[STAGES][STEP * D], v[STAGES][STEP * D];
};

#ifdef PTX_HOPPER

/* --- keys: dk and dv ---------------------------------------------------------------------------------------------- */

/* A work item of the keys kernel: a tile of keys. head: the group's first query head; row: the tile's first row in
 * keys; key: the position of that row in its sequence; position: position of this warpgroup's first key. Queries begin
 * .. end - 1 of each of the group's heads, STEP at a time, see one of these keys. */
typedef struct { int head, row, key, position, begin, end; } KeysItem;

/* Returns item i of the keys kernel. All lanes of a warp call it together. */
template <int STEP, bool PLAIN> DEVICE KeysItem keys_item(const Heads &h, int i) {
    const int       tiles = (h.T + BLOCK_ROWS - 1) / BLOCK_ROWS;
    const Place     p = attention_place(h, h.group, h.context * tiles, false, i);
    const int       owner = p.tile / tiles, key = p.tile % tiles * BLOCK_ROWS;
    const Positions at = owner_positions(h, owner);
    KeysItem        item = {p.head, (owner * (h.heads / h.H) + p.head / h.H) * h.T + key, key, 0, 0, h.T};
    item.position = (int)POSITION_OF(at, key + (int)threadIdx.x / WARPGROUP % GROUPS * GROUP_ROWS);
    item.begin = first_query(h, (int)POSITION_OF(at, key), STEP);
    if (!PLAIN && h.starts)
        item.end = rows_until(starts_of(h, p.head), (int)POSITION_OF(at, min(key + BLOCK_ROWS, h.T) - 1), h);
    return item;
}

template <typename T, int D, bool PLAIN>
DEVICE void keys_load(KeysShared<T, D> *shared, Queues<KeysShared<T, D>::STAGES> &queues, const TensorMap *qkv,
                      const TensorMap *keys, const TensorMap *dy, const TensorMap *lse, const TensorMap *delta,
                      int padded, const Heads &h, int items) {
    constexpr int STEP = KeysShared<T, D>::STEP, STAGES = KeysShared<T, D>::STAGES;
    unsigned      done = 0, n = 0; /* done: number of items loaded so far; n: number of steps of queries loaded so
                                    * far */
    for (int i = (int)blockIdx.x; i < items; i += (int)gridDim.x, done++) {
        const KeysItem item = keys_item<STEP, PLAIN>(h, i);
        if (!elect_one()) continue;
        const int column = key_column(h, item.head), first = sequence_row(h, item.head);
        uint64_t *full = queue_fill(queues.own, done, 2 * sizeof shared->k[0]);
        load_rows<T, BLOCK_ROWS, D>(shared->k[done % 2], keys, full, column, item.row);
        load_rows<T, BLOCK_ROWS, D>(shared->v[done % 2], keys, full, column + h.key_columns, item.row);
        #pragma unroll 1
        for (int head = item.head; head < item.head + (PLAIN ? 1 : h.group); head++)
            #pragma unroll 1
            for (int query = item.begin; query < item.end; query += STEP, n++) {
                full = queue_fill(queues.steps, n, 2 * sizeof shared->q[0] + 2 * MINUS_BYTES);
                load_rows<T, STEP, D>(shared->q[n % STAGES], qkv, full, head_column(h, head), first + query);
                load_rows<T, STEP, D>(shared->dy[n % STAGES], dy, full, head_column(h, head), first + query);
                const int row = (int)(((int64_t)head * padded + query) / MINUS_ROW);
                tma_load_2d(shared->lse[n % STAGES], lse, full, 0, row);
                tma_load_2d(shared->delta[n % STAGES], delta, full, 0, row);
            }
    }
}

/* Computes dk and dv of a work item (a tile of keys of one head), step by step. n counts the steps of queries that the
 * consumers have taken so far. */
template <typename T, int D, bool PLAIN>
DEVICE void keys_rows(float (&dk)[D / 2], float (&dv)[D / 2], KeysShared<T, D> *shared,
                      Queues<KeysShared<T, D>::STAGES> &queues, const T *k, const T *v, unsigned &n,
                      const KeysItem &item, const Heads &h) {
    constexpr int  STEP = KeysShared<T, D>::STEP, STAGES = KeysShared<T, D>::STAGES;
    const int position = item.position, steps = max(item.end - item.begin + STEP - 1, 0) / STEP * (PLAIN ? 1 : h.group);
    const int32_t *starts = PLAIN || !h.starts ? NULL : starts_of(h, item.head);
    int            query = item.begin, step = 0;
    bool           is_running = false; /* true: the product for dk of step n - 1 still runs */
    uint32_t       ds[STEP / 16][4];
    set_zero(dk);
    set_zero(dv);
    for (; step < steps && query < item.end && position >= position_of(h, query) + STEP; step++, query += STEP, n++) {
        queue_take(queues.steps, n); /* takes and frees the step unused, because none of its queries sees a key of the
                                      * warpgroup */
        queue_free(queues.steps, n);
    }
    #pragma unroll 1
    for (; step < steps; step++, n++) {
        if (query >= item.end) query = item.begin; /* begins again with the first query, of the next head of the
                                                    * group */
        queue_take(queues.steps, n);
        const unsigned slot = n % STAGES;
        keys_step<T, D, !PLAIN>(dk, dv, ds, {k, v, shared->q[slot], shared->dy[slot], shared->lse[slot],
                                             shared->delta[slot]}, position,
                                query, starts, h, [&] { if (is_running) queue_free(queues.steps, n - 1); },
                                /* The fence orders the warpgroup's reads of lse and delta before TMA overwrites
                                 * them. */
                                [](auto &) { fence_proxy_async(); });
        query += STEP;
        is_running = true;
    }
    wgmma_wait<0>(dk);
    if (is_running) queue_free(queues.steps, n - 1);
}

template <typename T, int D, bool PLAIN>
DEVICE void keys_consume(T *dkeys, KeysShared<T, D> *shared, Queues<KeysShared<T, D>::STAGES> &queues,
                         const Heads &h, int items) {
    /* row: the warp's first row in the tile */
    const int group = (int)threadIdx.x / WARPGROUP, row = (int)threadIdx.x / WARP * 16;
    unsigned  done = 0, n = 0;
    for (int i = (int)blockIdx.x; i < items; i += (int)gridDim.x, done++) {
        const KeysItem item = keys_item<KeysShared<T, D>::STEP, PLAIN>(h, i);
        T             *k = shared->k[done % 2], *v = shared->v[done % 2],
                      *to = dkeys + (int64_t)(item.row - item.key) * h.key_stride + key_column(h, item.head);
        const float    scale[2] = {h.scale, h.scale}, one[2] = {1.0f, 1.0f};
        float          dk[D / 2], dv[D / 2];
        queue_take(queues.own, done);
        keys_rows<T, D, PLAIN>(dk, dv, shared, queues, k, v, n, item, h);
        named_barrier_sync(1 + group, WARPGROUP); /* after this all warps of the warpgroup have read the keys and
                                                   * values */
        store_summed<T, BLOCK_ROWS, D>(to, h.key_stride, item.key + row, k, row, dk, scale, item.head,
                                       key_column(h, item.head), h);
        store_summed<T, BLOCK_ROWS, D>(to + h.key_columns, h.key_stride, item.key + row, v, row, dv, one, item.head,
                                       key_column(h, item.head) + h.key_columns, h);
        fence_proxy_async(); /* orders this thread's accesses to the tiles of keys and values before TMA fills them
                              * again */
        queue_free(queues.own, done);
    }
}

/* --- queries: dq -------------------------------------------------------------------------------------------------- */

/* A work item of the queries kernel: a tile of queries. query: the tile's first row. Its queries see keys begin to end
 * - 1. */
typedef struct { Place place; int query, begin, end; } QueriesItem;

template <int STEP, bool DOCUMENTS> DEVICE QueriesItem queries_item(const Heads &h, int i) {
    const Place p = attention_place(h, 1, (h.T + BLOCK_ROWS - 1) / BLOCK_ROWS, true, i);
    const int   query = p.tile * BLOCK_ROWS;
    return {p, query, DOCUMENTS ? starts_of(h, p.head)[query] / STEP * STEP : 0,
            position_of(h, min(query + BLOCK_ROWS, h.T) - 1) + 1};
}

template <typename T, int D, bool DOCUMENTS>
DEVICE void queries_load(QueriesShared<T, D> *shared, Queues<QueriesShared<T, D>::STAGES> &queues,
                         const TensorMap *qkv, const TensorMap *keys, const TensorMap *dy, const Heads &h, int items) {
    constexpr int STEP = QueriesShared<T, D>::STEP, STAGES = QueriesShared<T, D>::STAGES;
    unsigned      done = 0, n = 0;
    for (int i = (int)blockIdx.x; i < items; i += (int)gridDim.x, done++) {
        const QueriesItem item = queries_item<STEP, DOCUMENTS>(h, i);
        const int         head = item.place.head, first = sequence_row(h, head), column = key_column(h, head);
        uint64_t         *full = queue_fill(queues.own, done, 2 * sizeof shared->q[0]);
        load_rows<T, BLOCK_ROWS, D>(shared->q[done % 2], qkv, full, head_column(h, head), first + item.query);
        load_rows<T, BLOCK_ROWS, D>(shared->dy[done % 2], dy, full, head_column(h, head), first + item.query);
        for (int key = item.begin; key < item.end; key += STEP, n++) {
            full = queue_fill(queues.steps, n, 2 * sizeof shared->k[0]);
            load_positions<T, STEP, D>(shared->k[n % STAGES], keys, full, column, first, key, h);
            load_positions<T, STEP, D>(shared->v[n % STAGES], keys, full, column + h.key_columns, first, key, h);
        }
    }
}

/* Values that backward needs of the queries of a thread's two rows: -lse log2(e), and -delta. */
typedef struct { float lse[2], delta[2]; } RowMinus;

/* Computes one step of backward for a warpgroup's 64 queries and STEP keys: s and dp, and what they add to dq. When it
 * is called, the previous step's product for dq may still run. When it returns, this step's product still runs. */
template <typename T, int D, bool DOCUMENTS, class F>
DEVICE void queries_step(float (&dq)[D / 2], uint32_t (&ds)[QueriesShared<T, D>::STEP / 16][4], const T *q, const T *dy,
                         const T *k, const T *v, const RowMinus &minus, int position, int row, int key,
                         const int32_t *starts, const Heads &h, F free_last) {
    constexpr int STEP = QueriesShared<T, D>::STEP;
    float         s[STEP / 2], dp[STEP / 2];
    const int     own = (int)threadIdx.x / WARPGROUP * GROUP_ROWS;
    wgmma_fence();
    multiply_rows<T, STEP, D, BLOCK_ROWS>(s, q, own, k, false);
    multiply_rows<T, STEP, D, BLOCK_ROWS>(dp, dy, own, v, false);
    wgmma_wait<1>(dq, s);
    free_last();
    if (key + STEP - 1 > position) mask_later<false>(s, position, key);
    if (DOCUMENTS && key < start_at(starts, row + GROUP_ROWS - 1, h)) mask_earlier<false>(s, starts, row, key, h);
    #pragma unroll
    for (int i = 0; i < STEP / 2; i++) s[i] = exp2_approx(fmaf(s[i], h.scale_log2, minus.lse[held_side(i)]));
    wgmma_wait<0>(dp);
    #pragma unroll
    for (int i = 0; i < STEP / 2; i += 2) { /* rounds p before it computes ds, because the kernel of
                                             * attention_hopper_heads.cu does, and dq must have equal bits in both */
        const float2 p = unpack_pair<T>(pack_pair<T>(s[i], s[i + 1]));
        s[i] = p.x * (dp[i] + minus.delta[held_side(i)]), s[i + 1] = p.y * (dp[i + 1] + minus.delta[held_side(i)]);
    }
    round_product<T, STEP>(ds, s);
    wgmma_fence();
    add_rows<T, STEP, D>(dq, ds, k);
}

/* Computes dq of a work item (a tile of queries of one head), step by step. n counts the steps of keys that the
 * consumers have taken so far. */
template <typename T, int D, bool DOCUMENTS>
DEVICE void queries_rows(float (&dq)[D / 2], QueriesShared<T, D> *shared,
                         Queues<QueriesShared<T, D>::STAGES> &queues, const T *q, const T *dy, unsigned &n,
                         const QueriesItem &item, Minus minus, const Heads &h) {
    constexpr int  STEP = QueriesShared<T, D>::STEP, STAGES = QueriesShared<T, D>::STAGES;
    const int      row = item.query + (int)threadIdx.x / WARPGROUP * GROUP_ROWS, position = position_of(h, row);
    const int32_t *starts = DOCUMENTS ? starts_of(h, item.place.head) : NULL;
    uint32_t       ds[STEP / 16][4];
    RowMinus       of_rows;
    for (int side = 0; side < 2; side++) {
        const int64_t at = (int64_t)item.place.head * minus.padded + row + held_row() + 8 * side;
        of_rows.lse[side] = minus.lse[at] * h.scale_log2, of_rows.delta[side] = minus.delta[at];
    }
    set_zero(dq);
    int key = item.begin;
    #pragma unroll 1
    for (; key < min(item.end, position + GROUP_ROWS); key += STEP, n++) {
        const unsigned slot = n % STAGES;
        queue_take(queues.steps, n);
        queries_step<T, D, DOCUMENTS>(dq, ds, q, dy, shared->k[slot], shared->v[slot], of_rows, position, row, key,
                                      starts, h, [&] {
                                          if (key > item.begin) queue_free(queues.steps, n - 1);
                                      });
    }
    wgmma_wait<0>(dq);
    if (key > item.begin) queue_free(queues.steps, n - 1);
    for (; key < item.end; key += STEP, n++) { /* takes and frees steps unused, because no query of the warpgroup sees
                                                * these keys */
        queue_take(queues.steps, n);
        queue_free(queues.steps, n);
    }
}

template <typename T, int D, bool DOCUMENTS>
DEVICE void queries_consume(T *dqkv, QueriesShared<T, D> *shared, Queues<QueriesShared<T, D>::STAGES> &queues,
                            Minus minus, const Heads &h, int items) {
    /* row: the warp's first row in the tile */
    const int group = (int)threadIdx.x / WARPGROUP, row = (int)threadIdx.x / WARP * 16;
    unsigned  done = 0, n = 0;
    for (int i = (int)blockIdx.x; i < items; i += (int)gridDim.x, done++) {
        const QueriesItem item = queries_item<QueriesShared<T, D>::STEP, DOCUMENTS>(h, i);
        T                *q = shared->q[done % 2];
        const float       scale[2] = {h.scale, h.scale};
        float             dq[D / 2];
        queue_take(queues.own, done);
        queries_rows<T, D, DOCUMENTS>(dq, shared, queues, q, shared->dy[done % 2], n, item, minus, h);
        named_barrier_sync(1 + group, WARPGROUP); /* after this all warps of the warpgroup have read the queries */
        store_summed<T, BLOCK_ROWS, D>(dqkv + item.place.qkv, h.columns, item.query + row, q, row, dq, scale,
                                       item.place.head, head_column(h, item.place.head), h);
        fence_proxy_async(); /* orders this thread's accesses to the tile of queries before TMA fills it again */
        queue_free(queues.own, done);
    }
}

#endif

/* Computes dk and dv. An item is 128 keys of one head of keys; the earliest keys, which most queries see, come first.
 * grid: the multiprocessors, or fewer if there are fewer items. No two items write to one place. Bound by the tensor
 * cores, with four products a tile. The left operands for dv and dk are in registers, the other operands in shared
 * memory. */
template <typename T, int D, bool PLAIN>
KERNEL __launch_bounds__(HOPPER_THREADS, 1)
    attention_keys_hopper_kernel(T *dkeys, const __grid_constant__ TensorMap qkv,
                                 const __grid_constant__ TensorMap keys,
                                 const __grid_constant__ TensorMap dy, const __grid_constant__ TensorMap lse,
                                 const __grid_constant__ TensorMap delta, int padded, Heads h, int items) {
#ifdef PTX_HOPPER
    typedef KeysShared<T, D> Shared;
    SMEM(Queues<Shared::STAGES>, queues, [1]);
    SMEM_DYN(Shared, shared);
    tiles_aligned(shared);
    queues_init(queues[0]);
    if (threadIdx.x >= LOADER) {
        registers_lower<LOADER_REGISTERS>();
        if (threadIdx.x < LOADER + WARP)
            keys_load<T, D, PLAIN>(shared, queues[0], &qkv, &keys, &dy, &lse, &delta, padded, h, items);
    } else {
        registers_raise<CONSUMER_REGISTERS>();
        keys_consume<T, D, PLAIN>(dkeys, shared, queues[0], h, items);
    }
#endif
}

/* Computes dq. An item is 128 queries of one head; the last queries come first. grid: the multiprocessors, or fewer if
 * there are fewer items. No two items write to one place. Bound by the tensor cores, with three products a tile. */
template <typename T, int D, bool DOCUMENTS>
KERNEL __launch_bounds__(HOPPER_THREADS, 1)
    attention_queries_hopper_kernel(T *dqkv, const __grid_constant__ TensorMap qkv,
                                    const __grid_constant__ TensorMap keys, const __grid_constant__ TensorMap dy,
                                    Minus minus, Heads h, int items) {
#ifdef PTX_HOPPER
    typedef QueriesShared<T, D> Shared;
    SMEM(Queues<Shared::STAGES>, queues, [1]);
    SMEM_DYN(Shared, shared);
    tiles_aligned(shared);
    queues_init(queues[0]);
    if (threadIdx.x >= LOADER) {
        registers_lower<LOADER_REGISTERS>();
        if (is_loader()) queries_load<T, D, DOCUMENTS>(shared, queues[0], &qkv, &keys, &dy, h, items);
    } else {
        registers_raise<CONSUMER_REGISTERS>();
        queries_consume<T, D, DOCUMENTS>(dqkv, shared, queues[0], minus, h, items);
    }
#endif
}

/* --- host --------------------------------------------------------------------------------------------------------- */

template <typename T, int D, bool PLAIN, bool DOCUMENTS>
static void backward_launch(Stream *s, Tensor dqkv, Tensor dkeys, Tensor dy, Minus minus, Tensor qkv, Tensor keys,
                            Heads h) {
    const int tiles = (int)blocks_for(h.T, BLOCK_ROWS), queries_items = h.heads * tiles,
              blocks = device_resident_blocks(), keys_items = queries_items / h.group * h.context;
    const int64_t values = (int64_t)h.heads * minus.padded;
    TensorMap     qkv_map = map_of<T>(qkv), keys_map = map_of<T>(keys), dy_map = map_of<T>(dy);
    LAUNCH((attention_keys_hopper_kernel<T, D, PLAIN>), (unsigned)(keys_items < blocks ? keys_items : blocks),
           HOPPER_THREADS, sizeof(KeysShared<T, D>), s, ptr<T>(dkeys), qkv_map, keys_map, dy_map,
           map_of_minus(minus.lse, values), map_of_minus(minus.delta, values), minus.padded, h, keys_items);
    LAUNCH((attention_queries_hopper_kernel<T, D, DOCUMENTS>),
           (unsigned)(queries_items < blocks ? queries_items : blocks), HOPPER_THREADS, sizeof(QueriesShared<T, D>), s,
           ptr<T>(dqkv), qkv_map, keys_map, dy_map, minus, h, queries_items);
}

void attention_hopper_backward(Stream *s, Tensor dqkv, Tensor dkeys, Tensor dy, Minus minus, Tensor qkv, Tensor keys,
                               Heads h) {
    DISPATCH_HOPPER(qkv.type, h.D, T, D, {
        auto launch = h.starts      ? backward_launch<T, D, false, true>
                      : h.group > 1 ? backward_launch<T, D, false, false>
                                    : backward_launch<T, D, true, false>;
        launch(s, dqkv, dkeys, dy, minus, qkv, keys, h);
    });
}
