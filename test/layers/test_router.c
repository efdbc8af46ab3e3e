/* test_router.c - router_forward, router_count and router_backward. */
#include "test/ref/expert_ops.h"
#include "test/ref/test.h"

/* Number of roundings that the error bound allows in addition to those of a sum over E experts. The arguments of
 * exponentials are up to 8. */
enum { ROUTER_TERMS = 64 };

typedef struct {
    int64_t  N, E, k, T;
    int      normed;
    int32_t *expert, *counts;
    double  *p, *weight, *logits, *dweight, balance;
} Case;

static double objective(void *ctx) {
    Case *c = (Case *)ctx;
    ref_router_forward(c->p, c->expert, c->weight, c->logits, NULL, c->N, c->E, c->k, c->normed);
    return dot(c->weight, c->dweight, c->N * c->k) + c->balance * ref_router_balance(c->logits, c->counts, c->N, c->E, c->k, c->T);
}

static void count(int32_t *counts, const int32_t *expert, int64_t N, int64_t E, int64_t k, int64_t T) {
    memset(counts, 0, sizeof *counts * (size_t)(N / T * E));
    for (int64_t i = 0; i < N * k; i++) counts[i / k / T * E + expert[i]]++;
}

static void test_differences(void **state) {
    (void)state;
    enum { N = 6, E = 7, K = 3, T = 3 };
    for (int normed = 0; normed < 2; normed++) {
        Stage    s = stage_create(0);
        int32_t  expert[N * K], counts[N / T * E];
        double  *logits = stage_random_doubles(&s, N * E, 1, 2, 0);
        Case     c = {N, E, K, T, normed, expert, counts, stage_doubles(&s, N * E), stage_doubles(&s, N * K), logits,
                      stage_random_doubles(&s, N * K, 2, 1, 0), 0.3};
        double  *dlogits = stage_doubles(&s, N * E);
        ref_router_forward(c.p, expert, c.weight, logits, NULL, N, E, K, normed);
        count(counts, expert, N, E, K, T);
        ref_router_backward(dlogits, c.dweight, logits, expert, N, E, K, normed, counts, T, c.balance);
        assert_true(difference_proves(objective, &c, logits, dlogits, N * E));
        stage_destroy(&s);
    }
}

static void test_records(void **state) {
    (void)state;
    for (int normed = 0; normed < 2; normed++) {
        Stage      s = stage_create(1 << 20);
        RecordFile f = record_load("test/ref/data/experts.rec");
        const char *prefix = normed ? "router_normed" : "router";
        char       name[64];
#define FIND(what) (snprintf(name, sizeof name, "%s." what, prefix), record_find(&f, name))
        Tensor  logits = stage_record(&s, record_find(&f, "router.logits"), F32);
        Tensor  bias = stage_record(&s, record_find(&f, "router.bias"), F32);
        Tensor  dweight = stage_record(&s, record_find(&f, "router.dweight"), F32);
        Tensor  chosen = stage_record(&s, record_find(&f, "router.expert"), I32);
        int64_t N = logits.dim[0], E = logits.dim[1], k = dweight.dim[1];
        Tensor  p = stage_tensor(&s, F32, 2, N, E), expert = stage_tensor(&s, I32, 2, N, k), weight = stage_tensor(&s, F32, 2, N, k);
        Tensor  dlogits = stage_tensor(&s, F32, 2, N, E), none = tensor_none();
        router_forward(&s.stream, p, expert, weight, logits, bias, normed ? WEIGHTS_NORMED : WEIGHTS_PLAIN);
        router_backward(&s.stream, dlogits, dweight, p, expert, weight, normed ? WEIGHTS_NORMED : WEIGHTS_PLAIN, none, none);
        assert_same_bits(expert, chosen);
        assert_close(p, (const double *)record_find(&f, "router.probability")->data, F32, bound_sum(ROUTER_TERMS));
        assert_close(weight, (const double *)FIND("weight")->data, F32, bound_sum(ROUTER_TERMS));
        assert_close(dlogits, (const double *)FIND("dlogits")->data, F32, bound_sum(ROUTER_TERMS));
        double  *weight64 = stage_doubles(&s, N * k), *p64 = stage_doubles(&s, N * E), *dlogits64 = stage_doubles(&s, N * E);
        ref_router_forward(p64, (int32_t *)expert.data, weight64, stage_widen(&s, logits), stage_widen(&s, bias), N, E, k, normed);
        ref_router_backward(dlogits64, stage_widen(&s, dweight), stage_widen(&s, logits), (const int32_t *)chosen.data, N, E, k, normed,
                            NULL, 1, 0.0);
        assert_same_float64(weight64, FIND("weight"));
        assert_same_float64(dlogits64, FIND("dlogits"));
        record_unload(&f);
        stage_destroy(&s);
    }
}

