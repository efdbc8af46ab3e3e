/* test_classifier.c - classifier_loss, with gradients and without. */
#include "test/ref/test.h"

typedef struct { int64_t n, V; double *loss, *logits; int32_t *targets; double softcap, z; } Case;

static const LossTerms TERMS[] = {{0.0f, 0.0f}, {7.0f, 0.0f}, {0.0f, 0.01f}, {30.0f, 0.01f}};

static double objective(void *ctx) {
    Case *k = (Case *)ctx;
    ref_classifier_forward(k->loss, k->logits, k->targets, k->n, k->V, k->V, k->softcap);
    double sum = 0.0;
    for (int64_t i = 0; i < k->n; i++) {
        double x = k->logits[i * k->V + k->targets[i]], y = k->softcap == 0.0 ? x : k->softcap * tanh(x / k->softcap), lse = k->loss[i] + y;
        sum += k->loss[i] + k->z * lse * lse;
    }
    return 0.25 * sum;
}

static void test_differences(void **state) {
    (void)state;
    enum { N = 4, V = 9 };
    Stage   s = stage_create(0);
    Tensor  targets = stage_tokens(&s, 1, N, 1, 1, V);
    double *dlogits = stage_doubles(&s, N * V);
    for (int i = 0; i < COUNT(TERMS); i++) {
        Case k = {N, V, stage_doubles(&s, N), stage_random_doubles(&s, N * V, 2, 3, 0), (int32_t *)targets.data, (double)TERMS[i].softcap,
                  (double)TERMS[i].z};
        ref_classifier_backward(dlogits, k.logits, k.targets, N, V, V, k.softcap, k.z, 0.25);
        assert_true(difference_proves(objective, &k, k.logits, dlogits, N * V));
    }
    stage_destroy(&s);
}

/* Returns the bound of a gradient. exp(x - max) has an error of |x - max| roundings from rounding x - max, and 2 more.
 * All elements share the error of the sum. */
static Bound gradient_bound(double range) { return bound_sum((int64_t)(range * range) + 4); }

static void test_records(void **state) {
    (void)state;
    Stage      s = stage_create(0);
    RecordFile f = record_load(OPS_FILE);
    Tensor     logits = stage_record(&s, record_find(&f, "classifier.logits"), F32);
    Tensor     targets = stage_record(&s, record_find(&f, "classifier.targets"), I32),
           loss = stage_tensor(&s, F32, 1, logits.dim[0], 1);
    int64_t    n = logits.dim[0], V = logits.dim[1];
    double    *loss64 = stage_doubles(&s, n), *dlogits64 = stage_doubles(&s, n * V);
    ref_classifier_forward(loss64, stage_widen(&s, logits), (const int32_t *)targets.data, n, V, V, 0.0);
    ref_classifier_backward(dlogits64, stage_widen(&s, logits), (const int32_t *)targets.data, n, V, V, 0.0, 0.0, 1.0);
    assert_same_float64(loss64, record_find(&f, "classifier.loss"));
    assert_same_float64(dlogits64, record_find(&f, "classifier.dlogits"));
    classifier_loss(&s.stream, loss, logits, targets, V, PLAIN_LOSS, 1.0f);
    assert_close(loss, (const double *)record_find(&f, "classifier.loss")->data, F32, bound_sum(1));
    assert_close(logits, (const double *)record_find(&f, "classifier.dlogits")->data, F32, gradient_bound(20.0));
    record_unload(&f);
    stage_destroy(&s);
}

