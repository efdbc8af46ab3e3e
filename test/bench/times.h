/* times.h - clocks and medians that the benches use. */
#ifndef TRAIN_GPT_TEST_BENCH_TIMES_H
#define TRAIN_GPT_TEST_BENCH_TIMES_H

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/thread.h"
#include "core/device.h"

static inline int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, by_value);
    return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

static inline double processor_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Returns whether to measure processor time: with one thread of the CPU build, because processor time stops while other
 * programs have the core. Otherwise elapsed time is measured. */
static inline int    by_processor(void) { return device_threads() == 1 && strcmp(device_backend(), "cpu") == 0; }
static inline double bench_ms(void) { return by_processor() ? processor_ms() : clock_ms(); }

#endif
