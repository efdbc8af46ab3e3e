/* slowness.c - see slowness.h. */
#include "run/slowness.h"

#include <stdlib.h>
#include <unistd.h>

#include "core/error.h"

int slowness_note(Slowness *s, double ms) {
    if (s->best_ms == 0 || ms < s->best_ms) s->best_ms = ms;
    int is_slow = ms > SLOW_FACTOR * s->best_ms;
    s->slow = is_slow ? s->slow + 1 : 0;
    s->quick = is_slow ? 0 : s->quick + 1;
    if (s->quick >= SLOW_STEPS) s->has_warned = 0;
    if (s->has_warned || s->slow < SLOW_STEPS) return 0;
    return s->has_warned = 1;
}

void slowness_warn(const Slowness *s, double ms) {
    double load[1] = {0};
    if (getloadavg(load, 1) != 1) load[0] = 0;
    warn("%d steps in a row took over %d times the best one (%.1f ms; the last %.1f ms): the machine's load is %.1f on %ld cores, other programs may be "
         "using them",
         SLOW_STEPS, SLOW_FACTOR, s->best_ms, ms, load[0], sysconf(_SC_NPROCESSORS_ONLN));
}
