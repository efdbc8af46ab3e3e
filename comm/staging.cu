/* staging.cu - copies buckets in GPU memory through pinned host memory, so that the ring and MPI's collectives can work
 * on them: for ranks that share a GPU, which NCCL refuses, and for machines without NCCL.
 *
 * A bucket is copied to the host on a CUDA stream of this file, after the work that is queued on the compute stream
 * (World.followed) so far. Meanwhile the backward pass is queued and runs; the host polls an event for the copy's end.
 * The result is copied back on the same stream, and the compute stream waits for it. Both directions and all groups
 * share one stream, so host memory can be reused once the copy back is queued: the next bucket is copied into it later.
 */
#include <stdlib.h>

#include "comm/internal.h"
#include "core/kernel.cuh"
#include "core/error.h"

/* Host memory that holds one bucket during a collective. */
typedef struct {
    char       *host;  /* [bytes] pinned host memory; owned */
    size_t      bytes;
    int         busy;
    cudaEvent_t is_in;
} Block;

struct Staging {
    cudaStream_t queue;
    cudaEvent_t  reached; /* event recorded on the compute stream (world_follow) when a bucket is complete, and on
                           * `queue` when the copies back to the GPU are done */
    Block       *block;   /* [blocks] host memory for buckets; owned */
    int          blocks;
    int          pending; /* 1: a copy back to the GPU is queued, and the compute stream does not wait for it yet */
};

/* Returns the index of the smallest free block of host memory that fits, or of a new one. Buckets have the same few
 * lengths in every step, and a block is as wide as the widest type needs. So after the first step no new block is
 * needed. */
static int take_block(Staging *s, size_t bytes) {
    int best = -1;
    for (int b = 0; b < s->blocks; b++)
        if (!s->block[b].busy && s->block[b].bytes >= bytes && (best < 0 || s->block[b].bytes < s->block[best].bytes))
            best = b;
    if (best < 0) {
        s->block =
            (Block *)xrealloc(s->block, sizeof *s->block * (size_t)(s->blocks + 1), "staging between GPU and ranks");
        Block *block = &s->block[best = s->blocks++];
        block->host = (char *)device_alloc_host(bytes, "a bucket on its way between ranks");
        block->bytes = bytes;
        CUDA_CHECK(cudaEventCreateWithFlags(&block->is_in, cudaEventDisableTiming));
    }
    s->block[best].busy = 1;
    return best;
}

/* Returns the bytes of this rank's piece of bucket x; *at is the byte where the piece begins. */
static size_t piece_of(const Comm *c, Tensor x, size_t *at) {
    size_t piece = tensor_bytes(x) / (size_t)c->size;
    *at = piece * (size_t)c->rank;
    return piece;
}

int staging_in(Comm *c, OpKind kind, Tensor *x) {
    World *w = c->world;
    if (!w->followed || c->is_on_host || tensor_elems(*x) == 0) return -1;
    Staging *s = w->staging;
    if (!s) {
        s = w->staging = (Staging *)xcalloc(1, sizeof *s, "staging between GPU and ranks");
        CUDA_CHECK(cudaStreamCreateWithFlags(&s->queue, cudaStreamNonBlocking));
        CUDA_CHECK(cudaEventCreateWithFlags(&s->reached, cudaEventDisableTiming));
    }
    int      b = take_block(s, (size_t)tensor_elems(*x) * sizeof(float));
    Block   *block = &s->block[b];
    size_t   at = 0, bytes = kind == OP_ALL_GATHER ? piece_of(c, *x, &at) : kind == OP_RECEIVE ? 0 : tensor_bytes(*x);
    CUDA_CHECK(cudaEventRecord(s->reached, stream_queue(w->followed)));
    CUDA_CHECK(cudaStreamWaitEvent(s->queue, s->reached, 0));
    if (bytes > 0)
        CUDA_CHECK(
            cudaMemcpyAsync(block->host + at, (const char *)x->data + at, bytes, cudaMemcpyDeviceToHost, s->queue));
    CUDA_CHECK(cudaEventRecord(block->is_in, s->queue));
    x->data = block->host;
    return b;
}

int staging_is_in(World *w, int staged) { return event_is_past(Event{w->staging->block[staged].is_in}); }

int staging_stream_is_idle(World *w) {
    cudaError_t answer = w->followed ? cudaStreamQuery(stream_queue(w->followed)) : cudaSuccess;
    if (answer == cudaErrorNotReady) {
        cudaGetLastError(); /* clears CUDA's error state: "not ready" is no error, but the next launch would report it
                             * as one */
        return 0;
    }
    CUDA_CHECK(answer);
    return 1;
}

void staging_out(Comm *c, int staged, OpKind kind, Tensor bucket) {
    Staging *s = c->world->staging;
    Block   *block = &s->block[staged];
    size_t   at = 0, bytes = tensor_bytes(bucket);
    if (kind == OP_REDUCE_SCATTER || kind == OP_TREE_SUM) bytes = piece_of(c, bucket, &at);
    CUDA_CHECK(cudaMemcpyAsync((char *)bucket.data + at, block->host + at, bytes, cudaMemcpyHostToDevice, s->queue));
    block->busy = 0;
    s->pending = 1;
}

void staging_drop(World *w, int staged) { w->staging->block[staged].busy = 0; }

void staging_finish(World *w) {
    Staging *s = w->staging;
    if (!s->pending) return;
    CUDA_CHECK(cudaEventRecord(s->reached, s->queue));
    CUDA_CHECK(cudaStreamWaitEvent(stream_queue(w->followed), s->reached, 0));
    s->pending = 0;
}

void staging_close(World *w) {
    Staging *s = w->staging;
    CUDA_CHECK(cudaStreamSynchronize(s->queue));
    for (int b = 0; b < s->blocks; b++) {
        device_free_host(s->block[b].host);
        CUDA_CHECK(cudaEventDestroy(s->block[b].is_in));
    }
    CUDA_CHECK(cudaEventDestroy(s->reached));
    CUDA_CHECK(cudaStreamDestroy(s->queue));
    free(s->block);
    free(s);
    w->staging = NULL;
}

size_t comm_staging_bytes(CommKind kind, int ranks, int64_t elems) {
    return ranks > 1 && kind != COMM_NCCL ? (size_t)elems * sizeof(float) : 0;
}
