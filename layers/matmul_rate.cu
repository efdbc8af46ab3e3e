/* matmul_rate.cu - the rate of this GPU's matrix products, for mfu and plan. */
#include <stdlib.h>

#include "layers/layers.h"
#include "layers/matmul.cuh"

enum { RATE_RUNS = 64, RATE_BLOCK = 256 };

/* Fills x with values uniform in (-1,1), by Knuth's multiplicative hash, because a GPU multiplies zeros faster than
 * training's values. One thread per element. */
template <typename T> KERNEL fill_kernel(T *x, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * RATE_BLOCK + threadIdx.x;
    if (i < n) x[i] = from_f32<T>((float)(int32_t)((uint32_t)i * 2654435761u) * 0x1p-31f);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

#ifdef CUDA_EMU
int64_t matmul_rate_size(void) { return 64; }
#else
int64_t matmul_rate_size(void) { return 4096; }
#endif

/* Allocates and frees its memory and chooses the algorithm, because it runs once, before training. */
double matmul_rate(DType act, MathMode math, int64_t n, double budget_ms) {
    Matrix shape = {NULL, act, n, PLAIN};
    Matmul p = {shape, shape, shape, n, n, n, MATMUL_SET, NULL};
    size_t matrix_bytes = (size_t)(n * n) * dtype_bytes(act);
    Ledger none = {};
    Stream dry = stream_dry(&none);
    matmul(&dry, p);
    ledger_free(&none);
    Stream own = stream_create(3 * matrix_bytes + dry.scratch.peak_bytes + 4 * ARENA_ALIGN);
    own.math = math;
    p.a.data = arena_take(&own.scratch, matrix_bytes);
    p.b.data = arena_take(&own.scratch, matrix_bytes);
    p.c.data = arena_take(&own.scratch, matrix_bytes);
    DISPATCH_ACT(act, T,
        LAUNCH(fill_kernel<T>, (unsigned)blocks_for(n * n, RATE_BLOCK), RATE_BLOCK, 0, &own, (T *)p.a.data, n * n);
        LAUNCH(fill_kernel<T>, (unsigned)blocks_for(n * n, RATE_BLOCK), RATE_BLOCK, 0, &own, (T *)p.b.data, n * n));
    matmul(&own, p);

    double ms[RATE_RUNS], spent = 0.0;
    int    runs = 0;
    Timer  timer = timer_create();
    while (runs < RATE_RUNS && (runs == 0 || spent < budget_ms)) {
        timer_start(timer, &own);
        matmul(&own, p);
        spent += ms[runs++] = timer_stop_ms(timer, &own);
    }
    timer_destroy(&timer);
    stream_destroy(&own);
    qsort(ms, (size_t)runs, sizeof ms[0], ascending);
    return 2.0 * (double)n * (double)n * (double)n / (ms[runs / 2] * 1e-3);
}
