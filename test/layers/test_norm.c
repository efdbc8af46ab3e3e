/* test_norm.c - norm_squared and sum_forward: float64 sums, added to what is there, the same for any number of threads. */
#include "test/ref/test.h"

#include <omp.h>

/* The sums start at 7 and -5: they are added to. */
static Tensor sum_from(Stage *s, double start) {
    Tensor sum = stage_tensor(s, F64, 1, 1, 1);
    *(double *)sum.data = start;
    return sum;
}
static double value_of(Tensor sum) { return *(const double *)sum.data; }

static void test_sizes(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 7, 16, 31, 16384, 16385, 100003, 4194304 + 17};
    for (int i = 0; i < COUNT(sizes); i++) {
        Stage  s = stage_create(norm_scratch_bytes(sizes[i]));
        Tensor x = stage_random(&s, F32, 1, sizes[i], 1, 1, 3, 0.5), norm = sum_from(&s, 7.0), sum = sum_from(&s, -5.0), other = sum_from(&s, 7.0);
        long double square = 7.0L, plain = -5.0L;
        for (int64_t k = 0; k < sizes[i]; k++) {
            square += (long double)tensor_get(x, k) * (long double)tensor_get(x, k);
            plain += (long double)tensor_get(x, k);
        }
        norm_squared(&s.stream, norm, x);
        sum_forward(&s.stream, sum, x);
        double allowed = COMPARE_K * 0x1p-53 * sqrt((double)sizes[i]) * (double)square; /* compare.h's bound in float64 */
        assert_true(fabs(value_of(norm) - (double)square) <= allowed);
        assert_true(fabs(value_of(sum) - (double)plain) <= allowed);
        int threads = omp_get_max_threads();
        omp_set_num_threads(threads + 2);
        norm_squared(&s.stream, other, x);
        omp_set_num_threads(threads);
        assert_true(value_of(other) == value_of(norm));
        stage_destroy(&s);
    }
}

/* f32 would overflow or lose the small one. */
static void test_range(void **state) {
    (void)state;
    Stage  s = stage_create(norm_scratch_bytes(33));
    Tensor x = stage_random(&s, F32, 1, 33, 1, 0, 0, 0), norm = sum_from(&s, 0.0);
    tensor_set(x, 3, 1e30f), tensor_set(x, 32, 1e-30f);
    norm_squared(&s.stream, norm, x);
    assert_true(fabs(value_of(norm) / ((double)1e30f * (double)1e30f) - 1.0) < 1e-15);
    tensor_set(x, 3, 0.0f);
    *(double *)norm.data = 0.0;
    norm_squared(&s.stream, norm, x);
    assert_true(fabs(value_of(norm) / ((double)1e-30f * (double)1e-30f) - 1.0) < 1e-15);
    tensor_set(x, 5, NAN);
    norm_squared(&s.stream, norm, x);
    assert_true(isnan(value_of(norm)));
    stage_destroy(&s);
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_sizes), cmocka_unit_test(test_range)};
    return cmocka_run_group_tests_name("norm", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
