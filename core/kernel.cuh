/* kernel.cuh - macros and functions that every .cu file uses: launching, shared memory, element types, 128-bit
 * accesses, reductions.
 *
 * A kernel compiles with nvcc, and with g++ under test/emu/cuda_emu.h, which runs it on the CPU and checks it. Only
 * this file and ptx.cuh contain the differences between the two: no other file has <<<, __shared__ or inline PTX.
 * The emulator and the hardware's forward progress require three rules:
 *   masks and barriers are uniform
 *   no thread returns before a barrier that others reach
 *   no block spins on another
 */
#ifndef TRAIN_GPT_CORE_KERNEL_CUH
#define TRAIN_GPT_CORE_KERNEL_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <initializer_list>
#include <type_traits>

#include "core/device.h"

#define KERNEL static __global__ void
#ifdef EMU_CALLS /* EMU_CALLS (set by scripts/gpu.mk for the emulator) lets the compiler choose what to inline: a copy
                  * of each function in every kernel would take half of the compile time */
#define DEVICE static __device__ inline
#else
#define DEVICE static __device__ __forceinline__
#endif

/* Device code is compiled for the emulator (kernels on the CPU), or by nvcc for a GPU. QUEUE_KERNEL, SMEM and SMEM_DYN
 * mean the same in both. SMEM declares the array `name` of elements T with dimensions dims in shared memory, as in
 * SMEM(float, part, [32]). SMEM_DYN declares T *name, a pointer to the launch's dynamic shared memory. */
