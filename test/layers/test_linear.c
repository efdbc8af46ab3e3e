/* test_linear.c - linear_forward, linear_activation_forward, linear_backward and linear_activation_backward. */
#include "test/ref/test.h"

typedef struct { int64_t N, K, M; double *y, *x, *w, *b, *dy; } Case;

static double objective(void *ctx) {
    Case *k = (Case *)ctx;
    ref_linear_forward(k->y, k->x, k->w, k->b, k->N, k->K, k->M);
    return dot(k->y, k->dy, k->N * k->M);
}

/* The function y = f(pre) w + b. Its gradient with respect to pre is compared with finite differences. */
typedef struct { Case linear; Activation kind; double *pre; } ActivationCase;

static double activation_objective(void *ctx) {
    ActivationCase *k = (ActivationCase *)ctx;
    ref_activation_forward(k->kind, k->linear.x, k->pre, k->linear.N * k->linear.K);
    return objective(&k->linear);
}

static void test_differences(void **state) {
    (void)state;
    enum { N = 3, K = 4, M = 5 };
    Stage   s = stage_create(0);
    Case    k = {N,
                 K,
                 M,
                 stage_doubles(&s, N * M),
                 stage_random_doubles(&s, N * K, 1, 1, 0),
                 stage_random_doubles(&s, K * M, 2, 1, 0),
                 stage_random_doubles(&s, M, 3, 1, 0),
                 stage_random_doubles(&s, N * M, 4, 1, 0)};
    double *dx = stage_doubles(&s, N * K), *dw = stage_doubles(&s, K * M), *db = stage_doubles(&s, M);
    ref_linear_backward(dx, dw, db, k.dy, k.x, k.w, N, K, M);
    assert_true(difference_proves(objective, &k, k.x, dx, N * K));
    assert_true(difference_proves(objective, &k, k.w, dw, K * M));
    assert_true(difference_proves(objective, &k, k.b, db, M));

    double *dpre = stage_doubles(&s, N * K);
    for (Activation kind = 0; kind < ACTIVATION_COUNT; kind++) {
        ActivationCase a = {k, kind, stage_random_doubles(&s, N * K, 5, 2, 0)};
        ref_activation_forward(kind, a.linear.x, a.pre, N * K);
        ref_linear_backward(dx, dw, db, a.linear.dy, a.linear.x, a.linear.w, N, K, M);
        ref_activation_backward(kind, dpre, dx, a.pre, N * K);
        assert_true(difference_proves(activation_objective, &a, a.pre, dpre, N * K));
    }
    stage_destroy(&s);
}

static void test_linear_records(void **state) {
    (void)state;
    RecordFile f = record_load(OPS_FILE);
    Stage  s = stage_create(STAGE_SCRATCH);
    Tensor x = stage_record(&s, record_find(&f, "linear.x"), F32), w = stage_record(&s, record_find(&f, "linear.w"), F32);
    Tensor b = stage_record(&s, record_find(&f, "linear.b"), F32), dy = stage_record(&s, record_find(&f, "linear.dy"), F32);
    int64_t N = x.dim[0], K = x.dim[1], M = w.dim[1];
    double    *y64 = stage_doubles(&s, N * M), *dx64 = stage_doubles(&s, N * K), *dw64 = stage_doubles(&s, K * M),
           *db64 = stage_doubles(&s, M);
    ref_linear_forward(y64, stage_widen(&s, x), stage_widen(&s, w), stage_widen(&s, b), N, K, M);
    ref_linear_backward(dx64, dw64, db64, stage_widen(&s, dy), stage_widen(&s, x), stage_widen(&s, w), N, K, M);
    assert_same_float64(y64, record_find(&f, "linear.y"));
    assert_same_float64(dx64, record_find(&f, "linear.dx"));
    assert_same_float64(dw64, record_find(&f, "linear.dw"));
    assert_same_float64(db64, record_find(&f, "linear.db"));

    Tensor y = stage_tensor(&s, F32, 2, N, M), gelu = stage_tensor(&s, F32, 2, N, M), dx = stage_tensor(&s, F32, 2, N, K);
    Tensor dw = stage_random(&s, F32, 2, K, M, 0, 0, 0), db = stage_random(&s, F32, 1, M, 1, 0, 0, 0);
    linear_activation_forward(&s.stream, ACTIVATION_GELU_NEW, gelu, y, x, w, b);
    linear_backward(&s.stream, dx, dw, db, dy, x, w, PLAIN);
    assert_close(y, (const double *)record_find(&f, "linear.y")->data, F32, bound_sum(K + 1));
    assert_close(gelu, (const double *)record_find(&f, "linear.gelu")->data, F32, bound_sum(K + 24));
    assert_close(dx, (const double *)record_find(&f, "linear.dx")->data, F32, bound_sum(M));
    assert_close(dw, (const double *)record_find(&f, "linear.dw")->data, F32, bound_sum(N));
    assert_close(db, (const double *)record_find(&f, "linear.db")->data, F32, bound_sum(N));
    record_unload(&f);
    stage_destroy(&s);
}

