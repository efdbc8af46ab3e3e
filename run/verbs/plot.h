/* plot.h - several runs in one picture: made by plot.c, the verb, and drawn by plot_svg.c. */
#ifndef TRAIN_GPT_RUN_VERBS_PLOT_H
#define TRAIN_GPT_RUN_VERBS_PLOT_H

#include <stddef.h>

#include "run/log/run_log.h"

typedef enum { PLOT_TOKENS, PLOT_STEPS, PLOT_HOURS } PlotX;

typedef struct {
    RunLog  log;               /* owned */
    double *smooth;            /* owned [log.trains]: smoothed losses; NaN where there is none */
    char    name[256];         /* its folder's, or the path where two have the same */
    char    differs[512];      /* " · key=value" of each config key that is not the same in all runs */
} PlotRun;

typedef struct {
    PlotRun *run;
    int      runs;
    PlotX    x;
} Plot;

double plot_x(const Plot *p, const LogPoint *at);

/* Smoothed losses [trains], those of the run's loss.svg: curve_smooth(). */
void plot_smooth(const LogPoint *train, int64_t trains, double *smooth);

/* Names each run, and the config keys whose values are not the same in all of them. */
void plot_label(PlotRun *run, int runs);

/* The picture, malloc'ed; *bytes its length. NULL when there is no memory for it. */
char *plot_svg(const Plot *p, size_t *bytes);

#endif
