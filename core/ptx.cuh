/* ptx.cuh - the only file with inline PTX: tensor-core products, matrix loads and asynchronous copies, one function per
 * instruction. It also makes the tensor maps that TMA's copies need. The emulator's own cases have a few more
 * instructions in test/emu/cases/ptx_more.cuh.
 *
 * Each function has an emulated twin of the same meaning in test/emu/ (namespace emu); addresses are generic pointers
 * outside of this file. The names and fragment layouts are those of the PTX ISA manual: "Warp-level matrix
 * instructions" (ldmatrix, stmatrix, mma), "Data movement" (cp.async, cp.async.bulk.tensor), "mbarrier", "Asynchronous
 * proxy", "Asynchronous warpgroup-level matrix instructions" (wgmma).
 *
 * Fragments of m16n8k16, lane l, g = l / 4, t = l % 4: a[0] = A[g][2t..], a[1] = A[g+8][2t..], a[2] = A[g][2t+8..],
 * a[3] = A[g+8][2t+8..]; b[0] = B[2t..][g], b[1] = B[2t+8..][g]; d[0..1] = D[g][2t..], d[2..3] = D[g+8][2t..].
 */
#ifndef TRAIN_GPT_CORE_PTX_CUH
#define TRAIN_GPT_CORE_PTX_CUH

#include <cuda.h>
#include <cuda_fp8.h>
#include <string.h>

#include <type_traits>

#include "core/kernel.cuh"

/* PTX_HERE passes the caller's file and line, for the emulator's messages. EMULATED(...) is code for the emulator
 * (kernels on the CPU), PTX(...) is inline assembly for a GPU. */
#ifdef CUDA_EMU
#define PTX_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define PTX_HERE , PTX_PLACE
#define EMULATED(...) __VA_ARGS__
#define PTX(...)
DEVICE uint32_t shared_address(const void *p, size_t bytes, const char *what, const char *file, int line) {
    return emu::shared_offset(p, bytes, what, file, line);
}
#else
#define PTX_PLACE
#define PTX_HERE
#define EMULATED(...)
#define PTX(...) asm volatile(__VA_ARGS__)
DEVICE uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
#endif

