/* kernels.h - `train_gpt plan config.json gpu=h100 kernels=true`: a step of one GPU, kernel by kernel, from the ledger of a
 * dry run and the table of rates (run/plan/kernel_rates.h). Private to the verb (run/verbs/plan.c).
 *
 * What is measured nowhere is an estimate, and printed so. Collectives are not in it: the simulator has those. */
#ifndef TRAIN_GPT_RUN_PLAN_KERNELS_H
#define TRAIN_GPT_RUN_PLAN_KERNELS_H

#include <stdio.h>

#include "run/plan/kernel_rates.h"
#include "run/plan/plan.h"

/* All calls of one operation and shape in a step. */
typedef struct {
    const LedgerEntry *entry;    /* borrowed from the ledger */
    const KernelRate  *rate;     /* borrowed from the rates  */
    int64_t            launches;
    double             seconds, limit_s;
} KernelTime;

typedef struct {
    KernelTime *kernel;          /* owned; longest first     */
    int         kernels;
    int64_t     launches;
    double      gaps_s, gaps_limit_s; /* between kernels, and the host's turn */
    double      seconds, limit_s;     /* of the step: these, and all kernels  */
} StepTimes;

/* An operation at rate r FLOP/s takes FLOP/r, or its bytes where those take longer. Others take bytes/r. The limit is the same at
 * the limit's rates. */
StepTimes kernels_times(const Ledger *step, const KernelRates *rates);
void      kernels_free(StepTimes *t);

/* 684,000 tokens/s of GPT-2 124M on one H100 is the goal of the CUDA kernels: 55 % of the card's peak. */
enum { KERNELS_GOAL = 684000 };

typedef struct { const char *gpu; int nodes; const char *rates; int json; } KernelsAsked; /* rates NULL: no file */

/* Prints the step of rank 0 of so many ranks. Exit 64 in a CPU build, whose operations are others, and for a card without
 * rates. */
void kernels_plan(const Config *config, int ranks, KernelsAsked asked);

#endif
