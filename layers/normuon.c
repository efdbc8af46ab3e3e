/* normuon.c - CPU side of normuon in layers.h. Each sum is added up in one order, so threads do not matter. */
#include "layers/normuon.h"

#include <math.h>

#include "core/simd.h"

enum { COLUMNS = 64 }; /* columns of a thread's work item: their sums stay in the cache */

SIMD_INLINE void add_squares_body(double *restrict sum, const float *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++) sum[i] += (double)x[i] * (double)x[i]; /* exact, so a fused sum is the same */
}
SIMD_KERNEL(void, add_squares, (double *restrict sum, const float *restrict x, int64_t n), (sum, x, n))

/* Adds squares in eight sums, each of every eighth element. */
static double squares_of_row(const float *x, int64_t n) {
    double lane[8] = {0}, sum = 0.0;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) add_squares(lane, x + i, 8);
    add_squares(lane, x + i, n - i);
    for (int k = 0; k < 8; k++) sum += lane[k];
    return sum;
}

static void neuron_squares(Stream *s, NeuronPart p, NeuronNumbers n) {
    int64_t unit = p.are_rows ? 1 : COLUMNS;
    (void)s;
    #pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < p.neurons; at += unit) {
        int64_t count = p.neurons - at < unit ? p.neurons - at : unit;
        if (p.are_rows) n.squares[at] = squares_of_row(p.x + at * p.width, p.M);
        for (int64_t i = 0; i < count && !p.are_rows; i++) n.squares[at + i] = 0.0;
        for (int64_t r = 0; r < p.R && !p.are_rows; r++) add_squares(n.squares + at, p.x + r * p.width + at, count);
    }
}

static void neuron_factors(Stream *s, NeuronPart p, NeuronNumbers n, double beta2) {
    double sum = 0.0;
    (void)s;
    for (int64_t i = 0; i < p.neurons; i++) {
        double v = (double)p.v[i * (p.are_rows ? p.width : 1)];
        n.fresh[i] = (float)(v + (1.0 - beta2) * (n.squares[i] / (double)p.each - v));
        double factor = 1.0 / (sqrt((double)n.fresh[i]) + NORMUON_LEAST);
        n.factor[i] = (float)factor;
        sum += factor * factor * n.squares[i];
    }
    double scale = sum > 0.0 || sum != sum ? sqrt((double)(p.R < p.M ? p.R : p.M) / sum) : 0.0;
    for (int64_t i = 0; i < p.neurons; i++) n.factor[i] = (float)(scale * (double)n.factor[i]);
}

static void neuron_scale(Stream *s, NeuronPart p, NeuronNumbers n) {
    (void)s;
    #pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < p.R; r++) {
        float *x = p.x + r * p.width, *v = p.v + r * p.width;
        for (int64_t c = 0; c < p.M; c++) {
            x[c] *= n.factor[p.are_rows ? r : c];
            v[c] = n.fresh[p.are_rows ? r : c];
        }
    }
}

void normuon(Stream *s, Tensor x, Tensor v, int64_t parts, NeuronSide side, double beta2) {
    normuon_contract(s, x, v, parts);
    normuon_by_parts(s, x, v, parts, side, beta2);
}
