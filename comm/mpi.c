/* mpi.c - all use of MPI but the started collectives: start, end, abort, which rank is on which host; groups; the small
 * blocking calls, cut into parts whose counts fit an int.
 *
 * Each small blocking call starts MPI's non-blocking call and waits. Every collective in flight progresses during the
 * wait, because a peer may need one of another group before it reaches this call.
 */
#ifndef NO_MPI
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/internal.h"
#include "core/format.h"
#include "core/thread.h"
#include "core/error.h"

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)
#if defined(OMPI_MAJOR_VERSION)
static const char library[] =
    "Open MPI " TEXT(OMPI_MAJOR_VERSION) "." TEXT(OMPI_MINOR_VERSION) "." TEXT(OMPI_RELEASE_VERSION);
static const char srun_option[] = "--mpi=pmix";
#elif defined(MPICH_VERSION)
static const char library[] = "MPICH " MPICH_VERSION;
static const char srun_option[] = "--mpi=pmi2";
#else
static const char library[] = "MPI " TEXT(MPI_VERSION) "." TEXT(MPI_SUBVERSION);
static const char srun_option[] = "--mpi=pmix";
#endif
const char *world_library(void) { return library; }

NORETURN void mpi_failed(const World *w, const char *call, int code, const char *file, int line) {
    char text[MPI_MAX_ERROR_STRING] = "?", why[MPI_MAX_ERROR_STRING + 512];
    int  length;
    MPI_Error_string(code, text, &length);
    snprintf(why, sizeof why, "%s (%s, %s:%d)", text, call, file, line);
    world_failed(w, why);
}

int mpi_is_done(const Comm *c, MPI_Request *request) {
    int done;
    MPI_CHECK(c->world, MPI_Test(request, &done, MPI_STATUS_IGNORE));
    return done;
}

/* --- hosts with IPv4 and IPv6 addresses --------------------------------------------------------------------------- */

#define FAMILY   "btl_tcp_disable_family"
#define INCLUDED "OMPI_MCA_btl_tcp_if_include" /* variable that lists the networks Open MPI may use, such as
                                                * "eth1,10.0.0.0/8" */

static int is_set_by_user(void) {
    char path[4096], line[512];
    if (getenv("OMPI_MCA_" FAMILY)) return 1; /* set by the user in the environment or by mpirun --mca */
    snprintf(path, sizeof path, "%s/.openmpi/mca-params.conf", getenv("HOME") ? getenv("HOME") : "");
    FILE *file = fopen(path, "r");
    int   found = 0;
    while (file && !found && fgets(line, sizeof line, file)) found = strncmp(line, FAMILY, strlen(FAMILY)) == 0;
    if (file) fclose(file);
    return found;
}

static int is_included(const char *interface) {
    const char *list = getenv(INCLUDED);
    size_t      length = strlen(interface);
    for (const char *at = list; at && *at; at += strcspn(at, ","), at += *at == ',') {
        size_t n = strcspn(at, ",");
        if (n == length && strncmp(at, interface, n) == 0) return 1;
        if (memchr(at, '/', n) && !memchr(at, ':', n)) return 1; /* an entry with a slash and no colon is an IPv4
                                                                  * network */
    }
    return !list;
}

/* Turns IPv6 off for Open MPI 5.0 if the host has an IPv4 address. That version pairs IPv6 addresses that cannot reach
 * each other, prints warnings, and may fail in MPI_Init (open-mpi/ompi#14079). All hosts have IPv4, because mpirun of
 * that version connects them by it. */
static void prefer_ipv4(void) {
    char            version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int             length, has_ipv4 = 0;
    struct ifaddrs *all = NULL;
    MPI_Get_library_version(version, &length);
    if (strncmp(version, "Open MPI v5.0.", 14) != 0 || is_set_by_user() || getifaddrs(&all) != 0) return;
    for (struct ifaddrs *a = all; a; a = a->ifa_next)
        has_ipv4 |= a->ifa_addr && a->ifa_addr->sa_family == AF_INET && !(a->ifa_flags & IFF_LOOPBACK) &&
                    is_included(a->ifa_name);
    freeifaddrs(all);
    if (has_ipv4) setenv("OMPI_MCA_" FAMILY, "6", 1);
}

/* --- start and end ------------------------------------------------------------------------------------------------ */

/* Calls MPI_Init, if it was not called, for a rank that is to be ended by another rank's abort. MPI_Init returns once
 * all ranks have called it. */
static void join_job(void) {
    int here = 0, provided;
    MPI_Initialized(&here);
    if (!here) prefer_ipv4();
    if (!here) MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
}

enum { ABORT_SECONDS = 5 }; /* limit in seconds: MPI_Abort waits for the launcher, which a broken link may have made
                             * unreachable */

static void abort_job(int exit_code) {
    join_job();
    error_end_within(ABORT_SECONDS, exit_code);
    world_tell_neighbours();
    usleep(50000); /* waits 50 ms, because the launcher hydra drops output that it has not forwarded when it ends */
    MPI_Abort(MPI_COMM_WORLD, exit_code);
    _exit(exit_code);
}

