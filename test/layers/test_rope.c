/* test_rope.c - rope in both directions, and rope_frequencies. */
#include "test/ref/test.h"

#define HEADS_FILE "test/ref/data/heads.rec"
static const RopeScaling NO_SCALING = {0, 0, 0, 0};

/* --- frequencies: values from the formulas in float64, by another program ------------------------------------------ */

static void test_frequencies(void **state) {
    (void)state;
    static const double plain[] = {1.0, 0.1, 0.01, 0.001}, three[] = {1.0, 0.012599210498948734, 0.00015874010519682002};
    float               got[64];
    rope_frequencies(got, 8, 1e4, NO_SCALING);
    for (int i = 0; i < COUNT(plain); i++) assert_true(got[i] == (float)plain[i]);
    rope_frequencies(got, 6, 5e5, NO_SCALING);
    for (int i = 0; i < COUNT(three); i++) assert_true(got[i] == (float)three[i]);
}

/* Checks the scaled frequencies with Llama 3.1's constants. Some pairs of channels keep their frequency, some get an
 * eighth of it, and some a mixture. */
static void test_scaling(void **state) {
    (void)state;
    static const struct { int i; double frequency; } cases[] = {
        {0, 1.0}, {1, 0.8146172338565447}, {28, 0.003211445994752591}, {29, 0.002166570763503359}, {30, 0.0013718935677611381},
        {32, 0.0005248461609929547}, {34, 0.0001785078127679964}, {35, 9.556212353964683e-05}, {63, 3.068925988914511e-07}};
    float got[64];
    rope_frequencies(got, 128, 5e5, (RopeScaling){8, 1, 4, 8192});
    for (int k = 0; k < COUNT(cases); k++)
        assert_true(fabs((double)got[cases[k].i] - cases[k].frequency) <= 0x1p-24 * cases[k].frequency);
}

/* --- the turn ------------------------------------------------------------------------------------------------------ */

typedef struct {
    int64_t  N, columns, heads, D;
    double  *y, *x, *frequency, *dy;
    int64_t *position;
} Case;

static double objective(void *ctx) {
    Case *k = (Case *)ctx;
    memcpy(k->y, k->x, (size_t)(k->N * k->columns) * sizeof(double));
    ref_rope_forward(k->y, k->frequency, k->position, k->N, k->columns, k->heads, k->D);
    return dot(k->y, k->dy, k->N * k->columns);
}

static void test_differences(void **state) {
    (void)state;
    enum { N = 3, H = 3, D = 6, COLUMNS = (H + 1) * D };
    Stage   s = stage_create(0);
    int64_t position[N] = {0, 3, 11};
    Case    k = {N, COLUMNS, H, D, stage_doubles(&s, N * COLUMNS), stage_random_doubles(&s, N * COLUMNS, 1, 1, 0),
                 stage_random_doubles(&s, D / 2, 2, 1, 0), stage_random_doubles(&s, N * COLUMNS, 3, 1, 0), position};
    double *dx = stage_doubles(&s, N * COLUMNS);
    memcpy(dx, k.dy, N * COLUMNS * sizeof(double));
    ref_rope_backward(dx, k.frequency, position, N, COLUMNS, H, D);
    assert_true(difference_proves(objective, &k, k.x, dx, N * COLUMNS));
    stage_destroy(&s);
}

static Tensor table(Stage *s, int64_t D, double theta) {
    Tensor t = stage_tensor(s, F32, 1, D / 2, 1);
    stage_settle();
    rope_frequencies((float *)t.data, D, theta, NO_SCALING);
    return t;
}

static void test_records(void **state) {
    (void)state;
    RecordFile f = record_load(HEADS_FILE);
    Stage      s = stage_create(1 << 20);
    const Record *shape = record_find(&f, "rope.shape");
    HeadShape  h = {(int64_t)record_value(shape, 0), (int64_t)record_value(shape, 1), (int64_t)record_value(shape, 2)};
    int64_t    T = (int64_t)record_value(shape, 3), first = (int64_t)record_value(shape, 4);
    Tensor     y = stage_record(&s, record_find(&f, "rope.qkv"), F32), dqkv = stage_record(&s, record_find(&f, "rope.dy"), F32);
    int64_t    N = y.dim[0], position[64];
    double    *y64 = stage_widen(&s, y), *dqkv64 = stage_widen(&s, dqkv);
    Tensor     frequencies = table(&s, h.size, 5e5);
    for (int64_t n = 0; n < N; n++) position[n] = first + n % T;
    for (int64_t i = 0; i < h.size / 2; i++) /* allows the correctly rounded f32 and its neighbours */
        assert_true(fabs((double)tensor_get(frequencies, i) / record_value(record_find(&f, "rope.frequencies"), i) - 1.0) <= 0x1p-23);
    ref_rope_forward(y64, stage_widen(&s, frequencies), position, N, heads_columns(h), h.query + h.key, h.size);
    ref_rope_backward(dqkv64, stage_widen(&s, frequencies), position, N, heads_columns(h), h.query + h.key, h.size);
    assert_same_float64(y64, record_find(&f, "rope.y"));
    assert_same_float64(dqkv64, record_find(&f, "rope.dqkv"));
    rope(&s.stream, y, frequencies, h, T, first, WHOLE_SEQUENCE, ROPE_FORWARD);
    rope(&s.stream, dqkv, frequencies, h, T, first, WHOLE_SEQUENCE, ROPE_BACKWARD);
    assert_close(y, y64, F32, bound_sum(2));
    assert_close(dqkv, dqkv64, F32, bound_sum(2));
    record_unload(&f);
    stage_destroy(&s);
}

