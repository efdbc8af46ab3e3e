/* signals.h - signals as requests: handlers only set flags, which requests.h reads together with files and time.
 *
 *   SIGUSR1, SIGTERM, SIGINT, SIGHUP   stop, saved; a second TERM or INT ends it at once; HUP ignored by nohup stays so
 *   SIGUSR2                            save and go on
 *   SIGCONT                            from mpirun: stop, as above; TERM follows a second later, KILL after another: watchdog.c.
 *                                      From a rank of this host, by sigqueue(): that rank ends the job after its own message
 */
#ifndef TRAIN_GPT_RUN_GUARD_SIGNALS_H
#define TRAIN_GPT_RUN_GUARD_SIGNALS_H

#include "comm/comm.h"

/* Installs the handlers of a run. Called first in a run; an earlier signal ends the process at once. Called again after
 * MPI and NCCL have started, because a library may install handlers late (NCCL 2.14: SIGUSR1). */
void signals_install(void);
/* Requests are the main thread's: the other threads of OpenMP's team do not take them. Once the number of threads is
 * set. */
void signals_keep_to_main(void);

/* A process without signals_install(): removes the file of that path (borrowed) where HUP, INT or TERM ends it.
 * signals_keep() takes that back. */
void signals_remove(const char *path);
void signals_keep(const char *path);

/* This process answers signals at once, with a line that says what will happen: rank 0's, once it knows its
 * launcher. */
void signals_answer(Launch launch);
void signals_answer_end(void); /* ends the answers: the run is saved */

int signals_stop(void);      /* this process has been asked to stop: from then on always 1 */
int signals_take_save(void); /* it has been asked to save since the last call */
/* clock_ms() of the last SIGCONT, and of the first TERM or INT; -INFINITY: none came. Any thread may ask. */
double signals_continued_ms(void);
double signals_ended_ms(void);
/* Returns 1 if this local rank has ended the job with an error that it reported. Any thread may ask. */
int signals_reported(int local);

#endif
