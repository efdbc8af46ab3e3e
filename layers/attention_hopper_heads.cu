/* attention_hopper_heads.cu - attention_backward of layers.h with a block a head, for compute capability 9.0: five
 * products a tile, where the kernels of attention_hopper_backward.cu take seven. See attention_hopper.cuh.
 *
 * A block walks a head's keys, 128 at once, and for each of these tiles the queries that see it, 64 at once. Two
 * warpgroups have 64 of the keys each, and dk and dv in registers. They leave ds, rounded, in shared memory. A third
 * warpgroup uses it as the left operand of its one product, dq += ds k.
 *
 * So only dq is not finished when a tile of keys is: the tile of 64 queries waits in memory, in fp32, for the next tile
 * of keys. A thread of the third warpgroup always has the same elements of it. It loads and stores them itself, without
 * atomics and in one order, so the bits are the same every time. The first tile of keys begins a sum; that of the
 * queries' own positions ends it. In between it passes through L2, in which the sums of all blocks fit
 * (attention_by_heads).
 *
 * With 128 channels dk and dv take 128 of a thread's 208 registers. ds then overwrites p once dv's product has ended,
 * and dq, with the remaining registers, is computed 64 columns at a time.
 */
#include "layers/attention_hopper.cuh"
#include "layers/fp8_tile.cuh"

enum {
    ADDER = LOADER, HEADS_LOADER = ADDER + WARPGROUP, HEADS_THREADS = HEADS_LOADER + WARPGROUP,
    ADDER_WARPS = WARPGROUP / WARP
};

/* Registers of a thread: KEYS in each of the two warpgroups that have keys, ADDER in the one that adds up dq, LOADER in
 * the one that loads. The sum 2 x KEYS + ADDER + LOADER is 4 x 128. */
template <int D> struct HeadsRegisters { enum { KEYS = D == 64 ? 192 : 208, ADDER = D == 64 ? 96 : 64, LOADER = 32 }; };

/* Shared memory: two tiles of keys and values, STAGES steps of queries, SLOTS buffers [keys, queries] of ds (the
 * gradients of scores), and 64 columns of dq before they are stored. 176 and 220 KiB at D = 64 and 128. */
template <typename T, int D> struct alignas(TILE_ALIGN) HeadsShared {
    static constexpr int STEP = KEYS_STEP, STAGES = D == 64 ? 4 : 2, SLOTS = D == 64 ? 2 : 1;
    T     k[2][BLOCK_ROWS * D], v[2][BLOCK_ROWS * D], q[STAGES][STEP * D], dy[STAGES][STEP * D],
          ds[SLOTS][BLOCK_ROWS * STEP], dq[STEP * BOX];
    float lse[STAGES][TILE_ALIGN / 4], delta[STAGES][TILE_ALIGN / 4]; /* [stage][query] negated lse and delta of STEP
                                                                       * queries */
};

/* Destination of dqkv: a tensor of 16-bit elements, or 8-bit codes (fp8). */
template <typename T> struct HeadsOut {
    T        *dqkv;
    Fp8Target codes;
};

#ifdef PTX_HOPPER

template <typename T, int D> struct HeadsQueues {
    Queue<2>                         own;
    Queue<HeadsShared<T, D>::STAGES> steps;
    Queue<HeadsShared<T, D>::SLOTS>  ds;
};
template <typename T, int D> DEVICE void queues_init(HeadsQueues<T, D> &queues) {
    if (threadIdx.x == HEADS_LOADER) {
        queue_init(queues.own, 1, CONSUMER_WARPS + ADDER_WARPS);
        queue_init(queues.steps);
        queue_init(queues.ds, CONSUMER_WARPS, ADDER_WARPS);
        mbarrier_init_fence();
    }
    __syncthreads(); /* after this all threads may use the mbarriers; it is the last barrier of the whole block */
}

/* Returns the end of the queries that see a tile of keys: queries `key` to end - 1. All lanes of a warp call it
 * together. */
