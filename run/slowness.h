/* slowness.h - warns when steps stay far slower than this run's best: another program may use the machine. */
#ifndef TRAIN_GPT_RUN_SLOWNESS_H
#define TRAIN_GPT_RUN_SLOWNESS_H

enum { SLOW_STEPS = 10, SLOW_FACTOR = 5 };

typedef struct {
    double best_ms;      /* 0: no step yet                                          */
    int    slow, quick;  /* steps in a row over SLOW_FACTOR * best_ms, or not       */
    int    has_warned;   /* of this slow stretch; SLOW_STEPS quick steps end it     */
} Slowness;

/* Notes a step's time. Returns 1 when the line is due: the SLOW_STEPS'th slow step in a row, once a stretch. */
int slowness_note(Slowness *s, double ms);
/* Prints that line, with the machine's load. */
void slowness_warn(const Slowness *s, double ms);

#endif
