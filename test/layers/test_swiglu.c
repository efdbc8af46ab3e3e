/* test_swiglu.c - swiglu_forward and swiglu_backward, expert_swiglu_forward and expert_swiglu_backward. */
#include "test/ref/expert_ops.h"
#include "test/ref/test.h"

/* Number of roundings that the error bound allows. A fast exponential of -x has an error of |x| roundings. |x| < 24
 * while the result matters: beyond, silu(x) is x or under 10^-9. */
enum { SWIGLU_TERMS = 24 };

typedef struct { int64_t N, F; double *y, *gate_up, *dy; } Case;

static double objective(void *ctx) {
    Case *k = (Case *)ctx;
    ref_swiglu_forward(k->y, k->gate_up, k->N, k->F);
    return dot(k->y, k->dy, k->N * k->F);
}

static void test_differences(void **state) {
    (void)state;
    enum { N = 3, F = 9 };
    Stage   s = stage_create(0);
    Case    k = {N, F, stage_doubles(&s, N * F), stage_random_doubles(&s, 2 * N * F, 1, 4, 0),
                 stage_random_doubles(&s, N * F, 2, 1, 0)};
    double *dgate_up = stage_doubles(&s, 2 * N * F);
    ref_swiglu_backward(dgate_up, k.dy, k.gate_up, N, F);
    assert_true(difference_proves(objective, &k, k.gate_up, dgate_up, 2 * N * F));
    stage_destroy(&s);
}

static void test_records(void **state) {
    (void)state;
    Stage      s = stage_create(0);
    RecordFile f = record_load(NORMS_FILE);
    Tensor     gate_up = stage_record(&s, record_find(&f, "swiglu.gate_up"), F32);
    Tensor     dy = stage_record(&s, record_find(&f, "swiglu.dy"), F32);
    int64_t    N = dy.dim[0], F = dy.dim[1];
    double    *y64 = stage_doubles(&s, N * F), *dgate_up64 = stage_doubles(&s, 2 * N * F);
    ref_swiglu_forward(y64, stage_widen(&s, gate_up), N, F);
    ref_swiglu_backward(dgate_up64, stage_widen(&s, dy), stage_widen(&s, gate_up), N, F);
    assert_same_float64(y64, record_find(&f, "swiglu.y"));
    assert_same_float64(dgate_up64, record_find(&f, "swiglu.dgate_up"));
    Tensor y = stage_tensor(&s, F32, 2, N, F), dgate_up = stage_tensor(&s, F32, 2, N, 2 * F);
    swiglu_forward(&s.stream, y, gate_up);
    swiglu_backward(&s.stream, dgate_up, dy, gate_up);
    assert_close(y, (const double *)record_find(&f, "swiglu.y")->data, F32, bound_sum(SWIGLU_TERMS));
    assert_close(dgate_up, (const double *)record_find(&f, "swiglu.dgate_up")->data, F32, bound_sum(SWIGLU_TERMS));
    record_unload(&f);
    stage_destroy(&s);
}

static void compare(DType act, int64_t N, int64_t F) {
    Stage   s = stage_create(0);
    Tensor  gate_up = stage_random(&s, act, 2, N, 2 * F, 3, 6, 0), dy = stage_random(&s, act, 2, N, F, 4, 1, 0);
    Tensor  y = stage_tensor(&s, act, 2, N, F), dgate_up = stage_tensor(&s, act, 2, N, 2 * F);
    double *y64 = stage_doubles(&s, N * F), *dgate_up64 = stage_doubles(&s, 2 * N * F);
    ref_swiglu_forward(y64, stage_widen(&s, gate_up), N, F);
    ref_swiglu_backward(dgate_up64, stage_widen(&s, dy), stage_widen(&s, gate_up), N, F);
    swiglu_forward(&s.stream, y, gate_up);
    swiglu_backward(&s.stream, dgate_up, dy, gate_up);
    assert_close(y, y64, act, bound_sum(SWIGLU_TERMS));
    assert_close(dgate_up, dgate_up64, act, bound_sum(SWIGLU_TERMS));
    swiglu_backward(&s.stream, gate_up, dy, gate_up); /* runs in place: dgate_up overwrites gate_up */
    assert_same_bits(gate_up, dgate_up);
    stage_destroy(&s);
}

