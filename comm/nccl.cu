/* nccl.cu - collectives by NCCL between GPUs (parallel.comm = nccl), on a CUDA stream other than the one that computes.
 * Each group has its own communicator. All groups share the stream, so their collectives run in program order, and none
 * waits on a GPU for a later one.
 *
 * Each collective starts after an event of the compute stream (World.followed). No collective makes the host wait: at
 * the end the compute stream waits for NCCL's stream. Collectives of an inline group are on the compute stream itself,
 * and so in order without events.
 *
 * NCCL's stream has the highest priority. A collective needs few multiprocessors, but spins on them until every peer
 * has arrived. If it waited for the blocks of a large product to end, it would keep multiprocessors of all its peers
 * idle.
 *
 * The communicator is non-blocking: no call of NCCL waits for peers, so this file finds and reports a lost peer. But a
 * call may return before it is done, and before its work is on the stream: settle() polls until it is.
 */
#include <nccl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>

#include "comm/internal.h"
#include "core/format.h"
#include "core/thread.h"
#include "core/kernel.cuh"
#include "core/layout.h"
#include "core/error.h"

/* SETUP_MS: longest wait for a call of NCCL, equal to the watchdog's limit for a start. Any group's first collective
 * may take that long, because NCCL connects the peers in it. POLL_EVERY_MS: least time between two checks of a
 * communicator for errors. */
static const double SETUP_MS = 300e3, POLL_EVERY_MS = 10;
enum { PAUSE_US = 1000, LEAVE_MS = 500 /* LEAVE_MS: ms that an abort waits for an NCCL call that the main thread is
                                        * in */ };

typedef struct { cudaEvent_t begin, end; } Interval; /* GPU time between two events */
typedef struct {
    Interval time;
    int64_t  elems, number, sequence; /* number: place among the group's collectives; sequence: place among this
                                       * process's collectives */
} Collective;

struct Nccl {
    ncclComm_t   comm;
    cudaStream_t queue;              /* CUDA stream of the collectives: the one that all groups share, or a pair's
                                      * own */
    cudaEvent_t  reached;            /* event recorded on the compute stream (world_follow) when the bucket is
                                      * complete */
    Collective   collective[TRACES]; /* the last collectives; number i is at i % TRACES */
    int64_t      started, read;      /* number of collectives that the group has started, and of those whose times have
                                      * been read */
    int64_t      finished;           /* number of collectives, the first of those started, for which the compute
                                      * stream needs no further wait (nccl_wait has already made it wait) */
    int64_t      joined;             /* collectives from this number on belong to one joined call of NCCL (nccl_join);
                                      * -1: no such call is open */
    int          joined_before;      /* 1: the joined call is of kind GATHERS_BEHIND, so it does not wait for later work
                                      * on the compute stream */
    Interval     wait[TRACES];       /* times in which the compute stream waited in comm_finish; wait i is at i %
                                      * TRACES */
    int64_t      waits, waits_read;
    double       polled_ms;
    int          abandoned;          /* 1: the communicator is aborted; atomic, because any thread may abort it, but
                                      * only once */
    int          inside;             /* number of NCCL calls that the main thread is in; atomic */
    float       *received;           /* [nodes of all ranks][NCCL_TREE_CHUNK_BYTES] partial sums received for a tree
                                      * sum; owned; NULL before nccl_tree_open */
    size_t       received_bytes;
};

/* --- errors ------------------------------------------------------------------------------------------------------- */

enum { NAME_CHARS = CALL_CHARS + 48 };
/* Writes the name of collective i of the group for a message, such as "reduce-scatter 12 of 1024 elements". */
static const char *name_of(const Comm *c, int64_t i, char text[NAME_CHARS]) {
    const Collective *one = &c->nccl->collective[i % TRACES];
    const CommTrace  *trace = world_trace_of(c->world, one->sequence);
    char              call[CALL_CHARS] = "a collective";
    if (trace) world_call_text(trace, call);
    snprintf(text, NAME_CHARS, "%s of %lld elements", call, (long long)one->elems);
    return text;
}

/* Waits until another thread, which aborted NCCL, ends the process. The abort frees the communicator, so the main
 * thread must not call NCCL again, nor use what the aborted kernels have left. */
NORETURN static void pause_for_ever(void) {
    for (;;) pause();
}
static int is_abandoned(const Nccl *n) { return __atomic_load_n(&n->abandoned, __ATOMIC_SEQ_CST); }

