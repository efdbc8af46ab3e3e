/* ranks.h - shared by tests under mpirun. All ranks run the same cases and agree on each verdict: a case that fails on
 * one rank fails on every rank, so that no rank waits in a collective forever. Only rank 0 prints.
 */
#ifndef TRAIN_GPT_TEST_COMM_RANKS_H
#define TRAIN_GPT_TEST_COMM_RANKS_H

#include "comm/comm.h" /* comm.h must be included before cmocka.h, which defines fail() as a macro */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static Comm  *world;
/* The stream of the communicator `world`. Collectives over buckets use it, so they are tested on device memory as in
 * training. */
static Stream stream;

static inline int on_cpu(void) { return strcmp(device_backend(), "cpu") == 0; }
static inline int emulated(void) { return strcmp(device_backend(), "emu") == 0; }

/* Fails on every rank if `ok` is 0 on any rank, and prints how many ranks failed and the first of them. */
static inline void expect_on_all(int ok, const char *what, const char *file, int line) {
    int64_t wrong = !ok, first = ok ? comm_size(world) : comm_rank(world);
    comm_all_reduce_i64(world, &wrong, 1, COMM_SUM);
    comm_all_reduce_i64(world, &first, 1, COMM_MIN);
    if (wrong == 0) return;
    if (comm_rank(world) == 0)
        print_error("%s is false on %lld of %d ranks, first on %lld\n", what, (long long)wrong, comm_size(world),
                    (long long)first);
    _fail(file, line);
}
#define EXPECT_ON_ALL(ok) expect_on_all((ok) != 0, #ok, __FILE__, __LINE__)

/* Returns memory for n elements of 4 bytes that host and device can access. The host may read it after device_sync. */
static inline float *floats(int64_t n) { return (float *)device_alloc_shared((size_t)n * 4); }
static inline void   give_back(void *x) { device_free_shared(x); }

#define RUN_ON_RANKS(cases) run_on_ranks(#cases, cases, sizeof(cases) / sizeof *(cases))
static inline int run_on_ranks(const char *name, const struct CMUnitTest *cases, size_t count) {
    world = world_all(world_join(launch_detect()));
    /* Only rank 0 prints results. The stdout of the other ranks is discarded, but not their stderr, to which CHECK
     * prints. */
    if (comm_rank(world) > 0) {
        cmocka_set_message_output(CM_OUTPUT_TAP);
        CHECK(freopen("/dev/null", "w", stdout), "no /dev/null");
    }
    device_open(world_local_rank(comm_world(world)), 1);
    stream = stream_create(256);
    world_follow(comm_world(world), &stream);
    int failures = _cmocka_run_group_tests(name, cases, count, NULL, NULL);
    world_leave(comm_world(world));
    stream_destroy(&stream);
    return failures != 0;
}

#endif
