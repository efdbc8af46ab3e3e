/* difference.h - checks a float64 gradient by finite differences.
 *
 * objective(ctx) is a scalar function of the array x, which ctx refers to. Each of its derivatives is taken by the
 * four-point formula (8 (f(+h) - f(-h)) - (f(+2h) - f(-2h))) / 12h with h = 10^-3: the formula's error is some h^4 =
 * 10^-12 of the fifth derivative, the rounding some 2^-52 / h = 2 10^-13 of f. DIFFERENCE_ALLOWED leaves both a factor
 * of a thousand.
 */
#ifndef TRAIN_GPT_TEST_REF_DIFFERENCE_H
#define TRAIN_GPT_TEST_REF_DIFFERENCE_H

#include <stdint.h>

#define DIFFERENCE_ALLOWED 1e-9

typedef double (*Objective)(void *ctx);

/* Returns the largest |difference - gradient| over x, relative to the largest |gradient| or the largest
 * |difference|. */
double difference_error(Objective objective, void *ctx, double *x, const double *gradient, int64_t n);

/* Returns 1 if the gradient is within DIFFERENCE_ALLOWED, and each of these faults planted in it is not: one element
 * 0.001 % too large, one sign changed, everything 0.001 % too large, everything shifted by one element. */
int difference_proves(Objective objective, void *ctx, double *x, const double *gradient, int64_t n);

/* Returns sum_i a[i] b[i]. The usual objective is such a sum: the output weighted by its gradient. */
double dot(const double *a, const double *b, int64_t n);

#endif