/* --- matrix loads: four 8x8 tiles of 16-bit elements in shared memory. Lanes 8i..8i+7 pass the addresses of the rows
 * of tile i, 16-byte aligned. */

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
    static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, half>, "16-bit operands");
    EMULATED(emu::mma_m16n8k16(d, a, b, std::is_same_v<T, bf16> ? emu::MMA_BF16 : emu::MMA_F16, file, line);)
    if constexpr (std::is_same_v<T, bf16>) {
        PTX("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
        PTX("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
}

/* --- two 16-bit elements in a register, the lower half first: T is bf16 or half ----------------------------------- */

template <typename T> DEVICE uint32_t pack_pair(float low, float high) {
    static_assert(sizeof(T) == 2, "a 16-bit type");
    uint32_t bits;
    if constexpr (std::is_same_v<T, bf16>) {
        __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        memcpy(&bits, &pair, sizeof bits);
    } else {
        half2 pair = __floats2half2_rn(low, high);
        memcpy(&bits, &pair, sizeof bits);
    }
    return bits;
}

template <typename T> DEVICE float2 unpack_pair(uint32_t bits) {
    if constexpr (std::is_same_v<T, bf16>)
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
 * three instructions more, to return such small results. */
DEVICE float exp_approx(float x) { return exp2_approx(x * 1.4426950408889634f); }

/* --- asynchronous copies of 16 bytes, global to shared; bytes past source_bytes become zero ----------------------- */

DEVICE void cp_async_16(void *shared, const void *global, int source_bytes PTX_HERE) {
    EMULATED(emu::cp_async(shared, global, 16, source_bytes, file, line);)
    PTX("cp.async.cg.shared.global [%0], [%1], 16, %2;"
        ::"r"(shared_address(shared)), "l"(global), "r"(source_bytes) : "memory");
}
DEVICE void cp_async_commit() {
    EMULATED(emu::cp_async_commit();)
    PTX("cp.async.commit_group;" ::: "memory");
}
/* Waits until at most `pending` of this thread's latest cp.async groups are incomplete. Other threads may read the data
 * only after a barrier. */
template <int pending> DEVICE void cp_async_wait() {
    EMULATED(emu::cp_async_wait(pending);)
    PTX("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/* --- barriers of some warps of a block: id 1 to 15 (0 is __syncthreads), a multiple of 32 threads ----------------- */

DEVICE void named_barrier_sync(int id, int threads PTX_HERE) {
    EMULATED(emu::block_barrier(id, threads, "named_barrier_sync", 0, emu::REDUCE_NONE, file, line);)
    PTX("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/* Arrives at the named barrier without waiting. Threads that call named_barrier_sync with this id then see what this
 * thread wrote before. */
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

/* --- mbarrier: a phase completes when `count` threads have arrived and the bytes they expect have been written.
 * Phases have parity 0, 1, 0, ... */

DEVICE void mbarrier_init(uint64_t *barrier, unsigned count PTX_HERE) {
    EMULATED(emu::mbarrier_init(barrier, count, file, line);)
    PTX("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
/* Makes initialized mbarriers visible to TMA and to the other blocks of the cluster. Called after mbarrier_init, before
 * a block or cluster barrier. */
DEVICE void mbarrier_init_fence() { PTX("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void mbarrier_arrive(uint64_t *barrier PTX_HERE) {
    EMULATED(emu::mbarrier_arrive(barrier, 0, file, line);)
    PTX("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
DEVICE void mbarrier_arrive_expect(uint64_t *barrier, unsigned bytes PTX_HERE) {
    EMULATED(emu::mbarrier_arrive(barrier, bytes, file, line);)
    PTX("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
/* Waits until the phase of this parity (0 or 1, alternating) has completed. */
DEVICE void mbarrier_wait(uint64_t *barrier, unsigned parity PTX_HERE) {
    EMULATED(emu::mbarrier_wait(barrier, parity, file, line);)
    PTX("{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra AGAIN;\n}"
        ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}

/* Returns true in one lane of a warp, always the same one. All lanes call elect_one together. The compiler then knows
 * that a single thread continues. A comparison of thread numbers would make it put each TMA instruction into a loop
 * over the threads that may be active. */
DEVICE bool elect_one(PTX_PLACE) {
    uint32_t elected = 0;
    EMULATED(elected = emu::vote(0xffffffffu, 1, "elect.sync", file, line) && emu::lane() == 0;)
    PTX("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
    return elected;
}

/* --- TMA loads: a tile of a matrix to shared memory; zero outside of the matrix ----------------------------------- */

#ifdef CUDA_EMU
typedef EmuTensorMap TensorMap;
#else
typedef CUtensorMap TensorMap;
#endif
/* Loads a tile of a matrix into shared memory. One thread issues the load. The bytes that arrive count towards those
 * that `barrier` expects. The map is a __grid_constant__ kernel parameter. */
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
/* cluster_arrive and cluster_wait are the two halves of a barrier of all threads of the cluster. If blocks access each
 * other's shared memory, they begin and end with one such barrier. */
DEVICE void cluster_arrive(PTX_PLACE) {
    EMULATED(emu::cluster_arrive(file, line);)
    PTX("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
/* Arrives at the cluster barrier without ordering memory. That is enough after mbarrier_init_fence, which has already
 * published the mbarriers to the cluster. cluster_arrive would wait until all writes of this thread are visible to the
 * whole GPU. */
DEVICE void cluster_arrive_relaxed(PTX_PLACE) {
    EMULATED(emu::cluster_arrive(file, line);)
    PTX("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
DEVICE void cluster_wait(PTX_PLACE) {
    EMULATED(emu::cluster_wait(file, line);)
    PTX("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/* Arrives at the mbarrier that block `rank` of the cluster has at the same address, after this thread has read the data
 * that the mbarrier guards. Orders reads only. To pass writes to the other block would need .release.cluster, which
 * compiles to a slow fence of the whole GPU. */
DEVICE void mbarrier_arrive_at(uint64_t *barrier, unsigned rank PTX_HERE) {
    EMULATED(emu::mbarrier_arrive_at(barrier, rank, file, line);)
    PTX("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n}"
        ::"r"(shared_address(barrier)), "r"(rank) : "memory");
}
/* Loads a tile of a matrix into each block of the cluster whose bit is set in `blocks`, at the same shared address in
 * each. The bytes that arrive count towards those that the mbarrier of each block expects. */
DEVICE void tma_load_2d_multicast(void *shared, const TensorMap *map, uint64_t *barrier, int column, int row,
                                  unsigned blocks PTX_HERE) {
    EMULATED(emu::tma_load_2d(shared, map, barrier, column, row, blocks, file, line);)
    PTX("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%3,%4}], [%2], %5;"
        ::"r"(shared_address(shared)), "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row),
          "h"((uint16_t)blocks) : "memory");
}

/* --- TMA stores: a tile in shared memory to a matrix; nothing outside of the matrix is written -------------------- */

/* Orders generic writes before asynchronous reads. Stores, cp.async and stmatrix write through the generic proxy, TMA
 * and wgmma read through the asynchronous one. The writer calls this function before a barrier, after which TMA or
 * wgmma may read. */
DEVICE void fence_proxy_async() {
    EMULATED(emu::fence_proxy_async();)
    PTX("fence.proxy.async.shared::cta;" ::: "memory");
}
/* Copies a tile in shared memory to a matrix. One thread issues the store, and then calls bulk_commit and
 * bulk_wait_read. */
DEVICE void tma_store_2d(const TensorMap *map, const void *shared, int column, int row PTX_HERE) {
    EMULATED(emu::tma_store_2d(map, shared, column, row, false, file, line);)
    PTX("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2,%3}], [%1];"
        ::"l"(map), "r"(shared_address(shared)), "r"(column), "r"(row) : "memory");
}
DEVICE void bulk_commit() {
    EMULATED(emu::bulk_commit();)
    PTX("cp.async.bulk.commit_group;" ::: "memory");
}
/* Waits until at most `pending` of this thread's latest groups of TMA stores still read shared memory. The memory may
 * then be filled again, and the block may end. The stores may not be written yet. */
template <int pending> DEVICE void bulk_wait_read() {
    EMULATED(emu::bulk_wait(pending, true);)
    PTX("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

/* --- registers per thread of the calling warpgroup, a multiple of 8 from 24 to 256: producers lower the number,
 * consumers raise it */

/* registers_raise waits until the block has enough free registers. A block starts with the registers of its launch
 * bounds, at most 64 Ki. */
template <int registers> DEVICE void registers_raise(PTX_PLACE) {
    EMULATED(emu::set_registers(registers, true, file, line);)
    PTX("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers> DEVICE void registers_lower(PTX_PLACE) {
    EMULATED(emu::set_registers(registers, false, file, line);)
    PTX("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

/* --- products of a warpgroup (128 threads) on the tensor cores of compute capability 9.0: d = a b (+ d), m64 nN kK,
 * K = 16 for bf16 and fp16, 32 for fp8; d in registers, a in registers or shared memory, b in shared memory.
 *
 * The order of a step:
 *   wgmma_fence();  wgmma(...) once or more;  wgmma_commit();  ...  wgmma_wait<0>(d);
 * Until a wait covers them the products may read a, b and d at any time. The program must neither read nor write d, nor
 * change the registers of a or the shared memory of a and b. The emulator refuses a violation.
 *
 * Thread t of the warpgroup holds, with row = t / 32 * 16 + t % 32 / 4:
 *   d[4 j + 2 h + e] = D[row + 8 h][8 j + t % 4 * 2 + e]
 *   a[2 h + i], 16 bits: A[row + 8 i][8 h + t % 4 * 2 ..+2]    8 bits: A[row + 8 i][16 h + t % 4 * 4 ..+4] */

typedef __nv_fp8_e4m3 e4m3;
typedef __nv_fp8_e5m2 e5m2;

/* Returns the wgmma descriptor of an operand in shared memory with the 128-byte swizzle, as TMA stores it. K-major:
 * groups of 8 rows are stride_bytes apart, and a step along K advances the address by its bytes. Transposed: groups of
 * 8 values of K are stride_bytes apart, groups of 64 rows leading_bytes. */
DEVICE uint64_t matrix_descriptor(const void *shared, unsigned leading_bytes, unsigned stride_bytes PTX_HERE) {
    uint32_t start = shared_address(shared EMULATED(, 16, "matrix descriptor", file, line));
    uint64_t at = (start & 0x3ffff) >> 4, leading = leading_bytes >> 4, stride = stride_bytes >> 4, swizzle_128 = 1;
    return at | leading << 16 | stride << 32 | swizzle_128 << 62;
}
/* Returns x as a value that the compiler treats as new at each call. So the compiler does not keep results computed
 * from x in registers across a loop. */
DEVICE uint32_t afresh(uint32_t x) {
    PTX("mov.b32 %0, %0;" : "+r"(x));
    return x;
}
/* Checks at run time that tiles in shared memory are aligned as their type demands, for TMA and wgmma. SMEM_DYN
 * requests that alignment. A plain check would be optimised away, because the compiler assumes the alignment. */
template <typename T> DEVICE void tiles_aligned(const T *shared) {
    uint32_t at = shared_address(shared EMULATED(, sizeof(T), "tiles", __builtin_FILE(), __builtin_LINE()));
    device_check(afresh(at) % alignof(T) == 0);
}
/* Returns the wgmma descriptor of an operand that begins `bytes` after the given one, with one addition of 32 bits. */
DEVICE uint64_t descriptor_after(uint64_t descriptor, unsigned bytes) {
    return (descriptor >> 32 << 32) | (uint32_t)((uint32_t)descriptor + (bytes >> 4));
}
DEVICE uint64_t descriptor_afresh(uint64_t descriptor) {
    return (descriptor >> 32 << 32) | afresh((uint32_t)descriptor);
}

/* Orders register accesses before wgmma. Called before the first product, and after the program touched registers of d
 * or a that the next product uses. */
DEVICE void wgmma_fence() {
    EMULATED(emu::wgmma_fence();)
    PTX("wgmma.fence.sync.aligned;" ::: "memory");
}
DEVICE void wgmma_commit() {
    EMULATED(emu::wgmma_commit();)
    PTX("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* wgmma_wait returns when at most `pending` of the latest wgmma groups are incomplete. Its arguments are the
 * accumulators that are then complete. accumulators_pinned keeps the compiler from moving a use of them above the wait:
 * the compiler believes that a product is done when it is issued. */
template <int n> DEVICE void accumulators_pinned(float (&d)[n]) {
    EMULATED((void)d;)
#pragma unroll
    for (int i = 0; i < n; i++) PTX("" : "+f"(d[i])::"memory");
}
template <int pending> DEVICE void wgmma_wait(PTX_PLACE) {
    EMULATED(emu::wgmma_wait(pending, nullptr, nullptr, nullptr, file, line);)
    PTX("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
template <int pending, int n> DEVICE void wgmma_wait(float (&d)[n] PTX_HERE) {
    EMULATED(emu::wgmma_wait(pending, d, nullptr, nullptr, file, line);)
    PTX("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
    accumulators_pinned(d);
}
template <int pending, int n, int m> DEVICE void wgmma_wait(float (&d)[n], float (&e)[m] PTX_HERE) {
    EMULATED(emu::wgmma_wait(pending, d, e, nullptr, file, line);)
    PTX("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
    accumulators_pinned(d);
    accumulators_pinned(e);
}

/* --- the instruction's text: one FORM for each kind of operands, one line for each N ------------------------------ */

#ifdef CUDA_EMU
#define PTX_OF_TYPES(FORM_16, FORM_8)
#else
#define PTX_D32 \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define PTX_D64 \
    PTX_D32 "," \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define PTX_D96 \
    PTX_D64 "," \
    "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79," \
    "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define PTX_D128 \
    PTX_D96 "," \
    "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111," \
    "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define PTX_F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define PTX_F16(i) PTX_F4(i), PTX_F4(i + 4), PTX_F4(i + 8), PTX_F4(i + 12)
#define PTX_F32(i) PTX_F16(i), PTX_F16(i + 16)
#define PTX_F64 PTX_F32(0), PTX_F32(32)
#define PTX_F96 PTX_F64, PTX_F32(64)
#define PTX_F128 PTX_F96, PTX_F32(96)

/* Text of a wgmma instruction. i0, i1, ... are the numbers of the asm operands that follow those of the accumulator d:
 * `accumulate`, then a, b, and for 16 bits whether a and b are transposed. */
#define PTX_WGMMA(i0, shape, types, D, operands) \
    "{\n.reg .pred p;\nsetp.ne.b32 p, " i0 ", 0;\n" \
    "wgmma.mma_async.sync.aligned.m64" shape ".f32." types " {" D "}, " operands ";\n}"
#define PTX_SHARED_16(n, types, D, i0, i1, i2, i3, i4, i5, i6, ...)                                    \
    PTX(PTX_WGMMA(i0, n "k16", types, D, i1 ", " i2 ", p, 1, 1, " i3 ", " i4) : __VA_ARGS__            \
        : "r"(accumulate), "l"(a), "l"(b), "n"(a_transposed), "n"(b_transposed))
#define PTX_SHARED_8(n, types, D, i0, i1, i2, i3, i4, i5, i6, ...)                                     \
    PTX(PTX_WGMMA(i0, n "k32", types, D, i1 ", " i2 ", p, 1, 1") : __VA_ARGS__ : "r"(accumulate), "l"(a), "l"(b))
#define PTX_REGISTERS_16(n, types, D, i0, i1, i2, i3, i4, i5, i6, ...)                                           \
    PTX(PTX_WGMMA(i0, n "k16", types, D, "{" i1 "," i2 "," i3 "," i4 "}, " i5 ", p, 1, 1, " i6) : __VA_ARGS__    \
        : "r"(accumulate), "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(b_transposed))
#define PTX_REGISTERS_8(n, types, D, i0, i1, i2, i3, i4, i5, i6, ...)                                            \
    PTX(PTX_WGMMA(i0, n "k32", types, D, "{" i1 "," i2 "," i3 "," i4 "}, " i5 ", p, 1, 1") : __VA_ARGS__         \
        : "r"(accumulate), "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

#define PTX_OF_SIZE(FORM, types)                                                                       \
    if constexpr (N == 64)                                                                             \
        FORM("n64", types, PTX_D32, "%32", "%33", "%34", "%35", "%36", "%37", "%38", PTX_F32(0));      \
    else if constexpr (N == 128)                                                                       \
        FORM("n128", types, PTX_D64, "%64", "%65", "%66", "%67", "%68", "%69", "%70", PTX_F64);        \
    else if constexpr (N == 192)                                                                       \
        FORM("n192", types, PTX_D96, "%96", "%97", "%98", "%99", "%100", "%101", "%102", PTX_F96);     \
    else FORM("n256", types, PTX_D128, "%128", "%129", "%130", "%131", "%132", "%133", "%134", PTX_F128)
#define PTX_OF_TYPES(FORM_16, FORM_8)                                                                  \
    if constexpr (std::is_same_v<A, bf16>) { PTX_OF_SIZE(FORM_16, "bf16.bf16"); }                             \
    else if constexpr (std::is_same_v<A, half>) { PTX_OF_SIZE(FORM_16, "f16.f16"); }                          \
    else if constexpr (std::is_same_v<A, e4m3> && std::is_same_v<B, e4m3>) { PTX_OF_SIZE(FORM_8, "e4m3.e4m3"); }     \
    else if constexpr (std::is_same_v<A, e4m3>) { PTX_OF_SIZE(FORM_8, "e4m3.e5m2"); }                         \
    else if constexpr (std::is_same_v<B, e4m3>) { PTX_OF_SIZE(FORM_8, "e5m2.e4m3"); }                         \
    else { PTX_OF_SIZE(FORM_8, "e5m2.e5m2"); }
#endif

template <typename T> constexpr bool is_8_bit_float = std::is_same_v<T, e4m3> || std::is_same_v<T, e5m2>;
template <typename A, typename B> constexpr bool wgmma_takes =
    (is_8_bit_float<A> && is_8_bit_float<B>) ||
    (std::is_same_v<A, B> && (std::is_same_v<A, bf16> || std::is_same_v<A, half>));
template <int N> constexpr bool wgmma_has = N == 64 || N == 128 || N == 192 || N == 256;
#ifdef CUDA_EMU
template <typename T> constexpr emu::MmaType mma_type() {
    return std::is_same_v<T, bf16>   ? emu::MMA_BF16
           : std::is_same_v<T, half> ? emu::MMA_F16
           : std::is_same_v<T, e4m3> ? emu::MMA_E4M3 : emu::MMA_E5M2;
}
#endif

/* --- d = a b (+ d if accumulate); a and b are descriptors --------------------------------------------------------- */

/* Multiplies with both operands in shared memory, given as descriptors: d = a b, plus d if `accumulate`. An operand is
 * transposed if its rows (a) or columns (b) are contiguous; 16-bit types only. */
template <typename A, typename B, int N, int a_transposed = 0, int b_transposed = 0>
DEVICE void wgmma(float (&d)[N / 2], uint64_t a, uint64_t b, int accumulate PTX_HERE) {
    static_assert(wgmma_has<N> && wgmma_takes<A, B>, "64, 128, 192 or 256 columns; bf16, fp16, or two of fp8");
    static_assert(sizeof(A) == 2 || !(a_transposed || b_transposed), "8-bit operands have K contiguous");
    EMULATED(emu::wgmma(d, N, mma_type<A>(), mma_type<B>(), a, nullptr, b, accumulate, a_transposed, b_transposed, file,
                        line);)
    PTX_OF_TYPES(PTX_SHARED_16, PTX_SHARED_8)
}
/* Computes d = a b, plus d if `accumulate`, with a in registers and b in shared memory, given as a descriptor. The
 * registers of a must not change until wgmma_wait. */
template <typename A, typename B, int N, int b_transposed = 0>
DEVICE void wgmma_from_registers(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int accumulate PTX_HERE) {
    static_assert(wgmma_has<N> && wgmma_takes<A, B>, "64, 128, 192 or 256 columns; bf16, fp16, or two of fp8");
    static_assert(sizeof(A) == 2 || !b_transposed, "8-bit operands have K contiguous");
    EMULATED(emu::wgmma(d, N, mma_type<A>(), mma_type<B>(), 0, a, b, accumulate, false, b_transposed, file, line);)
    PTX_OF_TYPES(PTX_REGISTERS_16, PTX_REGISTERS_8)
}

/* --- TMA's description of a matrix in global memory, made on the host. The encoder is a function of the driver. It is
 * looked up through the runtime, never linked, because the program must start on machines without a driver. */

/* TMA's element type for T: bf16, half, float, or 8 bits. TMA copies 8-bit elements without interpreting them. */
#ifdef CUDA_EMU
template <typename T> constexpr EmuElement element_type() {
    return std::is_same_v<T, bf16> ? ELEMENT_BF16
         : std::is_same_v<T, half> ? ELEMENT_F16
         : sizeof(T) == 4               ? ELEMENT_F32 : ELEMENT_8_BIT;
}
#else
template <typename T> constexpr CUtensorMapDataType element_type() {
    return std::is_same_v<T, bf16> ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
         : std::is_same_v<T, half> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
         : sizeof(T) == 4               ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_UINT8;
}
#endif

#ifndef CUDA_EMU
typedef decltype(&cuTensorMapEncodeTiled) TensorMapEncode;
static inline TensorMapEncode tensor_map_encoder_find(void) {
    void                            *entry = nullptr;
    cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION < 12050
    CUDA_CHECK(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &entry, cudaEnableDefault, &found));
#else
    CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found));
#endif
    CHECK(found == cudaDriverEntryPointSuccess, "the driver has no cuTensorMapEncodeTiled");
    return (TensorMapEncode)entry;
}
#endif

/* Returns the TMA tensor map of a row-major matrix [rows, columns] in tiles [box_rows, box_columns], with the 128-byte
 * swizzle. Rows are ld elements apart (0 means columns), a multiple of 16 bytes. A row of a tile has at most 128 bytes,
 * a tile at most 256 rows, and the matrix is 16-byte aligned. */
template <typename T>
static TensorMap tensor_map_2d(const T *matrix, int64_t rows, int64_t columns, int box_rows, int box_columns,
                               int64_t ld = 0) {
    static_assert(std::is_same_v<T, float> || std::is_same_v<T, bf16> || std::is_same_v<T, half> || sizeof(T) == 1,
                  "fp32, bf16, fp16 or 8 bits");
    if (ld == 0) ld = columns;
    CHECK(ld >= columns && ld * sizeof(T) % 16 == 0 && box_columns * sizeof(T) <= 128 && box_rows <= 256 &&
              (uintptr_t)matrix % 16 == 0,
          "matrix %p of %lld columns, %lld apart, tiles of %d x %d", (const void *)matrix, (long long)columns,
          (long long)ld, box_rows, box_columns);
    TensorMap map;
#ifdef CUDA_EMU
    map = TensorMap{(void *)matrix, (uint64_t)columns, (uint64_t)rows, (uint64_t)ld * sizeof(T), (uint32_t)box_columns,
                    (uint32_t)box_rows, sizeof(T), 128, element_type<T>()};
#else
    /* the encoder is looked up once, because each matrix product makes maps at each launch */
    static const TensorMapEncode encode = tensor_map_encoder_find();

    cuuint64_t size[2] = {(cuuint64_t)columns, (cuuint64_t)rows}, pitch_bytes[1] = {(cuuint64_t)ld * sizeof(T)};
    cuuint32_t box[2] = {(cuuint32_t)box_columns, (cuuint32_t)box_rows}, step[2] = {1, 1};
    CUresult   result = encode(&map, element_type<T>(), 2, (void *)matrix, size, pitch_bytes, box, step,
                               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    CHECK(result == CUDA_SUCCESS, "cuTensorMapEncodeTiled: error %d", (int)result);
#endif
    return map;
}

#endif
