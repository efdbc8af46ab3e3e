/* test_normuon.c - normuon and copy_columns, compared with float64. */
#include "test/ref/test.h"

static const double BETA2 = 0.95;

/* Runs four steps on `parts` matrices in one tensor. Compares x and the second moments v with the reference. The
 * moments of a row of zeros must stay zero. */
static void compare(int64_t R, int64_t M, int64_t parts, NeuronSide side) {
    Stage   s = stage_create(STAGE_SCRATCH);
    Tensor  v = stage_random(&s, F32, 2, R, parts * M, 1, 0, 0);
    double *v64 = stage_widen(&s, v);
    for (uint64_t step = 0; step < 4; step++) {
        Tensor x = stage_random(&s, F32, 2, R, parts * M, 10 + step, 0.1, 0);
        for (int64_t c = 0; c < parts * M && R > 2; c++) tensor_set(x, parts * M + c, 0.0f);
        double *x64 = stage_widen(&s, x);
        for (int64_t p = 0; p < parts; p++) ref_normuon(x64 + p * M, v64 + p * M, R, M, parts * M, side == NEURON_ROWS, BETA2);
        normuon(&s.stream, x, v, parts, side, BETA2);
        device_sync(&s.stream);
        assert_close(x, x64, F32, bound_sum(8));
        assert_close(v, v64, F32, bound_sum(8));
    }
    stage_destroy(&s);
}

static void test_sizes(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{1, 1, 1}, {5, 3, 2}, {42, 42, 3}, {42, 168, 1}, {168, 42, 1}, {9, 300, 2}, {300, 65, 1}};
    for (int i = 0; i < COUNT(sizes); i++)
        for (int side = NEURON_ROWS; side <= NEURON_COLUMNS; side++) compare(sizes[i][0], sizes[i][1], sizes[i][2], (NeuronSide)side);
}

/* Compares the first step with one computed by hand: two rows of lengths 1 and 3 move equally far, and the norm of the
 * update becomes sqrt(2). */
static void test_first_step(void **state) {
    (void)state;
    Stage  s = stage_create(STAGE_SCRATCH);
    Tensor x = stage_random(&s, F32, 2, 2, 2, 1, 0, 0), v = stage_random(&s, F32, 2, 2, 2, 1, 0, 0);
    tensor_set(x, 0, 1.0f), tensor_set(x, 3, -3.0f);
    normuon(&s.stream, x, v, 1, NEURON_ROWS, 0.9);
    device_sync(&s.stream);
    assert_true(fabs((double)tensor_get(x, 0) - 1.0) < 1e-6 && fabs((double)tensor_get(x, 3) + 1.0) < 1e-6);
    assert_true(tensor_get(x, 1) == 0.0f && tensor_get(x, 2) == 0.0f);
    assert_true(fabs((double)tensor_get(v, 1) - 0.05) < 1e-7 && fabs((double)tensor_get(v, 2) - 0.45) < 1e-6);
    stage_destroy(&s);
}

static void test_nothing(void **state) {
    (void)state;
    Stage  s = stage_create(STAGE_SCRATCH);
    Tensor x = stage_random(&s, F32, 2, 4, 6, 1, 0, 0), v = stage_random(&s, F32, 2, 4, 6, 1, 0, 0), nan = stage_random(&s, F32, 2, 4, 6, 1, 1, 0);
    tensor_set(nan, 7, NAN);
    normuon(&s.stream, x, v, 2, NEURON_COLUMNS, BETA2);
    normuon(&s.stream, nan, v, 1, NEURON_COLUMNS, BETA2);
    device_sync(&s.stream);
    for (int i = 0; i < 24; i++) assert_true(tensor_get(x, i) == 0.0f && isnan(tensor_get(nan, i)));
    stage_destroy(&s);
}

static void test_columns(void **state) {
    (void)state;
    static const int64_t sizes[][6] = {{1, 1, 0, 1, 0, 1}, {7, 12, 3, 5, 1, 4}, {40, 96, 64, 32, 0, 32}, {33, 700, 0, 701, 1, 700}};
    for (int i = 0; i < COUNT(sizes); i++) {
        const int64_t *z = sizes[i];
        Stage  s = stage_create(0);
        Tensor y = stage_random(&s, F32, 2, z[0], z[1], 1, 1, 0), x = stage_random(&s, F32, 2, z[0], z[3], 2, 1, 0), before = stage_copy(&s, y);
        copy_columns(&s.stream, y, z[2], x, z[4], z[5]);
        device_sync(&s.stream);
        for (int64_t k = 0; k < z[0] * z[1]; k++) {
            int64_t c = k % z[1] - z[2];
            assert_true(tensor_get(y, k) == (c >= 0 && c < z[5] ? tensor_get(x, k / z[1] * z[3] + z[4] + c) : tensor_get(before, k)));
        }
        stage_destroy(&s);
    }
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_sizes), cmocka_unit_test(test_first_step), cmocka_unit_test(test_nothing),
                                     cmocka_unit_test(test_columns)};
    return cmocka_run_group_tests_name("normuon", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
