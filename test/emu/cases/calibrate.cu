/* calibrate.cu - results of the primitives of core/ptx.cuh for seeded random operands, bit by bit.
 * test/emu/compare_calibration.py compares the results of a GPU with those of the emulator. Moves of data must agree
 * exactly, products up to the order of their sums, and 2^x up to the error of its instruction. Only setmaxnreg gives no
 * result to compare. Every form of wgmma, stmatrix, TMA stores and bar.arrive are covered by the kernels of wgmma.cu
 * and tma_store.cu.
 *
 * Prints one line per result: name, index, 32 bits in hexadecimal.
 */
#include <stdio.h>

#include "core/ptx.cuh"
#include "test/emu/cases/cases.cuh"
#include "test/emu/cases/host.h"

enum { THREADS = 128, MOST_PER_THREAD = 32, TILE_ELEMS = 64 * 64 };

static uint16_t random_bits(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (uint16_t)(*state >> 16);
}
/* Returns n random multiples of 2^-14 in [-2, 2), rounded to the 16-bit type T. bf16 and fp16 have different exponent
 * widths, so the same random bits would not be finite numbers near 1 in both. */
template <typename T> std::vector<T> operands(size_t n, uint32_t seed) {
    std::vector<T> v(n);
    for (T &x : v) set_float(&x, ((float)random_bits(&seed) - 32768.0f) / 16384.0f);
    return v;
}

enum Primitive { LDMATRIX, LDMATRIX_TRANSPOSED, CP_ASYNC_SHORT, NAMED_BARRIER, EXP2, MMA };

/* Runs the chosen instruction in each warp separately. It writes 32 rows of 16 bytes to shared memory, reads them by
 * ldmatrix and multiplies them. */
template <typename T> KERNEL warp_kernel(uint32_t *out, const T *in, Primitive primitive) {
    struct alignas(16) Row { T x[8]; }; /* a row is 16 bytes, aligned, because cp.async copies a whole row */
    SMEM(Row, rows, [THREADS]);
    T (*tile)[8] = &rows[0].x;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int bytes = primitive == CP_ASYNC_SHORT ? lane % 9 * 2 : 16;
    cp_async_16(tile[threadIdx.x], in + (size_t)threadIdx.x * 8, bytes);
    cp_async_commit();
    cp_async_wait<0>();
    /* the warp reads a row that the other warp of its pair wrote */
    if (primitive == NAMED_BARRIER) named_barrier_sync(1 + warp / 2, 2 * WARP);
    /* waits until every lane's row is written */
    else __syncwarp();
    uint32_t a[4], b[2];
    float    d[4] = {0.5f, -0.25f, 0.0f, 1.0f};
    if (primitive == LDMATRIX_TRANSPOSED) ldmatrix_x4_transposed(a, tile[warp * WARP + lane]);
    else ldmatrix_x4(a, tile[(primitive == NAMED_BARRIER ? warp ^ 1 : warp) * WARP + lane]);
    b[0] = a[3], b[1] = a[1];
    if (primitive == MMA) mma_m16n8k16<T>(d, a, b);
    if (primitive == EXP2) /* the exponents run from 2^-250, which is zero in fp32, to 2^6 */
        for (int i = 0; i < 4; i++) d[i] = exp2_approx((to_f32(tile[threadIdx.x][i]) - 1.9f) * (float)(1 << 2 * i));
    for (int i = 0; i < 4; i++) out[threadIdx.x * 4 + i] = primitive >= EXP2 ? __float_as_uint(d[i]) : a[i];
}

enum Hopper { TMA_INSIDE, TMA_ACROSS_THE_EDGE, EVERY_THREAD_ARRIVES, WGMMA };

/* Runs the chosen instruction in one warpgroup. Writes to out a tile as TMA wrote it to shared memory, or the
 * product of two tiles. */
template <typename T>
KERNEL __launch_bounds__(THREADS, 1)
    hopper_kernel(uint32_t *out, const __grid_constant__ TensorMap map, Hopper primitive) {
#ifdef PTX_HOPPER
    struct alignas(1024) Shared {
        T        a[TILE_ELEMS], b[TILE_ELEMS];
        uint64_t arrived, all_arrived;
    };
    SMEM_DYN(Shared, shared);
    int edge = primitive == TMA_ACROSS_THE_EDGE ? 40 : 0;
    if (threadIdx.x == 0) {
        mbarrier_init(&shared->arrived, 1);
        mbarrier_init(&shared->all_arrived, THREADS);
        mbarrier_init_fence();
        mbarrier_arrive_expect(&shared->arrived, 2 * TILE_ELEMS * sizeof(T));
        tma_load_2d(shared->a, &map, &shared->arrived, edge, edge);
        tma_load_2d(shared->b, &map, &shared->arrived, 64 - edge, edge);
    }
    __syncthreads(); /* after this all threads see the initialised mbarrier */
    mbarrier_wait(&shared->arrived, 0);
    float d[32];
    for (int i = 0; i < 32; i++) d[i] = 0.0f;
    if (primitive == WGMMA) {
        wgmma_fence();
        for (int k = 0; k < 64; k += 16)
            wgmma<T, T, 64, 0, 1>(d, matrix_descriptor(shared->a + k, 16, 1024), matrix_descriptor(shared->b + k * 64, 1024, 1024), 1);
        wgmma_commit();
        wgmma_wait<0>(d);
    }
    const T *mine = shared->a + threadIdx.x * 32;
    /* each thread reads a value that another thread stored before that thread arrived */
    if (primitive == EVERY_THREAD_ARRIVES) {
        shared->b[threadIdx.x] = mine[0];
        mbarrier_arrive(&shared->all_arrived);
        mbarrier_wait(&shared->all_arrived, 0);
        mine = shared->b + (threadIdx.x ^ 77) % 96;
    }
    for (int i = 0; i < 32; i++) {
        uint16_t bits;
        memcpy(&bits, &mine[i], sizeof bits);
        out[threadIdx.x * 32 + i] = primitive == WGMMA ? __float_as_uint(d[i]) : bits;
    }
#endif
}

