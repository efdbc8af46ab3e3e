/* attention_hopper.cu - attention_forward of layers.h on wgmma and TMA, for compute capability 9.0; the portable
 * kernels are in attention.cu. See attention_hopper.cuh.
 *
 * An item is 128 queries of one head. A warpgroup has 64 of them and walks the keys, 128 at once: s = q k' into
 * registers, the softmax of attention.cu on these, then p v. Two overlaps keep the tensor cores busy during exp:
 *   the products with tile j's keys are queued before those with tile j - 1's values, which run during tile j's softmax
 *   the warpgroups alternate in queueing products, so that one computes its softmax while the other's products run
 * Shared memory: two items' queries (2 x 16 KiB at D = 64) and a queue of tiles of keys or values, in the order of use:
 * k0 k1 v0 k2 v1 ... (6 x 16 KiB; at D = 128 4 x 32 KiB). That is 128 and 192 KiB, one block on a multiprocessor.
 */
#include "layers/attention_hopper.cuh"

#include <string.h>

enum { RAISE = 8, TURN = 1, GROUP_BARRIER = TURN + GROUPS }; /* RAISE: log2 of the exponential at which the running
                                                              * maximum is raised to a higher score; the others: numbers
                                                              * of named barriers */

template <typename T, int D> struct alignas(TILE_ALIGN) ForwardShared {
    static constexpr int KEYS = 128, SLOTS = D == 64 ? 6 : 4;
    T q[2][BLOCK_ROWS * D], tile[SLOTS][KEYS * D];
};

#ifdef PTX_HOPPER

/* --- items: the last tiles of queries of all heads, which are the longest, then earlier tiles --------------------- */

typedef struct { int head, query, begin, tiles; } ForwardItem; /* A work item. query: its first row; begin: the first
                                                                * key that these rows see; tiles: number of tiles of
                                                                * keys */

template <int KEYS, bool DOCUMENTS> DEVICE ForwardItem forward_item(const Heads &h, int i) {
    const Place p = attention_place(h, 1, (h.T + BLOCK_ROWS - 1) / BLOCK_ROWS, true, i);
    const int   query = p.tile * BLOCK_ROWS, begin = DOCUMENTS ? starts_of(h, p.head)[query] / KEYS * KEYS : 0,
                end = position_of(h, min(query + BLOCK_ROWS, h.T) - 1) + 1;
    return {p.head, query, begin, (end - begin + KEYS - 1) / KEYS};
}

/* --- the loader --------------------------------------------------------------------------------------------------- */

template <typename T, int D, bool DOCUMENTS, int SLOTS>
DEVICE void forward_load(ForwardShared<T, D> *shared, Queues<SLOTS> &queues, const TensorMap *qkv,
                         const TensorMap *keys, const Heads &h, int items) {
    constexpr int KEYS = ForwardShared<T, D>::KEYS;
    unsigned      done = 0, n = 0; /* done: number of items loaded so far; n: number of tiles of keys or values loaded
                                    * so far */
    for (int i = (int)blockIdx.x; i < items; i += (int)gridDim.x, done++) {
        const ForwardItem item = forward_item<KEYS, DOCUMENTS>(h, i);
        const int         first = sequence_row(h, item.head), column = key_column(h, item.head);
        uint64_t         *full = queue_fill(queues.own, done, sizeof shared->q[0]);
        load_rows<T, BLOCK_ROWS, D>(shared->q[done % 2], qkv, full, head_column(h, item.head), first + item.query);
        for (int j = 0; j <= item.tiles; j++)
            for (int is_value = 0; is_value < 2; is_value++) {
                int tile = j - is_value;
                if (tile < 0 || tile == item.tiles) continue;
                full = queue_fill(queues.steps, n, sizeof shared->tile[0]);
                load_positions<T, KEYS, D>(shared->tile[n % SLOTS], keys, full, column + is_value * h.key_columns,
                                           first, item.begin + tile * KEYS, h);
                n++;
            }
    }
}

/* --- softmax: as in attention.cu; the values of a row depend on that row alone ------------------------------------ */

typedef struct { float top[2], sum[2]; } Running; /* running maximum of the scores, and sum of their exponentials, in
                                                   * each of a thread's two rows; the sum is over the thread's own
                                                   * columns */

