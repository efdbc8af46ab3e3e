/* watchdog.h - a thread that ends a job which no longer gets anywhere: MPI itself never notices a hang.
 *
 * The main thread says what it is doing at every piece of progress (a micro-batch, an eval batch, a bucket, a MiB saved). When nothing
 * has been said for the limit, the watchdog tells rank, host, phase and last collective on stderr, prints the stack of every thread, and
 * ends the process with EXIT_PEER; the launcher then takes the other ranks. Every rank has one, so a rank that is stopped altogether is
 * noticed by those that wait for it.
 */
#ifndef TRAIN_GPT_RUN_WATCHDOG_H
#define TRAIN_GPT_RUN_WATCHDOG_H

#include "comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Watchdog Watchdog;

/* limit_seconds 0: WATCHDOG_STARTING_SECONDS until watchdog_started, then max(30, 20 x the longest pause seen). comm is borrowed. */
enum { WATCHDOG_STARTING_SECONDS = 300, WATCHDOG_LEAST_SECONDS = 30, WATCHDOG_PAUSES = 20 };
Watchdog *watchdog_create(double limit_seconds, const Comm *comm);
void      watchdog_destroy(Watchdog *w);

/* Progress; phase (a literal) is what begins now. w may be NULL: nobody watches. */
void watchdog_tick(Watchdog *w, const char *phase);
/* The first step is behind us, and with it the longest pauses of a start. */
void watchdog_started(Watchdog *w);

#ifdef __cplusplus
}
#endif
#endif
