/* streams.cpp - the CUDA runtime's streams and events: queues of work, and the order in which they run. The prototypes are NVIDIA's.
 *
 * The order is chosen to find missing event edges. For a phase of some calls about half of the streams are held. The
 * work of a held stream runs only if the host waits for it; other work runs as soon as it may. So two items of work
 * without an edge between them run in either order, far apart. A host that waits for a stream or event runs only the
 * work that this needs.
 */
#include "streams.h"

#include <sched.h>

#include <algorithm>
#include <mutex>

namespace emu {

static CUstream_st               default_stream;
static std::vector<cudaStream_t> streams = {&default_stream};
static std::vector<Capture *>    captures;
/* number of further calls until other streams are chosen to be held; work of a held stream runs only if the host
 * waits for it */
static int                       phase_left;
static std::recursive_mutex      door;

using Lock = std::lock_guard<std::recursive_mutex>;

static std::mt19937 &dice() {
    static std::mt19937 random(settings.streams_seed);
    return random;
}

/* Returns the time. With EMU_COUNTS each byte that kernels move counts as a nanosecond, so times are equal on every
 * machine. */
static Clock::time_point now() {
    return counts ? Clock::time_point(std::chrono::nanoseconds(counted_work())) : Clock::now();
}

static cudaStream_t real(cudaStream_t stream) { return stream ? stream : &default_stream; }

/* --- the order of work ---------------------------------------------------------------------------------------------------------------- */

/* Runs the first item of work in the stream's queue. Returns false if the item must wait. */
static bool run_first(cudaStream_t s) {
    Work &work = s->work.front();
    if (work.after ? !work.after->passed : !work.run()) return false;
    s->work.pop_front();
    return true;
}

static void begin_phase() {
    enum { LONGEST_PHASE = 40 };
    phase_left = 1 + (int)(dice()() % LONGEST_PHASE);
    for (cudaStream_t s : streams) s->is_held = dice()() % 2;
}

/* Runs the work of all streams that are not held, as far as events allow, in a random order. */
static void run_free() {
    bool some = true;
    while (some) {
        some = false;
        std::vector<cudaStream_t> free;
        for (cudaStream_t s : streams)
            if (!s->is_held && !s->work.empty()) free.push_back(s);
        std::shuffle(free.begin(), free.end(), dice());
        for (cudaStream_t s : free)
            while (!s->work.empty() && run_first(s)) {
                some = true;
                if (dice()() % 2) break;
            }
    }
}

/* Runs some queued work after a call of the CUDA runtime. With EMU_STREAMS=order all work runs when it is queued,
 * unless it waits for another process. */
static void step() {
    if (settings.streams_in_order) {
        for (cudaStream_t s : streams)
            while (!s->work.empty() && run_first(s)) {}
        return;
    }
    if (phase_left-- <= 0) begin_phase();
    run_free();
}

/* The host waits for stream s. Runs the next queued work that must end before this wait can end. If that work waits
 * for another process, other streams may run, because that process may wait for them. */
static void run_for(cudaStream_t s) {
    while (s->work.front().after && !s->work.front().after->passed) s = s->work.front().after->stream;
    if (run_first(s)) return;
    step();
    door.unlock();
    sched_yield();
    door.lock();
}

void drain(cudaStream_t stream) {
    Lock lock(door);
    while (!real(stream)->work.empty()) run_for(real(stream));
}
void drain_all() {
    Lock lock(door);
    for (cudaStream_t s : streams) drain(s);
}
int library_messages;

int library_blocks_beside(cudaStream_t stream) {
    Lock lock(door);
    int  most = 0;
    for (cudaStream_t s : streams)
        if (s != stream) most = std::max(most, s->library_blocks);
    return most;
}
void device_step() {
    Lock        lock(door);
    static bool inside;
    if (inside) return;
    inside = true;
    step();
    inside = false;
}

/* --- queues --------------------------------------------------------------------------------------------------------------------------- */

static std::shared_ptr<Mark> put_mark(cudaStream_t s) {
    auto mark = std::make_shared<Mark>(Mark{s, s->work.empty(), now()});
    if (!mark->passed)
        s->work.push_back({nullptr, [mark] {
                               mark->at = now();
                               return mark->passed = true;
                           }});
    return mark;
}
static void put_wait(cudaStream_t s, std::shared_ptr<Mark> mark) {
    if (!mark->passed && mark->stream != s) s->work.push_back({mark, nullptr});
}

/* Lets CUDA's default stream and the streams not created with cudaStreamNonBlocking wait for each other. */
static void join_default(cudaStream_t s) {
    if (s == &default_stream) {
        for (cudaStream_t other : streams)
            if (other->waits_for_default) put_wait(s, put_mark(other));
    } else if (s->waits_for_default) {
        put_wait(s, put_mark(&default_stream));
    }
}

static bool is_active(const Capture *capture) { return std::find(captures.begin(), captures.end(), capture) != captures.end(); }

/* Refuses a call for which the default stream must wait for all others, if one of them is under capture. */
cudaError_t refuse_while_capturing() {
    Lock        lock(door);
    cudaError_t error = cudaSuccess;
    for (Capture *c : captures) {
        if (c->relaxed) continue;
        c->broken = true;
        error = cudaErrorStreamCaptureUnsupported;
    }
    return remember(error);
}

static void put(cudaStream_t s, std::function<bool()> run) {
    join_default(s);
    s->work.push_back({nullptr, std::move(run)});
    if (settings.streams_in_order) drain(s);
    else step();
}

cudaError_t enqueue(cudaStream_t stream, std::function<void()> operation) {
    Lock lock(door);
    if (!stream)
        if (cudaError_t error = refuse_while_capturing()) return error;
    if (stream && stream->capture) {
        if (stream->capture->broken) return remember(cudaErrorStreamCaptureInvalidated);
        stream->position++;
        stream->capture->operations.push_back(std::move(operation));
        return cudaSuccess;
    }
    put(real(stream), [operation = std::move(operation)] { return operation(), true; });
    return cudaSuccess;
}

cudaError_t enqueue_waiting(cudaStream_t stream, std::function<bool()> operation) {
    Lock lock(door);
    if (stream && stream->capture) return remember(cudaErrorStreamCaptureUnsupported);
    join_default(real(stream));
    real(stream)->work.push_back({nullptr, std::move(operation)});
    step();
    return cudaSuccess;
}

/* Refuses a wait of the host for a stream under capture, because it would never end. */
static cudaError_t may_wait(cudaStream_t stream) {
    if (!stream) return refuse_while_capturing();
    if (!stream->capture) return cudaSuccess;
    stream->capture->broken = true;
    return remember(cudaErrorStreamCaptureUnsupported);
}

/* Answers a host that asks without waiting, such as cudaStreamQuery. Each call makes progress, so a host that asks
 * often enough sees the end. */
static cudaError_t ask(cudaStream_t s, std::function<bool()> is_past) {
    if (!is_past()) step();
    if (!is_past() && dice()() % 4 == 0) run_for(s);
    return is_past() ? cudaSuccess : remember(cudaErrorNotReady);
}

}  // namespace emu

