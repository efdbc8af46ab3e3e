/* test_gpt.c - the whole model. It is compared with PyTorch's float64 records of twenty steps of AdamW and of Muon
 * (test/ref/generate.py). It is also compared with itself: other micro-batches, recomputation, smaller batches than its
 * memory, inference.
 *
 * Odd sizes throughout: head size 14, vocabulary 389, T 40.
 */
#include "test/ref/test.h"

#include "model/params.h"

enum { T = 40 };
static const ModelShape SHAPE = GPT2_SHAPE(2, 3, 42, T, 389);
#define RECORDS "test/ref/data/gpt.rec"
#include "test/model/curve_fixture.h"

static void test_curve(void **state) {
    (void)state;
    follow_curve();
}

static void test_muon(void **state) {
    (void)state;
    follow_muon(&OPTIMIZER_MUON, NEWTON_QUINTIC, "test/ref/data/muon.rec", WEIGHT_ALLOWED);
}
static void test_polar_express(void **state) {
    (void)state;
    follow_muon(&OPTIMIZER_MUON, NEWTON_POLAR_EXPRESS, "test/ref/data/muon_polar.rec", WEIGHT_ALLOWED);
}
static void test_normuon(void **state) {
    (void)state;
    follow_muon(&OPTIMIZER_NORMUON, NEWTON_QUINTIC, "test/ref/data/normuon.rec", WEIGHT_ALLOWED);
}

static void test_micro_batches(void **state) {
    (void)state;
    static const int64_t splits[] = {1, 2, 4};
    for (int i = 0; i < COUNT(splits); i++) {
        Model *m = model_create(F32, splits[i], T, RECOMPUTE_NONE, GPT_TRAINING);
        double loss = gradients(m, 0, splits[i]);
        assert_true(relative(loss, record_value(record_find(&m->records, "loss"), 0)) <= LOSS_ALLOWED);
        assert_true(worst_row(m, m->shards->grads, "grad", 0) <= GRADIENT_ALLOWED);
        model_destroy(m);
    }
}

static void test_recompute(void **state) {
    (void)state;
    recompute_all();
}

static void test_nan(void **state) {
    (void)state;
    nan_leaves_no_trace();
}

/* Checks that two models trained on the same batches have equal bits in losses, gradients and weights. */
static void test_repeat(void **state) {
    (void)state;
    for (int t = 0; t < stage_act_types(); t++) {
        Model *a = model_create(ACT_TYPES[t], 4, T, RECOMPUTE_NONE, GPT_TRAINING);
        Model *b = model_create(ACT_TYPES[t], 4, T, RECOMPUTE_NONE, GPT_TRAINING);
        for (int64_t step = 0; step < (stage_is_slow() ? 1 : 2); step++) {
            assert_true(gradients(a, step, 4) == gradients(b, step, 4));
            assert_same_bits(a->shards->grads, b->shards->grads);
            update(a, step, 1.0), update(b, step, 1.0);
        }
        assert_same_bits(a->shards->params, b->shards->params);
        model_destroy(a);
        model_destroy(b);
    }
}

/* Runs one sequence of 17 tokens in two models. One has memory for four sequences of 40 and has run other work
 * before. The other has memory for just this sequence. Losses and gradients must agree. */
static void test_smaller_batch(void **state) {
    (void)state;
    Model *large = model_create(F32, 4, T, RECOMPUTE_NONE, GPT_TRAINING),
          *fitting = model_create(F32, 1, 17, RECOMPUTE_NONE, GPT_TRAINING);
    Model   *both[] = {large, fitting};
    gradients(large, 3, 4);
    for (int i = 0; i < 2; i++) {
        Model *m = both[i];
        Batch  batch = batch_of(m, 1, 2, 1, 17);
        shards_begin(m->shards, &m->stream);
        step_sums_zero(&m->sums, &m->stream);
        gpt_forward(&m->gpt, &m->stream, batch);
        gpt_backward(&m->gpt, &m->stream, batch, 1.0f / 17, MICRO_EARLIER);
    }
    assert_true(relative(loss_sum(large), loss_sum(fitting)) <= LOSS_ALLOWED);
    double *want = malloc(sizeof(double) * (size_t)large->shards->layout.memory_elems);
    for (int64_t i = 0; i < large->shards->layout.memory_elems; i++) want[i] = (double)tensor_get(fitting->shards->grads, i);
    assert_true(compare_norm(large->shards->grads, want) <= GRADIENT_ALLOWED);
    free(want);
    model_destroy(large);
    model_destroy(fitting);
}

/* A model for inference keeps the activations of one block only. Its loss equals that of a model for training, and the
 * loss of a token agrees with that computed from its logits. */