static void test_shapes(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{1, 1}, {1, 15}, {3, 16}, {7, 17}, {40, 168}, {5, 2048}, {3, 4104}, {2, 2049}};
    for (int t = 0; t < stage_act_types(); t++)
        for (int i = 0; i < COUNT(shapes); i++) compare(ACT_TYPES[t], shapes[i][0], shapes[i][1]);
}

/* --- weighted ----------------------------------------------------------------------------------------------------- */

typedef struct { int64_t R, F; double *y, *gate_up, *weight, *dy; } Weighted;

static double weighted_objective(void *ctx) {
    Weighted *k = (Weighted *)ctx;
    ref_expert_swiglu_forward(k->y, k->gate_up, k->weight, k->R, k->F);
    return dot(k->y, k->dy, k->R * k->F);
}

static void test_weighted_differences(void **state) {
    (void)state;
    enum { R = 3, F = 5 };
    Stage    s = stage_create(0);
    Weighted k = {R, F, stage_doubles(&s, R * F), stage_random_doubles(&s, 2 * R * F, 1, 4, 0), stage_random_doubles(&s, R, 3, 1, 0),
                  stage_random_doubles(&s, R * F, 2, 1, 0)};
    double  *dgate_up = stage_doubles(&s, 2 * R * F), *dweight = stage_doubles(&s, R);
    ref_expert_swiglu_backward(dgate_up, dweight, k.dy, k.gate_up, k.weight, R, F);
    assert_true(difference_proves(weighted_objective, &k, k.gate_up, dgate_up, 2 * R * F));
    assert_true(difference_proves(weighted_objective, &k, k.weight, dweight, R));
    stage_destroy(&s);
}

/* Runs the ops with weight number r for row r, without `order`. t: the tensors y, gate_up, dgate_up and dy that are
 * expected or given. */
static void compare_in_order(Stage *s, const Tensor t[4], Tensor weight, const double *dweight64) {
    int64_t R = t[0].dim[0], F = t[0].dim[1];
    Tensor  rows = stage_tensor(s, F32, 2, R, 1), dweight = stage_tensor(s, F32, 2, R, 1), y = stage_tensor(s, t[0].type, 2, R, F),
            dgate_up = stage_tensor(s, t[0].type, 2, R, 2 * F);
    stage_settle();
    for (int64_t r = 0; r < R; r++) tensor_set(rows, r, tensor_get(weight, R - 1 - r));
    expert_swiglu_forward(&s->stream, y, t[1], rows, tensor_none());
    expert_swiglu_backward(&s->stream, dgate_up, dweight, t[3], t[1], rows, tensor_none());
    assert_same_bits(y, t[0]);
    assert_same_bits(dgate_up, t[2]);
    assert_close(dweight, dweight64, F32, bound_sum(F + SWIGLU_TERMS));
}

/* Runs the ops with rows in the reverse order of their assignments (tokens x experts). `order` says which weight
 * belongs to a row. */
