/* test_adamw.c - adamw_update, and adamw_update_host, compared with a float64 reference. */
#include "test/ref/test.h"

#include <float.h>

#include "core/rng.h"

static const OptimizerStep HYPER = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 1};

typedef struct { int64_t n; double *p, *m, *v, *grad; } State64;

/* Computes a step of the float64 reference. The hyperparameters are the floats that the op gets. */
static void step64(State64 k, OptimizerStep h, double grad_scale) {
    ref_adamw(k.p, k.m, k.v, k.grad, k.n, (double)h.learning_rate, (double)h.beta1, (double)h.beta2, (double)h.eps,
              (double)h.weight_decay, h.step, grad_scale);
}

static void update_one(Stage *s, Tensor master, Tensor m, Tensor v, Tensor working, Tensor grad, OptimizerStep h, float grad_scale) {
    OptimizerSpan piece = {master, m, v, working, grad, 1, 0};
    adamw_update(&s->stream, &piece, 1, h, grad_scale);
}

static OptimizerSpan piece_of(OptimizerSpan whole, int64_t first, int64_t n, int decays) {
    return (OptimizerSpan){tensor_slice(whole.master, first, n), tensor_slice(whole.m, first, n), tensor_slice(whole.v, first, n),
                        tensor_slice(whole.working, first, n), tensor_slice(whole.grad, first, n), decays, 0};
}

static void test_records(void **state) {
    (void)state;
    Stage      s = stage_create(0);
    RecordFile f = record_load(OPS_FILE);
    const Record *p0 = record_find(&f, "adamw.p"), *grads = record_find(&f, "adamw.grads");
    Tensor  master = stage_record(&s, p0, F32), m = stage_random(&s, F32, 1, p0->elems, 1, 0, 0, 0), v = stage_copy(&s, m);
    Tensor  all = stage_record(&s, grads, F32);
    int64_t n = p0->elems;
    State64 k = {n, stage_widen(&s, master), stage_doubles(&s, n), stage_doubles(&s, n), NULL};
    OptimizerStep   h = HYPER;
    for (h.step = 1; h.step <= 3; h.step++) {
        char name[16];
        snprintf(name, sizeof name, "adamw.p%d", (int)h.step);
        Tensor grad = tensor_slice(all, (h.step - 1) * n, n);
        k.grad = stage_widen(&s, grad);
        step64(k, h, 0.5);
        update_one(&s, master, m, v, master, grad, h, 0.5f);
        assert_same_float64(k.p, record_find(&f, name));
        assert_close(master, (const double *)record_find(&f, name)->data, F32, bound_sum(3));
    }
    assert_same_float64(k.m, record_find(&f, "adamw.m3"));
    assert_same_float64(k.v, record_find(&f, "adamw.v3"));
    assert_close(m, (const double *)record_find(&f, "adamw.m3")->data, F32, bound_sum(3));
    assert_close(v, (const double *)record_find(&f, "adamw.v3")->data, F32, bound_sum(3));
    record_unload(&f);
    stage_destroy(&s);
}

/* Runs seven steps, the third without weight decay, and compares with the reference. The working copy must be the
 * master rounded to its type, bit for bit. Spans that are updated in two parts, cut at an odd place, must have equal
 * bits. */
static void compare(DType act, int64_t n) {
    enum { STEPS = 7 };
    Stage   s = stage_create(0);
    Tensor  master = stage_random(&s, F32, 1, n, 1, 1, 1, 0), m = stage_random(&s, F32, 1, n, 1, 0, 0, 0), v = stage_copy(&s, m);
    Tensor  working = act == F32 ? master : stage_tensor(&s, act, 1, n, 1);
    Tensor  master_cut = stage_copy(&s, master), m_cut = stage_copy(&s, m), v_cut = stage_copy(&s, v);
    Tensor  working_cut = act == F32 ? master_cut : stage_tensor(&s, act, 1, n, 1);
    State64 k = {n, stage_widen(&s, master), stage_doubles(&s, n), stage_doubles(&s, n), NULL};
    OptimizerStep   h = HYPER;
    for (h.step = 1; h.step <= STEPS; h.step++) {
        Tensor grad = stage_random(&s, F32, 1, n, 1, 10 + (uint64_t)h.step, 1e-3, 0);
        h.weight_decay = h.step == 3 ? 0.0f : HYPER.weight_decay;
        k.grad = stage_widen(&s, grad);
        step64(k, h, 0.375);
        update_one(&s, master, m, v, working, grad, h, 0.375f);
        OptimizerSpan cut = {master_cut, m_cut, v_cut, working_cut, grad, 1, 0},
                  both[2] = {piece_of(cut, n / 3, n - n / 3, 1), piece_of(cut, 0, n / 3, 1)};
        adamw_update(&s.stream, both, 2, h, 0.375f);
    }
    assert_close(m, k.m, F32, bound_sum(STEPS));
    assert_close(v, k.v, F32, bound_sum(STEPS));
    assert_close(master, k.p, F32, bound_sum(STEPS));
    for (int64_t i = 0; i < n; i++) assert_true(tensor_get(working, i) == (float)round_to(act, (double)tensor_get(master, i)));
    assert_same_bits(master_cut, master);
    assert_same_bits(m_cut, m);
    assert_same_bits(v_cut, v);
    assert_same_bits(working_cut, working);
    stage_destroy(&s);
}

