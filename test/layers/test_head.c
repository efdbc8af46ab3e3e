/* test_head.c - linear_forward and linear_backward of the head, a transposed matrix. The products include the padding
 * of the vocabulary, which gives zeros and adds zero to old values. */
#include "test/ref/test.h"

typedef struct { int64_t n, C, V; double *logits, *x, *wte, *dlogits; } Case;

static double objective(void *ctx) {
    Case *k = (Case *)ctx;
    ref_head_forward(k->logits, k->x, k->wte, k->n, k->C, k->V, k->V);
    return dot(k->logits, k->dlogits, k->n * k->V);
}

static void test_differences(void **state) {
    (void)state;
    enum { N = 3, C = 4, V = 5 };
    Stage   s = stage_create(0);
    Case    k = {N,
                 C,
                 V,
                 stage_doubles(&s, N * V),
                 stage_random_doubles(&s, N * C, 1, 1, 0),
                 stage_random_doubles(&s, V * C, 2, 1, 0),
                 stage_random_doubles(&s, N * V, 3, 1, 0)};
    double *dx = stage_doubles(&s, N * C), *dwte = stage_doubles(&s, V * C);
    ref_head_backward(dx, dwte, k.dlogits, k.x, k.wte, N, C, V, V);
    assert_true(difference_proves(objective, &k, k.x, dx, N * C));
    assert_true(difference_proves(objective, &k, k.wte, dwte, V * C));
    stage_destroy(&s);
}

/* Asserts the logits. Columns from V on are products with the padding rows of wte, so they are zero. */
static void assert_logits(Tensor logits, const double *want, DType act, int64_t C, int64_t V, Stage *s) {
    int64_t n = logits.dim[0], stride = logits.dim[1];
    Tensor  inner = stage_tensor(s, act, 2, n, V);
    for (int64_t i = 0; i < n; i++)
        for (int64_t v = 0; v < stride; v++) {
            if (v < V) tensor_set(inner, i * V + v, tensor_get(logits, i * stride + v));
            else assert_true(tensor_get(logits, i * stride + v) == 0.0f);
        }
    assert_close(inner, want, act, bound_sum(C));
}

static void fill_columns(Tensor t, int64_t from, float value) {
    for (int64_t i = 0; i < t.dim[0]; i++)
        for (int64_t v = from; v < t.dim[1]; v++) tensor_set(t, i * t.dim[1] + v, value);
}

static void zero_rows(Tensor t, int64_t from) {
    for (int64_t i = from * t.dim[1]; i < t.dim[0] * t.dim[1]; i++) tensor_set(t, i, 0.0f);
}

static void test_records(void **state) {
    (void)state;
    RecordFile f = record_load(OPS_FILE);
    const Record *x_record = record_find(&f, "head.x"), *wte_record = record_find(&f, "head.wte");
    Stage  s = stage_create(STAGE_SCRATCH);
    Tensor x = stage_record(&s, x_record, F32), wte = stage_record(&s, wte_record, F32);
    Tensor dlogits = stage_record(&s, record_find(&f, "head.dlogits"), F32);
    const Record *logits_record = record_find(&f, "head.logits");
    int64_t n = x.dim[0], C = x.dim[1], V = logits_record->head.dim[1], stride = wte.dim[0];
    /* PyTorch's model does not use the padding of the vocabulary, so what is recorded there is set to zero */
    zero_rows(wte, V), fill_columns(dlogits, V, 0.0f);
    double *logits64 = stage_doubles(&s, n * V), *dx64 = stage_doubles(&s, n * C), *dwte64 = stage_doubles(&s, stride * C);
    ref_head_forward(logits64, stage_widen(&s, x), stage_widen(&s, wte), n, C, V, V);
    ref_head_backward(dx64, dwte64, stage_widen(&s, dlogits), stage_widen(&s, x), stage_widen(&s, wte), n, C, V, stride);
    assert_same_float64(logits64, logits_record);
    assert_same_float64(dx64, record_find(&f, "head.dx"));
    assert_same_float64(dwte64, record_find(&f, "head.dwte"));

    Tensor logits = stage_tensor(&s, F32, 2, n, stride), dx = stage_tensor(&s, F32, 2, n, C),
           dwte = stage_random(&s, F32, 2, stride, C, 0, 0, 0);
    linear_forward(&s.stream, logits, x, wte, tensor_none(), TRANSPOSED);
    linear_backward(&s.stream, dx, dwte, tensor_none(), dlogits, x, wte, TRANSPOSED);
    assert_logits(logits, (const double *)logits_record->data, F32, C, V, &s);
    assert_close(dx, (const double *)record_find(&f, "head.dx")->data, F32, bound_sum(V));
    assert_close(dwte, (const double *)record_find(&f, "head.dwte")->data, F32, bound_sum(n));
    record_unload(&f);
    stage_destroy(&s);
}

/* Compares both ops with the reference. The gradient dwte begins with values, or with NaN if is_fresh, also in its
 * padding rows. */
