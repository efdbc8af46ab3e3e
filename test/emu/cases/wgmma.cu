/* wgmma.cu - out[64,n] = A[64,k] B[n,k]' by one warpgroup, for each kind of operand of wgmma: A in registers or in
 * shared memory, 16 and 8 bits, B or both transposed. Threads write the tiles, so the proxy fence is needed. */
#include "core/ptx.cuh"
#include "test/emu/cases/cases.cuh"

enum { ROWS = 64, ROW_BYTES = 128, STEP_BYTES = 32, STEPS = ROW_BYTES / STEP_BYTES, WARPGROUP = 128 };
template <int N> struct alignas(1024) Operands { unsigned char a[ROWS * ROW_BYTES], b[N * ROW_BYTES]; };

#ifdef PTX_HOPPER
/* Stores rows of 128 bytes with the 16-byte units of each row permuted as in the 128-byte swizzle. */
DEVICE void store_rows(unsigned char *tile, const unsigned char *from, int rows, int64_t pitch) {
    for (int i = threadIdx.x; i < rows * 8; i += WARPGROUP) {
        int row = i / 8, unit = i % 8;
        *(int4 *)(tile + row * ROW_BYTES + (unit ^ row % 8) * 16) = *(const int4 *)(from + row * pitch + unit * 16);
    }
}
template <int N, int b_transposed> DEVICE void store_b(unsigned char *tile, const unsigned char *b, int t, int64_t k_bytes) {
    if constexpr (!b_transposed) store_rows(tile, b + t * ROW_BYTES, N, k_bytes);
    else
        for (int c = 0; c < N / 64; c++) /* b is [k,n] with 16-bit elements, stored in chunks of 64 columns */
            store_rows(tile + c * 64 * ROW_BYTES, b + (int64_t)t * 64 * N * 2 + c * ROW_BYTES, 64, N * 2);
}
#endif

template <typename A, typename B, int N, bool in_registers, int turned>
KERNEL __launch_bounds__(WARPGROUP, 1) product_kernel(float *__restrict__ out, const unsigned char *__restrict__ a,
                                                      const unsigned char *__restrict__ b, int k_bytes) {
#ifdef PTX_HOPPER
    constexpr int a_transposed = turned >> 1, b_transposed = turned & 1;
    SMEM_DYN(Operands<N>, tile);
    int      row = threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4, steps_b = b_transposed ? 16 * ROW_BYTES : STEP_BYTES;
    float    acc[N / 2];
    uint32_t words[STEPS][4], seen = 0;
    for (int t = 0; t < k_bytes / ROW_BYTES; t++) {
        /* planted fault 61: makes the proxy fence before the writes to shared memory */
        if (BUG(61)) fence_proxy_async();
        /* operand a is stored as [k,64], with 16-bit elements */
        if (a_transposed) store_rows(tile->a, a + (int64_t)t * 64 * ROW_BYTES, 64, ROW_BYTES);
        else if (!in_registers) store_rows(tile->a, a + t * ROW_BYTES, ROWS, k_bytes);
        store_b<N, b_transposed>(tile->b, b, t, k_bytes);
        if (BUG(76)) wgmma_fence(); /* planted fault 76: makes the wgmma fence before the registers are written */
        for (int i = 0; in_registers && i < STEPS * 4; i++) {
            int word = BUG(62) ? (i & 1) * 2 + (i >> 1 & 1) : i % 4; /* planted fault 62: wrong fragment order */
            words[i / 4][i % 4] = *(const uint32_t *)(a + (int64_t)(row + word % 2 * 8) * k_bytes + t * ROW_BYTES + i / 4 * STEP_BYTES +
                                                      word / 2 * 16 + threadIdx.x % 4 * 4);
        }
        /* planted fault 63: no proxy fence; planted fault 64: one thread fences for all */
        bool fences = !BUG(61) && !BUG(63) && (!BUG(64) || threadIdx.x == 0);
        if (fences) fence_proxy_async();
        /* planted fault 65: no barrier between the writes to shared memory and the products */
        if (!BUG(65)) __syncthreads();
        if (!BUG(66) && !BUG(76)) wgmma_fence(); /* planted fault 66: no wgmma fence, although registers were written */
        for (int i = 0; i < STEPS; i++) {
            /* planted fault 67: advances along k by half of the step */
            int      step = BUG(67) ? i * 16 : i * STEP_BYTES;
            /* planted fault 68: wrong leading byte offset in the matrix descriptor */
            int      leading = b_transposed && !BUG(68) ? 64 * ROW_BYTES : 16;
            uint64_t at_b = matrix_descriptor(tile->b + (b_transposed ? i * steps_b : step), leading, 1024);
            if constexpr (in_registers) {
                wgmma_from_registers<A, B, N, b_transposed>(acc, words[i], at_b, t + i > 0);
            } else {
                uint64_t at_a = matrix_descriptor(tile->a + i * (a_transposed ? 16 * ROW_BYTES : STEP_BYTES), 16, 1024);
                wgmma<A, B, N, a_transposed, b_transposed>(acc, at_a, at_b, t + i > 0);
            }
        }
        if (!BUG(69)) wgmma_commit(); /* planted fault 69: a group of products that is never committed */
        if (BUG(70)) words[0][1] ^= 1; /* planted fault 70: registers of A are changed in flight */
        if (in_registers && BUG(77)) seen += words[0][1]; /* planted fault 77: registers of A are read in flight */
        if (BUG(71)) tile->b[threadIdx.x] ^= 1; /* planted fault 71: shared memory is changed in flight */
        if (BUG(72)) acc[5] *= 0.5f; /* planted fault 72: the accumulators are used in flight */
        /* planted fault 73: does not name the accumulators, so their uses may be moved before the wait */
        if (BUG(73)) wgmma_wait<0>();
        else if (BUG(74)) wgmma_wait<1>(acc); /* planted fault 74: leaves one group of products too many in flight */
        else wgmma_wait<0>(acc);
        __syncthreads(); /* after this the tiles have been read */
    }
    for (int i = 0; i < N / 2; i++) out[(row + (i >> 1 & 1) * 8) * N + i / 4 * 8 + threadIdx.x % 4 * 2 + (i & 1)] = seen == 1 ? 0.0f : acc[i];
#endif
}
template <typename A, typename B, int N, bool in_registers, int turned>
void product(float *out, const A *a, const B *b, int k, Stream *s) {
    LAUNCH((product_kernel<A, B, N, in_registers, turned>), 1, WARPGROUP, sizeof(Operands<N>), s, out, (const unsigned char *)a,
           (const unsigned char *)b, k * (int)sizeof(A));
}
#define PRODUCT(A, B, N, in_registers, turned) \
    template void product<A, B, N, in_registers, turned>(float *, const A *, const B *, int, Stream *);
