/* bench_train.c - speed of whole training steps against the machine's matrix products, in one process.
 *
 *   bench_train fp32|bf16 [n_layer n_head n_embd vocab T B]     default: GPT-2 124M, T 256, 4 sequences
 *   bench_train rate fp32|bf16                                  only the rate of matrix products at 1024, in GFLOP/s
 *
 * Two steps to warm up, then the median of ten: forward, backward, gradient norm, AdamW. The rate at M=N=K=1024 is measured before and
 * after; over 5 % apart means a busy machine, and the run is worth repeating. Prints key=value pairs, one line.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/rng.h"
#include "layers/gpt.h"
#include "layers/optimizer.h"

enum { WARM_UP = 2, STEPS = 10 };

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, by_value);
    return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

static void init_weights(Gpt *g, Optimizer *o, Stream *s) {
    for (int i = 0; i < o->span_count; i++) {
        const Param *p = &g->layout->param[o->spans[i].param];
        gpt_init_values((float *)optimizer_master(o, o->spans[i]).data, p, o->spans[i].offset - p->offset, o->spans[i].elems, 1);
    }
    optimizer_publish(o, s);
}

static void random_tokens(Tensor t, int64_t vocab, uint64_t seed) {
    for (int64_t i = 0; i < tensor_elems(t); i++) ((int32_t *)t.data)[i] = (int32_t)(rng_uniform(seed, RNG_TEST, (uint64_t)i) * (double)vocab);
}

static double step_ms(Gpt *g, Optimizer *o, Stream *s, Batch batch, int64_t step) {
    double   start = clock_ms();
    GptHooks none = {NULL, NULL, NULL};
    gpt_zero_grads(g, s);
    gpt_zero_sums(g, s);
    gpt_forward(g, s, batch);
    gpt_backward(g, s, batch, 1.0f / (float)tensor_elems(batch.inputs), none);
    double sums[GPT_SUMS];
    optimizer_norm_squared(o, s, gpt_sum(g, GPT_GRAD_SQUARES));
    gpt_fetch_sums(g, s, sums);
    double norm = sqrt(sums[GPT_GRAD_SQUARES]);
    AdamW  h = {6e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, step};
    optimizer_update(o, s, h, (float)(norm > 1.0 ? 1.0 / norm : 1.0));
    return clock_ms() - start;
}

static DType dtype_of(const char *name) { return strcmp(name, "bf16") == 0 ? BF16 : F32; }

static int print_rate(DType act) {
    device_open(0, device_threads());
    Stream s = stream_create(64u << 20);
    printf("%.1f\n", matmul_rate(&s, act, 1024, 1000.0) * 1e-9);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "rate") == 0) return print_rate(dtype_of(argv[2]));
    DType    act = argc > 1 ? dtype_of(argv[1]) : F32;
    int64_t  n[6] = {12, 12, 768, 50257, 256, 4};
    for (int i = 2; i < argc && i < 8; i++) n[i - 2] = atoll(argv[i]);
    GptShape shape = {n[0], n[1], n[2], n[4] > 1024 ? n[4] : 1024, n[3]};
    int64_t  T = n[4], B = n[5];

    device_open(0, device_threads());
    int    params;
    Param *rows = gpt_params(shape, &params);
    Layout layout = layout_create(rows, params, 1);
    Arena  dry = arena_dry("all");
    GptArenas all = {&dry, &dry, &dry};
    Gpt    g = gpt_create(shape, &layout, act, B, T, RECOMPUTE_NONE, GPT_TRAINING, all);
    Optimizer o = optimizer_create(&layout, 0, 1, g.params, g.grads, &dry);
    size_t scratch = gpt_scratch_bytes(&g) + (32u << 20);
    Arena  arena = arena_create("all", dry.peak_bytes + 2 * (size_t)(B * T) * 4 + 4096);
    all = (GptArenas){&arena, &arena, &arena};
    gpt_destroy(&g), optimizer_destroy(&o);
    g = gpt_create(shape, &layout, act, B, T, RECOMPUTE_NONE, GPT_TRAINING, all);
    o = optimizer_create(&layout, 0, 1, g.params, g.grads, &arena);
    Stream s = stream_create(scratch);
    Batch  batch = {arena_tensor(&arena, I32, 2, B, T, 1), arena_tensor(&arena, I32, 2, B, T, 1)};
    init_weights(&g, &o, &s);
    random_tokens(batch.inputs, shape.vocab_size, 1);
    random_tokens(batch.targets, shape.vocab_size, 2);

    double before = matmul_rate(&s, act, 1024, 500.0), ms[STEPS];
    for (int i = 0; i < WARM_UP; i++) step_ms(&g, &o, &s, batch, i + 1);
    for (int i = 0; i < STEPS; i++) ms[i] = step_ms(&g, &o, &s, batch, WARM_UP + i + 1);
    double after = matmul_rate(&s, act, 1024, 500.0), step = median(ms, STEPS);
    double flops = gpt_flops_per_token(shape, layout.elems, T) * (double)(B * T), rate = flops / step * 1e3;
    double apart = fabs(before - after) / fmax(before, after);
    printf("dtype=%s isa=%s threads=%d parameters=%lld T=%lld B=%lld step_ms=%.1f tokens_per_s=%.1f gflops=%.1f matmul_before=%.1f matmul_after=%.1f "
           "of_matmul=%.4f quiet=%s\n", dtype_name(act), device_isa(), device_threads(), (long long)layout.elems, (long long)T, (long long)B, step,
           (double)(B * T) / step * 1e3, rate * 1e-9, before * 1e-9, after * 1e-9, rate / (0.5 * (before + after)), apart <= 0.05 ? "yes" : "no");
    return 0;
}
