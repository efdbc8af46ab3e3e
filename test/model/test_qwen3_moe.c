/* test_qwen3_moe.c - whole models with experts against PyTorch's float64 records (test/ref/generate.py): balanced by a loss and by a bias;
 * and against themselves: other micro-batches, recomputation, inference, tokens one by one.
 */
#include "test/ref/test.h"

#include "model/params.h"

enum { T = 40 };
#define MOE_SHAPE(how, rate)                                                                                        \
    {.n_layer = 2, .n_head = 4, .n_embd = 48, .n_positions = T, .vocab_size = 389, .arch = ARCH_QWEN3_MOE,           \
     .n_kv_head = 2, .norm_eps = 1e-6, .rope_theta = 1e6, .head_dim = 16, .n_experts = 6, .top_k = 2,                \
     .n_expert_inner = 20, .norm_top_k = 1, .balance = how, .balance_rate = rate}
static ModelShape  SHAPE = MOE_SHAPE(BALANCE_SWITCH, 0.05);
static const char *RECORDS = "test/ref/data/qwen3_moe_switch.rec";
#include "test/model/curve_fixture.h"

static void test_curve(void **state) {
    (void)state;
    follow_curve();
}

static int with_loss(void **state) {
    (void)state;
    SHAPE = (ModelShape)MOE_SHAPE(BALANCE_SWITCH, 0.05), RECORDS = "test/ref/data/qwen3_moe_switch.rec";
    return 0;
}

static int with_bias(void **state) {
    (void)state;
    SHAPE = (ModelShape)MOE_SHAPE(BALANCE_BIAS, 0.01), RECORDS = "test/ref/data/qwen3_moe_bias.rec";
    return 0;
}

/* Each assignment counts once, whatever is computed again. */
static void test_counts(void **state) {
    (void)state;
    for (Recompute r = RECOMPUTE_NONE; r <= RECOMPUTE_BLOCK; r++) {
        Model  *m = model_create(F32, 2, T, r, GPT_TRAINING);
        int64_t all = 0;
        gradients(m, 0, 2);
        for (int64_t i = 0; i < SHAPE.n_layer * SHAPE.n_experts; i++) all += ((int64_t *)m->sums.experts.data)[i];
        assert_int_equal(all, SHAPE.n_layer * SEQUENCES * T * SHAPE.top_k);
        model_destroy(m);
    }
}

static void test_recompute(void **state) {
    (void)state;
    recompute_all();
}

static void test_micro_batches(void **state) {
    (void)state;
    for (int64_t split = 1; split <= 4; split *= 4) {
        Model *m = model_create(F32, split, T, RECOMPUTE_NONE, GPT_TRAINING);
        double loss = gradients(m, 0, split);
        assert_true(relative(loss, record_value(record_find(&m->records, "loss"), 0)) <= LOSS_ALLOWED);
        assert_true(worst_row(m, m->shards->grads, "grad", 0) <= GRADIENT_ALLOWED);
        model_destroy(m);
    }
}

/* Logits of a sequence's last token: all tokens at once, and one after the other with keys and values kept. */
static void test_sampling(void **state) {
    (void)state;
    enum { FIRST = 7, ALL = 12, V = 389 };
    Model *m = model_create(F32, 1, T, RECOMPUTE_NONE, GPT_SAMPLING), *whole = model_create(F32, 1, T, RECOMPUTE_NONE, GPT_INFERENCE);
    float  got[V], want[V];
    Batch  batch = batch_of(m, 0, 0, 1, FIRST);
    gpt_forward(&m->gpt, &m->stream, batch);
    for (int64_t n = FIRST; n < ALL; n++) {
        Batch all = batch_of(whole, 0, 0, 1, n + 1), one = batch_of(m, 0, 0, 1, 1);
        stage_settle();
        ((int32_t *)one.inputs.data)[0] = ((int32_t *)all.inputs.data)[n];
        m->gpt.past = n;
        gpt_forward(&m->gpt, &m->stream, one);
        gpt_logits(&m->gpt, &m->stream, one, 0, got);
        gpt_forward(&whole->gpt, &whole->stream, all);
        gpt_logits(&whole->gpt, &whole->stream, all, n, want);
        for (int v = 0; v < V; v++) assert_true(fabsf(got[v] - want[v]) <= 1e-6f);
    }
    model_destroy(m);
    model_destroy(whole);
}

static int tests(void) {
    const struct CMUnitTest all[] = {
        cmocka_unit_test(test_curve),    cmocka_unit_test(test_recompute), cmocka_unit_test(test_micro_batches),
        cmocka_unit_test(test_sampling), cmocka_unit_test(test_counts),
    };
    return cmocka_run_group_tests_name("qwen3-moe, a loss", all, with_loss, NULL) +
           cmocka_run_group_tests_name("qwen3-moe, a bias", all, with_bias, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