/* Compares the loss with a soft cap and a z-loss with PyTorch's float64. */
static void test_terms_records(void **state) {
    (void)state;
    Stage      s = stage_create(0);
    RecordFile f = record_load("test/ref/data/loss.rec");
    Tensor     logits = stage_record(&s, record_find(&f, "loss.logits"), F32),
               targets = stage_record(&s, record_find(&f, "loss.targets"), I32);
    int64_t    n = logits.dim[0], V = logits.dim[1];
    Tensor     loss = stage_tensor(&s, F32, 1, n, 1);
    double    *loss64 = stage_doubles(&s, n), *dlogits64 = stage_doubles(&s, n * V),
               softcap = record_value(record_find(&f, "loss.terms"), 0),
              z = record_value(record_find(&f, "loss.terms"), 1);
    ref_classifier_forward(loss64, stage_widen(&s, logits), (const int32_t *)targets.data, n, V, V, softcap);
    ref_classifier_backward(dlogits64, stage_widen(&s, logits), (const int32_t *)targets.data, n, V, V, softcap, z, 1.0);
    assert_same_float64(loss64, record_find(&f, "loss.loss"));
    assert_same_float64(dlogits64, record_find(&f, "loss.dlogits"));
    classifier_loss(&s.stream, loss, logits, targets, V, (LossTerms){(float)softcap, (float)z}, 1.0f);
    assert_close(loss, (const double *)record_find(&f, "loss.loss")->data, F32, bound_sum(1));
    assert_close(logits, (const double *)record_find(&f, "loss.dlogits")->data, F32, gradient_bound(20.0));
    record_unload(&f);
    stage_destroy(&s);
}

static void compare(DType act, int64_t n, int64_t V, int64_t stride, double spread, LossTerms terms) {
    Stage  s = stage_create(0);
    Tensor logits = stage_random(&s, act, 2, n, stride, 3, spread, 1), targets = stage_tokens(&s, 1, n, 1, 4, (int32_t)V);
    Tensor loss = stage_tensor(&s, F32, 1, n, 1), again = stage_tensor(&s, F32, 1, n, 1);
    for (int64_t i = 0; i < n; i++)
        /* the padding is NaN, which must have no effect */
        for (int64_t v = V; v < stride; v++) tensor_set(logits, i * stride + v, NAN);
    double *loss64 = stage_doubles(&s, n), *dlogits64 = stage_doubles(&s, n * stride), *logits64 = stage_widen(&s, logits);
    const int32_t *target = (const int32_t *)targets.data;
    ref_classifier_forward(loss64, logits64, target, n, V, stride, (double)terms.softcap);
    ref_classifier_backward(dlogits64, logits64, target, n, V, stride, (double)terms.softcap, (double)terms.z, 0.125);
    classifier_loss(&s.stream, loss, logits, targets, V, terms, 0.0f);
    classifier_loss(&s.stream, again, logits, targets, V, terms, 0.125f);
    assert_close(loss, loss64, F32, bound_sum(1));
    assert_same_bits(again, loss);
    for (int64_t i = 0; i < n; i++)
        for (int64_t v = V; v < stride; v++) assert_true(tensor_get(logits, i * stride + v) == 0.0f);
    assert_close(logits, dlogits64, act, gradient_bound(2.0 * spread));
    stage_destroy(&s);
}

/* Compares a whole row with its columns divided among several ranks, whose exchanges are done here. The padding is at
 * the end, so the last rank may have only padding. */
