/* gemm.cu - C[m,n] = A[m,k] B[k,n], row-major, in two ways: by mma.sync with double-buffered cp.async, and by wgmma,
 * with tiles that TMA loads and mbarriers announce. */
#include "core/ptx.cuh"
#include "test/emu/cases/cases.cuh"

/* --- mma.sync: tiles 64 x 64 x 32, 4 warps of 32 x 32 each -------------------------------------------------------- */

enum { TILE_M = 64, TILE_N = 64, TILE_K = 32, PAD = 8 /* PAD puts rows on different banks */, GEMM_THREADS = 128 };

template <typename T> struct GemmShared {
    T a[2][TILE_M][TILE_K + PAD];
    T b[2][TILE_K][TILE_N + PAD];
};

template <typename T> DEVICE void load_tiles(GemmShared<T> *shared, int buffer, const T *a, const T *b, int m, int n, int k, int m0,
                                             int n0, int k0) {
    for (int i = threadIdx.x; i < TILE_M * TILE_K / 8; i += GEMM_THREADS) {
        int  r = i / (TILE_K / 8), c = i % (TILE_K / 8) * 8;
        /* planted fault 11: does not check that the row is inside the matrix */
        bool inside = (BUG(11) || m0 + r < m) && k0 + c < k;
        cp_async_16(&shared->a[buffer][r][c], inside ? a + (size_t)(m0 + r) * k + k0 + c : a, inside ? 16 : 0);
    }
    for (int i = threadIdx.x; i < TILE_K * TILE_N / 8; i += GEMM_THREADS) {
        int  r = i / (TILE_N / 8), c = i % (TILE_N / 8) * 8;
        bool inside = k0 + r < k && n0 + c < n;
        cp_async_16(&shared->b[buffer][r][c], inside ? b + (size_t)(k0 + r) * n + n0 + c : b, inside ? 16 : 0);
    }
    cp_async_commit();
}

template <typename T>
DEVICE void multiply_tiles(float (&acc)[2][4][4], const GemmShared<T> *shared, int buffer, int warp_m, int warp_n) {
    int lane = threadIdx.x % WARP;
    for (int k = 0; k < TILE_K; k += 16) {
        uint32_t a[2][4], b[4][2];
        for (int i = 0; i < 2; i++) /* planted fault 15: unaligned ldmatrix row */
            ldmatrix_x4(a[i], &shared->a[buffer][warp_m + i * 16 + lane % 16][k + lane / 16 * 8 + (BUG(15) ? 4 : 0)]);
        for (int j = 0; j < 2; j++) {
            uint32_t r[4];
            ldmatrix_x4_transposed(r, &shared->b[buffer][k + lane % 16][warp_n + j * 16 + lane / 16 * 8]);
            b[2 * j][0] = r[0], b[2 * j][1] = BUG(14) ? r[2] : r[1]; /* planted fault 14: wrong fragment order */
            b[2 * j + 1][0] = BUG(14) ? r[1] : r[2], b[2 * j + 1][1] = r[3];
        }
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < 4; j++) mma_m16n8k16<T>(acc[i][j], a[i], b[j]);
    }
}

template <typename T>
KERNEL gemm_kernel(float *__restrict__ out, const T *__restrict__ a, const T *__restrict__ b, int m, int n, int k) {
    SMEM_DYN(GemmShared<T>, shared);
    int   lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warp_m = warp / 2 * 32, warp_n = warp % 2 * 32;
    int   m0 = blockIdx.y * TILE_M, n0 = blockIdx.x * TILE_N, tiles = (k + TILE_K - 1) / TILE_K;
    float acc[2][4][4];
    for (int i = 0; i < 2 * 4 * 4; i++)
        if (!BUG(16)) acc[i / 16][i / 4 % 4][i % 4] = 0.0f; /* planted fault 16: accumulator not initialised */

    load_tiles(shared, 0, a, b, m, n, k, m0, n0, 0);
    for (int t = 0; t < tiles; t++) {
        if (t + 1 < tiles) {
            load_tiles(shared, (t + 1) % 2, a, b, m, n, k, m0, n0, (t + 1) * TILE_K);
            if (BUG(12)) cp_async_wait<2>(); /* planted fault 12: leaves one group of copies too many in flight */
            else cp_async_wait<1>();
        } else {
            cp_async_wait<0>();
        }
        __syncthreads(); /* after this the copies of all threads are complete */
        multiply_tiles(acc, shared, t % 2, warp_m, warp_n);
        if (!BUG(13)) __syncthreads(); /* planted fault 13: the next load overwrites a tile that is still read */
    }
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 4; j++)
            for (int h = 0; h < 2; h++) {
                int row = m0 + warp_m + i * 16 + lane / 4 + h * 8, column = n0 + warp_n + j * 8 + lane % 4 * 2;
                Pack<float, 2> pair = {{acc[i][j][h * 2], acc[i][j][h * 2 + 1]}};
                if (row < m && column < n) pack_store(&out[(size_t)row * n + column], pair);
            }
}
template <typename T> void gemm(float *c, const T *a, const T *b, int m, int n, int k, Stream *s) {
    dim3 grid((unsigned)blocks_for(n, TILE_N), (unsigned)blocks_for(m, TILE_M));
    size_t shared_bytes = sizeof(GemmShared<T>) - (BUG(19) ? 64 : 0); /* planted fault 19: too little shared memory */
    LAUNCH((gemm_kernel<T>), grid, GEMM_THREADS, shared_bytes, s, c, a, b, m, n, k);
}
template void gemm(float *, const bf16 *, const bf16 *, int, int, int, Stream *);
template void gemm(float *, const half *, const half *, int, int, int, Stream *);

