/* weights_stats.h - statistics of the values in .safetensors files, read block by block: norm, range, values that are
 * not finite, and how much two tensors differ.
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_WEIGHTS_STATS_H
#define TRAIN_GPT_RUN_CHECKPOINT_WEIGHTS_STATS_H

#include "run/checkpoint/weights_file.h"

typedef struct {
    int64_t elems, nans, infs;
    double  squares, least, most; /* sum of squares and range of the finite values; least > most: none */
} WeightsStats;

static inline WeightsStats weights_stats_none(void) { return (WeightsStats){0, 0, 0, 0.0, 1.0, -1.0}; }
/* Adds the statistics b to a. */
void   weights_stats_add(WeightsStats *a, const WeightsStats *b);
double weights_norm(const WeightsStats *s);

/* Returns 1 if values of its type can be read: F64, F32, F16, BF16. */
int          weights_has_values(const SafeTensor *t);
int64_t      weights_elems(const SafeTensor *t);
/* Returns the statistics of a tensor whose values can be read. They do not depend on the number of threads. */
WeightsStats weights_stats(const WeightsFile *w, const SafeTensor *t);

typedef struct {
    int64_t elems, differ;     /* elements compared; those whose bits differ              */
    int64_t nans;              /* differing elements with a NaN in at least one tensor    */
    double  most;              /* largest |a - b|                                          */
    double  squares, of;       /* sums of (a - b)^2 and a^2: relative = sqrt(squares / of) */
} WeightsDiff;

/* Compares two tensors of equal shape whose values can be read. */
WeightsDiff weights_diff(const WeightsFile *wa, const SafeTensor *a, const WeightsFile *wb, const SafeTensor *b);
double      weights_diff_relative(const WeightsDiff *d);

#endif