/* Replaces the scores s by p = exp(s - top), where top is the running maximum of the row, and adds p to the sums.
 * Returns whether the maximum rose in a row of this warp. If so, the caller must multiply the sums taken so far by
 * `shrink`. */
template <int N> DEVICE bool softmax(float (&s)[N], Running &m, float (&shrink)[2], float scale_log2) {
    bool raised = false;
    #pragma unroll
    for (int side = 0; side < 2; side++) {
        float high = s[2 * side], sum = 0.0f;
        #pragma unroll
        for (int i = 0; i < N; i++)
            if (held_side(i) == side) high = fmaxf(high, s[i]);
        high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 1));
        high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 2));
        const float rise = (high - m.top[side]) * scale_log2; /* log2 of exp(highest score - maximum); infinite or very
                                                               * large at a row's first keys, because top is still
                                                               * -infinity or NO_SCORE */
        shrink[side] = 1.0f;
        if (rise > (float)RAISE) shrink[side] = exp2_approx(-rise), m.top[side] = high, raised = true;
        const float top = m.top[side] * scale_log2;
        #pragma unroll
        for (int i = 0; i < N; i++)
            if (held_side(i) == side) sum += s[i] = exp2_approx(fmaf(s[i], scale_log2, -top));
        m.sum[side] = fmaf(m.sum[side], shrink[side], sum);
    }
    return __any_sync(0xffffffffu, raised);
}

/* --- a warpgroup's 64 queries ------------------------------------------------------------------------------------- */

/* The warpgroups pass on a token, and only the one that has it queues products: turn_begin waits for the token,
 * turn_end passes it on. */
DEVICE void turn_begin(int group) { named_barrier_sync(TURN + group, 2 * WARPGROUP); }
DEVICE void turn_end(int group) { named_barrier_arrive(TURN + (group + 1) % GROUPS, 2 * WARPGROUP); }

/* Masks scores of keys that their query does not see; the first key has position `key`. Then replaces each score by p =
 * exp(score - running maximum of the row) and adds p to the sums. */
template <bool DOCUMENTS, int N>
DEVICE bool mask_and_softmax(float (&s)[N], Running &m, float (&shrink)[2], int position, int row, int key,
                             const int32_t *starts, const Heads &h) {
    if (key + 2 * N - 1 > position) mask_later<false>(s, position, key);
    if (DOCUMENTS && key < start_at(starts, row + GROUP_ROWS - 1, h)) mask_earlier<false>(s, starts, row, key, h);
    return softmax(s, m, shrink, h.scale_log2);
}

/* Computes the output rows of a warpgroup: 64 of the 128 queries of a work item. n counts the tiles of keys and values
 * that the consumers have taken so far. */
template <typename T, int D, bool DOCUMENTS, int SLOTS>
DEVICE void forward_rows(float (&out)[D / 2], Running &m, const T *q, const ForwardShared<T, D> *shared,
                         Queues<SLOTS> &queues, unsigned &n, const ForwardItem &item, int group,
                         const Heads &h) {
    constexpr int  KEYS = ForwardShared<T, D>::KEYS;
    const int      own = group * GROUP_ROWS, row = item.query + own, position = position_of(h, row);
    const int32_t *starts = DOCUMENTS ? starts_of(h, item.head) : NULL;
    float          s[KEYS / 2], shrink[2];
    uint32_t       p[KEYS / 16][4];
    set_zero(out);
    m.top[0] = m.top[1] = DOCUMENTS ? NO_SCORE : -INFINITY, m.sum[0] = m.sum[1] = 0.0f;
    queue_take(queues.steps, n);
    turn_begin(group);
    wgmma_fence();
    multiply_rows<T, KEYS, D, BLOCK_ROWS>(s, q, own, shared->tile[n % SLOTS], false);
    turn_end(group);
    wgmma_wait<0>(s);
    queue_free(queues.steps, n++);
    mask_and_softmax<DOCUMENTS>(s, m, shrink, position, row, item.begin, starts, h);
    round_product<T, KEYS>(p, s);
    #pragma unroll 1
    for (int key = item.begin + KEYS, last = item.begin + item.tiles * KEYS; key < last; key += KEYS) {
        queue_take(queues.steps, n);     /* waits for the keys of this tile */
        queue_take(queues.steps, n + 1); /* waits for the values of the previous tile */
        turn_begin(group);
        wgmma_fence();
        multiply_rows<T, KEYS, D, BLOCK_ROWS>(s, q, own, shared->tile[n % SLOTS], false);
        add_rows<T, KEYS, D>(out, p, shared->tile[(n + 1) % SLOTS]);
        turn_end(group);
        wgmma_wait<1>(s);
        queue_free(queues.steps, n++);
        const bool raised = mask_and_softmax<DOCUMENTS>(s, m, shrink, position, row, key, starts, h);
        wgmma_wait<0>(out);
        queue_free(queues.steps, n++);
        #pragma unroll
        for (int i = 0; raised && i < D / 2; i++) out[i] *= shrink[held_side(i)];
        round_product<T, KEYS>(p, s);
    }
    queue_take(queues.steps, n);
    wgmma_fence();
    add_rows<T, KEYS, D>(out, p, shared->tile[n % SLOTS]);
    wgmma_wait<0>(out);
    queue_free(queues.steps, n++);
}

