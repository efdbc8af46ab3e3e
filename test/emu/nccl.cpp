/* nccl.cpp - the calls of NCCL that comm/nccl.cu makes, over MPI, for a build that runs without GPUs. The prototypes are NVIDIA's.
 *
 * As strict as NCCL and a little more: every rank's call is compared with the others', buffers must be device memory, aligned (messages:
 * as their elements are) and either apart or in place as NCCL defines it. A non-blocking communicator answers "in progress" first, and nothing has happened before it is
 * asked again: whoever goes on without asking works with old bytes. On its stream a collective takes this rank's bytes when the stream comes to
 * it and ends when all ranks' have come; a send ends when its receiver has begun to receive.
 *
 * The ranks of a communicator meet by its id: that names the MPI rank which made it, and a tag. Each sends that rank its place; the answer is the
 * list of all. So groups of any ranks are made, several apart at once.
 *
 * EMU_NCCL_FAULT, where the two collectives that connect the ranks do not count:
 *   setup        the communicator cannot be made
 *   peer         a peer is lost after the third collective
 *   order        rank 1's third collective is another one
 *   memory       the third collective finds no memory
 *   stuck        from the fourth on, no collective ends until the communicator is aborted
 *   stuck-abort  nor does the abort end
 */
#include "streams.h"

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
    ncclResult_t                  state;     /* as ncclCommGetAsyncError returns it */
    std::function<ncclResult_t()> pending;   /* the operation in progress; runs when asked for */
    int64_t                       collectives;
    std::atomic<bool>             aborted;
#ifndef NO_MPI
    MPI_Comm                      world;     /* of its ranks, for the data                         */
    MPI_Comm                      calls;     /* the same, for comparing calls                      */
    int                           leader, tag, mine[2];
    bool                          answered;
    std::vector<int>              came, list; /* of the leader: (rank, MPI's rank) each; MPI's ranks */
    std::vector<MPI_Request>      meeting;
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

/* Now, or when a non-blocking communicator is asked. work() may answer that it is in progress: it is called again. */
ncclResult_t later(ncclComm_t comm, std::function<ncclResult_t()> work) {
    comm->pending = std::move(work);
    comm->state = ncclInProgress;
    while (comm->blocking && comm->state == ncclInProgress) {
        emu::device_step();
        comm->state = comm->pending();
    }
    return comm->state;
}

/* A send or receive of a group. */
struct Message {
    bool              is_send;
    void             *device;
    std::vector<char> bytes;
    int               peer;
};

/* --- between ranks: one of them needs no MPI ---------------------------------------------------------------------- */

/* A gathering of all ranks' bytes, begun by the first call of gathered(). */
struct Gather {
    std::vector<char> mine, all;
    bool              begun = false;
#ifndef NO_MPI
    MPI_Request       request;
#endif
};
/* The messages of a group, begun by the first call of exchanged(). */
struct Exchange {
    std::vector<Message> messages;
    bool                 begun = false;
#ifndef NO_MPI
    std::vector<MPI_Request> request;
#endif
};

#ifdef NO_MPI
void         world_name(ncclUniqueId *) {}
ncclResult_t world_make(ncclComm_t comm, ncclUniqueId) { return comm->ranks == 1 ? ncclSuccess : wrong(ncclInvalidUsage, "this build has no MPI"); }
ncclResult_t world_made(ncclComm_t) { return ncclSuccess; }
void         world_free(ncclComm_t) {}
bool         gathered(ncclComm_t, Gather &g, bool) { return g.all = g.mine, true; }
bool         exchanged(ncclComm_t, Exchange &) { return true; }
#else
struct Name { int leader, tag; }; /* the beginning of an id */
enum { FIRST_TAG = 1000, TAGS = 10000 };

