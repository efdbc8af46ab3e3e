/* watch_run.h - a run as its files show it now, for `watch`: its newest numbers, its curve, and whether it lives. Reads
 * only what was added since the last look, in memory that does not grow with the run; changes nothing. */
#ifndef TRAIN_GPT_RUN_VERBS_WATCH_RUN_H
#define TRAIN_GPT_RUN_VERBS_WATCH_RUN_H

#include "run/log/curve.h"
#include "run/log/metrics_line.h"

enum { WATCH_RECENT = 20, WATCH_TAIL = 64 };

typedef enum {
    WATCH_EMPTY,     /* no step yet, and nobody works on it             */
    WATCH_STARTING,  /* no step yet                                     */
    WATCH_RUNNING,
    WATCH_STOPPED,   /* ended before run.steps, in order                */
    WATCH_DONE,      /* at run.steps                                    */
    WATCH_LOST,      /* ended without a message: killed, crashed or cut off        */
    WATCH_FAILED     /* ended with a message, which is the last one in log.txt     */
} WatchState;

typedef struct {
    const char *dir;                   /* borrowed */
    char        name[256];
    WatchState  state;
    int64_t     steps;                 /* run.steps; 0: not known */
    MetricsLine last, eval;            /* the newest step and evaluation; step -1: none */
    double      recent_ms[WATCH_RECENT]; /* of the last steps, the newest at seen - 1, modulo */
    int64_t     seen;
    Curve       curve;
    int64_t     at;                    /* bytes of the log that were read: whole lines */
    char        tail[WATCH_TAIL];      /* the last of them, by which a log that was cut is known */
    char        lock[1024];            /* its text at the last look */
    char        message[512];          /* last message of a run that is WATCH_FAILED */
    double      still_since_ms;        /* when the lock's text last changed, or was written, on clock_ms() */
} WatchRun;

void   watch_run_begin(WatchRun *w, const char *dir);    /* exit 65: there is no such folder */
void   watch_run_look(WatchRun *w, double now);          /* now: seconds since 1970 */
double watch_run_median_ms(const WatchRun *w);           /* of the recent steps; NaN: there are none */

#endif