/* Counts the main thread as inside NCCL as long as the object lives, so that an abort can wait for the end of the
 * call. */
struct Inside {
    Nccl *n;
    explicit Inside(Comm *c) : n(c->nccl) {
        __atomic_add_fetch(&n->inside, 1, __ATOMIC_SEQ_CST);
        if (!is_abandoned(n)) return;
        __atomic_store_n(&n->inside, 0, __ATOMIC_SEQ_CST);
        pause_for_ever();
    }
    Inside(const Inside &) = delete;
    ~Inside() { __atomic_sub_fetch(&n->inside, 1, __ATOMIC_SEQ_CST); }
};

/* Aborts every communicator, because kernels of other ranks spin until this rank's kernels answer. Each abort runs in a
 * thread of its own, because it may hang; this function waits at most wait_ms. All aborts run at once, because on the
 * shared stream one may wait for another. If the main thread is in a call of NCCL, the abort waits for its end, up to
 * LEAVE_MS. */
void world_abandon(World *w, double wait_ms) {
    auto left = std::make_shared<std::atomic<int>>(0);
    for (const Comm *c = __atomic_load_n(&w->groups, __ATOMIC_ACQUIRE); c; c = c->next) {
        ncclComm_t comm = c->nccl ? c->nccl->comm : NULL;
        Nccl *n = c->nccl;
        if (!comm || __atomic_exchange_n(&n->abandoned, 1, __ATOMIC_SEQ_CST)) continue;
        ++*left;
        std::thread([comm, n, left] {
            for (double begin = clock_ms();
                 __atomic_load_n(&n->inside, __ATOMIC_SEQ_CST) && clock_ms() - begin < LEAVE_MS;)
                usleep(PAUSE_US);
            ncclCommAbort(comm);
            --*left;
        }).detach();
    }
    for (double begin = clock_ms(); *left > 0 && clock_ms() - begin < wait_ms;) usleep(10000);
}

/* Ends the job after a failed NCCL call. Exit code 71 if memory ran out, otherwise exit_code. If exit_code is 0, the
 * code is 77 for a fault of a peer or the network, and 70 for a fault of this program or CUDA. */
NORETURN static void nccl_failed(Comm *c, const char *doing, ncclResult_t result, int exit_code) {
    if (c->nccl && is_abandoned(c->nccl)) pause_for_ever(); /* another thread's abort made this call fail, so that
                                                             * thread ends the process */
    const char *detail = ncclGetLastError(NULL); /* text of the last error of any communicator */
    const char *what = result == ncclInProgress ? "no answer in time; a peer is lost" : ncclGetErrorString(result);
    int         is_peers = result == ncclRemoteError || result == ncclSystemError || result == ncclInProgress;
    char        why[512];
    if (exit_code == 0) exit_code = is_peers ? EXIT_PEER : EXIT_INTERNAL;
    /* NCCL has no code for a lack of memory. Its last error is a line like "Cuda failure 2 'out of memory'" or "Failed
     * to CUDA malloc 9633792 bytes". */
    if ((result == ncclUnhandledCudaError || result == ncclSystemError) && detail &&
        (strstr(detail, "out of memory") || strstr(detail, "malloc"))) exit_code = EXIT_MEMORY;
    snprintf(why, sizeof why, "%s%s%s", what, detail && *detail ? ": " : "", detail ? detail : "");
    if (c->nccl) __atomic_store_n(&c->nccl->inside, 0, __ATOMIC_SEQ_CST); /* this thread makes no more NCCL calls, so an
                                                                           * abort need not wait for it */
    world_abandon(c->world, 0);
    fail(exit_code, "NCCL: %s failed on rank %d, host %s, %s: %s (NCCL_DEBUG=WARN prints more)", doing,
         c->world->rank, comm_host(c, c->rank), device_id(), why);
}

/* Polls until NCCL's last call on the communicator is complete, at most SETUP_MS. With pause_us, for a start or an end,
 * each check also moves the watchdog's deadline, so that the wait is not taken for a hang. */
static ncclResult_t settle(Comm *c, ncclResult_t result, int pause_us) {
    double begin = clock_ms();
    while (result == ncclInProgress && clock_ms() - begin < SETUP_MS) {
        if (pause_us) {
            usleep((useconds_t)pause_us);
            world_moved(c->world);
        } else sched_yield();
        Inside       inside(c);
        ncclResult_t asked = ncclCommGetAsyncError(c->nccl->comm, &result);
        if (asked != ncclSuccess) return asked;
    }
    return result;
}

