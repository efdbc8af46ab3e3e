/* kernels.h - `train_gpt plan config.json gpu=h100 kernels=true`: a step of one GPU, kernel by kernel, from the ledger
 * of a dry run and the table of rates (run/plan/kernel_rates.h). Private to the verb (run/verbs/plan.c).
 *
 * A rate that was not measured is printed as an estimate. Collectives are left out: the simulator has them.
 */
#ifndef TRAIN_GPT_RUN_PLAN_KERNELS_H
#define TRAIN_GPT_RUN_PLAN_KERNELS_H

#include <stdio.h>

#include "run/plan/kernel_rates.h"
#include "run/plan/plan.h"

/* All calls of one operation with one shape in a step. */
typedef struct {
    const LedgerEntry *entry;    /* borrowed from the ledger */
    const KernelRate  *rate;     /* borrowed from the rates */
    int64_t            launches; /* kernels that the calls launch */
    double             seconds, limit_s; /* all calls, at the rate and at the limit */
} KernelTime;

typedef struct {
    KernelTime *kernel;          /* [kernels] longest first; owned */
    int         kernels;         /* length of kernel */
    int64_t     launches;        /* kernels that the step launches */
    double      gaps_s, gaps_limit_s; /* time between kernels, and waiting for the host */
    double      seconds, limit_s;     /* sums over the step: kernels and gaps */
} StepTimes;

/* Computes the times of a step. An operation at r FLOP/s takes FLOP/r, or the time of its bytes if that is longer.
 * Other operations take bytes/r. The limit is computed from the limit's rates in the same way. */
StepTimes kernels_times(const Ledger *step, const KernelRates *rates);
void      kernels_free(StepTimes *t);

/* The goal of the CUDA kernels is 684,000 tokens/s of GPT-2 124M on one H100: 55 % of the card's peak. */
enum { KERNELS_GOAL = 684000 };

typedef struct { const char *gpu; int nodes; const char *rates; int json; } KernelsAsked; /* rates: a file, or NULL */

/* Prints the step of rank 0 of so many ranks. Exit 64 in a CPU build, which has other operations, and for a card
 * without rates. */
void kernels_plan(const Config *config, int ranks, KernelsAsked asked);

#endif
