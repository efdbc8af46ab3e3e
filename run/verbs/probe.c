/* probe.c - see probe.h. The program gets a process group of its own, so that its children end with it. */
#include "run/verbs/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/thread.h"

extern char **environ;

static int start(const char *const *argv, int output, pid_t *pid) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t          group;
    if (posix_spawn_file_actions_init(&actions) != 0 || posix_spawnattr_init(&group) != 0) return -1;
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, output, 1);
    posix_spawn_file_actions_adddup2(&actions, output, 2);
    posix_spawnattr_setflags(&group, POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setpgroup(&group, 0);
    int error = posix_spawnp(pid, argv[0], &actions, &group, (char *const *)argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&group);
    return error ? -1 : 0;
}

/* Reads until the output ends, or until the time is over. Returns 1 if the output ended. Bytes that do not fit into out
 * are dropped. */
static int read_all(int fd, double until_ms, char *out, size_t room) {
    size_t used = 0;
    out[0] = 0;
    for (;;) {
        char          piece[1024];
        double        left = until_ms - clock_ms();
        struct pollfd waiting = {fd, POLLIN, 0};
        int           ready = left > 0 ? poll(&waiting, 1, (int)left + 1) : 0;
        if (ready < 0 && errno == EINTR) continue;
        if (ready <= 0) return 0;
        ssize_t got = read(fd, piece, sizeof piece);
        if (got <= 0) return 1;
        for (ssize_t i = 0; i < got && used + 1 < room; i++) out[used++] = piece[i];
        out[used] = 0;
    }
}

int probe(const char *const *argv, double seconds, char *out, size_t room) {
    int    output[2], status = 0;
    pid_t  pid;
    double until_ms = clock_ms() + seconds * 1e3;
    if (pipe2(output, O_CLOEXEC) != 0) return PROBE_ABSENT;
    int started = start(argv, output[1], &pid) == 0;
    close(output[1]);
    int ended = started && read_all(output[0], until_ms, out, room);
    close(output[0]);
    if (!started) return PROBE_ABSENT;
    while (ended && waitpid(pid, &status, WNOHANG) == 0 && (ended = clock_ms() < until_ms)) usleep(1000);
    if (!ended) {
        kill(-pid, SIGKILL);
        waitpid(pid, &status, 0);
        return PROBE_HANGS;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
