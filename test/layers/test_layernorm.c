/* test_layernorm.c - layernorm_forward and layernorm_backward, each compared with its float64 reference
 * (test/ref/ops.c). The references are compared with finite differences and with recorded float64 results of
 * PyTorch. */
#include "test/ref/test.h"

static const double EPS = 1e-5f; /* eps as a float, as the op gets it */

typedef struct { int64_t N, C; double *y, *mean, *rstd, *x, *w, *b, *dy; } Case;

/* Layernorm of the stream x + bias. Its gradient with respect to the bias is compared with finite differences. */
typedef struct { Case k; double *bias, *stream; } BiasCase;
static double bias_objective(void *ctx) {
    BiasCase *b = (BiasCase *)ctx;
    for (int64_t i = 0; i < b->k.N * b->k.C; i++) b->stream[i] = b->k.x[i] + b->bias[i % b->k.C];
    ref_layernorm_forward(b->k.y, b->k.mean, b->k.rstd, b->stream, b->k.w, b->k.b, b->k.N, b->k.C, EPS);
    return dot(b->k.y, b->k.dy, b->k.N * b->k.C);
}

static double objective(void *ctx) {
    Case *k = (Case *)ctx;
    ref_layernorm_forward(k->y, k->mean, k->rstd, k->x, k->w, k->b, k->N, k->C, EPS);
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
                 stage_doubles(&s, N),
                 stage_random_doubles(&s, N * C, 1, 3, 1),
                 stage_random_doubles(&s, C, 2, 1, 1),
                 stage_random_doubles(&s, C, 3, 1, 0),
                 stage_random_doubles(&s, N * C, 4, 1, 0)};
    double *dx = stage_doubles(&s, N * C), *dw = stage_doubles(&s, C), *db = stage_doubles(&s, C);
    ref_layernorm_backward(dx, dw, db, NULL, k.dy, k.x, k.w, N, C, EPS);
    assert_true(difference_proves(objective, &k, k.x, dx, N * C));
    assert_true(difference_proves(objective, &k, k.w, dw, C));
    assert_true(difference_proves(objective, &k, k.b, db, C));
    BiasCase with = {k, stage_doubles(&s, C), stage_doubles(&s, N * C)};
    double  *dbias = stage_doubles(&s, C);
    ref_column_sums(dbias, dx, N, C);
    assert_true(difference_proves(bias_objective, &with, with.bias, dbias, C));
    stage_destroy(&s);
}

static void test_records(void **state) {
    (void)state;
    Stage      s = stage_create(1 << 20);
    RecordFile f = record_load(OPS_FILE);
    Tensor x = stage_record(&s, record_find(&f, "layernorm.x"), F32), w = stage_record(&s, record_find(&f, "layernorm.w"), F32);
    Tensor b = stage_record(&s, record_find(&f, "layernorm.b"), F32), dy = stage_record(&s, record_find(&f, "layernorm.dy"), F32);
    Tensor dresidual = stage_record(&s, record_find(&f, "layernorm.dresidual"), F32);
    Tensor update = stage_record(&s, record_find(&f, "layernorm.update"), F32);
    int64_t N = x.dim[0], C = x.dim[1];
    double *y64 = stage_doubles(&s, N * C), *mean64 = stage_doubles(&s, N), *rstd64 = stage_doubles(&s, N);
    double *dx64 = stage_doubles(&s, N * C), *dw64 = stage_doubles(&s, C), *db64 = stage_doubles(&s, C);
    ref_layernorm_forward(y64, mean64, rstd64, stage_widen(&s, x), stage_widen(&s, w), stage_widen(&s, b), N, C, 1e-5);
    ref_layernorm_backward(dx64, dw64, db64, stage_widen(&s, dresidual), stage_widen(&s, dy), stage_widen(&s, x),
                           stage_widen(&s, w), N, C, 1e-5);
    assert_same_float64(y64, record_find(&f, "layernorm.y"));
    assert_same_float64(mean64, record_find(&f, "layernorm.mean"));
    assert_same_float64(rstd64, record_find(&f, "layernorm.rstd"));
    assert_same_float64(dx64, record_find(&f, "layernorm.dx"));
    assert_same_float64(dw64, record_find(&f, "layernorm.dw"));
    assert_same_float64(db64, record_find(&f, "layernorm.db"));

    Tensor y = stage_tensor(&s, F32, 2, N, C), mean = stage_tensor(&s, F32, 1, N, 1), rstd = stage_tensor(&s, F32, 1, N, 1);
    Tensor dx = stage_tensor(&s, F32, 2, N, C), dw = stage_random(&s, F32, 1, C, 1, 0, 0, 0), db = stage_copy(&s, dw);
    Tensor sum = stage_tensor(&s, F32, 2, N, C);
    layernorm_forward(&s.stream, tensor_none(), y, mean, rstd, x, tensor_none(), w, b, 1e-5f);
    layernorm_backward(&s.stream, dx, tensor_none(), dw, db, dresidual, dy, x, w, mean, rstd);
    assert_close(y, (const double *)record_find(&f, "layernorm.y")->data, F32, bound_sum(C));
    assert_close(mean, (const double *)record_find(&f, "layernorm.mean")->data, F32, bound_sum(C));
    assert_close(rstd, (const double *)record_find(&f, "layernorm.rstd")->data, F32, bound_sum(C));
    assert_close(dx, (const double *)record_find(&f, "layernorm.dx")->data, F32, bound_sum(C));
    assert_close(dw, (const double *)record_find(&f, "layernorm.dw")->data, F32, bound_sum(N));
    assert_close(db, (const double *)record_find(&f, "layernorm.db")->data, F32, bound_sum(N));
    layernorm_forward(&s.stream, sum, y, mean, rstd, x, update, w, b, 1e-5f);
    assert_close(sum, (const double *)record_find(&f, "layernorm.residual_sum")->data, F32, bound_sum(2));
    assert_close(y, (const double *)record_find(&f, "layernorm.residual_y")->data, F32, bound_sum(C));
    record_unload(&f);
    stage_destroy(&s);
}

