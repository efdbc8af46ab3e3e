/* stragglers.h - finds the rank that the others wait for. A step is as fast as its slowest rank; a hot GPU, shared
 * cores or a slow disk may hold it back, and a mean hides it. Each rank keeps its last steps' own time (a step less its
 * waits for the others); now and then rank 0 compares the medians. It only prints: a slow rank or link is no fault.
 */
#ifndef TRAIN_GPT_RUN_STRAGGLERS_H
#define TRAIN_GPT_RUN_STRAGGLERS_H

#include "comm/comm.h"
#include "run/log/metrics.h"

/* A rank is slow when its speed is less than 0.75 of the best. Two windows in a row must agree: one may have met a
 * pause of the machine. */
enum { STRAGGLER_STEPS = 25, STRAGGLER_WARN_EVERY = 100, STRAGGLER_TEXT = 512 };
static const double STRAGGLER_SPEED = 0.75;

typedef struct { double compute_ms, wait_ms; } Pace; /* of one step: a rank's own work, and its wait for messages */

typedef struct {
    int64_t steps;                   /* noted so far                                     */
    Pace    window[STRAGGLER_STEPS]; /* the last ones                                    */
    int     suspect;                 /* rank 0: stragglers_find of the last window       */
    int64_t warned;                  /* at so many steps; 0: never                       */
} Stragglers;

/* One step of this rank. Collective at every STRAGGLER_STEPS-th; rank 0 then warns on stderr, at most every
 * STRAGGLER_WARN_EVERY steps. */
void stragglers_note(Stragglers *s, Comm *comm, const StepMetrics *m);

/* Of the last STRAGGLER_STEPS steps of this rank, once there are so many. */
Pace stragglers_median(const Stragglers *s);

/* From every rank's medians: 1 + the slow rank; -1 for a slow link, when ranks of several hosts all wait longer than
 * any of them computes; else 0. */
int stragglers_find(const Pace *pace, int ranks, int has_hosts);

#endif
