/* weights_stats.c - see weights_stats.h. Threads read chunks of a block. Their statistics are added in order. */
#include "run/checkpoint/weights_stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

enum { PIECE = 1 << 16, PIECES = WEIGHTS_BLOCK / PIECE };

int     weights_has_values(const SafeTensor *t) { return weights_type_is_read(t->type); }
int64_t weights_elems(const SafeTensor *t) { return (int64_t)((t->end - t->begin) / safetensors_type_bytes(t->type)); }
double  weights_norm(const WeightsStats *s) { return sqrt(s->squares); }
double  weights_diff_relative(const WeightsDiff *d) {
     return d->of > 0 ? sqrt(d->squares / d->of) : d->squares > 0 ? INFINITY : 0.0;
}

static float *block_of_values(void) { return xmalloc(sizeof(float) * WEIGHTS_BLOCK, "a block of weights"); }

static int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }

/* --- one tensor --------------------------------------------------------------------------------------------------- */

void weights_stats_add(WeightsStats *a, const WeightsStats *b) {
    a->elems += b->elems, a->nans += b->nans, a->infs += b->infs, a->squares += b->squares;
    if (b->least > b->most) return;
    if (a->least > a->most) a->least = b->least, a->most = b->most;
    if (b->least < a->least) a->least = b->least;
    if (b->most > a->most) a->most = b->most;
}

static WeightsStats stats_of(const float *x, int64_t n) {
    WeightsStats s = weights_stats_none();
    float        least = INFINITY, most = -INFINITY;
    s.elems = n;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(x[i])) s.nans++;
        else if (isinf(x[i])) s.infs++;
        else {
            s.squares += (double)x[i] * x[i];
            least = x[i] < least ? x[i] : least, most = x[i] > most ? x[i] : most;
        }
    }
    if (least <= most) s.least = least, s.most = most;
    return s;
}

WeightsStats weights_stats(const WeightsFile *w, const SafeTensor *t) {
    WeightsStats all = weights_stats_none(), piece[PIECES];
    int64_t      elems = weights_elems(t);
    float       *values = block_of_values();
    for (int64_t at = 0; at < elems; at += WEIGHTS_BLOCK) {
        int64_t n = least_of(elems - at, WEIGHTS_BLOCK), pieces = (n + PIECE - 1) / PIECE;
        weights_read(w, t, at, n, values);
        #pragma omp parallel for schedule(static)
        for (int64_t p = 0; p < pieces; p++) piece[p] = stats_of(values + p * PIECE, least_of(n - p * PIECE, PIECE));
        for (int64_t p = 0; p < pieces; p++) weights_stats_add(&all, &piece[p]);
    }
    free(values);
    return all;
}

/* --- two tensors -------------------------------------------------------------------------------------------------- */

static WeightsDiff diff_of(const float *a, const float *b, int64_t n) {
    WeightsDiff d = {.elems = n};
    for (int64_t i = 0; i < n; i++) {
        double apart = fabs((double)a[i] - (double)b[i]);
        d.of += isfinite(a[i]) ? (double)a[i] * a[i] : 0.0;
        if (memcmp(a + i, b + i, sizeof *a) == 0) continue;
        d.differ++;
        if (isnan(apart)) d.nans++;
        else d.squares += apart * apart, d.most = apart > d.most ? apart : d.most;
    }
    return d;
}

static void diff_add(WeightsDiff *a, const WeightsDiff *b) {
    a->elems += b->elems, a->differ += b->differ, a->nans += b->nans, a->squares += b->squares, a->of += b->of;
    if (b->most > a->most) a->most = b->most;
}

WeightsDiff weights_diff(const WeightsFile *wa, const SafeTensor *a, const WeightsFile *wb, const SafeTensor *b) {
    WeightsDiff all = {0}, piece[PIECES];
    int64_t     elems = weights_elems(a);
    float      *x = block_of_values(), *y = block_of_values();
    for (int64_t at = 0; at < elems; at += WEIGHTS_BLOCK) {
        int64_t n = least_of(elems - at, WEIGHTS_BLOCK), pieces = (n + PIECE - 1) / PIECE;
        weights_read(wa, a, at, n, x);
        weights_read(wb, b, at, n, y);
        #pragma omp parallel for schedule(static)
        for (int64_t p = 0; p < pieces; p++)
            piece[p] = diff_of(x + p * PIECE, y + p * PIECE, least_of(n - p * PIECE, PIECE));
        for (int64_t p = 0; p < pieces; p++) diff_add(&all, &piece[p]);
    }
    free(x), free(y);
    return all;
}