void world_name(ncclUniqueId *id) {
    static int made;
    int        here = 0;
    Name       name = {0, FIRST_TAG + made++ % TAGS * 2};
    MPI_Initialized(&here);
    if (here) MPI_Comm_rank(MPI_COMM_WORLD, &name.leader);
    memcpy(id->internal, &name, sizeof name);
}

ncclResult_t world_make(ncclComm_t comm, ncclUniqueId id) {
    Name name;
    memcpy(&name, id.internal, sizeof name);
    comm->leader = name.leader, comm->tag = name.tag, comm->mine[0] = comm->rank;
    if (comm->ranks == 1) return ncclSuccess;
    MPI_Comm_rank(MPI_COMM_WORLD, &comm->mine[1]);
    comm->list.assign((size_t)comm->ranks, -1);
    if (comm->mine[1] != comm->leader) {
        comm->answered = true;
        comm->meeting.resize(2);
        MPI_Isend(comm->mine, 2, MPI_INT, comm->leader, comm->tag, MPI_COMM_WORLD, &comm->meeting[0]);
        MPI_Irecv(comm->list.data(), comm->ranks, MPI_INT, comm->leader, comm->tag + 1, MPI_COMM_WORLD, &comm->meeting[1]);
        return ncclSuccess;
    }
    comm->came.resize(2 * (size_t)comm->ranks);
    comm->meeting.resize((size_t)comm->ranks - 1);
    for (size_t i = 0; i < comm->meeting.size(); i++)
        MPI_Irecv(&comm->came[2 * i], 2, MPI_INT, MPI_ANY_SOURCE, comm->tag, MPI_COMM_WORLD, &comm->meeting[i]);
    return ncclSuccess;
}

/* The leader, once all have come. */
ncclResult_t answer(ncclComm_t comm) {
    comm->answered = true;
    memcpy(&comm->came[2 * comm->meeting.size()], comm->mine, sizeof comm->mine);
    for (size_t i = 0; i <= comm->meeting.size(); i++) {
        int rank = comm->came[2 * i];
        if (rank < 0 || rank >= comm->ranks || comm->list[(size_t)rank] >= 0) return wrong(ncclInvalidUsage, "two ranks come as rank %d", rank);
        comm->list[(size_t)rank] = comm->came[2 * i + 1];
    }
    comm->meeting.clear();
    for (int other : comm->list) {
        if (other == comm->leader) continue;
        comm->meeting.emplace_back();
        MPI_Isend(comm->list.data(), comm->ranks, MPI_INT, other, comm->tag + 1, MPI_COMM_WORLD, &comm->meeting.back());
    }
    return ncclInProgress;
}

ncclResult_t world_made(ncclComm_t comm) {
    int       done = 0;
    MPI_Group all, members;
    if (comm->ranks == 1) return ncclSuccess;
    MPI_Testall((int)comm->meeting.size(), comm->meeting.data(), &done, MPI_STATUSES_IGNORE);
    if (!done) return ncclInProgress;
    if (!comm->answered) return answer(comm);
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Group_incl(all, comm->ranks, comm->list.data(), &members);
    MPI_Comm_create_group(MPI_COMM_WORLD, members, comm->tag, &comm->world); /* waits for ranks that have all come */
    MPI_Comm_dup(comm->world, &comm->calls);
    MPI_Group_free(&members);
    MPI_Group_free(&all);
    return ncclSuccess;
}
void world_free(ncclComm_t comm) {
    if (comm->ranks == 1) return;
    MPI_Comm_free(&comm->calls);
    MPI_Comm_free(&comm->world);
}

/* False: some rank's bytes have not come. Calls are compared apart from the data: the host makes them ahead of the stream. */
bool gathered(ncclComm_t comm, Gather &g, bool are_calls) {
    int done = 0;
    if (comm->ranks == 1) return g.all = g.mine, true;
    if (!g.begun) {
        g.begun = true;
        g.all.resize(g.mine.size() * (size_t)comm->ranks);
        MPI_Iallgather(g.mine.data(), (int)g.mine.size(), MPI_BYTE, g.all.data(), (int)g.mine.size(), MPI_BYTE, are_calls ? comm->calls : comm->world,
                       &g.request);
    }
    PMPI_Test(&g.request, &done, MPI_STATUS_IGNORE);
    return done;
}