template <bool DOCUMENTS> DEVICE int queries_end(const Heads &h, int head, int key) {
    return DOCUMENTS ? rows_until(starts_of(h, head), min(key + BLOCK_ROWS, h.T) - 1, h) : h.T;
}

template <typename T, int D, bool DOCUMENTS>
DEVICE void heads_load(HeadsShared<T, D> *shared, HeadsQueues<T, D> &queues, const TensorMap *qkv, const TensorMap *dy,
                       const TensorMap *lse, const TensorMap *delta, int padded, const Heads &h) {
    constexpr int STEP = HeadsShared<T, D>::STEP, STAGES = HeadsShared<T, D>::STAGES;
    unsigned      done = 0, n = 0; /* done: number of tiles of keys loaded so far; n: number of steps of queries loaded
                                    * so far */
    for (int head = (int)blockIdx.x; head < h.heads; head += (int)gridDim.x) {
        const int column = head_column(h, head), keys_column = key_column(h, head), first = sequence_row(h, head);
        for (int key = 0; key < h.T; key += BLOCK_ROWS, done++) {
            const int end = queries_end<DOCUMENTS>(h, head, key);
            if (!elect_one()) continue;
            uint64_t *full = queue_fill(queues.own, done, 2 * sizeof shared->k[0]);
            load_rows<T, BLOCK_ROWS, D>(shared->k[done % 2], qkv, full, keys_column, first + key);
            load_rows<T, BLOCK_ROWS, D>(shared->v[done % 2], qkv, full, keys_column + h.key_columns, first + key);
            #pragma unroll 1
            for (int query = key; query < end; query += STEP, n++) {
                const int row = (int)(((int64_t)head * padded + query) / MINUS_ROW);
                full = queue_fill(queues.steps, n, 2 * sizeof shared->q[0] + 2 * MINUS_BYTES);
                load_rows<T, STEP, D>(shared->q[n % STAGES], qkv, full, column, first + query);
                load_rows<T, STEP, D>(shared->dy[n % STAGES], dy, full, column, first + query);
                tma_load_2d(shared->lse[n % STAGES], lse, full, 0, row);
                tma_load_2d(shared->delta[n % STAGES], delta, full, 0, row);
            }
        }
    }
}

/* --- results ------------------------------------------------------------------------------------------------------ */

/* Returns the record of this thread about the fp8 codes it has made: the largest value, and how many were too large or
 * became zero. It is in shared memory, because registers are few. */
DEVICE Seen &notes() {
    SMEM(Seen, seen, [HEADS_LOADER]);
    return seen[threadIdx.x];
}

/* Stores a warp's 16 rows of 64 columns of a tile as 8-bit codes, to the given row and column of t. The warp casts four
 * rows at once, and their codes overwrite rows that have been read. From there a lane transposes 8 rows of 4 columns.
 * No bank conflicts. */
DEVICE void store_codes(const Fp8Target &t, int64_t first, int column, bf16 *rows) {
    enum { PACKS = BOX / PACK8, WORDS = BOX / 4, HALF = CHUNK / 2 };
    const int lane = (int)afresh(threadIdx.x) % WARP, pack = lane % PACKS, half = lane / WORDS, word = lane % WORDS;
    const CastScale by = cast_scale<E5M2>(t.scale);
    uint32_t *const words = reinterpret_cast<uint32_t *>(rows); /* address of the rows as 32-bit words, for the codes;
                                                                 * those of the lower 8 rows are stored one row further,
                                                                 * in other banks of shared memory */
    Seen            seen = notes();
    Codes8          turned[4];
    #pragma unroll 1
    for (int r = lane / PACKS; r < CHUNK; r += WARP / PACKS) {
        const Codes8 codes = cast_pack<E5M2>(load_pairs(rows + r * BOX + (pack ^ r % 8) * PACK8), by, &seen);
        pack_store((uint32_t *)(t.plain + (first + r) * t.pitch + column + pack * PACK8), codes);
        __syncwarp(); /* after this the codes may overwrite the four rows that the warp has just read */
        pack_store(words + (r + r / HALF) * WORDS + pack * 2, codes);
    }
    notes() = seen;
    __syncwarp();
    #pragma unroll
    for (int k = 0; k < 2; k++) {
        uint32_t w[4];
        for (int j = 0; j < 4; j++) w[j] = words[(half * (HALF + 1) + k * 4 + j) * WORDS + word];
        turn_words(w);
        for (int j = 0; j < 4; j++) turned[j].v[k] = w[j];
    }
    for (int j = 0; j < 4; j++)
        pack_store((uint32_t *)(t.turned + (column + word * 4 + j) * t.R_up + first + half * HALF), turned[j]);
}

