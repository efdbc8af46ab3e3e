/* ptx.cuh - with ptx_wgmma.cuh the only file with inline PTX: tensor-core products, matrix loads and asynchronous copies, one function per
 * instruction.
 *
 * Each has an emulated twin of the same meaning in test/emu/ (namespace emu); addresses are generic pointers outside of
 * this file. The names and fragment layouts are those of the PTX ISA manual: "Warp-level matrix instructions"
 * (ldmatrix, stmatrix, mma), "Data movement" (cp.async, cp.async.bulk.tensor), "mbarrier", "Asynchronous proxy".
 * The products of whole warpgroups are in ptx_wgmma.cuh.
 *
 * Fragments of m16n8k16, lane l, g = l / 4, t = l % 4: a[0] = A[g][2t..], a[1] = A[g+8][2t..], a[2] = A[g][2t+8..],
 * a[3] = A[g+8][2t+8..]; b[0] = B[2t..][g], b[1] = B[2t+8..][g]; d[0..1] = D[g][2t..], d[2..3] = D[g+8][2t..].
 */
#ifndef TRAIN_GPT_CORE_PTX_CUH
#define TRAIN_GPT_CORE_PTX_CUH

#include <cuda.h>
#include <string.h>

#include <type_traits>

#include "core/kernel.cuh"

/* PTX_HERE passes the caller's place, for the emulator's messages. EMULATED(...) runs in the emulator, PTX(...) on a
 * GPU. */
#ifdef CUDA_EMU
#define PTX_HERE , const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define EMULATED(...) __VA_ARGS__
#define PTX(...)
#else
#define PTX_HERE
#define EMULATED(...)
#define PTX(...) asm volatile(__VA_ARGS__)
DEVICE uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
#endif

/* --- matrix loads: four 8x8 tiles of 16-bit elements in shared memory. Lanes 8i..8i+7 pass the addresses of the rows of
 * tile i, 16-byte aligned. */