/* Checks a call between ncclGroupStart and ncclGroupEnd. Nothing is in flight before the group ends, so "in progress"
 * is a fault. If settle() polled it, the communicator would look fine and the message would be missing. */
static ncclResult_t in_group(Comm *c, ncclResult_t result) {
    if (result == ncclInProgress)
        nccl_failed(c, "a call inside a group, answered as in progress,", ncclInternalError, 0);
    return result;
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

static ncclDataType_t type_of(DType type) {
    switch (type) {
        case F32: return ncclFloat32;
        case BF16: return ncclBfloat16;
        case F16: return ncclFloat16;
        default: CHECK(0, "buckets are not of %s", dtype_name(type));
    }
    return ncclFloat32;
}

static cudaStream_t queue_for(const Comm *c) {
    return c->is_inline && c->world->followed ? stream_queue(c->world->followed) : c->nccl->queue;
}

/* Queues messages as one NCCL group, so that NCCL runs them at once. An empty list is skipped, because NCCL refuses an
 * empty group. */
static ncclResult_t enqueue_messages(Comm *c, const CommMessage *message, int count, cudaStream_t queue) {
    Inside       inside(c);
    ncclResult_t result = count > 0 ? ncclGroupStart() : ncclSuccess;
    for (int k = 0; k < count && result == ncclSuccess; k++) {
        CommMessage    m = message[k];
        size_t         elems = (size_t)tensor_elems(m.x);
        ncclDataType_t type = type_of(m.x.type);
        result = in_group(c, m.kind == EXCHANGE_SEND ? ncclSend(m.x.data, elems, type, m.peer, c->nccl->comm, queue)
                                                     : ncclRecv(m.x.data, elems, type, m.peer, c->nccl->comm, queue));
    }
    ncclResult_t ended = count > 0 ? ncclGroupEnd() : ncclSuccess;
    return result == ncclSuccess ? ended : result;
}

static ncclResult_t enqueue(Comm *c, OpKind kind, Tensor x) {
    Inside       inside(c);
    const Nccl  *n = c->nccl;
    cudaStream_t queue = queue_for(c);
    size_t      piece = (size_t)(tensor_elems(x) / c->size);
    char       *all = (char *)x.data, *mine = all + piece * dtype_bytes(x.type) * (size_t)c->rank;
    if (op_is_all_reduce(kind))
        return ncclAllReduce(all, all, (size_t)tensor_elems(x), type_of(x.type), kind == OP_ALL_MAX ? ncclMax : ncclSum,
                             n->comm, queue);
    if (kind == OP_ALL_GATHER) return ncclAllGather(mine, all, piece, type_of(x.type), n->comm, queue);
    return ncclReduceScatter(all, mine, piece, type_of(x.type), ncclSum, n->comm, queue);
}

/* --- the communicator --------------------------------------------------------------------------------------------- */

static void interval_create(Interval *s) {
    CUDA_CHECK(cudaEventCreate(&s->begin));
    CUDA_CHECK(cudaEventCreate(&s->end));
}

static void interval_destroy(Interval s) {
    CUDA_CHECK(cudaEventDestroy(s.begin));
    CUDA_CHECK(cudaEventDestroy(s.end));
}

/* Waits until everything on the group's CUDA stream has ended, at most SETUP_MS. Returns ncclSuccess, or the
 * communicator's error. */
static ncclResult_t await_end(Comm *c, ncclResult_t result) {
    Nccl  *n = c->nccl;
    double begin = clock_ms();
    result = settle(c, result, PAUSE_US);
    CUDA_CHECK(cudaEventRecord(n->reached, queue_for(c)));
    while (result == ncclSuccess && !event_is_past(Event{n->reached})) {
        Inside       inside(c);
        ncclResult_t asked = ncclCommGetAsyncError(n->comm, &result);
        if (asked != ncclSuccess) result = asked;
        if (result == ncclSuccess && clock_ms() - begin > SETUP_MS) result = ncclInProgress;
        usleep(PAUSE_US);
        world_moved(c->world);
    }
    return result;
}

/* Runs a first collective, and if c->exchanges a first message between every two ranks. NCCL connects peers and
 * allocates their buffers then. So a fault appears at the start, and the program counts the free memory without these
 * buffers. NCCL allocates none later, while kernels of other groups wait for this rank. */
static void connect_peers(Comm *c) {
    int64_t half = LAYOUT_ALIGN * c->size;
    Tensor  both = tensor_1d(NULL, F32, 2 * half);
    CUDA_CHECK(cudaMalloc(&both.data, tensor_bytes(both)));
    CUDA_CHECK(cudaMemsetAsync(both.data, 0, tensor_bytes(both), queue_for(c)));
    Tensor       x = tensor_slice(both, 0, half), room = tensor_slice(both, half, half);
    CommMessage  of_pair = {c->rank == 0 ? EXCHANGE_SEND : EXCHANGE_RECEIVE, 1 - c->rank, x};
    ncclResult_t result = await_end(c, c->is_pair ? enqueue_messages(c, &of_pair, 1, queue_for(c))
                                                  : enqueue(c, OP_REDUCE_SCATTER, x));
    if (result == ncclSuccess && !c->is_pair) result = await_end(c, enqueue(c, OP_ALL_GATHER, x));
    if (result == ncclSuccess && c->exchanges && c->size > 1) {
        /* Each rank sends piece r of x to rank r and receives one piece from it, as the exchanges of a step do
         * later. */
        CommMessage *message =
            (CommMessage *)xmalloc(2 * sizeof *message * (size_t)c->size, "the first messages of a group");
        int          count = 0;
        for (int r = 0; r < c->size; r++) {
            if (r == c->rank) continue;
            message[count++] = {EXCHANGE_SEND, r, tensor_slice(x, r * LAYOUT_ALIGN, LAYOUT_ALIGN)};
            message[count++] = {EXCHANGE_RECEIVE, r, tensor_slice(room, r * LAYOUT_ALIGN, LAYOUT_ALIGN)};
        }
        result = await_end(c, enqueue_messages(c, message, count, queue_for(c)));
        free(message);
    }
    if (result != ncclSuccess) nccl_failed(c, "connecting the ranks", result, 0);
    CUDA_CHECK(cudaFree(both.data));
}

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)
const char *world_nccl(void) { return "NCCL " TEXT(NCCL_MAJOR) "." TEXT(NCCL_MINOR) "." TEXT(NCCL_PATCH); }