/* Writes 16 rows of a tile, x times scale, to dqkv, or with CODES as 8-bit codes to out.codes. Each warp writes 16 rows
 * of its own. If row_sums of the argument h is set, also writes to it the sum of each column over these rows. first:
 * position of the first row. column: the tile's first column in dqkv. */
template <typename T, int ROWS, int D, bool CODES>
DEVICE void heads_store(const HeadsOut<T> &out, int first, T *tile, int row, const float (&x)[D / 2],
                        const float (&scale)[2], int head, int column, const Heads &h) {
    if constexpr (CODES) {
        sum_product<T, ROWS, D>(first, tile, row, head, column, h,
                                [&] { put_product<T, ROWS, D>(tile, row, x, scale); });
        if (first < h.T) store_codes(out.codes, sequence_row(h, head) + first, column, tile + row * BOX);
    } else {
        T *to = out.dqkv + (int64_t)sequence_row(h, head) * h.columns + column;
        store_summed<T, ROWS, D>(to, h.columns, first, tile, row, x, scale, head, column, h);
    }
}

/* --- two warpgroups: dk, dv and ds -------------------------------------------------------------------------------- */

/* Writes a warp's 16 rows of ds (gradients of scores) to the n-th place of the queue of ds. */
template <typename T, int SLOTS, class Shared>
DEVICE void give_ds(Shared *shared, Queue<SLOTS> &queue, unsigned n, const uint32_t (&ds)[KEYS_STEP / 16][4]) {
    const int thread = (int)afresh(threadIdx.x), lane = thread % WARP, row = thread / WARP * 16 + lane % 16,
              place = row * BOX + (lane / 16 ^ row % 8) * 8;
    queue_await_room(queue, n);
    #pragma unroll
    for (int j = 0; j < KEYS_STEP / 16; j++) stmatrix_x4(shared->ds[n % SLOTS] + (place ^ j * 16), ds[j]);
    fence_proxy_async();
    queue_give(queue, n);
}

/* Computes dk and dv of the tile of keys in one of the two places of shared memory. n counts the steps of queries that
 * the consumers have taken so far. */
template <typename T, int D, bool DOCUMENTS>
DEVICE void heads_rows(float (&dk)[D / 2], float (&dv)[D / 2], HeadsShared<T, D> *shared, HeadsQueues<T, D> &queues,
                       unsigned place, unsigned &n, int key, int end, const int32_t *starts, const Heads &h) {
    constexpr int  STEP = HeadsShared<T, D>::STEP, STAGES = HeadsShared<T, D>::STAGES;
    constexpr bool FEW = D == 128 && std::is_same_v<T, half>; /* registers are so few that the compiler would spill if
                                                               * it did not compute slot and tile afresh in each step */
    const int      group = (int)threadIdx.x / WARPGROUP, position = key + group * GROUP_ROWS;
    int            query = key;
    uint32_t       ds[STEP / 16][4];
    set_zero(dk);
    set_zero(dv);
    if (group > 0) { /* skips the first step, whose queries see none of the second warpgroup's keys; nobody reads the ds
                      * of this step */
        queue_take(queues.steps, n);
        queue_free(queues.steps, n);
        queue_await_room(queues.ds, n);
        queue_give(queues.ds, n);
        query += STEP, n++;
    }
    #pragma unroll 1
    for (; query < end; query += STEP, n++) {
        const unsigned slot = (FEW ? afresh(n) : n) % STAGES, tile = FEW ? afresh(place) : place;
        queue_take(queues.steps, n);
        const KeysTiles<T> at = {shared->k[tile],  shared->v[tile],   shared->q[slot],
                                 shared->dy[slot], shared->lse[slot], shared->delta[slot]};
        keys_step<T, D, DOCUMENTS, D == 128>(dk, dv, ds, at, position, query, starts, h,
                                             [&] { if (query > position) queue_free(queues.steps, n - 1); },
                                             [&](auto &x) { give_ds<T>(shared, queues.ds, n, x); });
    }
    wgmma_wait<0>(dk);
    if (query > position) queue_free(queues.steps, n - 1);
}

