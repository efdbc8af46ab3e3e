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

/* A place in a stream, as one cudaEventRecord makes it. */
struct Mark {
    cudaStream_t      stream;
    bool              passed;
    Clock::time_point at;
};
/* Either waits for a mark of another stream or runs; run() returns false where it waits for another process, and is called again. */
struct Work {
    std::shared_ptr<Mark> after;
    std::function<bool()> run;
};

/* Operations of a stream under capture, and of streams that wait for its events, in the order of the calls. */
struct Capture {
    Operations                operations;
    std::vector<cudaStream_t> streams; /* the one that began it first */
    bool                      broken, relaxed;
};

/* NVIDIA's headers leave these two incomplete. */
struct CUstream_st {
    Capture         *capture;          /* NULL: not under capture */
    uint64_t         position, joined; /* under capture: operations so far, and how many of them another stream waited for */
    bool             waits_for_default;
    bool             is_held;          /* runs only where the host waits for it */
    int              library_blocks;   /* multiprocessors that NCCL's kernels on it may hold */
    std::deque<Work> work;
};
struct CUevent_st {
    std::shared_ptr<Mark> mark; /* of its last recording; NULL: none yet */
    bool                  timed;
    Capture              *capture; /* of the recording stream, or NULL */
    cudaStream_t          stream;
    uint64_t              position;
};

namespace emu {

cudaError_t remember(cudaError_t error); /* for cudaGetLastError; returns it */

/* Queues the operation, or records it where the stream is being captured. */
cudaError_t enqueue(cudaStream_t stream, std::function<void()> operation);
/* The same for one that is called until it returns true; not under capture. */
cudaError_t enqueue_waiting(cudaStream_t stream, std::function<bool()> operation);
/* The host waits until a stream, or every stream, is empty. */
void        drain(cudaStream_t stream);
void        drain_all();
/* The most multiprocessors that NCCL's kernels on another stream than this one may hold. */
int         library_blocks_beside(cudaStream_t stream);
/* Messages of NCCL that this process has called and that have not ended: they may wait for another rank. */
extern int  library_messages;
/* Takes memory of the GPU that nobody sees, as libraries do, or gives it back. False: there is not so much. */
bool        take_library_bytes(size_t bytes);
void        give_library_bytes(size_t bytes);
/* Some work may run: the host is busy elsewhere, in MPI for one. */
void        device_step();

cudaGraph_t make_graph(Operations operations);

/* For calls that the host waits in, or that the default stream takes part in: an error, and the end of the capture, while there is one. */
cudaError_t refuse_while_capturing();

/* Copies between device and host at once: for operations that run. */
void copy_now(void *to, const void *from, size_t n);

}  // namespace emu
