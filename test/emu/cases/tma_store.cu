/* tma_store.cu - tiles that are written from registers to shared memory (stmatrix) and from there to a matrix (TMA).
 * Cases: out = in, out = in transposed, and a sum over all blocks in fp32 (reduce-add). A block uses one tile of shared
 * memory again and again. */
#include "test/emu/cases/cases.cuh"
#include "test/emu/cases/ptx_more.cuh"

enum { SIDE = 64, ROW_BYTES = 128, THREADS = 128 };
struct alignas(1024) Tile { unsigned char bytes[SIDE * ROW_BYTES]; };

#ifdef PTX_HOPPER
DEVICE unsigned char *at_swizzled(Tile *tile, int row, int byte) { return tile->bytes + row * ROW_BYTES + ((byte / 16) ^ row % 8) * 16; }

/* Loads 16 x 16 elements of a row-major matrix at (r0, c0) in the order of stmatrix. Elements outside of the matrix are
 * 0. */
template <typename T> DEVICE void load_fragments(uint32_t (&r)[4], const T *in, int rows, int columns, int r0, int c0) {
    for (int i = 0; i < 4; i++) {
        int row = r0 + i % 2 * 8 + threadIdx.x % WARP / 4, column = c0 + i / 2 * 8 + threadIdx.x % 4 * 2;
        r[i] = row < rows && column < columns ? *(const uint32_t *)(in + (int64_t)row * columns + column) : 0;
    }
}
#endif

/* Writes `in`, or its transpose, by TMA stores to the matrix that `map` describes. Each block owns 64 rows of `in`
 * and loops over their columns. */
template <typename T, bool transposed>
KERNEL __launch_bounds__(THREADS, 1)
    store_kernel(const __grid_constant__ TensorMap map, const T *__restrict__ in, T *out, T *__restrict__ seen, int rows, int columns) {
#ifdef PTX_HOPPER
    SMEM_DYN(Tile, tile);
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, r0 = blockIdx.x * SIDE;
    for (int c0 = 0; c0 < columns; c0 += SIDE) {
        for (int j = 0; j < 4; j++) {
            uint32_t r[4];
            load_fragments(r, in, rows, columns, r0 + warp * 16, c0 + j * 16);
            if (BUG(81)) { uint32_t x = r[1]; r[1] = r[2], r[2] = x; } /* planted fault 81: wrong order of fragments */
            int row = warp * 16 + lane / 8 % 2 * 8, column = j * 16 + lane / 16 * 8;
            if (transposed) stmatrix_x4_transposed(at_swizzled(tile, column + lane % 8, row * 2), r);
            /* planted fault 82: unaligned row address */
            else stmatrix_x4(at_swizzled(tile, row + lane % 8, column * 2) + (BUG(82) ? 8 : 0), r);
        }
        /* planted fault 83: no proxy fence; planted fault 84: one thread fences for all */
        if (!BUG(83) && (!BUG(84) || threadIdx.x == 0)) fence_proxy_async();
        if (!BUG(85)) __syncthreads(); /* planted fault 85: stores the tile before it is complete */
        if (threadIdx.x == 0) {
            if (transposed) tma_store_2d(&map, tile, r0, c0);
            else tma_store_2d(&map, tile, c0, r0);
            if (!BUG(86)) bulk_commit(); /* planted fault 86: the group of stores is never committed */
        }
        unsigned waiting = BUG(87) ? 32 : 0; /* planted fault 87: the thread that waits is not the one that stored */
        if (!BUG(88) && threadIdx.x == waiting) bulk_wait_read<0>(); /* planted fault 88: no thread waits */
        __syncthreads(); /* after this the tile may be filled again */
    }
    if (threadIdx.x == 0) {
        /* planted fault 89: waits until shared memory is read, not until the matrix is written */
        if (!BUG(89)) bulk_wait<0>();
        seen[blockIdx.x] = out[(int64_t)blockIdx.x * SIDE * (transposed ? 1 : columns)];
    }
#endif
}
template <typename T, bool transposed> void store(T *out, T *seen, const T *in, int rows, int columns, Stream *s) {
    TensorMap map = transposed ? tensor_map_2d(out, columns, rows, SIDE, SIDE) : tensor_map_2d(out, rows, columns, SIDE, SIDE);
    LAUNCH((store_kernel<T, transposed>), (unsigned)blocks_for(rows, SIDE), THREADS, sizeof(Tile), s, map, in, out, seen, rows, columns);
}
template void store<bf16, false>(bf16 *, bf16 *, const bf16 *, int, int, Stream *);
template void store<half, true>(half *, half *, const half *, int, int, Stream *);

