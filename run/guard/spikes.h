/* spikes.h - decides whether a loss is far above the recent ones. Single outliers and losses that are no numbers do not
 * disturb it. A resume does not either, because its only state is a window that a checkpoint holds.
 */
#ifndef TRAIN_GPT_RUN_GUARD_SPIKES_H
#define TRAIN_GPT_RUN_GUARD_SPIKES_H

enum { SPIKES_WINDOW = 128, SPIKES_LEAST = 32 }; /* losses in the window; the fewest that give a limit */

typedef struct {
    int    count;
    double loss[SPIKES_WINDOW]; /* the latest finite losses, oldest first */
} Spikes;

/* Returns median + max(threshold * 1.4826 * MAD, SPIKES_RISE). A loss above it is a spike. MAD is the median of
 * distances from the median. 1.4826 MAD estimates the standard deviation of normal noise and ignores outliers
 * (Rousseeuw and Croux 1993). Infinite with fewer than SPIKES_LEAST losses, or for threshold 0. */
double spikes_limit(const Spikes *s, double threshold);
double spikes_median(const Spikes *s);           /* median of the window; NaN if it is empty */
void   spikes_add(Spikes *s, double loss);       /* a loss that is not finite is left out */

#endif
