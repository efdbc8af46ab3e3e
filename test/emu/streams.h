/* streams.h - what the emulated runtime's streams, graphs and memory share.
 *
 * A stream is a queue of work. Work of one stream runs in order, work of different streams in any order that events allow: a seeded choice,
 * EMU_STREAMS=random:seed (the default, seed 1), or EMU_STREAMS=order: each piece when it is queued. A missing event edge is then a wrong
 * result under some seed, on one machine as on another.
 */
#pragma once
#include <chrono>
#include <deque>
#include <functional>

#include "engine.h"

using Clock = std::chrono::steady_clock;
using Operations = std::vector<std::function<void()>>;

/* A place in a stream, as a cudaEventRecord makes it. */
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

/* The operations of a stream under capture, and of streams that wait for its events, in the order of the calls. */
struct Capture {
    Operations                operations;
    std::vector<cudaStream_t> streams; /* the stream that began the capture is first */
    bool                      broken, relaxed;
};

/* NVIDIA's headers leave these two types incomplete. */
struct CUstream_st {
    Capture         *capture;          /* NULL if not under capture */
    /* under capture: number of operations so far, and of those that another stream has waited for */
    uint64_t         position, joined;
    bool             waits_for_default;
    bool             is_held;          /* work runs only if the host waits for it */
    int              library_blocks;   /* multiprocessors that NCCL's kernels on the stream may hold */
    std::deque<Work> work;
};
struct CUevent_st {
    std::shared_ptr<Mark> mark; /* mark of the last recording; NULL if there is none */
    bool                  timed;
    Capture              *capture; /* capture of the recording stream, or NULL */
    cudaStream_t          stream;
    uint64_t              position;
};

namespace emu {

cudaError_t remember(cudaError_t error); /* stores an error for cudaGetLastError and returns it */

/* Queues the operation, or records it if the stream is being captured. */
cudaError_t enqueue(cudaStream_t stream, std::function<void()> operation);
/* Queues an operation that is called until it returns true. Not under capture. */
cudaError_t enqueue_waiting(cudaStream_t stream, std::function<bool()> operation);
/* The host waits until a stream, or every stream, is empty. */
void        drain(cudaStream_t stream);
void        drain_all();
/* Returns the most multiprocessors that NCCL's kernels on streams other than this one may hold. */
int         library_blocks_beside(cudaStream_t stream);
/* Number of NCCL messages that this process has called and that have not ended. They may wait for another rank. */
extern int  library_messages;
/* take_library_bytes takes invisible GPU memory, as libraries do; give_library_bytes returns it. False: there is not
 * enough. */
bool        take_library_bytes(size_t bytes);
void        give_library_bytes(size_t bytes);
/* Lets some work run while the host is busy elsewhere, for example in MPI. */
void        device_step();

cudaGraph_t make_graph(Operations operations);

/* For calls in which the host waits, or in which the default stream takes part: returns an error and ends the capture,
 * if there is one. */
cudaError_t refuse_while_capturing();

/* Copies between device and host at once, for operations that run. */
void copy_now(void *to, const void *from, size_t n);

}  // namespace emu
