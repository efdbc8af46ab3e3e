/* spikes.h - whether a loss is far above the recent ones: robust against single outliers, against losses that are no
 * numbers, and against being stopped and resumed, since its only state is a window that a checkpoint holds.
 */
#ifndef TRAIN_GPT_RUN_GUARD_SPIKES_H
#define TRAIN_GPT_RUN_GUARD_SPIKES_H

enum { SPIKES_WINDOW = 128, SPIKES_LEAST = 32 }; /* losses remembered; the fewest that give a limit */

typedef struct {
    int    count;
    double loss[SPIKES_WINDOW]; /* the latest finite ones, oldest first */
} Spikes;

/* median + max(threshold * 1.4826 * MAD, SPIKES_RISE): a loss above it is a spike. 1.4826 MAD (the median of distances
 * from the median) estimates the standard deviation of normal noise and does not see outliers (Rousseeuw and Croux
 * 1993). Infinite while too few are known and for threshold 0. */
double spikes_limit(const Spikes *s, double threshold);
double spikes_median(const Spikes *s);           /* NaN of none */
void   spikes_add(Spikes *s, double loss);       /* a loss that is not finite is not remembered */

#endif
