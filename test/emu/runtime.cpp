/* runtime.cpp - the CUDA runtime's launches, graphs, errors and device. The prototypes are NVIDIA's.
 *
 * A graph is the list of a capture's operations with their arguments, and runs as one item of work. CUDA's rules are
 * enforced: no host wait for a stream under capture, no wait for an event from outside the capture, no branch that is
 * not joined at the end.
 */
#include "streams.h"

#include <unistd.h>

#include <map>

/* Defines types that NVIDIA's headers only declare. */
struct CUgraph_st {
    Operations operations;
};
struct CUgraphExec_st {
    Operations operations;
};

namespace emu {

static cudaError_t                    last_error = cudaSuccess;
/* limit of dynamic shared memory of each kernel that requested more than SHARED_DEFAULT */
static std::map<const void *, size_t> dynamic_limit;

cudaError_t remember(cudaError_t error) {
    if (error != cudaSuccess) last_error = error;
    return error;
}

/* Returns the version of the driver: EMU_DRIVER if it is set (12020 is CUDA 12.2), else that of the runtime. The
 * variable is read at each call, so that a test case can set it. */
static int driver_version() {
    const char *asked = getenv("EMU_DRIVER");
    return asked ? atoi(asked) : CUDART_VERSION;
}

cudaGraph_t make_graph(Operations operations) { return new CUgraph_st{std::move(operations)}; }

cudaError_t submit(const char *name, const char *file, int line, dim3 grid, dim3 block, unsigned cluster, bool early, size_t shared_bytes,
                   cudaStream_t stream, const void *kernel, Body *body, size_t body_bytes) {
    std::shared_ptr<Body> owned(body);
    uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z, threads = (uint64_t)block.x * block.y * block.z;
    auto     asked = dynamic_limit.find(kernel);
    size_t   limit = asked == dynamic_limit.end() ? (size_t)SHARED_DEFAULT : asked->second;
    bool     grid_fits = blocks > 0 && grid.x <= 0x7fffffff && grid.y <= 65535 && grid.z <= 65535;
    bool     block_fits = threads > 0 && threads <= MAX_THREADS && block.z <= 64 && shared_bytes <= limit;
    bool cluster_fits = cluster == 1 || (cluster <= MAX_CLUSTER && grid.x % cluster == 0 && threads % WARP_LANES == 0);
    if (cluster_fits && cluster * threads > MAX_THREADS && cluster > 1)
        fail_at(file, line, "the emulator has %d threads for the blocks of a cluster", MAX_THREADS);
    if (!grid_fits || !block_fits || !cluster_fits) {
        fprintf(stderr, "EMU: invalid launch %s<<<(%u,%u,%u),(%u,%u,%u),%zu>>> at %s:%d (dynamic shared memory: at most %zu)\n", name,
                grid.x, grid.y,
                grid.z, block.x, block.y, block.z, shared_bytes, file, line, limit);
        return remember(cudaErrorInvalidConfiguration);
    }
    /* Refuses an early launch (programmatic dependent launch) under capture before CUDA 12.3. Graphs of older
     * drivers cannot hold one. */
    if (early && stream && stream->capture && driver_version() < 12030) {
        fprintf(stderr, "EMU: early launch of %s under capture at %s:%d: the driver is for CUDA %d.%d\n", name, file, line,
                driver_version() / 1000, driver_version() % 1000 / 10);
        stream->capture->broken = true;
        return remember(cudaErrorStreamCaptureUnsupported);
    }
    size_t most = asked == dynamic_limit.end() ? (size_t)SHARED_DEFAULT : (size_t)SHARED_MOST;
    Launch launch = {name, file, line, grid, block, cluster, early, shared_bytes, most, kernel, stream, owned, body_bytes, op_now()};
    return enqueue(stream, [launch] { launch_run(launch); });
}

}  // namespace emu

using namespace emu;

extern "C" {

/* --- graphs --------------------------------------------------------------------------------------------------------------------------- */

/* The emulated driver waits for all queued work, because a real driver may do so before it makes a graph or loads the
 * graph's kernels. */
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long) {
    if (library_messages > 0)
        fail("a graph is made while %d messages of NCCL are in flight: it may wait for them, and they for a rank that waits for this one",
             library_messages);
    *exec = new CUgraphExec_st{graph->operations};
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    return enqueue(stream, [operations = exec->operations] {
        for (const auto &operation : operations) operation();
    });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    delete exec;
    return cudaSuccess;
}

/* --- errors and the device ------------------------------------------------------------------------------------------------------------ */

cudaError_t cudaGetLastError() {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}
cudaError_t cudaPeekAtLastError() { return last_error; }

const char *cudaGetErrorName(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "cudaSuccess";
        case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
        case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
        case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
        case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
        case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
        default: return "a CUDA error";
    }
}
const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "no error";
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorInvalidConfiguration: return "invalid configuration argument";
        case cudaErrorInvalidDevice: return "invalid device ordinal";
        case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
        case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
        default: return "CUDA error (emulated)";
    }
}

cudaError_t cudaGetDeviceCount(int *count) {
    *count = 1;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : remember(cudaErrorInvalidDevice); }
cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device) {
    if (device != 0) return remember(cudaErrorInvalidDevice);
    size_t free_bytes;
    *p = cudaDeviceProp{};
    snprintf(p->name, sizeof p->name, "emulated GPU");
    cudaMemGetInfo(&free_bytes, &p->totalGlobalMem);
    *(pid_t *)(void *)p->uuid.bytes = settings.one_gpu ? 1 : getpid();
    p->major = 9, p->minor = 0;
    p->multiProcessorCount = MULTIPROCESSORS;
    p->warpSize = WARP_LANES;
    p->maxThreadsPerBlock = MAX_THREADS;
    p->maxThreadsPerMultiProcessor = 2048;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = MAX_THREADS, p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->sharedMemPerBlock = SHARED_DEFAULT;
    p->sharedMemPerBlockOptin = SHARED_MOST;
    p->sharedMemPerMultiprocessor = 228 << 10;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->l2CacheSize = 50 << 20;
    p->managedMemory = p->concurrentManagedAccess = p->unifiedAddressing = p->canMapHostMemory = 1;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
    cudaDeviceProp p;
    if (cudaError_t error = cudaGetDeviceProperties(&p, device)) return error;
    switch (attribute) {
        case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)p.sharedMemPerBlock; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)p.sharedMemPerBlockOptin; break;
        case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
        case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
        case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
        case cudaDevAttrManagedMemory: *value = p.managedMemory; break;
        case cudaDevAttrConcurrentManagedAccess: *value = p.concurrentManagedAccess; break;
        default: fail("cudaDeviceGetAttribute: attribute %d is not emulated", (int)attribute);
    }
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version) {
    *version = driver_version();
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value) {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || value > SHARED_MOST) return remember(cudaErrorInvalidValue);
    dynamic_limit[kernel] = (size_t)value;
    return cudaSuccess;
}
}
