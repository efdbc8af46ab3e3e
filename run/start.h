/* start.h - the settings a process needs first: a stack, and threads that do not spin. Libraries read both as they are
 * loaded, so the program sets them and executes itself again, once.
 */
#ifndef TRAIN_GPT_RUN_START_H
#define TRAIN_GPT_RUN_START_H

/* First thing in main(). Executes the program again where it had to set one of these, else returns:
 *   GOMP_SPINCOUNT=1000, unless it or OMP_WAIT_POLICY is set. libgomp's threads otherwise spin at every barrier: on two
 *   cores with two other busy processes a step of 37 ms then took 5 to 15 s (250 ms with it, and 36 ms on a quiet
 *   machine). A stack of 8 MiB, where `ulimit -s` allows less and its hard limit does not forbid it. Exit 71 if 1 MiB
 *   cannot be had.
 * TRAIN_GPT_STARTED=<pid> marks a process that has done this. */
void start_process(char **argv);

/* Before the first loop that threads share, at a point where ranks print a common fault only once. Reads TRAIN_GPT_ISA;
 * exit 64 where it names no instruction set. Starts OpenMP's threads (thread_start_team). */
void start_computing(void);

#endif
