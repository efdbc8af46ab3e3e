/* fp8_ops.h - 8-bit numbers in float64, by their definition: a table of all values, and the nearest of them; and cells for ops' scales. */
#ifndef TRAIN_GPT_TEST_REF_FP8_OPS_H
#define TRAIN_GPT_TEST_REF_FP8_OPS_H

#include "layers/layers.h"
#include "test/ref/stage.h"

/* The value of a code; NaN, +-infinity. */
double ref_fp8_value(int code, DType type);
/* The code nearest to x, of two the even one; past the largest value its code; of what is not finite 0x7f. */
int    ref_fp8_code(double x, DType type);
/* The largest power of two s, 2^-100 to 2^100, with s amax <= max/2; 1 where amax is 0. */
double ref_fp8_scale(double amax, DType type);

typedef struct { int64_t over, vanished; double amax; } RefLost;
/* y = fp8(s x) / s; of what is not finite NaN. y may be x. */
RefLost ref_fp8_round(double *y, const double *x, int64_t n, double s, DType type);

/* Scales 2^exponent of x, w and dy, no maximum yet, counts of zero. */
Fp8 stage_fp8(Stage *s, const int exponent[FP8_TENSORS], int uses_own);

#endif