/* Returns how many multiprocessors NCCL's kernels of a group may hold: an eighth of all, at most NCCL_BLOCKS. Kernels
 * that run at the same time leave them free (device_leave_multiprocessors). Returns 0, so that NCCL decides, for inline
 * collectives, because no other kernel runs at the same time. */
int comm_library_blocks(CommKind kind, CommUse use) {
    int eighth = (int)larger_of(1, smaller_of(device_multiprocessors() / 8, NCCL_BLOCKS));
    if (kind != COMM_NCCL || use == COMM_FOR_INLINE) return 0;
    return comm_max_blocks(use == COMM_FOR_PAIR ? NCCL_PAIR_BLOCKS : eighth);
}

void nccl_open(Comm *c) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    CommUse      use = c->is_pair     ? COMM_FOR_PAIR
                       : c->exchanges ? COMM_FOR_MESSAGES
                       : c->is_inline ? COMM_FOR_INLINE
                                      : COMM_FOR_BUCKETS;
    int          blocks = comm_library_blocks(COMM_NCCL, use);
    config.blocking = 0;
    if (blocks) config.minCTAs = 1, config.maxCTAs = blocks;
    Nccl *n = c->nccl = (Nccl *)xcalloc(1, sizeof *n, "a communicator");
    n->joined = -1;
    /* Makes NCCL use its ring algorithm. The order of the additions then depends only on the machine's topology and the
     * length, which are the same in every run. Protocol and channels also depend only on these, because NCCL takes them
     * from a table and does not measure. Results of the algorithm NVLS depend on addresses (NVIDIA/nccl#2360). A user's
     * NCCL_ALGO takes precedence. */
    setenv("NCCL_ALGO", "Ring", 0);
    if (c->rank == 0) {
        ncclResult_t result = ncclGetUniqueId(&id);
        if (result != ncclSuccess) nccl_failed(c, "setting up", result, EXIT_NODEVICE);
    }
    comm_broadcast(c, &id, sizeof id, 0);
    ncclResult_t result = settle(c, ncclCommInitRankConfig(&n->comm, c->size, id, c->rank, &config), PAUSE_US);
    if (result != ncclSuccess) nccl_failed(c, "setting up", result, EXIT_NODEVICE);
    /* All groups share one CUDA stream. A pair has its own, because a message may wait for its peer while others
     * continue. */
    n->queue = (cudaStream_t)c->world->nccl_queue;
    if (!n->queue || c->is_pair) {
        int least, greatest;
        CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
        CUDA_CHECK(cudaStreamCreateWithPriority(&n->queue, cudaStreamNonBlocking, greatest));
        if (!c->is_pair) c->world->nccl_queue = n->queue;
    }
    CUDA_CHECK(cudaEventCreateWithFlags(&n->reached, cudaEventDisableTiming));
    for (int i = 0; i < TRACES; i++) interval_create(&n->collective[i].time), interval_create(&n->wait[i]);
    connect_peers(c);
}

