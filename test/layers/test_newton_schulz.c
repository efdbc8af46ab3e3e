/* test_newton_schulz.c - newton_schulz, compared with float64 and with PyTorch's recorded results, for single matrices
 * and for several in one. */
#include "test/ref/test.h"

/* Returns the bound of the norm of the error, for a matrix with k singular values. u is the relative error of a
 * rounding. The matrix is rounded three times at first (itself, its factor, the product), each time by 0.42 u in the
 * root mean square. These errors grow at most by the largest slope of the map, 3.4445 in each of five iterations of
 * the quintic. Meanwhile the norm grows from 1 to about 0.9 sqrt(k). Later errors grow less. In Polar Express the
 * five slopes are the linear coefficients of its five polynomials. */
static double allowed(DType type, int64_t k, NewtonKind kind) {
    double slopes = kind == NEWTON_QUINTIC ? pow(3.4445, 5.0) : 8.2872 * 4.1071 * 3.9487 * 3.3184 * 2.3007 / pow(1.01, 5.0);
    return 0.42 * unit_roundoff(type) * sqrt(3.0) * slopes / (0.9 * sqrt((double)k));
}

static void assert_near(Tensor got, const double *want, DType type, int64_t k, NewtonKind kind) {
    double error = compare_norm(got, want), most = allowed(type, k, kind);
    if (getenv("COMPARE_VERBOSE")) print_message("%s: error %.2e of %.2e\n", dtype_name(type), error, most);
    if (!(error <= most)) fail_msg("%s: error %.2e of %.2e", dtype_name(type), error, most);
}

static void compare_record(const char *file, NewtonKind kind) {
    static const char *const names[] = {"newton.wide", "newton.tall", "newton.square"};
    RecordFile f = record_load(file);
    for (int i = 0; i < COUNT(names); i++) {
        char result[32];
        snprintf(result, sizeof result, "%s.y", names[i]);
        const double *want = (const double *)record_find(&f, result)->data;
        for (int t = 0; t < stage_act_types(); t++) {
            Stage   s = stage_create(STAGE_SCRATCH);
            Tensor  x = stage_record(&s, record_find(&f, names[i]), F32);
            double *x64 = stage_widen(&s, x);
            ref_newton_schulz(x64, x.dim[0], x.dim[1], x.dim[1], kind == NEWTON_POLAR_EXPRESS);
            assert_same_float64(x64, record_find(&f, result));
            newton_schulz(&s.stream, x, 1, ACT_TYPES[t], kind);
            device_sync(&s.stream);
            assert_near(x, want, ACT_TYPES[t], x.dim[0] < x.dim[1] ? x.dim[0] : x.dim[1], kind);
            stage_destroy(&s);
        }
    }
    record_unload(&f);
}

static void test_record(void **state) {
    (void)state;
    compare_record("test/ref/data/muon.rec", NEWTON_QUINTIC);
    compare_record("test/ref/data/muon_polar.rec", NEWTON_POLAR_EXPRESS);
}

/* Orthogonalizes a matrix x = U diag(s) V^T with singular values from 0.02 to 1. U and V are reflections. Returns
 * the largest difference of X X^T from the identity. Singular values over 0.01 of the norm become values between
 * 0.681 and 1.135 by the quintic, and between 0.870 and 1.124 by Polar Express. */
