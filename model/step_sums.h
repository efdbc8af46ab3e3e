/* step_sums.h - the numbers that the host wants of a step, side by side on the device and fetched in one copy. Exact
 * sums: in any order the same bits. */
#ifndef TRAIN_GPT_MODEL_STEP_SUMS_H
#define TRAIN_GPT_MODEL_STEP_SUMS_H

#include "core/arena.h"
#include "core/device.h"
#include "core/exact.h"

/* The rows' losses; the squares of the reduced gradients that this rank answers for; SUM_RANK_CHECK: see shards.h. */
enum { SUM_LOSS, SUM_GRAD_SQUARES, SUM_RANK_CHECK, SUMS };
/* Hashes (hash_words): of the memory that all ranks hold alike; of a rank's own gradients; of the sums it updates
 * with. */
enum { HASH_REPLICAS, HASH_OWN_GRADS, HASH_GRADS, HASHES };

/* experts: of each block, how many assignments each of its experts had; dims 0 in a model without experts. fp8_amax, fp8_counts:
 * Fp8's of every block, of runs in fp8 (model/fp8.h). */
typedef struct {
    Tensor cells, experts;       /* [SUMS * EXACT_WORDS + HASHES], [n_layer * E] i64 */
    Tensor fp8_amax, fp8_counts; /* [cells] i32, [2 cells] i64 */
} StepSums;

typedef struct { Exact sum[SUMS]; int64_t hash[HASHES]; } StepValues;

StepSums step_sums_create(Arena *arena);
void     step_sums_zero(const StepSums *n, Stream *s);
Tensor   step_sum(const StepSums *n, int which);  /* an Exact: [EXACT_WORDS] i64 */
Tensor   step_hash(const StepSums *n, int which); /* [1] i64 */
/* Makes room for counts of experts. */
void     step_sums_count(StepSums *n, Arena *arena, int64_t counts);
/* And for fp8's of so many tensors. */
void     step_sums_fp8(StepSums *n, Arena *arena, int64_t cells);
/* Waits for the stream. */
StepValues step_sums_fetch(const StepSums *n, Stream *s);

#endif
