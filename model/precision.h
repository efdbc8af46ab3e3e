/* precision.h - the types behind the option `precision` on this machine, and the loss scale that fp16 needs.
 */
#ifndef TRAIN_GPT_MODEL_PRECISION_H
#define TRAIN_GPT_MODEL_PRECISION_H

#include "core/device.h"

/* The option's words. */
typedef enum { PRECISION_AUTO, PRECISION_FP32, PRECISION_TF32, PRECISION_BF16, PRECISION_FP16, PRECISION_FP8 } Precision;

typedef struct {
    DType       act;    /* of activations and working weights                      */
    MathMode    math;   /* of fp32 matrix products                                 */
    const char *name;   /* "fp32", "tf32", "bf16", "fp16", "fp8", as in the config's words; fp8: products of blocks alone, act is bf16 */
} Numerics;

/* native_bf16: whether every rank computes bf16 natively; `auto` depends on it. */
Numerics precision_resolve(Precision asked, int native_bf16);

/* Dynamic loss scaling (Micikevicius et al., "Mixed precision training", arXiv:1710.03740): the loss is multiplied by
 * `scale`, so that small gradients do not vanish in fp16; the optimizer divides it out. An overflow halves it and
 * leaves the step out, LOSS_SCALE_GROWTH steps without one double it. In the other types it stays 1. */
typedef struct {
    double  scale;
    int64_t steps;      /* without overflow since the scale last changed */
} LossScale;

enum { LOSS_SCALE_GROWTH = 2000 };

LossScale loss_scale_start(DType act);
/* The step went well. */
void      loss_scale_keep(LossScale *s, DType act);
/* The step overflowed; returns 0 when the scale cannot get smaller: then the fault is not the scale's. */
int       loss_scale_lower(LossScale *s);

#endif
