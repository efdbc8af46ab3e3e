/* signals.h - turns signals into requests. Handlers only set flags, which requests.h reads together with files and
 * time.
 *
 *   SIGUSR1, SIGTERM, SIGINT, SIGHUP   save and stop; a second TERM or INT ends at once; HUP stays ignored under nohup
 *   SIGUSR2                            save and continue
 *   SIGCONT                            from mpirun: save and stop; TERM follows after 1 s, KILL after 2 s: watchdog.c.
 *                                      From a rank of this host, by sigqueue(): that rank ends the job after its own message
 */
#ifndef TRAIN_GPT_RUN_GUARD_SIGNALS_H
#define TRAIN_GPT_RUN_GUARD_SIGNALS_H

#include "comm/comm.h"

/* Installs the handlers of a run. Called first in a run; an earlier signal ends the process at once. Called again after
 * MPI and NCCL have started, because a library may install handlers late (NCCL 2.14: SIGUSR1). */
void signals_install(void);
/* Blocks the signals of requests in all threads of OpenMP but the main thread. Called once the number of threads is
 * set. */
void signals_keep_to_main(void);

/* For a process without signals_install(). Removes the file `path` (borrowed) if HUP, INT or TERM ends the process.
 * signals_keep() undoes this. */
void signals_remove(const char *path);
void signals_keep(const char *path);

/* Makes rank 0 answer signals at once, with a line that says what will happen. Every rank calls it once it knows its
 * launcher. */
void signals_answer(Launch launch);
void signals_answer_end(void); /* ends the answers, because the run is saved */

int signals_stop(void);      /* returns 1 from the first request to stop on */
int signals_take_save(void); /* returns 1 if a request to save came since the last call */
/* Return clock_ms() of the last SIGCONT, and of the first TERM or INT; -INFINITY if none came. Any thread may call
 * them. */
double signals_continued_ms(void);
double signals_ended_ms(void);
/* Returns 1 if this local rank has ended the job with an error that it reported. Any thread may call it. */
int signals_reported(int local);

#endif
