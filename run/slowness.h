/* slowness.h - warns if steps stay far slower than the fastest step, because another program may use the machine. */
#ifndef TRAIN_GPT_RUN_SLOWNESS_H
#define TRAIN_GPT_RUN_SLOWNESS_H

enum { SLOW_STEPS = 10, SLOW_FACTOR = 5 };

typedef struct {
    double best_ms;      /* fastest step so far; 0: no step yet                     */
    int    slow, quick;  /* steps in a row above SLOW_FACTOR * best_ms; not above   */
    int    has_warned;   /* since the last SLOW_STEPS quick steps in a row          */
} Slowness;

/* Records the time of a step. Returns 1 if a warning is due: at the SLOW_STEPS-th slow step in a row, and only once
 * until SLOW_STEPS quick steps in a row have followed. */
int slowness_note(Slowness *s, double ms);
/* Prints the warning, with the load of the machine. */
void slowness_warn(const Slowness *s, double ms);

#endif
