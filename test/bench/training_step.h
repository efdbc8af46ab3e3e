/* training_step.h - training steps of a model without the program around them, for the benches that time them. */
#ifndef TRAIN_GPT_TEST_BENCH_TRAINING_STEP_H
#define TRAIN_GPT_TEST_BENCH_TRAINING_STEP_H

#include <math.h>
#include <stdlib.h>

#include "core/rng.h"
#include "model/model.h"
#include "test/bench/times.h"

static inline void random_tokens(Stream *s, Tensor t, int64_t vocab, uint64_t seed) {
    int32_t *tokens = malloc(tensor_bytes(t));
    CHECK(tokens, "no memory for tokens");
    for (int64_t i = 0; i < tensor_elems(t); i++) tokens[i] = (int32_t)(rng_uniform(seed, RNG_TEST, (uint64_t)i) * (double)vocab);
    device_from_host(s, t, tokens);
    device_sync(s);
    free(tokens);
}

/* Computes the gradient norm as an exact sum, like all sums of a step. Its time is an upper bound for the cost of equal
 * bits in every run. */
static inline double grad_norm(Model *m) {
    optimizer_numbers(&m->optimizer, &m->stream, 0);
    StepValues values = step_sums_fetch(&m->sums, &m->stream);
    return sqrt(exact_value(&values.sum[SUM_GRAD_SQUARES]));
}

static inline double step_ms(Model *m, Batch batch, int64_t step) {
    double start = clock_ms();
    step_sums_zero(&m->sums, &m->stream);
    shards_begin(m->shards, &m->stream);
    gpt_forward(&m->gpt, &m->stream, batch);
    gpt_backward(&m->gpt, &m->stream, batch, 1.0f / (float)tensor_elems(batch.inputs), MICRO_LAST);
    shards_finish(m->shards, &m->stream);
    double norm = grad_norm(m);
    OptimizerStep  h = {6e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, step};
    optimizer_update(&m->optimizer, &m->stream, h, (float)(norm > 1.0 ? 1.0 / norm : 1.0));
    device_sync(&m->stream);
    return clock_ms() - start;
}

#endif