/* Compares adamw_update_host, the update in host memory, with the reference, on every backend. */
static void compare_host(DType act, int64_t n) {
    enum { STEPS = 4, ARRAYS = 4 };
    Stage  s = stage_create(0);
    float *array[ARRAYS];
    for (int a = 0; a < ARRAYS; a++) assert_non_null(array[a] = calloc((size_t)n, sizeof(float)));
    float   *p = array[0], *grads = array[3];
    uint16_t *rounded = calloc((size_t)n, sizeof *rounded);
    rng_normal(p, n, 1, 0, 0.0f, 1.0f);
    State64 k = {n, stage_doubles(&s, n), stage_doubles(&s, n), stage_doubles(&s, n), stage_doubles(&s, n)};
    for (int64_t i = 0; i < n; i++) k.p[i] = (double)p[i];
    OptimizerSpan span = {tensor_1d(p, F32, n), tensor_1d(array[1], F32, n), tensor_1d(array[2], F32, n),
                      tensor_1d(act == F32 ? (void *)p : rounded, act, n),
                      tensor_1d(grads, F32, n), 1, 0};
    OptimizerStep     h = HYPER;
    for (h.step = 1; h.step <= STEPS; h.step++) {
        rng_normal(grads, n, 2, (uint64_t)(h.step * n), 0.0f, 1e-3f);
        for (int64_t i = 0; i < n; i++) k.grad[i] = (double)grads[i];
        span.decays = h.step != 3;
        h.weight_decay = span.decays ? HYPER.weight_decay : 0.0;
        step64(k, h, 0.375);
        h.weight_decay = HYPER.weight_decay;
        adamw_update_host(span, h, 0.375f);
    }
    for (int64_t i = 0; i < n; i++) {
        /* allows four roundings to fp32 in each step */
        assert_true(fabs((double)p[i] - k.p[i]) <= 4.0 * STEPS * (double)FLT_EPSILON * (1.0 + fabs(k.p[i])));
        if (act != F32) assert_int_equal(rounded[i], act == BF16 ? bf16_from_f32(p[i]) : f16_from_f32(p[i]));
    }
    for (int a = 0; a < ARRAYS; a++) free(array[a]);
    free(rounded);
    stage_destroy(&s);
}

static void test_host(void **state) {
    (void)state;
    static const DType types[] = {F32, BF16, F16};
    for (int t = 0; t < 3; t++)
        for (int64_t n = 1; n < 40000; n = 3 * n + 7) compare_host(types[t], n);
}

static void test_sizes(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 15, 16, 17, 101, 16384, 40003};
    for (int t = 0; t < stage_act_types(); t++)
        for (int i = 0; i < COUNT(sizes); i++) compare(ACT_TYPES[t], sizes[i]);
}

/* Updates a list of more spans than one launch takes: of all sizes, aligned and not, some without decay, some empty.
 * The bits equal those of updates one span at a time. */
