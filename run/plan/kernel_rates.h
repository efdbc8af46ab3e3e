/* kernel_rates.h - how fast each operation of a step's ledger runs on an H100, and how fast it could: one table, each rate
 * with its source. Estimates, until a file of measured rates takes their place.
 *
 * A file of rates is strict JSON; docs/performance.md has its keys. */
#ifndef TRAIN_GPT_RUN_PLAN_KERNEL_RATES_H
#define TRAIN_GPT_RUN_PLAN_KERNEL_RATES_H

#include "run/plan/cluster.h"

enum { RATES_MOST = 48, RATES_SOURCE = 128 };

typedef enum { FAMILY_PRODUCT, FAMILY_ATTENTION, FAMILY_NORM, FAMILY_POINTWISE, FAMILY_BIAS, FAMILY_CLASSIFIER,
               FAMILY_EMBEDDING, FAMILY_OPTIMIZER, FAMILY_OTHER, FAMILIES } KernelFamily;

typedef struct {
    const char  *op;        /* as the ledger names it, or how that begins; NULL: any other */
    KernelFamily family;
    int          launches;  /* kernels of one call */
    double       rate, limit; /* products and attention: FLOP/s; others: bytes/s. Now, and the best a GPU is known to do */
    int          is_measured;
    const char  *source;    /* of `rate` */
} KernelRate;

typedef struct {
    KernelRate row[RATES_MOST];
    int        rows;
    double     launch_s, launch_limit_s; /* from the end of a kernel to the begin of the next, in a graph */
    double     host_s, host_limit_s;     /* a step's wait for the host, which reads its numbers */
    double     bytes_per_s;              /* of memory, as kernels reach it: the limit of products, too */
    char       source[RATES_SOURCE];     /* of the measured ones; "": none is */
} KernelRates;

/* For a card of `cluster`, which is an H100 or has its processor (H200): rates of bytes follow its memory. file: NULL, or
 * measured rates. Exit 64 for another card, and for each fault of the file with its place. */
KernelRates kernel_rates(const Cluster *cluster, const char *file);

/* The row whose name is the longest begin of the operation's: "matmul" is that of "matmul, gelu", too; or that of any other. */
const KernelRate *kernel_rate_of(const KernelRates *rates, const char *op);
int               kernel_rate_is_flops(const KernelRate *rate);
/* `rate` for this entry, and its source: attention of 64 and 128 channels a head has kernels on wgmma. */
double            kernel_rate_now(const KernelRate *rate, const LedgerEntry *e);
const char       *kernel_rate_source(const KernelRate *rate, const LedgerEntry *e);
const char       *kernel_family_name(KernelFamily family);

#endif