/* --- Hopper: a ring of tiles, one producer thread, one warpgroup of consumers ------------------------------------- */

enum { SIDE = 64, TILE = SIDE * SIDE, STAGES = 3 };
template <typename T> struct alignas(1024) Ring {
    T        a[STAGES][TILE], b[STAGES][TILE];
    uint64_t full[STAGES], empty[STAGES];
};

template <typename T>
KERNEL __launch_bounds__(256, 1) gemm_hopper_kernel(float *__restrict__ out, const __grid_constant__ TensorMap map_a,
                                                    const __grid_constant__ TensorMap map_b, int m, int n, int k) {
#ifdef PTX_HOPPER
    SMEM_DYN(Ring<T>, ring);
    tiles_aligned(ring);
    int m0 = blockIdx.y * SIDE, n0 = blockIdx.x * SIDE, tiles = (k + SIDE - 1) / SIDE;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(&ring->full[i], 1);
            /* planted fault 43: the barrier expects more arrivals than will ever come */
            mbarrier_init(&ring->empty[i], BUG(43) ? 128 : 4);
        }
        mbarrier_init_fence();
    }
    __syncthreads(); /* after this the barriers exist */
    if (threadIdx.x >= 128) {
        registers_lower<40>();
        for (int t = 0; threadIdx.x == 128 && t < tiles; t++) {
            int      stage = t % STAGES;
            unsigned parity = t / STAGES & 1;
            /* planted fault 41: does not wait until the slot of the ring is free */
            if (!BUG(41)) mbarrier_wait(&ring->empty[stage], parity ^ 1);
            /* planted fault 42: the barrier expects half of the bytes */
            mbarrier_arrive_expect(&ring->full[stage], BUG(42) ? TILE * 2 : TILE * 4);
            tma_load_2d(ring->a[stage], &map_a, &ring->full[stage], t * SIDE, m0);
            tma_load_2d(ring->b[stage], &map_b, &ring->full[stage], n0, t * SIDE);
        }
        return; /* a thread may end here, because no barrier of the block follows */
    }
    registers_raise<232>();
    float acc[32], nothing = 0.0f;
    for (int i = 0; i < 32; i++) acc[i] = 0.0f;
    for (int t = 0; t < tiles; t++) {
        int      stage = t % STAGES;
        unsigned parity = t / STAGES & 1;
        /* planted fault 44: waits for the wrong parity of the barrier */
        mbarrier_wait(&ring->full[stage], BUG(44) ? parity ^ 1 : parity);
        wgmma_fence();
        for (int kk = 0; kk < SIDE; kk += 16) { /* planted fault 45: wrong stride in the matrix descriptor */
            uint64_t a = matrix_descriptor(ring->a[stage] + kk, 16, BUG(45) ? 512 : 1024);
            uint64_t b = matrix_descriptor(ring->b[stage] + kk * SIDE, 1024, 1024);
            wgmma<T, T, 64, 0, 1>(acc, a, b, 1);
        }
        wgmma_commit();
        /* planted fault 46: releases the slot and reads the accumulator before the products are complete */
        if (!BUG(46)) wgmma_wait<0>(acc);
        /* reads the tile by an ordinary load, so that a proxy fence is needed before TMA writes it again */
        nothing += to_f32(ring->a[stage][threadIdx.x]) * 0.0f;
        /* planted fault 47: no proxy fence before TMA fills the slot again */
        if (!BUG(47)) fence_proxy_async();
        __syncwarp();
        if (threadIdx.x % WARP == 0) mbarrier_arrive(&ring->empty[stage]);
    }
    int row = m0 + threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4;
    for (int j = 0; j < 8; j++)
        for (int h = 0; h < 2; h++) {
            int r = row + h * 8, c = n0 + j * 8 + threadIdx.x % 4 * 2;
            Pack<float, 2> pair = {{acc[j * 4 + h * 2] + nothing, acc[j * 4 + h * 2 + 1]}};
            if (r < m && c < n) pack_store(&out[(size_t)r * n + c], pair);
        }
    if (BUG(46)) wgmma_wait<0>(acc);
#endif
}
template <typename T> void gemm_hopper(float *c, const T *a, const T *b, int m, int n, int k, Stream *s) {
    /* planted fault 48: dynamic memory begins at a place that is not a multiple of its alignment */
    if (BUG(48)) setenv("EMU_SHIFT", "512", 1);
    TensorMap map_a = tensor_map_2d(a, m, k, SIDE, SIDE), map_b = tensor_map_2d(b, k, n, SIDE, SIDE);
    dim3      grid((unsigned)blocks_for(n, SIDE), (unsigned)blocks_for(m, SIDE));
    LAUNCH((gemm_hopper_kernel<T>), grid, 256, sizeof(Ring<T>), s, c, map_a, map_b, m, n, k);
}
template void gemm_hopper(float *, const bf16 *, const bf16 *, int, int, int, Stream *);
template void gemm_hopper(float *, const half *, const half *, int, int, int, Stream *);
