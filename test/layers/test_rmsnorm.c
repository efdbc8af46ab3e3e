/* test_rmsnorm.c - rmsnorm_forward and rmsnorm_backward, each compared with its float64 reference (test/ref/ops.c). The
 * references are compared with finite differences and with recorded float64 results of PyTorch. */
#include "test/ref/test.h"

static const double EPS = 1e-5f; /* eps as a float, as the op gets it */

typedef struct { int64_t N, C; double *y, *rstd, *x, *w, *dy; } Case;

static double objective(void *ctx) {
    Case *k = (Case *)ctx;
    ref_rmsnorm_forward(k->y, k->rstd, k->x, k->w, k->N, k->C, EPS);
    return dot(k->y, k->dy, k->N * k->C);
}

static void test_differences(void **state) {
    (void)state;
    enum { N = 3, C = 7 };
    Stage   s = stage_create(0);
    Case    k = {N,
                 C,
                 stage_doubles(&s, N * C),
                 stage_doubles(&s, N),
                 stage_random_doubles(&s, N * C, 1, 3, 1),
                 stage_random_doubles(&s, C, 2, 1, 1),
                 stage_random_doubles(&s, N * C, 3, 1, 0)};
    double *dx = stage_doubles(&s, N * C), *dw = stage_doubles(&s, C);
    ref_rmsnorm_backward(dx, dw, NULL, k.dy, k.x, k.w, N, C, EPS);
    assert_true(difference_proves(objective, &k, k.x, dx, N * C));
    assert_true(difference_proves(objective, &k, k.w, dw, C));
    stage_destroy(&s);
}

static void test_records(void **state) {
    (void)state;
    Stage      s = stage_create(1 << 20);
    RecordFile f = record_load(NORMS_FILE);
    Tensor     x = stage_record(&s, record_find(&f, "rmsnorm.x"), F32);
    Tensor     w = stage_record(&s, record_find(&f, "rmsnorm.w"), F32);
    Tensor     dy = stage_record(&s, record_find(&f, "rmsnorm.dy"), F32);
    Tensor     update = stage_record(&s, record_find(&f, "rmsnorm.update"), F32);
    Tensor     dresidual = stage_record(&s, record_find(&f, "rmsnorm.dresidual"), F32);
    int64_t    N = x.dim[0], C = x.dim[1];
    double    *y64 = stage_doubles(&s, N * C), *rstd64 = stage_doubles(&s, N), *dx64 = stage_doubles(&s, N * C);
    double *dw64 = stage_doubles(&s, C);
    ref_rmsnorm_forward(y64, rstd64, stage_widen(&s, x), stage_widen(&s, w), N, C, 1e-5);
    ref_rmsnorm_backward(dx64, dw64, stage_widen(&s, dresidual), stage_widen(&s, dy), stage_widen(&s, x),
                         stage_widen(&s, w), N, C, 1e-5);
    assert_same_float64(y64, record_find(&f, "rmsnorm.y"));
    assert_same_float64(rstd64, record_find(&f, "rmsnorm.rstd"));
    assert_same_float64(dx64, record_find(&f, "rmsnorm.dx"));
    assert_same_float64(dw64, record_find(&f, "rmsnorm.dw"));

    Tensor y = stage_tensor(&s, F32, 2, N, C), rstd = stage_tensor(&s, F32, 1, N, 1),
           sum = stage_tensor(&s, F32, 2, N, C);
    Tensor dx = stage_tensor(&s, F32, 2, N, C), dw = stage_random(&s, F32, 1, C, 1, 0, 0, 0);
    rmsnorm_forward(&s.stream, tensor_none(), y, rstd, x, tensor_none(), w, 1e-5f);
    rmsnorm_backward(&s.stream, dx, dw, dresidual, dy, x, w, rstd);
    assert_close(y, (const double *)record_find(&f, "rmsnorm.y")->data, F32, bound_sum(C));
    assert_close(rstd, (const double *)record_find(&f, "rmsnorm.rstd")->data, F32, bound_sum(C));
    assert_close(dx, (const double *)record_find(&f, "rmsnorm.dx")->data, F32, bound_sum(C));
    assert_close(dw, (const double *)record_find(&f, "rmsnorm.dw")->data, F32, bound_sum(N));
    rmsnorm_forward(&s.stream, sum, y, rstd, x, update, w, 1e-5f);
    assert_close(sum, (const double *)record_find(&f, "rmsnorm.residual_sum")->data, F32, bound_sum(2));
    assert_close(y, (const double *)record_find(&f, "rmsnorm.residual_y")->data, F32, bound_sum(C));
    record_unload(&f);
    stage_destroy(&s);
}

