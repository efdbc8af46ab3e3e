/* row_runs.h - sums over rows of what each row adds to a weight's gradient: those of layernorm.c and rmsnorm.c. CPU
 * only.
 *
 * The rows are cut into runs, each with its own partial sums, which are added in order. The shape alone fixes the runs,
 * so the bits are the same for any number of threads.
 */
#ifndef TRAIN_GPT_LAYERS_ROW_RUNS_H
#define TRAIN_GPT_LAYERS_ROW_RUNS_H

#include <stdint.h>

#include "core/simd.h"

/* Returns the elements that C partial sums take: a whole number of cache lines. */
static inline int64_t partial_elems(int64_t C) { return (C + 15) / 16 * 16; }

/* Returns the number of runs for N rows. It is enough for many threads, and each run has enough rows that its partial
 * sums cost little in comparison. Run p is rows [N p / runs, N (p+1) / runs). */
static inline int64_t runs_of(int64_t N) {
    enum { LEAST_ROWS = 16, MOST_RUNS = 64 };
    int64_t runs = (N + LEAST_ROWS - 1) / LEAST_ROWS;
    return runs < MOST_RUNS ? runs : MOST_RUNS;
}

/* total[c] += the sum over runs of partial[run * stride + c], in order, for c < C. */
static inline void add_partials(float *total, const float *partial, int64_t stride, int64_t runs, int64_t C) {
    #pragma omp parallel for schedule(static) if (C * runs > 1 << 14)
    for (int64_t first = 0; first < C; first += LANES) {
        float   sum[LANES] = {0};
        int64_t n = C - first < LANES ? C - first : LANES;
        for (int64_t p = 0; p < runs; p++)
            for (int64_t c = 0; c < n; c++) sum[c] += partial[p * stride + first + c];
        for (int64_t c = 0; c < n; c++) total[first + c] += sum[c];
    }
}

#endif