static void compare_weighted(DType act, int64_t N, int64_t per_token, int64_t F) {
    int64_t R = N * per_token;
    Stage   s = stage_create(0);
    Tensor  gate_up = stage_random(&s, act, 2, R, 2 * F, 3, 6, 0), dy = stage_random(&s, act, 2, R, F, 4, 1, 0);
    Tensor  weight = stage_random(&s, F32, 2, N, per_token, 5, 1, 0), dweight = stage_tensor(&s, F32, 2, N, per_token);
    Tensor  order = stage_tensor(&s, I32, 1, R, 1), y = stage_tensor(&s, act, 2, R, F), dgate_up = stage_tensor(&s, act, 2, R, 2 * F);
    double *y64 = stage_doubles(&s, R * F), *dgate_up64 = stage_doubles(&s, 2 * R * F), *dweight64 = stage_doubles(&s, 2 * R);
    double *weight64 = stage_doubles(&s, R);
    for (int64_t r = 0; r < R; r++) {
        ((int32_t *)order.data)[r] = (int32_t)(R - 1 - r);
        weight64[r] = (double)tensor_get(weight, R - 1 - r);
    }
    ref_expert_swiglu_forward(y64, stage_widen(&s, gate_up), weight64, R, F);
    ref_expert_swiglu_backward(dgate_up64, dweight64, stage_widen(&s, dy), stage_widen(&s, gate_up), weight64, R, F);
    for (int64_t r = 0; r < R; r++) dweight64[R + r] = dweight64[R - 1 - r];
    expert_swiglu_forward(&s.stream, y, gate_up, weight, order);
    expert_swiglu_backward(&s.stream, dgate_up, dweight, dy, gate_up, weight, order);
    assert_close(y, y64, act, bound_sum(SWIGLU_TERMS));
    assert_close(dgate_up, dgate_up64, act, bound_sum(SWIGLU_TERMS));
    assert_close(dweight, dweight64 + R, F32, bound_sum(F + SWIGLU_TERMS));
    compare_in_order(&s, (Tensor[]){y, gate_up, dgate_up, dy}, weight, dweight64);
    /* runs in place: dgate_up overwrites gate_up */
    expert_swiglu_backward(&s.stream, gate_up, dweight, dy, gate_up, weight, order);
    assert_same_bits(gate_up, dgate_up);
    assert_close(dweight, dweight64 + R, F32, bound_sum(F + SWIGLU_TERMS));
    stage_destroy(&s);
}

static void test_weighted_shapes(void **state) {
    (void)state;
    static const int64_t shapes[][3] = {{1, 1, 1}, {1, 2, 15}, {3, 1, 16}, {7, 3, 17}, {20, 2, 168}, {2, 2, 2048}, {2, 1, 2049}};
    for (int t = 0; t < stage_act_types(); t++)
        for (int i = 0; i < COUNT(shapes); i++) compare_weighted(ACT_TYPES[t], shapes[i][0], shapes[i][1], shapes[i][2]);
}

/* Tests large, infinite and undefined gate values; all values of `up`, by which silu(gate) is multiplied, are 1. */
static void test_extremes(void **state) {
    (void)state;
    static const double x_of[] = {0.0, -0.0, 50.0, -85.0, 100.0, -100.0, 1e30, -1e30, INFINITY, -INFINITY};
    static const double y_of[] = {0.0, 0.0, 50.0, 0.0, 100.0, 0.0, 1e30, 0.0, INFINITY, 0.0};
    enum { N = COUNT(x_of) + 1 };
    for (int t = 0; t < stage_act_types(); t++) {
        Stage  s = stage_create(0);
        DType  act = ACT_TYPES[t];
        Tensor x = stage_random(&s, act, 2, 1, 2 * N, 0, 0, 1), y = stage_tensor(&s, act, 2, 1, N),
               dx = stage_copy(&s, x);
        Tensor one = stage_random(&s, act, 2, 1, N, 0, 0, 1);
        for (int i = 0; i < N; i++) tensor_set(x, i, i < N - 1 ? (float)x_of[i] : NAN);
        swiglu_forward(&s.stream, y, x);
        swiglu_backward(&s.stream, dx, one, x);
        for (int i = 0; i < N - 1; i++) {
            double want = round_to(act, y_of[i]), slope = x_of[i] == 0.0 ? 0.5 : x_of[i] > 0.0 ? 1.0 : 0.0;
            double got = (double)tensor_get(y, i), dup = (double)tensor_get(dx, N + i);
            assert_true(got == want || fabs(got - want) < 1e-30);
            assert_true(dup == want || fabs(dup - want) < 1e-30);
            assert_true(fabs((double)tensor_get(dx, i) - slope) < 1e-30);
        }
        assert_true(isnan(tensor_get(y, N - 1)) && isnan(tensor_get(dx, N - 1)) && isnan(tensor_get(dx, 2 * N - 1)));
        stage_destroy(&s);
    }
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_differences), cmocka_unit_test(test_records),
                                     cmocka_unit_test(test_shapes), cmocka_unit_test(test_weighted_differences),
                                     cmocka_unit_test(test_weighted_shapes), cmocka_unit_test(test_extremes)};
    return cmocka_run_group_tests_name("swiglu", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
