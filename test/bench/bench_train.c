/* bench_train.c - speed of whole training steps, compared with the machine's matrix products in the same process.
 *
 *   bench_train fp32|bf16|fp16|tf32 [n_layer n_head n_embd vocab T B]     default: GPT-2 124M, T 256, 4 sequences
 *   bench_train rate fp32|bf16|fp16|tf32                                  only the rate of matrix products at 1024, in GFLOP/s
 *
 * Two steps to warm up, then the median of ten: forward, backward, gradient norm, AdamW. The rate at M=N=K=1024 is
 * measured before and after; over 5 % apart means a busy machine, and the run is worth repeating. Prints key=value
 * pairs, one line. On a GPU the step is recorded as the program records it, and the line ends with memory (planned:
 * arenas, scratch and CUDA's own) and the rates at 4096 and 8192.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/bench/training_step.h"

/* Numbers of steps: WARM_UP or GPU_WARM_UP steps that are not measured, then STEPS measured ones. On a GPU the first
 * step runs plainly, the second is recorded as a CUDA graph, and later ones replay it. Some more let the clocks
 * rise. */
enum { WARM_UP = 2, GPU_WARM_UP = 5, STEPS = 10 };

static DType dtype_of(const char *name) { return strcmp(name, "bf16") == 0 ? BF16 : strcmp(name, "fp16") == 0 ? F16 : F32; }

static double rate_at(const char *precision, int64_t n, double budget_ms) {
    return matmul_rate(dtype_of(precision), strcmp(precision, "tf32") == 0 ? MATH_TF32 : MATH_STRICT, n, budget_ms);
}

static int print_rate(const char *precision) {
    device_open(0, device_threads());
    printf("%.1f\n", rate_at(precision, 1024, 1000.0) * 1e-9);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "rate") == 0) return print_rate(argv[2]);
    const char *precision = argc > 1 ? argv[1] : "fp32";
    DType    act = dtype_of(precision);
    int64_t  n[6] = {12, 12, 768, 50257, 256, 4};
    for (int i = 2; i < argc && i < 8; i++) n[i - 2] = atoll(argv[i]);
    ModelShape shape = GPT2_SHAPE(n[0], n[1], n[2], n[4] > 1024 ? n[4] : 1024, n[3]);
    int64_t  T = n[4], B = n[5];

    device_open(0, device_threads());
    /* Read before other libraries are loaded, because device_memory_peak() omits the memory that these take. */
    size_t overhead = device_memory().overhead;
    int    on_gpu = strcmp(device_backend(), "cuda") == 0, warm_up = on_gpu ? GPU_WARM_UP : WARM_UP;
    double before = rate_at(precision, 1024, 500.0);
    Model *m = model_create(
        (ModelSpec){.shards = {.shape = shape, .ranks = 1, .zero_stage = 1, .act = act, .use = GPT_TRAINING},
                    .optimizer = &OPTIMIZER_ADAMW,
                    .B = B,
                    .T = T,
                    .math = strcmp(precision, "tf32") == 0 ? MATH_TF32 : MATH_STRICT});
    size_t tokens_bytes = 2 * (size_t)(B * T) * sizeof(int32_t) + 4096;
    size_t planned_bytes = m->bytes.params + m->bytes.grads + m->bytes.optimizer + m->bytes.activations +
                           m->bytes.scratch + tokens_bytes + overhead;
    Arena  arena = arena_create("tokens", tokens_bytes);
    Batch  batch = {arena_tensor(&arena, I32, 2, B, T, 1), arena_tensor(&arena, I32, 2, B, T, 1), tensor_none()};
    masters_init(&m->optimizer, &m->stream, 1, NULL, NULL);
    random_tokens(&m->stream, batch.inputs, shape.vocab_size, 1);
    random_tokens(&m->stream, batch.targets, shape.vocab_size, 2);

    double ms[STEPS], norm_ms[STEPS];
    for (int i = 0; i < warm_up; i++) step_ms(m, batch, i + 1);
    for (int i = 0; i < STEPS; i++) ms[i] = step_ms(m, batch, warm_up + i + 1);
    for (int i = 0; i < STEPS; i++) {
        double start = clock_ms();
        grad_norm(m);
        norm_ms[i] = clock_ms() - start;
    }
    double memory = (double)device_memory_peak(), planned = (double)planned_bytes;
    int64_t parameters = m->shards->layout.elems;
    model_destroy(m), arena_destroy(&arena);

    double after = rate_at(precision, 1024, 500.0), step = median(ms, STEPS);
    double flops = model_flops_per_token(shape, T) * (double)(B * T), rate = flops / step * 1e3;
    double apart = fabs(before - after) / fmax(before, after);
    printf("dtype=%s isa=%s threads=%d parameters=%lld T=%lld B=%lld step_ms=%.1f tokens_per_s=%.1f gflops=%.1f matmul_before=%.1f matmul_after=%.1f "
           "of_matmul=%.4f norm_of_step=%.4f bf16_by=%s quiet=%s",
           strcmp(precision, "tf32") == 0 ? precision : dtype_name(act), device_isa(), device_threads(),
           (long long)parameters, (long long)T, (long long)B, step, (double)(B * T) / step * 1e3, rate * 1e-9,
           before * 1e-9, after * 1e-9, rate / (0.5 * (before + after)), median(norm_ms, STEPS) / step, device_has_quick_bf16() ? "bf16" : "fp32",
           apart <= 0.05 ? "yes" : "no");
    if (on_gpu)
        printf(" fastest_ms=%.2f slowest_ms=%.2f memory_mib=%.0f planned_mib=%.0f matmul_4096=%.0f matmul_8192=%.0f",
               ms[0], ms[STEPS - 1], memory / 1048576.0, planned / 1048576.0, rate_at(precision, 4096, 500.0) * 1e-9,
               rate_at(precision, 8192, 1000.0) * 1e-9);
    printf("\n");
    return 0;
}
