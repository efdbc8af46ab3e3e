/* fp8.h - the scales of a run's products in fp8 (precision = "fp8"; core/fp8.h): delayed scaling.
 *
 * A tensor is cast in this step with the largest power of two s by which the largest of its last FP8_STEPS maxima stays
 * within half of the type's largest value: known before the tensor is, so that a cast reads it once. The first step has
 * no maxima: each tensor then takes its own. A maximum is over all micro-batches and ranks; it counts once its step does:
 * a step that is computed twice has the same scales, and one that is left out changes none.
 *
 * A maximum m says the exponent of its scale, a whole number, and the largest m says the least: the history is those
 * exponents, the same on all ranks of any grid.
 */
#ifndef TRAIN_GPT_MODEL_FP8_H
#define TRAIN_GPT_MODEL_FP8_H

#include <cjson/cJSON.h>

#include "core/arena.h"
#include "core/device.h"
#include "layers/layers.h"
#include "model/step_sums.h"

/* The products of a block whose operands become fp8: queries, keys and values; the projection after attention; into the
 * MLP; out of it. Each has FP8_TENSORS tensors, and each of these a cell. */
typedef enum { PRODUCT_QKV, PRODUCT_ATTENTION, PRODUCT_UP, PRODUCT_DOWN, PRODUCTS } BlockProduct;
enum { FP8_BLOCK_CELLS = PRODUCTS * FP8_TENSORS, FP8_STEPS = 16 };

/* On the device. */
typedef struct {
    Tensor scale;    /* [cells, FP8_SCALES] f32, as in Fp8; none: the run is not in fp8           */
    int    uses_own; /* there is no history: each tensor takes the scale of its own maximum      */
} Fp8Scales;

/* Of a run, on the host. */
typedef struct {
    int64_t cells;
    int     steps;    /* that are known, FP8_STEPS at most */
    int8_t *exponent; /* owned [FP8_STEPS][cells], the newest step first; FP8_SILENT of a maximum of 0 */
} Fp8History;
enum { FP8_SILENT = 127 };

Fp8History fp8_history_create(int64_t n_layer);
void       fp8_history_destroy(Fp8History *h);
/* A step counts. amax [cells]: bits of its maxima, over all ranks. */
void       fp8_history_add(Fp8History *h, const int64_t *amax);
int        fp8_history_exponent(const Fp8History *h, int64_t cell);
/* A string for each step, two digits a cell: exponent + 128. NULL where there is no memory. */
cJSON     *fp8_history_to_json(const Fp8History *h);
/* 0, and h empty, where it is no history of so many cells. */
int        fp8_history_from_json(Fp8History *h, const cJSON *json);

Fp8Scales fp8_scales_create(int64_t n_layer, Arena *a);
/* A block's cells, with the step's maxima and counts; scale none where f's is. */
Fp8       fp8_of_block(const Fp8Scales *f, const StepSums *sums, int64_t l);
void      fp8_scales_set(Fp8Scales *f, Stream *s, const Fp8History *h);

#endif
