/* queue.cpp - the CUDA runtime's streams, events, graphs and launches. The prototypes are NVIDIA's.
 *
 * An operation is finished when its call returns, so a stream is only a name, until it is captured: then its operations, and those of
 * streams that wait for its events, are recorded in order, with their arguments, and a graph is that list. The rules that a GPU enforces
 * are enforced: no waiting for a stream under capture, no event from outside, no branch that is not joined at the end.
 */
#include "queue.h"

#include <unistd.h>

#include <chrono>
#include <map>

using Operations = std::vector<std::function<void()>>;

/* NVIDIA's headers leave these incomplete. */
struct Capture {
    Operations                 operations;
    std::vector<cudaStream_t>  streams; /* the one that began it first */
    bool                       broken, relaxed;
};
struct CUstream_st {
    Capture *capture; /* NULL: its operations run */
    uint64_t position, joined; /* under capture: operations so far, and how many of them another stream waited for */
};
struct CUevent_st {
    std::chrono::steady_clock::time_point at;
    bool                                  recorded, timed;
    Capture                              *capture; /* of the recording stream, or NULL */
    cudaStream_t                          stream;
    uint64_t                              position;
};
struct CUgraph_st {
    Operations operations;
};
struct CUgraphExec_st {
    Operations operations;
};

namespace emu {

static cudaError_t                    last_error = cudaSuccess;
static std::vector<Capture *>         captures;
static std::map<const void *, size_t> dynamic_limit; /* of kernels that asked for more than SHARED_DEFAULT */

cudaError_t remember(cudaError_t error) {
    if (error != cudaSuccess) last_error = error;
    return error;
}

static bool is_active(const Capture *capture) {
    for (const Capture *c : captures)
        if (c == capture) return true;
    return false;
}

/* CUDA's default stream waits for all others, which one under capture cannot grant. */
cudaError_t refuse_while_capturing() {
    cudaError_t error = cudaSuccess;
    for (Capture *c : captures) {
        if (c->relaxed) continue;
        c->broken = true;
        error = cudaErrorStreamCaptureUnsupported;
    }
    return remember(error);
}

cudaError_t enqueue(cudaStream_t stream, std::function<void()> operation) {
    if (!stream)
        if (cudaError_t error = refuse_while_capturing()) return error;
    if (stream && stream->capture) {
        if (stream->capture->broken) return remember(cudaErrorStreamCaptureInvalidated);
        stream->position++;
        stream->capture->operations.push_back(std::move(operation));
    } else {
        operation();
    }
    return cudaSuccess;
}

cudaError_t submit(const char *name, const char *file, int line, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                   const void *kernel, Body *body, size_t body_bytes) {
    std::shared_ptr<Body> owned(body);
    uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z, threads = (uint64_t)block.x * block.y * block.z;
    auto     asked = dynamic_limit.find(kernel);
    size_t   limit = asked == dynamic_limit.end() ? (size_t)SHARED_DEFAULT : asked->second;
    bool     grid_fits = blocks > 0 && grid.x <= 0x7fffffff && grid.y <= 65535 && grid.z <= 65535;
    bool     block_fits = threads > 0 && threads <= MAX_THREADS && block.z <= 64 && shared_bytes <= limit;
    if (!grid_fits || !block_fits) {
        fprintf(stderr, "EMU: invalid launch %s<<<(%u,%u,%u),(%u,%u,%u),%zu>>> at %s:%d (dynamic shared memory: at most %zu)\n", name,
                grid.x, grid.y,
                grid.z, block.x, block.y, block.z, shared_bytes, file, line, limit);
        return remember(cudaErrorInvalidConfiguration);
    }
    size_t most = asked == dynamic_limit.end() ? (size_t)SHARED_DEFAULT : (size_t)SHARED_MOST;
    Launch launch = {name, file, line, grid, block, shared_bytes, most, kernel, owned, body_bytes};
    return enqueue(stream, [launch] { launch_run(launch); });
}

/* A host that waits for a stream under capture would wait forever. */
static cudaError_t wait_for(cudaStream_t stream) {
    if (!stream) return refuse_while_capturing();
    if (!stream->capture) return cudaSuccess;
    stream->capture->broken = true;
    return remember(cudaErrorStreamCaptureUnsupported);
}

static cudaError_t event_ready(cudaEvent_t event) { return event->capture ? remember(cudaErrorCapturedEvent) : cudaSuccess; }

}  // namespace emu

