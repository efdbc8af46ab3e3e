/* thread.c - see thread.h. */
#include "core/thread.h"

#include <stdint.h>
#include <string.h>

#include "core/error.h"

pthread_t thread_start(void *(*work)(void *ctx), void *ctx, const char *what) {
    static const int own[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL, THREAD_STACK_SIGNAL};
    pthread_t        thread;
    sigset_t         blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) sigdelset(&blocked, own[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before); /* a thread is born with its maker's mask */
    int error = pthread_create(&thread, NULL, work, ctx);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) fail(EXIT_MEMORY, "cannot start the thread of %s: %s", what, strerror(error));
    return thread;
}

void thread_condition(pthread_cond_t *changed) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

struct timespec thread_deadline(double ms) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    int64_t ns = at.tv_nsec + (int64_t)(ms * 1e6);
    at.tv_sec += (time_t)(ns / 1000000000), at.tv_nsec = (long)(ns % 1000000000);
    return at;
}
