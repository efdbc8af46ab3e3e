/* nccl.cpp - the calls of NCCL that comm/nccl.cu makes, over MPI, for a build that runs without GPUs. The prototypes are NVIDIA's.
 *
 * As strict as NCCL and a little more: every rank's call is compared with the others', buffers must be device memory, aligned and either
 * apart or in place as NCCL defines it. A non-blocking communicator answers "in progress" first, and nothing has happened before it is
 * asked again: whoever goes on without asking works with old bytes.
 *
 * EMU_NCCL_FAULT=setup: the communicator cannot be made; peer: a peer is lost after the third collective; order: rank 1's third is another; memory:
 * there is none left for the third; stuck: from the fourth on none comes to an end until the communicator is aborted; stuck-abort: nor does the
 * abort. The two by which the ranks are connected do not count.
 */
#include "queue.h"

#include <nccl.h>

#include <unistd.h>

#include <atomic>
#include <cstdarg>
#ifndef NO_MPI
#include <mpi.h>
#endif

struct ncclComm {
    int                           ranks, rank;
    bool                          blocking, finalized;
    ncclResult_t                  state;     /* as ncclCommGetAsyncError tells it */
    std::function<ncclResult_t()> pending;   /* what is in progress; runs when asked for */
    int64_t                       collectives;
    std::atomic<bool>             aborted;
#ifndef NO_MPI
    MPI_Comm    world;
    MPI_Request making;
#endif
};