static void compare_parts(DType act, int ranks, int64_t n, int64_t V, int64_t columns, double spread, LossTerms terms) {
    int64_t stride = ranks * columns;
    Stage   s = stage_create(0);
    Tensor  logits = stage_random(&s, act, 2, n, stride, 3, spread, 1),
           targets = stage_tokens(&s, 1, n, 1, 4, (int32_t)V), own[4], own_targets[4];
    Tensor most = stage_random(&s, F32, 1, n, 1, 0, 0, -INFINITY), sums = stage_random(&s, F32, 2, 2, n, 0, 0, 0),
           part = stage_tensor(&s, F32, 1, n, 1);
    Tensor part_sums = stage_tensor(&s, F32, 2, 2, n), loss = stage_tensor(&s, F32, 1, n, 1),
           plain = stage_tensor(&s, F32, 1, n, 1);
    double *loss64 = stage_doubles(&s, n), *dlogits64 = stage_doubles(&s, n * stride), *logits64 = stage_widen(&s, logits);
    const int32_t *target = (const int32_t *)targets.data;
    ref_classifier_forward(loss64, logits64, target, n, V, stride, (double)terms.softcap);
    ref_classifier_backward(dlogits64, logits64, target, n, V, stride, (double)terms.softcap, (double)terms.z, 0.125);
    for (int64_t i = 0; i < n; i++) tensor_set(most, i, -INFINITY);
    for (int r = 0; r < ranks; r++) {
        int64_t mine = V - r * columns < 0 ? 0 : V - r * columns < columns ? V - r * columns : columns;
        own[r] = stage_tensor(&s, act, 2, n, columns), own_targets[r] = stage_tokens(&s, 1, n, 1, 4, (int32_t)V);
        for (int64_t i = 0; i < n * columns; i++)
            tensor_set(own[r], i,
                       i % columns < mine ? tensor_get(logits, i / columns * stride + r * columns + i % columns) : NAN);
        tokens_own(&s.stream, own_targets[r], targets, r * columns, columns);
        classifier_part_most(&s.stream, part, own[r], mine, terms);
        stage_settle();
        for (int64_t i = 0; i < n; i++)
            if (tensor_get(part, i) > tensor_get(most, i)) tensor_set(most, i, tensor_get(part, i));
    }
    for (int r = 0; r < ranks; r++) {
        int64_t mine = V - r * columns < 0 ? 0 : V - r * columns < columns ? V - r * columns : columns;
        classifier_part_sums(&s.stream, part_sums, own[r], own_targets[r], mine, most, terms);
        stage_settle();
        for (int64_t i = 0; i < 2 * n; i++) tensor_set(sums, i, tensor_get(sums, i) + tensor_get(part_sums, i));
    }
    for (int r = 0; r < ranks; r++) {
        int64_t mine = V - r * columns < 0 ? 0 : V - r * columns < columns ? V - r * columns : columns;
        classifier_part_loss(&s.stream, plain, own[r], own_targets[r], mine, most, sums, terms, 0.0f);
        classifier_part_loss(&s.stream, loss, own[r], own_targets[r], mine, most, sums, terms, 0.125f);
        assert_same_bits(plain, loss);
        assert_close(loss, loss64, F32, bound_sum(ranks + 1));
        stage_settle();
        for (int64_t i = 0; i < n * columns; i++)
            tensor_set(logits, i / columns * stride + r * columns + i % columns, tensor_get(own[r], i));
    }
    for (int64_t i = 0; i < n * stride; i++) assert_true(i % stride < V || tensor_get(logits, i) == 0.0f);
    assert_close(logits, dlogits64, act, gradient_bound(2.0 * spread));
    stage_destroy(&s);
}

static void test_parts(void **state) {
    (void)state;
    static const int64_t shapes[][4] = {{1, 1, 1, 2}, {2, 3, 5, 4}, {3, 7, 389, 192}, {4, 5, 256, 64}, {2, 2, 50257, 25216}};
    for (int t = 0; t < stage_act_types(); t++)
        for (int i = 0; i < COUNT(shapes); i++)
            for (int k = 0; k < 2 * COUNT(TERMS); k += shapes[i][2] > 1000 && k == 1 ? 2 * COUNT(TERMS) - 3 : 1)
                compare_parts(ACT_TYPES[t], (int)shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3], k % 2 ? 20.0 : 1.0,
                              TERMS[k / 2]);
}

static void test_shapes(void **state) {
    (void)state;
    static const int64_t shapes[][3] = {{1, 1, 1}, {3, 2, 2}, {2, 15, 16}, {5, 16, 16}, {4, 17, 31}, {7, 256, 256}, {9, 389, 512},
                                        {1, 24570, 24576} /* 48 KiB of logits in 16 bits */, {3, 50257, 50304}};
    for (int t = 0; t < stage_act_types(); t++)
        for (int i = 0; i < COUNT(shapes); i++)
            for (int k = 0; k < 2 * COUNT(TERMS); k += shapes[i][1] > 1000 && k == 1 ? 2 * COUNT(TERMS) - 3 : 1)
                compare(ACT_TYPES[t], shapes[i][0], shapes[i][1], shapes[i][2], k % 2 ? 20.0 : 1.0,
                              TERMS[k / 2]);
}