/* Divides `out` by the sums and writes the rows of y and lse. The rows of y pass through the tile of the queries.
 * query: the warp's first row in the sequence; row: its first row in the tile. */
template <typename T, int D>
DEVICE void forward_store(T *y, float *lse, T *q, const float (&out)[D / 2], Running m, int head, int query, int row,
                          const Heads &h) {
    float scale[2];
    for (int side = 0; side < 2; side++) {
        m.sum[side] += __shfl_xor_sync(0xffffffffu, m.sum[side], 1);
        m.sum[side] += __shfl_xor_sync(0xffffffffu, m.sum[side], 2);
        scale[side] = 1.0f / m.sum[side];
        const int at = query + (int)threadIdx.x % WARP / 4 + 8 * side;
        if (threadIdx.x % 4 == 0 && at < h.T) lse[(int64_t)head * h.T + at] = m.top[side] * h.scale + logf(m.sum[side]);
    }
    store_product<T, BLOCK_ROWS, D>(y + (int64_t)sequence_row(h, head) * h.C + head_column(h, head), h.C, query, q, row,
                                    out, scale, h);
}

template <typename T, int D, bool DOCUMENTS, int SLOTS>
DEVICE void forward_consume(T *y, float *lse, ForwardShared<T, D> *shared, Queues<SLOTS> &queues, const Heads &h,
                            int items) {
    /* row: the warp's first row in the tile */
    const int group = (int)threadIdx.x / WARPGROUP, row = (int)threadIdx.x / WARP * 16;
    unsigned  done = 0, n = 0;
    if (group == GROUPS - 1) turn_end(group); /* lets the first warpgroup queue its products first */
    for (int i = (int)blockIdx.x; i < items; i += (int)gridDim.x, done++) {
        const ForwardItem item = forward_item<ForwardShared<T, D>::KEYS, DOCUMENTS>(h, i);
        T                *q = shared->q[done % 2];
        float             out[D / 2];
        Running           m;
        queue_take(queues.own, done);
        forward_rows<T, D, DOCUMENTS>(out, m, q, shared, queues, n, item, group, h);
        named_barrier_sync(GROUP_BARRIER + group, WARPGROUP); /* after this all warps of the warpgroup have read the
                                                               * queries */
        forward_store<T, D>(y, lse, q, out, m, item.head, item.query + row, row, h);
        fence_proxy_async(); /* orders this thread's accesses to the tile of queries before TMA fills it again */
        queue_free(queues.own, done);
    }
    if (group == 0) turn_begin(group); /* completes the barrier at which the last warpgroup arrived after its last
                                        * products */
}

#endif

/* Computes y and lse. grid: the multiprocessors, or fewer if there are fewer items. No two items write to one place.
 * Bound by the tensor cores and the exp units about equally at D = 64 (256 products per exp), by the tensor cores at D
 * = 128. The overlap of products and softmax, described at the head of this file, hides one behind the other. */
