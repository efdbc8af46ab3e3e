/* step_sums.h - the numbers of a step that the host reads, adjacent on the device and fetched in one copy. The sums are
 * exact: any order of addition gives the same bits. */
#ifndef TRAIN_GPT_MODEL_STEP_SUMS_H
#define TRAIN_GPT_MODEL_STEP_SUMS_H

#include "core/tensor.h"
#include "core/device.h"
#include "core/exact.h"

/* SUM_LOSS: losses of the rows. SUM_GRAD_SQUARES: squares of the summed gradients that this rank counts
 * (shards_is_own). SUM_RANK_CHECK: see shards_done. */
enum { SUM_LOSS, SUM_GRAD_SQUARES, SUM_RANK_CHECK, SUMS };
/* Hashes (hash_words). HASH_REPLICAS: memory that all ranks hold with equal bits. HASH_OWN_GRADS: a rank's own
 * gradients. HASH_GRADS: the summed gradients that a rank updates with. */
enum { HASH_REPLICAS, HASH_OWN_GRADS, HASH_GRADS, HASHES };

/* cells: the sums and the hashes. experts: assignments of each expert of each block; dims 0 in a model without experts.
 * fp8_amax, fp8_counts: maxima and counts of Fp8 for every block, in runs with fp8 (model/fp8.h). */
typedef struct {
    Tensor cells, experts;       /* [SUMS * EXACT_WORDS + HASHES], [n_layer * E] i64 */
    Tensor fp8_amax, fp8_counts; /* [cells] i32, [2 cells] i64 */
} StepSums;

typedef struct { Exact sum[SUMS]; int64_t hash[HASHES]; } StepValues;

StepSums step_sums_create(Arena *arena);
void     step_sums_zero(const StepSums *n, Stream *s);
Tensor   step_sum(const StepSums *n, int which);  /* returns one sum, an Exact: [EXACT_WORDS] i64 */
Tensor   step_hash(const StepSums *n, int which); /* returns one hash: [1] i64 */
/* Allocates counts [counts] for experts. */
void     step_sums_count(StepSums *n, Arena *arena, int64_t counts);
/* Allocates maxima and counts for `cells` tensors in fp8. */
void     step_sums_fp8(StepSums *n, Arena *arena, int64_t cells);
/* Waits for the stream and returns the sums and the hashes. */
StepValues step_sums_fetch(const StepSums *n, Stream *s);

#endif
