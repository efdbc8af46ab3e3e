/* watchdog.c - see watchdog.h. What the two threads share is atomic; the watcher takes no lock that a hung thread could hold, and
 * writes to stderr without stdio. */
#include "run/watchdog.h"

#include <dirent.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"

enum { STACK_SIGNAL = SIGURG /* by default ignored, and nobody here uses it */, STACK_DEPTH = 64 };
static const double LOOK_MS = 200.0, STACK_MS = 100.0;

struct Watchdog {
    const Comm       *comm;      /* borrowed */
    double            limit_ms;  /* as configured; 0 = by what was seen */
    pthread_t         thread;
    pthread_mutex_t   lock;      /* guards stop */
    pthread_cond_t    changed;
    int               stop;
    _Atomic int64_t   last_us;   /* clock_ms() * 1000 of the last tick                  */
    _Atomic int64_t   longest_us;/* pause between two ticks, the first step's included  */
    _Atomic int       started;
    const char *_Atomic phase;
};

static int64_t now_us(void) { return (int64_t)(clock_ms() * 1e3); }

/* --- the main thread's side ---------------------------------------------------------------------------------------------------------- */

void watchdog_tick(Watchdog *w, const char *phase) {
    if (!w) return;
    int64_t now = now_us(), pause = now - w->last_us;
    if (pause > w->longest_us) w->longest_us = pause;
    w->phase = phase;
    w->last_us = now;
}

void watchdog_started(Watchdog *w) {
    if (w) w->started = 1;
}

/* --- the report ------------------------------------------------------------------------------------------------------------------------ */

static void say(const char *fmt, ...) PRINTF_LIKE(1, 2);
static void say(const char *fmt, ...) {
    char    line[512];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    size_t length = n < (int)sizeof line ? (size_t)n : sizeof line - 1;
    if (write(STDERR_FILENO, line, length) < 0) return; /* there is nobody left to tell */
}

static void on_stack_signal(int signal_number) {
    (void)signal_number;
    void *frame[STACK_DEPTH];
    int   frames = backtrace(frame, STACK_DEPTH);
    backtrace_symbols_fd(frame, frames, STDERR_FILENO);
}

/* backtrace() loads a library the first time, which a signal handler must not. */
static void prepare_stacks(void) {
    void *frame[1];
    backtrace(frame, 1);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_stack_signal;
    action.sa_flags = SA_RESTART | SA_ONSTACK;
    sigaction(STACK_SIGNAL, &action, NULL);
}

static void sleep_ms(double ms) {
    struct timespec t = {(time_t)(ms / 1e3), (long)((ms - 1e3 * (double)(time_t)(ms / 1e3)) * 1e6)};
    nanosleep(&t, NULL);
}

/* Each thread prints its own stack: only it can walk it. */
static void print_stacks(void) {
    DIR *tasks = opendir("/proc/self/task");
    long own = syscall(SYS_gettid);
    for (struct dirent *entry; tasks && (entry = readdir(tasks));) {
        long thread = strtol(entry->d_name, NULL, 10);
        if (thread <= 0 || thread == own) continue;
        say("train_gpt: stack of thread %ld%s:\n", thread, thread == getpid() ? " (main)" : "");
        syscall(SYS_tgkill, getpid(), thread, STACK_SIGNAL);
        sleep_ms(STACK_MS);
    }
    if (tasks) closedir(tasks);
}

static void describe_collective(const Comm *comm, char *out, size_t room) {
    CommTrace last;
    if (comm_trace(comm, &last, 1) == 0) snprintf(out, room, "no collective was started");
    else if (last.end_ms == 0) snprintf(out, room, "collective %lld is in flight since %.1f s", (long long)last.sequence, (clock_ms() - last.start_ms) * 1e-3);
    else snprintf(out, room, "the last collective, number %lld, has ended", (long long)last.sequence);
}

static NORETURN void end_job(const Watchdog *w, double silent_ms, double limit_ms) {
    char        collective[128];
    const char *phase = w->phase;
    int         rank = comm_rank(w->comm);
    describe_collective(w->comm, collective, sizeof collective);
    say("train_gpt: rank %d of %d on %s: no progress for %.1f s (limit %.1f s, run.watchdog_seconds) in %s; %s\n", rank, comm_size(w->comm),
        comm_host(w->comm, rank), silent_ms * 1e-3, limit_ms * 1e-3, phase, collective);
    print_stacks();
    _exit(EXIT_PEER);
}

/* --- the watcher ------------------------------------------------------------------------------------------------------------------------ */

static double limit_now(const Watchdog *w) {
    if (w->limit_ms > 0.0) return w->limit_ms;
    if (!w->started) return WATCHDOG_STARTING_SECONDS * 1e3;
    double seen = WATCHDOG_PAUSES * (double)w->longest_us * 1e-3, least = WATCHDOG_LEAST_SECONDS * 1e3;
    return seen > least ? seen : least;
}

/* Sleeps; returns 1 when the watchdog is to end. */
static int wait_or_stop(Watchdog *w, double ms) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t ns = until.tv_nsec + (int64_t)(ms * 1e6);
    until.tv_sec += (time_t)(ns / 1000000000), until.tv_nsec = (long)(ns % 1000000000);
    pthread_mutex_lock(&w->lock);
    while (!w->stop && pthread_cond_timedwait(&w->changed, &w->lock, &until) == 0) {}
    int stop = w->stop;
    pthread_mutex_unlock(&w->lock);
    return stop;
}

static void *watch(void *watchdog) {
    Watchdog *w = (Watchdog *)watchdog;
    for (int64_t looked = now_us(); !wait_or_stop(w, LOOK_MS); looked = now_us()) {
        double asleep_ms = (double)(now_us() - looked) * 1e-3;
        if (asleep_ms > 10 * LOOK_MS) w->last_us = now_us(); /* the whole process was stopped, not one of its threads: begin anew */
        double silent_ms = (double)(now_us() - w->last_us) * 1e-3, limit_ms = limit_now(w);
        if (silent_ms > limit_ms) end_job(w, silent_ms, limit_ms);
    }
    return NULL;
}

Watchdog *watchdog_create(double limit_seconds, const Comm *comm) {
    Watchdog *w = (Watchdog *)calloc(1, sizeof *w);
    if (!w) fail(EXIT_MEMORY, "no memory for a watchdog");
    w->comm = comm;
    w->limit_ms = limit_seconds * 1e3;
    w->last_us = now_us();
    w->phase = "the start";
    prepare_stacks();
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&w->lock, NULL);
    sigset_t all, before;
    sigfillset(&all); /* requests from outside are the main thread's */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&w->thread, NULL, watch, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) fail(EXIT_MEMORY, "cannot start the watchdog's thread: %s", strerror(error));
    return w;
}

void watchdog_destroy(Watchdog *w) {
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->stop = 1;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