static void test_many_pieces(void **state) {
    (void)state;
    enum { PIECES = 150, N = 150 * 149 / 2 };
    for (int t = 0; t < stage_act_types(); t++) {
        DType      act = ACT_TYPES[t];
        Stage      s = stage_create(0);
        Tensor     master = stage_random(&s, F32, 1, N, 1, 1, 1, 0), m = stage_random(&s, F32, 1, N, 1, 2, 1e-3, 0),
               v = stage_random(&s, F32, 1, N, 1, 3, 1e-6, 1);
        Tensor grad = stage_random(&s, F32, 1, N, 1, 4, 1e-3, 0),
               working = act == F32 ? master : stage_tensor(&s, act, 1, N, 1);
        Tensor     master_one = stage_copy(&s, master), m_one = stage_copy(&s, m), v_one = stage_copy(&s, v);
        Tensor     working_one = act == F32 ? master_one : stage_tensor(&s, act, 1, N, 1);
        OptimizerSpan all = {master, m, v, working, grad, 1, 0}, one = {master_one, m_one, v_one, working_one, grad, 1, 0}, list[PIECES];
        OptimizerStep      h = HYPER;
        int64_t    first = 0;
        h.step = 3;
        for (int i = 0; i < PIECES; first += i++) {
            list[i] = piece_of(all, first, i, i % 3 > 0);
            OptimizerSpan same = piece_of(one, first, i, i % 3 > 0);
            adamw_update(&s.stream, &same, 1, h, 0.5f);
        }
        adamw_update(&s.stream, list, PIECES, h, 0.5f);
        device_sync(&s.stream);
        assert_same_bits(master, master_one);
        assert_same_bits(m, m_one);
        assert_same_bits(v, v_one);
        assert_same_bits(working, working_one);
        stage_destroy(&s);
    }
}

/* Updates spans with their own rates, in one list and on the host. The reference is a step with learning rate rate * lr
 * and decay decay / rate. */
static void test_rates(void **state) {
    (void)state;
    enum { STEPS = 3, N = 100 };
    static const float rates[] = {0.5f, 0.0f, 0.3f};
    Stage     s = stage_create(0);
    OptimizerSpan list[3];
    State64   k[3];
    OptimizerStep     h = HYPER;
    for (int i = 0; i < 3; i++) {
        Tensor p = stage_random(&s, F32, 1, N, 1, 1, 1, 1), m = stage_random(&s, F32, 1, N, 1, 1, 0, 0),
               grad = stage_random(&s, F32, 1, N, 1, 7, 1e-3, 0);
        list[i] = (OptimizerSpan){p, m, stage_copy(&s, m), p, grad, 1, rates[i]};
        k[i] = (State64){N, stage_widen(&s, p), stage_doubles(&s, N), stage_doubles(&s, N), stage_widen(&s, grad)};
    }
    for (h.step = 1; h.step <= STEPS; h.step++) {
        adamw_update(&s.stream, list, 2, h, 1.0f);
        device_sync(&s.stream);
        adamw_update_host(list[2], h, 1.0f);
        for (int i = 0; i < 3; i++) {
            OptimizerStep  own = h;
            double rate = rates[i] > 0.0f ? (double)rates[i] : 1.0;
            own.learning_rate *= rate, own.weight_decay /= rate;
            step64(k[i], own, 1.0);
        }
    }
    for (int i = 0; i < 3; i++) assert_close(list[i].master, k[i].p, F32, bound_sum(STEPS));
    stage_destroy(&s);
}

/* With bias corrections the first step moves a weight by lr, whatever the size of its gradient. Without a gradient
 * nothing moves. Decay alone shrinks the weights. */
static void test_first_step(void **state) {
    (void)state;
    Stage  s = stage_create(0);
    Tensor p = stage_random(&s, F32, 1, 4, 1, 0, 0, 1), m = stage_random(&s, F32, 1, 4, 1, 0, 0, 0),
           v = stage_copy(&s, m), grad = stage_copy(&s, m);
    OptimizerStep  h = HYPER;
    h.weight_decay = 0.0f;
    tensor_set(grad, 0, 1.0f), tensor_set(grad, 1, -1e-3f), tensor_set(grad, 2, 1e6f), tensor_set(grad, 3, 0.0f);
    update_one(&s, p, m, v, p, grad, h, 1.0f);
    static const double want[] = {0.99, 1.01, 0.99, 1.0};
    /* eps / |g| is at most 1e-5, so eps changes a step of 0.01 by at most 1e-7 */
    for (int i = 0; i < 4; i++) assert_true(fabs((double)tensor_get(p, i) - want[i]) < 2e-7);
    tensor_set(p, 3, 2.0f);
    h.weight_decay = 0.5f, h.step = 2;
    Tensor last = tensor_slice(p, 3, 1);
    update_one(&s, last, tensor_slice(m, 3, 1), tensor_slice(v, 3, 1), last, tensor_slice(grad, 3, 1), h, 1.0f);
    assert_true(fabs((double)tensor_get(p, 3) - 2.0 * (1.0 - 0.01 * 0.5)) < 2.5e-7);
    stage_destroy(&s);
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_records), cmocka_unit_test(test_host),
                                     cmocka_unit_test(test_sizes), cmocka_unit_test(test_many_pieces), cmocka_unit_test(test_rates),
                                     cmocka_unit_test(test_first_step)};
    return cmocka_run_group_tests_name("adamw", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
