/* start.c - sets a large stack and threads that do not spin, before a run starts: see start.h. */
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

static int is_stack_raised;

/* Raises the limit of the stack before the constructors of libraries run, because they already need it. Constructors of
 * UCX, which Open MPI 5 loads, need some 100 KiB. The dynamic loader runs .preinit_array before them. The stack of the
 * main thread can grow at once. New threads get stacks of the size limit that the program was loaded with. */
__attribute__((no_sanitize("address", "thread"))) static void raise_stack_limit(void) {
    struct rlimit stack;
    if (getrlimit(RLIMIT_STACK, &stack) != 0 || stack.rlim_cur >= STACK_WANTED) return;
    rlim_t now = stack.rlim_cur, most = stack.rlim_max;
    stack.rlim_cur = STACK_WANTED;
    if (most < STACK_WANTED) stack.rlim_max = STACK_WANTED; /* root may raise the hard limit */
    is_stack_raised = setrlimit(RLIMIT_STACK, &stack) == 0;
    if (is_stack_raised) return;
    stack.rlim_cur = stack.rlim_max = most;
    is_stack_raised = most > now && setrlimit(RLIMIT_STACK, &stack) == 0;
    if (most < STACK_LEAST)
        fail(EXIT_MEMORY,
             "the stack may not grow past %lld KiB (ulimit -s), and the program needs %lld: type ulimit -s 8192 "
             "before it, or raise the hard limit",
             (long long)(most >> 10), (long long)(STACK_LEAST >> 10));
}
__attribute__((section(".preinit_array"), used)) static void (*raise_first)(void) = raise_stack_limit;

void start_process(char **argv) {
    char        pid[24];
    const char *mark = getenv(MARK);
    snprintf(pid, sizeof pid, "%ld", (long)getpid());
    if (mark && strcmp(mark, pid) == 0) return;
    int is_calm = getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY");
    int changed = is_stack_raised | (!is_calm && setenv("GOMP_SPINCOUNT", "1000", 0) == 0);
    if (!changed || setenv(MARK, pid, 1) != 0) return;
    execv("/proc/self/exe", argv); /* if this fails, the run continues, but slower on a busy machine */
}

void start_computing(void) {
    simd_isa();
    thread_start_team();
}
