/* bench_comm.c - bus bandwidth of the program's ring and of MPI's own collectives, by message size.
 * scripts/bench_comm.sh runs it under mpirun.
 *
 * Ring and MPI alternate on the same memory, so that other work on the machine disturbs both. A sample is the time of
 * the slowest rank. A printed figure is the median of the samples. Message size and bus bandwidth are those of
 * nccl-tests: size = the whole bucket, bandwidth = size/time * (n-1)/n for reduce-scatter and all-gather, twice that
 * for all-reduce.
 *   bench_comm [MEGABYTES_AT_MOST]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef NO_MPI
#include <mpi.h>
#endif

#include "comm/comm.h"
#include "core/thread.h"

enum { SAMPLES_MAX = 201, SAMPLES_MIN = 11 };
/* milliseconds after which an operation at one size gets no more samples, if it has SAMPLES_MIN */
static const double BUDGET_MS = 3000;

typedef enum { REDUCE_SCATTER, ALL_GATHER, ALL_REDUCE, OPERATIONS } Operation;
static const char *const NAMES[] = {"reduce-scatter", "all-gather", "all-reduce"};

static void ring(Comm *c, Operation op, float *x, int64_t piece) {
    Tensor t = tensor_1d(x, F32, piece * comm_size(c));
    if (op == REDUCE_SCATTER) comm_reduce_scatter(c, t);
    else if (op == ALL_GATHER) comm_all_gather(c, t);
    else comm_all_reduce(c, t);
}

/* Calls MPI's collective `op` over all ranks. A reduce-scatter of x writes `piece` elements to out. The other
 * operations replace x. */
static void mpi(Comm *c, Operation op, float *x, float *out, int64_t piece) {
#ifdef NO_MPI
    (void)c, (void)op, (void)x, (void)out, (void)piece;
#else
    int count = (int)piece, error;
    if (op == REDUCE_SCATTER)
        error = MPI_Reduce_scatter_block(x, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (op == ALL_GATHER)
        error = MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, x, count, MPI_FLOAT, MPI_COMM_WORLD);
    else error = MPI_Allreduce(MPI_IN_PLACE, x, count * comm_size(c), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    CHECK(error == MPI_SUCCESS, "%s of MPI", NAMES[op]);
#endif
}

/* Runs `repeats` calls after a barrier: MPI's with output `out`, or the ring's if out is NULL. Returns the milliseconds
 * per call of the slowest rank. */
static double sample(Comm *c, Operation op, float *x, float *out, int64_t piece, int repeats) {
    comm_barrier(c);
    double begin = clock_ms();
    for (int i = 0; i < repeats; i++) {
        if (out) mpi(c, op, x, out, piece);
        else ring(c, op, x, piece);
    }
    double ms = (clock_ms() - begin) / repeats;
    comm_all_reduce_f64(c, &ms, 1, COMM_MAX);
    return ms;
}

static int ascending(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}
static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, ascending);
    return v[n / 2];
}

static void measure(Comm *c, Operation op, float *x, float *out, int64_t bytes) {
    int     W = comm_size(c), samples = 0, repeats = 1;
    int64_t piece = bytes / 4 / W;
    double  ring_ms[SAMPLES_MAX], mpi_ms[SAMPLES_MAX];
    /* warms up; then short calls are repeated for 2 ms, so that the barrier's time does not matter */
    for (int warm = 0; warm < 2; warm++) {
        double ms = sample(c, op, x, NULL, piece, repeats) + sample(c, op, x, out, piece, repeats);
        repeats = ms >= 4 ? 1 : (int)(4 / ms) + 1;
    }
    for (double spent = 0; samples < SAMPLES_MAX && (samples < SAMPLES_MIN || spent < BUDGET_MS); samples++) {
        ring_ms[samples] = sample(c, op, x, NULL, piece, repeats);
        mpi_ms[samples] = sample(c, op, x, out, piece, repeats);
        spent += (ring_ms[samples] + mpi_ms[samples]) * repeats;
    }
    double r = median(ring_ms, samples), m = median(mpi_ms, samples);
    double gigabytes = (double)bytes * 1e-9 * (W - 1) / W * (op == ALL_REDUCE ? 2 : 1);
    if (comm_rank(c) == 0)
        printf("%-14s %2d %10lld %8.3f %8.3f %6.3f %5d\n", NAMES[op], W, (long long)bytes, gigabytes / r * 1e3,
               gigabytes / m * 1e3, m / r, samples);
    fflush(stdout);
}

int main(int argc, char **argv) {
    int64_t most = (argc > 1 ? atoll(argv[1]) : 64) << 20;
    Comm   *c = world_all(world_join(launch_detect()));
    if (comm_size(c) < 2) fail(EXIT_CONFIG, "bench_comm compares ranks: start it with mpirun -np 2");
    float *x = aligned_alloc(4096, (size_t)most), *out = aligned_alloc(4096, (size_t)most);
    if (!x || !out) fail(EXIT_MEMORY, "no memory for twice %lld MiB", (long long)(most >> 20));
    memset(x, 0, (size_t)most), memset(out, 0, (size_t)most);
    if (comm_rank(c) == 0)
        printf("# %s\n# operation  ranks      bytes     ring      mpi  ratio  n    (GB/s of bus bandwidth, medians)\n",
               world_library());
    for (Operation op = REDUCE_SCATTER; op < OPERATIONS; op++)
        for (int64_t bytes = 64 << 10; bytes <= most; bytes *= 4)
            measure(c, op, x, out, bytes / (256 * comm_size(c)) * (256 * comm_size(c)));
    free(x), free(out);
    world_leave(comm_world(c));
    return 0;
}
