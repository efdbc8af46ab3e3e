/* world.c - MPI's life in this program: start, end, abort, who is where; and the small blocking calls, cut where a count is an int. */
#ifndef NO_MPI
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/internal.h"

enum { PIECE_BYTES = 1 << 30 }; /* of a message: MPI counts with int */

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)
#if defined(OMPI_MAJOR_VERSION)
static const char library[] = "Open MPI " TEXT(OMPI_MAJOR_VERSION) "." TEXT(OMPI_MINOR_VERSION) "." TEXT(OMPI_RELEASE_VERSION);
static const char srun_option[] = "--mpi=pmix";
#elif defined(MPICH_VERSION)
static const char library[] = "MPICH " MPICH_VERSION;
static const char srun_option[] = "--mpi=pmi2";
#else
static const char library[] = "MPI " TEXT(MPI_VERSION) "." TEXT(MPI_SUBVERSION);
static const char srun_option[] = "--mpi=pmix";
#endif
const char *world_library(void) { return library; }

NORETURN void mpi_failed(const Comm *c, const char *call, int code, const char *file, int line) {
    char text[MPI_MAX_ERROR_STRING] = "?", why[MPI_MAX_ERROR_STRING + 512];
    int  length;
    MPI_Error_string(code, text, &length);
    snprintf(why, sizeof why, "%s (%s, %s:%d)", text, call, file, line);
    comm_failed(c, why);
}

/* MPI_Init returns once all ranks have come to it: whoever means to be ended by another rank joins first. */
static void join_job(void) {
    int here = 0, provided;
    MPI_Initialized(&here);
    if (!here) MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
}

enum { ABORT_SECONDS = 5 }; /* MPI_Abort waits for a launcher that a cut link may have taken away */

static void abort_job(int exit_code) {
    join_job();
    error_end_within(ABORT_SECONDS, exit_code);
    usleep(50000); /* hydra drops what it has not forwarded yet when it is told to end */
    MPI_Abort(MPI_COMM_WORLD, exit_code);
    _exit(exit_code);
}

/* A launcher whose processes do not find each other would give as many lone runs in one folder. Its rank 0 speaks. */
static NORETURN void refuse_lone_ranks(Launch launch, int expected) {
    if (launch.rank > 0) _exit(EXIT_NODEVICE);
    if (getenv("SLURM_STEP_ID") && (!launch.manager || launch.size == 0))
        fail(EXIT_NODEVICE, "srun started %d tasks that %s cannot connect; start them with: srun %s -n %d ./train_gpt ... or, in a batch script, "
             "mpirun (scripts/train.sbatch does either)", expected, library, srun_option, expected);
    fail(EXIT_NODEVICE, "the launcher started %d processes that %s cannot connect; use the mpirun of %s, or build with MPI=mpich or MPI=ompi-c",
         expected, library, library);
}

static int expected_ranks(Launch launch) {
    if (launch.size > 0) return launch.size;
    const char *tasks = getenv("SLURM_STEP_ID") ? getenv("SLURM_STEP_NUM_TASKS") : NULL;
    return tasks ? atoi(tasks) : 1;
}

void world_expect(Launch launch) {
    if (!launch.manager) refuse_lone_ranks(launch, expected_ranks(launch));
    error_set_rank(launch.rank, expected_ranks(launch), abort_job);
    error_set_join(join_job);
}

