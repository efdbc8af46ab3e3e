/* test_reference.c - the instruments of the tests: finite differences refuse wrong gradients, comparisons notice single
 * faults, and files of recorded tensors are read as they were written. */
#include "test/ref/test.h"

#include <unistd.h>

enum { N = 3, C = 7 };
typedef struct { double y[N * C], mean[N], rstd[N], x[N * C], w[C], b[C], dy[N * C]; } Case;

static double objective(void *ctx) {
    Case *k = (Case *)ctx;
    ref_layernorm_forward(k->y, k->mean, k->rstd, k->x, k->w, k->b, N, C, 1e-5);
    return dot(k->y, k->dy, N * C);
}

/* Finite differences refuse common mistakes in layernorm's gradient: one of its two means is missing, rstd is missing,
 * or it is the gradient of another row. */
static void test_differences_refuse(void **state) {
    (void)state;
    Case   k;
    double dx[N * C], dw[C] = {0}, db[C] = {0}, wrong[N * C];
    for (int i = 0; i < N * C; i++) k.x[i] = 3.0 * random_value(1, i), k.dy[i] = random_value(2, i);
    for (int c = 0; c < C; c++) k.w[c] = random_value(3, c), k.b[c] = random_value(4, c);
    ref_layernorm_backward(dx, dw, db, NULL, k.dy, k.x, k.w, N, C, 1e-5);
    assert_true(difference_error(objective, &k, k.x, dx, N * C) <= DIFFERENCE_ALLOWED);
    for (int fault = 0; fault < 4; fault++) {
        objective(&k);
        for (int i = 0; i < N * C; i++) {
            int    n = i / C, c = i % C;
            double mean = 0.0, mean_z = 0.0, z = (k.x[i] - k.mean[n]) * k.rstd[n];
            for (int j = 0; j < C; j++) {
                mean += k.dy[n * C + j] * k.w[j] / C;
                mean_z += k.dy[n * C + j] * k.w[j] * (k.x[n * C + j] - k.mean[n]) * k.rstd[n] / C;
            }
            double d = k.dy[i] * k.w[c];
            wrong[i] = fault == 0 ? k.rstd[n] * (d - z * mean_z) : fault == 1 ? k.rstd[n] * (d - mean)
                     : fault == 2 ? d - mean - z * mean_z : dx[(i + C) % (N * C)];
        }
        assert_true(difference_error(objective, &k, k.x, wrong, N * C) > 1e6 * DIFFERENCE_ALLOWED);
        assert_false(difference_proves(objective, &k, k.x, wrong, N * C));
    }
    wrong[0] = NAN;
    assert_true(!(difference_error(objective, &k, k.x, wrong, N * C) <= DIFFERENCE_ALLOWED));
}

/* A comparison notices a single element among a thousand right ones that is wrong by some spacings, or not set. */
static void test_comparison_sees(void **state) {
    (void)state;
    for (int t = 0; t < stage_act_types(); t++) {
        Stage   s = stage_create(0);
        Tensor  got = stage_random(&s, ACT_TYPES[t], 1, 1000, 1, 1, 1, 0);
        double *want = stage_widen(&s, got);
        assert_true(compare_ratio("equal", got, want, got.type, bound_sum(4)) == 0.0);
        tensor_set(got, 777, (float)(want[777] * (1.0 + 3.0 * unit_roundoff(got.type)) + (got.type == F32 ? 1e-5 : 0.0)));
        assert_true(compare_ratio("off", got, want, got.type, bound_sum(4)) > 1.0);
        tensor_set(got, 777, NAN);
        assert_true(compare_ratio("unset", got, want, got.type, bound_sum(4)) == INFINITY);
        stage_destroy(&s);
    }
}

static void test_records(void **state) {
    (void)state;
    char    path[] = "/tmp/records_XXXXXX";
    int64_t shape[] = {3, 5}, one[] = {1};
    float   f32[15];
    double  f64 = -1e-300;
    int32_t i32[3] = {-7, 0, 2147483647};
    for (int i = 0; i < 15; i++) f32[i] = (float)random_value(9, i);
    FILE *out = fdopen(mkstemp(path), "wb");
    record_begin(out);
    record_append(out, "an f32", RECORD_F32, 2, shape, f32);
    record_append(out, "an i32", RECORD_I32, 1, shape, i32);
    record_append(out, "an f64", RECORD_F64, 1, one, &f64);
    fclose(out);
    RecordFile file = record_load(path);
    unlink(path);
    assert_int_equal(file.records, 3);
    const Record *r = record_find(&file, "an f32");
    assert_true(r->head.dims == 2 && r->head.dim[0] == 3 && r->head.dim[1] == 5 && r->elems == 15);
    for (int i = 0; i < 15; i++) assert_true(record_value(r, i) == (double)f32[i]);
    for (int i = 0; i < 3; i++) assert_true(record_value(record_find(&file, "an i32"), i) == (double)i32[i]);
    assert_true(record_value(record_find(&file, "an f64"), 0) == f64);
    record_unload(&file);
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_differences_refuse), cmocka_unit_test(test_comparison_sees),
                                     cmocka_unit_test(test_records)};
    return cmocka_run_group_tests_name("reference", all, NULL, NULL);
}

int main(void) { return tests() != 0; }