void nccl_close(Comm *c) {
    Nccl *n = c->nccl;
    CUDA_CHECK(cudaStreamSynchronize(n->queue));
    /* adds up the times of all collectives, which have ended, so that none still counts as in flight */
    nccl_read_times(c);
    ncclResult_t result = settle(c, ncclCommFinalize(n->comm), PAUSE_US);
    if (__atomic_exchange_n(&n->abandoned, 1, __ATOMIC_SEQ_CST)) pause_for_ever();
    if (result == ncclSuccess) result = ncclCommDestroy(n->comm); /* after a failed or unfinished ncclCommFinalize the
                                                                   * communicator may be gone */
    if (result != ncclSuccess && result != ncclInProgress) nccl_failed(c, "closing", result, EXIT_PEER);
    for (int i = 0; i < TRACES; i++) interval_destroy(n->collective[i].time), interval_destroy(n->wait[i]);
    CUDA_CHECK(cudaEventDestroy(n->reached));
    if (n->received) device_free(n->received, n->received_bytes);
    if (c->is_pair) CUDA_CHECK(cudaStreamDestroy(n->queue));
    free(n);
    c->nccl = NULL;
}

void nccl_leave(World *w) {
    if (w->nccl_queue) CUDA_CHECK(cudaStreamDestroy((cudaStream_t)w->nccl_queue));
    w->nccl_queue = NULL;
}

/* --- collectives -------------------------------------------------------------------------------------------------- */

/* Adds y to x. Each thread adds one pack of 16 bytes. Bound by memory traffic: 12 bytes an element. */
KERNEL add_kernel(float *x, const float *y, int64_t n) {
    constexpr int W = pack_elems<float>();
    int64_t       i = pack_place<W, 1>(0);
    if (i >= n) return;
    Pack<float, W> sum = pack_load<float, W>(x + i), part = pack_load<float, W>(y + i);
    for (int k = 0; k < W; k++) sum.v[k] += part.v[k];
    pack_store(x + i, sum);
}

static void add_on_device(void *stream, float *x, const float *y, int64_t n) {
    enum { THREADS = 256 };
    LAUNCH(add_kernel, blocks_for(n, THREADS * pack_elems<float>()), THREADS, 0, (Stream *)stream, x, y, n);
}

void nccl_tree_open(Comm *c) {
    Nccl  *n = c->nccl;
    size_t bytes = comm_tree_bytes(COMM_NCCL, c->size, c->tree->leaves);
    if (n->received_bytes == bytes) return;
    if (n->received) device_free(n->received, n->received_bytes);
    n->received = (float *)device_alloc(n->received_bytes = bytes, "sums in the order of the tree");
}

/* Queues the messages of one chunk of a tree sum: elements [first, first + elems) of each rank's piece. Each rank sends
 * them from all its nodes (partial sums). Sets t->at to the addresses of this rank's own nodes and of the received
 * ones. */
static ncclResult_t enqueue_chunk(Comm *c, Tensor x, const Tensor *nodes, int64_t piece, int64_t first, int64_t elems) {
    Inside             inside(c);
    const Nccl        *n = c->nccl;
    const struct Tree *t = c->tree;
    const int64_t      most = NCCL_TREE_CHUNK_BYTES / (int64_t)sizeof(float);
    ncclResult_t       result = ncclGroupStart();
    for (int i = 0; i < t->parts && result == ncclSuccess; i++) {
        const TreePart *part = &t->part[i];
        int             is_own = part->rank == c->rank;
        t->at[i] = is_own ? ptr<float>(part->index < t->mine - 1 ? nodes[part->index] : x) + c->rank * piece + first
                          : n->received + i * most;
        if (!is_own)
            result = in_group(c, ncclRecv(t->at[i], (size_t)elems, ncclFloat32, part->rank, n->comm, n->queue));
    }
    for (int to = 0; to < c->size; to++)
        for (int k = 0; k < t->mine && to != c->rank && result == ncclSuccess; k++)
            result = in_group(c, ncclSend(ptr<float>(k < t->mine - 1 ? nodes[k] : x) + to * piece + first,
                                          (size_t)elems, ncclFloat32, to, n->comm, n->queue));
    ncclResult_t ended = ncclGroupEnd();
    return result == ncclSuccess ? ended : result;
}