void world_start(Comm *c, Launch launch) {
    int expected = expected_ranks(launch), provided;
    if (!launch.manager) refuse_lone_ranks(launch, expected);
    error_set_rank(launch.rank, expected, NULL); /* nothing to abort until MPI is up */
    error_set_join(NULL);
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS || provided < MPI_THREAD_FUNNELED)
        fail(EXIT_NODEVICE, "%s does not start (MPI_THREAD_FUNNELED is needed)", library);
    c->launched = 1;
    MPI_Comm_size(MPI_COMM_WORLD, &c->size);
    if (c->size < expected) refuse_lone_ranks(launch, expected);
    MPI_Comm_rank(MPI_COMM_WORLD, &c->rank);
    error_set_rank(c->rank, c->size, abort_job);
    error_set_join(NULL);

    c->world = MPI_COMM_WORLD;
    MPI_CHECK(c, MPI_Comm_set_errhandler(c->world, MPI_ERRORS_RETURN)); /* copies inherit it */
    MPI_CHECK(c, MPI_Comm_dup(c->world, &c->ring));
    MPI_CHECK(c, MPI_Comm_split_type(c->world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &c->local));
    MPI_Comm_rank(c->local, &c->local_rank);
    MPI_Comm_size(c->local, &c->local_size);

    c->host = calloc((size_t)c->size, sizeof *c->host);
    if (!c->host) fail(EXIT_MEMORY, "no memory for the names of %d ranks", c->size);
    char mine[HOST_CHARS] = "";
    gethostname(mine, sizeof mine - 1);
    MPI_CHECK(c, MPI_Allgather(mine, HOST_CHARS, MPI_CHAR, c->host, HOST_CHARS, MPI_CHAR, c->world));
}

void world_stop(Comm *c) {
    MPI_CHECK(c, MPI_Barrier(c->world));
    MPI_Comm_free(&c->ring);
    MPI_Comm_free(&c->local);
    error_set_rank(c->rank, c->size, NULL);
    MPI_Finalize();
}

void world_local_all_gather(Comm *c, const void *mine, void *all, size_t bytes) {
    if (c->launched) MPI_CHECK(c, MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, c->local));
    else memcpy(all, mine, bytes);
}

void world_barrier(Comm *c) { MPI_CHECK(c, MPI_Barrier(c->world)); }

static int piece_at(size_t at, size_t bytes) { return (int)(bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES); }

void world_broadcast(Comm *c, void *data, size_t bytes, int root) {
    for (size_t at = 0; at < bytes; at += PIECE_BYTES)
        MPI_CHECK(c, MPI_Bcast((char *)data + at, piece_at(at, bytes), MPI_BYTE, root, c->world));
}

static MPI_Op operation(CommReduce op) { return op == COMM_SUM ? MPI_SUM : op == COMM_MAX ? MPI_MAX : MPI_MIN; }

void world_all_reduce_f64(Comm *c, double *values, int count, CommReduce op) {
    MPI_CHECK(c, MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_DOUBLE, operation(op), c->world));
}
void world_all_reduce_i64(Comm *c, int64_t *values, int count, CommReduce op) {
    MPI_CHECK(c, MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_INT64_T, operation(op), c->world));
}

char *world_gather(Comm *c, const void *data, size_t bytes, int root, size_t **bytes_of_rank) {
    uint64_t mine = bytes, *of = NULL;
    *bytes_of_rank = NULL;
    if (c->rank == root) {
        of = (uint64_t *)malloc(sizeof *of * (size_t)c->size);
        *bytes_of_rank = (size_t *)malloc(sizeof **bytes_of_rank * (size_t)c->size);
        if (!of || !*bytes_of_rank) fail(EXIT_MEMORY, "no memory to gather from %d ranks", c->size);
    }
    MPI_CHECK(c, MPI_Gather(&mine, 1, MPI_UINT64_T, of, 1, MPI_UINT64_T, root, c->world));
    if (c->rank != root) {
        for (size_t at = 0; at < bytes; at += PIECE_BYTES)
            MPI_CHECK(c, MPI_Send((const char *)data + at, piece_at(at, bytes), MPI_BYTE, root, 0, c->world));
        return NULL;
    }
    size_t total = 0;
    for (int r = 0; r < c->size; r++) total += (*bytes_of_rank)[r] = (size_t)of[r];
    free(of);
    char *all = (char *)malloc(total ? total : 1), *to = all;
    if (!all) fail(EXIT_MEMORY, "no memory to gather %zu bytes", total);
    for (int r = 0; r < c->size; r++) {
        size_t from_r = (*bytes_of_rank)[r];
        if (r == root && bytes) memcpy(to, data, bytes);
        for (size_t at = 0; r != root && at < from_r; at += PIECE_BYTES)
            MPI_CHECK(c, MPI_Recv(to + at, piece_at(at, from_r), MPI_BYTE, r, 0, c->world, MPI_STATUS_IGNORE));
        to += from_r;
    }
    return all;
}
#endif
