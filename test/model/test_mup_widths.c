/* test_mup_widths.c - the coordinate check of µP (arXiv:2203.03466, appendix D.1). After a few steps the residual
 * stream and the logits have changed by as much at width 512 as at 64. Without µP the change grows with the width. */
#include "test/ref/test.h"

#include "model/model.h"

enum { L = 2, V = 64, B = 4, T = 16, N = B * T, STEPS = 4, NARROW = 64, HEAD = 16 };
/* mean |after - before| of the elements of the residual stream, and of the logits, before and after some training
 * steps */
typedef struct { double stream, logits; } Change;

static ModelShape shape_of(int arch, int64_t width, int is_mup, int has_wide_heads) {
    ModelShape s = {.n_layer = L, .n_head = (has_wide_heads ? NARROW : width) / HEAD,
                    .n_embd = width, .n_positions = T, .vocab_size = V, .arch = arch,
                    .n_kv_head = (has_wide_heads ? NARROW : width) / HEAD / 2, .n_inner = 3 * width, .norm_eps = 1e-5, .rope_theta = 10000,
                    .tie_embeddings = 1, .mup_base_n_embd = is_mup ? NARROW : 0, .mup_base_head_dim = is_mup && has_wide_heads ? HEAD : 0};
    if (arch == ARCH_GPT2) s.n_kv_head = 0, s.n_inner = 0;
    return s;
}

static double *seen(Model *m, Batch batch) {
    double *out = malloc(sizeof *out * (size_t)(N * (m->gpt.shape.n_embd + V)));
    float   logits[V];
    int64_t elems = N * m->gpt.shape.n_embd;
    gpt_forward(&m->gpt, &m->stream, batch);
    device_sync(&m->stream);
    for (int64_t i = 0; i < elems; i++) out[i] = (double)tensor_get(m->gpt.residual_final, i);
    for (int64_t row = 0; row < N; row++) {
        gpt_logits(&m->gpt, &m->stream, batch, row, logits);
        for (int v = 0; v < V; v++) out[elems + row * V + v] = (double)logits[v];
    }
    return out;
}

static void train(Model *m, Batch batch) {
    for (int64_t step = 1; step <= STEPS; step++) {
        OptimizerStep h = {8e-3, 0.9, 0.95, 1e-8, 0.1, step};
        shards_begin(m->shards, &m->stream);
        step_sums_zero(&m->sums, &m->stream);
        gpt_forward(&m->gpt, &m->stream, batch);
        gpt_backward(&m->gpt, &m->stream, batch, 1.0f / N, MICRO_LAST);
        shards_finish(m->shards, &m->stream);
        optimizer_update(&m->optimizer, &m->stream, h, 1.0f);
    }
}

static Change change_of(ModelShape shape, const OptimizerKind *optimizer) {
    ModelSpec spec = {.shards = {.shape = shape, .ranks = 1, .act = F32, .use = GPT_TRAINING}, .optimizer = optimizer, .B = B, .T = T};
    Model    *m = model_create(spec);
    Arena     tokens = arena_create("tokens", 1 << 16);
    Batch     batch = {arena_tensor(&tokens, I32, 2, B, T, 1), arena_tensor(&tokens, I32, 2, B, T, 1), tensor_none()};
    Change    c = {0};
    for (int i = 0; i < N; i++)
        ((int32_t *)batch.inputs.data)[i] = (i * 7 + i / 5 * 3) % V, ((int32_t *)batch.targets.data)[i] = (i * 5 + 3) % V;
    masters_init(&m->optimizer, &m->stream, 1, NULL, NULL);
    double *before = seen(m, batch);
    train(m, batch);
    double *after = seen(m, batch);
    int64_t elems = N * shape.n_embd;
    for (int64_t i = 0; i < elems; i++) c.stream += fabs(after[i] - before[i]) / (double)elems;
    for (int64_t i = elems; i < elems + N * V; i++) c.logits += fabs(after[i] - before[i]) / (N * V);
    free(before), free(after);
    arena_destroy(&tokens);
    model_destroy(m);
    return c;
}

/* Compares the changes that training makes at widths `wide` and NARROW. With µP they must be equal within a factor of
 * 1.6. Without it they must grow by at least the square root of the ratio of widths. */
