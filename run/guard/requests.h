/* requests.h - collects the requests to stop a run or to save it, from signals, files and time, and brings them to all
 * ranks at the same step.
 *
 *   SIGUSR1, SIGTERM, SIGINT, SIGHUP, the file <run.dir>/STOP: save and stop with exit code 75. A second TERM or INT
 *   ends the job at once. HUP stays ignored under nohup.
 *   SIGUSR2, the file <run.dir>/SAVE: save and continue.
 *   run.max_minutes, SLURM_JOB_END_TIME: save and stop, so early that three checkpoints could be written before the
 *   time is over.
 *   SIGCONT from mpirun: save and stop. TERM follows after 1 s, KILL after 2 s (watchdog.c).
 *   SIGCONT from a rank of this host, by sigqueue(): that rank ends the job after its own message.
 *
 * A step reads the requests once, and its reduction carries them to all ranks. Evaluations and samples read them
 * between their batches (requests_agree). An evaluation or sample that a request interrupts is not logged, and the
 * checkpoint is of the same step. A resume first does the evaluation missing in the log, so that the log equals that of
 * a run never stopped. It does not repeat the sample. Every start takes at least one step, unless a signal or STOP (not
 * the time) ends the evaluation before it. After the last step and its evaluation nothing is left to do. The exit code
 * is then 0, despite any request.
 */
#ifndef TRAIN_GPT_RUN_GUARD_REQUESTS_H
#define TRAIN_GPT_RUN_GUARD_REQUESTS_H

#include "comm/comm.h"

/* --- signals: handlers only set flags ----------------------------------------------------------------------------- */

/* Installs the handlers of a run. Called first in a run; an earlier signal ends the process at once. Called again after
 * MPI and NCCL have started, because a library may install handlers late (NCCL 2.14: SIGUSR1). */
void signals_install(void);
/* Blocks the signals of requests in all threads of OpenMP but the main thread. Called once the number of threads is
 * set. */
void signals_keep_to_main(void);

/* Registers a file that is removed if HUP, INT or TERM ends the process. path is borrowed. For a process without
 * signals_install(). signals_keep() undoes this. */
void signals_remove(const char *path);
void signals_keep(const char *path);

/* Makes rank 0 answer signals at once, with a line that says what will happen. Every rank calls it once it knows its
 * launcher. */
void signals_answer(Launch launch);

int signals_stop(void);      /* returns 1 once a request to stop has come, and from then on */
int signals_take_save(void); /* returns 1 if a request to save came since the last call */
/* Return clock_ms() of the last SIGCONT, and of the first TERM or INT; -INFINITY if none came. Any thread may call
 * them. */
double signals_continued_ms(void);
double signals_ended_ms(void);
/* Returns 1 if rank `local` of this host has ended the job with an error that it reported. Any thread may call it. */
int signals_reported(int local);

/* --- signals, files and time together ----------------------------------------------------------------------------- */

/* The time at which this process must have ended. It is on clock_ms(), so that jumps of the wall clock do not
 * matter. */
typedef struct {
    const char *name;       /* name of the config key or environment variable that sets the limit */
    double      end_ms;     /* time at which the process must have ended, on clock_ms(); INFINITY: never */
    double      least_ms;   /* least time to keep free before end_ms, even if saves are faster */
} TimeLimit;

typedef struct {
    Comm       *comm;       /* all ranks of the run; borrowed */
    const char *dir;        /* borrowed: run.dir */
    TimeLimit   limit[2];
    /* rank 0: 1 if the file STOP existed at the start; it was removed and is obeyed */
    int         stop_was_there;
    /* rank 0: set of bits 1 << file, for request files that cannot be removed and are ignored */
    int         stuck;
    double      save_ms;    /* duration of a save: estimated from its size; the caller sets it after each save */
    int         stepped;    /* 1 if this process has taken a step */
    int         stop;       /* 1 if all ranks know the request to stop */
    int64_t     stride;     /* number of calls of requests_agree from one exchange of requests to the next; equal on all
                             * ranks */
    int64_t     left;       /* number of calls of requests_agree until the next exchange of requests between ranks */
    double      asked_ms;   /* time of the last exchange of requests between ranks, on clock_ms() */
} Requests;

/* Begins to collect requests to stop or save. Removes a file STOP that exists, and obeys it like one that comes later.
 * A STOP that cannot be removed is ignored, because it would end every start after one step. minutes: run.max_minutes,
 * counted from started_ms. checkpoint_bytes: size of all files of one checkpoint. Reads the end time of SLURM once. */
Requests requests_start(Comm *comm, const char *dir, double minutes, double started_ms, double checkpoint_bytes);

/* Called in every step. Returns 1 if this rank has a request to stop. Only rank 0 looks at files and time. next_ms: how
 * long the next step may take. */
int  requests_stop(Requests *q, double next_ms);
/* Returns 1 after a new request to save, by SIGUSR2 or the file SAVE, which is removed. */
int  requests_save(Requests *q);

/* Functions for work in batches, such as an evaluation, with equally many batches on every rank. requests_begin is
 * called before the first batch. requests_agree is collective and called before each batch. It returns 1 if any rank
 * has a request to stop. Most calls only count, because the ranks exchange messages about every tenth of a second. */
void requests_begin(Requests *q);
int  requests_agree(Requests *q);

/* Called at the end of the run, after its last save. Removes the files STOP and SAVE. Later signals no longer stop or
 * save. */
void requests_end(Requests *q);

/* Returns the name of the time limit that comes first, or NULL if there is none. Writes how far away it is, and how
 * long before it the run stops. */
const char *requests_limit(const Requests *q, double *away_ms, double *reserve_ms);

#endif