/* Ends processes that a launcher started but that cannot find each other. Otherwise each would train alone in the same
 * run folder. Rank 0 prints the cure. Tasks of srun above 0 print a line, too: task 0 may not be there, because a shell
 * that srun once started keeps its variables. */
static NORETURN void refuse_lone_ranks(Launch launch, int expected) {
    if (launch.rank > 0 && (launch.manager || !getenv("SLURM_STEP_ID"))) _exit(EXIT_NODEVICE);
    if (launch.rank > 0)
        fail(EXIT_NODEVICE,
             "SLURM_PROCID=%d: srun started %d tasks that cannot connect, and task 0 says what to type; in a shell "
             "without srun, type: unset SLURM_STEP_ID",
             launch.rank, expected);
    if (getenv("SLURM_STEP_ID") && (!launch.manager || launch.size == 0))
        fail(EXIT_NODEVICE,
             "srun started %d tasks that %s cannot connect; start them with: srun %s -n %d ./train_gpt ... or, in a "
             "batch script, mpirun (scripts/train.sbatch does either); in a shell without srun: unset SLURM_STEP_ID",
             expected, library, srun_option, expected);
    fail(EXIT_NODEVICE,
         "the launcher started %d processes that %s cannot connect; use the mpirun of %s, or build with MPI=mpich or "
         "MPI=ompi-c",
         expected, library, library);
}

static int expected_ranks(Launch launch) {
    if (launch.size > 0) return launch.size;
    const char *tasks = getenv("SLURM_STEP_ID") ? getenv("SLURM_STEP_NUM_TASKS") : NULL;
    return tasks ? atoi(tasks) : 1;
}

void world_expect(Launch launch) {
    if (!launch.launched) return;
    if (!launch.manager) refuse_lone_ranks(launch, expected_ranks(launch));
    error_set_rank(launch.rank, expected_ranks(launch), abort_job);
    error_set_join(join_job);
}

void world_start(World *w, Launch launch) {
    int expected = expected_ranks(launch), provided;
    if (!launch.manager) refuse_lone_ranks(launch, expected);
    error_set_rank(launch.rank, expected, NULL); /* no abort function yet, because nothing can be aborted before
                                                  * MPI_Init */
    error_set_join(NULL);
    prefer_ipv4();
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS)
        fail(EXIT_NODEVICE,
             "%s cannot start (MPI_Init_thread failed): see its own message above, or load the MPI that this program "
             "was built with; ./train_gpt doctor compares the two",
             library);
    if (provided < MPI_THREAD_FUNNELED)
        fail(EXIT_NODEVICE,
             "%s cannot be used by a program with threads (it gives less than MPI_THREAD_FUNNELED): install one that "
             "is built with threads, or build with make MPI=mpich",
             library);
    w->launched = 1;
    MPI_Comm_size(MPI_COMM_WORLD, &w->size);
    if (w->size < expected) refuse_lone_ranks(launch, expected);
    MPI_Comm_rank(MPI_COMM_WORLD, &w->rank);
    error_set_rank(w->rank, w->size, abort_job);
    error_set_join(NULL);

    MPI_CHECK(w, MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN)); /* makes MPI calls return errors; copies
                                                                               * and subgroups of the communicator
                                                                               * inherit this */
    MPI_CHECK(w, MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &w->local));
    MPI_Comm_rank(w->local, &w->local_rank);
    MPI_Comm_size(w->local, &w->local_size);

    w->host = xcalloc((size_t)w->size, sizeof *w->host, "the host names of the ranks");
    char mine[HOST_CHARS] = "";
    gethostname(mine, sizeof mine - 1);
    MPI_CHECK(w, MPI_Allgather(mine, HOST_CHARS, MPI_CHAR, w->host, HOST_CHARS, MPI_CHAR, MPI_COMM_WORLD));
    world_renumber(w);
    error_set_rank(w->rank, w->size, abort_job);
}

void world_stop(World *w) {
    MPI_CHECK(w, MPI_Barrier(MPI_COMM_WORLD));
    MPI_Comm_free(&w->local);
    error_set_rank(w->rank, w->size, NULL);
    MPI_Finalize();
}

void world_local_all_gather(World *w, const void *mine, void *all, size_t bytes) {
    if (w->launched) MPI_CHECK(w, MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, w->local));
    else memcpy(all, mine, bytes);
}

/* --- groups ------------------------------------------------------------------------------------------------------- */

/* Sets rank, size and members of a group from its communicator c->small, and makes the second communicator, c->ring. */
static void meet(Comm *c) {
    const World *w = c->world;
    MPI_Comm_rank(c->small, &c->rank);
    MPI_Comm_size(c->small, &c->size);
    c->member = xrealloc(c->member, sizeof *c->member * (size_t)c->size, "a group of ranks");
    MPI_CHECK(w, MPI_Allgather(&w->rank, 1, MPI_INT, c->member, 1, MPI_INT, c->small));
    MPI_CHECK(w, MPI_Comm_dup(c->small, &c->ring));
}

