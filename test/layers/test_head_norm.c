/* test_head_norm.c - head_norm_forward and head_norm_backward: rmsnorm of heads inside wider rows, compared with the
 * float64 reference of rmsnorm (tested in test_rmsnorm.c) and with recorded float64 results of PyTorch. */
#include "test/ref/test.h"

static const double EPS = 1e-5f; /* eps as a float, as the op gets it */

typedef struct { int64_t N, first, heads, D, wide; } Shape;

/* Copies the heads of each row of a wide tensor to separate rows [N heads, D], in float64. */
static double *heads_of(Stage *s, Tensor t, Shape k) {
    double *rows = stage_doubles(s, k.N * k.heads * k.D);
    int64_t columns = k.heads * k.D;
    stage_settle();
    for (int64_t i = 0; i < k.N * columns; i++)
        rows[i] = (double)tensor_get(t, i / columns * t.dim[1] + k.first + i % columns);
    return rows;
}
static Tensor narrow(Stage *s, Tensor t, Shape k) {
    Tensor cut = stage_tensor(s, t.type, 2, k.N, k.heads * k.D);
    copy_columns(&s->stream, cut, 0, t, k.first, k.heads * k.D);
    return cut;
}

/* Asserts that every column outside of the heads is unchanged, bit for bit. */
static void assert_others_same(Tensor got, Tensor before, Shape k) {
    size_t size = dtype_bytes(got.type), row = (size_t)got.dim[1] * size;
    size_t left = (size_t)k.first * size, right = (size_t)(k.first + k.heads * k.D) * size;
    stage_settle();
    for (int64_t n = 0; n < k.N; n++) {
        const char *a = (const char *)got.data + (size_t)n * row, *b = (const char *)before.data + (size_t)n * row;
        assert_true(memcmp(a, b, left) == 0 && memcmp(a + right, b + right, row - right) == 0);
    }
}

static void test_records(void **state) {
    (void)state;
    Stage      s = stage_create(1 << 20);
    RecordFile f = record_load(NORMS_FILE);
    Tensor     x = stage_record(&s, record_find(&f, "head_norm.x"), F32);
    Tensor     w = stage_record(&s, record_find(&f, "head_norm.w"), F32);
    Tensor     dy = stage_record(&s, record_find(&f, "head_norm.dy"), F32);
    Shape      k = {x.dim[0], 7, 3, w.dim[0], x.dim[1]};
    Tensor     y = stage_copy(&s, x), rstd = stage_tensor(&s, F32, 2, k.N, k.heads);
    Tensor     dw = stage_random(&s, F32, 1, k.D, 1, 0, 0, 0);
    head_norm_forward(&s.stream, y, rstd, x, k.first, k.heads, w, 1e-5f);
    head_norm_backward(&s.stream, dy, dw, dy, x, k.first, k.heads, w, rstd);
    assert_close(narrow(&s, y, k), (const double *)record_find(&f, "head_norm.y")->data, F32, bound_sum(k.D));
    assert_close(narrow(&s, dy, k), (const double *)record_find(&f, "head_norm.dx")->data, F32, bound_sum(k.D));
    assert_close(dw, (const double *)record_find(&f, "head_norm.dw")->data, F32, bound_sum(k.N * k.heads));
    record_unload(&f);
    stage_destroy(&s);
}

/* Normalizes heads from a wide tensor into a narrower one, and in place, with the same bits. */
static void compare_forward(DType act, Shape k) {
    Stage   s = stage_create(1 << 20);
    int64_t rows = k.N * k.heads, end = k.first + k.heads * k.D;
    Tensor  x = stage_random(&s, act, 2, k.N, k.wide, 1, 3, 0.5), w = stage_random(&s, act, 1, k.D, 1, 2, 1, 1);
    Tensor  y = stage_random(&s, act, 2, k.N, end, 3, 1, 0), rstd = stage_tensor(&s, F32, 2, k.N, k.heads);
    Tensor  x_before = stage_copy(&s, x), y_before = stage_copy(&s, y), again = stage_copy(&s, rstd);
    double *y64 = stage_doubles(&s, rows * k.D), *rstd64 = stage_doubles(&s, rows);
    ref_rmsnorm_forward(y64, rstd64, heads_of(&s, x, k), stage_widen(&s, w), rows, k.D, EPS);
    head_norm_forward(&s.stream, y, rstd, x, k.first, k.heads, w, 1e-5f);
    assert_close(narrow(&s, y, k), y64, act, bound_sum(k.D));
    assert_close(rstd, rstd64, act, bound_sum(k.D));
    assert_others_same(y, y_before, k);
    assert_same_bits(x, x_before);
    head_norm_forward(&s.stream, x, again, x, k.first, k.heads, w, 1e-5f);
    assert_others_same(x, x_before, k);
    assert_same_bits(narrow(&s, x, k), narrow(&s, y, k));
    assert_same_bits(again, rstd);
    stage_destroy(&s);
}

