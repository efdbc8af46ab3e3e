/* thread.c - starts, stops and locks threads, and sets the number of OpenMP threads (thread.h). */
#include "core/thread.h"

#include <limits.h>
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/error.h"

static void *run(void *thread) {
    Thread *t = (Thread *)thread;
    t->work(t->ctx);
    thread_lock(t);
    t->ended = 1;
    thread_changed(t);
    thread_unlock(t);
    return NULL;
}

void thread_start(Thread *t, void *(*work)(void *ctx), void *ctx, const char *what) {
    static const int own[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL, THREAD_STACK_SIGNAL};
    sigset_t         blocked, before;
    pthread_condattr_t monotonic;
    pthread_mutex_init(&t->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&t->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    t->stop = t->ended = 0;
    t->work = work;
    t->ctx = ctx;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) sigdelset(&blocked, own[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before); /* blocks the signals first, because a new thread inherits the
                                                      * signal mask of its creator */
    int error = pthread_create(&t->id, NULL, run, t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        fail(EXIT_MEMORY, "cannot start the thread of %s: %s: raise ulimit -u, or start fewer ranks on this host", what,
             strerror(error));
}

void thread_lock(Thread *t) { pthread_mutex_lock(&t->lock); }
void thread_unlock(Thread *t) { pthread_mutex_unlock(&t->lock); }
void thread_changed(Thread *t) { pthread_cond_broadcast(&t->changed); }
void thread_wait(Thread *t) { pthread_cond_wait(&t->changed, &t->lock); }

static struct timespec deadline(double ms) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    int64_t ns = at.tv_nsec + (int64_t)(ms * 1e6);
    at.tv_sec += (time_t)(ns / 1000000000), at.tv_nsec = (long)(ns % 1000000000);
    return at;
}

int thread_wait_for(Thread *t, double ms) {
    struct timespec until = deadline(ms);
    return pthread_cond_timedwait(&t->changed, &t->lock, &until) == 0;
}

int thread_try_stop(Thread *t, double ms) {
    struct timespec until = deadline(ms);
    thread_lock(t);
    t->stop = 1;
    thread_changed(t);
    while (!t->ended && pthread_cond_timedwait(&t->changed, &t->lock, &until) == 0) {}
    int ended = t->ended;
    thread_unlock(t);
    if (!ended) return 0;
    pthread_join(t->id, NULL);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    return 1;
}

void thread_stop(Thread *t) {
    while (!thread_try_stop(t, 1000.0)) {}
}

int thread_sleep(Thread *t, double ms) {
    struct timespec until = deadline(ms);
    thread_lock(t);
    while (!t->stop && pthread_cond_timedwait(&t->changed, &t->lock, &until) == 0) {}
    int stop = t->stop;
    thread_unlock(t);
    return stop;
}

static void *work_when_told(void *worker) {
    Worker *w = (Worker *)worker;
    omp_set_num_threads(1);
    thread_lock(&w->thread);
    for (;;) {
        while (!w->is_busy && !w->thread.stop) thread_wait(&w->thread);
        if (!w->is_busy) break;
        thread_unlock(&w->thread);
        w->work(w->ctx);
        thread_lock(&w->thread);
        w->is_busy = 0;
        thread_changed(&w->thread);
    }
    thread_unlock(&w->thread);
    return NULL;
}

void worker_start(Worker *w, void (*work)(void *ctx), void *ctx, const char *what) {
    w->work = work, w->ctx = ctx;
    thread_start(&w->thread, work_when_told, w, what);
}

void worker_begin(Worker *w) {
    thread_lock(&w->thread);
    w->is_busy = 1;
    thread_changed(&w->thread);
    thread_unlock(&w->thread);
}

int worker_is_busy(Worker *w) {
    thread_lock(&w->thread);
    int is_busy = w->is_busy;
    thread_unlock(&w->thread);
    return is_busy;
}

void worker_wait(Worker *w, double ms) {
    thread_lock(&w->thread);
    if (w->is_busy) thread_wait_for(&w->thread, ms);
    thread_unlock(&w->thread);
}

static void *idle(void *thread) {
    while (!thread_sleep((Thread *)thread, 1000.0)) {}
    return NULL;
}

int thread_asked(void) {
    const char *text = getenv("OMP_NUM_THREADS");
    char       *end;
    long        first = text ? strtol(text, &end, 10) : 0;
    /* libgomp ignores numbers that are too large, or keeps their last 32 bits */
    if (!text || end == text || end[strspn(end, " \t,0123456789")] || first < 1 || first > INT_MAX) return 0;
    return (int)first;
}

void thread_share(int share) {
    int asked = thread_asked(), threads = asked ? asked : share > 1 ? share : 1;
    if (!asked && getenv("OMP_NUM_THREADS"))
        warn("OMP_NUM_THREADS=\"%s\" is not a number of threads and is ignored: each rank uses its share of the "
             "processors, %d here; unset it, or set it to a number", getenv("OMP_NUM_THREADS"), threads);
    int processors = (int)sysconf(_SC_NPROCESSORS_ONLN);
    /* uses at most one thread per processor, without a warning, because thread_start_team() has already warned */
    omp_set_num_threads(processors > 0 && threads > processors ? processors : threads);
}

/* Starts OpenMP's threads. Before that, it starts and ends as many threads of our own. If the system refuses these, the
 * process exits with 71 and a message of ours. libgomp would only abort. */
void thread_start_team(void) {
    int processors = (int)sysconf(_SC_NPROCESSORS_ONLN), threads = omp_get_max_threads();
    if (threads < 1) omp_set_num_threads(threads = 1); /* libgomp takes OMP_NUM_THREADS=2147483648 as negative */
    if (processors > 0 && threads > processors) {
        warn("OMP_NUM_THREADS asks for %d threads: %d are used, as many as this machine has processors", threads,
             processors);
        omp_set_num_threads(threads = processors);
    }
    Thread *thread = xcalloc((size_t)threads, sizeof *thread, "threads");
    for (int i = 1; i < threads; i++)
        thread_start(&thread[i], idle, &thread[i], "the computation (OMP_NUM_THREADS=1 needs none)");
    for (int i = 1; i < threads; i++) thread_stop(&thread[i]);
    free(thread);
    #pragma omp parallel
    {}
}
