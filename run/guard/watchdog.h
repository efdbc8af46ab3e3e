/* watchdog.h - a thread that ends a job without progress, because MPI itself never notices a hang.
 *
 * The main thread ticks, with the name of its phase, at every progress: a micro-batch, an eval batch, a bucket, a MiB
 * saved. If no tick comes within the limit, the watchdog prints rank, host, phase and collective on stderr, then the
 * stack of every thread. It ends the process with EXIT_PEER, and the launcher ends the other ranks. Every rank has a
 * watchdog, from before MPI_Init to after MPI_Finalize. So the waiting ranks notice a rank that is stopped altogether,
 * and the ranks of a host that the launcher cannot reach end themselves. The rank that hangs fell silent first, so its
 * report comes first.
 *
 * When a rank dies, the others would wait until the launcher kills them two seconds later. Instead they end at once,
 * and one rank of the same host prints which rank died, and its place in the grid.
 */
#ifndef TRAIN_GPT_RUN_GUARD_WATCHDOG_H
#define TRAIN_GPT_RUN_GUARD_WATCHDOG_H

#include "comm/comm.h"
#include "core/mesh.h"

typedef struct Watchdog Watchdog;

/* Starts the thread. limit_seconds: the longest allowed time without a tick. 0: the limit follows from the pauses seen
 * (watchdog_limit). Messages name rank and host by `launch`. */
Watchdog *watchdog_create(double limit_seconds, Launch launch);
/* Gives the watchdog the communicator of all ranks (borrowed), and for its report the places of the ranks in the grid
 * (tensor, pipeline, shard, ...). */
void      watchdog_know(Watchdog *w, Comm *comm, Mesh mesh);
void      watchdog_destroy(Watchdog *w);

/* Records a tick: progress of the main thread. phase: name of the phase that begins now, a string literal; NULL: the
 * old phase continues. w may be NULL: no watchdog. */
void watchdog_tick(Watchdog *w, const char *phase);
/* Returns the longest allowed time without a tick (sign of progress), in seconds. It is configured_seconds if that is
 * not 0. Otherwise it is WATCHDOG_STARTING_SECONDS until watchdog_started, then max(30, 20 x the longest pause
 * seen). */
enum { WATCHDOG_STARTING_SECONDS = 300, WATCHDOG_LEAST_SECONDS = 30, WATCHDOG_PAUSES = 20 };
double watchdog_limit(double configured_seconds, int has_started, double longest_seconds);
/* returns the longest allowed time without a tick in seconds, by the pauses between ticks so far */
double watchdog_allows(const Watchdog *w);

/* Called before the first step. Forgets the pauses between ticks during the start, which are no measure of later
 * ones. */
void watchdog_forget_start(Watchdog *w);
/* Called after the first step. From then on the limit follows from the pauses between ticks (watchdog_limit). */
void watchdog_started(Watchdog *w);
/* Called at the end of the run. From then on the watchdog accepts that other ranks are gone. */
void watchdog_ends(Watchdog *w);

#endif
