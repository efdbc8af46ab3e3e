/* weights_stats.h - figures of the values in .safetensors files, read by block: norm, range, values that are not
 * finite, and how far two tensors are apart.
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_WEIGHTS_STATS_H
#define TRAIN_GPT_RUN_CHECKPOINT_WEIGHTS_STATS_H

#include "run/checkpoint/weights_file.h"

typedef struct {
    int64_t elems, nans, infs;
    double  squares, least, most; /* of the finite values; least > most: there are none */
} WeightsStats;

static inline WeightsStats weights_stats_none(void) { return (WeightsStats){0, 0, 0, 0.0, 1.0, -1.0}; }
/* Adds b's figures to a's. */
void   weights_stats_add(WeightsStats *a, const WeightsStats *b);
double weights_norm(const WeightsStats *s);

/* 1 if values of its type can be read: F64, F32, F16, BF16. */
int          weights_has_values(const SafeTensor *t);
int64_t      weights_elems(const SafeTensor *t);
/* Of a tensor that has values. The same figures for any number of threads. */
WeightsStats weights_stats(const WeightsFile *w, const SafeTensor *t);

typedef struct {
    int64_t elems, differ;     /* with other bits                                          */
    int64_t nans;              /* of these, not a number in one of the two at least        */
    double  most;              /* the largest |a - b|                                      */
    double  squares, of;       /* sums of (a - b)^2 and a^2: relative = sqrt(squares / of) */
} WeightsDiff;

/* Of two tensors that have values and one shape. */
WeightsDiff weights_diff(const WeightsFile *wa, const SafeTensor *a, const WeightsFile *wb, const SafeTensor *b);
double      weights_diff_relative(const WeightsDiff *d);

#endif
