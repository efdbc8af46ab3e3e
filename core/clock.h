/* clock.h - monotonic time in milliseconds; wall-clock jumps do not touch it. */
#ifndef TRAIN_GPT_CORE_CLOCK_H
#define TRAIN_GPT_CORE_CLOCK_H

#include <time.h>

static inline double clock_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

#endif
