/* memory_fixture.h - shared by the tests of copies in memory: a run that copies its state to memory, the loss of its
 * job in the middle of training, and simulated hosts. */
#ifndef TRAIN_GPT_TEST_RUN_MEMORY_FIXTURE_H
#define TRAIN_GPT_TEST_RUN_MEMORY_FIXTURE_H

#include "run/checkpoint/memory_copies.h"
#include "test/run/checkpoint/checkpoint_fixture.h"

/* number of simulated hosts. They divide the ranks equally; the last one also has the remainder. */
static int hosts = 1;

/* Replaces comm_host (ld --wrap): returns the name of the rank's simulated host. */
const char *__wrap_comm_host(const Comm *c, int rank);
const char *__wrap_comm_host(const Comm *c, int rank) {
    static const char *const name[] = {"hostA", "hostB", "hostC", "hostD"};
    int                      each = comm_size(c) / hosts;
    return name[rank / each < hosts ? rank / each : hosts - 1];
}

static inline void memory_fixture(Fixture *f, Comm *comm, const char *dir) {
    char extra[1024];
    snprintf(extra, sizeof extra, "},\"checkpoint\":{\"memory_every\":1,\"memory_dir\":\"%s/memory\"", dir);
    fixture_create(f, comm, dir, F32, 1, extra);
}

/* Copies the training state to memory at each step from..to, on all ranks. Then ends the job, but keeps the copies, as
 * if a crash had ended it. */
static inline void take_and_lose(Fixture *f, int64_t from, int64_t to) {
    MemoryCopied  copied;
    Comm         *comm = f->state.comm;
    MemoryCopies *m = memory_copies_create(&f->state);
    CHECK(m, "there are copies in memory");
    for (int64_t step = from; step <= to; step++) {
        fixture_fill(f, step);
        memory_copies_start(m, step);
        fixture_fill(f, 1000 + step); /* training continues and changes the state while the copy is made */
        /* waits, so that the thread that copies gets the processor */
        while (!memory_copies_next(m, &copied)) comm_poll(comm), usleep(100);
        CHECK(copied.step == step && copied.ms >= copied.wait_ms && copied.wait_ms > 0, "copied");
    }
    comm_barrier(comm);
    if (comm_rank(comm) == 0) CHECK(system(path_of("cp -r '%s/memory' '%s/kept'", f->dir, f->dir).text) == 0, "cp");
    memory_copies_end(m);
    if (comm_rank(comm) == 0)
        CHECK(system(path_of("rmdir '%s/memory' && mv '%s/kept' '%s/memory'", f->dir, f->dir, f->dir).text) == 0, "mv");
    comm_barrier(comm);
}

/* Returns the path of a file in the folder where a simulated host keeps its in-memory copies of the training state.
 * With an empty `name` it returns the folder. */
static inline Path memory_file(const Fixture *f, const char *host, const char *name) {
    char folder[4608];
    snprintf(folder, sizeof folder, "%s", memory_folder(&f->state).text);
    *strrchr(folder, '-') = 0;
    return path_of("%s-%s/%s", folder, host, name);
}

static inline void flip(const char *path, int64_t at) {
    char byte = 0;
    int  fd = io_open(path, IO_SHARED);
    CHECK(fd >= 0 && io_pread(fd, &byte, 1, (uint64_t)at) == 0, "cannot read %s", path);
    byte ^= 4;
    CHECK(io_pwrite(fd, &byte, 1, (uint64_t)at) == 0, "cannot write %s", path);
    io_close(fd);
}

#endif
