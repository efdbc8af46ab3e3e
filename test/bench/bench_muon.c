/* bench_muon.c - what Muon adds to a step of GPT-2 124M. The time of its update of all weights, less that of AdamW's
 * update, is compared with the time for 524,288 tokens, calculated from one micro-batch.
 *
 *   bench_muon fp32|bf16 [T B n_layer]      default: T 256, 4 sequences, 12 layers
 *
 * One line of key=value pairs; `adds` is a share of the step. Each time is the shorter of two.
 */
#include <stdio.h>
#include <string.h>

#include "test/bench/training_step.h"

enum { STEP_TOKENS = 524288, RUNS = 2 };

/* Milliseconds of the forward and backward passes of one micro-batch, and of an update of all weights by the
 * optimizer. */
typedef struct { double batch_ms, update_ms; } Times;

static Times times_of(const OptimizerKind *kind, DType act, int64_t T, int64_t B, int64_t layers) {
    ModelShape shape = GPT2_SHAPE(layers, 12, 768, T, 50257);
    Model     *m = model_create((ModelSpec){.shards = {.shape = shape, .ranks = 1, .zero_stage = 1, .act = act, .use = GPT_TRAINING},
                                            .optimizer = kind, .optimizer_settings = OPTIMIZER_MUON.settings, .B = B, .T = T});
    Arena      tokens = arena_create("tokens", 2 * (size_t)(B * T) * sizeof(int32_t) + 4096);
    Batch      batch = {arena_tensor(&tokens, I32, 2, B, T, 1), arena_tensor(&tokens, I32, 2, B, T, 1), tensor_none()};
    Times      best = {INFINITY, INFINITY};
    masters_init(&m->optimizer, &m->stream, 1, NULL, NULL);
    random_tokens(&m->stream, batch.inputs, shape.vocab_size, 1);
    random_tokens(&m->stream, batch.targets, shape.vocab_size, 2);
    for (int64_t step = 1; step <= RUNS; step++) {
        double start = clock_ms();
        step_sums_zero(&m->sums, &m->stream);
        shards_begin(m->shards, &m->stream);
        gpt_forward(&m->gpt, &m->stream, batch);
        gpt_backward(&m->gpt, &m->stream, batch, 1.0f / (float)(B * T), MICRO_LAST);
        shards_finish(m->shards, &m->stream);
        device_sync(&m->stream);
        double middle = clock_ms();
        optimizer_update(&m->optimizer, &m->stream, (OptimizerStep){6e-4, 0.9, 0.95, 1e-8, 0.1, step}, 1.0f);
        device_sync(&m->stream);
        best.batch_ms = fmin(best.batch_ms, middle - start), best.update_ms = fmin(best.update_ms, clock_ms() - middle);
    }
    model_destroy(m);
    arena_destroy(&tokens);
    return best;
}

int main(int argc, char **argv) {
    const char *precision = argc > 1 ? argv[1] : "fp32";
    int64_t     n[3] = {256, 4, 12};
    for (int i = 2; i < argc && i < 5; i++) n[i - 2] = atoll(argv[i]);
    DType act = strcmp(precision, "bf16") == 0 ? BF16 : F32;
    device_open(0, device_threads());
    Times  adamw = times_of(&OPTIMIZER_ADAMW, act, n[0], n[1], n[2]), muon = times_of(&OPTIMIZER_MUON, act, n[0], n[1], n[2]);
    double step = fmin(adamw.batch_ms, muon.batch_ms) * STEP_TOKENS / (double)(n[0] * n[1]) + adamw.update_ms;
    printf("precision=%s T=%lld B=%lld layers=%lld threads=%d isa=%s batch_ms=%.1f adamw_ms=%.1f muon_ms=%.1f adds=%.5f\n",
           precision, (long long)n[0], (long long)n[1], (long long)n[2], device_threads(), device_isa(),
           fmin(adamw.batch_ms, muon.batch_ms), adamw.update_ms, muon.update_ms, (muon.update_ms - adamw.update_ms) / step);
    return 0;
}
