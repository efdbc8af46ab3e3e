/* fp8_ops.h - 8-bit numbers in float64 by their definition: a table of all values, and the nearest of them. Also memory
 * for the scales and counts of ops under test. */
#ifndef TRAIN_GPT_TEST_REF_FP8_OPS_H
#define TRAIN_GPT_TEST_REF_FP8_OPS_H

#include "layers/layers.h"
#include "test/ref/stage.h"

/* Returns the value of an 8-bit code, which may be NaN or +-infinity. */
double ref_fp8_value(int code, DType type);
/* Returns the code nearest to x, at a tie the even one. A number beyond the largest value gets the code of the largest
 * value. NaN and infinity get 0x7f. */
int    ref_fp8_code(double x, DType type);
/* Returns the scale s: the largest power of two from 2^-100 to 2^100 with s amax <= half of the largest value of the
 * type. Returns 1 if amax is 0. */
double ref_fp8_scale(double amax, DType type);

typedef struct { int64_t over, vanished; double amax; } RefLost;
/* Rounds x to y = fp8(s x) / s; NaN where x is not finite. y may be x. Returns how many values were too large or
 * vanished. */
RefLost ref_fp8_round(double *y, const double *x, int64_t n, double s, DType type);

/* Makes memory for an op's scales: 2^exponent for x, w and dy, with no maximum noted yet and counts of zero. */
Fp8 stage_fp8(Stage *s, const int exponent[FP8_TENSORS], int uses_own);

#endif
