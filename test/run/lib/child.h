/* child.h - runs a function of a test in a child process, for calls that end the program. The result has the child's
 * exit code and its stderr. */
#ifndef TRAIN_GPT_TEST_RUN_CHILD_H
#define TRAIN_GPT_TEST_RUN_CHILD_H

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct {
    int  code;      /* exit code; 0 if the child returned, -1 if a signal ended it */
    char said[8192];
} Child;

static inline Child child_run(void (*piece)(void *), void *argument) {
    Child  c = {.code = -1};
    int    ends[2], status;
    size_t have = 0;
    if (pipe(ends) < 0) abort();
    fflush(stdout);
    fflush(stderr);
/* With clang this call is left out: its OpenMP starts new threads in a forked child by itself, and fails to do so after
 * the call. */
#ifndef __clang__
    /* A forked child has none of the threads of its parent. OpenMP would wait for them, so it must give them up before
     * the fork. */
    omp_pause_resource_all(omp_pause_hard);
#endif
    pid_t pid = fork();
    if (pid < 0) abort();
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        piece(argument);
        fflush(stderr);
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t n; have < sizeof c.said - 1 && (n = read(ends[0], c.said + have, sizeof c.said - 1 - have)) > 0;)
        have += (size_t)n;
    close(ends[0]);
    waitpid(pid, &status, 0);
    if (WIFEXITED(status)) c.code = WEXITSTATUS(status);
    return c;
}

static inline int child_lines(const Child *c) {
    int lines = 0;
    for (const char *at = c->said; *at; at++) lines += *at == '\n';
    return lines;
}

#endif