void group_all(Comm *c) {
    MPI_CHECK(c->world, MPI_Comm_split(MPI_COMM_WORLD, 0, c->world->rank, &c->small));
    meet(c);
}

void group_split(Comm *c, Comm *parent, int color, int key) {
    int size;
    group_barrier(parent); /* lets started collectives progress meanwhile; a peer may need them before it reaches this
                            * split */
    MPI_CHECK(c->world, MPI_Comm_split(parent->small, color, key, &c->small));
    MPI_Comm_size(c->small, &size);
    if (size == 1) MPI_CHECK(c->world, MPI_Comm_free(&c->small));
    else meet(c);
}

void group_free(Comm *c) {
    group_barrier(c);
    MPI_CHECK(c->world, MPI_Comm_free(&c->ring));
    MPI_CHECK(c->world, MPI_Comm_free(&c->small));
}

/* --- small blocking calls ----------------------------------------------------------------------------------------- */

static void await(const Comm *c, MPI_Request request) {
    double moved = clock_ms();
    while (!mpi_is_done(c, &request)) queue_turn(c->world, &moved);
}

void group_barrier(Comm *c) {
    MPI_Request request;
    MPI_CHECK(c->world, MPI_Ibarrier(c->small, &request));
    await(c, request);
}

static int piece_at(size_t at, size_t bytes) { return (int)smaller_of((int64_t)(bytes - at), MPI_MOST_BYTES); }

void group_broadcast(Comm *c, void *data, size_t bytes, int root) {
    for (size_t at = 0; at < bytes; at += MPI_MOST_BYTES) {
        MPI_Request request;
        MPI_CHECK(c->world, MPI_Ibcast((char *)data + at, piece_at(at, bytes), MPI_BYTE, root, c->small, &request));
        await(c, request);
    }
}

void group_all_reduce(Comm *c, void *values, int count, DType type, CommReduce op) {
    MPI_Request  request;
    MPI_Datatype of = type == F64 ? MPI_DOUBLE : MPI_INT64_T;
    MPI_Op       operation = op == COMM_SUM ? MPI_SUM : op == COMM_MAX ? MPI_MAX : MPI_MIN;
    MPI_CHECK(c->world, MPI_Iallreduce(MPI_IN_PLACE, values, count, of, operation, c->small, &request));
    await(c, request);
}

/* Exchanges data with one rank after another: with the ranks 1, 2, 3, ... away. Sends to the rank `away` above while it
 * receives from the rank `away` below. */
void group_all_to_all(Comm *c, const char *send, const size_t *bytes, char *receive) {
    size_t mine = bytes[c->rank];
    for (int away = 0; away < c->size; away++) {
        int    to = (c->rank + away) % c->size, from = (c->rank - away + c->size) % c->size;
        size_t at = 0;
        for (int r = 0; r < to; r++) at += bytes[r];
        if (away == 0 && mine > 0) memcpy(receive + (size_t)c->rank * mine, send + at, mine);
        for (size_t sent = 0, got = 0; away > 0 && (sent < bytes[to] || got < mine);
             sent += MPI_MOST_BYTES, got += MPI_MOST_BYTES) {
            MPI_Request out = MPI_REQUEST_NULL, in = MPI_REQUEST_NULL;
            if (got < mine)
                MPI_CHECK(c->world, MPI_Irecv(receive + (size_t)from * mine + got, piece_at(got, mine), MPI_BYTE, from,
                                              1, c->small, &in));
            if (sent < bytes[to])
                MPI_CHECK(c->world,
                          MPI_Isend(send + at + sent, piece_at(sent, bytes[to]), MPI_BYTE, to, 1, c->small, &out));
            await(c, in);
            await(c, out);
        }
    }
}

char *group_gather(Comm *c, const void *data, size_t bytes, int root, size_t **bytes_of_rank) {
    int         is_root = c->rank == root, ranks = is_root ? c->size : 0;
    int        *of = xmalloc(2 * sizeof *of * (size_t)ranks, "what a rank gathers"), *at = of + ranks;
    uint64_t    mine = bytes, *each = xmalloc(sizeof *each * (size_t)ranks, "what a rank gathers"), total = 0;
    MPI_Request request;
    *bytes_of_rank = is_root ? xmalloc(sizeof **bytes_of_rank * (size_t)ranks, "what a rank gathers") : NULL;
    MPI_CHECK(c->world, MPI_Igather(&mine, 1, MPI_UINT64_T, each, 1, MPI_UINT64_T, root, c->small, &request));
    await(c, request);
    for (int r = 0; r < ranks; r++) {
        at[r] = (int)total, of[r] = (int)each[r];
        total += (*bytes_of_rank)[r] = (size_t)each[r];
        CHECK(total <= INT_MAX, "%llu bytes to gather: MPI counts with int", (unsigned long long)total);
    }
    char *all = is_root ? xmalloc((size_t)total, "what a rank gathers") : NULL;
    MPI_CHECK(c->world,
              MPI_Igatherv(data, (int)bytes, MPI_BYTE, all, of, at, MPI_BYTE, root, c->small, &request));
    await(c, request);
    free(of), free(each);
    return all;
}
#endif
