/* bench_kernels.c - time of every operation of layers.h at the shapes of one model, compared with this machine's copies
 * and matrix products.
 *
 *   bench_kernels fp32|bf16|fp16 [B T C H V L [WORD]]     default: GPT-2 124M, 64 sequences of 1024 on a GPU; a small model on the CPU
 *                                                         WORD: only ops whose name has it
 *
 * One line an op: time (median of seven samples, each of as many launches as take some ten ms), bytes it must move at
 * the least (every operand once) and FLOPs by formula, their rates, and the rates as a fraction of two probes: a copy
 * of memory (cast_forward, fp32 to fp32) and matrix products at 8192 (the CPU: 1024). Causal attention counts half of T
 * x T. of_same_bytes: the time of a copy that moves as many bytes, over the op's. First line: the probes. key=value
 * pairs. On one thread of the CPU build the clock is the processor's.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"
#include "test/bench/times.h"

enum { SAMPLES = 7, CHUNK = 1 << 20, SCRATCH_MORE = 64 << 20 };

typedef struct {
    Stream  stream;
    DType   act;
    const char *word;
    /* rows: rows of logits that the classifier computes at once; padded: size of the padded vocabulary; params: number
     * of weights; like: elements that copy_like copies */
    int64_t B, T, C, H, V, N, rows, padded, params, like;
    Tensor  starts, tokens, targets, chunk_targets, x, y, dx, dy, update, mean, rstd, lse, delta, qkv, dqkv, fc, gelu, dfc, logits, loss, sum;
    Tensor  wte, wpe, norm_w, norm_b, qkv_w, qkv_b, proj_w, proj_b, fc_w, fc_b, out_w;
    Tensor  dwte, dwpe, dnorm_w, dnorm_b, dqkv_w, dqkv_b, dproj_w, dproj_b, dfc_w, dfc_b, dout_w;
    Tensor  master, m, v, grad, working, from, to, frequencies;
} Bench;

