/* lock.c - see lock.h. The lock is flock(2) on a file that also tells a person who holds it. */
#include "run/lock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/io.h"

static int take_lock(const char *dir) {
    char path[4200], holder[320] = "";
    snprintf(path, sizeof path, "%s/lock", dir);
    int fd = io_open(path, IO_SHARED);
    if (fd < 0) fail(EXIT_IO, "%s: cannot create: %s; run.dir must be a folder this job may write", path, strerror(-fd));
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        ssize_t n = read(fd, holder, sizeof holder - 1);
        holder[n > 0 ? n : 0] = 0;
        holder[strcspn(holder, "\n")] = 0;
        fail(EXIT_LOCKED, "%s is in use by another job (%s); wait for it, or choose another run.dir", dir, holder[0] ? holder : "unknown");
    }
    return fd;
}

void lock_sign(RunLock lock, const char *dir, Comm *comm) {
    if (lock.fd < 0) return;
    char holder[320];
    int  length = snprintf(holder, sizeof holder, "host %s, process %ld\n", comm_host(comm, 0), (long)getpid());
    int  error = io_truncate(lock.fd, 0);
    if (!error) error = io_pwrite(lock.fd, holder, (size_t)length, 0);
    if (error) fail(EXIT_IO, "%s/lock: cannot write: %s", dir, strerror(-error));
}

/* Every rank must read the nonce that rank 0 wrote; a network file system may take some seconds to show it. */
static void see_one_file_system(const char *dir, Comm *comm) {
    char     path[4200], *text = NULL;
    uint64_t nonce = (uint64_t)(clock_ms() * 1e6) ^ (uint64_t)getpid() << 40, seen = 0;
    comm_broadcast(comm, &nonce, sizeof nonce, 0);
    snprintf(path, sizeof path, "%s/.nonce", dir);
    if (comm_rank(comm) == 0) {
        int error = io_replace_file(path, &nonce, sizeof nonce);
        if (error) fail(EXIT_IO, "%s: cannot write: %s", path, strerror(-error));
    }
    comm_barrier(comm);
    for (double start = clock_ms(); seen != nonce && clock_ms() - start < 5000.0;) {
        if (io_read_file(path, 64, &text) == sizeof nonce) memcpy(&seen, text, sizeof seen);
        free(text);
        text = NULL;
        if (seen != nonce) usleep(100000);
    }
    int64_t blind = seen == nonce ? comm_size(comm) : comm_rank(comm); /* the lowest rank that does not see it */
    comm_all_reduce_i64(comm, &blind, 1, COMM_MIN);
    if (comm_rank(comm) == 0) io_unlink(path);
    if (blind < comm_size(comm) && comm_rank(comm) == 0)
        fail(EXIT_IO, "run.dir %s is not one file system: rank %d on %s does not see what rank 0 on %s writes there", dir, (int)blind,
             comm_host(comm, (int)blind), comm_host(comm, 0));
    comm_barrier(comm);
}

RunLock lock_run_folder(const char *dir, Comm *comm) {
    RunLock lock = {-1};
    if (comm_rank(comm) == 0) {
        int error = io_mkdirs(dir);
        if (error) fail(EXIT_IO, "%s: cannot create the run folder: %s; set run.dir to a folder this job may write", dir, strerror(-error));
        lock.fd = take_lock(dir);
    }
    comm_barrier(comm);
    if (comm_size(comm) > 1) see_one_file_system(dir, comm);
    return lock;
}