#ifdef CUDA_EMU
enum { IS_EMULATED = 1 };
#define QUEUE_KERNEL(cluster, early, kernel, grid, block, shared_bytes, s, ...)                                    \
    emu::launch(#kernel, __FILE__, __LINE__, (grid), (block), (cluster) ? (cluster) : 1, (early), (shared_bytes),  \
                stream_queue(s), (kernel), ##__VA_ARGS__)
#define SMEM(T, name, dims)            \
    using name##_array = T dims;       \
    static char            name##_key; \
    name##_array          &name = *(name##_array *)emu::smem_static(&name##_key, sizeof(name##_array), alignof(T))
#define SMEM_DYN(T, name) T *name = (T *)emu::smem_dynamic(alignof(T))
#else
enum { IS_EMULATED = 0 };
#define QUEUE_KERNEL(cluster, early, kernel, grid, block, shared_bytes, s, ...) \
    queue_kernel((cluster), (early), (kernel), (grid), (block), (shared_bytes), stream_queue(s), ##__VA_ARGS__)
#define SMEM(T, name, dims) __shared__ T name dims
#define SMEM_DYN(T, name)                                                     \
    extern __shared__ __align__(1024) unsigned char dynamic_shared_memory[]; \
    T *name = reinterpret_cast<T *>(dynamic_shared_memory)
#endif

/* LAUNCH(kernel, grid, block, bytes of dynamic shared memory, Stream *, arguments...) queues a kernel and checks for a
 * launch error. It does nothing on a dry stream (one that only notes costs). A kernel template with commas must be in
 * parentheses. */
#define LAUNCH(kernel, grid, block, shared_bytes, s, ...) \
    LAUNCH_AS(0, 0, kernel, grid, block, shared_bytes, s, ##__VA_ARGS__)
/* Launches a kernel that begins with await_kernels(). Its blocks may start while the last blocks of the kernel before
 * it still run, and wait in await_kernels() (programmatic dependent launch, compute capability 9.0). On other GPUs
 * LAUNCH_EARLY does what LAUNCH does. */
#define LAUNCH_EARLY(kernel, grid, block, shared_bytes, s, ...) \
    LAUNCH_AS(0, launches_early(), kernel, grid, block, shared_bytes, s, ##__VA_ARGS__)
/* Launches a kernel in clusters of blocks along x, which run together (compute capability 9.0). */
#define LAUNCH_CLUSTER(cluster, kernel, grid, block, shared_bytes, s, ...) \
    LAUNCH_AS(cluster, 0, kernel, grid, block, shared_bytes, s, ##__VA_ARGS__)
#define LAUNCH_AS(cluster, early, kernel, grid, block, shared_bytes, s, ...)                            \
    ((s)->ledger ? (void)0 : (launch_prepare((const void *)+(kernel), shared_bytes),                    \
     QUEUE_KERNEL(cluster, early, kernel, grid, block, shared_bytes, s, ##__VA_ARGS__),                 \
     launch_check(#kernel, __FILE__, __LINE__)))

/* --- host side: defined in device.cu ------------------------------------------------------------------------------ */

static inline cudaStream_t stream_queue(const Stream *s) { return (cudaStream_t)s->queue; }

/* Raises the kernel's limit on dynamic shared memory if it needs more than 47 KiB. LAUNCH calls it at each launch. */
void launch_prepare(const void *kernel, size_t shared_bytes);
void launch_check(const char *kernel, const char *file, int line);

/* Ends the job after a failed CUDA call: exit 71 with advice on how to save memory if memory ran out, otherwise exit 70
 * as a fault of this program or machine. */
void cuda_failed(const char *call, cudaError_t error, const char *file, int line);
#define CUDA_CHECK(call)                                                               \
    do {                                                                               \
        cudaError_t cuda_error = (call);                                               \
        if (cuda_error != cudaSuccess) cuda_failed(#call, cuda_error, __FILE__, __LINE__); \
    } while (0)

/* Returns whether this process's GPU may start a kernel before the previous one ends. TRAIN_GPT_LAUNCH=serial forbids
 * it. */
int launches_early(void);

#ifndef CUDA_EMU
/* Queues a kernel. With `cluster` above 0 its blocks run in clusters of that size. With `early` it may start before the
 * previous kernel has ended. With 0 and 0 it is launched as usual. */
template <typename... P, typename... A>
static inline void queue_kernel(unsigned cluster, int early, void (*kernel)(P...), dim3 grid, dim3 block,
                                size_t shared_bytes, cudaStream_t queue, A &&...arguments) {
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t  launch = {grid, block, shared_bytes, queue, &attribute, cluster || early};
    if (cluster) {
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim.x = cluster, attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    } else {
        attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute.val.programmaticStreamSerializationAllowed = 1;
    }
    (void)cudaLaunchKernelEx(&launch, kernel, static_cast<P>(arguments)...); /* the result is not used, because
                                                                              * LAUNCH_AS reports an error with the name
                                                                              * of the kernel */
}
#endif

/* A kernel launched with LAUNCH_EARLY calls await_kernels before it touches memory. On return the kernels before it on
 * the stream have ended and their writes are visible. It also lets the next kernel's blocks start as multiprocessors
 * become free. */
DEVICE void await_kernels() {
#if defined(CUDA_EMU)
    emu::await_kernels();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
    cudaTriggerProgrammaticLaunchCompletion();
#endif
}

/* Returns the milliseconds that the GPU takes for the work that queue() queues on the stream, and waits for its end.
 * For choosing between ways of computing the same result. */
template <typename F> static double timed_ms(Stream *s, F queue) {
    cudaEvent_t from, to;
    float       ms;
    CUDA_CHECK(cudaEventCreate(&from));
    CUDA_CHECK(cudaEventCreate(&to));
    CUDA_CHECK(cudaEventRecord(from, stream_queue(s)));
    queue();
    CUDA_CHECK(cudaEventRecord(to, stream_queue(s)));
    CUDA_CHECK(cudaEventSynchronize(to));
    CUDA_CHECK(cudaEventElapsedTime(&ms, from, to));
    CUDA_CHECK(cudaEventDestroy(from));
    CUDA_CHECK(cudaEventDestroy(to));
    return ms;
}

/* Returns whether the stream is being captured into a graph. Nothing runs then, and the host must not wait for it. */
int    stream_is_captured(const Stream *s);

/* Returns the number of streaming multiprocessors of this process's GPU, or TRAIN_GPT_MULTIPROCESSORS if that is
 * fewer. */
int    device_multiprocessors(void);
/* Returns the number of blocks for a persistent kernel, whose blocks stay on their multiprocessors and share the work.
 * The number is one for each multiprocessor, less those that device_leave_multiprocessors leaves to other kernels, and
 * at least 2. */
int    device_resident_blocks(void);
size_t device_shared_bytes(void); /* returns the most bytes of dynamic shared memory that a block may have */

template <typename T> static inline T *ptr(Tensor t) { return (T *)t.data; }

static inline int64_t blocks_for(int64_t n, int64_t per_block) { return (n + per_block - 1) / per_block; }

/* Stops the kernel if `holds` is false, which ends the job at its next CUDA call. For breaches of contract that only
 * device code can detect. */
DEVICE void device_check(bool holds) {
    if (!holds) __trap();
}

/* --- element types ------------------------------------------------------------------------------------------------ */

typedef __nv_bfloat16 bf16;

/* Runs the statements with the type name T defined as float, bf16 or half. This macro alone turns a run-time element
 * type into a template argument. */
#define DISPATCH_ACT(type, T, ...)                                                                        \
    do {                                                                                                  \
        switch (type) {                                                                                   \
            case F32: { typedef float T; __VA_ARGS__; break; }                                            \
            case BF16: { typedef bf16 T; __VA_ARGS__; break; }                                            \
            case F16: { typedef half T; __VA_ARGS__; break; }                                             \
            default: CHECK(0, "the GPU computes in fp32, bf16 and fp16, not in %s", dtype_name(type));    \
        }                                                                                                 \
    } while (0)

DEVICE float to_f32(float x) { return x; }
DEVICE float to_f32(bf16 x) { return __bfloat162float(x); }
DEVICE float to_f32(half x) { return __half2float(x); }
/* Converts x to type T. Rounds to nearest, ties to even. */
template <typename T> DEVICE T from_f32(float x) {
    if constexpr (std::is_same_v<T, float>) return x;
    else if constexpr (std::is_same_v<T, bf16>) return __float2bfloat16_rn(x);
    else return __float2half_rn(x);
}

/* --- 128-bit accesses --------------------------------------------------------------------------------------------- */

enum { WARP = 32, PACK_BYTES = 16 };

/* N elements that are loaded and stored together: as many as fill 16 bytes if the rows are aligned for that, otherwise
 * one element. */
template <typename T, int N> struct alignas(sizeof(T) * N) Pack { T v[N]; };

template <typename T> __host__ __device__ constexpr int pack_elems() { return PACK_BYTES / (int)sizeof(T); }

/* Returns whether rows of row_bytes at these addresses consist of whole packs of PACK_BYTES. For a flat array row_bytes
 * is PACK_BYTES. */
static inline bool packs_fit(size_t row_bytes, std::initializer_list<const void *> rows) {
    uintptr_t bits = row_bytes;
    for (const void *row : rows) bits |= (uintptr_t)row;
    return bits % PACK_BYTES == 0;
}
/* Runs the statements with a constant W: the number of elements T in 16 bytes if `fit`, otherwise 1. */
#define DISPATCH_PACK(T, fit, W, ...)                                        \
    do {                                                                     \
        if (fit) { constexpr int W = pack_elems<T>(); __VA_ARGS__; }         \
        else { constexpr int W = 1; __VA_ARGS__; }                           \
    } while (0)

#ifdef CUDA_EMU /* ONE_ACCESS makes the emulator count one access for a pack, as a GPU does, although the host compiler
                 * may split it */
#define ONE_ACCESS(p, bytes, writes) if (emu::counts) emu::count_whole(p, bytes, writes)
#else
#define ONE_ACCESS(p, bytes, writes) (void)0
#endif
template <typename T, int N> DEVICE Pack<T, N> pack_load(const T *p) {
    ONE_ACCESS(p, sizeof(Pack<T, N>), false);
    return *reinterpret_cast<const Pack<T, N> *>(p);
}
template <typename T, int N> DEVICE void pack_store(T *p, Pack<T, N> x) {
    ONE_ACCESS(p, sizeof(Pack<T, N>), true);
    *reinterpret_cast<Pack<T, N> *>(p) = x;
}

/* Load and store a pack (16 bytes or less) that is not used again soon. The L2 cache evicts it before other data. */
template <int bytes> struct PackWord;
template <> struct PackWord<16> { typedef int4 type; };
template <> struct PackWord<8> { typedef int2 type; };
template <> struct PackWord<4> { typedef int type; };
template <> struct PackWord<2> { typedef short type; };
template <typename T, int N> DEVICE Pack<T, N> pack_load_once(const T *p) {
    typedef typename PackWord<sizeof(Pack<T, N>)>::type Word;
    ONE_ACCESS(p, sizeof(Word), false);
    Word       word = __ldcs(reinterpret_cast<const Word *>(p));
    Pack<T, N> x;
    memcpy(&x, &word, sizeof x);
    return x;
}
template <typename T, int N> DEVICE void pack_store_once(T *p, Pack<T, N> x) {
    typedef typename PackWord<sizeof(Pack<T, N>)>::type Word;
    Word word;
    memcpy(&word, &x, sizeof x);
    ONE_ACCESS(p, sizeof(Word), true);
    __stcs(reinterpret_cast<Word *>(p), word);
}

/* Load and store a pack of a flat array, of which the last may be short. Only n < N elements of it exist; the others
 * read as 0 and are not written. */
enum Reuse { REUSED, ONCE };
template <typename T, int N, Reuse reuse = REUSED> DEVICE Pack<T, N> pack_load_part(const T *p, int64_t n) {
    if (n >= N) return reuse == ONCE ? pack_load_once<T, N>(p) : pack_load<T, N>(p);
    Pack<T, N> x;
    for (int i = 0; i < N; i++) x.v[i] = i < n ? p[i] : from_f32<T>(0.0f);
    return x;
}
template <Reuse reuse = REUSED, typename T, int N> DEVICE void pack_store_part(T *p, Pack<T, N> x, int64_t n) {
    if (n >= N) return reuse == ONCE ? pack_store_once(p, x) : pack_store(p, x);
    for (int i = 0; i < N; i++)
        if (i < n) p[i] = x.v[i];
}

template <typename T, int N> DEVICE Pack<float, N> pack_to_f32(Pack<T, N> x) {
    Pack<float, N> y;
    for (int i = 0; i < N; i++) y.v[i] = to_f32(x.v[i]);
    return y;
}
template <typename T, int N> DEVICE Pack<T, N> pack_from_f32(Pack<float, N> x) {
    Pack<T, N> y;
    for (int i = 0; i < N; i++) y.v[i] = from_f32<T>(x.v[i]);
    return y;
}
/* Adds the pack x to p[0..N), in accesses of at most 16 bytes. */
template <int N> DEVICE void pack_add(float *p, Pack<float, N> x) {
    constexpr int W = N < pack_elems<float>() ? N : pack_elems<float>();
    for (int i = 0; i < N; i += W) {
        Pack<float, W> sum = pack_load<float, W>(p + i);
        for (int k = 0; k < W; k++) sum.v[k] += x.v[i + k];
        pack_store(p + i, sum);
    }
}

/* Returns the index of the first element of this thread's k-th pack (of W elements), for elementwise kernels over flat
 * memory. Each thread has `packs` packs. Neighbouring threads have neighbouring packs. */
template <int W, int packs> DEVICE int64_t pack_place(int k) {
    return (((int64_t)blockIdx.x * packs + k) * blockDim.x + threadIdx.x) * W;
}

/* --- reductions: every lane gets the result; the order of additions is fixed -------------------------------------- */

/* Return the sum and the maximum over the warp, or over each group of `lanes` neighbouring lanes. */
template <int lanes = WARP, typename F> DEVICE F warp_sum(F x) {
    for (int o = lanes / 2; o > 0; o /= 2) x += __shfl_xor_sync(0xffffffffu, x, o);
    return x;
}
template <int lanes = WARP> DEVICE float warp_max(float x) {
    for (int o = lanes / 2; o > 0; o /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, o));
    return x;
}
/* Reduce x over the threads of a one-dimensional block, a multiple of 32; every thread gets the result. `part` holds
 * one value per warp and may be reused at once after the call. */
template <typename F> DEVICE F block_sum(F x, F *part) {
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, warps = (int)blockDim.x / WARP;
    x = warp_sum(x);
    if (lane == 0) part[warp] = x;
    __syncthreads(); /* from here on `part` holds the sums of all warps */
    x = warp_sum(lane < warps ? part[lane] : (F)0);
    __syncthreads(); /* all warps have read `part`, so the caller may reuse it */
    return x;
}
DEVICE float block_max(float x, float *part) {
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, warps = (int)blockDim.x / WARP;
    x = warp_max(x);
    if (lane == 0) part[warp] = x;
    __syncthreads();
    x = warp_max(lane < warps ? part[lane] : -INFINITY);
    __syncthreads();
    return x;
}

#endif
