/* clock.c - preloaded into a program, moves the machine's clock. Each reading of the time of day is a day later or a
 * day earlier than the one before. With CLOCK_BACK set the first reading is a day back. The monotonic clock is
 * unchanged. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static atomic_int looks;
static long day(void) { return (++looks + (getenv("CLOCK_BACK") != NULL)) % 2 ? 86400 : -86400; }

int clock_gettime(clockid_t which, struct timespec *t) {
    int rc = (int)syscall(SYS_clock_gettime, which, t);
    if (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE) t->tv_sec += day();
    return rc;
}
int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec, t->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
