/* compare.h - bounds for the difference between an op and its float64 reference. The bounds are derived, never tuned.
 *
 * Let u be the relative error of rounding to a type, and u32 = 2^-24 that of f32. A sum of n terms in f32, in any order
 * that does not grow one partial sum alone, errs by about u32 sqrt(n) times its typical size. Each addition rounds by
 * at most u32 times the partial sum, and the roundings are independent. The typical size is the root mean square (rms)
 * of the tensor, because a single element may be small by cancellation. K = 8 covers the largest of some 10^5 such
 * errors (4.5 standard deviations) and the handful of roundings of each term:
 *
 *     |got - want| <= K u32 sqrt(n) (|want| + rms)  +  r u |want| (1 + 2^-7)  +  K u inner rms
 *
 * rms is that of want or, where terms cancel far below their own size, that of the terms (Bound.size). The second term
 * is the rounding of the result to its own type (u = 2^-8 for bf16), r times where a factor of the whole result is
 * stored before it. The third term is for terms that are rounded to 16 bits before they enter an f32 sum: inner is the
 * error of such a sum in units of u rms. fp16 (u = 2^-11) also loses up to 2^-25 a rounding among its subnormals.
 */
#ifndef TRAIN_GPT_TEST_REF_COMPARE_H
#define TRAIN_GPT_TEST_REF_COMPARE_H

#include "core/tensor.h"

#define COMPARE_K 8.0

typedef struct {
    double terms;     /* number n of terms in the sum for one element, whose rounding error grows with sqrt(n) */
    /* number of roundings of the result to its type: 1, or more if factors of it are stored before */
    double roundings;
    /* error of a sum whose terms were rounded to 16 bits before, divided by the error of one rounding times the root
     * mean square of the tensor; ignored for F32 */
    double inner;
    double size; /* typical size of the terms of a sum that cancel to a much smaller result; 0 if they do not cancel */
} Bound;

static inline Bound bound_sum(int64_t terms) {
    Bound b = {(double)terms, 1.0, 0.0, 0.0};
    return b;
}
static inline Bound bound_cancelling(int64_t terms, double size) {
    Bound b = {(double)terms, 1.0, 0.0, size};
    return b;
}

static inline Bound bound_bf16(int64_t terms, double roundings, double inner) {
    Bound b = {(double)terms, roundings, inner, 0.0};
    return b;
}

double unit_roundoff(DType type);

/* Returns the largest error over the tensor divided by the bound for it. A result over 1 is a failure; NaN in got
 * makes it infinite. act is the type (F32, BF16, F16) to which terms were rounded before they entered a sum.
 * COMPARE_VERBOSE=1 in the environment prints each result. */
double compare_ratio(const char *what, Tensor got, const double *want, DType act, Bound bound);

/* Returns ||got - want|| / ||want|| over all elements of the tensor. */
double compare_norm(Tensor got, const double *want);
/* Returns the largest |a - b| / max|b| of two float64 arrays. */
double compare_doubles(const double *a, const double *b, int64_t n);

/* Asserts, for cmocka, that each element of got is within the bound of want. */
#define assert_close(got, want, act, bound)                                                          \
    do {                                                                                             \
        double ratio_ = compare_ratio(#got, got, want, act, bound);                                  \
        if (!(ratio_ <= 1.0)) fail_msg("%s (%s): error %.3g times what is allowed", #got, dtype_name(act), ratio_); \
    } while (0)

#endif