template <typename T, int D, bool DOCUMENTS, bool CODES>
DEVICE void heads_consume(const HeadsOut<T> &out, HeadsShared<T, D> *shared, HeadsQueues<T, D> &queues,
                          const Heads &h) {
    /* row: the warp's first row in the tile */
    const int group = (int)threadIdx.x / WARPGROUP, row = (int)threadIdx.x / WARP * 16;
    unsigned  done = 0, n = 0;
    for (int head = (int)blockIdx.x; head < h.heads; head += (int)gridDim.x) {
        const int32_t *starts = DOCUMENTS ? starts_of(h, head) : NULL;
        const int      column = key_column(h, head);
        for (int key = 0; key < h.T; key += BLOCK_ROWS, done++) {
            const float scale[2] = {h.scale, h.scale}, one[2] = {1.0f, 1.0f};
            float       dk[D / 2], dv[D / 2];
            T          *v = shared->v[done % 2];
            queue_take(queues.own, done);
            heads_rows<T, D, DOCUMENTS>(dk, dv, shared, queues, done % 2, n, key, queries_end<DOCUMENTS>(h, head, key),
                                        starts, h);
            named_barrier_sync(1 + group, WARPGROUP); /* after this all warps of the warpgroup have read the values; the
                                                       * keys are still needed for dq */
            heads_store<T, BLOCK_ROWS, D, CODES>(out, key + row, v, row, dv, one, head, column + h.key_columns, h);
            __syncwarp();
            heads_store<T, BLOCK_ROWS, D, CODES>(out, key + row, v, row, dk, scale, head, column, h);
            fence_proxy_async(); /* orders this thread's accesses to the tile of values before TMA fills it again */
            queue_free(queues.own, done);
        }
    }
}

/* --- the third: dq ------------------------------------------------------------------------------------------------ */

/* Computes 64 columns of dq = or += ds k, over the first KEYS keys of the tile. ds is [keys, queries]. */
template <typename T, int KEYS> DEVICE void multiply_ds(float (&dq)[BOX / 2], const T *ds, const T *k, bool add) {
    const uint64_t left = matrix_descriptor(ds, BOX * BOX * 2, SWIZZLE_ROWS_BYTES),
                   right = matrix_descriptor(k, BOX * BLOCK_ROWS * 2, SWIZZLE_ROWS_BYTES);
    wgmma_fence();
    #pragma unroll
    for (int j = 0; j < KEYS; j += 16)
        wgmma<T, T, BOX, 1, 1>(dq, descriptor_after(left, j * BOX * 2), descriptor_after(right, j * BOX * 2),
                               add || j > 0);
    wgmma_commit();
    wgmma_wait<0>(dq);
}

/* Load and store a thread's elements of a tile of sums, four elements at once. */
template <int N> DEVICE void sums_load(float (&x)[N], const float *tile) {
    #pragma unroll
    for (int i = 0; i < N; i += 4) {
        const Pack<float, 4> four = pack_load<float, 4>(tile + (i / 4 * WARPGROUP + (int)threadIdx.x % WARPGROUP) * 4);
        for (int e = 0; e < 4; e++) x[i + e] = four.v[e];
    }
}
template <int N> DEVICE void sums_store(float *tile, const float (&x)[N]) {
    #pragma unroll
    for (int i = 0; i < N; i += 4)
        pack_store(tile + (i / 4 * WARPGROUP + (int)threadIdx.x % WARPGROUP) * 4,
                   Pack<float, 4>{x[i], x[i + 1], x[i + 2], x[i + 3]});
}

