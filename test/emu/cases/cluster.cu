/* cluster.cu - test cases of clusters of two blocks that share each tile. Each block loads half of the tile into both
 * blocks. Both must have read a slot of the ring before either fills it again. */
#include "test/emu/cases/cases.cuh"
#include "test/emu/cases/ptx_more.cuh"

enum { BLOCKS = 2, ROWS = 64, COLUMNS = 64, HALF = ROWS / BLOCKS, SLOTS = 2, TILE_BYTES = ROWS * COLUMNS * 2, THREADS = 128 };
struct alignas(1024) Ring {
    unsigned char tile[SLOTS][TILE_BYTES];
    uint64_t      full[SLOTS], empty[SLOTS];
};

#ifdef PTX_HOPPER
DEVICE void load_half(Ring *ring, const TensorMap *map, int t) {
    int      slot = t % SLOTS;
    unsigned rank = cluster_rank(), parity = t / SLOTS & 1;
    /* planted fault 106: the block loads its half of the tile into itself only */
    unsigned everybody = BUG(106) ? 1u << rank : (1u << BLOCKS) - 1;
    /* planted fault 104: fills a slot that the other block may still read */
    if (!BUG(104)) mbarrier_wait_cluster(&ring->empty[slot], parity ^ 1);
    /* planted fault 103: the barrier expects the bytes of one block's half only */
    mbarrier_arrive_expect(&ring->full[slot], BUG(103) ? TILE_BYTES / BLOCKS : TILE_BYTES);
    void *half = ring->tile[slot] + rank * (TILE_BYTES / BLOCKS);
    tma_load_2d_multicast(half, map, &ring->full[slot], 0, t * ROWS + (int)rank * HALF, everybody);
}
#endif

/* Block b writes out[b][i] = in[i] + b, with `in` [64 tiles, 64] in bf16. */
KERNEL __launch_bounds__(THREADS, 1)
    share_kernel(float *__restrict__ out, const __grid_constant__ TensorMap map, int tiles) {
#ifdef PTX_HOPPER
    SMEM_DYN(Ring, ring);
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; i++) {
            mbarrier_init(&ring->full[i], 1);
            mbarrier_init(&ring->empty[i], BLOCKS);
        }
        mbarrier_init_fence();
    }
    if (BUG(101)) __syncthreads(); /* planted fault 101: uses the other block's barriers, which may not exist yet */
    else if (!BUG(107)) cluster_arrive(); /* planted fault 107: waits without having arrived */
    if (!BUG(101) && !BUG(108)) cluster_wait(); /* planted fault 108: arrives and never waits */
    if (threadIdx.x == 0) load_half(ring, &map, 0);
    for (int t = 0; t < tiles; t++) {
        int slot = t % SLOTS;
        if (threadIdx.x == 0 && t + 1 < tiles) load_half(ring, &map, t + 1);
        mbarrier_wait(&ring->full[slot], t / SLOTS & 1);
        for (int i = threadIdx.x; i < ROWS * COLUMNS; i += THREADS) {
            int   row = i / COLUMNS, byte = i % COLUMNS * 2;
            bf16 *at = (bf16 *)(ring->tile[slot] + row * 128 + ((byte / 16) ^ row % 8) * 16 + byte % 16);
            out[((int64_t)blockIdx.x * tiles + t) * ROWS * COLUMNS + i] = to_f32(*at) + (float)blockIdx.x;
        }
        fence_proxy_async(); /* TMA fills this slot again later; the fence orders the reads before that */
        __syncthreads();     /* after this the whole block has read the slot */
        for (unsigned rank = 0; threadIdx.x == 0 && rank < BLOCKS; rank++)
            /* planted fault 102: does not release the slot to the other block */
            if (!BUG(102) || rank == cluster_rank()) mbarrier_arrive_at(&ring->empty[slot], rank);
    }
    if (BUG(105)) return; /* planted fault 105: ends while the other block may still arrive here */
    cluster_arrive();
    cluster_wait();
#endif
}
void share(float *out, const bf16 *in, int tiles, int clusters, Stream *s) {
    TensorMap map = tensor_map_2d(in, (int64_t)tiles * ROWS, COLUMNS, HALF, COLUMNS);
    LAUNCH_CLUSTER(BLOCKS, share_kernel, (unsigned)(clusters * BLOCKS), THREADS, sizeof(Ring), s, out, map, tiles);
}
