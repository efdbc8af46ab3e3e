/* kernels.h - `train_gpt plan config.json gpu=h100 kernels=true`: a step of one GPU, kernel by kernel. It is computed
 * from the ledger of a dry run and a table. The table has how fast each operation runs on an H100, and how fast it
 * could run. Private to the verb (run/verbs/plan.c).
 *
 * Each rate has its source. A rate that was not measured is printed as an estimate. A file of measured rates, strict
 * JSON, replaces estimates; docs/performance.md has its keys. Collectives are left out: the simulator has them.
 */
#ifndef TRAIN_GPT_RUN_PLAN_KERNELS_H
#define TRAIN_GPT_RUN_PLAN_KERNELS_H

#include "run/plan/plan_cluster.h"

/* --- rates -------------------------------------------------------------------------------------------------------- */

enum { RATES_MOST = 48, RATES_SOURCE = 128 };

typedef enum { FAMILY_PRODUCT, FAMILY_ATTENTION, FAMILY_NORM, FAMILY_POINTWISE, FAMILY_BIAS, FAMILY_CLASSIFIER,
               FAMILY_EMBEDDING, FAMILY_OPTIMIZER, FAMILY_OTHER, FAMILIES } KernelFamily;

typedef struct {
    /* beginning of the operation's name in a ledger (operations recorded by a dry run); NULL for all other
     * operations */
    const char  *op;
    KernelFamily family;
    int          launches;  /* number of kernels that one call launches */
    double       rate, limit; /* present rate; best rate known. FLOP/s for products and attention, otherwise bytes/s */
    int          is_measured; /* 1 if rate is from a file of measured rates */
    const char  *source;    /* where `rate` comes from */
} KernelRate;

typedef struct {
    KernelRate row[RATES_MOST];
    int        rows;                     /* number of rows; the last row is for all other operations */
    /* seconds from the end of a kernel to the next, in a CUDA graph: now, and at best */
    double     launch_s, launch_limit_s;
    /* seconds that a step waits for the host, which reads its numbers: now, and at best */
    double     host_s, host_limit_s;
    double     bytes_per_s;              /* memory rate that kernels reach, bytes/s; it limits matrix products, too */
    char       source[RATES_SOURCE];     /* source of the measured rates; "" if none is measured */
} KernelRates;

/* Returns the rates for the card of `cluster`: an H100, or a card with its processor (H200). Rates in bytes scale with
 * the card's memory. file: measured rates, or NULL. Exit 64 for another card, and for each fault of the file with its
 * place. */
KernelRates kernel_rates(const Cluster *cluster, const char *file);

/* Returns the row with the longest name that the operation's name begins with: "matmul" also fits "matmul, gelu". If no
 * row fits, returns the row of all other operations. */
const KernelRate *kernel_rate_of(const KernelRates *rates, const char *op);
/* Returns a copy of `rate` with the rate and source that apply to one operation of the ledger. Attention with 64 or 128
 * channels a head has kernels on wgmma (tensor core instructions of Hopper), which have rates of their own. */
KernelRate        kernel_rate_for(KernelRate rate, const LedgerEntry *e);

/* --- a step ------------------------------------------------------------------------------------------------------- */

/* Time of all calls of one operation with one shape in a step. */
typedef struct {
    const LedgerEntry *entry;    /* borrowed: the operation in the ledger */
    const KernelRate  *rate;     /* borrowed: the rate of the operation */
    int64_t            launches; /* number of kernels that all calls of the operation launch */
    double             seconds, limit_s; /* seconds of all calls, at the present rate and at the best known rate */
} KernelTime;

typedef struct {
    KernelTime *kernel;          /* owned [kernels]: the operations of a step, longest first */
    int         kernels;         /* number of entries of `kernel` */
    int64_t     launches;        /* number of kernels that the step launches */
    double      gaps_s, gaps_limit_s; /* seconds between kernels and waiting for the host: now, and at best */
    double      seconds, limit_s;     /* seconds of the whole step, kernels and gaps: now, and at best */
} StepTimes;

/* Computes the times of a step. An operation with rate r in FLOP/s takes FLOP/r, or the time of its bytes if that is
 * longer. Other operations take bytes/r. The limit_s of each is computed in the same way from the best known rates. */
StepTimes kernels_times(const Ledger *step, const KernelRates *rates);
void      kernels_free(StepTimes *t);

/* The goal of the CUDA kernels is 684,000 tokens/s of GPT-2 124M on one H100: 55 % of the card's peak. */
enum { KERNELS_GOAL = 684000 };

/* Prints the kernels of a step of rank 0, in a job on the cards of `asked`. rates: a file of measured rates, or NULL.
 * Exit 64 in a CPU build, which has other operations, and for a card without rates. */
void kernels_plan(const Config *config, ClusterPlan asked, const char *rates);

#endif