static void carve(Bench *b, Arena *a) {
    int64_t N = b->N, C = b->C;
    DType   act = b->act;
    struct { Tensor *t; DType type; int64_t rows, columns; } table[] = {
        {&b->starts, I32, b->B, b->T}, {&b->tokens, I32, b->B, b->T}, {&b->targets, I32, b->B, b->T},
        {&b->chunk_targets, I32, b->rows, 0}, {&b->x, act, N, C}, {&b->y, act, N, C}, {&b->dx, act, N, C}, {&b->dy, act, N, C},
        {&b->update, act, N, C}, {&b->mean, F32, N, 0}, {&b->rstd, F32, N, 0}, {&b->lse, F32, b->B * b->H, b->T}, {&b->delta, F32, b->H, N},
        {&b->qkv, act, N, 3 * C}, {&b->dqkv, act, N, 3 * C}, {&b->fc, act, N, 4 * C}, {&b->gelu, act, N, 4 * C}, {&b->dfc, act, N, 4 * C},
        {&b->logits, act, b->rows, b->padded}, {&b->loss, F32, b->rows, 0}, {&b->sum, I64, EXACT_WORDS, 0},
        {&b->wte, act, b->padded, C}, {&b->wpe, act, b->T, C}, {&b->norm_w, act, C, 0}, {&b->norm_b, act, C, 0}, {&b->qkv_w, act, C, 3 * C},
        {&b->qkv_b, act, 3 * C, 0}, {&b->proj_w, act, C, C}, {&b->proj_b, act, C, 0}, {&b->fc_w, act, C, 4 * C}, {&b->fc_b, act, 4 * C, 0},
        {&b->out_w, act, 4 * C, C}, {&b->dwte, F32, b->padded, C}, {&b->dwpe, F32, b->T, C}, {&b->dnorm_w, F32, C, 0}, {&b->dnorm_b, F32, C, 0},
        {&b->dqkv_w, F32, C, 3 * C}, {&b->dqkv_b, F32, 3 * C, 0}, {&b->dproj_w, F32, C, C}, {&b->dproj_b, F32, C, 0}, {&b->dfc_w, F32, C, 4 * C},
        {&b->dfc_b, F32, 4 * C, 0}, {&b->dout_w, F32, 4 * C, C}, {&b->master, F32, b->params, 0}, {&b->m, F32, b->params, 0}, {&b->v, F32, b->params, 0},
        {&b->grad, F32, b->params, 0}, {&b->working, act, b->params, 0}, {&b->from, F32, b->params, 0}, {&b->to, F32, b->params, 0},
        {&b->frequencies, F32, C / b->H / 2, 0}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        *table[i].t = table[i].columns ? arena_tensor(a, table[i].type, 2, table[i].rows, table[i].columns, 1)
                                       : arena_tensor(a, table[i].type, 1, table[i].rows, 1, 1);
    /* in fp32 the model computes with the master weights themselves */
    if (act == F32) b->working = b->master;
}

/* Fills a tensor with one block of values, repeated. The values are about normally distributed, because the power that
 * products need depends on the data. */
static void fill(Bench *b, Tensor t, float spread, float centre) {
    Tensor   block = tensor_1d(malloc(CHUNK * sizeof(float)), t.type, CHUNK);
    uint64_t state = 88172645463325252ull;
    CHECK(block.data, "no memory");
    for (int64_t i = 0; i < CHUNK; i++) {
        float sum = -2.0f;
        for (int k = 0; k < 4; k++)
            state ^= state << 13, state ^= state >> 7, state ^= state << 17, sum += (float)(state >> 40) * 0x1p-24f;
        tensor_set(block, i, centre + spread * 1.73f * sum);
    }
    int64_t elems = tensor_elems(t);
    for (int64_t at = 0; at < elems; at += CHUNK)
        device_from_host(&b->stream, tensor_slice(t, at, elems - at < CHUNK ? elems - at : CHUNK), block.data);
    device_sync(&b->stream);
    free(block.data);
}

static void fill_tokens(Bench *b, Tensor t) {
    int32_t *tokens = malloc(tensor_bytes(t));
    CHECK(tokens, "no memory");
    uint64_t state = 1;
    for (int64_t i = 0; i < tensor_elems(t); i++)
        state = state * 6364136223846793005ull + 1442695040888963407ull,
        tokens[i] = (int32_t)((state >> 33) % (uint64_t)b->V);
    device_from_host(&b->stream, t, tokens);
    device_sync(&b->stream);
    free(tokens);
}

/* Fills the starts of documents of 3/8, 1/8, 1/4 and 1/4 of a sequence. */
static void fill_starts(Bench *b) {
    int32_t *starts = malloc(tensor_bytes(b->starts));
    CHECK(starts, "no memory");
    for (int64_t i = 0; i < b->N; i++) {
        int64_t t = i % b->T, eighth = b->T / 8;
        starts[i] = (int32_t)(t < 3 * eighth ? 0 : t < 4 * eighth ? 3 * eighth : t < 6 * eighth ? 4 * eighth : 6 * eighth);
    }
    device_from_host(&b->stream, b->starts, starts);
    device_sync(&b->stream);
    free(starts);
}

static void fill_frequencies(Bench *b) {
    float table[256];
    CHECK(b->C / b->H <= 512, "heads of at most 512 channels");
    rope_frequencies(table, b->C / b->H, 1e4, (RopeScaling){0});
    device_from_host(&b->stream, b->frequencies, table);
    device_sync(&b->stream);
}

static HeadShape heads(const Bench *b) { return (HeadShape){b->H, b->H, b->C / b->H}; }

static void fill_all(Bench *b) {
    Tensor acts[] = {b->x, b->y, b->dx, b->dy, b->update, b->qkv, b->dqkv, b->fc, b->gelu, b->dfc, b->logits, b->from};
    Tensor weights[] = {b->wte, b->wpe, b->norm_b, b->qkv_w, b->qkv_b, b->proj_w,
                        b->proj_b, b->fc_w, b->fc_b, b->out_w, b->master, b->grad};
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++) fill(b, acts[i], 1.0f, 0.0f);
    for (size_t i = 0; i < sizeof weights / sizeof weights[0]; i++) fill(b, weights[i], 0.02f, 0.0f);
    fill(b, b->norm_w, 0.02f, 1.0f), fill(b, b->mean, 0.01f, 0.0f), fill(b, b->rstd, 0.02f, 1.0f);
    fill_tokens(b, b->tokens), fill_tokens(b, b->targets), fill_tokens(b, b->chunk_targets), fill_starts(b), fill_frequencies(b);
    /* computes the lse (log-sum-exp) that the backward pass needs */
    attention_forward(&b->stream, b->y, b->lse, b->qkv, tensor_none(), heads(b));
    attention_delta(&b->stream, b->delta, b->dy, b->y);
}