static void compare_widths(int arch, const OptimizerKind *optimizer, int64_t wide, int has_wide_heads) {
    Change narrow = change_of(shape_of(arch, NARROW, 1, has_wide_heads), optimizer);
    for (int is_mup = 0; is_mup < 2; is_mup++) {
        Change c = change_of(shape_of(arch, wide, is_mup, has_wide_heads), optimizer);
        double stream = c.stream / narrow.stream, logits = c.logits / narrow.logits, least = is_mup ? 1 / 1.6 : sqrt((double)wide / NARROW);
        print_message("%s, %s, width %d to %d%s: stream x %.2f, logits x %.2f%s\n",
                      arch == ARCH_GPT2 ? "gpt2" : "llama", optimizer->name, NARROW,
                      (int)wide, has_wide_heads ? " by wider heads" : "", stream, logits, is_mup ? " with µP" : "");
        assert_true(stream >= least && logits >= least);
        if (is_mup) assert_true(stream <= 1.6 && logits <= 1.6);
    }
}

static void test_widths(void **state) {
    (void)state;
    /* skipped on the slow emulator of a GPU, because the result does not depend on the backend */
    if (stage_is_slow()) return;
    compare_widths(ARCH_GPT2, &OPTIMIZER_ADAMW, 512, 0);
    compare_widths(ARCH_LLAMA, &OPTIMIZER_ADAMW, 256, 0);
    compare_widths(ARCH_GPT2, &OPTIMIZER_ADAMW, 256, 1);
    compare_widths(ARCH_LLAMA, &OPTIMIZER_MUON, 256, 0);
}

/* Tests the size of Muon's update at width m times the base's. Muon makes a matrix O [R,M] with singular values of
 * about 1. The root mean square of its elements is 1/sqrt(max(R,M)). The update is O lr 0.2 sqrt(max(R,M)) factor, so
 * its root mean square is lr 0.2 factor. The factor of µP (MupFactors.muon_rate in model/params.c) is 1/sqrt(m). */
static void test_muon_rate(void **state) {
    (void)state;
    if (stage_is_slow()) return;
    for (int wide = 1; wide <= 16; wide *= 16) {
        ModelShape shape = shape_of(ARCH_LLAMA, 256, 1, 0);
        shape.mup_base_n_embd = 256 / wide;
        ModelSpec spec = {.shards = {.shape = shape, .ranks = 1, .act = F32, .use = GPT_TRAINING},
                          .optimizer = &OPTIMIZER_MUON, .B = B, .T = T};
        Model        *m = model_create(spec);
        OptimizerStep         h = {1e-3, 0.9, 0.95, 1e-8, 0.0, 1};
        const Layout *l = &m->shards->layout;
        float        *before = malloc(sizeof *before * (size_t)l->memory_elems);
        masters_init(&m->optimizer, &m->stream, 1, NULL, NULL);
        shards_begin(m->shards, &m->stream);
        device_sync(&m->stream);
        for (int64_t i = 0; i < l->memory_elems; i++) before[i] = tensor_get(m->shards->params, i);
        for (int64_t i = 0; i < l->memory_elems; i++) tensor_set(m->shards->grads, i, (float)((i * 7919 + i / 13 * 104729) % 1009 - 504));
        optimizer_update(&m->optimizer, &m->stream, h, 1.0f);
        device_sync(&m->stream);
        for (int i = 0; i < l->params; i++) {
            const Param *p = &l->param[i];
            double       squares = 0, want = 0.2 * h.learning_rate / sqrt((double)wide);
            if (p->group != GROUP_MATRIX) continue;
            for (int64_t k = p->memory; k < p->memory + p->local_elems; k++)
                squares += pow((double)tensor_get(m->shards->params, k) - (double)before[k], 2);
            double got = sqrt(squares / (double)p->local_elems);
            if (!(got > 0.7 * want && got < 1.3 * want)) fail_msg("%s, m = %d: root mean square %g, not %g", p->name, wide, got, want);
        }
        free(before);
        model_destroy(m);
    }
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_widths), cmocka_unit_test(test_muon_rate)};
    return cmocka_run_group_tests_name("mup_widths", all, NULL, NULL);
}

/* runs once instead of through stage_main, which repeats tests for each instruction set and number of threads: here
 * the result is the same */
int main(void) { return tests(); }
