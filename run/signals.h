/* signals.h - requests from outside: handlers only set flags, the step loop asks for them, all ranks agree in the step's reduction.
 *
 *   SIGUSR1, SIGTERM, SIGINT, <run.dir>/STOP   finish the step, save, exit 75 (a second TERM or INT ends at once)
 *   SIGUSR2, <run.dir>/SAVE                    save and go on
 *   run.max_minutes                            stop as above when the time is over
 */
#ifndef TRAIN_GPT_RUN_SIGNALS_H
#define TRAIN_GPT_RUN_SIGNALS_H

#ifdef __cplusplus
extern "C" {
#endif

void signals_install(void);
/* Requests are the main thread's: the other threads of OpenMP's team do not take them. Once the number of threads is set. */
void signals_keep_to_main(void);
/* What this rank was asked since the last call; dir and the clock are looked at by rank 0 only (dir NULL elsewhere). A SAVE file is
 * removed when seen, a STOP file when the run ends. */
int  stop_requested(const char *dir, double started_ms, double max_minutes);
int  save_requested(const char *dir);
void stop_file_clear(const char *dir);

#ifdef __cplusplus
}
#endif
#endif
