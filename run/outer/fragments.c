/* fragments.c - see fragments.h. */
#include "run/outer/fragments.h"

#include <stdlib.h>

int fragments_count(int64_t elems, int64_t every) {
    int64_t units = (elems + FRAGMENT_UNIT - 1) / FRAGMENT_UNIT, count = every - 1;
    if (count > units) count = units;
    if (count > FRAGMENTS_MOST) count = FRAGMENTS_MOST;
    return count > 1 ? (int)count : 1;
}

/* Shares the units out evenly: two fragments differ by at most one unit. */
Fragment fragment_of(int64_t elems, int count, int f) {
    int64_t units = (elems + FRAGMENT_UNIT - 1) / FRAGMENT_UNIT;
    if (f == count) return (Fragment){0, elems};
    Fragment of = {units * f / count * FRAGMENT_UNIT, units * (f + 1) / count * FRAGMENT_UNIT};
    if (of.end > elems) of.end = elems;
    return of;
}

int64_t fragment_step(int64_t steps, int count, int f) {
    int64_t ahead = steps - count < FRAGMENTS_AHEAD ? steps - count : FRAGMENTS_AHEAD, spells = count + (ahead > 1 ? ahead : 1);
    return ((f + 1) * steps + spells - 1) / spells;
}

Fragment fragment_within(Fragment of, int64_t first, int64_t end) {
    if (of.first < first) of.first = first;
    if (of.end > end) of.end = end;
    if (of.first > of.end) of.end = of.first;
    return of;
}

int arriving_begin(Arriving *a, Fragment range, int ranks) {
    *a = (Arriving){.range = range};
    a->values = malloc(sizeof *a->values * (size_t)(range.end - range.first));
    a->said = calloc((size_t)ranks, 1);
    if (a->values && a->said) return 1;
    arriving_forget(a);
    return 0;
}

void arriving_forget(Arriving *a) {
    free(a->values);
    free(a->said);
    *a = (Arriving){0};
}

int arriving_end(Arriving *a, int rank, int ranks) {
    a->said[rank] = 1;
    if (++a->done < ranks) return 0;
    return a->elems == a->range.end - a->range.first ? 1 : -1;
}

int arriving_is_whole(const Arriving *a, int ranks) { return a->said && a->done == ranks; }