/* --- the ops ------------------------------------------------------------------------------------------------------ */

#define OP(name, ...) static void name(Bench *b) { Stream *s = &b->stream; __VA_ARGS__; }
OP(copy, cast_forward(s, b->to, b->from))
/* copy_like copies as many bytes as the operation moves with which it is compared. If the operation's data fits in
 * the cache, so does the copy's. */
OP(copy_like, cast_forward(s, tensor_slice(b->to, 0, b->like), tensor_slice(b->from, 0, b->like)))
OP(embedding_f, embedding_forward(s, b->x, b->tokens, b->wte, b->wpe, tensor_none(), WHOLE_SEQUENCE))
OP(embedding_b, embedding_backward(s, b->dwte, b->dwpe, b->dy, b->tokens, tensor_none(), WHOLE_SEQUENCE))
OP(layernorm_f,
   layernorm_forward(s, tensor_none(), b->y, b->mean, b->rstd, b->x, tensor_none(), b->norm_w, b->norm_b, 1e-5f))
OP(residual_f, layernorm_forward(s, b->dx, b->y, b->mean, b->rstd, b->x, b->update, b->norm_w, b->norm_b, 1e-5f))
OP(layernorm_b, layernorm_backward(s, b->dx, tensor_none(), b->dnorm_w, b->dnorm_b, b->update, b->dy, b->x, b->norm_w, b->mean, b->rstd))
OP(layernorm_bias, layernorm_backward(s, b->dx, b->dproj_b, b->dnorm_w, b->dnorm_b, b->update, b->dy, b->x, b->norm_w, b->mean, b->rstd))
OP(rmsnorm_f, rmsnorm_forward(s, tensor_none(), b->y, b->rstd, b->x, tensor_none(), b->norm_w, 1e-5f))
OP(residual_rms_f, rmsnorm_forward(s, b->dx, b->y, b->rstd, b->x, b->update, b->norm_w, 1e-5f))
OP(rmsnorm_b, rmsnorm_backward(s, b->dx, b->dnorm_w, b->update, b->dy, b->x, b->norm_w, b->rstd))
/* Returns a weight vector for the norm of each head of q, which is in columns [0, C) of qkv. The norm's rstd is stored
 * in lse, which attention_forward sets again afterwards. */
static Tensor head_weight(Bench *b, Tensor of) { return tensor_1d(of.data, of.type, b->C / b->H); }
static Tensor head_rstd(Bench *b) { return tensor_2d(b->lse.data, F32, b->N, b->H); }
OP(head_norm_f, head_norm_forward(s, b->y, head_rstd(b), b->qkv, 0, b->H, head_weight(b, b->norm_w), 1e-5f))
OP(head_norm_b, head_norm_backward(s, b->dx, head_weight(b, b->dnorm_w), b->dy, b->qkv, 0, b->H, head_weight(b, b->norm_w),
                                   head_rstd(b)))
OP(qkv_f, linear_forward(s, b->qkv, b->x, b->qkv_w, b->qkv_b, PLAIN))
OP(qkv_b, linear_backward(s, b->dx, b->dqkv_w, b->dqkv_b, b->dqkv, b->x, b->qkv_w, PLAIN))
OP(proj_f, linear_forward(s, b->y, b->x, b->proj_w, b->proj_b, PLAIN))
OP(proj_b, linear_backward(s, b->dx, b->dproj_w, b->dproj_b, b->dy, b->x, b->proj_w, PLAIN))
OP(proj_delta, linear_delta_backward(s, b->dx, b->delta, b->dproj_w, b->dproj_b, b->dy, b->x, b->proj_w))
OP(fc_f, linear_activation_forward(s, ACTIVATION_GELU_NEW, b->gelu, b->fc, b->x, b->fc_w, b->fc_b))
OP(fc_b, linear_backward(s, b->dx, b->dfc_w, b->dfc_b, b->dfc, b->x, b->fc_w, PLAIN))
OP(out_f, linear_forward(s, b->y, b->gelu, b->out_w, b->proj_b, PLAIN))
OP(out_b, linear_activation_backward(s, ACTIVATION_GELU_NEW, b->dfc, tensor_none(), b->dout_w, b->dproj_b, b->dy, b->gelu, b->fc, b->out_w))
/* Runs a linear op, adds its result to the residual stream, and runs the next norm. The addition is part of the linear
 * op if its kernel can do that, else of the norm. */