/* Returns the root mean square of rstd * dy * w, the size of the terms of dx. */
static double term_size(const double *rstd, const double *dy, const double *w, int64_t rows, int64_t D) {
    double square = 0.0;
    for (int64_t i = 0; i < rows * D; i++) square += pow(rstd[i / D] * dy[i] * w[i % D], 2.0);
    return sqrt(square / (double)(rows * D));
}

/* Computes the gradient twice. First dx is a tensor of another width than dy, then dx overwrites dy. Both must have
 * the same bits. */
static void compare_backward(DType act, Shape k) {
    Stage   s = stage_create(STAGE_SCRATCH);
    int64_t rows = k.N * k.heads, end = k.first + k.heads * k.D;
    Tensor  x = stage_random(&s, act, 2, k.N, k.wide, 1, 3, 0.5), w = stage_random(&s, act, 1, k.D, 1, 2, 1, 1);
    Tensor  dy = stage_random(&s, act, 2, k.N, k.wide, 5, 1, 0), dx = stage_random(&s, act, 2, k.N, end, 6, 1, 0);
    Tensor  y = stage_copy(&s, x), rstd = stage_tensor(&s, F32, 2, k.N, k.heads);
    Tensor  dw = stage_random(&s, F32, 1, k.D, 1, 7, 1, 0);
    Tensor  dx_before = stage_copy(&s, dx), dy_before = stage_copy(&s, dy), dw_before = stage_copy(&s, dw);
    double *dy64 = heads_of(&s, dy, k), *w64 = stage_widen(&s, w), *dx64 = stage_doubles(&s, rows * k.D),
           *dw64 = stage_widen(&s, dw);
    ref_rmsnorm_backward(dx64, dw64, NULL, dy64, heads_of(&s, x, k), w64, rows, k.D, EPS);
    head_norm_forward(&s.stream, y, rstd, x, k.first, k.heads, w, 1e-5f);
    head_norm_backward(&s.stream, dx, dw, dy, x, k.first, k.heads, w, rstd);
    Bound bound = bound_cancelling(k.D, term_size(stage_widen(&s, rstd), dy64, w64, rows, k.D));
    assert_close(narrow(&s, dx, k), dx64, act, bound);
    assert_close(dw, dw64, act, bound_sum(rows));
    assert_others_same(dx, dx_before, k);
    assert_same_bits(dy, dy_before);
    head_norm_backward(&s.stream, dy, dw_before, dy, x, k.first, k.heads, w, rstd);
    assert_others_same(dy, dy_before, k);
    assert_same_bits(narrow(&s, dy, k), narrow(&s, dx, k));
    assert_same_bits(dw_before, dw);
    stage_destroy(&s);
}

static void test_shapes(void **state) {
    (void)state;
    static const Shape shapes[] = {{1, 0, 1, 1, 1},    {3, 5, 2, 3, 12},    {5, 1, 3, 17, 70},   {9, 64, 4, 16, 160},
                                   {4, 8, 3, 128, 400}, {7, 0, 2, 64, 136}, {70, 3, 3, 24, 77}, {2, 3, 2, 515, 1040}};
    for (int t = 0; t < stage_act_types(); t++)
        for (int i = 0; i < COUNT(shapes); i++) {
            compare_forward(ACT_TYPES[t], shapes[i]);
            compare_backward(ACT_TYPES[t], shapes[i]);
        }
}

/* A tensor rank may have no heads of a kind. Then the ops must write nothing. */
static void test_no_heads(void **state) {
    (void)state;
    enum { N = 3, D = 8 };
    Stage  s = stage_create(STAGE_SCRATCH);
    Tensor x = stage_random(&s, F32, 2, N, 10, 1, 1, 0), y = stage_copy(&s, x),
           w = stage_random(&s, F32, 1, D, 1, 2, 1, 0);
    Tensor dw = stage_copy(&s, w), rstd = tensor_2d(NULL, F32, N, 0);
    head_norm_forward(&s.stream, y, rstd, x, 2, 0, w, 1e-5f);
    head_norm_backward(&s.stream, y, dw, y, x, 2, 0, w, rstd);
    assert_same_bits(y, x);
    assert_same_bits(dw, w);
    stage_destroy(&s);
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_records), cmocka_unit_test(test_shapes),
                                     cmocka_unit_test(test_no_heads)};
    return cmocka_run_group_tests_name("head_norm", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