static void test_inference(void **state) {
    (void)state;
    for (int t = 0; t < stage_act_types(); t++) {
        Model *trains = model_create(ACT_TYPES[t], 2, T, RECOMPUTE_NONE, GPT_TRAINING);
        Model *m = model_create(ACT_TYPES[t], 2, T, RECOMPUTE_NONE, GPT_INFERENCE);
        Batch  batch = batch_of(m, 0, 0, 2, T), same = batch_of(trains, 0, 0, 2, T);
            gpt_forward(&trains->gpt, &trains->stream, same);
        gpt_backward(&trains->gpt, &trains->stream, same, 1.0f, MICRO_EARLIER);
        gpt_forward(&m->gpt, &m->stream, batch);
        gpt_loss(&m->gpt, &m->stream, batch);
        assert_true(loss_sum(m) == loss_sum(trains));
        float  logits[389];
        double loss;
        for (int32_t row = 0; row < 2 * T; row += 13) {
            gpt_logits(&m->gpt, &m->stream, batch, row, logits);
            double wide[389];
            for (int v = 0; v < 389; v++) wide[v] = (double)logits[v];
            ref_classifier_forward(&loss, wide, (const int32_t *)batch.targets.data + row, 1, 389, 389, 0.0);
            /* A product of one row may add its 42 terms in another order than a product of many rows. In bf16 the
             * result may then be the next representable number. */
            double allowed = ACT_TYPES[t] == F32 ? 1e-6 : 0x1p-8;
            assert_true(fabs(loss - (double)tensor_get(m->gpt.losses, row)) <= allowed * loss);
        }
        model_destroy(trains);
        model_destroy(m);
    }
}

/* Bounds for bf16. A rounding has an error of at most u = 2^-8 of the value, in the root mean square 0.42 u (evenly
 * within the spacing, mantissas evenly in the logarithm). Along the longest path through the model (two blocks, forward
 * and backward) some 70 values are rounded, weights included. Their independent errors make sqrt(70) of one, norm-wise.
 * The logits see half of the path. Their size is at most 1 here, a loss moves as much as they do, and the mean over 160
 * tokens by 1 / sqrt(160) of that. Four standard deviations are allowed for the worst of twenty losses. */
static void test_bf16(void **state) {
    (void)state;
    Model *m = model_create(BF16, 2, T, RECOMPUTE_NONE, GPT_TRAINING);
    double u = 0.42 * 0x1p-8, gradient_allowed = u * sqrt(70.0), loss_allowed = 4.0 * u * sqrt(35.0) / sqrt(160.0),
           worst_loss = 0.0;
    for (int64_t step = 0; step < (stage_is_slow() ? STEPS_EMULATED : STEPS); step++) {
        double loss = gradients(m, step, 2);
        worst_loss = fmax(worst_loss, fabs(loss - record_value(record_find(&m->records, "loss"), step)));
        if (step == 0) {
            double worst = worst_row(m, m->shards->grads, "grad", 0);
            print_message("bf16 step 1: worst gradient %.2e of %.2e\n", worst, gradient_allowed);
            assert_true(worst <= gradient_allowed);
        }
        update(m, step, gradient_norm(m));
    }
    print_message("bf16 worst loss %.2e off of %.2e\n", worst_loss, loss_allowed);
    assert_true(worst_loss <= loss_allowed);
    model_destroy(m);
}

/* First values depend only on the seed and the offset in files: N(0, 0.02), residual projections N(0, 0.02/sqrt(2
 * n_layer)), biases 0, norms 1. */
static void test_initial(void **state) {
    (void)state;
    enum { MOST = 389 * 42 };
    Model *m = model_create(F32, 1, T, RECOMPUTE_NONE, GPT_TRAINING);
    float *whole = malloc(sizeof(float) * MOST), *part = malloc(sizeof(float) * MOST);
    for (int i = 0; i < m->shards->layout.params; i++) {
        const Param *p = &m->shards->layout.param[i];
        int64_t cut = p->elems / 3;
        param_init_values(whole, p, p->offset, p->elems, 7);
        param_init_values(part, p, p->offset, cut, 7);
        param_init_values(part + cut, p, p->offset + cut, p->elems - cut, 7);
        assert_memory_equal(whole, part, sizeof(float) * (size_t)p->elems);
        double mean = 0.0, square = 0.0, n = (double)p->elems;
        for (int64_t k = 0; k < p->elems; k++) mean += (double)whole[k] / n, square += (double)whole[k] * (double)whole[k] / n;
        if (p->dims == 1) {
            float want = strstr(p->name, "ln_") && strstr(p->name, "weight") ? 1.0f : 0.0f;
            for (int64_t k = 0; k < p->elems; k++) assert_true(whole[k] == want);
        } else {
            double std = strstr(p->name, "c_proj") ? 0.02 / sqrt(2.0 * (double)SHAPE.n_layer) : 0.02;
            assert_true(fabs(mean) <= 5.0 * std / sqrt(n));
            assert_true(fabs(sqrt(square) / std - 1.0) <= 5.0 / sqrt(2.0 * n));
            /* the expected values are drawn at the parameter's global offset, so no two tensors have the same values */
            rng_normal(part, p->elems, 7, (uint64_t)p->offset, 0.0f, p->init_std);
            assert_memory_equal(whole, part, sizeof(float) * (size_t)p->elems);
        }
    }
    free(whole);
    free(part);
    model_destroy(m);
}

static int tests(void) {
    const struct CMUnitTest all[] = {
        cmocka_unit_test(test_curve),         cmocka_unit_test(test_micro_batches), cmocka_unit_test(test_recompute),
        cmocka_unit_test(test_repeat),        cmocka_unit_test(test_nan),           cmocka_unit_test(test_smaller_batch),
        cmocka_unit_test(test_inference),     cmocka_unit_test(test_bf16),          cmocka_unit_test(test_initial),       cmocka_unit_test(test_muon),
        cmocka_unit_test(test_polar_express), cmocka_unit_test(test_normuon),
    };
    return cmocka_run_group_tests_name("gpt", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