using namespace emu;

extern "C" {

/* --- streams -------------------------------------------------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    Lock lock(door);
    *stream = new CUstream_st{};
    (*stream)->waits_for_default = !(flags & cudaStreamNonBlocking);
    streams.push_back(*stream);
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int) { return cudaStreamCreateWithFlags(stream, flags); }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0, *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    Lock lock(door);
    drain(stream);
    streams.erase(std::find(streams.begin(), streams.end(), stream));
    delete stream;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    Lock lock(door);
    if (cudaError_t error = may_wait(stream)) return error;
    if (!stream) join_default(&default_stream);
    drain(stream);
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
    Lock lock(door);
    if (cudaError_t error = may_wait(stream)) return error;
    cudaStream_t s = real(stream);
    return ask(s, [s] { return s->work.empty(); });
}
cudaError_t cudaDeviceSynchronize() {
    Lock lock(door);
    if (cudaError_t error = refuse_while_capturing()) return error;
    drain_all();
    return cudaSuccess;
}

/* --- events --------------------------------------------------------------------------------------------------------------------------- */

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
    Lock lock(door);
    if (!stream)
        if (cudaError_t error = refuse_while_capturing()) return error;
    event->stream = stream;
    event->capture = stream ? stream->capture : nullptr;
    event->position = stream ? stream->position : 0;
    if (event->capture) event->mark = std::make_shared<Mark>(Mark{stream, true, now()});
    else {
        join_default(real(stream));
        event->mark = put_mark(real(stream));
    }
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    Lock lock(door);
    if (event->capture) return remember(cudaErrorCapturedEvent);
    std::shared_ptr<Mark> mark = event->mark;
    return mark ? ask(mark->stream, [mark] { return mark->passed; }) : cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    Lock lock(door);
    if (event->capture) return remember(cudaErrorCapturedEvent);
    while (event->mark && !event->mark->passed) run_for(event->mark->stream);
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    Lock lock(door);
    if (!from->mark || !to->mark || !from->timed || !to->timed) return remember(cudaErrorInvalidResourceHandle);
    if (from->capture || to->capture) return remember(cudaErrorCapturedEvent);
    if (!from->mark->passed || !to->mark->passed) return remember(cudaErrorNotReady);
    *ms = std::chrono::duration<float, std::milli>(to->mark->at - from->mark->at).count();
    return cudaSuccess;
}
/* A stream that waits for an event of a capture joins the capture from then on. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    Lock lock(door);
    if (!event->mark) return cudaSuccess;
    if (!event->capture) {
        if (stream && stream->capture) return remember(cudaErrorStreamCaptureIsolation);
        join_default(real(stream));
        put_wait(real(stream), event->mark);
        return cudaSuccess;
    }
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

/* --- capture -------------------------------------------------------------------------------------------------------------------------- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    Lock lock(door);
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
    Lock lock(door);
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
    captures.erase(std::find(captures.begin(), captures.end(), capture.get()));
    if (capture->broken) return remember(cudaErrorStreamCaptureInvalidated);
    if (!joined) return remember(cudaErrorStreamCaptureUnjoined);
    *graph = make_graph(std::move(capture->operations));
    return cudaSuccess;
}
}