static void joined(Bench *b, Tensor x, Tensor w) {
    Tensor out = tensor_2d(b->dfc.data, b->act, b->N, b->C);
    if (linear_residual_forward(&b->stream, b->dx, b->y, b->update, x, w, b->proj_b, PLAIN))
        layernorm_forward(&b->stream, tensor_none(), out, b->mean, b->rstd, b->dx, tensor_none(), b->norm_w, b->norm_b,
                          1e-5f);
    else layernorm_forward(&b->stream, b->dx, out, b->mean, b->rstd, b->update, b->y, b->norm_w, b->norm_b, 1e-5f);
}
OP(proj_joined, (void)s; joined(b, b->x, b->proj_w))
OP(out_joined, (void)s; joined(b, b->gelu, b->out_w))
OP(gelu_f, activation_forward(s, ACTIVATION_GELU_NEW, b->gelu, b->fc))
OP(gelu_b, activation_backward(s, ACTIVATION_GELU_NEW, b->dfc, tensor_none(), b->gelu, b->fc))
OP(gelu_bias, activation_backward(s, ACTIVATION_GELU_NEW, b->dfc, b->dfc_b, b->gelu, b->fc))
OP(swiglu_f, swiglu_forward(s, tensor_2d(b->gelu.data, b->act, b->N, 2 * b->C), b->fc))
OP(swiglu_b, swiglu_backward(s, b->dfc, tensor_2d(b->gelu.data, b->act, b->N, 2 * b->C), b->fc))
OP(rope_f, rope(s, b->dqkv, b->frequencies, heads(b), b->T, 0, WHOLE_SEQUENCE, ROPE_FORWARD))
OP(rope_b, rope(s, b->dqkv, b->frequencies, heads(b), b->T, 0, WHOLE_SEQUENCE, ROPE_BACKWARD))
OP(attention_f, attention_forward(s, b->y, b->lse, b->qkv, tensor_none(), heads(b)))
/* Returns the delta (row sums of dy * y) that attention_backward gets in a training step. On a GPU the backward of the
 * projection has computed it. On the CPU it gets none and computes delta itself. */
static Tensor delta_of(Bench *b) { return device_is_host() ? tensor_none() : b->delta; }
OP(delta, attention_delta(s, b->delta, b->dy, b->y))
OP(attention_b, attention_backward(s, b->dqkv, tensor_none(), b->dy, b->y, b->lse, delta_of(b), b->qkv, tensor_none(), heads(b)))
OP(documents_f, attention_forward(s, b->y, b->lse, b->qkv, b->starts, heads(b)))
OP(documents_b, attention_backward(s, b->dqkv, tensor_none(), b->dy, b->y, b->lse, delta_of(b), b->qkv, b->starts, heads(b)))
OP(head_f, linear_forward(s, b->logits, tensor_rows(b->x, 0, b->rows), b->wte, tensor_none(), TRANSPOSED))
OP(head_b, linear_backward(s, tensor_rows(b->dx, 0, b->rows), b->dwte, tensor_none(), b->logits,
                           tensor_rows(b->x, 0, b->rows), b->wte, TRANSPOSED))
OP(classifier_f, classifier_loss(s, b->loss, b->logits, b->chunk_targets, b->V, PLAIN_LOSS, 0.0f))
OP(classifier_b, classifier_loss(s, b->loss, b->logits, b->chunk_targets, b->V, PLAIN_LOSS, 1e-3f))
OP(adamw, OptimizerStep h = {1e-5, 0.9, 0.95, 1e-8, 0.1, 10};
   adamw_update(s, &(OptimizerSpan){b->master, b->m, b->v, b->working, b->grad, 1, 0}, 1, h, 1.0f))
OP(norm, norm_squared(s, b->sum, &b->grad, 1))
OP(sum, sum_forward(s, b->sum, b->loss))
OP(cast, cast_forward(s, b->working, b->from))

typedef struct { const char *op; void (*run)(Bench *b); double bytes, flops; } Case;

static double run_ms(Bench *b, void (*run)(Bench *b), int64_t launches) {
    double start = bench_ms();
    for (int64_t i = 0; i < launches; i++) run(b);
    device_sync(&b->stream);
    return (bench_ms() - start) / (double)launches;
}