typedef struct { Tensor x, w, y, rstd; double *y64, *rstd64; } Rows;

static Rows rows_create(Stage *s, DType act, int64_t N, int64_t C) {
    Rows r;
    r.x = stage_random(s, act, 2, N, C, 1, 3, 0.5), r.w = stage_random(s, act, 1, C, 1, 2, 1, 1);
    r.y = stage_tensor(s, act, 2, N, C), r.rstd = stage_tensor(s, F32, 1, N, 1);
    r.y64 = stage_doubles(s, N * C), r.rstd64 = stage_doubles(s, N);
    return r;
}

static void compare_forward(DType act, int64_t N, int64_t C) {
    Stage   s = stage_create(1 << 20);
    Rows    r = rows_create(&s, act, N, C);
    double *w64 = stage_widen(&s, r.w);
    ref_rmsnorm_forward(r.y64, r.rstd64, stage_widen(&s, r.x), w64, N, C, EPS);
    rmsnorm_forward(&s.stream, tensor_none(), r.y, r.rstd, r.x, tensor_none(), r.w, 1e-5f);
    assert_close(r.y, r.y64, act, bound_sum(C));
    assert_close(r.rstd, r.rstd64, act, bound_sum(C));

    /* expects the norm of x + update, after this sum was rounded to the type in which it is stored */
    Tensor update = stage_random(&s, act, 2, N, C, 4, 1, 0), sum = stage_tensor(&s, act, 2, N, C),
           y = stage_tensor(&s, act, 2, N, C);
    Tensor alone = stage_tensor(&s, act, 2, N, C);
    rmsnorm_forward(&s.stream, sum, y, r.rstd, r.x, update, r.w, 1e-5f);
    residual_forward(&s.stream, alone, r.x, update);
    assert_same_bits(sum, alone);
    ref_rmsnorm_forward(r.y64, r.rstd64, stage_widen(&s, sum), w64, N, C, EPS);
    assert_close(y, r.y64, act, bound_sum(C));
    assert_close(r.rstd, r.rstd64, act, bound_sum(C));
    /* runs in place: the sum overwrites x */
    rmsnorm_forward(&s.stream, r.x, r.y, r.rstd, r.x, update, r.w, 1e-5f);
    assert_same_bits(r.x, sum);
    assert_same_bits(r.y, y);
    stage_destroy(&s);
}

/* Returns the root mean square of rstd * dy * w, the size of the terms of dx. With few channels dx is a small
 * difference of such terms. */
static double term_size(Rows r, const double *dy, const double *w, int64_t N, int64_t C) {
    double square = 0.0;
    stage_settle();
    for (int64_t i = 0; i < N * C; i++) square += pow((double)tensor_get(r.rstd, i / C) * dy[i] * w[i % C], 2.0);
    return sqrt(square / (double)(N * C));
}

/* Runs backward twice, with and without a residual gradient. The second time dx is the same tensor as the residual
 * gradient. */
static void compare_backward(DType act, int64_t N, int64_t C) {
    Stage  s = stage_create(STAGE_SCRATCH);
    Rows   r = rows_create(&s, act, N, C);
    Tensor dy = stage_random(&s, act, 2, N, C, 5, 1, 0), dresidual = stage_random(&s, act, 2, N, C, 6, 1, 0);
    Tensor dx = stage_tensor(&s, act, 2, N, C), none = tensor_2d(NULL, act, N, C),
           dw = stage_random(&s, F32, 1, C, 1, 7, 1, 0);
    double *x64 = stage_widen(&s, r.x), *w64 = stage_widen(&s, r.w), *dy64 = stage_widen(&s, dy),
           *dx64 = stage_doubles(&s, N * C);
    double *dw64 = stage_widen(&s, dw), *dresidual64 = stage_widen(&s, dresidual);
    rmsnorm_forward(&s.stream, tensor_none(), r.y, r.rstd, r.x, tensor_none(), r.w, 1e-5f);
    ref_rmsnorm_backward(dx64, dw64, NULL, dy64, x64, w64, N, C, EPS);
    rmsnorm_backward(&s.stream, dx, dw, none, dy, r.x, r.w, r.rstd);
    Bound bound = bound_cancelling(C, term_size(r, dy64, w64, N, C));
    assert_close(dx, dx64, act, bound);
    ref_rmsnorm_backward(dx64, dw64, dresidual64, dy64, x64, w64, N, C, EPS);
    Tensor dw_before = stage_copy(&s, dw);
    rmsnorm_backward(&s.stream, dx, dw, dresidual, dy, r.x, r.w, r.rstd);
    rmsnorm_backward(&s.stream, dresidual, dw_before, dresidual, dy, r.x, r.w, r.rstd);
    assert_close(dx, dx64, act, bound);
    assert_close(dw, dw64, act, bound_sum(2 * N));
    assert_same_bits(dresidual, dx);
    assert_same_bits(dw_before, dw);
    stage_destroy(&s);
}

