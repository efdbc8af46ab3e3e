/* fp8_round.h - operands of products in fp8 on the CPU: rounded to what 8 bits would hold, as bf16. Internal to layers.
 *
 * A rounded value, three bits of fraction times a power of two, is exact in bf16.
 */
#ifndef TRAIN_GPT_LAYERS_FP8_ROUND_H
#define TRAIN_GPT_LAYERS_FP8_ROUND_H

#include "layers/layers.h"

typedef enum { NOTED, NOT_NOTED } Noting;

/* Sets y = fp8(s x) / s, both bf16; y may be x. `which` is FP8_X, FP8_W or FP8_DY: it selects the scale in f, and the
 * maximum and counts that are updated if noting is NOTED. */
void fp8_round(Tensor y, Tensor x, int which, Fp8 f, Noting noting);

#endif