/* Each block adds a tile `rounds` times to the matrix that `map` describes. The elements of the tile are the block's
 * number + 1; in round 1 they are 0 to 2 larger. The matrix has at most 64 rows of 128 bytes. */
template <typename T>
KERNEL __launch_bounds__(THREADS, 1) sum_kernel(const __grid_constant__ TensorMap map, int rounds) {
#ifdef PTX_HOPPER
    constexpr int PER_ROW = ROW_BYTES / sizeof(T);
    SMEM_DYN(Tile, tile);
    for (int round = 0; round < rounds; round++) {
        for (int i = threadIdx.x; i < SIDE * PER_ROW; i += THREADS) {
            int row = i / PER_ROW, byte = i % PER_ROW * (int)sizeof(T);
            *(T *)(at_swizzled(tile, row, byte) + byte % 16) = from_f32<T>((float)(blockIdx.x + 1 + (round == 1) * (i % 3)));
        }
        fence_proxy_async();
        __syncthreads();
        if (threadIdx.x == 0) {
            /* planted fault 90: stores instead of adding, so the other blocks' sums are lost */
            if (BUG(90)) tma_store_2d(&map, tile, 0, 0);
            else tma_reduce_add_2d(&map, tile, 0, 0);
            bulk_commit();
            /* planted fault 91: leaves one group of stores too many in flight, so the tile is filled again too early */
            if (BUG(91)) bulk_wait_read<1>();
            else bulk_wait_read<0>();
        }
        __syncthreads();
    }
    if (threadIdx.x == 0 && BUG(91)) bulk_wait_read<0>();
#endif
}
template <typename T> void sum_of_blocks(T *sum, int rows, int blocks, int rounds, Stream *s) {
    TensorMap map = tensor_map_2d(sum, rows, ROW_BYTES / sizeof(T), SIDE, ROW_BYTES / sizeof(T));
    LAUNCH((sum_kernel<T>), (unsigned)blocks, THREADS, sizeof(Tile), s, map, rounds);
}
template void sum_of_blocks(float *, int, int, int, Stream *);
template void sum_of_blocks(bf16 *, int, int, int, Stream *);

/* --- warpgroups that hand work on: bar.arrive and setmaxnreg ------------------------------------------------------- */

enum { RING = 2, FILLED = 1, FREE = FILLED + RING, ALL = 384 };
/* out[i] = in[i] + in[i + 128] in each group of 256 elements, with the second index modulo 256. n is a multiple of 256.
 * One warpgroup fills the slots of a ring, two warpgroups read them. */
KERNEL __launch_bounds__(ALL, 1) hand_on_kernel(float *__restrict__ out, const float *__restrict__ in, int n) {
#ifdef PTX_HOPPER
    SMEM(float, slot, [RING][256]);
    int group = threadIdx.x / 128, lane = threadIdx.x % 128, rounds = n / 256;
    if (group == 0) {
        /* planted fault 95: gives up no registers; planted fault 96: one warp gives up none */
        if (!BUG(95) && (!BUG(96) || lane < 96)) registers_lower<24>();
        for (int t = 0; t < rounds; t++) {
            int s = t % RING;
            /* planted fault 92: fills a slot that is in use */
            if (t >= RING && !BUG(92)) named_barrier_sync(FREE + s, ALL);
            /* planted fault 93: announces the slot before it has written it */
            if (BUG(93)) named_barrier_arrive(FILLED + s, ALL);
            for (int i = lane; i < 256; i += 128) slot[s][i] = in[t * 256 + i];
            /* planted fault 94: never announces the slot */
            if (!BUG(93) && !BUG(94)) named_barrier_arrive(FILLED + s, ALL);
        }
        /* takes part in the last rounds of the barriers, so that no arrival remains when the block ends */
        for (int t = rounds; t < rounds + RING; t++)
            if (t >= RING) named_barrier_sync(FREE + t % RING, ALL);
        return; /* a thread may end here, because no barrier of the block follows */
    }
    if (BUG(97)) registers_raise<256>(); /* planted fault 97: requests more registers than the block has */
    else registers_raise<240>();
    for (int t = 0; t < rounds; t++) {
        int s = t % RING, i = (group - 1) * 128 + lane;
        /* planted fault 98: names a number of threads other than those that arrive */
        named_barrier_sync(FILLED + s, BUG(98) ? ALL - 32 : ALL);
        out[t * 256 + i] = slot[s][i] + slot[s][(i + 128) % 256];
        named_barrier_arrive(FREE + s, ALL);
    }
#endif
}
void hand_on(float *out, const float *in, int n, Stream *s) { LAUNCH(hand_on_kernel, 1, ALL, 0, s, out, in, n); }
