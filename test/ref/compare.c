/* compare.c - compares results with a float64 reference, within derived bounds (compare.h). */
#include "test/ref/compare.h"

#include "test/ref/stage.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Makes stdout line-buffered. Otherwise a child that a test forks would print buffered lines of its parent again. */
__attribute__((constructor)) static void write_lines(void) { setvbuf(stdout, NULL, _IOLBF, 0); }

double unit_roundoff(DType type) { return type == BF16 ? 0x1p-8 : type == F16 ? 0x1p-11 : 0x1p-24; }

/* Returns the smallest error of a rounding. fp16's subnormals are 2^-24 apart, and half of that is lost for any value.
 * The other types have small enough subnormals. */
static double smallest_error(DType type) { return type == F16 ? 0x1p-25 : 0.0; }

double compare_ratio(const char *what, Tensor got, const double *want, DType act, Bound bound) {
    stage_settle();
    int64_t n = tensor_elems(got);
    double  square = 0.0, worst = 0.0;
    for (int64_t i = 0; i < n; i++) square += want[i] * want[i];
    double rms = fmax(sqrt(square / (double)n), bound.size);
    double f32 = COMPARE_K * unit_roundoff(F32) * sqrt(bound.terms);
    double inner = act != F32 ? COMPARE_K * unit_roundoff(act) * bound.inner * rms : 0.0;
    for (int64_t i = 0; i < n; i++) {
        double value = (double)tensor_get(got, i);
        double allowed = f32 * (fabs(want[i]) + rms) +
                         bound.roundings * unit_roundoff(got.type) * fabs(want[i]) * (1.0 + 0x1p-7) + inner +
                         bound.roundings * smallest_error(got.type);
        double error = fabs(value - want[i]);
        double ratio = error == 0.0 ? 0.0 : isfinite(value) ? error / allowed : INFINITY;
        if (ratio > worst) worst = ratio;
    }
    if (getenv("COMPARE_VERBOSE"))
        printf("    %-24s %s %7lld elements: %.3f of what is allowed\n", what, dtype_name(act), (long long)n, worst);
    return worst;
}

double compare_norm(Tensor got, const double *want) {
    stage_settle();
    double error = 0.0, square = 0.0;
    for (int64_t i = 0; i < tensor_elems(got); i++) {
        double d = (double)tensor_get(got, i) - want[i];
        error += d * d;
        square += want[i] * want[i];
    }
    return sqrt(error / square);
}

double compare_doubles(const double *a, const double *b, int64_t n) {
    double worst = 0.0, scale = 0.0;
    for (int64_t i = 0; i < n; i++) {
        scale = fmax(scale, fabs(b[i]));
        worst = fabs(a[i] - b[i]) <= worst ? worst : fabs(a[i] - b[i]);
    }
    return worst / scale;
}