static void test_gelu_records(void **state) {
    (void)state;
    RecordFile f = record_load(OPS_FILE);
    Stage  s = stage_create(STAGE_SCRATCH);
    Tensor     pre = stage_record(&s, record_find(&f, "linear_gelu.pre"), F32),
           x = stage_record(&s, record_find(&f, "linear_gelu.x"), F32);
    Tensor w = stage_record(&s, record_find(&f, "linear_gelu.w"), F32),
           dy = stage_record(&s, record_find(&f, "linear_gelu.dy"), F32);
    int64_t N = x.dim[0], K = x.dim[1], M = w.dim[1];
    Tensor  dpre = stage_tensor(&s, F32, 2, N, K), dw = stage_random(&s, F32, 2, K, M, 0, 0, 0),
           db = stage_random(&s, F32, 1, M, 1, 0, 0, 0);
    linear_activation_backward(&s.stream, ACTIVATION_GELU_NEW, dpre, tensor_none(), dw, db, dy, x, pre, w);
    assert_close(dpre, (const double *)record_find(&f, "linear_gelu.dpre")->data, F32, bound_sum(M + 24));
    /* the bound counts one term more than the sum has, because x is rounded */
    assert_close(dw, (const double *)record_find(&f, "linear_gelu.dw")->data, F32, bound_sum(N + 1));
    assert_close(db, (const double *)record_find(&f, "linear_gelu.db")->data, F32, bound_sum(N));
    record_unload(&f);
    stage_destroy(&s);
}

static void compare_forward(DType act, int64_t N, int64_t K, int64_t M) {
    Stage  s = stage_create(STAGE_SCRATCH);
    Tensor x = stage_random(&s, act, 2, N, K, 1, 1, 0), w = stage_random(&s, act, 2, K, M, 2, 1, 0),
           b = stage_random(&s, act, 1, M, 1, 3, 1, 0);
    Tensor y = stage_tensor(&s, act, 2, N, M), pre = stage_tensor(&s, act, 2, N, M), joined = stage_tensor(&s, act, 2, N, M),
           apart = stage_tensor(&s, act, 2, N, M);
    double *y64 = stage_doubles(&s, N * M), *joined64 = stage_doubles(&s, N * M);
    ref_linear_forward(y64, stage_widen(&s, x), stage_widen(&s, w), stage_widen(&s, b), N, K, M);
    linear_forward(&s.stream, y, x, w, b, PLAIN);
    assert_close(y, y64, act, bound_sum(K + 1));
    for (Activation kind = 0; kind < ACTIVATION_COUNT; kind++) {
        linear_activation_forward(&s.stream, kind, joined, pre, x, w, b);
        assert_same_bits(pre, y);
        /* expects f of pre as it was stored, rounded to its type */
        ref_activation_forward(kind, joined64, stage_widen(&s, pre), N * M);
        assert_close(joined, joined64, act, bound_sum(24));
        activation_forward(&s.stream, kind, apart, pre);
        assert_same_bits(joined, apart);
    }
    stage_destroy(&s);
}

