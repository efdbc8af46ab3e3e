/* watchdog.h - a thread that ends a job which no longer gets anywhere: MPI itself never notices a hang.
 *
 * The main thread ticks, naming its phase, at every piece of progress (a micro-batch, an eval batch, a bucket, a MiB
 * saved). After the limit without a tick, the watchdog prints rank, host, phase and collective on stderr, then the
 * stack of every thread, and ends the process with EXIT_PEER; the launcher then ends the other ranks. Every rank has
 * one, from before MPI_Init to after MPI_Finalize. So the waiting ranks notice one that is stopped altogether, and the
 * ranks of a host that the launcher cannot reach end themselves. The rank that hangs was silent first: its report comes
 * first too.
 *
 * A rank that died leaves the others waiting until the launcher kills them, two seconds later. They go at once, and one
 * of its host says which rank it was, and its place in the grid.
 */
#ifndef TRAIN_GPT_RUN_GUARD_WATCHDOG_H
#define TRAIN_GPT_RUN_GUARD_WATCHDOG_H

#include "comm/comm.h"
#include "core/mesh.h"

typedef struct Watchdog Watchdog;

/* limit_seconds 0: see watchdog_limit. The rank and its host are printed as the launcher has them. */
Watchdog *watchdog_create(double limit_seconds, Launch launch);
/* Borrows the ranks' communicator, for the report; mesh: their places. */
void      watchdog_know(Watchdog *w, Comm *comm, Mesh mesh);
void      watchdog_destroy(Watchdog *w);

/* Progress; phase (a literal) begins now, NULL: the old one goes on. w may be NULL: no watchdog. */
void watchdog_tick(Watchdog *w, const char *phase);
/* How long a silence may be: as configured, or WATCHDOG_STARTING_SECONDS until watchdog_started, then max(30, 20 x the
 * longest pause seen). */
enum { WATCHDOG_STARTING_SECONDS = 300, WATCHDOG_LEAST_SECONDS = 30, WATCHDOG_PAUSES = 20 };
double watchdog_limit(double configured_seconds, int has_started, double longest_seconds);
double watchdog_allows(const Watchdog *w); /* that limit, by w's ticks so far */

/* The first step is about to begin: the pauses of the start are no measure of those to come. */
void watchdog_forget_start(Watchdog *w);
/* The first step is behind us. */
void watchdog_started(Watchdog *w);
/* The end has come: from here on other ranks may be gone. */
void watchdog_ends(Watchdog *w);

#endif
