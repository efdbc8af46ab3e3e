/* pace.h - how fast the steps and ranks of a run are. Warns of a rank that the others wait for, warns of a machine that
 * has become slow, and implements parallel.balance.
 */
#ifndef TRAIN_GPT_RUN_PACE_H
#define TRAIN_GPT_RUN_PACE_H

#include "comm/comm.h"
#include "run/log/metrics.h"

typedef struct Run Run;

/* --- stragglers --------------------------------------------------------------------------------------------------- */

/* The stragglers_ functions find the rank that the others wait for. A step is as fast as its slowest rank. A hot GPU,
 * shared cores or a slow disk may slow that rank, and a mean hides it. Each rank records its own time of the last
 * steps: a step without its waits for other ranks. Rank 0 compares the medians every STRAGGLER_STEPS steps. It only
 * warns, because a slow rank or link is no fault. */

/* A rank is slow if its speed is below STRAGGLER_SPEED of the best rank. Two windows of STRAGGLER_STEPS steps in a row
 * must agree, because a pause of the machine may fall into one. */
enum { STRAGGLER_STEPS = 25, STRAGGLER_WARN_EVERY = 100 };
static const double STRAGGLER_SPEED = 0.75;

/* Times of one step of a rank: its own work, and its wait for messages. */
typedef struct { double compute_ms, wait_ms; } Pace;

typedef struct {
    int64_t steps;                   /* number of steps recorded so far */
    Pace    window[STRAGGLER_STEPS]; /* the last steps, each at its number modulo STRAGGLER_STEPS */
    int     suspect;                 /* rank 0: verdict on the last window: 1 + slow rank, -1: slow link, 0: neither */
    int64_t warned;                  /* number of steps recorded at the last warning; 0: none yet */
} Stragglers;

/* Records one step of this rank. At every STRAGGLER_STEPS-th step all ranks exchange their medians (collective). Rank 0
 * then may warn on stderr, at most every STRAGGLER_WARN_EVERY steps. */
void stragglers_note(Stragglers *s, Comm *comm, const StepMetrics *m);

/* Finds a slow rank or link from the median times of all ranks, pace [ranks]. has_hosts: 1 if the ranks are on several
 * hosts. Returns 1 + the slow rank. Returns -1 for a slow link, if ranks of several hosts all wait longer than any of
 * them computes. Otherwise returns 0. */
int stragglers_find(const Pace *pace, int ranks, int has_hosts);

/* --- slowness ----------------------------------------------------------------------------------------------------- */

/* A run warns after SLOW_STEPS steps in a row that each took over SLOW_FACTOR times as long as its fastest step. The
 * reason may be another program on the machine. */

enum { SLOW_STEPS = 10, SLOW_FACTOR = 5 };

typedef struct {
    double best_ms;      /* fastest step so far; 0: no step yet                                     */
    int    slow, quick;  /* slow steps in a row (above SLOW_FACTOR * best_ms); quick steps in a row */
    int    has_warned;   /* 1 after a warning, until SLOW_STEPS quick steps in a row                */
} Slowness;

/* Records the time of a step. Returns 1 if a warning is due: at the SLOW_STEPS-th slow step in a row, and only once
 * until SLOW_STEPS quick steps in a row have followed. */
int slowness_note(Slowness *s, double ms);
/* Warns that steps take far longer than the fastest one, and prints the load of the machine. ms: time of the last
 * step. */
void slowness_warn(const Slowness *s, double ms);

/* --- balance ------------------------------------------------------------------------------------------------------ */

/* With parallel.balance, ranks that compute faster get more of the micro-batches of a step. The gradient of the step is
 * the same sum over the same micro-batches. Only the rank that computes each micro-batch changes. A group of ranks that
 * computes the same micro-batches is as fast as its slowest rank. */

/* Computes new numbers of micro-batches for the groups of ranks. A group computes the same micro-batches. ms [datas]:
 * time that each group took for its present number. The new numbers are proportional to speed, at least 1 each, with an
 * unchanged sum. Returns 1 if the slowest group would then take less than BALANCE_GAIN of its present time. Otherwise
 * returns 0 and leaves micro [datas] unchanged. Equal ms give equal results on all ranks. */
static const double BALANCE_GAIN = 0.95;
int balance_shares(const double *ms, int64_t *micro, int datas);

/* Every rank calls this after each step, once stragglers_note has recorded the time of the step. At every
 * STRAGGLER_STEPS-th step the ranks exchange their times. If other numbers of micro-batches make steps faster, they use
 * these from step `step` on. */
void balance_note(Run *r, int64_t step);

#endif
