/* precision.h - the types that the option `precision` means on this machine, and the loss scale that fp16 needs.
 */
#ifndef TRAIN_GPT_MODEL_PRECISION_H
#define TRAIN_GPT_MODEL_PRECISION_H

#include "core/device.h"

/* The values of the option `precision`. */
typedef enum { PRECISION_AUTO, PRECISION_FP32, PRECISION_TF32, PRECISION_BF16, PRECISION_FP16, PRECISION_FP8 } Precision;

typedef struct {
    DType       act;    /* type of activations and working weights                 */
    MathMode    math;   /* mode of fp32 matrix products                            */
    /* the option's value without auto: "fp32" to "fp8"; with fp8 only products of blocks are fp8, act is bf16 */
    const char *name;
} Numerics;

/* Returns the types for a value of the option. native_bf16: 1 if every rank computes bf16 natively; `auto` depends on
 * it. */
Numerics precision_resolve(Precision asked, int native_bf16);

/* Dynamic loss scaling (Micikevicius et al., "Mixed precision training", arXiv:1710.03740). The loss is multiplied by
 * `scale`, so that small gradients do not vanish in fp16, and the optimizer divides by it. An overflow halves the scale
 * and leaves the step out. LOSS_SCALE_GROWTH steps without an overflow double it. In types other than fp16 it is 1. */
typedef struct {
    double  scale;
    int64_t steps;      /* steps without overflow since the scale last changed */
} LossScale;

enum { LOSS_SCALE_GROWTH = 2000 };

LossScale loss_scale_start(DType act);
/* Counts a step without overflow. */
void      loss_scale_keep(LossScale *s, DType act);
/* Halves the scale after an overflow. Returns 0 if the scale cannot get smaller; then the scale is not the cause. */
int       loss_scale_lower(LossScale *s);

#endif
