/* difference.c - checks a gradient by finite differences in float64 (difference.h). */
#include "test/ref/difference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

double dot(const double *a, const double *b, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static double derivative(Objective objective, void *ctx, double *x) {
    const double h = 1e-3, saved = *x;
    double at[4], step[4] = {h, -h, 2 * h, -2 * h};
    for (int k = 0; k < 4; k++) {
        *x = saved + step[k];
        at[k] = objective(ctx);
    }
    *x = saved;
    return (8.0 * (at[0] - at[1]) - (at[2] - at[3])) / (12.0 * h);
}

static double error_of(const double *difference, const double *gradient, int64_t n) {
    double worst = 0.0, scale = 0.0;
    for (int64_t i = 0; i < n; i++) {
        scale = fmax(scale, fmax(fabs(gradient[i]), fabs(difference[i])));
        double error = fabs(difference[i] - gradient[i]);
        if (!(error <= worst)) worst = error;
    }
    return scale > 0.0 ? worst / scale : 0.0;
}

static double *differences(Objective objective, void *ctx, double *x, int64_t n) {
    double *d = malloc(sizeof(double) * (size_t)n);
    CHECK(d, "no memory");
    for (int64_t i = 0; i < n; i++) d[i] = derivative(objective, ctx, &x[i]);
    return d;
}

double difference_error(Objective objective, void *ctx, double *x, const double *gradient, int64_t n) {
    double *d = differences(objective, ctx, x, n);
    double  error = error_of(d, gradient, n);
    free(d);
    return error;
}

int difference_proves(Objective objective, void *ctx, double *x, const double *gradient, int64_t n) {
    double *d = differences(objective, ctx, x, n), *wrong = calloc((size_t)n, sizeof(double));
    CHECK(wrong, "no memory");
    double  error = error_of(d, gradient, n);
    int     good = error <= DIFFERENCE_ALLOWED;
    int64_t largest = 0;
    for (int64_t i = 0; i < n; i++)
        if (fabs(gradient[i]) > fabs(gradient[largest])) largest = i;
    for (int fault = 0; fault < 4; fault++) {
        if (fault == 3 && n == 1) break;
        for (int64_t i = 0; i < n; i++)
            wrong[i] = fault == 2 ? gradient[i] * 1.00001 : fault == 3 ? gradient[(i + 1) % n] : gradient[i];
        if (fault == 0) wrong[largest] *= 1.00001;
        if (fault == 1) wrong[largest] = -wrong[largest];
        int rejected = error_of(d, wrong, n) > DIFFERENCE_ALLOWED;
        if (!rejected) fprintf(stderr, "finite differences accept planted fault %d\n", fault);
        good &= rejected;
    }
    if (error > DIFFERENCE_ALLOWED) fprintf(stderr, "finite differences: error %.3g\n", error);
    free(d);
    free(wrong);
    return good;
}
