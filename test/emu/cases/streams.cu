/* streams.cu - cases of work on different streams, and of copies that run while the host goes on. Each event edge
 * between streams can be left out, and the result must then be wrong. The cases also hold on a GPU. */
#include "test/emu/cases/cases.cuh"
#include "test/emu/cases/host.h"

enum { ROUNDS = 40, N = 256 };

/* A stream that does not wait for other streams, with an event that marks a place in it. */
struct Beside {
    Stream      s = stream;
    cudaEvent_t event;
    Beside() {
        cudaStream_t queue;
        CUDA_CHECK(cudaStreamCreateWithFlags(&queue, cudaStreamNonBlocking));
        CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        s.queue = queue;
    }
    Beside(const Beside &) = delete;
    ~Beside() {
        CUDA_CHECK(cudaEventDestroy(event));
        CUDA_CHECK(cudaStreamDestroy(stream_queue(&s)));
    }
    void record() { CUDA_CHECK(cudaEventRecord(event, stream_queue(&s))); }
    void wait_for(const Beside &other) { CUDA_CHECK(cudaStreamWaitEvent(stream_queue(&s), other.event, 0)); }
    void sync() { CUDA_CHECK(cudaStreamSynchronize(stream_queue(&s))); }
};

static OnDevice<float> zeros() { return OnDevice<float>(std::vector<float>(N)); }
/* Returns whether 0 + 1 + ... + ROUNDS - 1 was added to each element of `sums`. */
static bool has_all_rounds(const OnDevice<float> &sums) {
    auto got = sums.host();
    return got[0] == ROUNDS * (ROUNDS - 1) / 2 && got[N - 1] == got[0];
}

/* One stream fills a buffer, the other adds it to sums. Two events order them: the reader waits for the writer, and the
 * next fill waits for the reader. */
void edges_case() {
    Beside          maker, taker;
    OnDevice<float> buffer(N), sums = zeros();
    for (int i = 0; i < ROUNDS; i++) {
        if (!BUG(52)) maker.wait_for(taker);
        if (BUG(53)) maker.record();
        fill(buffer.p, N, (float)i, &maker.s);
        if (BUG(54)) taker.wait_for(maker);
        if (!BUG(53)) maker.record();
        if (!BUG(51) && !BUG(54)) taker.wait_for(maker);
        column_sums(sums.p, buffer.p, 1, N, &taker.s);
        taker.record();
    }
    taker.sync();
    expect(has_all_rounds(sums), "streams: one makes, the other adds up");
}

/* The host may not change pinned memory before a copy from it has ended, nor read it before a copy to it has ended. */
void pinned_case() {
    Beside          up, down;
    OnDevice<float> buffer(N), sums = zeros();
    float          *page;
    bool            same = true;
    CUDA_CHECK(cudaMallocHost((void **)&page, N * sizeof(float)));
    for (int i = 0; i < ROUNDS; i++) {
        if (!BUG(55) && i > 0) CUDA_CHECK(cudaEventSynchronize(up.event));
        for (int k = 0; k < N; k++) page[k] = (float)i;
        CUDA_CHECK(cudaMemcpyAsync(buffer.p, page, N * sizeof(float), cudaMemcpyHostToDevice, stream_queue(&up.s)));
        up.record();
        column_sums(sums.p, buffer.p, 1, N, &up.s);
    }
    up.sync();
    expect(has_all_rounds(sums), "streams: a pinned page is filled again once its copy has ended");
    for (int i = 0; i < ROUNDS; i++) {
        page[0] = -1.0f;
        fill(buffer.p, N, (float)i, &down.s);
        CUDA_CHECK(cudaMemcpyAsync(page, buffer.p, N * sizeof(float), cudaMemcpyDeviceToHost, stream_queue(&down.s)));
        down.record();
        if (!BUG(56)) CUDA_CHECK(cudaEventSynchronize(down.event));
        same = same && page[0] == (float)i;
    }
    expect(same, "streams: a pinned page is read once its copy has ended");
    down.sync();
    CUDA_CHECK(cudaFreeHost(page));
}

/* Tests that a graph runs in the stream that launches it. It must not run in CUDA's default stream, for which a
 * non-blocking stream does not wait. */
void launched_graph_case() {
    Beside          maker, taker;
    OnDevice<float> buffer(N), sums = zeros();
    cudaGraph_t     graph;
    cudaGraphExec_t exec;
    CUDA_CHECK(cudaStreamBeginCapture(stream_queue(&taker.s), cudaStreamCaptureModeThreadLocal));
    column_sums(sums.p, buffer.p, 1, N, &taker.s);
    CUDA_CHECK(cudaStreamEndCapture(stream_queue(&taker.s), &graph));
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_CHECK(cudaGraphDestroy(graph));
    for (int i = 0; i < ROUNDS; i++) {
        maker.wait_for(taker);
        fill(buffer.p, N, (float)i, &maker.s);
        maker.record();
        if (!BUG(57)) taker.wait_for(maker);
        CUDA_CHECK(cudaGraphLaunch(exec, stream_queue(&taker.s)));
        taker.record();
    }
    taker.sync();
    expect(has_all_rounds(sums), "streams: a graph waits as its stream does");
    CUDA_CHECK(cudaGraphExecDestroy(exec));

    bool same = true;
    for (int i = 0; i < ROUNDS; i++) {
        fill(buffer.p, N, 1.0f, &maker.s);
        if (!BUG(58)) maker.sync();
        CUDA_CHECK(cudaMemset(buffer.p, 0, N * sizeof(float)));
        CUDA_CHECK(cudaDeviceSynchronize());
        same = same && buffer.host()[0] == 0.0f;
    }
    expect(same, "streams: the default stream beside one that is not blocking");
}
