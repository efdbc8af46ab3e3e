/* fp8.h - the scales of a run's products in fp8 (precision = "fp8"; core/tensor.h): delayed scaling.
 *
 * A tensor is multiplied by a power of two s when it is cast. s is the largest one that keeps the largest of the
 * tensor's last FP8_STEPS maxima within half of the type's largest value. It is known before the tensor is, so a cast
 * reads the tensor once. The first step has no maxima; each tensor then uses its own maximum. A maximum is taken over
 * all micro-batches and ranks, and enters the history when its step counts: a step that is computed twice has the same
 * scales, and a step that is left out changes none.
 *
 * The history stores the exponent of the scale that each maximum allows, a whole number. The largest maximum has the
 * least exponent. The history is the same on all ranks of any grid.
 */
#ifndef TRAIN_GPT_MODEL_FP8_H
#define TRAIN_GPT_MODEL_FP8_H

#include <cjson/cJSON.h>

#include "core/tensor.h"
#include "core/device.h"
#include "layers/layers.h"
#include "model/step_sums.h"

/* The products of a block whose operands become fp8: queries, keys and values; the projection after attention; the
 * product into the MLP; the product out of it. Each has FP8_TENSORS tensors, and each tensor has a cell. */
typedef enum { PRODUCT_QKV, PRODUCT_ATTENTION, PRODUCT_UP, PRODUCT_DOWN, PRODUCTS } BlockProduct;
enum { FP8_BLOCK_CELLS = PRODUCTS * FP8_TENSORS, FP8_STEPS = 16 };

/* The scales on the device. */
typedef struct {
    Tensor scale;    /* [cells, FP8_SCALES] f32, as in Fp8; none: the run does not use fp8       */
    int    uses_own; /* the history is empty; each tensor is scaled by its own maximum           */
} Fp8Scales;

/* The history of a run, on the host. */
typedef struct {
    int64_t cells;
    int     steps;    /* steps in the history, at most FP8_STEPS */
    int8_t *exponent; /* owned [FP8_STEPS][cells], the newest step first; FP8_SILENT for a maximum of 0 */
} Fp8History;
enum { FP8_SILENT = 127 };

Fp8History fp8_history_create(int64_t n_layer);
void       fp8_history_destroy(Fp8History *h);
/* Adds a step that counts. amax [cells]: the bits of the step's maxima over all ranks. */
void       fp8_history_add(Fp8History *h, const int64_t *amax);
int        fp8_history_exponent(const Fp8History *h, int64_t cell);
/* Returns a string for each step, with two digits for each cell: exponent + 128. Returns NULL if there is no memory. */
cJSON     *fp8_history_to_json(const Fp8History *h);
/* Returns 0 and empties h if json is not a history of h->cells cells. */
int        fp8_history_from_json(Fp8History *h, const cJSON *json);

Fp8Scales fp8_scales_create(int64_t n_layer, Arena *a);
/* Returns the cells of block l, with the step's maxima and counts. scale is none if f->scale is. */
Fp8       fp8_of_block(const Fp8Scales *f, const StepSums *sums, int64_t l);
void      fp8_scales_set(Fp8Scales *f, Stream *s, const Fp8History *h);

#endif
