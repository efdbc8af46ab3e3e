/* spikes.c - see spikes.h. */
#include "run/guard/spikes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Smallest rise above the median that counts as a spike, in nats. The loss of a model that has memorized its text has
 * almost no noise, and such a small rise is harmless. */
static const double SPIKES_RISE = 0.2;

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the median of count values. Sorts them. */
static double median(double *value, int count) {
    qsort(value, (size_t)count, sizeof *value, ascending);
    return count % 2 ? value[count / 2] : 0.5 * (value[count / 2 - 1] + value[count / 2]);
}

double spikes_median(const Spikes *s) {
    double value[SPIKES_WINDOW];
    memcpy(value, s->loss, sizeof value);
    return s->count ? median(value, s->count) : NAN;
}

double spikes_limit(const Spikes *s, double threshold) {
    double distance[SPIKES_WINDOW], middle = spikes_median(s);
    if (s->count < SPIKES_LEAST || threshold <= 0.0) return INFINITY;
    for (int i = 0; i < s->count; i++) distance[i] = fabs(s->loss[i] - middle);
    return middle + fmax(threshold * 1.4826 * median(distance, s->count), SPIKES_RISE);
}

void spikes_add(Spikes *s, double loss) {
    if (!isfinite(loss)) return;
    if (s->count == SPIKES_WINDOW) memmove(s->loss, s->loss + 1, sizeof *s->loss * (size_t)--s->count);
    s->loss[s->count++] = loss;
}
