/* plot.h - what the verb `plot` computes of the runs that it draws. */
#ifndef TRAIN_GPT_RUN_VERBS_PLOT_H
#define TRAIN_GPT_RUN_VERBS_PLOT_H

#include "run/log/run_log.h"

typedef struct {
    RunLog  log;               /* owned */
    double *smooth;            /* owned [log.trains]: smoothed loss of each step; NaN if there is none */
    char    name[256];         /* name of the run's folder, or its path if two folders have the same name */
    char    differs[512];      /* " · key=value" for each config key that differs between the runs */
} PlotRun;

/* Computes the smoothed loss of each step [trains], as in the loss.svg of a run: curve_smooth(). */
void plot_smooth(const LogPoint *train, int64_t trains, double *smooth);

/* Sets the name of each run, and the config keys whose values differ between the runs. */
void plot_label(PlotRun *run, int runs);

#endif
