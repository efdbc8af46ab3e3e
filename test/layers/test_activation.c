/* test_activation.c - activation_forward and activation_backward, for each kind. */
#include "test/ref/test.h"

/* Number of roundings for which the error bound allows. gelu_new uses tanh(u), whose exponential has the argument 2u =
 * 1.6 (x + 0.0447 x^3). One rounding of that argument changes the result by |2u| roundings. |2u| < 24 while the result
 * matters: for |x| > 6 gelu is x or under 10^-8. The other kinds need less. */
enum { TERMS = 24 };

typedef struct { Activation kind; int64_t n; double *y, *x, *dy; } Case;

static double objective(void *ctx) {
    Case *k = (Case *)ctx;
    ref_activation_forward(k->kind, k->y, k->x, k->n);
    return dot(k->y, k->dy, k->n);
}

static void test_differences(void **state) {
    (void)state;
    enum { N = 40 };
    for (Activation kind = 0; kind < ACTIVATION_COUNT; kind++) {
        Stage   s = stage_create(0);
        Case    k = {kind, N, stage_doubles(&s, N), stage_random_doubles(&s, N, 1, 4, 0),
                     stage_random_doubles(&s, N, 2, 1, 0)};
        double *dx = stage_doubles(&s, N);
        ref_activation_backward(kind, dx, k.dy, k.x, N);
        assert_true(difference_proves(objective, &k, k.x, dx, N));
        stage_destroy(&s);
    }
}

/* Compares gelu_new with recorded results of PyTorch. test/model/test_activations.c does so for the other kinds. */
static void test_records(void **state) {
    (void)state;
    Stage      s = stage_create(0);
    RecordFile f = record_load(OPS_FILE);
    Tensor     x = stage_record(&s, record_find(&f, "gelu.x"), F32), dy = stage_record(&s, record_find(&f, "gelu.dy"), F32);
    int64_t    n = tensor_elems(x);
    double    *y64 = stage_doubles(&s, n), *dx64 = stage_doubles(&s, n);
    ref_activation_forward(ACTIVATION_GELU_NEW, y64, stage_widen(&s, x), n);
    ref_activation_backward(ACTIVATION_GELU_NEW, dx64, stage_widen(&s, dy), stage_widen(&s, x), n);
    assert_same_float64(y64, record_find(&f, "gelu.y"));
    assert_same_float64(dx64, record_find(&f, "gelu.dx"));
    Tensor y = stage_tensor(&s, F32, 2, x.dim[0], x.dim[1]), dx = stage_tensor(&s, F32, 2, x.dim[0], x.dim[1]);
    activation_forward(&s.stream, ACTIVATION_GELU_NEW, y, x);
    activation_backward(&s.stream, ACTIVATION_GELU_NEW, dx, tensor_none(), dy, x);
    assert_close(y, (const double *)record_find(&f, "gelu.y")->data, F32, bound_sum(TERMS));
    assert_close(dx, (const double *)record_find(&f, "gelu.dx")->data, F32, bound_sum(TERMS));
    record_unload(&f);
    stage_destroy(&s);
}

static void check_shape(Activation kind, DType act, int64_t N, int64_t M) {
    Stage   s = stage_create(STAGE_SCRATCH);
    Tensor  x = stage_random(&s, act, 2, N, M, 3, 6, 0), dy = stage_random(&s, act, 2, N, M, 4, 1, 0);
    Tensor  y = stage_tensor(&s, act, 2, N, M), dx = stage_tensor(&s, act, 2, N, M);
    double *y64 = stage_doubles(&s, N * M), *dx64 = stage_doubles(&s, N * M);
    ref_activation_forward(kind, y64, stage_widen(&s, x), N * M);
    ref_activation_backward(kind, dx64, stage_widen(&s, dy), stage_widen(&s, x), N * M);
    activation_forward(&s.stream, kind, y, x);
    activation_backward(&s.stream, kind, dx, tensor_none(), dy, x);
    assert_close(y, y64, act, bound_sum(TERMS));
    assert_close(dx, dx64, act, bound_sum(TERMS));
    Tensor  dbias = stage_random(&s, F32, 1, M, 1, 5, 1, 0);
    double *dbias64 = stage_widen(&s, dbias);
    /* expects the sum of each column of dx, rounded to its type as stored */
    for (int64_t k = 0; k < N * M; k++) dbias64[k % M] += (double)tensor_get(dx, k);
    activation_backward(&s.stream, kind, dy, dbias, dy, x); /* in place: dx overwrites dy; with column sums */
    assert_same_bits(dy, dx);
    assert_close(dbias, dbias64, F32, bound_sum(N));
    stage_destroy(&s);
}