template <typename T, int D, bool DOCUMENTS>
KERNEL __launch_bounds__(HOPPER_THREADS, 1)
    attention_forward_hopper_kernel(T *y, float *lse, const __grid_constant__ TensorMap qkv,
                                    const __grid_constant__ TensorMap keys, Heads h, int items) {
#ifdef PTX_HOPPER
    constexpr int SLOTS = ForwardShared<T, D>::SLOTS;
    typedef ForwardShared<T, D> Shared;
    SMEM(Queues<SLOTS>, queues, [1]);
    SMEM_DYN(Shared, shared);
    tiles_aligned(shared);
    queues_init(queues[0]);
    if (threadIdx.x >= LOADER) {
        registers_lower<LOADER_REGISTERS>();
        if (is_loader()) forward_load<T, D, DOCUMENTS>(shared, queues[0], &qkv, &keys, h, items);
    } else {
        registers_raise<CONSUMER_REGISTERS>();
        forward_consume<T, D, DOCUMENTS>(y, lse, shared, queues[0], h, items);
    }
#endif
}

/* --- host --------------------------------------------------------------------------------------------------------- */

/* Returns whether this GPU has compute capability 9.0 and the program code for it (sm_90a). A kernel's static shared
 * memory shows whether its body was compiled, as it is not in code for sm_90. */
static bool can_hopper(void) {
#ifdef CUDA_EMU
    return true;
#else
    static cudaFuncAttributes attributes; /* looked up once, because every call of attention needs them */
    if (attributes.maxThreadsPerBlock == 0)
        CUDA_CHECK(cudaFuncGetAttributes(&attributes, (const void *)attention_forward_hopper_kernel<bf16, 64, false>));
    return strcmp(device_isa(), "sm_90") == 0 && attributes.sharedSizeBytes > 0;
#endif
}

AttentionAsked attention_asked(void) {
    static const char *const NAMES[] = {NULL, "portable", "hopper", "hopper-heads", "hopper-tiles"};
    const char *asked = getenv("TRAIN_GPT_ATTENTION");
    if (!asked) return ATTENTION_CHOSEN;
    for (int i = ATTENTION_PORTABLE; i <= ATTENTION_TILES; i++)
        if (strcmp(asked, NAMES[i]) == 0) return (AttentionAsked)i;
    fail(EXIT_CONFIG,
         "TRAIN_GPT_ATTENTION is \"%.40s\": it must be portable, hopper, hopper-heads or hopper-tiles, or not set, "
         "which chooses the kernels for this GPU",
         asked);
}

bool attention_takes_hopper(DType act, const Heads &h) {
    if (attention_asked() >= ATTENTION_HOPPER && !can_hopper())
        fail(EXIT_CONFIG, "TRAIN_GPT_ATTENTION is \"%s\", whose kernels need an H100 and a build with ARCHS=90a, but "
             "this GPU runs code for %s: unset TRAIN_GPT_ATTENTION",
             getenv("TRAIN_GPT_ATTENTION"), device_isa());
    return can_hopper() && h.vector && attention_expects_hopper(act, h.D);
}

bool attention_expects_hopper(DType act, int64_t D) {
    return act != F32 && (D == 64 || D == 128) && attention_asked() != ATTENTION_PORTABLE &&
           (strcmp(device_isa(), "none") == 0 || can_hopper());
}

template <typename T, int D, bool DOCUMENTS>
static void forward_launch(Stream *s, Tensor y, Tensor lse, Tensor qkv, Tensor keys, Heads h) {
    const int items = h.heads * (int)blocks_for(h.T, BLOCK_ROWS), blocks = device_resident_blocks();
    LAUNCH((attention_forward_hopper_kernel<T, D, DOCUMENTS>), (unsigned)(items < blocks ? items : blocks),
           HOPPER_THREADS, sizeof(ForwardShared<T, D>), s, ptr<T>(y), ptr<float>(lse), map_of<T>(qkv), map_of<T>(keys),
           h, items);
}

void attention_hopper_forward(Stream *s, Tensor y, Tensor lse, Tensor qkv, Tensor keys, Heads h) {
    DISPATCH_HOPPER(qkv.type, h.D, T, D, {
        auto launch = h.starts ? forward_launch<T, D, true> : forward_launch<T, D, false>;
        launch(s, y, lse, qkv, keys, h);
    });
}
