/* step_sums.c - see step_sums.h. */
#include "model/step_sums.h"

StepSums step_sums_create(Arena *arena) {
    return (StepSums){arena_tensor(arena, I64, 1, SUMS * EXACT_WORDS + HASHES, 1, 1), tensor_none(), tensor_none(), tensor_none()};
}
void     step_sums_count(StepSums *n, Arena *arena, int64_t counts) { n->experts = arena_tensor(arena, I64, 1, counts, 1, 1); }
void     step_sums_fp8(StepSums *n, Arena *arena, int64_t cells) {
    n->fp8_amax = arena_tensor(arena, I32, 1, cells, 1, 1);
    n->fp8_counts = arena_tensor(arena, I64, 1, 2 * cells, 1, 1);
}
void     step_sums_zero(const StepSums *n, Stream *s) {
    device_zero(s, n->cells);
    if (!tensor_is_none(n->experts)) device_zero(s, n->experts);
    if (tensor_is_none(n->fp8_amax)) return;
    device_zero(s, n->fp8_amax);
    device_zero(s, n->fp8_counts);
}
Tensor   step_sum(const StepSums *n, int which) { return tensor_slice(n->cells, which * EXACT_WORDS, EXACT_WORDS); }
Tensor   step_hash(const StepSums *n, int which) { return tensor_slice(n->cells, SUMS * EXACT_WORDS + which, 1); }

StepValues step_sums_fetch(const StepSums *n, Stream *s) {
    StepValues values;
    CHECK(sizeof values == tensor_bytes(n->cells), "%zu bytes of sums", sizeof values);
    device_to_host(s, &values, n->cells);
    return values;
}
