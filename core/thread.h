/* thread.h - threads beside the main one: what all of them start with.
 *
 * Requests from outside (signals sent to the process) are the main thread's alone; faults of a thread's own, and the watchdog's question for
 * its stack, reach it. Timed waits count on the monotonic clock: setting the machine's clock moves nothing. Every thread has one lock and one
 * condition with the main thread, and ends when it is asked to.
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
    pthread_mutex_t lock;    /* guards stop, and what its owner puts beside it */
    pthread_cond_t  changed; /* what the lock guards */
    int             stop;    /* the thread is to end */
    int             ended;   /* it has */
    void         *(*work)(void *ctx);
    void           *ctx;
} Thread;

/* Starts the threads that OpenMP will use, at most as many as the machine has processors: more make a step slower, and a thousand times as many
 * make it a minute. Warns where OMP_NUM_THREADS asks for more; exit 71 where they cannot be started (libgomp would end the process with 1). */
void thread_start_team(void);

/* Starts work(ctx) in a thread. Exit 71, naming `what` it is for, where that is impossible. */
void thread_start(Thread *t, void *(*work)(void *ctx), void *ctx, const char *what);
/* Says stop and waits until the thread has ended. */
void thread_stop(Thread *t);
/* The same, so long at most. 0: a disk or a driver holds the thread; it goes on, and all that it uses must stay, until the process ends. */
int  thread_try_stop(Thread *t, double ms);

/* On either side; between lock and unlock what is guarded may be read and changed, and a wait lets the other side do so meanwhile. */
void thread_lock(Thread *t);
void thread_unlock(Thread *t);
void thread_changed(Thread *t);                /* wakes who waits */
void thread_wait(Thread *t);                   /* until something has changed */
int  thread_wait_for(Thread *t, double ms);    /* the same, so long at most; 0: the time is over */

/* Without the lock: sleeps, unless the thread is to stop; returns whether it is. */
int  thread_sleep(Thread *t, double ms);

#ifdef __cplusplus
}
#endif
#endif
