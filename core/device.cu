/* device.cu - implements device.h on an NVIDIA GPU, one GPU per process. The emulator, which runs kernels on the CPU,
 * links it as well. The state of the process's GPU is in this file only. */
#include "core/device.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/kernel.cuh"
#include "core/thread.h"

#ifndef CUDA_EMU
#include <nvtx3/nvToolsExt.h>
#endif

enum {
    OLDEST_MAJOR = 8,
    FREE_SHARED_BYTES = 48 << 10, /* bytes of shared memory, static and dynamic, that a block may use without raising
                                   * the kernel's limit */
    STATIC_SHARED_BYTES = 1 << 10 /* most static shared memory, in bytes, of a kernel that also has dynamic memory: 1
                                   * KiB, to which SMEM_DYN aligns */
};

static struct {
    int            is_open, is_none; /* is_none: device_open(DEVICE_NONE) was called, so this process uses no GPU */
    int            launches_early;   /* 1: a kernel may start before the previous kernel has ended;
                                      * TRAIN_GPT_LAUNCH=serial forbids it */
    int            multiprocessors;  /* number of multiprocessors: what the GPU reports, or less with
                                      * TRAIN_GPT_MULTIPROCESSORS */
    int            left_free;        /* number of multiprocessors that persistent kernels leave to other kernels */
    cudaDeviceProp properties;
    char           isa[16], id[48];
    size_t         context_bytes; /* GPU bytes in use before this program's first allocation, by CUDA and by other
                                   * processes */
    size_t         used_bytes, peak_bytes;
} gpu;

/* --- errors ------------------------------------------------------------------------------------------------------- */

void cuda_failed(const char *call, cudaError_t error, const char *file, int line) {
    if (error == cudaErrorMemoryAllocation)
        fail(EXIT_MEMORY,
             "out of GPU memory in %s (%s:%d): lower batch.micro_batch, set memory.recompute=block, or end other "
             "programs on this GPU (nvidia-smi lists them)", call, file, line);
    check_failed(call, file, line, "CUDA says: %s (%s)", cudaGetErrorString(error), cudaGetErrorName(error));
}

void launch_prepare(const void *kernel, size_t shared_bytes) {
    if (shared_bytes > FREE_SHARED_BYTES - STATIC_SHARED_BYTES)
        CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes));
}

int launches_early(void) { return gpu.launches_early; }

void launch_check(const char *kernel, const char *file, int line) {
    cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) cuda_failed(kernel, error, file, line);
}

/* Returns the architecture for which nvcc compiled the code that this program has for the current GPU; 0 if it has
 * none. If the driver compiles that code from PTX of an older architecture, __CUDA_ARCH__ was the older one: 80 on a
 * GPU of 9.0. */
#ifdef CUDA_EMU
static int code_architecture(void) { return gpu.properties.major * 10 + gpu.properties.minor; }
#else
KERNEL any_kernel(void) {}
static int code_architecture(void) {
    cudaFuncAttributes attributes;
    int                found = cudaFuncGetAttributes(&attributes, (const void *)any_kernel) == cudaSuccess;
    cudaGetLastError(); /* clears CUDA's error state; the caller reports the error */
    return found ? attributes.ptxVersion : 0;
}
#endif

/* --- the GPU ------------------------------------------------------------------------------------------------------ */

