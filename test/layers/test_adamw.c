/* test_adamw.c - adamw_update. */
#include "test/ref/test.h"

static const AdamW HYPER = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 1};

typedef struct { int64_t n; double *p, *m, *v, *grad; } State64;

/* The hyper-parameters are the floats the op gets. */
static void step64(State64 k, AdamW h, double grad_scale) {
    ref_adamw(k.p, k.m, k.v, k.grad, k.n, (double)h.learning_rate, (double)h.beta1, (double)h.beta2, (double)h.eps, (double)h.weight_decay,
              h.step, grad_scale);
}

static void test_records(void **state) {
    (void)state;
    Stage      s = stage_create(0);
    RecordFile f = record_load(OPS_FILE);
    const Record *p0 = record_find(&f, "adamw.p"), *grads = record_find(&f, "adamw.grads");
    Tensor  master = stage_record(&s, p0, F32), m = stage_random(&s, F32, 1, p0->elems, 1, 0, 0, 0), v = stage_copy(&s, m);
    Tensor  all = stage_record(&s, grads, F32);
    int64_t n = p0->elems;
    State64 k = {n, stage_widen(&s, master), stage_doubles(&s, n), stage_doubles(&s, n), NULL};
    AdamW   h = HYPER;
    for (h.step = 1; h.step <= 3; h.step++) {
        char name[16];
        snprintf(name, sizeof name, "adamw.p%d", (int)h.step);
        Tensor grad = tensor_slice(all, (h.step - 1) * n, n);
        k.grad = stage_widen(&s, grad);
        step64(k, h, 0.5);
        adamw_update(&s.stream, master, m, v, master, grad, h, 0.5f);
        assert_same_float64(k.p, record_find(&f, name));
        assert_close(master, (const double *)record_find(&f, name)->data, F32, bound_sum(3));
    }
    assert_same_float64(k.m, record_find(&f, "adamw.m3"));
    assert_same_float64(k.v, record_find(&f, "adamw.v3"));
    assert_close(m, (const double *)record_find(&f, "adamw.m3")->data, F32, bound_sum(3));
    assert_close(v, (const double *)record_find(&f, "adamw.v3")->data, F32, bound_sum(3));
    record_unload(&f);
    stage_destroy(&s);
}

/* Seven steps, one with no decay; the working copy is the master rounded, bit for bit. Cut in two at an odd place: the same bits. */
static void compare(DType act, int64_t n) {
    enum { STEPS = 7 };
    Stage   s = stage_create(0);
    Tensor  master = stage_random(&s, F32, 1, n, 1, 1, 1, 0), m = stage_random(&s, F32, 1, n, 1, 0, 0, 0), v = stage_copy(&s, m);
    Tensor  working = act == F32 ? master : stage_tensor(&s, act, 1, n, 1);
    Tensor  master_cut = stage_copy(&s, master), m_cut = stage_copy(&s, m), v_cut = stage_copy(&s, v);
    Tensor  working_cut = act == F32 ? master_cut : stage_tensor(&s, act, 1, n, 1);
    State64 k = {n, stage_widen(&s, master), stage_doubles(&s, n), stage_doubles(&s, n), NULL};
    AdamW   h = HYPER;
    for (h.step = 1; h.step <= STEPS; h.step++) {
        Tensor grad = stage_random(&s, F32, 1, n, 1, 10 + (uint64_t)h.step, 1e-3, 0);
        h.weight_decay = h.step == 3 ? 0.0f : HYPER.weight_decay;
        k.grad = stage_widen(&s, grad);
        step64(k, h, 0.375);
        adamw_update(&s.stream, master, m, v, working, grad, h, 0.375f);
        int64_t at = n / 3;
        for (int part = 0; part < 2; part++) {
            int64_t first = part ? at : 0, elems = part ? n - at : at;
            adamw_update(&s.stream, tensor_slice(master_cut, first, elems), tensor_slice(m_cut, first, elems), tensor_slice(v_cut, first, elems),
                         tensor_slice(working_cut, first, elems), tensor_slice(grad, first, elems), h, 0.375f);
        }
    }
    assert_close(m, k.m, F32, bound_sum(STEPS));
    assert_close(v, k.v, F32, bound_sum(STEPS));
    assert_close(master, k.p, F32, bound_sum(STEPS));
    for (int64_t i = 0; i < n; i++) assert_true(tensor_get(working, i) == (float)round_to(act, (double)tensor_get(master, i)));
    assert_same_bits(master_cut, master);
    assert_same_bits(m_cut, m);
    assert_same_bits(v_cut, v);
    assert_same_bits(working_cut, working);
    stage_destroy(&s);
}

static void test_sizes(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 15, 16, 17, 101, 16384, 40003};
    for (int t = 0; t < stage_act_types(); t++)
        for (int i = 0; i < COUNT(sizes); i++) compare(ACT_TYPES[t], sizes[i]);
}

/* The first step moves by lr whatever the size of the gradient, thanks to the bias corrections; no gradient, no move; decay alone shrinks. */
static void test_first_step(void **state) {
    (void)state;
    Stage  s = stage_create(0);
    Tensor p = stage_random(&s, F32, 1, 4, 1, 0, 0, 1), m = stage_random(&s, F32, 1, 4, 1, 0, 0, 0), v = stage_copy(&s, m), grad = stage_copy(&s, m);
    AdamW  h = HYPER;
    h.weight_decay = 0.0f;
    tensor_set(grad, 0, 1.0f), tensor_set(grad, 1, -1e-3f), tensor_set(grad, 2, 1e6f), tensor_set(grad, 3, 0.0f);
    adamw_update(&s.stream, p, m, v, p, grad, h, 1.0f);
    static const double want[] = {0.99, 1.01, 0.99, 1.0};
    for (int i = 0; i < 4; i++) assert_true(fabs((double)tensor_get(p, i) - want[i]) < 2e-7); /* eps/|g| = 1e-5 of 0.01 at most */
    tensor_set(p, 3, 2.0f);
    h.weight_decay = 0.5f, h.step = 2;
    Tensor last = tensor_slice(p, 3, 1);
    adamw_update(&s.stream, last, tensor_slice(m, 3, 1), tensor_slice(v, 3, 1), last, tensor_slice(grad, 3, 1), h, 1.0f);
    assert_true(fabs((double)tensor_get(p, 3) - 2.0 * (1.0 - 0.01 * 0.5)) < 2.5e-7);
    stage_destroy(&s);
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_records), cmocka_unit_test(test_sizes), cmocka_unit_test(test_first_step)};
    return cmocka_run_group_tests_name("adamw", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