static double median_ms(Bench *b, void (*run)(Bench *b)) {
    run_ms(b, run, 2); /* two runs are not measured, because the first one may choose algorithms */
    double  once = run_ms(b, run, 3), ms[SAMPLES];
    int64_t launches = once < 10.0 ? (int64_t)ceil(10.0 / fmax(once, 1e-3)) : 1;
    for (int i = 0; i < SAMPLES; i++) ms[i] = run_ms(b, run, launches);
    return median(ms, SAMPLES);
}

static double gemm_rate(DType act, int64_t n) { return matmul_rate(act, MATH_STRICT, n, 1000.0); }

static void measure(Bench *b, int64_t gemm_n) {
    double N = (double)b->N, C = (double)b->C, T = (double)b->T, V = (double)b->V, n = (double)b->rows,
           a = (double)dtype_bytes(b->act), P = (double)b->params, delta_bytes = device_is_host() ? N * C * a : 4 * N * (double)b->H;
    double touched = fmin(N, V), gemm = gemm_rate(b->act, gemm_n), copied = 8.0 * P / median_ms(b, copy) * 1e3;
    printf("probe=copy gbs=%.1f bytes=%.0f\nprobe=gemm gflops=%.1f n=%lld\n", copied * 1e-9, 8.0 * P, gemm * 1e-9,
           (long long)gemm_n);
    Case cases[] = {
        {"embedding_forward", embedding_f, 4 * N + 2 * N * C * a + T * C * a, 0},
        {"embedding_backward", embedding_b, 4 * N + N * C * a + 8 * (touched + T) * C, 0},
        {"layernorm_forward", layernorm_f, 2 * N * C * a + 8 * N, 0},
        {"residual_layernorm_forward", residual_f, 4 * N * C * a + 8 * N, 0},
        {"layernorm_backward", layernorm_b, 4 * N * C * a + 8 * N, 0},
        {"layernorm_backward:bias", layernorm_bias, 4 * N * C * a + 8 * N, 0},
        {"rmsnorm_forward", rmsnorm_f, 2 * N * C * a + 4 * N, 0},
        {"residual_rmsnorm_forward", residual_rms_f, 4 * N * C * a + 4 * N, 0},
        {"rmsnorm_backward", rmsnorm_b, 4 * N * C * a + 4 * N, 0},
        {"head_norm_forward", head_norm_f, 2 * N * C * a + 4 * N * (double)b->H, 0},
        {"head_norm_backward", head_norm_b, 3 * N * C * a + 4 * N * (double)b->H, 0},
        {"linear_forward:qkv", qkv_f, a * (4 * N * C + 3 * C * C), 6 * N * C * C},
        {"linear_backward:qkv", qkv_b, a * (5 * N * C + 3 * C * C) + 24 * C * C, 12 * N * C * C},
        {"rope_forward", rope_f, 4 * N * C * a, 0},
        {"rope_backward", rope_b, 4 * N * C * a, 0},
        {"attention_forward", attention_f, 4 * N * C * a + 4 * N * (double)b->H, 2 * N * T * C},
        {"attention_delta", delta, 2 * N * C * a + 4 * N * (double)b->H, 0},
        {"attention_backward", attention_b, 7 * N * C * a + delta_bytes + 4 * N * (double)b->H, 5 * N * T * C},
        {"attention_forward:documents", documents_f, 4 * N * C * a + 4 * N * (double)b->H, 2 * N * T * C},
        {"attention_backward:documents", documents_b, 7 * N * C * a + delta_bytes + 4 * N * (double)b->H, 5 * N * T * C},
        {"linear_forward:attproj", proj_f, a * (2 * N * C + C * C), 2 * N * C * C},
        {"linear_residual_forward:attproj+norm", proj_joined, a * (6 * N * C + C * C) + 8 * N, 2 * N * C * C},
        {"linear_backward:attproj", proj_b, a * (3 * N * C + C * C) + 8 * C * C, 4 * N * C * C},
        {"linear_delta_backward:attproj", proj_delta, a * (4 * N * C + C * C) + 8 * C * C, 4 * N * C * C},
        {"linear_activation_forward:fc", fc_f, a * (9 * N * C + 4 * C * C), 8 * N * C * C},
        {"linear_backward:fc", fc_b, a * (6 * N * C + 4 * C * C) + 32 * C * C, 16 * N * C * C},
        {"linear_forward:fcproj", out_f, a * (5 * N * C + 4 * C * C), 8 * N * C * C},
        {"linear_residual_forward:fcproj+norm", out_joined, a * (9 * N * C + 4 * C * C) + 8 * N, 8 * N * C * C},
        {"linear_activation_backward:fcproj", out_b, a * (13 * N * C + 4 * C * C) + 32 * C * C, 16 * N * C * C},
        {"activation_forward", gelu_f, 8 * N * C * a, 0},
        {"activation_backward", gelu_b, 12 * N * C * a, 0},
        {"activation_backward:bias", gelu_bias, 12 * N * C * a, 0},
        {"swiglu_forward", swiglu_f, 6 * N * C * a, 0},
        {"swiglu_backward", swiglu_b, 10 * N * C * a, 0},
        {"head_forward", head_f, a * (n * C + V * C + n * V), 2 * n * C * V},
        {"head_backward", head_b, a * (2 * n * C + V * C + n * V) + 8 * V * C, 4 * n * C * V},
        {"classifier_forward", classifier_f, a * n * V + 8 * n, 0},
        {"classifier_forward_backward", classifier_b, 2 * a * n * V + 8 * n, 0},
        {"adamw_update", adamw, (28 + (b->act == F32 ? 0 : a)) * P, 0},
        {"norm_squared", norm, 4 * P, 0},
        {"sum_forward", sum, 4 * n, 0},
        {"cast_forward", cast, (4 + a) * P, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Case   c = cases[i];
        if (!strstr(c.op, b->word)) continue;
        double ms = median_ms(b, c.run), per_s = 1e3 / ms;
        b->like = (int64_t)fmin(c.bytes / 8.0, P);
        double like_ms = median_ms(b, copy_like) * c.bytes / (8.0 * (double)b->like);
        printf("op=%s ms=%.4f mbytes=%.2f gflop=%.3f gbs=%.1f gflops=%.1f of_copy=%.4f of_gemm=%.4f of_same_bytes=%.4f\n", c.op, ms,
               c.bytes * 1e-6, c.flops * 1e-9, c.bytes * per_s * 1e-9, c.flops * per_s * 1e-9, c.bytes * per_s / copied,
               c.flops * per_s / gemm, like_ms / ms);
        fflush(stdout);
    }
}

int main(int argc, char **argv) {
    device_open(0, device_threads());
    int     on_gpu = strcmp(device_backend(), "cuda") == 0;
    int64_t size[2][6] = {{2, 128, 192, 3, 1000, 4}, {64, 1024, 768, 12, 50257, 12}}, *n = size[on_gpu];
    for (int i = 2; i < argc && i < 8; i++) n[i - 2] = atoll(argv[i]);
    const char *type = argc > 1 ? argv[1] : "fp32";
    Bench       b = {.word = argc > 8 ? argv[8] : "",
                     .act = strcmp(type, "bf16") == 0   ? BF16
                            : strcmp(type, "fp16") == 0 ? F16
                                                        : F32,
                     .B = n[0],
                     .T = n[1],
                     .C = n[2],
                     .H = n[3],
                     .V = n[4],
                     .N = n[0] * n[1]};

    ModelSpec spec = {.shards = {.shape = GPT2_SHAPE(n[5], b.H, b.C, b.T, b.V), .ranks = 1, .act = b.act, .use = GPT_TRAINING},
                      .B = b.B,
                      .T = b.T};
    Arena     dry = arena_dry("model"), counted = arena_dry("bench");
    StepSums  sums = step_sums_create(&dry, 0, 0);
    Gpt g = gpt_create(shards_create(spec.shards, model_layout(spec.shards.shape, (LayoutPlace){1, 1, 0, NULL, 1, 0}), sums,
                                     &dry, &dry),
                       (GptSpec){b.B, b.T, NULL, NULL, 1, RECOMPUTE_NONE, 0, NULL, 0.0, 0, SIZES_HERE}, &dry);
    b.rows = g.head_rows, b.padded = g.logits.dim[1], b.params = g.shards->layout.elems;
    carve(&b, &counted);
    Arena arena = arena_create("bench", counted.peak_bytes);
    carve(&b, &arena);
    b.stream = stream_create(model_dry(spec, 1, NULL).scratch + SCRATCH_MORE);
    fill_all(&b);
    printf("dtype=%s isa=%s B=%lld T=%lld C=%lld H=%lld V=%lld parameters=%lld rows=%lld\n", dtype_name(b.act),
           device_isa(), (long long)b.B, (long long)b.T, (long long)b.C, (long long)b.H, (long long)b.V,
           (long long)b.params, (long long)b.rows);
    measure(&b, on_gpu ? 8192 : 1024);
    return 0;
}