static void compare(DType act, int64_t B, int64_t T, int64_t E, int64_t k, int normed, int with_bias) {
    int64_t N = B * T;
    Stage   s = stage_create(STAGE_SCRATCH);
    Tensor  logits = stage_random(&s, act, 2, N, E, 3, 4, 0), bias = stage_random(&s, act, 1, E, 1, 4, 0.1, 0), none = tensor_none();
    Tensor  p = stage_tensor(&s, F32, 2, N, E), expert = stage_tensor(&s, I32, 2, N, k), weight = stage_tensor(&s, F32, 2, N, k);
    Tensor  dweight = stage_random(&s, F32, 2, N, k, 5, 1, 0), balance = stage_random(&s, F32, 1, 1, 1, 6, 0, 0.02);
    Tensor  dlogits = stage_tensor(&s, act, 2, N, E), counts = stage_tensor(&s, I32, 2, B, E), total = stage_tensor(&s, I64, 1, E, 1);
    double *p64 = stage_doubles(&s, N * E), *weight64 = stage_doubles(&s, N * k), *dlogits64 = stage_doubles(&s, N * E);
    RouterWeights kind = normed ? WEIGHTS_NORMED : WEIGHTS_PLAIN;
    int32_t *want = malloc(sizeof *want * (size_t)(N * k + B * E)), *counted = want + N * k;
    for (int64_t e = 0; e < E; e++) ((int64_t *)total.data)[e] = 1000 * e;
    ref_router_forward(p64, want, weight64, stage_widen(&s, logits), with_bias ? stage_widen(&s, bias) : NULL, N, E, k, normed);
    count(counted, want, N, E, k, T);
    ref_router_backward(dlogits64, stage_widen(&s, dweight), stage_widen(&s, logits), want, N, E, k, normed, with_bias ? NULL : counted, T,
                        tensor_get(balance, 0));
    router_forward(&s.stream, p, expert, weight, logits, with_bias ? bias : none, kind);
    router_count(&s.stream, counts, with_bias ? none : total, expert);
    router_backward(&s.stream, dlogits, dweight, p, expert, weight, kind, with_bias ? none : counts, with_bias ? none : balance);
    stage_settle();
    assert_memory_equal(expert.data, want, sizeof *want * (size_t)(N * k));
    assert_memory_equal(counts.data, counted, sizeof *want * (size_t)(B * E));
    for (int64_t e = 0; e < E; e++) {
        int64_t sum = 1000 * e;
        for (int64_t b = 0; b < B && !with_bias; b++) sum += counted[b * E + e];
        assert_int_equal(((int64_t *)total.data)[e], sum);
    }
    assert_close(p, p64, act, bound_sum(E + ROUTER_TERMS));
    assert_close(weight, weight64, act, bound_sum(E + ROUTER_TERMS));
    /* the gradient of the logits is a sum of probabilities times their gradients, which may cancel */
    assert_close(dlogits, dlogits64, act, bound_cancelling(E + ROUTER_TERMS, 1.0 / (double)E));
    free(want);
    stage_destroy(&s);
}

static void test_shapes(void **state) {
    (void)state;
    static const int64_t shapes[][4] = {{1, 1, 1, 1}, {1, 2, 2, 1}, {2, 3, 5, 2}, {3, 7, 8, 8},
                                        {2, 20, 33, 3}, {1, 40, 64, 6}, {2, 9, 130, 8}};
    for (int t = 0; t < stage_act_types(); t++)
        for (int i = 0; i < COUNT(shapes); i++)
            for (int way = 0; way < 4; way++)
                compare(ACT_TYPES[t], shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3], way & 1, way >> 1);
}

/* If experts have equal logits, the one with the lower number is chosen first. With logits that are NaN, k experts are
 * still chosen. */
static void test_ties(void **state) {
    (void)state;
    enum { N = 3, E = 40, K = 4 };
    for (int t = 0; t < stage_act_types(); t++) {
        Stage  s = stage_create(0);
        Tensor logits = stage_random(&s, ACT_TYPES[t], 2, N, E, 0, 0, 0.5), p = stage_tensor(&s, F32, 2, N, E), none = tensor_none();
        Tensor expert = stage_tensor(&s, I32, 2, N, K), weight = stage_tensor(&s, F32, 2, N, K);
        tensor_set(logits, 37, 2.0f), tensor_set(logits, 35, 2.0f); /* equal logits of two experts in row 0 */
        for (int e = 0; e < E; e++) tensor_set(logits, 2 * E + e, NAN);
        router_forward(&s.stream, p, expert, weight, logits, none, WEIGHTS_NORMED);
        stage_settle();
        const int32_t want[N * K] = {35, 37, 0, 1, 0, 1, 2, 3, 0, 1, 2, 3};
        assert_memory_equal(expert.data, want, sizeof want);
        assert_true(fabs(tensor_get(weight, K) - 0.25) < 1e-6 && isnan(tensor_get(weight, 2 * K)));
        stage_destroy(&s);
    }
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_differences), cmocka_unit_test(test_records),
                                     cmocka_unit_test(test_shapes), cmocka_unit_test(test_ties)};
    return cmocka_run_group_tests_name("router", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
