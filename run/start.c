/* start.c - see start.h. */
#include "run/start.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/error.h"
#include "core/simd.h"
#include "core/thread.h"

static const rlim_t STACK_WANTED = 8 << 20, STACK_LEAST = 1 << 20;
#define MARK "TRAIN_GPT_STARTED"

/* The stack of new threads has the size that the limit had when the program was loaded. */
static int raise_stack_limit(void) {
    struct rlimit stack;
    if (getrlimit(RLIMIT_STACK, &stack) != 0 || stack.rlim_cur >= STACK_WANTED) return 0;
    rlim_t now = stack.rlim_cur;
    stack.rlim_cur = stack.rlim_max < STACK_WANTED ? stack.rlim_max : STACK_WANTED;
    if (stack.rlim_cur > now && setrlimit(RLIMIT_STACK, &stack) == 0) return 1;
    stack.rlim_cur = stack.rlim_max = STACK_WANTED; /* root may */
    if (setrlimit(RLIMIT_STACK, &stack) == 0) return 1;
    if (now < STACK_LEAST)
        fail(EXIT_MEMORY,
             "the stack may not grow past %lld KiB (ulimit -s), and the program needs %lld: type ulimit -s 8192 before it, "
             "or raise the hard limit",
             (long long)(now >> 10), (long long)(STACK_LEAST >> 10));
    return 0;
}

static int calm_threads(void) {
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY")) return 0;
    return setenv("GOMP_SPINCOUNT", "1000", 0) == 0;
}

void start_process(char **argv) {
    char        pid[24];
    const char *mark = getenv(MARK);
    snprintf(pid, sizeof pid, "%ld", (long)getpid());
    if (mark && strcmp(mark, pid) == 0) return;
    int changed = raise_stack_limit();
    changed |= calm_threads();
    if (!changed || setenv(MARK, pid, 1) != 0) return;
    execv("/proc/self/exe", argv); /* where that fails the run is slower on a busy machine, and goes on */
}

void start_computing(void) {
    simd_isa();
    thread_start_team();
}