static double worst_of_gram(NewtonKind kind) {
    enum { R = 12, M = 20 };
    Stage   s = stage_create(STAGE_SCRATCH);
    Tensor  x = stage_random(&s, F32, 2, R, M, 3, 1, 0), u = stage_random(&s, F32, 1, R, 1, 4, 1, 0), v = stage_random(&s, F32, 1, M, 1, 5, 1, 0);
    double  uu = 0.0, vv = 0.0, worst = 0.0;
    for (int i = 0; i < R; i++) uu += pow((double)tensor_get(u, i), 2.0);
    for (int i = 0; i < M; i++) vv += pow((double)tensor_get(v, i), 2.0);
    for (int r = 0; r < R; r++)
        for (int c = 0; c < M; c++) {
            double sum = 0.0; /* element of (I - 2 u u^T / u.u) diag(s) (I - 2 v v^T / v.v) */
            for (int k = 0; k < R; k++)
                sum += ((r == k) - 2.0 * (double)tensor_get(u, r) * (double)tensor_get(u, k) / uu) * pow(0.02, k / (R - 1.0)) *
                       ((c == k) - 2.0 * (double)tensor_get(v, c) * (double)tensor_get(v, k) / vv);
            tensor_set(x, r * M + c, (float)sum);
        }
    newton_schulz(&s.stream, x, 1, F32, kind);
    device_sync(&s.stream);
    for (int a = 0; a < R; a++)
        for (int b = 0; b < R; b++) {
            double sum = 0.0;
            for (int c = 0; c < M; c++) sum += (double)tensor_get(x, a * M + c) * (double)tensor_get(x, b * M + c);
            worst = fmax(worst, fabs(sum - (a == b)));
        }
    stage_destroy(&s);
    return worst;
}

static void test_orthogonal(void **state) {
    (void)state;
    double quintic = worst_of_gram(NEWTON_QUINTIC), polar = worst_of_gram(NEWTON_POLAR_EXPRESS);
    if (getenv("COMPARE_VERBOSE")) print_message("X X^T - 1: quintic %.3f, polar express %.3f\n", quintic, polar);
    assert_true(quintic < 1.0 - 0.681 * 0.681 && polar < 1.124 * 1.124 - 1.0);
}

/* Several matrices in one tensor are separate: each gets the bits that it gets alone, whatever is next to it. */
static void compare_parts(int64_t R, int64_t M, int64_t parts, DType type, NewtonKind kind) {
    Stage   s = stage_create(STAGE_SCRATCH);
    Tensor  x = stage_random(&s, F32, 2, R, parts * M, 1, 1e-3, 0), one[3];
    double *want = stage_widen(&s, x);
    for (int64_t p = 0; p < parts; p++) {
        one[p] = stage_tensor(&s, F32, 2, R, M);
        for (int64_t i = 0; i < R * M; i++) tensor_set(one[p], i, tensor_get(x, i / M * parts * M + p * M + i % M));
        newton_schulz(&s.stream, one[p], 1, type, kind);
        ref_newton_schulz(want + p * M, R, M, parts * M, kind == NEWTON_POLAR_EXPRESS);
    }
    newton_schulz(&s.stream, x, parts, type, kind);
    device_sync(&s.stream);
    assert_near(x, want, type, R < M ? R : M, kind);
    for (int64_t i = 0; i < R * parts * M; i++)
        assert_true(tensor_get(x, i) == tensor_get(one[i / M % parts], i / (parts * M) * M + i % M));
    stage_destroy(&s);
}

static void test_parts(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{1, 1, 1}, {5, 3, 2}, {42, 42, 3}, {42, 168, 1},
                                       {168, 42, 1}, {64, 64, 3}, {96, 100, 2}};
    for (int t = 0; t < stage_act_types(); t++)
        for (int i = 0; i < COUNT(sizes); i++) compare_parts(sizes[i][0], sizes[i][1], sizes[i][2], ACT_TYPES[t], (NewtonKind)(i % 2));
}

/* A gradient of zero has no direction and gives zero. NaN stays NaN. */
static void test_no_direction(void **state) {
    (void)state;
    Stage  s = stage_create(STAGE_SCRATCH);
    Tensor zero = stage_random(&s, F32, 2, 6, 9, 1, 0, 0), nan = stage_random(&s, F32, 2, 6, 9, 1, 1, 0);
    tensor_set(nan, 13, NAN);
    newton_schulz(&s.stream, zero, 3, F32, NEWTON_POLAR_EXPRESS);
    newton_schulz(&s.stream, nan, 1, F32, NEWTON_QUINTIC);
    device_sync(&s.stream);
    for (int i = 0; i < 54; i++) assert_true(tensor_get(zero, i) == 0.0f && isnan(tensor_get(nan, i)));
    stage_destroy(&s);
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_record), cmocka_unit_test(test_parts), cmocka_unit_test(test_orthogonal),
                                     cmocka_unit_test(test_no_direction)};
    return cmocka_run_group_tests_name("newton_schulz", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