static void test_shapes(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{1, 1}, {1, 15}, {3, 16}, {7, 17}, {40, 168}, {3, 16384}, {5, 9001}, {331, 24}};
    for (Activation kind = 0; kind < ACTIVATION_COUNT; kind++)
        for (int t = 0; t < stage_act_types(); t++)
            for (int i = 0; i < COUNT(shapes); i++) check_shape(kind, ACT_TYPES[t], shapes[i][0], shapes[i][1]);
}

/* Runs both ops on rows that begin at any element, so that vector loads are not aligned. */
static void check_unaligned(Activation kind, DType act) {
    enum { N = 77, AT = 3 };
    Stage  s = stage_create(0);
    Tensor x = stage_random(&s, act, 2, 1, N, 3, 6, 0), dy = stage_random(&s, act, 2, 1, N, 4, 1, 0);
    Tensor y = stage_tensor(&s, act, 2, 1, N), dx = stage_tensor(&s, act, 2, 1, N), y_cut = stage_copy(&s, y),
           dx_cut = stage_copy(&s, y);
    activation_forward(&s.stream, kind, y, x);
    activation_backward(&s.stream, kind, dx, tensor_none(), dy, x);
    for (int part = 0; part < 2; part++) {
        int64_t at = part ? AT : 0, elems = part ? N - AT : AT;
        Tensor  of[] = {y_cut, x, dx_cut, dy};
        for (int i = 0; i < COUNT(of); i++)
            of[i] = tensor_2d((char *)of[i].data + (size_t)at * dtype_bytes(act), act, 1, elems);
        activation_forward(&s.stream, kind, of[0], of[1]);
        activation_backward(&s.stream, kind, of[2], tensor_none(), of[3], of[1]);
    }
    assert_same_bits(y_cut, y);
    assert_same_bits(dx_cut, dx);
    stage_destroy(&s);
}

static void test_unaligned(void **state) {
    (void)state;
    for (Activation kind = 0; kind < ACTIVATION_COUNT; kind++)
        for (int t = 0; t < stage_act_types(); t++) check_unaligned(kind, ACT_TYPES[t]);
}

/* Expected values and slopes of each kind for very large and infinite arguments, and how far a result may differ from
 * them. */
enum { EXTREMES = 7 };
static const double X_OF[EXTREMES] = {0.0, -0.0, 50.0, -50.0, 1e30, -1e30, INFINITY};
static const struct { double y[EXTREMES], slope[EXTREMES], allowed; } EXTREME[ACTIVATION_COUNT] = {
    [ACTIVATION_GELU_NEW] = {{0, 0, 50, 0, 1e30, 0, INFINITY}, {0.5, 0.5, 1, 0, 1, 0, 1}, 1e-30},
    [ACTIVATION_RELU2] = {{0, 0, 2500, 0, 1e60, 0, INFINITY}, {0, 0, 100, 0, 2e30, 0, INFINITY}, 0.0},
    [ACTIVATION_SILU] = {{0, 0, 50, 0, 1e30, 0, INFINITY}, {0.5, 0.5, 1, 0, 1, 0, 1}, 1e-20},
    [ACTIVATION_GELU] = {{0, 0, 50, 0, 1e30, 0, INFINITY}, {0.5, 0.5, 1, 0, 1, 0, 1}, 1e-30},
};

static void assert_near(double got, double want, double allowed) {
    if (!(got == want || fabs(got - want) <= allowed)) fail_msg("%.9g is not %.9g", got, want);
}

