/* thread.h - threads beside the main one: their start, their lock and their end.
 *
 * Only the main thread takes signals sent to the process. Another thread takes those of its own faults, and the
 * watchdog's request for its stack. Timed waits use the monotonic clock: a change of the machine's clock moves
 * nothing. Every thread has one lock and one condition with the main thread, and ends when it is asked to.
 */
#ifndef TRAIN_GPT_CORE_THREAD_H
#define TRAIN_GPT_CORE_THREAD_H

#include <pthread.h>
#include <signal.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { THREAD_STACK_SIGNAL = SIGURG }; /* by default ignored, and nobody here uses it */

typedef struct {
    pthread_t       id;
    pthread_mutex_t lock;    /* guards stop, and fields of the thread's owner */
    pthread_cond_t  changed; /* signals their change */
    int             stop;    /* the thread is to end */
    int             ended;   /* it has */
    void         *(*work)(void *ctx);
    void           *ctx;
} Thread;

/* Returns the number of threads in OMP_NUM_THREADS, the first of a list; 0 if it is not set or holds no such number. */
int thread_asked(void);
/* Sets the number of OpenMP threads to thread_asked(), or if that is 0 to `share`, at least 1. Warns if OMP_NUM_THREADS
 * holds no number, because libgomp would then use all processors for each rank. */
void thread_share(int share);

/* Starts the threads that OpenMP will use, at most one for each processor of the machine. More make a step slower; a
 * thousand times as many make it take a minute. Warns where OMP_NUM_THREADS asks for more. Exit 71 where they cannot
 * be started (libgomp would end the process with 1). */
void thread_start_team(void);

/* Starts work(ctx) in a thread. Exit 71 where that is impossible; `what` names the thread's purpose in the message. */
void thread_start(Thread *t, void *(*work)(void *ctx), void *ctx, const char *what);
/* Sets stop and waits until the thread has ended. */
void thread_stop(Thread *t);
/* The same, for ms at most. Returns 0 where a disk or a driver holds the thread: it goes on, and its memory must
 * stay, until the process ends. */
int  thread_try_stop(Thread *t, double ms);

/* For both threads. Between lock and unlock the caller may read and change the guarded fields; during a wait the other
 * thread may. */
void thread_lock(Thread *t);
void thread_unlock(Thread *t);
void thread_changed(Thread *t);                /* wakes the waiting thread */
void thread_wait(Thread *t);                   /* until something has changed */
int  thread_wait_for(Thread *t, double ms);    /* the same, for ms at most; 0: the time is over */

/* Called without the lock. Sleeps for ms, or until the thread is to stop; returns whether it is. */
int  thread_sleep(Thread *t, double ms);

#ifdef __cplusplus
}
#endif
#endif
