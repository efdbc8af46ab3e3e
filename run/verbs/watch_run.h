/* watch_run.h - reads the present state of a run from its files, for `watch`: its newest numbers, its curve, and
 * whether it is alive. Reads only what was added since the last look. Memory does not grow with the run. Changes
 * nothing. */
#ifndef TRAIN_GPT_RUN_VERBS_WATCH_RUN_H
#define TRAIN_GPT_RUN_VERBS_WATCH_RUN_H

#include "run/log/picture.h"
#include "run/log/run_log.h"

enum { WATCH_RECENT = 20, WATCH_TAIL = 64 };

typedef enum {
    WATCH_EMPTY,     /* no step yet, and no process holds the folder    */
    WATCH_STARTING,  /* no step yet                                     */
    WATCH_RUNNING,
    WATCH_STOPPED,   /* ended in order before run.steps                 */
    WATCH_DONE,      /* ended at run.steps                              */
    WATCH_LOST,      /* ended without a message: killed, crashed or host lost      */
    WATCH_FAILED     /* ended with a message, the last one in log.txt              */
} WatchState;

typedef struct {
    const char *dir;                   /* borrowed */
    char        name[256];
    WatchState  state;
    int64_t     steps;                 /* run.steps; 0: not known */
    MetricsLine last, eval;            /* the newest step and evaluation; step -1: none */
    double      recent_ms[WATCH_RECENT]; /* times of the last steps; the newest at index (seen - 1) % WATCH_RECENT */
    int64_t     seen;                  /* steps read so far */
    Curve       curve;
    int64_t     at;                    /* bytes of the log that were read, up to a whole line */
    char        tail[WATCH_TAIL];      /* the last bytes read, which show later whether the log was cut */
    char        lock[1024];            /* text of the lock file at the last look */
    char        message[512];          /* last message of a run in state WATCH_FAILED */
    double      still_since_ms;        /* time of the last change of the lock file, on clock_ms() */
} WatchRun;

void   watch_run_begin(WatchRun *w, const char *dir);    /* exit 65 if dir does not exist */
void   watch_run_look(WatchRun *w, double now);          /* now: seconds since 1970 */
double watch_run_median_ms(const WatchRun *w);           /* median of the recent steps; NaN: none */

#endif
