/* streams.h - what the emulated runtime's streams, graphs and memory share.
 *
 * A stream is a queue of work. Work of one stream runs in order. Work of different streams runs in any order that
 * events allow. EMU_STREAMS=random:seed chooses the order by a seed (the default, with seed 1). EMU_STREAMS=order runs
 * each item when it is queued. A missing event edge then gives a wrong result under some seed, the same on every
 * machine.
 */
#pragma once
#include <chrono>
#include <deque>
#include <functional>

#include "engine.h"

using Clock = std::chrono::steady_clock;
using Operations = std::vector<std::function<void()>>;

/* A place in a stream, made by cudaEventRecord. */
struct Mark {
    cudaStream_t      stream;
    bool              passed;
    Clock::time_point at;
};
/* An item of work, which waits for a mark of another stream or runs. run() returns false if it waits for another
 * process; then it is called again. */
struct Work {
    std::shared_ptr<Mark> after;
    std::function<bool()> run;
};

/* A capture: the operations of a stream that is being recorded, and of the streams that wait for its events, in the
 * order of the calls. */
struct Capture {
    Operations                operations;
    std::vector<cudaStream_t> streams; /* the stream that began the capture is first */
    bool                      broken, relaxed;
};

/* Defines types that NVIDIA's headers only declare. */
struct CUstream_st {
    Capture         *capture;          /* NULL if not under capture */
    /* under capture: number of operations recorded so far, and how many of them another stream has waited for */
    uint64_t         position, joined;
    bool             waits_for_default;
    bool             is_held;          /* 1: the work of the stream runs only if the host waits for it */
    int              library_blocks;   /* multiprocessors that NCCL's kernels on the stream may hold */
    std::deque<Work> work;
};
struct CUevent_st {
    std::shared_ptr<Mark> mark; /* place in its stream of the last cudaEventRecord; NULL if there was none */
    bool                  timed;
    Capture              *capture; /* capture of the recording stream, or NULL */
    cudaStream_t          stream;
    uint64_t              position;
};

namespace emu {

cudaError_t remember(cudaError_t error); /* stores an error for cudaGetLastError and returns it */

/* Queues the operation on the stream, or records it if the stream is being captured. */
cudaError_t enqueue(cudaStream_t stream, std::function<void()> operation);
/* Queues an operation that is called until it returns true. The stream must not be under capture. */
cudaError_t enqueue_waiting(cudaStream_t stream, std::function<bool()> operation);
/* Lets the host wait until a stream, or every stream, has no work left. */
void        drain(cudaStream_t stream);
void        drain_all();
/* Returns the most multiprocessors that NCCL's kernels on streams other than this one may hold. */
int         library_blocks_beside(cudaStream_t stream);
/* Number of NCCL messages that this process has started and that have not ended. They may wait for another rank. */
extern int  library_messages;
/* take_library_bytes takes GPU memory that no caller sees, as libraries do. It returns false if there is not enough.
 * give_library_bytes returns the memory. */
bool        take_library_bytes(size_t bytes);
void        give_library_bytes(size_t bytes);
/* Lets some work run while the host is busy elsewhere, for example in MPI. */
void        device_step();

cudaGraph_t make_graph(Operations operations);

/* Called where the host waits or the default stream takes part. If a stream is under capture, ends the capture and
 * returns an error. */
cudaError_t refuse_while_capturing();

/* Copies n bytes between device and host at once, for queued operations that run now. */
void copy_now(void *to, const void *from, size_t n);

}  // namespace emu
