/* test_qwen3_moe.c - whole models with experts, compared with PyTorch's float64 records (test/ref/generate.py):
 * balanced by a loss and by a bias. They are also compared with themselves: other micro-batches, recomputation,
 * inference, tokens one by one. */
#include "test/ref/test.h"

#include "test/model/moe_shape.h"

static ModelShape  SHAPE = MOE_SHAPE(BALANCE_SWITCH, 0.05);
static const char *RECORDS = "test/ref/data/qwen3_moe_switch.rec";
#include "test/model/kind_cases.h"

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

/* Each assignment of a token to an expert is counted once, even if recomputation makes it again. */
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

static int tests(void) {
    const struct CMUnitTest all[] = {
        cmocka_unit_test(test_curve),    cmocka_unit_test(test_recompute), cmocka_unit_test(test_micro_batches),
        cmocka_unit_test(test_nan),      cmocka_unit_test(test_sampling), cmocka_unit_test(test_counts),
    };
    return cmocka_run_group_tests_name("qwen3-moe, a loss", all, with_loss, NULL) +
           cmocka_run_group_tests_name("qwen3-moe, a bias", all, with_bias, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