template <typename T, int D, bool DOCUMENTS, bool CODES>
DEVICE void heads_add(const HeadsOut<T> &out, float *sums, HeadsShared<T, D> *shared, HeadsQueues<T, D> &queues,
                      const Heads &h) {
    constexpr int STEP = HeadsShared<T, D>::STEP, SLOTS = HeadsShared<T, D>::SLOTS;
    const int     row = (int)threadIdx.x % WARPGROUP / WARP * 16; /* the warp's first row in the tile */
    const float   scale[2] = {h.scale, h.scale};
    unsigned      done = 0, n = 0;
    for (int head = (int)blockIdx.x; head < h.heads; head += (int)gridDim.x) {
        for (int key = 0; key < h.T; key += BLOCK_ROWS, done++) {
            const T  *k = shared->k[done % 2];
            const int end = queries_end<DOCUMENTS>(h, head, key);
            queue_take(queues.own, done);
            #pragma unroll 1
            for (int query = key; query < end; query += STEP, n++) {
                const int first = DOCUMENTS ? starts_of(h, head)[query] / BLOCK_ROWS * BLOCK_ROWS : 0;
                const bool is_last = query < key + BLOCK_ROWS; /* later tiles of keys are not seen by this step's
                                                                * queries, so dq is complete */
                const T   *ds = shared->ds[n % SLOTS];
                #pragma unroll 1
                for (int column = 0; column < D; column += BOX) {
                    float *part = sums + (int64_t)query * D + column * STEP, dq[BOX / 2];
                    if (key > first) sums_load(dq, part); /* loads the sum over earlier keys while the warp waits for
                                                           * ds */
                    if (column == 0) queue_take(queues.ds, n);
                    if (query == key) multiply_ds<T, GROUP_ROWS>(dq, ds, k + column * BLOCK_ROWS, key > first);
                    else multiply_ds<T, BLOCK_ROWS>(dq, ds, k + column * BLOCK_ROWS, key > first);
                    if (column == D - BOX) queue_free(queues.ds, n);
                    __syncwarp(); /* the last result in shared->dq has been stored */
                    if (is_last) { /* computes the addresses again in each iteration, because too few registers are left
                                    * to keep them */
                        const int again = (int)afresh(head), from = (int)afresh(row);
                        heads_store<T, STEP, BOX, CODES>(out, query + row, shared->dq, from, dq, scale, again,
                                                         head_column(h, again) + column, h);
                    } else {
                        sums_store(part, dq);
                    }
                }
            }
            queue_free(queues.own, done);
        }
    }
}

#endif

/* Computes dqkv with a block a head. Block b takes heads b, b + grid, ...; it alone writes their rows of dqkv, and its
 * row of sums [grid, heads_sums]. grid: the multiprocessors, or fewer if there are fewer heads. Bound by the tensor
 * cores, with five products a tile, and nearly as much by shared memory. */
