/* test_attention_last.c - attention_last_forward: the last rows of a sequence, compared with the float64 reference of
 * all rows. */
#include "test/ref/test.h"

/* Returns the bound of y for inputs uniform in +-spread, derived as in test/ref/attention_bounds.h. */
static Bound bound_of(int64_t T, int64_t D, double spread) {
    double score = spread * spread / 3.0;
    return bound_bf16((int64_t)((double)T + (double)D * (1.0 + score * score)), 1.0, 1.0);
}

static void compare(DType act, int64_t T, int64_t n, HeadShape h, double spread) {
    int64_t C = h.query * h.size;
    Stage   s = stage_create(STAGE_SCRATCH);
    Tensor  qkv = stage_random(&s, act, 2, T, heads_columns(h), 1, spread, 0), y = stage_tensor(&s, act, 2, n, C);
    double *y64 = stage_doubles(&s, T * C), *lse64 = stage_doubles(&s, h.query * T);
    ref_attention_forward(y64, lse64, stage_widen(&s, qkv), NULL, 1, T, h.query, h.key, h.size);
    attention_last_forward(&s.stream, y, qkv, h);
    assert_close(y, y64 + (T - n) * C, act, bound_of(T, h.size, spread));
    Tensor first = stage_copy(&s, y);
    attention_last_forward(&s.stream, y, qkv, h);
    assert_same_bits(y, first);
    stage_destroy(&s);
}

/* Cases: sequences of one key, of whole and of incomplete tiles; heads that are not whole vectors; one query and
 * several; heads that share keys. */
static void test_shapes(void **state) {
    (void)state;
    static const int64_t shapes[][5] = {
        {1, 1, 1, 1, 1},    {2, 1, 1, 1, 3},    {17, 1, 2, 2, 5},    {40, 3, 3, 3, 14},   {64, 2, 1, 1, 16},  {65, 1, 1, 1, 32},
        {130, 1, 2, 2, 64}, {300, 4, 1, 1, 24}, {256, 1, 1, 1, 80},  {257, 1, 1, 1, 128}, {600, 2, 1, 1, 64}, {9, 9, 2, 2, 8},
        {20, 2, 1, 1, 160}, {33, 2, 6, 2, 5},   {300, 1, 4, 2, 128}, {70, 3, 4, 1, 24}};
    for (int t = 0; t < stage_act_types(); t++)
        for (int i = 0; i < COUNT(shapes); i++) {
            /* a GPU has no kernels for heads of more than 128 channels */
            if (shapes[i][4] > 128 && stage_act_types() == 3) continue;
            for (int spread = 1; spread <= 3; spread += 2)
                compare(ACT_TYPES[t], shapes[i][0], shapes[i][1], (HeadShape){shapes[i][2], shapes[i][3], shapes[i][4]}, spread);
        }
}

/* The bits of a row of the result depend only on keys up to the row's position, not on other rows or later keys. */
static void test_rows(void **state) {
    (void)state;
    enum { T = 90, C = 32, H = 2 };
    HeadShape h = {H, H, C / H};
    for (int t = 0; t < stage_act_types(); t++) {
        DType  act = ACT_TYPES[t];
        Stage  s = stage_create(STAGE_SCRATCH);
        Tensor qkv = stage_random(&s, act, 2, T, 3 * C, 1, 2, 0), y = stage_tensor(&s, act, 2, T, C),
               alone = stage_tensor(&s, act, 2, 1, C);
        attention_last_forward(&s.stream, y, qkv, h);
        for (int64_t at = 0; at < T; at += 11) {
            attention_last_forward(&s.stream, alone, tensor_rows(qkv, 0, at + 1), h);
            stage_settle();
            for (int64_t c = 0; c < C; c++) assert_true(tensor_get(alone, c) == tensor_get(y, at * C + c));
        }
        stage_destroy(&s);
    }
}

/* Scores of some thousands that grow with the key's position. Only a running maximum keeps the exponentials finite. The
 * last key dominates, so y is its value. */
static void test_large_scores(void **state) {
    (void)state;
    enum { T = 300, D = 16 };
    Stage  s = stage_create(STAGE_SCRATCH);
    Tensor qkv = stage_random(&s, F32, 2, T, 3 * D, 1, 1, 0), y = stage_tensor(&s, F32, 2, 1, D);
    stage_settle();
    for (int64_t i = 0; i < T * D; i++) {
        tensor_set(qkv, i / D * 3 * D + i % D, 50.0f);
        tensor_set(qkv, i / D * 3 * D + D + i % D, (float)(i / D - T / 2));
    }
    attention_last_forward(&s.stream, y, qkv, (HeadShape){1, 1, D});
    stage_settle();
    for (int64_t d = 0; d < D; d++)
        assert_true(fabsf(tensor_get(y, d) - tensor_get(qkv, (T - 1) * 3 * D + 2 * D + d)) < 1e-6f);
    stage_destroy(&s);
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_shapes), cmocka_unit_test(test_rows),
                                     cmocka_unit_test(test_large_scores)};
    return cmocka_run_group_tests_name("attention_last", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
