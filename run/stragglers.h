/* stragglers.h - finds the rank that the others wait for. A step is as fast as its slowest rank. A hot GPU, shared
 * cores or a slow disk may slow that rank, and a mean hides it. Each rank keeps its own time of the last steps, which
 * is a step without its waits for other ranks. Rank 0 compares the medians every STRAGGLER_STEPS steps. It only warns,
 * because a slow rank or link is no fault.
 */
#ifndef TRAIN_GPT_RUN_STRAGGLERS_H
#define TRAIN_GPT_RUN_STRAGGLERS_H

#include "comm/comm.h"
#include "run/log/metrics.h"

/* A rank is slow if its speed is below STRAGGLER_SPEED of the best. Two windows in a row must agree, because a pause of
 * the machine may fall into one. */
enum { STRAGGLER_STEPS = 25, STRAGGLER_WARN_EVERY = 100, STRAGGLER_TEXT = 512 };
static const double STRAGGLER_SPEED = 0.75;

typedef struct { double compute_ms, wait_ms; } Pace; /* one step of a rank: its own work; its wait for messages */

typedef struct {
    int64_t steps;                   /* recorded so far                                  */
    Pace    window[STRAGGLER_STEPS]; /* the last steps, each at its number modulo STRAGGLER_STEPS */
    int     suspect;                 /* rank 0: result of stragglers_find for the last window */
    int64_t warned;                  /* value of steps at the last warning; 0: never     */
} Stragglers;

/* Records one step of this rank. Collective at every STRAGGLER_STEPS-th step. Rank 0 then may warn on stderr, at most
 * every STRAGGLER_WARN_EVERY steps. */
void stragglers_note(Stragglers *s, Comm *comm, const StepMetrics *m);

/* Returns the medians of the last STRAGGLER_STEPS steps of this rank. As many steps must have been recorded. */
Pace stragglers_median(const Stragglers *s);

/* Judges the medians of all ranks. Returns 1 + the slow rank. Returns -1 for a slow link, if ranks of several hosts all
 * wait longer than any of them computes. Else returns 0. */
int stragglers_find(const Pace *pace, int ranks, int has_hosts);

#endif