/* All at once, as a group runs; the two sides of a message must agree on its length. */
bool exchanged(ncclComm_t comm, Exchange &e) {
    int                     done = 0;
    std::vector<MPI_Status> status(e.messages.size());
    for (Message &m : e.messages) {
        if (e.begun) break;
        e.request.emplace_back();
        if (m.is_send) MPI_Issend(m.bytes.data(), (int)m.bytes.size(), MPI_BYTE, m.peer, 0, comm->world, &e.request.back());
        else MPI_Irecv(m.bytes.data(), (int)m.bytes.size(), MPI_BYTE, m.peer, 0, comm->world, &e.request.back());
    }
    e.begun = true;
    bool failed = PMPI_Testall((int)e.request.size(), e.request.data(), &done, status.data()) != MPI_SUCCESS;
    if (!done && !failed) return false;
    for (size_t i = 0; i < e.messages.size(); i++) {
        const Message &m = e.messages[i];
        int            count = (int)m.bytes.size();
        if (!m.is_send && !failed) MPI_Get_count(&status[i], MPI_BYTE, &count);
        if (failed || count != (int)m.bytes.size()) {
            fprintf(stderr, "emulated NCCL: rank %d expects %zu bytes of rank %d, and other bytes came\n", comm->rank, m.bytes.size(), m.peer);
            abort();
        }
    }
    return true;
}
#endif

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

/* A GPU would hang, or compute nonsense. g has this rank's call. */
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

/* [first, first + count) of the sum, or maximum, of the ranks' arrays, from rank 0's on, rounded at each addition. */
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

/* The work on the stream, by way of host memory: MPI's shared memory knows nothing of closed device memory. False: not all ranks have come. */
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
    return later(comm, [=] {
        if (fault("peer") && call.number >= CONNECTING + 3) return wrong(ncclRemoteError, "planted");
        if (fault("memory") && call.number >= CONNECTING + 2) return wrong(ncclUnhandledCudaError, "Failed to CUDA malloc 9633792 bytes");
        if ((fault("stuck") || fault("stuck-abort")) && call.number >= CONNECTING + 3) {
            while (!comm->aborted) usleep(1000);
            return wrong(ncclRemoteError, "aborted");
        }
        if (ncclResult_t result = compare_calls(comm, *calls)) return result;
        return emu::enqueue_waiting(stream, [=] { return move(comm, call, from, to, *data); }) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
    });
}

/* --- groups of sends and receives: nothing happens before the group ends ------------------------------------------ */

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
    if (ncclResult_t result = check_buffer(name, at, bytes, type_bytes(type))) return result;
    if (!group.messages.empty() && (group.comm != comm || group.stream != stream)) return wrong(ncclInvalidUsage, "%s: one group, two streams", name);
    group.comm = comm, group.stream = stream;
    group.messages.push_back({is_send, at, std::vector<char>(bytes), peer});
    return ncclSuccess;
}

/* The work on the stream. False: not all messages have come. */
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
    int64_t    number = comm->collectives++;
    auto       e = std::make_shared<Exchange>();
    e->messages = std::move(g.messages);
    return later(comm, [=] {
        if (fault("peer") && number >= 3) return wrong(ncclRemoteError, "planted");
        return emu::enqueue_waiting(g.stream, [=] { return exchange(comm, *e); }) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
    });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    if (comm->state != ncclSuccess || comm->finalized) return wrong(ncclInvalidUsage, "finalize in state %d", (int)comm->state);
    comm->finalized = true;
    auto all = std::make_shared<Gather>();
    all->mine.resize(1);
    return later(comm, [=] { return gathered(comm, *all, true) ? ncclSuccess : ncclInProgress; });
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
