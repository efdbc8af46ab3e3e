/* thread.h - threads beside the main one: what all of them start with.
 *
 * Requests from outside (signals sent to the process) are the main thread's alone; faults of a thread's own, and the watchdog's question for
 * its stack, reach it. Timed waits count on the monotonic clock: setting the machine's clock moves nothing.
 */
#ifndef TRAIN_GPT_CORE_THREAD_H
#define TRAIN_GPT_CORE_THREAD_H

#include <pthread.h>
#include <signal.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { THREAD_STACK_SIGNAL = SIGURG }; /* by default ignored, and nobody here uses it */

/* Starts work(ctx) in a thread. Exit 71, naming `what` it is for, where that is impossible. */
pthread_t       thread_start(void *(*work)(void *ctx), void *ctx, const char *what);
void            thread_condition(pthread_cond_t *changed);  /* initialises it for waits until a thread_deadline */
struct timespec thread_deadline(double ms);                 /* so long from now */

#ifdef __cplusplus
}
#endif
#endif