using namespace emu;

extern "C" {

/* --- streams ------------------------------------------------------------------------------------------------------ */

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    *stream = new CUstream_st{};
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) { return cudaStreamCreate(stream); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned, int) { return cudaStreamCreate(stream); }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0, *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    delete stream;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return wait_for(stream); }
cudaError_t cudaStreamQuery(cudaStream_t stream) { return wait_for(stream); }
cudaError_t cudaDeviceSynchronize() { return refuse_while_capturing(); }

/* --- events ------------------------------------------------------------------------------------------------------- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    *event = new CUevent_st{};
    (*event)->timed = !(flags & cudaEventDisableTiming);
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete event;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    if (!stream)
        if (cudaError_t error = refuse_while_capturing()) return error;
    event->recorded = true;
    event->at = std::chrono::steady_clock::now();
    event->stream = stream;
    event->capture = stream ? stream->capture : nullptr;
    event->position = stream ? stream->position : 0;
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) { return event_ready(event); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return event_ready(event); }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    if (!from->recorded || !to->recorded || !from->timed || !to->timed) return remember(cudaErrorInvalidResourceHandle);
    if (from->capture || to->capture) return remember(cudaErrorCapturedEvent);
    *ms = std::chrono::duration<float, std::milli>(to->at - from->at).count();
    return cudaSuccess;
}
/* A stream that waits for an event of a capture takes part in it from then on. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    if (!event->recorded) return cudaSuccess;
    if (!event->capture) return stream && stream->capture ? remember(cudaErrorStreamCaptureIsolation) : cudaSuccess;
    if (!stream || !is_active(event->capture)) return remember(cudaErrorStreamCaptureIsolation);
    if (stream->capture && stream->capture != event->capture) return remember(cudaErrorStreamCaptureMerge);
    if (event->stream != stream && event->position > event->stream->joined) event->stream->joined = event->position;
    if (!stream->capture) {
        stream->capture = event->capture;
        stream->position = 1, stream->joined = 0;
        event->capture->streams.push_back(stream);
    }
    return cudaSuccess;
}

/* --- graphs ------------------------------------------------------------------------------------------------------- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    if (!stream) return remember(cudaErrorStreamCaptureUnsupported);
    if (stream->capture) return remember(cudaErrorIllegalState);
    stream->capture = new Capture{{}, {stream}, false, mode == cudaStreamCaptureModeRelaxed};
    stream->position = stream->joined = 0;
    captures.push_back(stream->capture);
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status) {
    const Capture *capture = stream ? stream->capture : nullptr;
    *status = !capture ? cudaStreamCaptureStatusNone : capture->broken ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    *graph = nullptr;
    if (!stream || !stream->capture) return remember(cudaErrorIllegalState);
    std::unique_ptr<Capture> capture(stream->capture);
    if (capture->streams[0] != stream) {
        capture.release();
        return remember(cudaErrorStreamCaptureUnmatched);
    }
    bool joined = true;
    for (cudaStream_t s : capture->streams) {
        if (s != stream && s->joined < s->position) joined = false;
        s->capture = nullptr;
    }
    for (size_t i = 0; i < captures.size(); i++)
        if (captures[i] == capture.get()) captures.erase(captures.begin() + (long)i);
    if (capture->broken) return remember(cudaErrorStreamCaptureInvalidated);
    if (!joined) return remember(cudaErrorStreamCaptureUnjoined);
    *graph = new CUgraph_st{capture->operations};
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long) {
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

/* --- errors and the device ---------------------------------------------------------------------------------------- */

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
    *(pid_t *)(void *)p->uuid.bytes = getpid(); /* every process has a GPU of its own */
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
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version) { return cudaDriverGetVersion(version); }

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value) {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || value > SHARED_MOST) return remember(cudaErrorInvalidValue);
    dynamic_limit[kernel] = (size_t)value;
    return cudaSuccess;
}
}
