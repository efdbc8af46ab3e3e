/* cuda_emu.h - the device side of CUDA for a CPU compiler. Forced in front of every .cu file:
 *
 *   g++ -std=c++17 -x c++ -include test/emu/cuda_emu.h -I$(CUDA_HOME)/include
 *
 * A CUDA thread is a fiber and a block runs on one host thread. A fiber runs until it must wait. This is the widest
 * possible skew between threads, so a missing barrier changes results. Barriers, shuffles, votes and matrix
 * instructions are collectives: the last thread to arrive checks that all of them mean the same operation and computes
 * for everybody. Types, conversions and the runtime's prototypes are NVIDIA's own; this file has only the parts that
 * NVIDIA's headers leave to nvcc.
 *
 * Default arguments carry the caller's file and line, so that a message names the kernel's line and not this file's.
 */
#pragma once
#define CUDA_EMU 1

/* Empty CUDA keywords. NVIDIA's crt/host_defines.h keeps a macro that is already defined. */
#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __shared__ static_assert(false, "shared memory is declared with SMEM or SMEM_DYN of core/kernel.cuh");

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

/* Built-in variables of CUDA. They are variables instead of macros, because cudaLaunchConfig_t and others have fields
 * of the same names. */
extern uint3 threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;

#define EMU_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

/* A matrix in global memory, as TMA accesses it. It is in the global namespace, because an argument of a type inside
 * emu would add emu's functions to the lookup of every call. */
enum EmuElement { ELEMENT_BF16, ELEMENT_F16, ELEMENT_F32, ELEMENT_8_BIT };
struct alignas(64) EmuTensorMap {
    void      *base;
    uint64_t   columns, rows, pitch_bytes;
    uint32_t   box_columns, box_rows, element_bytes, swizzle_bytes;
    EmuElement type;
};

