/* test_newton_schulz.c - newton_schulz against float64 and PyTorch's record, alone and side by side. */
#include "test/ref/test.h"

/* Norm-wise, of matrices of k singular values. The first errors of X, three roundings (X, what multiplies it, the
 * product) of 0.42 u in the root mean square, grow by the map's largest slope at most, 3.4445 in each of five rounds,
 * while the norm grows from 1 to about 0.9 sqrt(k). Later ones grow less. */
static double allowed(DType type, int64_t k) {
    return 0.42 * unit_roundoff(type) * sqrt(3.0) * pow(3.4445, 5.0) / (0.9 * sqrt((double)k));
}

static void assert_near(Tensor got, const double *want, DType type, int64_t k) {
    double error = compare_norm(got, want);
    if (getenv("COMPARE_VERBOSE")) print_message("%s: error %.2e of %.2e\n", dtype_name(type), error, allowed(type, k));
    if (!(error <= allowed(type, k))) fail_msg("%s: error %.2e of %.2e", dtype_name(type), error, allowed(type, k));
}

static void test_record(void **state) {
    (void)state;
    static const char *const names[] = {"newton.wide", "newton.tall", "newton.square"};
    RecordFile f = record_load("test/ref/data/muon.rec");
    for (int i = 0; i < COUNT(names); i++) {
        char result[32];
        snprintf(result, sizeof result, "%s.y", names[i]);
        const double *want = (const double *)record_find(&f, result)->data;
        for (int t = 0; t < stage_act_types(); t++) {
            Stage   s = stage_create(STAGE_SCRATCH);
            Tensor  x = stage_record(&s, record_find(&f, names[i]), F32);
            double *x64 = stage_widen(&s, x);
            ref_newton_schulz(x64, x.dim[0], x.dim[1], x.dim[1]);
            assert_same_float64(x64, record_find(&f, result));
            newton_schulz(&s.stream, x, 1, ACT_TYPES[t], NEWTON_QUINTIC);
            device_sync(&s.stream);
            assert_near(x, want, ACT_TYPES[t], x.dim[0] < x.dim[1] ? x.dim[0] : x.dim[1]);
            stage_destroy(&s);
        }
    }
    record_unload(&f);
}

/* Parts are matrices of their own: the bits of each alone, whatever stands beside it. */
static void compare_parts(int64_t R, int64_t M, int64_t parts, DType type) {
    Stage   s = stage_create(STAGE_SCRATCH);
    Tensor  x = stage_random(&s, F32, 2, R, parts * M, 1, 1e-3, 0), one[3];
    double *want = stage_widen(&s, x);
    for (int64_t p = 0; p < parts; p++) {
        one[p] = stage_tensor(&s, F32, 2, R, M);
        for (int64_t i = 0; i < R * M; i++) tensor_set(one[p], i, tensor_get(x, i / M * parts * M + p * M + i % M));
        newton_schulz(&s.stream, one[p], 1, type);
        ref_newton_schulz(want + p * M, R, M, parts * M);
    }
    newton_schulz(&s.stream, x, parts, type);
    device_sync(&s.stream);
    assert_near(x, want, type, R < M ? R : M);
    for (int64_t i = 0; i < R * parts * M; i++)
        assert_true(tensor_get(x, i) == tensor_get(one[i / M % parts], i / (parts * M) * M + i % M));
    stage_destroy(&s);
}

static void test_parts(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{1, 1, 1}, {5, 3, 2}, {42, 42, 3}, {42, 168, 1},
                                       {168, 42, 1}, {64, 64, 3}, {96, 100, 2}};
    for (int t = 0; t < stage_act_types(); t++)
        for (int i = 0; i < COUNT(sizes); i++) compare_parts(sizes[i][0], sizes[i][1], sizes[i][2], ACT_TYPES[t]);
}

/* A gradient of zero has no direction: zero. NaN stays in sight. */
static void test_no_direction(void **state) {
    (void)state;
    Stage  s = stage_create(STAGE_SCRATCH);
    Tensor zero = stage_random(&s, F32, 2, 6, 9, 1, 0, 0), nan = stage_random(&s, F32, 2, 6, 9, 1, 1, 0);
    tensor_set(nan, 13, NAN);
    newton_schulz(&s.stream, zero, 3, F32);
    newton_schulz(&s.stream, nan, 1, F32);
    device_sync(&s.stream);
    for (int i = 0; i < 54; i++) assert_true(tensor_get(zero, i) == 0.0f && isnan(tensor_get(nan, i)));
    stage_destroy(&s);
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_record), cmocka_unit_test(test_parts),
                                     cmocka_unit_test(test_no_direction)};
    return cmocka_run_group_tests_name("newton_schulz", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
