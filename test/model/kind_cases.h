/* kind_cases.h - cases for a kind of model, shared by test_llama.c and test_qwen3_moe.c. Include it after defining
 * SHAPE, T and RECORDS as for curve_fixture.h. */
#ifndef TEST_MODEL_KIND_CASES_H
#define TEST_MODEL_KIND_CASES_H

#include "test/model/curve_fixture.h"

static inline void test_curve(void **state) {
    (void)state;
    follow_curve();
}

static inline void test_recompute(void **state) {
    (void)state;
    recompute_all();
}

static inline void test_nan(void **state) {
    (void)state;
    nan_leaves_no_trace();
}

static inline void test_micro_batches(void **state) {
    (void)state;
    for (int64_t split = 1; split <= 4; split *= 4) {
        Model *m = model_create(F32, split, T, RECOMPUTE_NONE, GPT_TRAINING);
        double loss = gradients(m, 0, split);
        assert_true(relative(loss, record_value(record_find(&m->records, "loss"), 0)) <= LOSS_ALLOWED);
        assert_true(worst_row(m, m->shards->grads, "grad", 0) <= GRADIENT_ALLOWED);
        model_destroy(m);
    }
}

/* Computes the logits of a sequence's last token in two ways: with all tokens at once, and token by token with keys and
 * values kept. The two must agree within 1e-6. */
static inline void test_sampling(void **state) {
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

#endif