static void check_extremes(Activation kind, DType act) {
    Stage  s = stage_create(0);
    Tensor x = stage_tensor(&s, act, 2, 1, EXTREMES + 1), y = stage_copy(&s, x), dx = stage_copy(&s, x);
    Tensor one = stage_random(&s, act, 2, 1, EXTREMES + 1, 0, 0, 1);
    /* x is full of NaN at first. Its last element stays NaN, so NaN is tested as an argument. */
    for (int i = 0; i < EXTREMES; i++) tensor_set(x, i, (float)X_OF[i]);
    activation_forward(&s.stream, kind, y, x);
    activation_backward(&s.stream, kind, dx, tensor_none(), one, x);
    for (int i = 0; i < EXTREMES; i++) {
        assert_near((double)tensor_get(y, i), round_to(act, EXTREME[kind].y[i]), EXTREME[kind].allowed);
        assert_near((double)tensor_get(dx, i), round_to(act, EXTREME[kind].slope[i]), EXTREME[kind].allowed);
    }
    assert_true(isnan(tensor_get(y, EXTREMES)) && isnan(tensor_get(dx, EXTREMES)));
    stage_destroy(&s);
}

static void test_extremes(void **state) {
    (void)state;
    for (Activation kind = 0; kind < ACTIVATION_COUNT; kind++)
        for (int t = 0; t < stage_act_types(); t++) check_extremes(kind, ACT_TYPES[t]);
}

/* Tests gelu's error relative to each value, also in its tail: at most (TAIL_TERMS + 2 x^2) 2^-24. gelu is computed
 * from exp(-x^2/2) times a quotient R of polynomials (layers/activation.h). A GPU's exponential errs by 2^-22 +
 * x^2/2 2^-24, its division by 2^-22, the sums of R by 8 2^-24, three products by 3 2^-24. Rounding x^2 adds x^2/2
 * 2^-24. The derivative has the same bound, relative to Phi(x) + |x| phi(x), because its terms cancel near x =
 * -0.75. */
enum { TAIL_TERMS = 20, TAIL_END = 13, TAIL_STEPS = 1024 };

static void test_gelu_tail(void **state) {
    (void)state;
    int64_t n = 2 * TAIL_END * TAIL_STEPS + 1;
    Stage   s = stage_create(0);
    Tensor  x = stage_tensor(&s, F32, 2, 1, n), y = stage_copy(&s, x), dx = stage_copy(&s, x);
    Tensor  one = stage_random(&s, F32, 2, 1, n, 0, 0, 1);
    for (int64_t i = 0; i < n; i++) tensor_set(x, i, (float)(i - n / 2) / TAIL_STEPS);
    double *x64 = stage_widen(&s, x), *y64 = stage_doubles(&s, n), *dx64 = stage_doubles(&s, n);
    ref_activation_forward(ACTIVATION_GELU, y64, x64, n);
    ref_activation_backward(ACTIVATION_GELU, dx64, stage_widen(&s, one), x64, n);
    activation_forward(&s.stream, ACTIVATION_GELU, y, x);
    activation_backward(&s.stream, ACTIVATION_GELU, dx, tensor_none(), one, x);
    stage_settle();
    for (int64_t i = 0; i < n; i++) {
        double allowed = (TAIL_TERMS + 2.0 * x64[i] * x64[i]) * unit_roundoff(F32);
        double cdf = x64[i] == 0.0 ? 0.5 : y64[i] / x64[i], size = cdf + fabs(dx64[i] - cdf);
        assert_near((double)tensor_get(y, i), y64[i], allowed * fabs(y64[i]));
        assert_near((double)tensor_get(dx, i), dx64[i], allowed * size);
    }
    stage_destroy(&s);
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_differences), cmocka_unit_test(test_records),
                                     cmocka_unit_test(test_shapes), cmocka_unit_test(test_unaligned),
                                     cmocka_unit_test(test_extremes), cmocka_unit_test(test_gelu_tail)};
    return cmocka_run_group_tests_name("activation", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
