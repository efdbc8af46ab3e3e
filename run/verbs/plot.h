/* plot.h - several runs in one picture. plot.c is the verb `plot`, and plot_svg.c draws. */
#ifndef TRAIN_GPT_RUN_VERBS_PLOT_H
#define TRAIN_GPT_RUN_VERBS_PLOT_H

#include <stddef.h>

#include "run/log/run_log.h"

typedef enum { PLOT_TOKENS, PLOT_STEPS, PLOT_HOURS } PlotX;

typedef struct {
    RunLog  log;               /* owned */
    double *smooth;            /* owned [log.trains]: smoothed loss of each step; NaN if there is none */
    char    name[256];         /* name of the run's folder, or its path if two folders have the same name */
    char    differs[512];      /* " · key=value" for each config key that differs between the runs */
} PlotRun;

typedef struct {
    PlotRun *run;
    int      runs;
    PlotX    x;
} Plot;

double plot_x(const Plot *p, const LogPoint *at);

/* Computes the smoothed loss of each step [trains], as in the loss.svg of a run: curve_smooth(). */
void plot_smooth(const LogPoint *train, int64_t trains, double *smooth);

/* Sets the name of each run, and the config keys whose values differ between the runs. */
void plot_label(PlotRun *run, int runs);

/* Returns the picture, malloc'ed, with its length in *bytes. */
char *plot_svg(const Plot *p, size_t *bytes);

#endif
