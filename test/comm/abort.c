/* abort.c - a job that ends badly on purpose, for test_abort.sh. `abort HOW` says how. The ranks without a fault wait
 * in a collective meanwhile.
 *   early    every rank finds a fault in the config before it joins the other ranks
 *   early1   rank 1 alone finds a fault in the config before it joins the other ranks
 *   all      every rank finds the same bad data
 *   one      the last rank finds bad data
 *   check    a CHECK fails on the last rank
 *   segv     the last rank crashes
 *   exit     the last rank leaves with code 3, without telling MPI; exit0: with code 0
 *   nccl     no fault of its own: the environment variable EMU_NCCL_FAULT adds one, or the build has no NCCL. It runs
 *            reductions, and an exchange at the end, or with nccl-gathers two gathers
 *   fine     nothing happens */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm.h"

/* Sets NCCL up as training does: a communicator over each rank's GPU, with buckets in the GPU's memory. */
static void use_nccl(Comm *c, const char *how) {
    device_open(world_local_rank(comm_world(c)), 1);
    Stream s = stream_create(256);
    world_follow(comm_world(c), &s);
    comm_set_exchanges(c);
    comm_set_kind(c, COMM_NCCL);
    size_t bytes = sizeof(float) * 64 * (size_t)comm_size(c);
    Tensor t = tensor_1d(device_alloc(bytes, "a bucket"), F32, 64 * comm_size(c));
    for (int i = 0; i < 4; i++) comm_reduce_scatter(c, t);
    Tensor ends[2] = {tensor_slice(t, 0, 32 * comm_size(c)), tensor_slice(t, 32 * comm_size(c), 32 * comm_size(c))};
    int         right = (comm_rank(c) + 1) % comm_size(c), left = (comm_rank(c) + comm_size(c) - 1) % comm_size(c);
    CommMessage round[2] = {{EXCHANGE_SEND, right, ends[0]}, {EXCHANGE_RECEIVE, left, ends[1]}};
    if (strcmp(how, "nccl-gathers") == 0) comm_all_gathers_start(c, ends, 2, GATHERS_NOW);
    else comm_exchange_start(c, round, 2);
    comm_finish(c);
    device_sync(&s);
    device_free(t.data, bytes);
    world_leave(comm_world(c));
    stream_destroy(&s);
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "fine";
    Launch      launch = launch_detect();
    world_expect(launch);
    if (strcmp(how, "early") == 0) fail(EXIT_CONFIG, "a fault in the config");
    if (strcmp(how, "early1") == 0 && launch.rank == 1) fail(EXIT_CONFIG, "a fault in the config");

    Comm *c = world_all(world_join(launch));
    int   last = comm_rank(c) == comm_size(c) - 1;
    if (strcmp(how, "all") == 0) fail(EXIT_DATA, "a fault in the data");
    if (strcmp(how, "one") == 0 && last) fail(EXIT_DATA, "a fault in the data");
    if (strcmp(how, "check") == 0) CHECK(!last, "a fault in the program");

    if (strcmp(how, "segv") == 0 && last) raise(SIGSEGV);
    if (strncmp(how, "exit", 4) == 0 && last) _exit(strcmp(how, "exit") == 0 ? 3 : 0);

    if (strncmp(how, "nccl", 4) == 0) {
        use_nccl(c, how);
        return 0;
    }

    int64_t n = 64 * comm_size(c);
    float  *x = calloc((size_t)n, sizeof *x);
    CHECK(x != NULL, "no memory");
    comm_all_reduce(c, tensor_1d(x, F32, n));
    free(x);
    world_leave(comm_world(c));
    return 0;
}
