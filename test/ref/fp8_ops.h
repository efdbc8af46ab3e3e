/* fp8_ops.h - 8-bit numbers in float64 by their definition: a table of all values, and the nearest of them. Also cells
 * for the scales of ops. */
#ifndef TRAIN_GPT_TEST_REF_FP8_OPS_H
#define TRAIN_GPT_TEST_REF_FP8_OPS_H

#include "layers/layers.h"
#include "test/ref/stage.h"

/* Returns the value of a code; may be NaN or +-infinity. */
double ref_fp8_value(int code, DType type);
/* Returns the code nearest to x, at a tie the even one. Beyond the largest value it is the code of that value; for NaN
 * and infinity 0x7f. */
int    ref_fp8_code(double x, DType type);
/* Returns the largest power of two s, 2^-100 to 2^100, with s amax <= max/2; 1 if amax is 0. */
double ref_fp8_scale(double amax, DType type);

typedef struct { int64_t over, vanished; double amax; } RefLost;
/* y = fp8(s x) / s; NaN where x is not finite. y may be x. */
RefLost ref_fp8_round(double *y, const double *x, int64_t n, double s, DType type);

/* Makes cells with scales 2^exponent of x, w and dy, no maximum yet, and counts of zero. */
Fp8 stage_fp8(Stage *s, const int exponent[FP8_TENSORS], int uses_own);

#endif
