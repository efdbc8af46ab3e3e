/* bench_kinds.c - training steps of another kind of model and of GPT-2, both with 124M parameters, alternating in one
 * process, so that a busy machine slows both.
 *
 *   bench_kinds fp32|bf16|fp16 [llama|qwen3 [T B PAIRS n_layer]]      default: T 256, 4 sequences, 5 pairs, 12 layers
 *
 * A rate is the FLOPs of a model divided by its time. `beside_gpt2` is the kind's rate divided by GPT-2's, the median
 * of the pairs. With one thread processor time is measured, which stops while other programs have the cores. With more
 * threads elapsed time is measured. One line of key=value pairs.
 */
#include <stdio.h>
#include <string.h>

#include "test/bench/training_step.h"

enum { WARM_UP = 2, MOST_TURNS = 64 };
typedef struct { Model *model; Batch batch; Arena tokens; ModelShape shape; int64_t steps; } Bench;
/* Returns the sizes of GPT-2 124M. A SwiGLU of 8/3 n_embd has as many weights as a GELU of 4 n_embd
 * (arXiv:2002.05202). */
static ModelShape shape_of(const char *kind, int64_t layers, int64_t positions) {
    ModelShape shape = GPT2_SHAPE(layers, 12, 768, positions, 50304);
    if (strcmp(kind, "gpt2") == 0) return shape;
    int is_qwen3 = strcmp(kind, "qwen3") == 0;
    CHECK(is_qwen3 || strcmp(kind, "llama") == 0, "the kinds are gpt2, llama and qwen3, not %s", kind);
    shape.arch = is_qwen3 ? ARCH_QWEN3 : ARCH_LLAMA, shape.tie_embeddings = 1, shape.n_inner = 2048;
    shape.norm_eps = 1e-5, shape.rope_theta = 1e4;
    return shape;
}

static Bench bench_create(ModelShape shape, DType act, int64_t T, int64_t B) {
    Bench b = {.shape = shape, .tokens = arena_create("tokens", 2 * (size_t)(B * T) * sizeof(int32_t) + 4096)};
    b.model = model_create((ModelSpec){.shards = {.shape = shape, .ranks = 1, .zero_stage = 1, .act = act, .use = GPT_TRAINING},
                                       .optimizer = &OPTIMIZER_ADAMW, .B = B, .T = T});
    b.batch = (Batch){arena_tensor(&b.tokens, I32, 2, B, T, 1), arena_tensor(&b.tokens, I32, 2, B, T, 1), tensor_none()};
    masters_init(&b.model->optimizer, &b.model->stream, 1, NULL, NULL);
    random_tokens(&b.model->stream, b.batch.inputs, shape.vocab_size, 1);
    random_tokens(&b.model->stream, b.batch.targets, shape.vocab_size, 2);
    return b;
}

static double one_step_ms(Bench *b) {
    double start = bench_ms();
    step_ms(b->model, b->batch, ++b->steps);
    return bench_ms() - start;
}

int main(int argc, char **argv) {
    const char *precision = argc > 1 ? argv[1] : "fp32", *kind = argc > 2 ? argv[2] : "llama";
    int64_t     n[4] = {256, 4, 5, 12};
    for (int i = 3; i < argc && i < 7; i++) n[i - 3] = atoll(argv[i]);
    int64_t T = n[0], B = n[1], pairs = n[2];
    CHECK(pairs > 0 && pairs <= MOST_TURNS, "1 to %d pairs, not %lld", MOST_TURNS, (long long)pairs);
    DType act = strcmp(precision, "bf16") == 0 ? BF16 : strcmp(precision, "fp16") == 0 ? F16 : F32;
    device_open(0, device_threads());
    Bench  gpt2 = bench_create(shape_of("gpt2", n[3], T), act, T, B), other = bench_create(shape_of(kind, n[3], T), act, T, B);
    double flops = model_flops_per_token(other.shape, T) / model_flops_per_token(gpt2.shape, T);
    double gpt2_ms[MOST_TURNS], other_ms[MOST_TURNS], share[MOST_TURNS];
    for (int i = 0; i < WARM_UP; i++) one_step_ms(&gpt2), one_step_ms(&other);
    for (int i = 0; i < pairs; i++) {
        gpt2_ms[i] = one_step_ms(&gpt2), other_ms[i] = one_step_ms(&other);
        share[i] = flops * gpt2_ms[i] / other_ms[i];
    }
    printf("kind=%s dtype=%s isa=%s threads=%d clock=%s layers=%lld T=%lld B=%lld pairs=%lld parameters=%lld gpt2_parameters=%lld "
           "step_ms=%.1f gpt2_step_ms=%.1f flops_of_gpt2=%.4f beside_gpt2=%.4f\n",
           kind, dtype_name(act), device_isa(), device_threads(), by_processor() ? "processor" : "wall", (long long)n[3],
           (long long)T, (long long)B, (long long)pairs, (long long)other.model->shards->layout.elems,
           (long long)gpt2.model->shards->layout.elems,
           median(other_ms, (int)pairs), median(gpt2_ms, (int)pairs), flops, median(share, (int)pairs));
    model_destroy(gpt2.model), model_destroy(other.model), arena_destroy(&gpt2.tokens), arena_destroy(&other.tokens);
    return 0;
}
