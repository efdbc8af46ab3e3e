/* nccl.cpp - the calls of NCCL that comm/nccl.cu makes, over MPI, for a build that runs without GPUs. The prototypes are NVIDIA's.
 *
 * The rules are those of NCCL and a few more. Each rank's call is compared with the calls of the other ranks. Buffers
 * must be aligned device memory (messages: aligned to their elements), and either apart or in place as NCCL defines it.
 * A non-blocking communicator answers "in progress" first, and does nothing before its state is asked for. A caller
 * that does not ask computes with old bytes. On its stream a collective reads this rank's bytes when the stream reaches
 * it, and ends when the bytes of all ranks have arrived. A send ends when its receiver has begun to receive.
 *
 * Neighbours are connected at the first collective, and two ranks at the first message between them. Connecting takes
 * memory of the GPU. It is refused while other work of NCCL is in flight, because it could wait for that work for ever.
 * The first message between two ranks is also refused once a step has begun, because the memory plan must have counted
 * its buffers before. A kernel of NCCL holds config.maxCTAs multiprocessors, or all of them if that is not set. After
 * an abort the communicator is freed: no call may name it.
 *
 * EMU_NCCL_FAULT, where the two collectives that connect the ranks do not count:
 *   setup        the communicator cannot be made
 *   peer         a peer is lost after the third collective
 *   order        rank 1's third collective is another one
 *   memory       the third collective finds no memory
 *   stuck        from the fourth on, no collective ends until the communicator is aborted
 *   stuck-abort  nor does the abort end
 *   spin         from the fourth on, collectives are called but their kernels do not end until the communicator is aborted
 *   in-group     calls inside a group answer that they are in progress, and do nothing
 */
#include "nccl_ranks.h"

#include <unistd.h>

