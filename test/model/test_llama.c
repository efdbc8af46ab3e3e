/* test_llama.c - whole models of the kinds llama and qwen3, compared with PyTorch's float64 records
 * (test/ref/generate.py). llama has heads that share keys, positions scaled as in Llama 3, and its own output head.
 * It is trained by AdamW and by Muon. qwen3 has heads with norms, which together are wider than the residual stream.
 * The models are also compared with themselves: other micro-batches, recomputation, inference, tokens one by one. */
#include "test/ref/test.h"

#include "model/params.h"

enum { T = 40 };
#define LLAMA_SHAPE(tied)                                                                                            \
    {.n_layer = 2, .n_head = 4, .n_embd = 48, .n_positions = T, .vocab_size = 389, .arch = ARCH_LLAMA,               \
     .tie_embeddings = tied, .n_kv_head = 2, .n_inner = 92, .norm_eps = 1e-5, .rope_theta = 10000, .rope_factor = 8, \
     .rope_low_freq_factor = 1, .rope_high_freq_factor = 4, .rope_original_positions = 64}
#define QWEN3_SHAPE                                                                                                 \
    {.n_layer = 2, .n_head = 4, .n_embd = 48, .n_positions = T, .vocab_size = 389, .arch = ARCH_QWEN3,               \
     .tie_embeddings = 1, .n_kv_head = 2, .n_inner = 92, .norm_eps = 1e-6, .rope_theta = 1e6, .head_dim = 16}
static ModelShape  SHAPE = LLAMA_SHAPE(0);
static const char *RECORDS = "test/ref/data/llama.rec";
#include "test/model/kind_cases.h"

static int as_llama(void **state) {
    (void)state;
    SHAPE = (ModelShape)LLAMA_SHAPE(0), RECORDS = "test/ref/data/llama.rec";
    return 0;
}

static int as_llama_tied(void **state) {
    (void)state;
    SHAPE = (ModelShape)LLAMA_SHAPE(1), RECORDS = "test/ref/data/llama_tied.rec";
    return 0;
}

static int as_qwen3(void **state) {
    (void)state;
    SHAPE = (ModelShape)QWEN3_SHAPE, RECORDS = "test/ref/data/qwen3.rec";
    return 0;
}

/* Checks the gradients and the loss in bf16, with the bounds that test_gpt.c derives from the rounded values on the
 * longest path. In each of the two blocks, the norms of qwen3's heads round one more value and a weight, in forward and
 * in backward. */
static void test_bf16(void **state) {
    (void)state;
    Model *m = model_create(BF16, 2, T, RECOMPUTE_NONE, GPT_TRAINING);
    double rounded = SHAPE.arch == ARCH_QWEN3 ? 70.0 + 2 * 4 : 70.0;
    double u = 0.42 * 0x1p-8, loss = gradients(m, 0, 2), worst = worst_row(m, m->shards->grads, "grad", 0);
    print_message("bf16 step 1: worst gradient %.2e of %.2e\n", worst, u * sqrt(rounded));
    assert_true(worst <= u * sqrt(rounded));
    assert_true(fabs(loss - record_value(record_find(&m->records, "loss"), 0)) <= 4.0 * u * sqrt(35.0) / sqrt(160.0));
    model_destroy(m);
}

static void test_muon(void **state) {
    (void)state;
    follow_muon(&OPTIMIZER_MUON, NEWTON_QUINTIC, "test/ref/data/muon_llama.rec", 0.0);
}

static int tests(void) {
    const struct CMUnitTest all[] = {
        cmocka_unit_test(test_curve),         cmocka_unit_test(test_recompute), cmocka_unit_test(test_micro_batches),
        cmocka_unit_test(test_nan),           cmocka_unit_test(test_sampling),      cmocka_unit_test(test_bf16),
    };
    const struct CMUnitTest tied[] = {cmocka_unit_test(test_curve), cmocka_unit_test(test_nan)}, muon[] = {cmocka_unit_test(test_muon)};
    return cmocka_run_group_tests_name("llama", all, as_llama, NULL) + cmocka_run_group_tests_name("llama by Muon", muon, as_llama, NULL) +
           cmocka_run_group_tests_name("llama, tied", tied, as_llama_tied, NULL) +
           cmocka_run_group_tests_name("qwen3", all, as_qwen3, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