template <typename T, int D, bool DOCUMENTS, bool CODES>
KERNEL __launch_bounds__(HEADS_THREADS, 1)
    attention_heads_hopper_kernel(const __grid_constant__ HeadsOut<T> out, float *sums,
                                  const __grid_constant__ TensorMap qkv, const __grid_constant__ TensorMap dy,
                                  const __grid_constant__ TensorMap lse, const __grid_constant__ TensorMap delta,
                                  int padded, Heads h, int64_t block_sums) {
#ifdef PTX_HOPPER
    typedef HeadsShared<T, D> Shared;
    typedef HeadsQueues<T, D> Queues;
    SMEM(Queues, queues, [1]);
    SMEM_DYN(Shared, shared);
    if (CODES && threadIdx.x < HEADS_LOADER) notes() = {0, 0, 0};
    queues_init(queues[0]);
    if (threadIdx.x >= HEADS_LOADER) {
        registers_lower<HeadsRegisters<D>::LOADER>();
        tiles_aligned(shared); /* checks the alignment of shared memory here, where registers are plenty */
        if (threadIdx.x < HEADS_LOADER + WARP)
            heads_load<T, D, DOCUMENTS>(shared, queues[0], &qkv, &dy, &lse, &delta, padded, h);
    } else if (threadIdx.x >= ADDER) {
        registers_lower<HeadsRegisters<D>::ADDER>();
        heads_add<T, D, DOCUMENTS, CODES>(out, sums + blockIdx.x * block_sums, shared, queues[0], h);
    } else {
        registers_raise<HeadsRegisters<D>::KEYS>();
        heads_consume<T, D, DOCUMENTS, CODES>(out, shared, queues[0], h);
    }
    if (CODES && threadIdx.x < HEADS_LOADER) note_warp(notes(), out.codes.amax, out.codes.counts);
#endif
}

/* --- host --------------------------------------------------------------------------------------------------------- */

/* Returns the number of multiprocessors; without a GPU that of an H100. */
static int64_t heads_processors(void) { return device_multiprocessors() ? device_multiprocessors() : 132; }
/* Returns the number of elements of dq that a block keeps in memory: those of all queries of a head. */
static int64_t heads_sums(int64_t T, int64_t D) { return blocks_for(T, KEYS_STEP) * KEYS_STEP * D; }

size_t attention_heads_bytes(int64_t heads, int64_t T, int64_t D) {
    int64_t blocks = heads < heads_processors() ? heads : heads_processors();
    return (size_t)(blocks * heads_sums(T, D)) * sizeof(float);
}

bool attention_by_heads(DType act, int64_t heads, int64_t T, HeadShape h) {
    enum { L2_BYTES = 40 << 20 }; /* most bytes of dq that all blocks keep in L2 between tiles of keys: less than an
                                   * H100's 50 MB */
    const AttentionAsked asked = attention_asked();
    if (!attention_expects_hopper(act, h.size) || h.query != h.key || asked == ATTENTION_TILES) return false;
    const int64_t waves = blocks_for(heads, heads_processors());
    return asked == ATTENTION_HEADS ||
           (4 * heads >= 3 * waves * heads_processors() && attention_heads_bytes(heads, T, h.size) <= L2_BYTES);
}

template <typename T, int D, bool DOCUMENTS, bool CODES>
static void heads_launch(Stream *s, Tensor dqkv, const Fp8 *f, Tensor dy, Minus minus, float *sums, Tensor qkv,
                         Heads h) {
    const HeadsOut<T> out = {CODES ? NULL : ptr<T>(dqkv), CODES ? fp8_target(dqkv, *f) : Fp8Target()};
    const int64_t     values = (int64_t)h.heads * minus.padded;
    const int         blocks = device_resident_blocks();
    LAUNCH((attention_heads_hopper_kernel<T, D, DOCUMENTS, CODES>), (unsigned)(h.heads < blocks ? h.heads : blocks),
           HEADS_THREADS, sizeof(HeadsShared<T, D>), s, out, sums, map_of<T>(qkv), map_of<T>(dy),
           map_of_minus(minus.lse, values), map_of_minus(minus.delta, values), minus.padded, h, heads_sums(h.T, D));
}

void attention_hopper_heads_backward(Stream *s, Tensor dqkv, const Fp8 *f, Tensor dy, Minus minus, float *sums,
                                     Tensor qkv, Heads h) {
    /* Chooses the kernel. If f is set, it writes dqkv as 8-bit codes; otherwise the next statement chooses one for the
     * type. */
    auto launch = h.starts ? heads_launch<bf16, 64, true, true> : heads_launch<bf16, 64, false, true>;
    if (!f)
        DISPATCH_HOPPER(qkv.type, h.D, T, D,
                        launch = h.starts ? heads_launch<T, D, true, false> : heads_launch<T, D, false, false>);
    launch(s, dqkv, f, dy, minus, sums, qkv, h);
}