DEVICE void ldmatrix_x4(uint32_t (&r)[4], const void *row PTX_HERE) {
    EMULATED(emu::ldmatrix(r, 4, row, false, file, line);)
    PTX("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
DEVICE void ldmatrix_x4_transposed(uint32_t (&r)[4], const void *row PTX_HERE) {
    EMULATED(emu::ldmatrix(r, 4, row, true, file, line);)
    PTX("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}

/* --- d += a b, m16n8k16, 16-bit operands, f32 accumulation; T is bf16 or half ------------------------------------- */

template <typename T> DEVICE void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2] PTX_HERE) {
    static_assert(std::is_same<T, bf16>::value || std::is_same<T, half>::value, "16-bit operands");
    EMULATED(emu::mma_m16n8k16(d, a, b, std::is_same<T, bf16>::value ? emu::MMA_BF16 : emu::MMA_F16, file, line);)
    if constexpr (std::is_same<T, bf16>::value) {
        PTX("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
        PTX("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
}

/* --- two 16-bit elements in a register, the lower half first: T is bf16 or half ------------------------------------- */

template <typename T> DEVICE uint32_t pack_pair(float low, float high) {
    static_assert(sizeof(T) == 2, "a 16-bit type");
    uint32_t bits;
    if constexpr (std::is_same<T, bf16>::value) {
        __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        memcpy(&bits, &pair, sizeof bits);
    } else {
        half2 pair = __floats2half2_rn(low, high);
        memcpy(&bits, &pair, sizeof bits);
    }
    return bits;
}

template <typename T> DEVICE float2 unpack_pair(uint32_t bits) {
    if constexpr (std::is_same<T, bf16>::value)
        return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u));
    else return __half22float2(*reinterpret_cast<const half2 *>(&bits));
}

/* --- 2^x: relative error 2^-22, results below 2^-126 are zero. One instruction, where exp2f takes four. ----------- */

DEVICE float exp2_approx(float x) {
    EMULATED(float y = exp2f(x); return y < 0x1p-126f ? 0.0f : y;)
    PTX("ex2.approx.ftz.f32 %0, %1;" : "=f"(x) : "f"(x));
    return x;
}

/* Returns e^x with relative error 2^-22 + |x| 2^-24, because x log2(e) is rounded; zero below 2^-126. __expf takes
 * three instructions more, for results below that. */
DEVICE float exp_approx(float x) { return exp2_approx(x * 1.4426950408889634f); }

/* --- asynchronous copies of 16 bytes, global to shared; bytes past source_bytes become zero ----------------------- */

DEVICE void cp_async_16(void *shared, const void *global, int source_bytes PTX_HERE) {
    EMULATED(emu::cp_async(shared, global, 16, source_bytes, file, line);)
    PTX("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(source_bytes) : "memory");
}
DEVICE void cp_async_commit() {
    EMULATED(emu::cp_async_commit();)
    PTX("cp.async.commit_group;" ::: "memory");
}
/* Waits until at most `pending` of this thread's latest groups are incomplete. Other threads may read only after a
 * barrier. */
template <int pending> DEVICE void cp_async_wait() {
    EMULATED(emu::cp_async_wait(pending);)
    PTX("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/* --- barriers of some warps of a block: id 1 to 15 (0 is __syncthreads), a multiple of 32 threads ----------------- */

DEVICE void named_barrier_sync(int id, int threads PTX_HERE) {
    EMULATED(emu::block_barrier(id, threads, "named_barrier_sync", 0, emu::REDUCE_NONE, file, line);)
    PTX("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/* Arrives at the barrier without waiting. Threads that sync see what this thread wrote before. */
DEVICE void named_barrier_arrive(int id, int threads PTX_HERE) {
    EMULATED(emu::block_arrive(id, threads, "named_barrier_arrive", file, line);)
    PTX("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* === compute capability 9.0: kernels that use what follows have their bodies inside #ifdef PTX_HOPPER ============= */

#if defined(CUDA_EMU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define PTX_HOPPER 1
#endif

/* --- matrix stores: the reverse of ldmatrix, with the same registers and rows ------------------------------------- */

DEVICE void stmatrix_x4(void *row, const uint32_t (&r)[4] PTX_HERE) {
    EMULATED(emu::stmatrix(row, r, 4, false, file, line);)
    PTX("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};"
        ::"r"(shared_address(row)), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}
DEVICE void stmatrix_x4_transposed(void *row, const uint32_t (&r)[4] PTX_HERE) {
    EMULATED(emu::stmatrix(row, r, 4, true, file, line);)
    PTX("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};"
        ::"r"(shared_address(row)), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}

/* --- mbarrier: a phase completes when `count` threads have arrived and the bytes they expect have been written.
 * Phases have parity 0, 1, 0, ... */

DEVICE void mbarrier_init(uint64_t *barrier, unsigned count PTX_HERE) {
    EMULATED(emu::mbarrier_init(barrier, count, file, line);)
    PTX("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
/* Makes initialized barriers visible to TMA and the cluster. Called after the inits, before a block or cluster
 * barrier. */
DEVICE void mbarrier_init_fence() { PTX("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void mbarrier_arrive(uint64_t *barrier PTX_HERE) {
    EMULATED(emu::mbarrier_arrive(barrier, 0, file, line);)
    PTX("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
DEVICE void mbarrier_arrive_expect(uint64_t *barrier, unsigned bytes PTX_HERE) {
    EMULATED(emu::mbarrier_arrive(barrier, bytes, file, line);)
    PTX("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
/* Waits until the phase of this parity has completed. */
DEVICE void mbarrier_wait(uint64_t *barrier, unsigned parity PTX_HERE) {
    EMULATED(emu::mbarrier_wait(barrier, parity, file, line);)
    PTX("{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra AGAIN;\n}"
        ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}

/* Returns true in one lane of a warp, always the same one. All lanes call it together. The compiler then knows that a
 * single thread continues. After a comparison of thread numbers it would put each TMA instruction into a loop over the
 * threads that may be active. */
DEVICE bool elect_one(EMULATED(const char *file = __builtin_FILE(), int line = __builtin_LINE())) {
    uint32_t elected = 0;
    EMULATED(elected = emu::vote(0xffffffffu, 1, "elect.sync", file, line) && emu::lane() == 0;)
    PTX("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
    return elected;
}

/* --- TMA loads: a tile of a matrix to shared memory; zero outside of the matrix. Maps: core/tensor_map.cuh -------- */

#ifdef CUDA_EMU
typedef EmuTensorMap TensorMap;
#else
typedef CUtensorMap TensorMap;
#endif
/* Issued by one thread. Completes the expected bytes of `barrier`. The map is a __grid_constant__ kernel parameter. */
DEVICE void tma_load_2d(void *shared, const TensorMap *map, uint64_t *barrier, int column, int row PTX_HERE) {
    EMULATED(emu::tma_load_2d(shared, map, barrier, column, row, 0, file, line);)
    PTX("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3,%4}], [%2];"
        ::"r"(shared_address(shared)), "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row) : "memory");
}

/* --- clusters: up to 8 blocks along x that run together; launched by LAUNCH_CLUSTER of core/kernel.cuh ------------ */

DEVICE unsigned cluster_rank() {
    unsigned rank = 0;
    EMULATED(rank = emu::cluster_rank();)
    PTX("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
/* Arrive and wait are the two halves of a barrier of all threads of the cluster. Blocks whose shared memory other
 * blocks access start and end with one. */
DEVICE void cluster_arrive(EMULATED(const char *file = __builtin_FILE(), int line = __builtin_LINE())) {
    EMULATED(emu::cluster_arrive(file, line);)
    PTX("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
/* Arrives without ordering memory. That is enough after mbarrier_init_fence, which has already published the barriers
 * to the cluster. cluster_arrive would wait until all writes of this thread are visible to the whole GPU. */
DEVICE void cluster_arrive_relaxed(EMULATED(const char *file = __builtin_FILE(), int line = __builtin_LINE())) {
    EMULATED(emu::cluster_arrive(file, line);)
    PTX("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
DEVICE void cluster_wait(EMULATED(const char *file = __builtin_FILE(), int line = __builtin_LINE())) {
    EMULATED(emu::cluster_wait(file, line);)
    PTX("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/* Arrives at the barrier that block `rank` of the cluster has at the same address, after this thread has read its
 * stage. Orders reads only: to pass writes to the other block would need .release.cluster, which compiles to a slow
 * fence of the whole GPU. */
DEVICE void mbarrier_arrive_at(uint64_t *barrier, unsigned rank PTX_HERE) {
    EMULATED(emu::mbarrier_arrive_at(barrier, rank, file, line);)
    PTX("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n}"
        ::"r"(shared_address(barrier)), "r"(rank) : "memory");
}
DEVICE void mbarrier_wait_cluster(uint64_t *barrier, unsigned parity PTX_HERE) {
    EMULATED(emu::mbarrier_wait(barrier, parity, file, line);)
    PTX("{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n@!done bra AGAIN;\n}"
        ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}
/* Loads a tile into each block whose bit is set in `blocks`, at the same place in each. Completes the bytes of each
 * block's barrier. */
DEVICE void tma_load_2d_multicast(void *shared, const TensorMap *map, uint64_t *barrier, int column, int row, unsigned blocks PTX_HERE) {
    EMULATED(emu::tma_load_2d(shared, map, barrier, column, row, blocks, file, line);)
    PTX("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3,%4}], [%2], %5;"
        ::"r"(shared_address(shared)), "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row), "h"((uint16_t)blocks) : "memory");
}

/* --- TMA stores: a tile in shared memory to a matrix; nothing outside of the matrix is written -------------------- */

/* Orders generic writes before asynchronous reads. Stores, cp.async and stmatrix write through the generic proxy, TMA
 * and wgmma read through the asynchronous one. The writer calls this before a barrier, after which TMA or wgmma may
 * read. */
DEVICE void fence_proxy_async() {
    EMULATED(emu::fence_proxy_async();)
    PTX("fence.proxy.async.shared::cta;" ::: "memory");
}
/* Issued by one thread, which then calls bulk_commit and bulk_wait. tma_reduce_add_2d adds the tile to the matrix, in
 * the type of the map. */
DEVICE void tma_store_2d(const TensorMap *map, const void *shared, int column, int row PTX_HERE) {
    EMULATED(emu::tma_store_2d(map, shared, column, row, false, file, line);)
    PTX("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2,%3}], [%1];"
        ::"l"(map), "r"(shared_address(shared)), "r"(column), "r"(row) : "memory");
}
DEVICE void tma_reduce_add_2d(const TensorMap *map, const void *shared, int column, int row PTX_HERE) {
    EMULATED(emu::tma_store_2d(map, shared, column, row, true, file, line);)
    PTX("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%2,%3}], [%1];"
        ::"l"(map), "r"(shared_address(shared)), "r"(column), "r"(row) : "memory");
}
DEVICE void bulk_commit() {
    EMULATED(emu::bulk_commit();)
    PTX("cp.async.bulk.commit_group;" ::: "memory");
}
/* bulk_wait waits until at most `pending` of this thread's latest groups are not yet written. bulk_wait_read waits only
 * until they have left shared memory: it may then be filled again, and the block may end. */
template <int pending> DEVICE void bulk_wait() {
    EMULATED(emu::bulk_wait(pending, false);)
    PTX("cp.async.bulk.wait_group %0;" ::"n"(pending) : "memory");
}
template <int pending> DEVICE void bulk_wait_read() {
    EMULATED(emu::bulk_wait(pending, true);)
    PTX("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

/* --- registers per thread of the calling warpgroup, a multiple of 8 from 24 to 256: producers lower the number, consumers
 * raise it */

/* registers_raise waits until the block has enough registers. The block starts with those of its launch bounds, at most
 * 64 Ki. */
template <int registers> DEVICE void registers_raise(EMULATED(const char *file = __builtin_FILE(), int line = __builtin_LINE())) {
    EMULATED(emu::set_registers(registers, true, file, line);)
    PTX("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers> DEVICE void registers_lower(EMULATED(const char *file = __builtin_FILE(), int line = __builtin_LINE())) {
    EMULATED(emu::set_registers(registers, false, file, line);)
    PTX("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

#endif