namespace {

enum { CHANNELS = 32 };

bool fault(const char *name) {
    const char *planted = getenv("EMU_NCCL_FAULT");
    return planted && strcmp(planted, name) == 0;
}

/* Refuses a call that names a communicator after its abort. */
void check_alive(ncclComm_t comm, const char *call) {
    if (comm && comm->aborted) emu::fail("%s of a communicator that was aborted: NCCL has freed it", call);
}

int  in_flight; /* collectives and groups of messages of this process that were called and have not ended */
/* true if NCCL was called after the last communicator was created; calls that only connect the ranks do not count */
bool at_work;

/* Queues work of NCCL on a stream. From then on the stream holds the multiprocessors of NCCL's kernels, unless the work
 * only connects the ranks. */
cudaError_t enqueue_library(ncclComm_t comm, cudaStream_t stream, bool connects, std::function<bool()> work) {
    at_work |= !connects;
    if (stream && !connects) stream->library_blocks = std::max(stream->library_blocks, comm->blocks);
    in_flight++;
    return emu::enqueue_waiting(stream, [work] {
        bool has_ended = work();
        if (has_ended) in_flight--;
        return has_ended;
    });
}

/* Takes GPU memory for the buffers of a connection: bytes_of_channel for each channel. NCCL has buffers of 4 MiB, 4.7
 * MiB and 0.5 MiB for its three protocols, for one direction or for both. */
ncclResult_t connect(ncclComm_t comm, size_t bytes_of_channel, const char *what) {
    const int channels = comm->blocks < CHANNELS ? comm->blocks : CHANNELS;
    if (comm->ranks == 1) return ncclSuccess;
    if (in_flight > 0) return wrong(ncclInternalError, "%s takes memory while %d collectives are in flight: it may wait for them for ever", what, in_flight);
    if (!emu::take_library_bytes(bytes_of_channel * (size_t)channels))
        return wrong(ncclUnhandledCudaError, "Failed to CUDA malloc %zu bytes", bytes_of_channel * (size_t)channels);
    comm->library_bytes += bytes_of_channel * (size_t)channels;
    return ncclSuccess;
}
ncclResult_t connect_ring(ncclComm_t comm) {
    ncclResult_t result = comm->has_ring ? ncclSuccess : connect(comm, 2 * 9633792, "the first collective");
    comm->has_ring |= result == ncclSuccess;
    return result;
}
ncclResult_t connect_peer(ncclComm_t comm, int peer) {
    if (!comm->has_peer[(size_t)peer] && at_work)
        return wrong(ncclInternalError, "the first message to rank %d takes memory after the start", peer);
    ncclResult_t result = comm->has_peer[(size_t)peer] ? ncclSuccess : connect(comm, 12 << 20, "the first message between two ranks");
    if (result == ncclSuccess) comm->has_peer[(size_t)peer] = true;
    return result;
}

/* Does the work of a call of NCCL. On a blocking communicator it is done now. On a non-blocking one it is done when
 * ncclCommGetAsyncError asks for the state. If work() returns ncclInProgress, it is called again. */
ncclResult_t later(ncclComm_t comm, std::function<ncclResult_t()> work) {
    comm->pending = std::move(work);
    comm->state = ncclInProgress;
    while (comm->blocking && comm->state == ncclInProgress) {
        emu::device_step();
        comm->state = comm->pending();
    }
    return comm->state;
}

/* --- groups: nothing happens before the group ends ---------------------------------------------------------------- */

struct Group {
    bool                 open = false;
    ncclComm_t           comm = nullptr;
    cudaStream_t         stream = nullptr;
    std::vector<Message> messages; /* messages of the group, which all run at once */
    std::vector<std::function<ncclResult_t()>> collectives; /* collectives of the group, which run one after another */
} group;

ncclResult_t join_group(const char *name, ncclComm_t comm, cudaStream_t stream) {
    if (group.comm && (group.comm != comm || group.stream != stream)) return wrong(ncclInvalidUsage, "%s: one group, two streams", name);
    group.comm = comm, group.stream = stream;
    return ncclSuccess;
}

/* --- collectives -------------------------------------------------------------------------------------------------- */

enum { REDUCE_SCATTER, ALL_GATHER, ALL_REDUCE, ALIGN = 16, CONNECTING = 2 };

struct Call {
    int64_t number, kind, count, type, op;
};

size_t type_bytes(ncclDataType_t type) { return type == ncclFloat32 ? 4 : type == ncclFloat16 || type == ncclBfloat16 ? 2 : 0; }

ncclResult_t check_buffer(const char *name, const void *p, size_t bytes, size_t align = ALIGN) {
    const emu::Allocation *a = emu::find_allocation(p);
    if (!a) return wrong(ncclInvalidArgument, "%s %p is not memory of the GPU", name, p);
    if ((const char *)p + bytes > a->base + a->bytes)
        return wrong(ncclInvalidArgument, "%s: %zu bytes run past their allocation", name, bytes);
    if ((uintptr_t)p % align) return wrong(ncclInvalidArgument, "%s %p is not aligned to %zu bytes", name, p, align);
    return ncclSuccess;
}

/* Checks the buffers of a collective. `whole` has a part of `count` elements for every rank. `piece` is this rank's own
 * part inside `whole`, or lies outside of `whole`. */
ncclResult_t check_call(ncclComm_t comm, const char *name, const void *whole, const void *piece, size_t count, ncclDataType_t type) {
    check_alive(comm, name);
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

/* Compares the calls of all ranks; g holds this rank's call. A GPU whose ranks make different calls would hang or
 * compute nonsense. */
ncclResult_t compare_calls(ncclComm_t comm, Gather &g) {
    if (!gathered(comm, g, true)) return ncclInProgress;
    std::vector<Call> all((size_t)comm->ranks);
    memcpy(all.data(), g.all.data(), g.all.size());
    for (int r = 1; r < comm->ranks; r++)
        if (memcmp(&all[(size_t)r], &all[0], sizeof all[0]) != 0)
            return wrong(ncclInvalidUsage, "collective %lld: rank %d calls another (kind %lld, %lld elements, type %lld) than rank 0 "
                         "(%lld, %lld, %lld)", (long long)all[0].number, r, (long long)all[(size_t)r].kind, (long long)all[(size_t)r].count,
                         (long long)all[(size_t)r].type, (long long)all[0].kind, (long long)all[0].count, (long long)all[0].type);
    return ncclSuccess;
}

template <typename T> std::vector<char> bytes_of(const T &x) { return {(const char *)(const void *)&x, (const char *)(const void *)(&x + 1)}; }

template <typename T> void add_rounded(char *sum, const char *x, size_t count) {
    for (size_t i = 0; i < count; i++) ((T *)(void *)sum)[i] = (T)((float)((T *)(void *)sum)[i] + (float)((const T *)(const void *)x)[i]);
}

void take_larger(char *most, const char *x, size_t count) {
    for (size_t i = 0; i < count; i++) {
        float &a = ((float *)(void *)most)[i], b = ((const float *)(const void *)x)[i];
        if (b > a || b != b) a = b;
    }
}

/* Returns elements [first, first + count) of the sum, or maximum, of the ranks' arrays, in the order of ranks, rounded
 * at each addition. */
std::vector<char> join_in_order(const Gather &g, int ranks, size_t first, size_t count, ncclDataType_t type, bool is_max) {
    size_t            wide = type_bytes(type), one = g.mine.size();
    std::vector<char> out(g.all.data() + first * wide, g.all.data() + (first + count) * wide);
    for (int r = 1; r < ranks; r++) {
        const char *from = g.all.data() + (size_t)r * one + first * wide;
        if (is_max) take_larger(out.data(), from, count);
        else if (type == ncclFloat32) add_rounded<float>(out.data(), from, count);
        else if (type == ncclBfloat16) add_rounded<__nv_bfloat16>(out.data(), from, count);
        else add_rounded<__half>(out.data(), from, count);
    }
    return out;
}

/* Does a collective's work on the stream. Data go through host memory, because ASan keeps MPI from reading device
 * memory. Returns false while some ranks have not arrived. */
bool move(ncclComm_t comm, Call call, const void *from, void *to, Gather &g) {
    ncclDataType_t type = (ncclDataType_t)call.type;
    size_t         count = (size_t)call.count, one = count * type_bytes(type);
    if (!g.begun) {
        g.mine.resize(call.kind == REDUCE_SCATTER ? one * (size_t)comm->ranks : one);
        emu::copy_now(g.mine.data(), from, g.mine.size());
    }
    if (!gathered(comm, g, false)) return false;
    if (call.kind != ALL_GATHER) g.all = join_in_order(g, comm->ranks, call.kind == ALL_REDUCE ? 0 : count * (size_t)comm->rank, count, type, call.op == ncclMax);
    emu::copy_now(to, g.all.data(), g.all.size());
    return true;
}

ncclResult_t collective(ncclComm_t comm, Call call, const void *from, void *to, cudaStream_t stream) {
    call.number = comm->collectives++;
    if (fault("order") && comm->rank == 1 && call.number == CONNECTING + 2) call.count++;
    auto calls = std::make_shared<Gather>(), data = std::make_shared<Gather>();
    calls->mine = bytes_of(call);
    auto work = [=]() -> ncclResult_t {
        if (fault("peer") && call.number >= CONNECTING + 3) return wrong(ncclRemoteError, "planted");
        if (fault("memory") && call.number >= CONNECTING + 2) return wrong(ncclUnhandledCudaError, "Failed to CUDA malloc 9633792 bytes");
        if ((fault("stuck") || fault("stuck-abort")) && call.number >= CONNECTING + 3) {
            while (!comm->aborted) usleep(1000);
            return wrong(ncclRemoteError, "aborted");
        }
        if (ncclResult_t result = compare_calls(comm, *calls)) return result;
        if (ncclResult_t result = connect_ring(comm)) return result;
        bool spins = fault("spin") && call.number >= CONNECTING + 3;
        return enqueue_library(comm, stream, call.number < CONNECTING, [=] { return spins ? comm->aborted.load() : move(comm, call, from, to, *data); }) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
    };
    if (!group.open) return later(comm, work);
    if (fault("in-group")) return ncclInProgress;
    if (ncclResult_t result = join_group("collective", comm, stream)) return result;
    group.collectives.push_back(work);
    return ncclSuccess;
}

/* --- sends and receives --------------------------------------------------------------------------------------------- */

ncclResult_t add_message(const char *name, bool is_send, void *at, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    size_t bytes = count * type_bytes(type);
    check_alive(comm, name);
    if (!group.open) return wrong(ncclInvalidUsage, "%s outside a group is not emulated", name);
    if (comm->state != ncclSuccess) return wrong(ncclInvalidUsage, "%s while the communicator is in state %d", name, (int)comm->state);
    if (peer < 0 || peer >= comm->ranks || peer == comm->rank) return wrong(ncclInvalidArgument, "%s: rank %d of %d", name, peer, comm->ranks);
    if (bytes == 0) return wrong(ncclInvalidArgument, "%s of nothing", name);
    if (ncclResult_t result = check_buffer(name, at, bytes, type_bytes(type))) return result;
    if (fault("in-group")) return ncclInProgress;
    if (ncclResult_t result = join_group(name, comm, stream)) return result;
    group.messages.push_back({is_send, at, std::vector<char>(bytes), peer});
    return ncclSuccess;
}

/* Exchanges the messages of a group on the stream. Returns false while some messages have not arrived. */
bool exchange(ncclComm_t comm, Exchange &e) {
    for (Message &m : e.messages)
        if (m.is_send && !e.begun) emu::copy_now(m.bytes.data(), m.device, m.bytes.size());
    if (!exchanged(comm, e)) return false;
    for (Message &m : e.messages)
        if (!m.is_send) emu::copy_now(m.device, m.bytes.data(), m.bytes.size());
    return true;
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
    world_name(id);
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
    made->blocks = config && config->maxCTAs != NCCL_CONFIG_UNDEF_INT ? config->maxCTAs : CHANNELS;
    made->has_peer.assign((size_t)nranks, false);
    at_work = false;
    if (config && config->minCTAs != NCCL_CONFIG_UNDEF_INT && config->minCTAs > made->blocks)
        return wrong(ncclInvalidArgument, "minCTAs %d, maxCTAs %d", config->minCTAs, made->blocks);
    if (fault("setup")) return later(made, [] { return wrong(ncclSystemError, "planted"); });
    if (ncclResult_t result = world_make(made, id)) return made->state = result;
    auto ids = std::make_shared<Gather>();
    ids->mine = bytes_of(id);
    return later(made, [made, ids] {
        if (!ids->begun)
            if (ncclResult_t result = world_made(made)) return result;
        if (!gathered(made, *ids, true)) return ncclInProgress;
        for (int r = 1; r < made->ranks; r++)
            if (memcmp(&ids->all[ids->mine.size() * (size_t)r], ids->mine.data(), ids->mine.size()) != 0)
                return wrong(ncclInvalidUsage, "ranks came with different ids");
        return ncclSuccess;
    });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state) {
    check_alive(comm, "ncclCommGetAsyncError");
    emu::device_step();
    if (comm->state == ncclInProgress && comm->pending) comm->state = comm->pending();
    if (comm->state != ncclInProgress) comm->pending = nullptr;
    *state = comm->state;
    return ncclSuccess;
}

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
    if (ncclResult_t result = check_call(comm, "reduce-scatter", from, to, count, type)) return result;
    if (op != ncclSum) return wrong(ncclInvalidArgument, "reduce-scatter: only sums are emulated");
    return collective(comm, {0, REDUCE_SCATTER, (int64_t)count, type, op}, from, to, stream);
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    size_t bytes = count * type_bytes(type);
    check_alive(comm, "all-reduce");
    if (comm->state != ncclSuccess) return wrong(ncclInvalidUsage, "all-reduce while the communicator is in state %d", (int)comm->state);
    if (bytes == 0 && count > 0) return wrong(ncclInvalidArgument, "all-reduce: type %d is not emulated", (int)type);
    if (op != ncclSum && (op != ncclMax || type != ncclFloat32)) return wrong(ncclInvalidArgument, "all-reduce: only sums, and maxima of f32, are emulated");
    if (count > 0)
        if (ncclResult_t result = check_buffer("all-reduce", from, bytes)) return result;
    if (count > 0)
        if (ncclResult_t result = check_buffer("all-reduce", to, bytes)) return result;
    if (from != to && (const char *)from < (char *)to + bytes && (char *)to < (const char *)from + bytes)
        return wrong(ncclInvalidArgument, "all-reduce: neither in place nor apart");
    return collective(comm, {0, ALL_REDUCE, (int64_t)count, type, op}, from, to, stream);
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
    ncclComm_t comm = g.comm;
    if (!g.collectives.empty()) {
        if (!g.messages.empty()) return wrong(ncclInvalidUsage, "collectives and messages in one group are not emulated");
        auto left = std::make_shared<std::deque<std::function<ncclResult_t()>>>(g.collectives.begin(), g.collectives.end());
        return later(comm, [left] {
            for (; !left->empty(); left->pop_front())
                if (ncclResult_t result = left->front()()) return result;
            return ncclSuccess;
        });
    }
    int64_t    number = comm->groups++;
    auto       e = std::make_shared<Exchange>();
    e->messages = std::move(g.messages);
    return later(comm, [=] {
        if (fault("peer") && number >= 3) return wrong(ncclRemoteError, "planted");
        for (const Message &m : e->messages)
            if (ncclResult_t result = connect_peer(comm, m.peer)) return result;
        emu::library_messages++;
        auto work = [=] {
            bool has_ended = exchange(comm, *e);
            if (has_ended) emu::library_messages--;
            return has_ended;
        };
        return enqueue_library(comm, g.stream, number == 0, work) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
    });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    check_alive(comm, "ncclCommFinalize");
    if (comm->state != ncclSuccess || comm->finalized) return wrong(ncclInvalidUsage, "finalize in state %d", (int)comm->state);
    comm->finalized = true;
    auto all = std::make_shared<Gather>();
    all->mine.resize(1);
    return later(comm, [=] { return gathered(comm, *all, true) ? ncclSuccess : ncclInProgress; });
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    check_alive(comm, "ncclCommDestroy");
    if (!comm->finalized || comm->state != ncclSuccess) return wrong(ncclInvalidUsage, "destroy before finalize is done");
    world_free(comm);
    emu::give_library_bytes(comm->library_bytes);
    delete comm;
    return ncclSuccess;
}
/* NCCL frees the communicator here. The emulator keeps its memory, so that later calls can be detected. */
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    check_alive(comm, "ncclCommAbort");
    while (fault("stuck-abort")) usleep(1000);
    comm->aborted = true;
    /* the process lives on for a while, as when a real abort waits for kernels */
    if (fault("spin")) usleep(300000);
    return ncclSuccess;
}

/* --- MPI in the host's program: while it waits there, the device works on ------------------------------------------------------------ */

#ifndef NO_MPI
int MPI_Test(MPI_Request *request, int *done, MPI_Status *status) {
    emu::device_step();
    return PMPI_Test(request, done, status);
}
int MPI_Testall(int count, MPI_Request *requests, int *done, MPI_Status *statuses) {
    emu::device_step();
    return PMPI_Testall(count, requests, done, statuses);
}
#endif
}