static void test_shapes(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{3, 1}, {1, 2}, {5, 3}, {2, 16}, {3, 17},
                                        {160, 42}, {7, 192}, {33, 255}, {4, 768}, {600, 8},
                                        /* rows longer than what the registers of a block can hold */
                                        {3, 1600}, {2, 4104}, {5, 515},
                                        {16500, 8}}; /* more rows than the blocks of a launch, 16 rows each */
    for (int t = 0; t < stage_act_types(); t++)
        for (int i = 0; i < COUNT(shapes) - stage_is_slow(); i++) {
            compare_forward(ACT_TYPES[t], shapes[i][0], shapes[i][1]);
            compare_backward(ACT_TYPES[t], shapes[i][0], shapes[i][1]);
        }
}

/* Tests rows of zeros, and rows so small that eps is most of the number under the root. */
static void test_small(void **state) {
    (void)state;
    enum { N = 4, C = 40 };
    for (int t = 0; t < stage_act_types(); t++) {
        Stage  s = stage_create(STAGE_SCRATCH);
        DType  act = ACT_TYPES[t];
        Rows   r = rows_create(&s, act, N, C);
        Tensor x = stage_random(&s, act, 2, N, C, 9, 1e-3, 0), dy = stage_random(&s, act, 2, N, C, 5, 1, 0);
        Tensor dx = stage_tensor(&s, act, 2, N, C), none = tensor_2d(NULL, act, N, C),
               dw = stage_random(&s, F32, 1, C, 1, 7, 1, 0);
        for (int64_t i = 0; i < C; i++) tensor_set(x, i, 0.0f);
        double *x64 = stage_widen(&s, x), *w64 = stage_widen(&s, r.w), *dx64 = stage_doubles(&s, N * C),
               *dw64 = stage_widen(&s, dw);
        ref_rmsnorm_forward(r.y64, r.rstd64, x64, w64, N, C, EPS);
        ref_rmsnorm_backward(dx64, dw64, NULL, stage_widen(&s, dy), x64, w64, N, C, EPS);
        rmsnorm_forward(&s.stream, tensor_none(), r.y, r.rstd, x, tensor_none(), r.w, 1e-5f);
        rmsnorm_backward(&s.stream, dx, dw, none, dy, x, r.w, r.rstd);
        assert_close(r.y, r.y64, act, bound_sum(C));
        assert_close(r.rstd, r.rstd64, act, bound_sum(C));
        assert_close(dx, dx64, act, bound_sum(C));
        assert_close(dw, dw64, act, bound_sum(2 * N));
        stage_destroy(&s);
    }
}

/* An element of x + update is NaN or infinite where x is, and finite where x is finite, at any place of the row. C =
 * 77 leaves 13 channels after the last whole vector. */
static void test_undefined(void **state) {
    (void)state;
    enum { C = 77 };
    for (int t = 0; t < stage_act_types(); t++) {
        Stage  s = stage_create(STAGE_SCRATCH);
        Rows   r = rows_create(&s, ACT_TYPES[t], 1, C);
        Tensor update = stage_random(&s, ACT_TYPES[t], 2, 1, C, 4, 1, 0), sum = stage_tensor(&s, ACT_TYPES[t], 2, 1, C);
        for (int64_t i = 0; i < C; i += 5) tensor_set(r.x, i, NAN), tensor_set(r.x, i + 1, i % 2 ? INFINITY : -INFINITY);
        rmsnorm_forward(&s.stream, sum, r.y, r.rstd, r.x, update, r.w, 1e-5f);
        stage_settle();
        for (int64_t i = 0; i < C; i++) {
            float got = tensor_get(sum, i);
            assert_true(i % 5 == 0 ? isnan(got) : i % 5 == 1 ? isinf(got) && (got > 0) == (i / 5 % 2) : isfinite(got));
        }
        stage_destroy(&s);
    }
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_differences), cmocka_unit_test(test_records),
                                     cmocka_unit_test(test_shapes), cmocka_unit_test(test_small), cmocka_unit_test(test_undefined)};
    return cmocka_run_group_tests_name("rmsnorm", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
