/* precision.h - numbers in fewer bits: the types that the option `precision` selects on this machine, the loss scale
 * that fp16 needs, and the scales that products in fp8 need (core/tensor.h). */
#ifndef TRAIN_GPT_MODEL_PRECISION_H
#define TRAIN_GPT_MODEL_PRECISION_H

#include <cjson/cJSON.h>

#include "core/tensor.h"
#include "core/device.h"
#include "layers/layers.h"

/* --- types -------------------------------------------------------------------------------------------------------- */

/* The values of the option `precision`. */
typedef enum {
    PRECISION_AUTO, PRECISION_FP32, PRECISION_TF32, PRECISION_BF16, PRECISION_FP16, PRECISION_FP8
} Precision;

typedef struct {
    DType       act;    /* type of activations and of working weights              */
    MathMode    math;   /* how fp32 matrix products are computed, for example in tf32 */
    /* value of the option `precision`, "fp32" to "fp8", or what `auto` has selected; with fp8 only products of blocks
     * are fp8, and activations are bf16 */
    const char *name;
} Numerics;

/* Returns the types for a value of the option `precision`. native_bf16: 1 if every rank computes bf16 natively; `auto`
 * depends on it. */
Numerics precision_resolve(Precision asked, int native_bf16);

/* --- fp16 --------------------------------------------------------------------------------------------------------- */

/* Dynamic loss scaling (Micikevicius et al., "Mixed precision training", arXiv:1710.03740). The loss is multiplied by
 * `scale`, so that small gradients do not vanish in fp16, and the optimizer divides by it. If a gradient overflows, the
 * scale is halved and the step left out. After LOSS_SCALE_GROWTH steps without overflow it is doubled. In types other
 * than fp16 it is 1. */
typedef struct {
    double  scale;
    int64_t steps;      /* steps without overflow since the scale last changed */
} LossScale;

enum { LOSS_SCALE_GROWTH = 2000 };

LossScale loss_scale_start(DType act);
/* Counts a step without overflow, and doubles the scale after LOSS_SCALE_GROWTH of them. */
void      loss_scale_keep(LossScale *s, DType act);
/* Halves the scale after an overflow. Returns 0 if the scale cannot get smaller, so that it is not the cause of the
 * overflow. */
int       loss_scale_lower(LossScale *s);

/* --- fp8 ---------------------------------------------------------------------------------------------------------- */

/* Delayed scaling of a run's products in fp8 (precision = "fp8").
 *
 * A tensor is multiplied by a power of two s when it is cast. s is the largest one that keeps the largest of the
 * tensor's last FP8_STEPS maxima within half of the type's largest value. s is known before the tensor is, so a cast
 * reads the tensor once. The first step has no maxima; each tensor then uses its own maximum. A maximum is taken over
 * all micro-batches and ranks, and enters the history when the run keeps its step. So a step that is computed twice has
 * the same scales, and a step that is left out changes none.
 *
 * The history stores the exponent of the scale that each maximum allows, a whole number. The largest maximum has the
 * least exponent. The history is the same on all ranks of any grid. */

/* The products of a block whose operands become fp8: queries, keys and values; the projection after attention; the
 * product into the MLP; the product out of it. Each product has FP8_TENSORS tensors. Each tensor has a cell, an index
 * in the arrays of scales, maxima and counts. */
typedef enum { PRODUCT_QKV, PRODUCT_ATTENTION, PRODUCT_UP, PRODUCT_DOWN, PRODUCTS } BlockProduct;
enum { FP8_BLOCK_CELLS = PRODUCTS * FP8_TENSORS, FP8_STEPS = 16 };

/* Scales of a run's tensors in fp8, on the device. */
typedef struct {
    /* [cells, FP8_SCALES] f32: the scales of each tensor in fp8, one cell each; none: the run does not use fp8 */
    Tensor scale;
    int    uses_own; /* 1: the history has no steps yet, so each tensor is scaled by its own maximum */
} Fp8Scales;

/* History of a run with fp8, on the host: for each tensor in fp8 and each of the last FP8_STEPS steps, the exponent of
 * the scale that its largest value allows. */
typedef struct {
    int64_t cells;
    int     steps;    /* steps in the history, at most FP8_STEPS */
    /* owned [FP8_STEPS][cells]: exponents of each tensor in fp8 (a cell), the newest step first; FP8_SILENT for a
     * maximum of 0 */
    int8_t *exponent;
} Fp8History;
enum { FP8_SILENT = 127 };

Fp8History fp8_history_create(int64_t n_layer);
void       fp8_history_destroy(Fp8History *h);
/* Adds a step to the history. Called only for steps whose update is made. amax [cells]: the largest absolute value of
 * each tensor in fp8 in this step, over all ranks, as bits of a float. */
void       fp8_history_add(Fp8History *h, const int64_t *amax);
int        fp8_history_exponent(const Fp8History *h, int64_t cell);
/* Returns the history as a JSON array with a string for each step. The string has two hexadecimal digits for each cell
 * (a tensor in fp8): its exponent + 128. */
cJSON     *fp8_history_to_json(const Fp8History *h);
/* Reads the history from JSON. Returns 0 and empties h if json is not a history of h->cells cells (tensors in fp8). */
int        fp8_history_from_json(Fp8History *h, const cJSON *json);

Fp8Scales fp8_scales_create(int64_t n_layer, Arena *a);
/* Returns the part of the scales that belongs to block l, and that of the maxima and counts of a step (StepSums).
 * Without fp8, when f->scale is none, the scale in the result is none, too. */
Fp8       fp8_of_block(const Fp8Scales *f, Tensor amax, Tensor counts, int64_t l);
void      fp8_scales_set(Fp8Scales *f, Stream *s, const Fp8History *h);

#endif
