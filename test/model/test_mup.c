/* test_mup.c - µP (model/params.h). Tests the factors of each row of the parameter table. Compares twenty steps with
 * recorded float64 results of PyTorch in the form of µP's paper, where scores and logits have the factors and the
 * weights have none. */
#include "test/ref/test.h"

#include "model/params.h"

enum { T = 40 };
/* Sizes of a gpt2 with µP. In this test m, the width over the base's width, is 2. b, the fourth root of the base's
 * head size over the head size, is (16)^(1/4) = 2. With powers of two the first weights equal PyTorch's recorded
 * ones exactly. */
#define GPT2_MUP(base, head)                                                                                         \
    {.n_layer = 2, .n_head = 3, .n_embd = 42, .n_positions = T, .vocab_size = 389, .mup_base_n_embd = base,          \
     .mup_base_head_dim = head}
#define LLAMA_MUP(base, head)                                                                                        \
    {.n_layer = 2, .n_head = 4, .n_embd = 48, .n_positions = T, .vocab_size = 389, .arch = ARCH_LLAMA,               \
     .n_kv_head = 2, .n_inner = 92, .norm_eps = 1e-5, .rope_theta = 10000, .rope_factor = 8, .rope_low_freq_factor = 1, \
     .rope_high_freq_factor = 4, .rope_original_positions = 64, .mup_base_n_embd = base, .mup_base_head_dim = head}
static ModelShape  SHAPE = GPT2_MUP(21, 224);
static const char *RECORDS = "test/ref/data/gpt.rec";
#include "test/model/curve_fixture.h"

static const Param *row_of(const Layout *layout, const char *end) {
    for (int i = 0; i < layout->params; i++) {
        size_t length = strlen(layout->param[i].name), tail = strlen(end);
        if (length >= tail && strcmp(layout->param[i].name + length - tail, end) == 0) return &layout->param[i];
    }
    fail_msg("no row %s", end);
    return NULL;
}

/* If the base has the width and head size of the model itself, every factor of µP is exactly 1. */
static void test_base(void **state) {
    (void)state;
    static const ModelShape at[] = {GPT2_MUP(42, 14), GPT2_MUP(42, 0), LLAMA_MUP(48, 12)},
                            plain[] = {GPT2_MUP(0, 0), GPT2_MUP(0, 0), LLAMA_MUP(0, 0)};
    for (int k = 0; k < 3; k++) {
        Layout a = model_layout(at[k], (LayoutPlace){1, 1, 0, NULL, 1, 0}), b = model_layout(plain[k], (LayoutPlace){1, 1, 0, NULL, 1, 0});
        for (int i = 0; i < a.params; i++) {
            assert_true(a.param[i].init_std == b.param[i].init_std && a.param[i].init_mean == b.param[i].init_mean);
            assert_true(a.param[i].rate == 1.0f && a.param[i].matrix_rate == 1.0f && b.param[i].rate == 1.0f && b.param[i].matrix_rate == 1.0f);
        }
        layout_destroy(&a), layout_destroy(&b);
    }
}

/* Checks the factors of µP in every row of the parameter table. The width is four times the base's, and heads are 16
 * times as large as the base's. b is the fourth root of the base's head size over the model's: (1/16)^(1/4) = 1/2. */
static void test_rows(void **state) {
    (void)state;
    ModelShape shape = {.n_layer = 2, .n_head = 1, .n_embd = 64, .n_positions = 8, .vocab_size = 9,
                        .mup_base_n_embd = 16, .mup_base_head_dim = 4, .init_std = 0.5};
    Layout     l = model_layout(shape, (LayoutPlace){1, 1, 0, NULL, 1, 0});
    static const struct { const char *name; float mean, std, rate, muon_rate; } want[] = {
        {"wte.weight", 0, 0.5f, 1, 1},
        {"wpe.weight", 0, 0.5f, 1, 1},
        {"h.1.ln_1.weight", 1, 0, 1, 1},
        {"h.0.attn.c_attn.weight", 0, 0.125f, 0.125f, 0.25f},
        {"h.0.attn.c_attn.bias", 0, 0, 0.5f, 0.5f},
        {"h.1.attn.c_proj.weight", 0, 0.25f, 0.5f, 1},
        {"h.1.attn.c_proj.bias", 0, 0, 1, 1},
        {"h.1.mlp.c_fc.weight", 0, 0.25f, 0.25f, 0.5f},
        {"h.1.mlp.c_proj.weight", 0, 0.125f, 0.25f, 0.5f},
        {"ln_f.weight", 0.25f, 0, 0.25f, 0.25f},
        {"ln_f.bias", 0, 0, 0.25f, 0.25f},
    };
    for (int i = 0; i < COUNT(want); i++) {
        const Param *p = row_of(&l, want[i].name);
        if (p->init_mean != want[i].mean || fabsf(p->init_std - want[i].std) > 1e-7f ||
            p->rate != want[i].rate || p->matrix_rate != want[i].muon_rate)
            fail_msg("%s: mean %g, std %g, rate %g, Muon's %g", p->name, (double)p->init_mean, (double)p->init_std,
                     (double)p->rate, (double)p->matrix_rate);
    }
    layout_destroy(&l);
}

/* Multiplies the fp32 master weights of each parameter by f: the factor of its learning rate (Param.rate), for
 * matrices twice that. The model then has the weight f w where the recorded model has w. */
static void scale_masters(Model *m) {
    for (int i = 0; i < m->shards->spans; i++) {
        Span         span = m->shards->span[i];
        const Param *p = &m->shards->layout.param[span.param];
        Tensor       master = optimizer_master(&m->optimizer, span);
        float        size = p->group == GROUP_MATRIX ? 2.0f * p->rate : p->rate;
        stage_settle();
        for (int64_t k = 0; k < span.elems; k++) tensor_set(master, k, size * tensor_get(master, k));
    }
    optimizer_publish(&m->optimizer, &m->stream);
}

static void follow_paper(const char *path) {
    RecordFile of = record_load(path);
    Model     *m = model_create(F32, 2, T, RECOMPUTE_NONE, GPT_TRAINING);
    double     worst = 0.0;
    scale_masters(m);
    for (int64_t step = 0; step < (stage_is_slow() ? STEPS / 4 : STEPS); step++) {
        double loss = gradients(m, step, 2), norm = gradient_norm(m);
        worst = fmax(worst, relative(loss, record_value(record_find(&of, "loss"), step)));
        assert_true(relative(norm, record_value(record_find(&of, "grad_norm"), step)) <= GRADIENT_ALLOWED + WEIGHT_ALLOWED);
        update(m, step, norm);
    }
    print_message("worst loss %.2e of %.0e\n", worst, LOSS_ALLOWED);
    assert_true(worst <= LOSS_ALLOWED);
    model_destroy(m);
    record_unload(&of);
}

static void test_paper(void **state) {
    (void)state;
    follow_paper("test/ref/data/mup_gpt.rec");
    SHAPE = (ModelShape)LLAMA_MUP(24, 192), RECORDS = "test/ref/data/llama.rec";
    follow_paper("test/ref/data/mup_llama.rec");
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_base), cmocka_unit_test(test_rows), cmocka_unit_test(test_paper)};
    return cmocka_run_group_tests_name("mup", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