PRODUCT(bf16, bf16, 64, false, 0)
PRODUCT(bf16, bf16, 128, true, 1)
PRODUCT(half, half, 192, false, 1)
PRODUCT(half, half, 256, true, 0)
PRODUCT(bf16, bf16, 64, false, 3)
PRODUCT(half, half, 128, false, 2)
PRODUCT(e4m3, e4m3, 128, false, 0)
PRODUCT(e5m2, e4m3, 256, false, 0)
PRODUCT(e4m3, e5m2, 64, true, 0)
PRODUCT(e5m2, e5m2, 192, true, 0)

#ifdef PTX_HOPPER
/* Writes the elements of a [64,64] product that this thread holds in registers to out. */
DEVICE void store_square(float *out, const float (&d)[32]) {
    int row = threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4;
    for (int i = 0; i < 32; i++) out[(row + (i >> 1 & 1) * 8) * 64 + i / 4 * 8 + threadIdx.x % 4 * 2 + (i & 1)] = d[i];
}
#endif
/* Issues two products, each out[i] [64,64], and uses the first while the second still runs. b is [128,64]. */
KERNEL __launch_bounds__(WARPGROUP, 1)
    two_products_kernel(float *__restrict__ out, const bf16 *__restrict__ a, const bf16 *__restrict__ b) {
#ifdef PTX_HOPPER
    SMEM_DYN(Operands<128>, tile);
    store_rows(tile->a, (const unsigned char *)a, ROWS, ROW_BYTES);
    store_rows(tile->b, (const unsigned char *)b, 128, ROW_BYTES);
    fence_proxy_async();
    __syncthreads();
    float first[32], second[32];
    wgmma_fence();
    for (int p = 0; p < 2; p++) {
        for (int i = 0; i < STEPS; i++) {
            uint64_t at_a = matrix_descriptor(tile->a + i * STEP_BYTES, 16, 1024);
            uint64_t at_b = matrix_descriptor(tile->b + p * 64 * ROW_BYTES + i * STEP_BYTES, 16, 1024);
            wgmma<bf16, bf16, 64>(p ? second : first, at_a, at_b, i > 0);
        }
        wgmma_commit();
    }
    wgmma_wait<1>(first);
    store_square(out, first);
    if (!BUG(75)) wgmma_wait<0>(second); /* planted fault 75: uses the second product before the wait for it */
    store_square(out + ROWS * 64, second);
    if (BUG(75)) wgmma_wait<0>(second);
#endif
}
void two_products(float *out, const bf16 *a, const bf16 *b, Stream *s) {
    LAUNCH(two_products_kernel, 1, WARPGROUP, sizeof(Operands<128>), s, out, a, b);
}
