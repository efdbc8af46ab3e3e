/* requests.h - the requests to stop a run or to save it, and their way to all ranks at the same step.
 *
 *   SIGUSR1, SIGTERM, SIGINT, <run.dir>/STOP   stop, saved, exit 75 (SIGHUP too: signals.h)
 *   SIGUSR2, <run.dir>/SAVE                    save and go on
 *   run.max_minutes, SLURM_JOB_END_TIME        stop as above, so early that three checkpoints could be written before the time is over
 *
 * A step asks once, and its reduction carries that to all ranks. Evaluations and samples ask between their pieces
 * (requests_agree): one that is cut short is not logged. The checkpoint is then of the same step. A resume first does
 * the evaluation missing in the log, so that the log equals that of a run never stopped; a sample is left out. Every
 * start takes at least one step, unless a signal or STOP (not the time) ends the evaluation before it. Nothing is left
 * to do after the last step and its evaluation: exit 0, despite any request.
 */
#ifndef TRAIN_GPT_RUN_GUARD_REQUESTS_H
#define TRAIN_GPT_RUN_GUARD_REQUESTS_H

#include "comm/comm.h"

/* When this process has to be gone; all on clock_ms(), so that a wall clock that jumps does not matter. */
typedef struct {
    const char *name;       /* of its key or variable */
    double      end_ms;     /* INFINITY: never */
    double      least_ms;   /* to keep free before it, however short a save is */
} TimeLimit;

typedef struct {
    Comm       *comm;       /* borrowed */
    const char *dir;        /* borrowed: run.dir */
    TimeLimit   limit[2];
    int         stop_was_there; /* rank 0: STOP, before the start; taken away, to be obeyed */
    int         stuck;      /* rank 0: 1 << file of those that cannot be removed: as if they were not there */
    double      save_ms;    /* that a checkpoint takes: guessed from its size until one has been written */
    int         stepped;    /* a step has been taken */
    int         stop;       /* all ranks know of it */
    int64_t     stride;     /* pieces from one exchange to the next, the same on all ranks; `left` of them are to come */
    int64_t     left;
    double      asked_ms;   /* of the last exchange */
} Requests;

/* Takes a STOP that is there: it is obeyed like one that comes later, unless it cannot be removed, which would end
 * every start after a step. minutes: run.max_minutes, counted from started_ms. checkpoint_bytes: of one checkpoint, all
 * files. Reads SLURM's end time once. */
Requests requests_start(Comm *comm, const char *dir, double minutes, double started_ms, double checkpoint_bytes);

/* Asked in every step: whether this rank is to stop; files and time are looked at by rank 0. next_ms: how long the next
 * step may take. */
int  requests_stop(Requests *q, double next_ms);
int  requests_save(Requests *q);              /* since the last call; removes SAVE */
void requests_saved(Requests *q, double ms);  /* a checkpoint has taken that long */

/* Work in pieces, as many on every rank: requests_begin comes before all of them. requests_agree, collective, before
 * each: 1 when any rank has been asked to stop. Most calls only count: the ranks exchange words about every tenth of a
 * second. */
void requests_begin(Requests *q);
int  requests_agree(Requests *q);

/* The run ends, and with it every request. Removes STOP and SAVE. */
void requests_end(Requests *q);

/* The limit that comes first: its name (NULL: there is none), how far away it is, and how long before it the run
 * stops. */
const char *requests_limit(const Requests *q, double *away_ms, double *reserve_ms);

#endif