/* Returns the number of this machine's GPUs. If it is 0, writes the reason to `why`. */
static int count_devices(char *why, size_t room) {
    int         count = 0, driver = 0, runtime = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    cudaGetLastError(); /* clears CUDA's error state; this function reports the error */
    if (error == cudaSuccess && count > 0) return count;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (driver == 0)
        snprintf(why, room, "no NVIDIA driver is loaded on this machine");
    else if (error == cudaErrorInsufficientDriver)
        snprintf(why, room,
                 "the NVIDIA driver is for CUDA %d.%d and this program was built with CUDA %d.%d: update the driver",
                 driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    else
        snprintf(why, room, "the driver shows no GPU (%s)%s", cudaGetErrorString(error),
                 getenv("CUDA_VISIBLE_DEVICES") ? "; CUDA_VISIBLE_DEVICES is set" : "");
    return 0;
}

int device_count(void) {
    char why[256];
    return count_devices(why, sizeof why);
}

void device_describe(char text[256], char fault[256]) {
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    int used = driver ? snprintf(text, 256, "driver for CUDA %d.%d, ", driver / 1000, driver % 1000 / 10)
                      : snprintf(text, 256, "no driver, ");
    snprintf(text + used, 256 - (size_t)used, "built with CUDA %d.%d", runtime / 1000, runtime % 1000 / 10);
    fault[0] = 0;
    count_devices(fault, 256);
}

/* Returns whether a kernel may be launched before the previous one ends (programmatic dependent launch). That needs
 * compute capability 9.0. Code compiled for an older architecture does not wait in await_kernels(). CUDA 12.3 is needed
 * because each training micro-step is recorded as a CUDA graph, and older versions cannot record such launches. */
static int may_launch_early(int architecture) {
    enum { CUDA_12_3 = 12030 };
    const char *asked = getenv("TRAIN_GPT_LAUNCH");
    int         serial = asked && strcmp(asked, "serial") == 0, driver = 0, runtime = 0;
    if (asked && !serial && strcmp(asked, "early") != 0)
        fail(EXIT_CONFIG, "TRAIN_GPT_LAUNCH is \"%s\": it must be early or serial, or not set", asked);
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    return architecture >= 90 && !serial && driver >= CUDA_12_3 && runtime >= CUDA_12_3;
}

/* Returns the number of multiprocessors that persistent kernels assume. Tests set TRAIN_GPT_MULTIPROCESSORS to a small
 * number. Each block then gets several tiles even of a small shape, as it does with large shapes. */
static int multiprocessors_asked(void) {
    const char *asked = getenv("TRAIN_GPT_MULTIPROCESSORS");
    char       *end;
    int         all = gpu.properties.multiProcessorCount;
    if (!asked) return all;
    long count = strtol(asked, &end, 10);
    if (*end || count < 2)
        fail(EXIT_CONFIG, "TRAIN_GPT_MULTIPROCESSORS is \"%s\": it must be a whole number of at least 2, or not set",
             asked);
    return count < all ? (int)count : all;
}

void device_open(int local_rank, int threads) {
    thread_share(threads); /* sets the number of CPU threads, which update the weights when the optimizer is in host
                            * memory */
    if (local_rank == DEVICE_NONE) gpu.is_none = 1;
    if (gpu.is_open || gpu.is_none) return;
    char why[256];
    int  count = count_devices(why, sizeof why);
    if (count == 0)
        fail(EXIT_NODEVICE, "no GPU: %s. `make BACKEND=cpu` builds a program that computes on the processor", why);
    int id = local_rank % count;
    CUDA_CHECK(cudaGetDeviceProperties(&gpu.properties, id));
    if (gpu.properties.major < OLDEST_MAJOR)
        fail(EXIT_NODEVICE,
             "GPU %d is a %s of compute capability %d.%d, and this program needs %d.0 or newer (A100, RTX 30 and "
             "later). `make BACKEND=cpu` builds a program that computes on the processor",
             id, gpu.properties.name, gpu.properties.major, gpu.properties.minor, OLDEST_MAJOR);
    CUDA_CHECK(cudaSetDevice(id));
    CUDA_CHECK(cudaFree(NULL)); /* creates the CUDA context */
    int architecture = code_architecture();
    if (architecture == 0)
        fail(EXIT_NODEVICE,
             "GPU %d is a %s of compute capability %d.%d, and this program was built for others: build it with make "
             "BACKEND=cuda ARCHS=%d%d%s",
             id, gpu.properties.name, gpu.properties.major, gpu.properties.minor, gpu.properties.major,
             gpu.properties.minor, gpu.properties.major == 9 ? "a" : "");
    gpu.launches_early = may_launch_early(architecture);
    gpu.multiprocessors = multiprocessors_asked();
    snprintf(gpu.isa, sizeof gpu.isa, "sm_%d%d", gpu.properties.major, gpu.properties.minor);
    const unsigned char *u = (const unsigned char *)gpu.properties.uuid.bytes;
    snprintf(gpu.id, sizeof gpu.id, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0],
             u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
    size_t available, total;
    CUDA_CHECK(cudaMemGetInfo(&available, &total));
    gpu.context_bytes = total - available;
    gpu.is_open = 1;
}

int device_is_host(void) { return gpu.is_none; }
const char *device_backend(void) { return IS_EMULATED ? "emu" : "cuda"; }
const char *device_name(void) { return gpu.is_open ? gpu.properties.name : "no GPU"; }
const char *device_id(void) { return gpu.id; }
const char *device_isa(void) { return gpu.is_open ? gpu.isa : "none"; }
int         device_threads(void) { return 1; }
int         device_has_bf16(void) { return 1; } /* every GPU since compute capability 8.0 multiplies bf16 */
int         device_has_quick_bf16(void) { return 1; }
int         device_multiprocessors(void) { return gpu.multiprocessors; }
void        device_leave_multiprocessors(int count) { gpu.left_free = count; }
int         device_resident_blocks(void) {
    enum { LEAST = 2 }; /* fewest blocks returned: a thread block cluster has 2 blocks */
    int blocks = gpu.multiprocessors - gpu.left_free;
    return blocks > LEAST ? blocks : LEAST;
}
size_t      device_shared_bytes(void) { return gpu.properties.sharedMemPerBlockOptin; }
size_t      device_memory_peak(void) { return gpu.context_bytes + gpu.peak_bytes; }

/* Returns the memory of the GPU. The 256 MiB of `reserve` are for what cannot be measured in advance. That is code that
 * CUDA loads at a kernel's first launch (cuBLASLt's and ours), the captured graph of some three hundred kernels, and
 * rounding of our few allocations to pages of 2 MiB. */
DeviceMemory device_memory(void) {
    DeviceMemory m = {0, gpu.properties.totalGlobalMem, 0, (size_t)256 << 20};
    size_t       there;
    if (!gpu.is_open) return m;
    CUDA_CHECK(cudaMemGetInfo(&m.free, &there));
    if (there - m.free > gpu.used_bytes) m.overhead = there - m.free - gpu.used_bytes;
    return m;
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

static void *host_alloc(size_t bytes, const char *what) { return memset(xaligned(bytes, what), 0, bytes); }

void *device_alloc(size_t bytes, const char *what) {
    if (gpu.is_none) return host_alloc(bytes, what);
    void       *memory = NULL;
    cudaError_t error = cudaMalloc(&memory, bytes);
    if (error == cudaErrorMemoryAllocation) {
        size_t available = 0, total = 0;
        cudaGetLastError();
        cudaMemGetInfo(&available, &total);
        fail(EXIT_MEMORY,
             "no GPU memory for %s: %.1f MiB wanted, %.1f of %.1f MiB free on %s; a smaller batch.micro_batch or "
             "memory.recompute = \"block\" takes less (`train_gpt plan` says how much)",
             what, (double)bytes / 1048576.0, (double)available / 1048576.0, (double)total / 1048576.0, device_name());
    }
    CUDA_CHECK(error);
    CUDA_CHECK(cudaMemset(memory, 0, bytes));
    CUDA_CHECK(cudaDeviceSynchronize());
    gpu.used_bytes += bytes;
    if (gpu.used_bytes > gpu.peak_bytes) gpu.peak_bytes = gpu.used_bytes;
    return memory;
}

void device_free(void *memory, size_t bytes) {
    if (gpu.is_none) {
        free(memory);
        return;
    }
    CUDA_CHECK(cudaFree(memory));
    gpu.used_bytes -= bytes;
}

void *device_alloc_shared(size_t bytes) {
    void *memory;
    CUDA_CHECK(cudaMallocManaged(&memory, bytes, cudaMemAttachGlobal));
    return memset(memory, 0, bytes);
}
void device_free_shared(void *memory) { CUDA_CHECK(cudaFree(memory)); }

void *device_alloc_host(size_t bytes, const char *what) {
    void *memory;
    if (gpu.is_none) return host_alloc(bytes, what);
    if (cudaMallocHost(&memory, bytes) != cudaSuccess)
        fail(EXIT_MEMORY,
             "no pinned host memory for %s: %.1f MiB wanted; free memory on this host, or raise its limit (ulimit -l "
             "unlimited)", what, (double)bytes / 1048576.0);
    return memset(memory, 0, bytes);
}
void device_free_host(void *memory) {
    if (gpu.is_none) free(memory);
    else CUDA_CHECK(cudaFreeHost(memory));
}

int device_pin_host(void *memory, size_t bytes) {
    if (gpu.is_none) return 0;
    cudaError_t error = cudaHostRegister(memory, bytes, cudaHostRegisterDefault);
    cudaGetLastError(); /* clears CUDA's error state, because the caller can go on without pinned memory */
    return error == cudaSuccess;
}
void device_unpin_host(void *memory) { CUDA_CHECK(cudaHostUnregister(memory)); }

void device_zero(Stream *s, Tensor t) {
    if (stream_note(s, "device_zero", tensor_elems(t), 0, 0, 0, 0.0, (double)tensor_bytes(t))) return;
    if (gpu.is_none) memset(t.data, 0, tensor_bytes(t));
    else if (tensor_elems(t) > 0) CUDA_CHECK(cudaMemsetAsync(t.data, 0, tensor_bytes(t), stream_queue(s)));
}

void device_to_host(Stream *s, void *host, Tensor t) {
    device_to_host_queued(s, host, t);
    device_sync(s);
}

void device_from_host_queued(Stream *s, Tensor t, const void *host) {
    if (gpu.is_none) memcpy(t.data, host, tensor_bytes(t));
    else CUDA_CHECK(cudaMemcpyAsync(t.data, host, tensor_bytes(t), cudaMemcpyHostToDevice, stream_queue(s)));
}

void device_to_host_queued(Stream *s, void *host, Tensor t) {
    if (gpu.is_none) memcpy(host, t.data, tensor_bytes(t));
    else CUDA_CHECK(cudaMemcpyAsync(host, t.data, tensor_bytes(t), cudaMemcpyDeviceToHost, stream_queue(s)));
}

void device_from_host(Stream *s, Tensor t, const void *host) {
    device_from_host_queued(s, t, host);
    device_sync(s);
}

/* --- streams and events ------------------------------------------------------------------------------------------- */

Stream stream_create(size_t scratch_bytes) {
    Stream       s;
    cudaStream_t queue = NULL;
    s.scratch = arena_create("scratch", scratch_bytes);
    if (!gpu.is_none) CUDA_CHECK(cudaStreamCreateWithFlags(&queue, cudaStreamNonBlocking));
    s.queue = queue;
    s.math = MATH_STRICT;
    s.any_threads = 0;
    s.ledger = NULL;
    return s;
}

void stream_destroy(Stream *s) {
    device_sync(s);
    if (!gpu.is_none) CUDA_CHECK(cudaStreamDestroy(stream_queue(s)));
    arena_destroy(&s->scratch);
}

void device_sync(Stream *s) {
    if (!gpu.is_none) CUDA_CHECK(cudaStreamSynchronize(stream_queue(s)));
}

/* Without a GPU (DEVICE_NONE) events do nothing: every operation has finished when its call returns. */
Event event_create(void) {
    cudaEvent_t event = NULL;
    if (!gpu.is_none) CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    Event e = {event};
    return e;
}
void event_destroy(Event *e) {
    if (e->handle) CUDA_CHECK(cudaEventDestroy((cudaEvent_t)e->handle));
}
void event_record(Event e, Stream *s) {
    if (e.handle) CUDA_CHECK(cudaEventRecord((cudaEvent_t)e.handle, stream_queue(s)));
}
int  event_is_past(Event e) {
    if (!e.handle) return 1;
    cudaError_t answer = cudaEventQuery((cudaEvent_t)e.handle);
    if (answer == cudaErrorNotReady) {
        cudaGetLastError(); /* clears CUDA's error state: "not ready" is no error, but the next launch would report it
                             * as one */
        return 0;
    }
    CUDA_CHECK(answer);
    return 1;
}
void event_wait(Event e) {
    if (e.handle) CUDA_CHECK(cudaEventSynchronize((cudaEvent_t)e.handle));
}

int stream_is_captured(const Stream *s) {
    cudaStreamCaptureStatus status;
    CUDA_CHECK(cudaStreamIsCapturing(stream_queue(s), &status));
    return status != cudaStreamCaptureStatusNone;
}

/* --- graphs and ranges -------------------------------------------------------------------------------------------- */

int graph_begin(Stream *s) {
    CUDA_CHECK(cudaStreamBeginCapture(stream_queue(s), cudaStreamCaptureModeThreadLocal));
    return 1;
}

Graph graph_end(Stream *s) {
    cudaGraph_t     recorded;
    cudaGraphExec_t ready;
    CUDA_CHECK(cudaStreamEndCapture(stream_queue(s), &recorded));
    CUDA_CHECK(cudaGraphInstantiate(&ready, recorded, 0));
    CUDA_CHECK(cudaGraphDestroy(recorded));
    Graph g = {ready};
    return g;
}

void graph_launch(Graph g, Stream *s) { CUDA_CHECK(cudaGraphLaunch((cudaGraphExec_t)g.handle, stream_queue(s))); }

void graph_destroy(Graph *g) {
    if (g->handle) CUDA_CHECK(cudaGraphExecDestroy((cudaGraphExec_t)g->handle));
    g->handle = NULL;
}

#ifdef CUDA_EMU
void device_range_begin(const char *name) { (void)name; }
void device_range_end(void) {}
#else
void device_range_begin(const char *name) { nvtxRangePushA(name); }
void device_range_end(void) { nvtxRangePop(); }
#endif
