/* test_muon.c - muon_momentum and muon_update. */
#include "test/ref/test.h"

static const double BETA = 0.95;

/* Runs five steps of momentum and compares with float64. An update in two calls, cut at an odd place, must have equal
 * bits. */
static void compare(int64_t n) {
    enum { STEPS = 5 };
    Stage   s = stage_create(0);
    Tensor  p = stage_random(&s, F32, 1, n, 1, 1, 1, 0), m = stage_random(&s, F32, 1, n, 1, 0, 0, 0);
    Tensor  p_cut = stage_copy(&s, p), m_cut = stage_copy(&s, m);
    double *p64 = stage_widen(&s, p), *m64 = stage_doubles(&s, n);
    for (int step = 0; step < STEPS; step++) {
        Tensor  grad = stage_random(&s, F32, 1, n, 1, 10 + (uint64_t)step, 1e-3, 0), cut = stage_copy(&s, grad);
        double *grad64 = stage_widen(&s, grad), rate = 0.1 + 0.1 * step, decay = step == 3 ? 0.0 : 1e-3;
        ref_muon_momentum(grad64, m64, n, BETA, 0.375);
        muon_momentum(&s.stream, grad, m, BETA, 0.375f);
        assert_close(grad, grad64, F32, bound_sum(STEPS));
        ref_muon_update(p64, grad64, n, rate, decay);
        muon_update(&s.stream, p, grad, rate, decay);
        int64_t first[] = {0, n / 3}, elems[] = {n / 3, n - n / 3};
        for (int i = 1; i >= 0; i--) {
            Tensor part = tensor_slice(cut, first[i], elems[i]);
            muon_momentum(&s.stream, part, tensor_slice(m_cut, first[i], elems[i]), BETA, 0.375f);
            muon_update(&s.stream, tensor_slice(p_cut, first[i], elems[i]), part, rate, decay);
        }
    }
    device_sync(&s.stream);
    assert_close(m, m64, F32, bound_sum(STEPS));
    assert_close(p, p64, F32, bound_sum(STEPS));
    assert_same_bits(m_cut, m);
    assert_same_bits(p_cut, p);
    stage_destroy(&s);
}

static void test_sizes(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 15, 16, 17, 101, 16384, 40003};
    for (int i = 0; i < COUNT(sizes); i++) compare(sizes[i]);
}

/* Compares the first step with one computed by hand: a gradient of 2 makes m = 0.1 and the direction 0.05 * 2 + 0.95 *
 * 0.1. */
static void test_first_step(void **state) {
    (void)state;
    Stage  s = stage_create(0);
    Tensor p = stage_random(&s, F32, 1, 1, 1, 0, 0, 1), m = stage_random(&s, F32, 1, 1, 1, 0, 0, 0),
           grad = stage_random(&s, F32, 1, 1, 1, 0, 0, 1);
    tensor_set(grad, 0, 4.0f), tensor_set(p, 0, 3.0f);
    muon_momentum(&s.stream, grad, m, BETA, 0.5f);
    muon_update(&s.stream, p, grad, 10.0, 0.01);
    device_sync(&s.stream);
    assert_true(fabs((double)tensor_get(m, 0) - 0.1) < 1e-7);
    assert_true(fabs((double)tensor_get(grad, 0) - 0.195) < 1e-7);
    assert_true(fabs((double)tensor_get(p, 0) - (3.0 * 0.99 - 1.95)) < 1e-6);
    stage_destroy(&s);
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_sizes), cmocka_unit_test(test_first_step)};
    return cmocka_run_group_tests_name("muon", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