static void compare_backward(Activation kind, DType act, int64_t N, int64_t K, int64_t M) {
    Stage  s = stage_create(STAGE_SCRATCH);
    Tensor pre = stage_random(&s, act, 2, N, K, 4, 3, 0), x = stage_tensor(&s, act, 2, N, K),
           w = stage_random(&s, act, 2, K, M, 2, 1, 0);
    Tensor dy = stage_random(&s, act, 2, N, M, 5, 1, 0), dx = stage_tensor(&s, act, 2, N, K), dpre = stage_tensor(&s, act, 2, N, K);
    Tensor dw = stage_random(&s, F32, 2, K, M, 6, 1, 0), db = stage_random(&s, F32, 1, M, 1, 7, 1, 0);
    activation_forward(&s.stream, kind, x, pre);
    double *dx64 = stage_doubles(&s, N * K), *dpre64 = stage_doubles(&s, N * K), *dw64 = stage_widen(&s, dw),
           *db64 = stage_widen(&s, db);
    for (int pass = 0; pass < 2; pass++)
        ref_linear_backward(dx64, dw64, db64, stage_widen(&s, dy), stage_widen(&s, x), stage_widen(&s, w), N, K, M);
    ref_activation_backward(kind, dpre64, dx64, stage_widen(&s, pre), N * K);
    linear_backward(&s.stream, dx, dw, db, dy, x, w, PLAIN);
    Tensor  dbias = stage_random(&s, F32, 1, K, 1, 8, 1, 0);
    double *dbias64 = stage_widen(&s, dbias);
    linear_activation_backward(&s.stream, kind, dpre, dbias, dw, db, dy, x, pre, w);
    stage_settle();
    /* On the CPU linear_activation_backward must have the bits of linear_backward followed by activation_backward.
     * On a GPU the bits may differ, because the product need not be rounded before it is multiplied by the derivative
     * of the activation. */
    if (device_is_host()) {
        Tensor apart = stage_tensor(&s, act, 2, N, K);
        activation_backward(&s.stream, kind, apart, tensor_none(), dx, pre);
        assert_same_bits(dpre, apart);
    }
    /* expects the sum of each column of dpre, rounded to its type as stored */
    for (int64_t i = 0; i < N * K; i++) dbias64[i % K] += (double)tensor_get(dpre, i);
    assert_close(dbias, dbias64, F32, bound_sum(N));
    assert_close(dx, dx64, act, bound_sum(M));
    /* allows for dy w^T being rounded before it is multiplied by f' */
    assert_close(dpre, dpre64, act, bound_bf16(M + 24, 2.0, 0.0));
    assert_close(dw, dw64, act, bound_sum(2 * N));
    assert_close(db, db64, act, bound_sum(2 * N));
    stage_destroy(&s);
}

/* Tests a fresh gradient dw, which is NaN: the first call of each op must set it, the second must add to it. Ops run
 * with and without column sums of dy. */
static void compare_fresh(DType act, int64_t N, int64_t K, int64_t M) {
    enum { PLAIN_OP, WITHOUT_BIAS, DELTA_OP, ACTIVATION_OP, OPS };
    Stage  s = stage_create(STAGE_SCRATCH);
    Tensor x = stage_random(&s, act, 2, N, K, 1, 1, 0), w = stage_random(&s, act, 2, K, M, 2, 1, 0), none = tensor_none();
    Tensor dy = stage_random(&s, act, 2, N, M, 5, 1, 0), dx = stage_tensor(&s, act, 2, N, K), delta = stage_tensor(&s, F32, 2, 1, N);
    double *dx64 = stage_doubles(&s, N * K), *dw64 = stage_doubles(&s, K * M), *db64 = stage_doubles(&s, M);
    ref_linear_backward(dx64, dw64, db64, stage_widen(&s, dy), stage_widen(&s, x), stage_widen(&s, w), N, K, M);
    for (int op = 0; op < OPS; op++) {
        Tensor  dw = stage_fresh(&s, K, M), db = op == WITHOUT_BIAS ? none : stage_random(&s, F32, 1, M, 1, 7, 0, 0);
        double *twice = stage_doubles(&s, K * M);
        for (int pass = 0; pass < 2; pass++, dw.is_fresh = 0) {
            if (op == DELTA_OP) linear_delta_backward(&s.stream, dx, delta, dw, db, dy, x, w);
            else if (op == ACTIVATION_OP)
                linear_activation_backward(&s.stream, ACTIVATION_GELU_NEW, dx, none, dw, db, dy, x, x, w);
            else linear_backward(&s.stream, dx, dw, db, dy, x, w, PLAIN);
            for (int64_t i = 0; i < K * M; i++) twice[i] += dw64[i];
            assert_close(dw, twice, act, bound_sum(2 * N));
        }
    }
    stage_destroy(&s);
}

static void test_shapes(void **state) {
    (void)state;
    static const int64_t shapes[][3] = {{1, 1, 1}, {2, 3, 1}, {5, 17, 7}, {16, 16, 16},
                                        {80, 42, 126}, {33, 168, 42}, {129, 65, 130}, {3, 300, 200}};
    for (int t = 0; t < stage_act_types(); t++)
        for (int i = 0; i < COUNT(shapes); i++) {
            compare_forward(ACT_TYPES[t], shapes[i][0], shapes[i][1], shapes[i][2]);
            for (Activation kind = 0; kind < ACTIVATION_COUNT; kind++)
                compare_backward(kind, ACT_TYPES[t], shapes[i][0], shapes[i][1], shapes[i][2]);
            compare_fresh(ACT_TYPES[t], shapes[i][0], shapes[i][1], shapes[i][2]);
        }
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_differences), cmocka_unit_test(test_linear_records),
                                     cmocka_unit_test(test_gelu_records), cmocka_unit_test(test_shapes)};
    return cmocka_run_group_tests_name("linear", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