static void compare(DType act, int64_t n, int64_t C, int64_t V, int64_t stride, int is_fresh) {
    Stage  s = stage_create(STAGE_SCRATCH);
    Tensor x = stage_random(&s, act, 2, n, C, 1, 1, 0), wte = stage_random(&s, act, 2, stride, C, 2, 1, 0);
    Tensor logits = stage_tensor(&s, act, 2, n, stride), dlogits = stage_random(&s, act, 2, n, stride, 3, 1, 0);
    Tensor dx = stage_tensor(&s, act, 2, n, C), dwte = is_fresh ? stage_fresh(&s, stride, C) : stage_random(&s, F32, 2, stride, C, 4, 1, 0);
    /* the callers guarantee zeros in the padding of wte and dlogits */
    zero_rows(wte, V), fill_columns(dlogits, V, 0.0f);
    if (!is_fresh) zero_rows(dwte, V);
    double *logits64 = stage_doubles(&s, n * V), *dx64 = stage_doubles(&s, n * C);
    double *dwte64 = is_fresh ? stage_doubles(&s, stride * C) : stage_widen(&s, dwte);
    double *x64 = stage_widen(&s, x), *wte64 = stage_widen(&s, wte), *dlogits64 = stage_widen(&s, dlogits);
    ref_head_forward(logits64, x64, wte64, n, C, V, V);
    for (int pass = 0; pass < 2; pass++) ref_head_backward(dx64, dwte64, dlogits64, x64, wte64, n, C, V, stride);
    linear_forward(&s.stream, logits, x, wte, tensor_none(), TRANSPOSED);
    for (int pass = 0; pass < 2; pass++, dwte.is_fresh = 0)
        linear_backward(&s.stream, dx, dwte, tensor_none(), dlogits, x, wte, TRANSPOSED);
    assert_logits(logits, logits64, act, C, V, &s);
    assert_close(dx, dx64, act, bound_sum(V));
    assert_close(dwte, dwte64, act, bound_sum(2 * n));
    for (int64_t i = V * C; i < stride * C; i++) assert_true(tensor_get(dwte, i) == 0.0f);
    stage_destroy(&s);
}

/* Calls the ops in the model's order. NaN in the padding of the logits before the classifier must reach no loss and
 * no gradient. */
static void test_padding(void **state) {
    (void)state;
    enum { N = 6, C = 10, V = 37, PADDED = 128 };
    for (int t = 0; t < stage_act_types(); t++) {
        DType  act = ACT_TYPES[t];
        Stage  s = stage_create(STAGE_SCRATCH);
        Tensor x = stage_random(&s, act, 2, N, C, 1, 1, 0), wte = stage_random(&s, act, 2, PADDED, C, 2, 1, 0);
        Tensor logits = stage_tensor(&s, act, 2, N, PADDED), targets = stage_tokens(&s, 1, N, 1, V, 5),
               loss = stage_tensor(&s, F32, 1, N, 1);
        Tensor dx = stage_tensor(&s, act, 2, N, C), dwte = stage_random(&s, F32, 2, PADDED, C, 4, 1, 0);
        zero_rows(wte, V), zero_rows(dwte, V);
        linear_forward(&s.stream, logits, x, wte, tensor_none(), TRANSPOSED);
        Tensor clean = stage_copy(&s, logits), clean_loss = stage_tensor(&s, F32, 1, N, 1);
        fill_columns(logits, V, NAN);
        classifier_loss(&s.stream, loss, logits, targets, V, PLAIN_LOSS, 1.0f);
        classifier_loss(&s.stream, clean_loss, clean, targets, V, PLAIN_LOSS, 1.0f);
        assert_memory_equal(loss.data, clean_loss.data, tensor_bytes(loss));
        assert_memory_equal(logits.data, clean.data, tensor_bytes(logits));
        linear_backward(&s.stream, dx, dwte, tensor_none(), logits, x, wte, TRANSPOSED);
        for (int64_t i = 0; i < N * C; i++) assert_true(isfinite(tensor_get(dx, i)));
        for (int64_t i = 0; i < PADDED * C; i++)
            assert_true(i < V * C ? isfinite(tensor_get(dwte, i)) : tensor_get(dwte, i) == 0.0f);
        stage_destroy(&s);
    }
}

static void test_shapes(void **state) {
    (void)state;
    static const int64_t shapes[][4] = {{1, 1, 1, 1}, {2, 3, 5, 8}, {7, 17, 31, 31}, {5, 42, 389, 512}, {80, 42, 389, 400},
                                        {33, 64, 256, 256}, {1, 65, 1025, 1152}};
    for (int t = 0; t < stage_act_types(); t++)
        for (int i = 0; i < COUNT(shapes); i++)
            for (int is_fresh = 0; is_fresh < 2; is_fresh++)
                compare(ACT_TYPES[t], shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3], is_fresh);
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_differences), cmocka_unit_test(test_records),
                                     cmocka_unit_test(test_shapes), cmocka_unit_test(test_padding)};
    return cmocka_run_group_tests_name("head", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