/* Asserts that the columns from `turned` on keep their bits: rope rotates queries and keys, not values. */
static void assert_values_kept(Tensor got, Tensor before, int64_t turned) {
    int64_t columns = got.dim[1];
    stage_settle();
    for (int64_t i = 0; i < tensor_elems(got); i++)
        if (i % columns >= turned) assert_true(tensor_get(got, i) == tensor_get(before, i));
}

static void compare(DType act, int64_t B, int64_t T, HeadShape h, int64_t first, ContextPart context) {
    int64_t   N = B * T, columns = heads_columns(h), turned = (h.query + h.key) * h.size;
    Stage     s = stage_create(STAGE_SCRATCH);
    Tensor    qkv = stage_random(&s, act, 2, N, columns, 1, 1, 0), dqkv = stage_random(&s, act, 2, N, columns, 2, 1, 0),
              frequencies = table(&s, h.size, 1e4);
    Tensor    qkv_before = stage_copy(&s, qkv), dqkv_before = stage_copy(&s, dqkv), again = stage_copy(&s, qkv);
    double   *qkv64 = stage_widen(&s, qkv), *dqkv64 = stage_widen(&s, dqkv), *frequencies64 = stage_widen(&s, frequencies);
    int64_t  *position = malloc((size_t)N * sizeof(int64_t));
    Positions at = positions_of(context, T);
    for (int64_t n = 0; n < N; n++) position[n] = first + POSITION_OF(at, n % T);
    ref_rope_forward(qkv64, frequencies64, position, N, columns, h.query + h.key, h.size);
    ref_rope_backward(dqkv64, frequencies64, position, N, columns, h.query + h.key, h.size);
    free(position);
    rope(&s.stream, qkv, frequencies, h, T, first, context, ROPE_FORWARD);
    rope(&s.stream, again, frequencies, h, T, first, context, ROPE_FORWARD);
    rope(&s.stream, dqkv, frequencies, h, T, first, context, ROPE_BACKWARD);
    assert_close(qkv, qkv64, act, bound_sum(2));
    assert_close(dqkv, dqkv64, act, bound_sum(2));
    assert_same_bits(again, qkv);
    assert_values_kept(qkv, qkv_before, turned);
    assert_values_kept(dqkv, dqkv_before, turned);
    stage_destroy(&s);
}

/* Cases: heads that are whole vectors and not, one sequence and several, rows that continue earlier tokens, context
 * ranks. */
static void test_shapes(void **state) {
    (void)state;
    static const struct { int64_t B, T; HeadShape h; int64_t first; ContextPart context; } cases[] = {
        {1, 1, {1, 1, 2}, 0, {1, 0}},  {2, 5, {3, 1, 6}, 7, {1, 0}},    {1, 33, {4, 2, 16}, 0, {1, 0}},
        {3, 7, {2, 2, 64}, 0, {1, 0}}, {2, 19, {5, 5, 14}, 100, {1, 0}}, {1, 130, {8, 2, 32}, 0, {1, 0}},
        {2, 24, {6, 3, 128}, 0, {3, 1}}, {1, 16, {2, 1, 80}, 0, {2, 0}}, {1, 1, {4, 1, 128}, 4000, {1, 0}}};
    for (int t = 0; t < stage_act_types(); t++)
        for (int i = 0; i < COUNT(cases); i++)
            compare(ACT_TYPES[t], cases[i].B, cases[i].T, cases[i].h, cases[i].first, cases[i].context);
}

/* Far into a sequence a rotation is as exact as at its beginning. The product of position and frequency in f32 would be
 * wrong by 2^17 2^-24. */
static void test_far_positions(void **state) {
    (void)state;
    enum { T = 9, D = 64 };
    static const int64_t firsts[] = {131072 - T / 2, (1 << 24) + 3};
    HeadShape            h = {1, 1, D};
    for (int k = 0; k < COUNT(firsts); k++) {
        Stage  s = stage_create(STAGE_SCRATCH);
        Tensor qkv = stage_random(&s, F32, 2, T, 3 * D, 1, 1, 0), frequencies = table(&s, D, 5e5);
        double *want = stage_widen(&s, qkv), *frequencies64 = stage_widen(&s, frequencies);
        int64_t position[T];
        for (int64_t t = 0; t < T; t++) position[t] = firsts[k] + t;
        ref_rope_forward(want, frequencies64, position, T, 3 * D, 2, D);
        rope(&s.stream, qkv, frequencies, h, T, firsts[k], WHOLE_SEQUENCE, ROPE_FORWARD);
        stage_settle();
        for (int64_t i = 0; i < T * 3 * D; i++) assert_true(fabs((double)tensor_get(qkv, i) - want[i]) <= 1e-6);
        stage_destroy(&s);
    }
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_frequencies), cmocka_unit_test(test_scaling),
                                     cmocka_unit_test(test_differences), cmocka_unit_test(test_records),
                                     cmocka_unit_test(test_shapes), cmocka_unit_test(test_far_positions)};
    return cmocka_run_group_tests_name("rope", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
