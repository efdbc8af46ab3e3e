/* kernel_rates.h - how fast each operation of a step's ledger runs on an H100, and how fast it could run. One table;
 * each rate has its source. The rates are estimates unless a file of measured rates replaces them.
 *
 * A file of rates is strict JSON; docs/performance.md has the keys.
 */
#ifndef TRAIN_GPT_RUN_PLAN_KERNEL_RATES_H
#define TRAIN_GPT_RUN_PLAN_KERNEL_RATES_H

#include "run/plan/cluster.h"

enum { RATES_MOST = 48, RATES_SOURCE = 128 };

typedef enum { FAMILY_PRODUCT, FAMILY_ATTENTION, FAMILY_NORM, FAMILY_POINTWISE, FAMILY_BIAS, FAMILY_CLASSIFIER,
               FAMILY_EMBEDDING, FAMILY_OPTIMIZER, FAMILY_OTHER, FAMILIES } KernelFamily;

typedef struct {
    const char  *op;        /* beginning of the operation's name in the ledger; NULL for all other operations */
    KernelFamily family;
    int          launches;  /* kernels of one call */
    double       rate, limit; /* now; the best known of a GPU. FLOP/s of products and attention, otherwise bytes/s */
    int          is_measured; /* 1 if rate is from a file of measured rates */
    const char  *source;    /* source of `rate` */
} KernelRate;

typedef struct {
    KernelRate row[RATES_MOST];
    int        rows;                     /* rows in use; the last is for all other operations */
    double     launch_s, launch_limit_s; /* from the end of a kernel to the beginning of the next, in a graph */
    double     host_s, host_limit_s;     /* wait of a step for the host, which reads the step's numbers */
    double     bytes_per_s;              /* memory rate that kernels reach; it limits products, too */
    char       source[RATES_SOURCE];     /* source of the measured rates; "" if none is measured */
} KernelRates;

/* Returns the rates for the card of `cluster`: an H100, or a card with its processor (H200). Rates in bytes scale with
 * the card's memory. file: measured rates, or NULL. Exit 64 for another card, and for each fault of the file with its
 * place. */
KernelRates kernel_rates(const Cluster *cluster, const char *file);

/* Returns the row with the longest name that the operation's name begins with: "matmul" also fits "matmul, gelu". If no
 * row fits, returns the row of all other operations. */
const KernelRate *kernel_rate_of(const KernelRates *rates, const char *op);
int               kernel_rate_is_flops(const KernelRate *rate);
/* Returns `rate` for this entry; kernel_rate_source returns its source. Attention with 64 or 128 channels a head has
 * kernels on wgmma, with rates of their own. */
double            kernel_rate_now(const KernelRate *rate, const LedgerEntry *e);
const char       *kernel_rate_source(const KernelRate *rate, const LedgerEntry *e);
const char       *kernel_family_name(KernelFamily family);

#endif
