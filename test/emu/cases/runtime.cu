/* runtime.cu - cases of the runtime: memory that host and device both use, and graphs. They are valid on a GPU, too. */
#include "test/emu/cases/cases.cuh"
#include "test/emu/cases/host.h"

void managed_case() {
    const int n = 1000;
    float    *shared, *pinned;
    CUDA_CHECK(cudaMallocManaged((void **)&shared, n * sizeof(float)));
    CUDA_CHECK(cudaMallocHost((void **)&pinned, n * sizeof(float)));
    for (int i = 0; i < n; i++) shared[i] = pinned[i] = (float)i;
    OnDevice<float> sums(n);
    CUDA_CHECK(cudaMemset(sums.p, 0, n * sizeof(float)));
    column_sums(sums.p, shared, 1, n, &stream); /* a kernel reads data that the host has written */
    column_sums(sums.p, pinned, 1, n, &stream);
    CUDA_CHECK(cudaMemcpyAsync(shared, sums.p, n * sizeof(float), cudaMemcpyDeviceToDevice, stream_queue(&stream)));
    CUDA_CHECK(cudaStreamSynchronize(stream_queue(&stream)));
    bool same = true;
    for (int i = 0; i < n; i++) same = same && shared[i] == 2.0f * (float)i;
    expect(same, "managed and pinned memory is open to both sides");

    void  *too_much = nullptr;
    size_t free_bytes, total_bytes;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    expect(cudaMalloc(&too_much, total_bytes + 1) == cudaErrorMemoryAllocation && cudaGetLastError() == cudaErrorMemoryAllocation,
           "more memory than there is: an error");
    CUDA_CHECK(cudaFree(shared));
    CUDA_CHECK(cudaFreeHost(pinned));
}

/* A graph records fill, copy and memset on two streams that fork and join. It is recorded once and launched twice. */
void graph_case() {
    const int       n = 200;
    OnDevice<float> a(n), b(n), c(n);
    cudaStream_t    main_queue = stream_queue(&stream), side_queue;
    cudaEvent_t     forked, joined;
    cudaGraph_t     graph;
    cudaGraphExec_t exec;
    Stream          side = stream;
    CUDA_CHECK(cudaStreamCreateWithFlags(&side_queue, cudaStreamNonBlocking));
    side.queue = side_queue;
    CUDA_CHECK(cudaEventCreateWithFlags(&forked, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming));
    fill(c.p, n, 0.0f, &stream);
    CUDA_CHECK(cudaStreamSynchronize(main_queue));

    CUDA_CHECK(cudaStreamBeginCapture(main_queue, cudaStreamCaptureModeGlobal));
    float value = 3.0f;
    fill(a.p, n, value, &stream);
    value = 4.0f; /* a launch copies its arguments, so this change does not reach the kernel */
    CUDA_CHECK(cudaEventRecord(forked, main_queue));
    CUDA_CHECK(cudaStreamWaitEvent(side_queue, forked, 0));
    CUDA_CHECK(cudaMemcpyAsync(b.p, a.p, n * sizeof(float), cudaMemcpyDeviceToDevice, side_queue));
    column_sums(c.p, b.p, 1, n, &side);
    CUDA_CHECK(cudaEventRecord(joined, side_queue));
    CUDA_CHECK(cudaStreamWaitEvent(main_queue, joined, 0));
    CUDA_CHECK(cudaMemsetAsync(a.p, 0, n * sizeof(float), main_queue));
    CUDA_CHECK(cudaStreamEndCapture(main_queue, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_CHECK(cudaGraphDestroy(graph));
    expect(c.host()[n - 1] == 0.0f, "graph: a captured launch does not run");

    for (int i = 0; i < 2; i++) CUDA_CHECK(cudaGraphLaunch(exec, main_queue));
    expect(c.host()[n - 1] == 6.0f && b.host()[0] == 3.0f && a.host()[0] == 0.0f,
           "graph: two launches with the arguments of the capture");
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaEventDestroy(forked));
    CUDA_CHECK(cudaEventDestroy(joined));
    CUDA_CHECK(cudaStreamDestroy(side_queue));
}

static cudaError_t end_capture() {
    cudaGraph_t graph;
    cudaError_t error = cudaStreamEndCapture(stream_queue(&stream), &graph);
    if (error == cudaSuccess) CUDA_CHECK(cudaGraphDestroy(graph));
    cudaGetLastError();
    return error;
}
void capture_rules() {
    cudaStream_t queue = stream_queue(&stream), side;
    cudaEvent_t  event;
    CUDA_CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    CUDA_CHECK(cudaEventCreate(&event));

    CUDA_CHECK(cudaStreamBeginCapture(queue, cudaStreamCaptureModeGlobal));
    expect(cudaStreamSynchronize(queue) == cudaErrorStreamCaptureUnsupported, "capture: the host may not wait for the stream");
    expect(end_capture() == cudaErrorStreamCaptureInvalidated, "capture: and it is lost when it does");

    CUDA_CHECK(cudaStreamBeginCapture(queue, cudaStreamCaptureModeGlobal));
    void *p;
    expect(cudaMalloc(&p, 4) != cudaSuccess, "capture: no allocation");
    end_capture();

    CUDA_CHECK(cudaStreamBeginCapture(queue, cudaStreamCaptureModeGlobal));
    CUDA_CHECK(cudaEventRecord(event, queue));
    expect(cudaEventSynchronize(event) == cudaErrorCapturedEvent, "capture: the host may not wait for its event");
    end_capture();

    CUDA_CHECK(cudaStreamBeginCapture(queue, cudaStreamCaptureModeGlobal));
    CUDA_CHECK(cudaEventRecord(event, queue));
    CUDA_CHECK(cudaStreamWaitEvent(side, event, 0));
    expect(end_capture() == cudaErrorStreamCaptureUnjoined, "capture: a fork must be joined");
    CUDA_CHECK(cudaEventDestroy(event));
    CUDA_CHECK(cudaStreamDestroy(side));
}