template <typename R> static void print(const char *name, const char *type, const OnDevice<R> &out) {
    std::vector<R> results = out.host();
    for (size_t i = 0; i < results.size(); i++) {
        uint32_t bits = 0;
        memcpy(&bits, &results[i], sizeof results[i]);
        printf("%s_%s %zu %08x\n", name, type, i, bits);
    }
}

template <typename T> static void of_type(const char *type, uint32_t seed) {
    static const char *const warp_names[] = {"ldmatrix", "ldmatrix_transposed", "cp_async_short", "named_barrier",
                                             "exp2", "mma_m16n8k16"};
    static const char *const hopper_names[] = {"tma_inside", "tma_across_the_edge", "mbarrier_arrive", "wgmma_m64n64k16"};
    OnDevice<T>              in(operands<T>(THREADS * 8, seed)), matrix(operands<T>(96 * 128, seed + 1));
    for (int p = LDMATRIX; p <= MMA; p++) {
        OnDevice<uint32_t> out(THREADS * 4);
        LAUNCH((warp_kernel<T>), 1, THREADS, 0, &stream, out.p, in.p, (Primitive)p);
        print(warp_names[p], type, out);
    }
    int major = 0;
    CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    if (major != 9) return;
    TensorMap map = tensor_map_2d(matrix.p, 96, 128, 64, 64);
    size_t    shared_bytes = 2 * TILE_ELEMS * sizeof(T) + 1024;
    for (int p = TMA_INSIDE; p <= WGMMA; p++) {
        OnDevice<uint32_t> out(THREADS * 32);
        LAUNCH((hopper_kernel<T>), 1, THREADS, shared_bytes, &stream, out.p, map, (Hopper)p);
        print(hopper_names[p], type, out);
    }
}

template <typename A, typename B, int N, bool in_registers, int turned> static void of_product(const char *name, const char *type) {
    const int       k = 128 / sizeof(A);
    OnDevice<A>     a(operands<A>((size_t)64 * k, 3));
    OnDevice<B>     b(operands<B>((size_t)N * k, 4));
    OnDevice<float> out(64 * N);
    product<A, B, N, in_registers, turned>(out.p, a.p, b.p, k, &stream);
    print(name, type, out);
}
static void of_wgmma() {
    of_product<bf16, bf16, 64, false, 0>("wgmma_n64_k_major", "bf16");
    of_product<bf16, bf16, 128, true, 1>("wgmma_n128_registers_transposed", "bf16");
    of_product<half, half, 192, false, 1>("wgmma_n192_transposed", "fp16");
    of_product<half, half, 256, true, 0>("wgmma_n256_registers", "fp16");
    of_product<bf16, bf16, 64, false, 3>("wgmma_n64_both_transposed", "bf16");
    of_product<half, half, 128, false, 2>("wgmma_n128_left_transposed", "fp16");
    of_product<e4m3, e4m3, 128, false, 0>("wgmma_n128", "fp8_e4m3");
    of_product<e5m2, e4m3, 256, false, 0>("wgmma_n256", "fp8_e5m2_e4m3");
    of_product<e4m3, e5m2, 64, true, 0>("wgmma_n64_registers", "fp8_e4m3_e5m2");
    of_product<e5m2, e5m2, 192, true, 0>("wgmma_n192_registers", "fp8_e5m2");
}
static void of_stores() {
    const int       rows = 88, columns = 72;
    OnDevice<bf16>  in(operands<bf16>((size_t)rows * columns, 5)), out((size_t)rows * columns), seen(2);
    OnDevice<half>  in_half(operands<half>((size_t)rows * columns, 6)), turned((size_t)rows * columns), seen_half(2);
    OnDevice<float> sum(std::vector<float>(50 * 32, 1.0f)), x(operands<float>(5 * 256, 7)), y(5 * 256);
    OnDevice<bf16>  tiles(operands<bf16>(3 * 64 * 64, 9));
    OnDevice<float> shared_by_two(2 * 3 * 64 * 64);
    share(shared_by_two.p, tiles.p, 3, 1, &stream);
    print("cluster_multicast", "bf16", shared_by_two);
    OnDevice<bf16>  sum_16(operands<bf16>(50 * 64, 8));
    store<bf16, false>(out.p, seen.p, in.p, rows, columns, &stream);
    store<half, true>(turned.p, seen_half.p, in_half.p, rows, columns, &stream);
    sum_of_blocks(sum.p, 50, 3, 2, &stream);
    sum_of_blocks(sum_16.p, 50, 1, 1, &stream);
    hand_on(y.p, x.p, 5 * 256, &stream);
    print("stmatrix_tma_store", "bf16", out);
    print("stmatrix_transposed_tma_store", "fp16", turned);
    print("tma_reduce_add", "fp32", sum);
    print("tma_reduce_add", "bf16", sum_16);
    print("named_barrier_arrive", "fp32", y);
}
void calibrate() {
    of_type<bf16>("bf16", 1);
    of_type<half>("fp16", 2);
    int major = 0;
    CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    if (major != 9) return;
    of_wgmma();
    of_stores();
}