typedef struct { Tensor x, w, b, y, mean, rstd; double *y64, *mean64, *rstd64; } Rows;

static Rows rows_create(Stage *s, DType act, int64_t N, int64_t C) {
    Rows r;
    r.x = stage_random(s, act, 2, N, C, 1, 3, 0.5), r.w = stage_random(s, act, 1, C, 1, 2, 1, 1),
    r.b = stage_random(s, act, 1, C, 1, 3, 1, 0);
    r.y = stage_tensor(s, act, 2, N, C), r.mean = stage_tensor(s, F32, 1, N, 1), r.rstd = stage_tensor(s, F32, 1, N, 1);
    r.y64 = stage_doubles(s, N * C), r.mean64 = stage_doubles(s, N), r.rstd64 = stage_doubles(s, N);
    return r;
}

static void compare_forward(DType act, int64_t N, int64_t C) {
    Stage s = stage_create(1 << 20);
    Rows  r = rows_create(&s, act, N, C);
    double *w64 = stage_widen(&s, r.w), *b64 = stage_widen(&s, r.b);
    ref_layernorm_forward(r.y64, r.mean64, r.rstd64, stage_widen(&s, r.x), w64, b64, N, C, EPS);
    layernorm_forward(&s.stream, tensor_none(), r.y, r.mean, r.rstd, r.x, tensor_none(), r.w, r.b, 1e-5f);
    assert_close(r.y, r.y64, act, bound_sum(C));
    assert_close(r.mean, r.mean64, act, bound_sum(C));
    assert_close(r.rstd, r.rstd64, act, bound_sum(C));

    /* expects the norm of x + update, after this sum was rounded to the type in which it is stored */
    Tensor update = stage_random(&s, act, 2, N, C, 4, 1, 0), sum = stage_tensor(&s, act, 2, N, C),
           y = stage_tensor(&s, act, 2, N, C);
    double *sum64 = stage_doubles(&s, N * C);
    stage_settle();
    for (int64_t i = 0; i < N * C; i++) sum64[i] = round_to(act, (double)tensor_get(r.x, i) + (double)tensor_get(update, i));
    ref_layernorm_forward(r.y64, r.mean64, r.rstd64, sum64, w64, b64, N, C, EPS);
    layernorm_forward(&s.stream, sum, y, r.mean, r.rstd, r.x, update, r.w, r.b, 1e-5f);
    stage_settle();
    for (int64_t i = 0; i < N * C; i++) assert_true((double)tensor_get(sum, i) == sum64[i]);
    assert_close(y, r.y64, act, bound_sum(C));
    assert_close(r.mean, r.mean64, act, bound_sum(C));
    assert_close(r.rstd, r.rstd64, act, bound_sum(C));
    Tensor alone = stage_tensor(&s, act, 2, N, C);
    residual_forward(&s.stream, alone, r.x, update);
    assert_same_bits(alone, sum);
    /* runs in place: the sum overwrites x */
    layernorm_forward(&s.stream, r.x, r.y, r.mean, r.rstd, r.x, update, r.w, r.b, 1e-5f);
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

/* Adds to sums[c] the elements of column c of x, rounded to its type as stored. */
static void add_columns(double *sums, Tensor x) {
    stage_settle();
    for (int64_t i = 0; i < tensor_elems(x); i++) sums[i % x.dim[1]] += (double)tensor_get(x, i);
}

/* Runs backward twice, with and without a residual gradient. The second time dx is the same tensor as the residual
 * gradient, and there is no bias. */
static void compare_backward(DType act, int64_t N, int64_t C) {
    Stage  s = stage_create(STAGE_SCRATCH);
    Rows   r = rows_create(&s, act, N, C);
    Tensor dy = stage_random(&s, act, 2, N, C, 5, 1, 0), dresidual = stage_random(&s, act, 2, N, C, 6, 1, 0);
    Tensor dx = stage_tensor(&s, act, 2, N, C), none = tensor_2d(NULL, act, N, C);
    Tensor dw = stage_random(&s, F32, 1, C, 1, 7, 1, 0), db = stage_random(&s, F32, 1, C, 1, 8, 1, 0);
    double *x64 = stage_widen(&s, r.x), *w64 = stage_widen(&s, r.w), *dy64 = stage_widen(&s, dy), *dx64 = stage_doubles(&s, N * C);
    double *dw64 = stage_widen(&s, dw), *db64 = stage_widen(&s, db), *dresidual64 = stage_widen(&s, dresidual);
    Tensor  dbias = stage_random(&s, F32, 1, C, 1, 10, 1, 0);
    double *dbias64 = stage_widen(&s, dbias);
    layernorm_forward(&s.stream, tensor_none(), r.y, r.mean, r.rstd, r.x, tensor_none(), r.w, r.b, 1e-5f);
    ref_layernorm_backward(dx64, dw64, db64, NULL, dy64, x64, w64, N, C, EPS);
    layernorm_backward(&s.stream, dx, dbias, dw, db, none, dy, r.x, r.w, r.mean, r.rstd);
    add_columns(dbias64, dx);
    assert_close(dx, dx64, act, bound_cancelling(C, term_size(r, dy64, w64, N, C)));
    ref_layernorm_backward(dx64, dw64, db64, dresidual64, dy64, x64, w64, N, C, EPS);
    Tensor dw_before = stage_copy(&s, dw), db_before = stage_copy(&s, db);
    layernorm_backward(&s.stream, dx, dbias, dw, db, dresidual, dy, r.x, r.w, r.mean, r.rstd);
    add_columns(dbias64, dx);
    layernorm_backward(&s.stream, dresidual, tensor_none(), dw_before, db_before, dresidual, dy, r.x, r.w, r.mean, r.rstd);
    assert_close(dx, dx64, act, bound_cancelling(C, term_size(r, dy64, w64, N, C)));
    assert_close(dw, dw64, act, bound_sum(2 * N));
    assert_close(db, db64, act, bound_sum(2 * N));
    assert_close(dbias, dbias64, F32, bound_sum(2 * N));
    assert_same_bits(dresidual, dx);
    assert_same_bits(dw_before, dw);
    assert_same_bits(db_before, db);
    stage_destroy(&s);
}

static void test_shapes(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{3, 1}, {1, 2}, {5, 3}, {2, 16}, {3, 17},
                                        {160, 42}, {7, 192}, {33, 255}, {4, 768}, {600, 8},
                                        /* rows longer than what the registers of a block can hold */
                                        {3, 1600}, {2, 4104}, {1, 12288}, {5, 515},
                                        {16500, 8}}; /* more rows than the blocks of a launch, 16 rows each */
    for (int t = 0; t < stage_act_types(); t++)
        for (int i = 0; i < COUNT(shapes) - stage_is_slow(); i++) {
            compare_forward(ACT_TYPES[t], shapes[i][0], shapes[i][1]);
            compare_backward(ACT_TYPES[t], shapes[i][0], shapes[i][1]);
        }
}

