/* nccl_ranks.h - the ranks of an emulated communicator, over MPI: how they find each other, and how they exchange
 * bytes. Only nccl.cpp includes this file.
 *
 * The id of a communicator names the MPI rank that made it, the leader, and a tag. Each rank sends the leader its
 * number and its MPI rank. The leader answers with the list of all ranks. So a communicator can have any ranks, and
 * several can be made at once. One rank alone needs no MPI.
 */
#pragma once
#include "streams.h"

#include <nccl.h>

#include <atomic>
#include <cstdarg>
#ifndef NO_MPI
#include <mpi.h>
#endif

struct ncclComm {
    int                           ranks, rank;
    bool                          blocking, finalized;
    ncclResult_t                  state;     /* the result of ncclCommGetAsyncError */
    std::function<ncclResult_t()> pending;   /* the operation in progress; it runs when ncclCommGetAsyncError asks for
                                              * the state */
    int64_t                       collectives, groups; /* collectives and groups of messages called so far */
    std::atomic<bool>             aborted;
    /* blocks of each kernel of NCCL, which is also the number of channels: config.maxCTAs */
    int                           blocks;
    size_t                        library_bytes;
    bool                          has_ring;  /* the neighbours in the ring are connected */
    std::vector<bool>             has_peer;  /* [rank] true if this rank is connected with `rank` for messages */
#ifndef NO_MPI
    MPI_Comm                      world;     /* MPI communicator of the ranks, over which collectives move their data */
    /* MPI communicator of the ranks, over which they compare which functions of NCCL they call */
    MPI_Comm                      calls;
    int                           leader, tag, mine[2];
    bool                          answered;
    /* `came`, leader only: (rank, MPI rank) of each arrived rank. `list`, all ranks: the MPI rank of each rank, in
     * order. */
    std::vector<int>              came, list;
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

/* A send or receive in a group. */
struct Message {
    bool              is_send;
    void             *device;
    std::vector<char> bytes;
    int               peer;
};

/* An exchange in which every rank gets the bytes of all ranks. The first call of gathered() begins it. */
struct Gather {
    std::vector<char> mine, all;
    bool              begun = false;
#ifndef NO_MPI
    MPI_Request       request;
#endif
};
/* The messages of a group. The first call of exchanged() begins the exchange. */
struct Exchange {
    std::vector<Message> messages;
    bool                 begun = false;
#ifndef NO_MPI
    std::vector<MPI_Request> request;
#endif
};

#ifdef NO_MPI
void         world_name(ncclUniqueId *) {}
ncclResult_t world_make(ncclComm_t comm, ncclUniqueId) {
    return comm->ranks == 1 ? ncclSuccess : wrong(ncclInvalidUsage, "this build has no MPI");
}
ncclResult_t world_made(ncclComm_t) { return ncclSuccess; }
void         world_free(ncclComm_t) {}
bool         gathered(ncclComm_t, Gather &g, bool) { return g.all = g.mine, true; }
bool         exchanged(ncclComm_t, Exchange &) { return true; }
#else
struct Name { int leader, tag; }; /* first fields of a communicator's id: MPI rank of the leader, and tag */
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

/* Sends the list of all ranks to every rank. Only the leader calls it, after all ranks have arrived. */
ncclResult_t answer(ncclComm_t comm) {
    comm->answered = true;
    memcpy(&comm->came[2 * comm->meeting.size()], comm->mine, sizeof comm->mine);
    for (size_t i = 0; i <= comm->meeting.size(); i++) {
        int rank = comm->came[2 * i];
        if (rank < 0 || rank >= comm->ranks || comm->list[(size_t)rank] >= 0)
            return wrong(ncclInvalidUsage, "two ranks come as rank %d", rank);
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
    /* waits until all ranks of the group have called it, as ncclCommInitRank does */
    MPI_Comm_create_group(MPI_COMM_WORLD, members, comm->tag, &comm->world);
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

/* Gathers the ranks' bytes. Returns false while some are missing. Calls are compared on another communicator than the
 * data, because the host makes them ahead of the stream. */
bool gathered(ncclComm_t comm, Gather &g, bool are_calls) {
    int done = 0;
    if (comm->ranks == 1) return g.all = g.mine, true;
    if (!g.begun) {
        g.begun = true;
        g.all.resize(g.mine.size() * (size_t)comm->ranks);
        MPI_Iallgather(g.mine.data(), (int)g.mine.size(), MPI_BYTE, g.all.data(), (int)g.mine.size(), MPI_BYTE,
                       are_calls ? comm->calls : comm->world,
                       &g.request);
    }
    PMPI_Test(&g.request, &done, MPI_STATUS_IGNORE);
    return done;
}

/* Exchanges all messages of a group at once. The sender and the receiver of a message must agree on its length. */
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
            fprintf(stderr, "emulated NCCL: rank %d expects %zu bytes of rank %d, and other bytes came\n", comm->rank,
                    m.bytes.size(), m.peer);
            abort();
        }
    }
    return true;
}
#endif

}  // namespace
