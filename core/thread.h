/* thread.h - the monotonic clock, and threads besides the main thread: their start, their lock and their end.
 *
 * Only the main thread takes signals sent to the process. Another thread takes those of its own faults, and the
 * watchdog's request for its stack. Timed waits use the monotonic clock, so a change of the wall clock has no effect.
 * Every thread shares one lock and one condition with the main thread, and ends on request.
 */
#ifndef TRAIN_GPT_CORE_THREAD_H
#define TRAIN_GPT_CORE_THREAD_H

#include <pthread.h>
#include <signal.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns monotonic time in milliseconds. A change of the wall clock has no effect on it. */
static inline double clock_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

enum { THREAD_STACK_SIGNAL = SIGURG }; /* signal by which the watchdog requests a thread's stack trace; ignored by
                                        * default, and not used elsewhere in this program */

typedef struct {
    pthread_t       id;
    pthread_mutex_t lock;    /* guards `stop`, and the fields that the thread's owner shares with the thread */
    pthread_cond_t  changed; /* signals that a field guarded by `lock` has changed */
    int             stop;    /* 1: the thread is requested to end */
    int             ended;   /* 1: the thread has ended */
    void         *(*work)(void *ctx);
    void           *ctx;
} Thread;

/* Returns the number of threads in OMP_NUM_THREADS; of a list such as "4,2" the first number. Returns 0 if it is not
 * set or holds no such number. */
int thread_asked(void);
/* Sets the number of OpenMP threads to OMP_NUM_THREADS, or if that is not set to `share`, at least 1. Warns if
 * OMP_NUM_THREADS holds no number, because libgomp would then use all processors for each rank. */
void thread_share(int share);

/* Starts the threads that OpenMP will use, at most one for each processor of the machine. More threads than processors
 * make a step slower; a thousand times as many make it take a minute. Warns if OMP_NUM_THREADS is larger. Exit 71 if
 * the threads cannot be started (libgomp would end the process with 1). */
void thread_start_team(void);

/* Starts work(ctx) in a thread. Exit 71 if that fails; `what` names the thread's purpose in the message. */
void thread_start(Thread *t, void *(*work)(void *ctx), void *ctx, const char *what);
/* Requests that the thread end, and waits until it has ended. */
void thread_stop(Thread *t);
/* Requests that the thread end, and waits at most `ms`. Returns 1 if it has ended, or 0 if it hangs in a call to a disk
 * or a driver. The thread then continues, and its memory must stay until the process ends. */
int  thread_try_stop(Thread *t, double ms);

/* Lock and unlock the fields that a thread shares with the thread that started it. Either thread may read and change
 * them between the two calls. thread_wait and thread_wait_for give up the lock while they wait. */
void thread_lock(Thread *t);
void thread_unlock(Thread *t);
void thread_changed(Thread *t);                /* reports a change of the shared fields: wakes the other thread if it
                                                * waits for a change */
void thread_wait(Thread *t);                   /* waits, without the lock, until the other thread has called
                                                * thread_changed */
int  thread_wait_for(Thread *t, double ms);    /* waits at most `ms` for a change; returns 0 if that time has passed
                                                * without one */

/* Sleeps for `ms`, or until the thread is requested to end. Returns 1 if it is requested to end. The caller does not
 * hold the lock. */
int  thread_sleep(Thread *t, double ms);

/* A thread that calls work(ctx) once for each worker_begin. It uses one processor, because training uses the others.
 * thread_stop() waits for the work that has begun, and ends it. */
typedef struct {
    Thread thread;
    void (*work)(void *ctx);
    void  *ctx;
    int    is_busy;     /* 1 while the thread works; guarded by its lock */
} Worker;

/* Starts the thread of a worker, which then waits for worker_begin. what: name of the work, for messages */
void worker_start(Worker *w, void (*work)(void *ctx), void *ctx, const char *what);
void worker_begin(Worker *w);
int  worker_is_busy(Worker *w);
void worker_wait(Worker *w, double ms);   /* waits until the work is done, but at most `ms` milliseconds */

#ifdef __cplusplus
}
#endif
#endif