/* Queues a sum in the order of TreeNodes on NCCL's stream, as tree.c computes it on the host. Each chunk is added
 * before the next is received. */
static ncclResult_t enqueue_tree_sum(Comm *c, Tensor x, const Tensor *nodes) {
    Nccl              *n = c->nccl;
    const struct Tree *t = c->tree;
    const int64_t      piece = x.dim[0] / c->size, most = NCCL_TREE_CHUNK_BYTES / (int64_t)sizeof(float);
    Stream             ours = *c->world->followed;
    ours.queue = n->queue;
    for (int64_t first = 0; first < piece; first += most) {
        int64_t elems = smaller_of(piece - first, most);
        float  *out = ptr<float>(x) + c->rank * piece + first;
        ncclResult_t result = enqueue_chunk(c, x, nodes, piece, first, elems);
        result = settle(c, result, 0);
        if (result != ncclSuccess) return result;
        float *sum = tree_fold(t, t->at, elems, add_on_device, &ours);
        if (sum != out)
            CUDA_CHECK(cudaMemcpyAsync(out, sum, (size_t)elems * sizeof(float), cudaMemcpyDeviceToDevice, n->queue));
    }
    return ncclSuccess;
}

/* Begins a collective on NCCL's stream, after the work that is queued on the compute stream so far. With where_before
 * it begins after the work that the group's last collective waited for. Returns its number. */
static int64_t begin(Comm *c, int64_t elems, int where_before) {
    Nccl *n = c->nccl;
    CHECK(c->world->followed, "NCCL works on device memory: world_follow() comes first");
    /* collectives of an open joined call have no end events yet, so their times cannot be read */
    if (n->started - n->read >= TRACES && n->joined < 0) nccl_read_times(c);
    if (n->started - n->read >= TRACES) n->read++; /* drops the time of the oldest collective, which nobody has read for
                                                    * TRACES collectives */
    int64_t     i = n->started++;
    Collective *one = &n->collective[i % TRACES];
    one->elems = elems, one->number = c->started, one->sequence = c->world->started;
    if (!c->is_inline && !where_before) {
        CUDA_CHECK(cudaEventRecord(n->reached, stream_queue(c->world->followed)));
        CUDA_CHECK(cudaStreamWaitEvent(n->queue, n->reached, 0));
    }
    CUDA_CHECK(cudaEventRecord(one->time.begin, queue_for(c)));
    return i;
}

/* Completes the start of collective i once its work is on the stream, when `result` is no longer "in progress". Records
 * its end event. */
static void end(Comm *c, int64_t i, ncclResult_t result) {
    char name[NAME_CHARS];
    if (result != ncclSuccess) nccl_failed(c, name_of(c, i, name), result, 0);
    CUDA_CHECK(cudaEventRecord(c->nccl->collective[i % TRACES].time.end, queue_for(c)));
    CommTrace *trace = world_trace_of(c->world, c->nccl->collective[i % TRACES].sequence);
    if (trace) trace->first_send_ms = clock_ms();
}

void nccl_join(Comm *c, GatherOrder order) {
    Inside       inside(c);
    ncclResult_t result = ncclGroupStart();
    if (result != ncclSuccess) nccl_failed(c, "a group of gathers", result, 0);
    c->nccl->joined = c->nccl->started;
    c->nccl->joined_before = order == GATHERS_BEHIND;
}

/* Ends the joined call of NCCL that nccl_join began. Its collectives are one kernel on the GPU and end together. */
void nccl_join_end(Comm *c) {
    ncclResult_t result;
    {
        Inside inside(c);
        result = ncclGroupEnd();
    }
    result = settle(c, result, 0);
    for (int64_t i = c->nccl->joined; i < c->nccl->started; i++) end(c, i, result);
    c->nccl->joined = -1;
}

