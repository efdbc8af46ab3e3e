/* stragglers.c - see stragglers.h. */
#include "run/stragglers.h"

#include <stdlib.h>
#include <string.h>

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static Pace median_of(const Pace *window) {
    double compute[STRAGGLER_STEPS], wait[STRAGGLER_STEPS];
    for (int i = 0; i < STRAGGLER_STEPS; i++) compute[i] = window[i].compute_ms, wait[i] = window[i].wait_ms;
    qsort(compute, STRAGGLER_STEPS, sizeof *compute, by_size);
    qsort(wait, STRAGGLER_STEPS, sizeof *wait, by_size);
    return (Pace){compute[STRAGGLER_STEPS / 2], wait[STRAGGLER_STEPS / 2]};
}

Pace stragglers_median(const Stragglers *s) { return median_of(s->window); }

static int fastest_of(const Pace *pace, int ranks) {
    int best = 0;
    for (int r = 1; r < ranks; r++)
        if (pace[r].compute_ms < pace[best].compute_ms) best = r;
    return best;
}

int stragglers_find(const Pace *pace, int ranks, int has_hosts) {
    int    slow = 0, best = fastest_of(pace, ranks);
    double least_wait = pace[0].wait_ms;
    for (int r = 1; r < ranks; r++) {
        if (pace[r].compute_ms > pace[slow].compute_ms) slow = r;
        if (pace[r].wait_ms < least_wait) least_wait = pace[r].wait_ms;
    }
    if (has_hosts && least_wait > pace[slow].compute_ms) return -1; /* no rank is waited for: all wait */
    return pace[best].compute_ms < STRAGGLER_SPEED * pace[slow].compute_ms ? 1 + slow : 0;
}

/* Returns the first rank on another host than rank 0, or 0 if there is none. */
static int first_elsewhere(const Comm *comm) {
    for (int r = 1; r < comm_size(comm); r++)
        if (strcmp(comm_host(comm, r), comm_host(comm, 0)) != 0) return r;
    return 0;
}

static void print_found(const Comm *comm, const Pace *pace, int found) {
    int slow = found - 1, best = fastest_of(pace, comm_size(comm)), other = first_elsewhere(comm);
    if (found > 0)
        warn("rank %d on %s computes %.1f ms a step, rank %d on %s %.1f ms (medians of %d steps): all ranks wait for it", slow,
             comm_host(comm, slow), pace[slow].compute_ms, best, comm_host(comm, best), pace[best].compute_ms, STRAGGLER_STEPS);
    else
        warn("rank 0 on %s computes %.1f ms a step and waits %.1f ms for messages, and no rank waits much less (medians of %d steps): the link between "
             "%s and %s is slow, or a step is too little work for it",
             comm_host(comm, 0), pace[0].compute_ms, pace[0].wait_ms, STRAGGLER_STEPS, comm_host(comm, 0),
             comm_host(comm, other));
}

void stragglers_note(Stragglers *s, Comm *comm, const StepMetrics *m) {
    if (comm_size(comm) == 1) return;
    s->window[s->steps++ % STRAGGLER_STEPS] = (Pace){m->ms - m->comm_exposed_ms, m->comm_exposed_ms};
    if (s->steps % STRAGGLER_STEPS != 0) return;
    size_t *bytes = NULL;
    Pace    mine = stragglers_median(s);
    Pace   *all = (Pace *)(void *)comm_gather(comm, &mine, sizeof mine, 0, &bytes);
    if (comm_rank(comm) == 0) {
        int found = stragglers_find(all, comm_size(comm), first_elsewhere(comm) > 0);
        if (found && found == s->suspect && (s->warned == 0 || s->steps - s->warned >= STRAGGLER_WARN_EVERY)) {
            print_found(comm, all, found);
            s->warned = s->steps;
        }
        s->suspect = found;
    }
    free(all), free(bytes);
}