/* Tests a row far from 0. A mean of squares less the square of the mean would lose all digits (1000^2 2^-24 = 0.06,
 * with a variance of 1/3). What remains is the rounding of the mean itself, 1000 2^-24 sqrt(C/16) in each lane. */
static void test_offset(void **state) {
    (void)state;
    enum { N = 3, C = 160 };
    Stage s = stage_create(1 << 20);
    Rows  r = rows_create(&s, F32, N, C);
    Tensor x = stage_random(&s, F32, 2, N, C, 9, 1, 1000);
    ref_layernorm_forward(r.y64, r.mean64, r.rstd64, stage_widen(&s, x), stage_widen(&s, r.w), stage_widen(&s, r.b), N, C, EPS);
    layernorm_forward(&s.stream, tensor_none(), r.y, r.mean, r.rstd, x, tensor_none(), r.w, r.b, 1e-5f);
    double allowed = 1000.0 * 0x1p-24 * sqrt(C / 16.0) * sqrt(3.0) * 4.0;
    stage_settle();
    for (int64_t i = 0; i < N * C; i++) assert_true(fabs((double)tensor_get(r.y, i) - r.y64[i]) <= allowed);
    stage_destroy(&s);
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_differences), cmocka_unit_test(test_records),
                                     cmocka_unit_test(test_shapes), cmocka_unit_test(test_offset)};
    return cmocka_run_group_tests_name("layernorm", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