namespace {

char last_error[256];

ncclResult_t wrong(ncclResult_t result, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
ncclResult_t wrong(ncclResult_t result, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(last_error, sizeof last_error, fmt, args);
    va_end(args);
    return result;
}

bool fault(const char *name) {
    const char *planted = getenv("EMU_NCCL_FAULT");
    return planted && strcmp(planted, name) == 0;
}

/* Now, or when a non-blocking communicator is asked. */
ncclResult_t later(ncclComm_t comm, std::function<ncclResult_t()> work) {
    if (comm->blocking) return comm->state = work();
    comm->pending = std::move(work);
    return comm->state = ncclInProgress;
}

/* A send or receive of a group. */
struct Message {
    bool              is_send;
    void             *device;
    std::vector<char> bytes;
    int               peer;
};

/* --- between ranks: one of them needs no MPI --------------------------------------------------------------------------------------- */

#ifdef NO_MPI
ncclResult_t world_make(ncclComm_t comm) { return comm->ranks == 1 ? ncclSuccess : wrong(ncclInvalidUsage, "this build has no MPI"); }
ncclResult_t world_made(ncclComm_t) { return ncclSuccess; }
void         world_free(ncclComm_t) {}
void         world_barrier(ncclComm_t) {}
void         world_gather(ncclComm_t, const void *mine, void *all, size_t bytes) { memcpy(all, mine, bytes); }
void         world_sum_pieces(ncclComm_t, const float *x, float *piece, size_t count) { memcpy(piece, x, count * sizeof(float)); }
void         world_exchange(ncclComm_t, std::vector<Message> &) {}
#else
ncclResult_t world_make(ncclComm_t comm) {
    int size = 1, rank = 0;
    if (comm->ranks == 1) return ncclSuccess;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (comm->ranks != size || comm->rank != rank) return wrong(ncclInvalidArgument, "rank %d of %d is not MPI's", comm->rank, comm->ranks);
    MPI_Comm_idup(MPI_COMM_WORLD, &comm->world, &comm->making);
    return ncclSuccess;
}
ncclResult_t world_made(ncclComm_t comm) {
    int done = 1;
    if (comm->ranks > 1) MPI_Test(&comm->making, &done, MPI_STATUS_IGNORE);
    return done ? ncclSuccess : ncclInProgress;
}
void world_free(ncclComm_t comm) {
    if (comm->ranks > 1) MPI_Comm_free(&comm->world);
}
void world_barrier(ncclComm_t comm) {
    if (comm->ranks > 1) MPI_Barrier(comm->world);
}
void world_gather(ncclComm_t comm, const void *mine, void *all, size_t bytes) {
    if (comm->ranks == 1) memcpy(all, mine, bytes);
    else MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, comm->world);
}
void world_sum_pieces(ncclComm_t comm, const float *x, float *piece, size_t count) {
    if (comm->ranks == 1) memcpy(piece, x, count * sizeof(float));
    else MPI_Reduce_scatter_block(x, piece, (int)count, MPI_FLOAT, MPI_SUM, comm->world);
}
/* All at once, as a group runs; the two sides of a message must agree on its length. */
void world_exchange(ncclComm_t comm, std::vector<Message> &messages) {
    std::vector<MPI_Request> request(messages.size());
    std::vector<MPI_Status>  status(messages.size());
    for (size_t i = 0; i < messages.size(); i++) {
        Message &m = messages[i];
        if (m.is_send) MPI_Isend(m.bytes.data(), (int)m.bytes.size(), MPI_BYTE, m.peer, 0, comm->world, &request[i]);
        else MPI_Irecv(m.bytes.data(), (int)m.bytes.size(), MPI_BYTE, m.peer, 0, comm->world, &request[i]);
    }
    int failed = MPI_Waitall((int)request.size(), request.data(), status.data()) != MPI_SUCCESS;
    for (size_t i = 0; i < messages.size(); i++) {
        int count = (int)messages[i].bytes.size();
        if (!messages[i].is_send && !failed) MPI_Get_count(&status[i], MPI_BYTE, &count);
        if (failed || count != (int)messages[i].bytes.size()) {
            fprintf(stderr, "emulated NCCL: rank %d expects %zu bytes of rank %d, and other bytes came\n", comm->rank, messages[i].bytes.size(), messages[i].peer);
            abort();
        }
    }
}
#endif

/* --- collectives ----------------------------------------------------------------------------------------------------------------- */

enum { REDUCE_SCATTER, ALL_GATHER, ALIGN = 16, CONNECTING = 2 };

struct Call {
    int64_t number, kind, count, type, op;
};

size_t type_bytes(ncclDataType_t type) { return type == ncclFloat32 ? 4 : type == ncclFloat16 || type == ncclBfloat16 ? 2 : 0; }

ncclResult_t check_buffer(const char *name, const void *p, size_t bytes) {
    const emu::Allocation *a = emu::find_allocation(p);
    if (!a) return wrong(ncclInvalidArgument, "%s %p is not memory of the GPU", name, p);
    if ((const char *)p + bytes > a->base + a->bytes)
        return wrong(ncclInvalidArgument, "%s: %zu bytes run past their allocation", name, bytes);
    if ((uintptr_t)p % ALIGN) return wrong(ncclInvalidArgument, "%s %p is not aligned to %d bytes", name, p, ALIGN);
    return ncclSuccess;
}

/* `whole` has a piece for every rank, `piece` is one: at its own place in it, or outside. */
ncclResult_t check_call(ncclComm_t comm, const char *name, const void *whole, const void *piece, size_t count, ncclDataType_t type) {
    size_t      bytes = count * type_bytes(type), all = bytes * (size_t)comm->ranks;
    const char *w = (const char *)whole, *p = (const char *)piece;
    if (comm->state != ncclSuccess) return wrong(ncclInvalidUsage, "%s while the communicator is in state %d", name, (int)comm->state);
    if (type_bytes(type) == 0) return wrong(ncclInvalidArgument, "%s: type %d is not emulated", name, (int)type);
    if (count == 0) return ncclSuccess;
    if (ncclResult_t result = check_buffer(name, whole, all)) return result;
    if (ncclResult_t result = check_buffer(name, piece, bytes)) return result;
    if (p < w + all && w < p + bytes && p != w + bytes * (size_t)comm->rank)
        return wrong(ncclInvalidArgument, "%s in place: the piece of rank %d is not at its place", name, comm->rank);
    return ncclSuccess;
}

/* A GPU would hang, or compute nonsense. */
ncclResult_t compare_calls(ncclComm_t comm, Call mine) {
    std::vector<Call> all((size_t)comm->ranks);
    if (fault("order") && comm->rank == 1 && mine.number == CONNECTING + 2) mine.count++;
    world_gather(comm, &mine, all.data(), sizeof mine);
    for (int r = 1; r < comm->ranks; r++)
        if (memcmp(&all[(size_t)r], &all[0], sizeof mine) != 0)
            return wrong(ncclInvalidUsage, "collective %lld: rank %d calls another (kind %lld, %lld elements, type %lld) than rank 0 "
                         "(%lld, %lld, %lld)", (long long)mine.number, r, (long long)all[(size_t)r].kind, (long long)all[(size_t)r].count,
                         (long long)all[(size_t)r].type, (long long)all[0].kind, (long long)all[0].count, (long long)all[0].type);
    return ncclSuccess;
}

/* Between ranks by way of host memory: MPI's shared memory knows nothing of closed device memory. */
void move(ncclComm_t comm, Call call, const void *from, void *to) {
    size_t            ranks = (size_t)comm->ranks, bytes = (size_t)call.count * type_bytes((ncclDataType_t)call.type);
    size_t            read = call.kind == ALL_GATHER ? bytes : bytes * ranks, written = call.kind == ALL_GATHER ? bytes * ranks : bytes;
    std::vector<char> in(read), out(written);
    cudaMemcpy(in.data(), from, read, cudaMemcpyDeviceToHost);
    if (call.kind == ALL_GATHER) world_gather(comm, in.data(), out.data(), bytes);
    else world_sum_pieces(comm, (const float *)(const void *)in.data(), (float *)(void *)out.data(), (size_t)call.count);
    cudaMemcpy(to, out.data(), written, cudaMemcpyHostToDevice);
}

ncclResult_t collective(ncclComm_t comm, Call call, const void *from, void *to, cudaStream_t stream) {
    call.number = comm->collectives++;
    return later(comm, [=] {
        if (fault("peer") && call.number >= CONNECTING + 3) return wrong(ncclRemoteError, "planted");
        if (fault("memory") && call.number >= CONNECTING + 2) return wrong(ncclUnhandledCudaError, "Failed to CUDA malloc 9633792 bytes");
        if ((fault("stuck") || fault("stuck-abort")) && call.number >= CONNECTING + 3) {
            while (!comm->aborted) usleep(1000);
            return wrong(ncclRemoteError, "aborted");
        }
        if (ncclResult_t result = compare_calls(comm, call)) return result;
        return emu::enqueue(stream, [=] { move(comm, call, from, to); }) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
    });
}

/* --- groups of sends and receives: nothing happens before the group ends ------------------------------------------------------------ */

struct Group {
    bool                 open = false;
    ncclComm_t           comm = nullptr;
    cudaStream_t         stream = nullptr;
    std::vector<Message> messages;
} group;

ncclResult_t add_message(const char *name, bool is_send, void *at, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    size_t bytes = count * type_bytes(type);
    if (!group.open) return wrong(ncclInvalidUsage, "%s outside a group is not emulated", name);
    if (comm->state != ncclSuccess) return wrong(ncclInvalidUsage, "%s while the communicator is in state %d", name, (int)comm->state);
    if (peer < 0 || peer >= comm->ranks || peer == comm->rank) return wrong(ncclInvalidArgument, "%s: rank %d of %d", name, peer, comm->ranks);
    if (bytes == 0) return wrong(ncclInvalidArgument, "%s of nothing", name);
    if (ncclResult_t result = check_buffer(name, at, bytes)) return result;
    if (!group.messages.empty() && (group.comm != comm || group.stream != stream)) return wrong(ncclInvalidUsage, "%s: one group, two streams", name);
    group.comm = comm, group.stream = stream;
    group.messages.push_back({is_send, at, std::vector<char>(bytes), peer});
    return ncclSuccess;
}

void exchange(Group g) {
    for (Message &m : g.messages)
        if (m.is_send) cudaMemcpy(m.bytes.data(), m.device, m.bytes.size(), cudaMemcpyDeviceToHost);
    world_exchange(g.comm, g.messages);
    for (Message &m : g.messages)
        if (!m.is_send) cudaMemcpy(m.device, m.bytes.data(), m.bytes.size(), cudaMemcpyHostToDevice);
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int *version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}
const char *ncclGetErrorString(ncclResult_t result) {
    static const char *const names[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error",
                                        "invalid argument", "invalid usage", "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return result < ncclNumResults ? names[result] : "unknown result code";
}
const char *ncclGetLastError(ncclComm_t) { return last_error; }

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    std::random_device random;
    for (char &c : id->internal) c = (char)random();
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config) {
    const ncclConfig_t plain = NCCL_CONFIG_INITIALIZER;
    if (!comm || rank < 0 || rank >= nranks) return wrong(ncclInvalidArgument, "rank %d of %d", rank, nranks);
    if (config && (config->magic != plain.magic || config->size != plain.size))
        return wrong(ncclInvalidArgument, "the config is not initialised");
    ncclComm_t made = *comm = new ncclComm{};
    made->ranks = nranks, made->rank = rank;
    made->blocking = !config || config->blocking != 0;
    if (fault("setup")) return later(made, [] { return wrong(ncclSystemError, "planted"); });
    if (ncclResult_t result = world_make(made)) return made->state = result;
    ncclResult_t result = later(made, [made, id] {
        if (world_made(made) == ncclInProgress) return ncclInProgress;
        std::vector<ncclUniqueId> all((size_t)made->ranks);
        world_gather(made, &id, all.data(), sizeof id);
        for (const ncclUniqueId &other : all)
            if (memcmp(&other, &id, sizeof id) != 0) return wrong(ncclInvalidUsage, "ranks came with different ids");
        return ncclSuccess;
    });
    while (made->blocking && result == ncclInProgress) result = made->state = made->pending();
    return result;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state) {
    if (comm->state == ncclInProgress && comm->pending) comm->state = comm->pending();
    if (comm->state != ncclInProgress) comm->pending = nullptr;
    *state = comm->state;
    return ncclSuccess;
}

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
    if (ncclResult_t result = check_call(comm, "reduce-scatter", from, to, count, type)) return result;
    if (type != ncclFloat32 || op != ncclSum) return wrong(ncclInvalidArgument, "reduce-scatter: only sums of float are emulated");
    return collective(comm, {0, REDUCE_SCATTER, (int64_t)count, type, op}, from, to, stream);
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
    if (ncclResult_t result = check_call(comm, "all-gather", to, from, count, type)) return result;
    return collective(comm, {0, ALL_GATHER, (int64_t)count, type, 0}, from, to, stream);
}

