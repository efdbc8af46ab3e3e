/* matmul_rate.c - the rate of this machine's matrix products, for mfu and plan. */
#include <stdlib.h>

#include "core/thread.h"
#include "layers/layers.h"
#include "layers/matmul_ways.h"

enum { RATE_RUNS = 64 };

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int64_t matmul_rate_size(void) { return 1024; }

/* Returns the rate. If bf16 is multiplied in panels, that is the rate of f32. oneDNN has two ways of multiplying plain
 * f32 matrices, and the machine's rate is that of the faster. Allocates and frees its memory, because it runs once,
 * before training. */
double matmul_rate(DType act, MathMode math, int64_t n, double budget_ms) {
    (void)math; /* the CPU has no TF32 */
    DType  type = act == BF16 && matmul_has_native_bf16() ? BF16 : F32;
    Matrix shape = {NULL, type, n, PLAIN};
    Matmul p = {shape, shape, shape, n, n, n, MATMUL_SET, NULL};
    size_t matrix_bytes = (size_t)(n * n) * dtype_bytes(type);
    Ledger none = {0};
    Stream dry = stream_dry(&none);
    matmul_by(&dry, p, BY_PRIMITIVE);
    Stream own = stream_create(3 * matrix_bytes + dry.scratch.peak_bytes + 4 * ARENA_ALIGN);
    p.a.data = arena_take(&own.scratch, matrix_bytes);
    p.b.data = arena_take(&own.scratch, matrix_bytes);
    p.c.data = arena_take(&own.scratch, matrix_bytes);
    for (int64_t i = 0; i < n * n; i++) {
        Tensor a = tensor_1d(p.a.data, type, n * n), b = tensor_1d(p.b.data, type, n * n);
        tensor_set(a, i, (float)(i % 17 - 8) / 16.0f), tensor_set(b, i, (float)(i % 13 - 6) / 16.0f);
    }
    double best = 0.0;
    for (Way way = type == BF16 ? BY_PRIMITIVE : BY_SGEMM; way <= BY_PRIMITIVE; way++) {
        double ms[RATE_RUNS] = {0}, spent = 0.0, share = type == BF16 ? budget_ms : budget_ms / 2;
        int    runs = 0;
        for (int warm = 0; runs < RATE_RUNS && (runs == 0 || spent < share); warm = 1) {
            double start = clock_ms();
            matmul_by(&own, p, way);
            double took = clock_ms() - start;
            spent += took;
            if (warm) ms[runs++] = took;
        }
        qsort(ms, (size_t)runs, sizeof ms[0], ascending);
        double rate = 2.0 * (double)n * (double)n * (double)n / (ms[runs / 2] * 1e-3);
        if (rate > best) best = rate;
    }
    stream_destroy(&own);
    return best;
}
