/* test_activations.c - a GPT-2 with another activation than gelu_new: relu2 or gelu. It is compared with PyTorch's
 * float64 record of twenty AdamW steps (test/ref/generate.py), and with itself: recomputation, bf16. test_gpt.c tests
 * gelu_new. The losses of gelu and gelu_new differ by less than is allowed here: test_activation.c tells them apart. */
#include "test/ref/test.h"

#include "model/params.h"

enum { T = 40 };
static ModelShape SHAPE = GPT2_SHAPE(2, 3, 42, T, 389);
#define RECORDS "test/ref/data/gpt.rec"
#include "test/model/curve_fixture.h"

/* Records of training with other activations. Each starts from the initial weights of gpt.rec. */
static const struct { Activation kind; const char *file; } RECORD[] = {
    {ACTIVATION_RELU2, "test/ref/data/gpt_relu2.rec"},
    {ACTIVATION_GELU, "test/ref/data/gpt_gelu.rec"},
};

/* Trains twenty steps with each activation. Losses, gradient norms and the first gradients must equal those recorded
 * from the float64 reference. */
static void test_curves(void **state) {
    (void)state;
    int64_t steps = stage_is_slow() ? STEPS_EMULATED : STEPS;
    for (int i = 0; i < COUNT(RECORD); i++) {
        SHAPE.activation = RECORD[i].kind;
        Model     *m = model_create(F32, 2, T, RECOMPUTE_NONE, GPT_TRAINING);
        RecordFile first = m->records, want = record_load(RECORD[i].file);
        for (int64_t step = 0; step < steps; step++) {
            double loss = gradients(m, step, 2), norm = gradient_norm(m);
            assert_true(relative(loss, record_value(record_find(&want, "loss"), step)) <= LOSS_ALLOWED);
            assert_true(relative(norm, record_value(record_find(&want, "grad_norm"), step)) <=
                        GRADIENT_ALLOWED + WEIGHT_ALLOWED);
            m->records = want;
            double worst = step == 0 ? worst_row(m, m->shards->grads, "grad", 0) : 0.0;
            m->records = first;
            if (step == 0) print_message("%s: worst gradient %.2e\n", ACTIVATION_NAMES[RECORD[i].kind], worst);
            assert_true(worst <= GRADIENT_ALLOWED);
            update(m, step, norm);
        }
        record_unload(&want);
        model_destroy(m);
    }
}

static void test_recompute(void **state) {
    (void)state;
    for (SHAPE.activation = 1; SHAPE.activation < ACTIVATION_COUNT; SHAPE.activation++) recompute_all();
}

/* Checks that any two kinds of activation give different losses. */
static void test_apart(void **state) {
    (void)state;
    double loss[ACTIVATION_COUNT];
    for (SHAPE.activation = 0; SHAPE.activation < ACTIVATION_COUNT; SHAPE.activation++) {
        Model *m = model_create(F32, 2, T, RECOMPUTE_NONE, GPT_TRAINING);
        loss[SHAPE.activation] = gradients(m, 0, 2);
        for (int other = 0; other < SHAPE.activation; other++) assert_true(loss[other] != loss[SHAPE.activation]);
        model_destroy(m);
    }
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_curves), cmocka_unit_test(test_recompute),
                                     cmocka_unit_test(test_apart)};
    return cmocka_run_group_tests_name("activations", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