/* With a confident model the gradient at the target is a small difference, and the loss is small. Other rows have
 * logits far from 0, and far apart. */
static void test_extremes(void **state) {
    (void)state;
    enum { V = 19 };
    Stage   s = stage_create(0);
    Tensor  logits = stage_random(&s, F32, 2, 3, V, 5, 0, -9), targets = stage_tokens(&s, 1, 3, 1, 0, 1),
           loss = stage_tensor(&s, F32, 1, 3, 1);
    for (int i = 0; i < 3; i++) ((int32_t *)targets.data)[i] = 18;
    /* row 0: a confident row, whose loss is 18 e^-14 = 1.5e-5 */
    tensor_set(logits, 18, 5.0f);
    for (int v = 0; v < V; v++) tensor_set(logits, V + v, 1e4f + (float)v);  /* row 1: logits far from 0 */
    tensor_set(logits, 2 * V, -1e30f);                              /* row 2: logits far apart */
    double *loss64 = stage_doubles(&s, 3), *dlogits64 = stage_doubles(&s, 3 * V), *logits64 = stage_widen(&s, logits);
    ref_classifier_forward(loss64, logits64, (const int32_t *)targets.data, 3, V, V, 0.0);
    ref_classifier_backward(dlogits64, logits64, (const int32_t *)targets.data, 3, V, V, 0.0, 0.0, 1.0);
    classifier_loss(&s.stream, loss, logits, targets, V, PLAIN_LOSS, 1.0f);
    /* A small loss is log(1 + r), with r the sum of exp(logit - logit of the target) over the other tokens. r has an
     * error of some ten roundings. The rounding of 1 + r adds 2^-24. */
    for (int i = 0; i < 3; i++) assert_true(fabs((double)tensor_get(loss, i) - loss64[i]) <= 8 * 0x1p-24 * (loss64[i] + 1.0));
    for (int i = 0; i < 3 * V; i++)
        assert_true(fabs((double)tensor_get(logits, i) - dlogits64[i]) <=
                    0x1p-24 * (16 * fabs(dlogits64[i]) + (i % V == 18 ? 8 : 1e-12)));
    stage_destroy(&s);
}

/* A logit of NaN or +infinity shows in the loss. A logit of -infinity, an impossible token, does not. */
static void test_undefined(void **state) {
    (void)state;
    enum { V = 70, N = 5 };
    for (int t = 0; t < stage_act_types(); t++) {
        Stage  s = stage_create(0);
        Tensor logits = stage_random(&s, ACT_TYPES[t], 2, N, V, 5, 3, 0), targets = stage_tokens(&s, 1, N, 1, 6, V - 10);
        Tensor loss = stage_tensor(&s, F32, 1, N, 1), again = stage_tensor(&s, F32, 1, N, 1);
        tensor_set(logits, 0 * V + 69, NAN), tensor_set(logits, 1 * V + 69, INFINITY), tensor_set(logits, 2 * V, NAN);
        for (int v = 0; v < V; v++) tensor_set(logits, 3 * V + v, -INFINITY);
        for (int v = V - 10; v < V; v++) tensor_set(logits, 4 * V + v, -INFINITY);
        classifier_loss(&s.stream, loss, logits, targets, V, PLAIN_LOSS, 0.0f);
        classifier_loss(&s.stream, again, logits, targets, V, PLAIN_LOSS, 1.0f);
        for (int i = 0; i < N; i++) {
            assert_true(!isfinite(tensor_get(loss, i)) == (i < 4));
            assert_true(!isfinite(tensor_get(again, i)) == (i < 4));
        }
        for (int v = 0; v < V; v++) assert_true(isfinite(tensor_get(logits, 4 * V + v)));
        stage_destroy(&s);
    }
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_differences), cmocka_unit_test(test_records),
                                     cmocka_unit_test(test_terms_records),
                                     cmocka_unit_test(test_shapes), cmocka_unit_test(test_parts),
                                     cmocka_unit_test(test_extremes), cmocka_unit_test(test_undefined)};
    return cmocka_run_group_tests_name("classifier", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