namespace emu {

[[noreturn]] void fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
[[noreturn]] void fail_at(const char *file, int line, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
unsigned          lane();

/* --- launching and shared memory ---------------------------------------------------------------------------------- */

struct Body {
    virtual ~Body() = default;
    virtual void operator()() = 0;
};
/* Runs the kernel on a stream, or records it if the stream is being captured. submit frees the body when the kernel has
 * run for the last time. */
cudaError_t submit(const char *name, const char *file, int line, dim3 grid, dim3 block, unsigned cluster, bool early, size_t shared_bytes,
                   cudaStream_t stream, const void *kernel, Body *body, size_t body_bytes);

/* EMU_KERNELS=file: appends a line "name: signature" for every launched kernel, once for each list of argument
 * types. */
void note_kernel(const char *name, const char *signature);
/* EMU_COUNTS=file: counts bank conflicts and bytes of each kernel and operation (test/emu/count.cpp). note_op begins
 * an operation that should move `bytes` bytes. Kernels launched from now on belong to it. It ignores op NULL, a call
 * that only measures. */
void note_op(const char *op, double bytes);
/* counts: 1 if anything is counted. count_whole notes an access that is one instruction on a GPU, although this
 * compiler may split it. */
extern const bool counts;
void count_whole(const void *p, size_t n, bool writes);

/* Ends the process if the pointer is into the host's own memory, which a GPU cannot reach. */
void check_argument(const char *kernel, const void *pointer);

/* Launches a kernel. The arguments are copied here, as on a GPU, so later changes by the caller do not reach the
 * kernel. A pointer inside a struct is not checked. */
template <class... P, class... A>
cudaError_t launch(const char *name, const char *file, int line, dim3 grid, dim3 block, unsigned cluster, bool early, size_t shared_bytes,
                   cudaStream_t stream, void (*kernel)(P...), A &&...args) {
    static_assert(sizeof...(P) == sizeof...(A), "a launch passes as many arguments as the kernel takes");
    note_kernel(name, __PRETTY_FUNCTION__);
    ([&](const auto &argument) {
        if constexpr (std::is_pointer_v<std::remove_reference_t<decltype(argument)>>) check_argument(name, argument);
    }(args), ...);
    struct Call final : Body {
        void (*kernel)(P...);
        std::tuple<P...> args;
        Call(void (*kernel)(P...), A &&...a) : kernel(kernel), args(static_cast<P>(a)...) {}
        void operator()() override { std::apply(kernel, args); }
    };
    return submit(name, file, line, grid, block, cluster, early, shared_bytes, stream, (const void *)kernel,
                  new Call(kernel, std::forward<A>(args)...), sizeof(Call));
}

/* Waits for earlier kernels. Before it, a thread of an early launch may access no GPU memory except its arguments,
 * and may not end. */
void await_kernels();

/* smem_static returns the shared memory of the object `key` in the current block, smem_dynamic the block's dynamic
 * shared memory. Each has guard bytes around it that no kernel may touch. */
void *smem_static(const void *key, size_t bytes, size_t align);
void *smem_dynamic(size_t align);

/* --- collectives: f sees the arguments of all lanes, once --------------------------------------------------------- */

enum Kind : uint8_t { NONE, SHUFFLE, VOTE, SYNCWARP, LDMATRIX, STMATRIX, MMA, BARRIER, MBARRIER, WARPGROUP, SETMAXNREG, CLUSTER };
using Compute = void (*)(void **argument_of_lane, unsigned mask);
void warp_collective(Kind kind, const char *name, unsigned mask, void *argument, Compute f, const char *file, int line);

enum Reduction { REDUCE_NONE, REDUCE_OR, REDUCE_AND, REDUCE_COUNT };
/* Waits at barrier `id` of the block until `threads` threads have arrived. threads 0: all threads of the block must
 * arrive, at one place of the source. */
int  block_barrier(int id, int threads, const char *name, int value, Reduction reduction, const char *file, int line);
/* arrives at the barrier and does not wait */
void block_arrive(int id, int threads, const char *name, const char *file, int line);

template <class T> struct Shuffle {
    T    value;
    int  source;
    bool in_segment; /* 0: the source lane is outside of the segment, so the lane keeps its own value */
};
template <class T> void shuffle_all(void **argument, unsigned mask) {
    T before[32];
    for (int l = 0; l < 32; l++)
        if (mask >> l & 1) before[l] = ((Shuffle<T> *)argument[l])->value;
    for (int l = 0; l < 32; l++) {
        if (!(mask >> l & 1)) continue;
        Shuffle<T> &x = *(Shuffle<T> *)argument[l];
        if (!x.in_segment) continue;
        if (!(mask >> x.source & 1)) fail("lane %d shuffles from lane %d, which is not in mask %08x", l, x.source, mask);
        x.value = before[x.source];
    }
}
template <class T> T shuffle(unsigned mask, T value, int source, bool in_segment, const char *name, const char *file, int line) {
    static_assert(std::is_trivially_copyable<T>::value, "a shuffled value is plain bytes");
    Shuffle<T> x{value, source & 31, in_segment};
    warp_collective(SHUFFLE, name, mask, &x, shuffle_all<T>, file, line);
    return x.value;
}
/* returns the bit mask of the lanes that voted yes */
unsigned vote(unsigned mask, int predicate, const char *name, const char *file, int line);

/* --- memory: note_* report accesses of uninstrumented code to the race checker ------------------------------------ */

void note_read(const void *p, size_t n);
void note_write(void *p, size_t n);
void note_atomic(void *p, size_t n);
/* copies n bytes without telling the race checker */
void copy_unnoted(void *to, const void *from, size_t n);

template <class T, class F> T read_modify_write(T *p, F f) {
    if ((uintptr_t)p % sizeof(T)) fail("misaligned atomic at %p", (void *)p);
    note_atomic(p, sizeof(T));
    T old;
    copy_unnoted(&old, p, sizeof(T)); /* The exchange is atomic, because no other thread runs until this one waits. */
    T now = f(old);
    copy_unnoted(p, &now, sizeof(T));
    return old;
}
/* is_one_of returns whether T is among the types U. takes_hint returns whether nvcc's loads and stores with a cache
 * hint accept T: numbers and NVIDIA's short vectors. */
template <class T, class... U> constexpr bool is_one_of() { return (std::is_same<T, U>::value || ...); }
template <class T> constexpr bool takes_hint() {
                return std::is_arithmetic<T>::value ||
                       is_one_of<T, int2, int4, uint2, uint4, float2, float4, double2, longlong2, ulonglong2>() ||
                       is_one_of<T, half, __half2, __nv_bfloat16, __nv_bfloat162>();
}
template <class T> T load(const T *p) {
    static_assert(takes_hint<T>(), "nvcc has no such load: go through int4");
    if ((uintptr_t)p % alignof(T)) fail("misaligned %zu-byte load at %p", sizeof(T), (const void *)p);
    return *p;
}
template <class T> void store(T *p, T value) {
    static_assert(takes_hint<T>(), "nvcc has no such store: go through int4");
    if ((uintptr_t)p % alignof(T)) fail("misaligned %zu-byte store at %p", sizeof(T), (void *)p);
    *p = value;
}

/* --- the twins of core/ptx.cuh ------------------------------------------------------------------------------------ */

enum MmaType { MMA_BF16, MMA_F16, MMA_E4M3, MMA_E5M2 };
void ldmatrix(uint32_t *r, int tiles, const void *row, bool transposed, const char *file, int line);
void stmatrix(void *row, const uint32_t *r, int tiles, bool transposed, const char *file, int line);
void mma_m16n8k16(float *d, const uint32_t *a, const uint32_t *b, MmaType type, const char *file, int line);

void cp_async(void *shared, const void *global, int bytes, int source_bytes, const char *file, int line);
void cp_async_commit();
void cp_async_wait(int pending);

/* Returns the offset of p in shared memory. Fails if the n bytes at p are not inside shared memory. */
uint32_t shared_offset(const void *p, size_t n, const char *what, const char *file, int line);
void     mbarrier_init(uint64_t *barrier, unsigned count, const char *file, int line);
void     mbarrier_arrive(uint64_t *barrier, unsigned expected_bytes, const char *file, int line);
void     mbarrier_wait(uint64_t *barrier, unsigned parity, const char *file, int line);
/* Starts a TMA load. blocks: bit set of blocks of the cluster that receive the tile; 0: the thread's own block only. */
void     tma_load_2d(void *shared, const EmuTensorMap *map, uint64_t *barrier, int column, int row, unsigned blocks, const char *file,
                     int line);
void     fence_proxy_async();
void     tma_store_2d(const EmuTensorMap *map, const void *shared, int column, int row, bool add, const char *file, int line);
void     bulk_commit();
void     bulk_wait(int pending, bool read);
unsigned cluster_rank();
void     cluster_arrive(const char *file, int line);
void     cluster_wait(const char *file, int line);
/* arrives at the mbarrier of block `rank` of the cluster that is at the same place in that block's shared memory */
void     mbarrier_arrive_at(uint64_t *barrier, unsigned rank, const char *file, int line);
void     set_registers(int n, bool raise, const char *file, int line);

/* a_registers: registers that hold operand A; NULL: the descriptor a gives its place in shared memory. wgmma_wait
 * gets the accumulators d, e, f of the products that it completes; unused ones are NULL. */
void wgmma(float *d, int n, MmaType a_type, MmaType b_type, uint64_t a, const uint32_t *a_registers, uint64_t b, int accumulate,
           bool a_transposed, bool b_transposed, const char *file, int line);
void wgmma_fence();
void wgmma_commit();
void wgmma_wait(int pending, float *d, float *e, float *f, const char *file, int line);

}  // namespace emu

/* --- barriers, shuffles, votes ------------------------------------------------------------------------------------ */

inline void __syncthreads(EMU_HERE) { emu::block_barrier(0, 0, "__syncthreads", 0, emu::REDUCE_NONE, file, line); }
inline int  __syncthreads_or(int p, EMU_HERE) {
    return emu::block_barrier(0, 0, "__syncthreads_or", p != 0, emu::REDUCE_OR, file, line);
}
inline int __syncthreads_and(int p, EMU_HERE) {
    return emu::block_barrier(0, 0, "__syncthreads_and", p != 0, emu::REDUCE_AND, file, line);
}
inline int __syncthreads_count(int p, EMU_HERE) {
    return emu::block_barrier(0, 0, "__syncthreads_count", p != 0, emu::REDUCE_COUNT, file, line);
}
inline void __syncwarp(unsigned mask = ~0u, EMU_HERE) {
    int nothing = 0;
    emu::warp_collective(emu::SYNCWARP, "__syncwarp", mask, &nothing, nullptr, file, line);
}

template <class T> T __shfl_sync(unsigned mask, T v, int source, int width = 32, EMU_HERE) {
    int first = (int)emu::lane() & ~(width - 1);
    return emu::shuffle(mask, v, first + (source & (width - 1)), true, "__shfl_sync", file, line);
}
template <class T> T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32, EMU_HERE) {
    int first = (int)emu::lane() & ~(width - 1), source = (int)emu::lane() ^ bits;
    return emu::shuffle(mask, v, source, source < first + width, "__shfl_xor_sync", file, line);
}
template <class T> T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32, EMU_HERE) {
    int first = (int)emu::lane() & ~(width - 1), source = (int)(emu::lane() + by);
    return emu::shuffle(mask, v, source, source < first + width, "__shfl_down_sync", file, line);
}
template <class T> T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32, EMU_HERE) {
    int first = (int)emu::lane() & ~(width - 1), source = (int)emu::lane() - (int)by;
    return emu::shuffle(mask, v, source, source >= first, "__shfl_up_sync", file, line);
}
inline unsigned __ballot_sync(unsigned mask, int p, EMU_HERE) { return emu::vote(mask, p, "__ballot_sync", file, line); }
inline int      __any_sync(unsigned mask, int p, EMU_HERE) { return emu::vote(mask, p, "__any_sync", file, line) != 0; }
inline int      __all_sync(unsigned mask, int p, EMU_HERE) { return emu::vote(mask, p, "__all_sync", file, line) == mask; }