ncclResult_t ncclGroupStart() {
    if (group.open) return wrong(ncclInvalidUsage, "a group in a group is not emulated");
    group = {};
    group.open = true;
    return ncclSuccess;
}
ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return add_message("send", true, const_cast<void *>(from), count, type, peer, comm, stream);
}
ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return add_message("receive", false, to, count, type, peer, comm, stream);
}
ncclResult_t ncclGroupEnd() {
    if (!group.open) return wrong(ncclInvalidUsage, "a group ends that none has begun");
    Group g = std::move(group);
    group = {};
    if (!g.comm) return ncclSuccess;
    int64_t number = g.comm->collectives++;
    return later(g.comm, [=] {
        if (fault("peer") && number >= 3) return wrong(ncclRemoteError, "planted");
        return emu::enqueue(g.stream, [=] { exchange(g); }) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
    });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    if (comm->state != ncclSuccess || comm->finalized) return wrong(ncclInvalidUsage, "finalize in state %d", (int)comm->state);
    comm->finalized = true;
    return later(comm, [=] {
        world_barrier(comm);
        return ncclSuccess;
    });
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    if (!comm->finalized || comm->state != ncclSuccess) return wrong(ncclInvalidUsage, "destroy before finalize is done");
    world_free(comm);
    delete comm;
    return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) { /* frees nothing: the process is about to end; another thread still reads it */
    while (fault("stuck-abort")) usleep(1000);
    comm->aborted = true;
    return ncclSuccess;
}
}
