/* start.h - the settings that a process needs first: a large stack, and threads that do not spin. Libraries read both
 * settings when they are loaded, so the program sets them and executes itself again, once.
 */
#ifndef TRAIN_GPT_RUN_START_H
#define TRAIN_GPT_RUN_START_H

/* Called first in main(). Executes the program again if one of these had to be set, else returns:
 *   GOMP_SPINCOUNT=1000, unless it or OMP_WAIT_POLICY is set. Otherwise the threads of libgomp spin at every barrier.
 *   On two cores with two other busy processes a step of 37 ms then took 5 to 15 s. With the setting it took 250 ms,
 *   and 36 ms on a quiet machine.
 *   A stack of 8 MiB, if `ulimit -s` allows less and its hard limit permits it. Exit 71 if even 1 MiB is not allowed.
 * TRAIN_GPT_STARTED=<pid> marks a process that has done this. */
void start_process(char **argv);

/* Called before the first loop that threads share. Comes after world_expect(), so that a fault that all ranks have is
 * printed only once. Reads TRAIN_GPT_ISA; exit 64 if it names no instruction set. Starts the threads of OpenMP
 * (thread_start_team). */
void start_computing(void);

#endif