inline void              __threadfence() {}
inline void              __threadfence_block() {}
[[noreturn]] inline void __trap(EMU_HERE) { emu::fail_at(file, line, "__trap()"); }

/* --- atomics ------------------------------------------------------------------------------------------------------ */

template <class T, class V> T atomicAdd(T *p, V v) { return emu::read_modify_write(p, [&](T old) { return T(old + T(v)); }); }
template <class T, class V> T atomicMax(T *p, V v) {
    return emu::read_modify_write(p, [&](T old) { return old > T(v) ? old : T(v); });
}
template <class T, class V> T atomicMin(T *p, V v) {
    return emu::read_modify_write(p, [&](T old) { return old < T(v) ? old : T(v); });
}
template <class T, class V> T atomicOr(T *p, V v) { return emu::read_modify_write(p, [&](T old) { return T(old | T(v)); }); }
template <class T, class V> T atomicExch(T *p, V v) { return emu::read_modify_write(p, [&](T) { return T(v); }); }
template <class T, class C, class V> T atomicCAS(T *p, C expected, V v) {
    return emu::read_modify_write(p, [&](T old) { return old == T(expected) ? T(v) : old; });
}

/* --- loads and stores with a cache hint, and the arithmetic that math.h does not have ----------------------------- */

template <class T> T               __ldg(const T *p) { return emu::load(p); }
template <class T> T               __ldcs(const T *p) { return emu::load(p); }
template <class T> T               __ldcg(const T *p) { return emu::load(p); }
template <class T> T               __ldca(const T *p) { return emu::load(p); }
template <class T, class V> void   __stcs(T *p, V v) { emu::store(p, T(v)); }
template <class T, class V> void   __stcg(T *p, V v) { emu::store(p, T(v)); }

inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
/* Arithmetic whose operations each round on their own. The empty asm keeps the compiler from fusing an operation with
 * the next one. */
#if defined(__x86_64__)
inline float __fadd_rn(float a, float b) { float r = a + b; asm("" : "+x"(r)); return r; }
inline float __fmul_rn(float a, float b) { float r = a * b; asm("" : "+x"(r)); return r; }
#else
inline float __fadd_rn(float a, float b) { float r = a + b; asm("" : "+w"(r)); return r; }
inline float __fmul_rn(float a, float b) { float r = a * b; asm("" : "+w"(r)); return r; }
#endif
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
/* NaN becomes 0, as in the hardware */
inline float __saturatef(float x) { return x > 0.0f ? x < 1.0f ? x : 1.0f : 0.0f; }
inline int   __float2int_rn(float x) { return (int)nearbyintf(x); }
inline int   __popc(unsigned x) { return __builtin_popcount(x); }
inline int   __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int   __ffs(int x) { return __builtin_ffs(x); }

inline unsigned __byte_perm(unsigned a, unsigned b, unsigned which) {
    uint64_t bytes = (uint64_t)b << 32 | a;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) out |= (unsigned)(bytes >> (which >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return out;
}
inline unsigned __vmaxu2(unsigned a, unsigned b) { /* takes the maximum of each 16-bit half */
    unsigned low = (a & 0xffff) > (b & 0xffff) ? a : b, high = a >> 16 > b >> 16 ? a : b;
    return (low & 0xffff) | (high & 0xffff0000u);
}
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }

namespace emu {
template <class To, class From> To bits(From x) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    memcpy(&to, &x, sizeof to);
    return to;
}
}  // namespace emu
inline float    __int_as_float(int i) { return emu::bits<float>(i); }
inline float    __uint_as_float(unsigned i) { return emu::bits<float>(i); }
inline int      __float_as_int(float f) { return emu::bits<int>(f); }
inline unsigned __float_as_uint(float f) { return emu::bits<unsigned>(f); }

#define EMU_MIN_MAX(T)                                \
    inline T min(T a, T b) { return b < a ? b : a; }  \
    inline T max(T a, T b) { return a < b ? b : a; }
EMU_MIN_MAX(int)
EMU_MIN_MAX(unsigned)
EMU_MIN_MAX(long)
EMU_MIN_MAX(unsigned long)
EMU_MIN_MAX(long long)
EMU_MIN_MAX(unsigned long long)
EMU_MIN_MAX(float)
EMU_MIN_MAX(double)

/* The CUDA runtime has this function for kernels of any type, but its header shows it only to nvcc. */
template <class... P> cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute attribute, int value) {
    return cudaFuncSetAttribute((const void *)kernel, attribute, value);
}