void nccl_start(Comm *c, OpKind kind, Tensor x, const Tensor *nodes) {
    int     is_joined = c->nccl->joined >= 0;
    int64_t i = begin(c, tensor_elems(x), is_joined && c->nccl->joined_before);
    if (is_joined) {
        char         name[NAME_CHARS];
        ncclResult_t result = in_group(c, enqueue(c, kind, x));
        if (result != ncclSuccess) nccl_failed(c, name_of(c, i, name), result, 0);
        return;
    }
    end(c, i, kind == OP_TREE_SUM ? enqueue_tree_sum(c, x, nodes) : settle(c, enqueue(c, kind, x), 0));
}

void nccl_exchange(Comm *c, const CommMessage *message, int count) {
    int64_t elems = 0;
    for (int k = 0; k < count; k++) elems += tensor_elems(message[k].x);
    int64_t i = begin(c, elems, 0);
    end(c, i, settle(c, enqueue_messages(c, message, count, queue_for(c)), 0));
}

/* Checks the communicator for errors. Queries no event, because a poll may come while the compute stream is recorded
 * into a graph, which forbids queries. */
void nccl_poll(Comm *c) {
    Nccl        *n = c->nccl;
    ncclResult_t state;
    double       now = clock_ms();
    Inside       inside(c); /* constructed before the next return, because its constructor stops the main thread if NCCL
                             * has been aborted */
    if (now - n->polled_ms < POLL_EVERY_MS) return;
    n->polled_ms = now;
    ncclResult_t asked = ncclCommGetAsyncError(n->comm, &state);
    if (asked != ncclSuccess) state = asked;
    if (state == ncclSuccess || state == ncclInProgress) return;
    char    name[NAME_CHARS];
    int64_t i = n->read; /* number of the collective that the GPU works on: the first that has not ended */
    while (i < n->started - 1 && cudaEventQuery(n->collective[i % TRACES].time.end) == cudaSuccess) i++;
    nccl_failed(c, n->started == 0 ? "the communicator" : name_of(c, i, name), state, 0);
}

/* Makes the compute stream wait for the group's collectives with numbers up to `number`. Waiting for the last of them
 * is enough, because they follow each other on one stream. */
void nccl_wait(Comm *c, int64_t number) {
    Nccl   *n = c->nccl;
    /* last: number of collectives, counted from the first, to wait for; oldest: number of the oldest collective whose
     * events are not yet reused */
    int64_t last = n->started, oldest = n->started > TRACES ? n->started - TRACES : 0;
    while (last > n->finished && last > oldest + 1 && n->collective[(last - 1) % TRACES].number > number) last--;
    if (last == n->finished || c->is_inline) {
        n->finished = last;
        nccl_poll(c);
        return;
    }
    if (n->waits - n->waits_read == TRACES) nccl_read_times(c);
    if (n->waits - n->waits_read == TRACES) n->waits_read++;
    const Interval *wait = &n->wait[n->waits++ % TRACES];
    cudaStream_t followed = stream_queue(c->world->followed);
    CUDA_CHECK(cudaEventRecord(wait->begin, followed));
    CUDA_CHECK(cudaStreamWaitEvent(followed, n->collective[(last - 1) % TRACES].time.end, 0));
    CUDA_CHECK(cudaEventRecord(wait->end, followed));
    n->finished = last;
    nccl_poll(c);
}

/* --- times: without waiting --------------------------------------------------------------------------------------- */

static double interval_ms(Interval s) {
    float ms;
    CUDA_CHECK(cudaEventElapsedTime(&ms, s.begin, s.end));
    return ms;
}

/* Adds the times of ended collectives to c->times. They follow each other on one stream, so their times add up without
 * overlap. */
void nccl_read_times(Comm *c) {
    Nccl *n = c->nccl;
    for (; n->read < n->started; n->read++) {
        const Collective *one = &n->collective[n->read % TRACES];
        if (!event_is_past(Event{one->time.end})) break;
        double ms = interval_ms(one->time);
        c->times.comm_ms += ms;
        if (c->is_inline) c->times.exposed_ms += ms;
        CommTrace *trace = world_trace_of(c->world, one->sequence);
        if (trace) trace->end_ms = clock_ms();
    }
    for (; n->waits_read < n->waits; n->waits_read++) {
        Interval wait = n->wait[n->waits_read % TRACES];
        if (!event_is_past(Event{wait.end})) break;
        c->times.exposed_ms += interval_ms(wait);
    }
}
