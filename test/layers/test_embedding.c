/* test_embedding.c - embedding_forward and embedding_backward. */
#include "test/ref/test.h"

typedef struct { int64_t B, T, C, V, P; int32_t *tokens; double *y, *wte, *wpe, *dy; } Case;

static double objective(void *ctx) {
    Case *k = (Case *)ctx;
    ref_embedding_forward(k->y, k->tokens, k->wte, k->wpe, NULL, k->B, k->T, k->C);
    return dot(k->y, k->dy, k->B * k->T * k->C);
}

static void test_differences(void **state) {
    (void)state;
    Stage   s = stage_create(0);
    Tensor  tokens = stage_tokens(&s, 2, 2, 3, 1, 4);
    int64_t C = 5;
    Case    k = {2, 3, C, 4, 3, (int32_t *)tokens.data, stage_doubles(&s, 6 * C), stage_random_doubles(&s, 4 * C, 2, 1, 0),
                 stage_random_doubles(&s, 3 * C, 3, 1, 0), stage_random_doubles(&s, 6 * C, 4, 1, 0)};
    double *dwte = stage_doubles(&s, 4 * C), *dwpe = stage_doubles(&s, 3 * C);
    ref_embedding_backward(dwte, dwpe, k.dy, k.tokens, NULL, k.B, k.T, k.C);
    assert_true(difference_proves(objective, &k, k.wte, dwte, 4 * C));
    assert_true(difference_proves(objective, &k, k.wpe, dwpe, 3 * C));
    stage_destroy(&s);
}

static void test_records(void **state) {
    (void)state;
    Stage      s = stage_create(1 << 20);
    RecordFile f = record_load(OPS_FILE);
    Tensor     tokens = stage_record(&s, record_find(&f, "embedding.tokens"), I32);
    Tensor     wte = stage_record(&s, record_find(&f, "embedding.wte"), F32),
           wpe = stage_record(&s, record_find(&f, "embedding.wpe"), F32);
    Tensor     dy = stage_record(&s, record_find(&f, "embedding.dy"), F32);
    int64_t    B = tokens.dim[0], T = tokens.dim[1], V = wte.dim[0], P = wpe.dim[0], C = wte.dim[1];
    double    *y64 = stage_doubles(&s, B * T * C), *dwte64 = stage_doubles(&s, V * C), *dwpe64 = stage_doubles(&s, P * C);
    const int32_t *token = (const int32_t *)tokens.data;
    ref_embedding_forward(y64, token, stage_widen(&s, wte), stage_widen(&s, wpe), NULL, B, T, C);
    ref_embedding_backward(dwte64, dwpe64, stage_widen(&s, dy), token, NULL, B, T, C);
    assert_same_float64(y64, record_find(&f, "embedding.y"));
    assert_same_float64(dwte64, record_find(&f, "embedding.dwte"));
    assert_same_float64(dwpe64, record_find(&f, "embedding.dwpe"));

    Tensor y = stage_tensor(&s, F32, 2, B * T, C), dwte = stage_random(&s, F32, 2, V, C, 0, 0, 0),
           dwpe = stage_random(&s, F32, 2, P, C, 0, 0, 0);
    embedding_forward(&s.stream, y, tokens, wte, wpe, tensor_none(), WHOLE_SEQUENCE);
    embedding_backward(&s.stream, dwte, dwpe, dy, tokens, tensor_none(), WHOLE_SEQUENCE);
    assert_close(y, (const double *)record_find(&f, "embedding.y")->data, F32, bound_sum(2));
    assert_close(dwte, (const double *)record_find(&f, "embedding.dwte")->data, F32, bound_sum(B * T));
    assert_close(dwpe, (const double *)record_find(&f, "embedding.dwpe")->data, F32, bound_sum(B));
    record_unload(&f);
    stage_destroy(&s);
}

/* Compares both ops with the reference. The tables have more rows than are used. Unused rows, from V on of the tokens
 * and from T on of the positions, must keep their values. Backward runs twice and adds to sums that are not zero. */
static void compare(DType act, int64_t B, int64_t T, int64_t C, int64_t V, int64_t P) {
    Stage  s = stage_create(STAGE_SCRATCH);
    Tensor tokens = stage_tokens(&s, 2, B, T, 5, (int32_t)V), y = stage_tensor(&s, act, 2, B * T, C);
    Tensor wte = stage_random(&s, act, 2, V + 3, C, 6, 1, 0), wpe = stage_random(&s, act, 2, P, C, 7, 1, 0);
    Tensor dy = stage_random(&s, act, 2, B * T, C, 8, 1, 0);
    Tensor dwte = stage_random(&s, F32, 2, V + 3, C, 9, 1, 0), dwpe = stage_random(&s, F32, 2, P, C, 10, 1, 0);
    double *y64 = stage_doubles(&s, B * T * C), *dwte64 = stage_widen(&s, dwte), *dwpe64 = stage_widen(&s, dwpe),
           *dy64 = stage_widen(&s, dy);
    const int32_t *token = (const int32_t *)tokens.data;
    ref_embedding_forward(y64, token, stage_widen(&s, wte), stage_widen(&s, wpe), NULL, B, T, C);
    embedding_forward(&s.stream, y, tokens, wte, wpe, tensor_none(), WHOLE_SEQUENCE);
    assert_close(y, y64, act, bound_sum(2));
    for (int pass = 0; pass < 2; pass++) {
        ref_embedding_backward(dwte64, dwpe64, dy64, token, NULL, B, T, C);
        embedding_backward(&s.stream, dwte, dwpe, dy, tokens, tensor_none(), WHOLE_SEQUENCE);
    }
    assert_close(dwte, dwte64, act, bound_sum(2 * B * T));
    assert_close(dwpe, dwpe64, act, bound_sum(2 * B));
    stage_destroy(&s);
}

/* Divides the vocabulary among `ranks` and the sequences among context ranks. The results of all must add up to those
 * of one rank. The bits of y stay the same, because all ranks but one add zero. */
static void compare_parts(DType act, int64_t ranks, int64_t contexts, int64_t B, int64_t T, int64_t C, int64_t V) {
    int64_t own = T / contexts, rows = (V + ranks - 1) / ranks;
    Stage   s = stage_create(STAGE_SCRATCH);
    Tensor  tokens = stage_tokens(&s, 2, B, T, 5, (int32_t)V), y = stage_tensor(&s, act, 2, B * T, C);
    Tensor  wte = stage_random(&s, act, 2, ranks * rows, C, 6, 1, 0), wpe = stage_random(&s, act, 2, T, C, 7, 1, 0);
    Tensor  dy = stage_random(&s, act, 2, B * T, C, 8, 1, 0), dwte = stage_random(&s, F32, 2, ranks * rows, C, 0, 0, 0);
    Tensor  dwpe = stage_random(&s, F32, 2, T, C, 0, 0, 0), part_tokens = stage_tokens(&s, 2, B, own, 5, (int32_t)V),
           part_y = stage_tensor(&s, act, 2, B * own, C);
    Tensor  part_dy = stage_tensor(&s, act, 2, B * own, C), whole_tokens = stage_tokens(&s, 2, B, own, 5, (int32_t)V);
    double *y64 = stage_doubles(&s, B * T * C), *dwte64 = stage_widen(&s, dwte), *dwpe64 = stage_widen(&s, dwpe),
           *sum = stage_doubles(&s, B * T * C);
    const int32_t *token = (const int32_t *)tokens.data;
    ref_embedding_forward(y64, token, stage_widen(&s, wte), stage_widen(&s, wpe), NULL, B, T, C);
    ref_embedding_backward(dwte64, dwpe64, stage_widen(&s, dy), token, NULL, B, T, C);
    for (int64_t c = 0; c < contexts; c++) {
        ContextPart context = {contexts, c};
        Positions   at = positions_of(context, own);
        stage_settle();
        for (int64_t b = 0; b < B; b++) context_take((int32_t *)whole_tokens.data + b * own, token + b * T, context, own);
        for (int64_t i = 0; i < B * own * C; i++)
            tensor_set(part_dy, i, tensor_get(dy, (i / C / own * T + POSITION_OF(at, i / C % own)) * C + i % C));
        for (int64_t r = 0; r < ranks; r++) {
            Tensor mine = tensor_rows(wte, r * rows, rows), dmine = tensor_rows(dwte, r * rows, rows), none = tensor_none();
            tokens_own(&s.stream, tensor_1d(part_tokens.data, I32, B * own), tensor_1d(whole_tokens.data, I32, B * own),
                       r * rows, rows);
            embedding_forward(&s.stream, part_y, part_tokens, mine, r ? none : wpe, tensor_none(), context);
            embedding_backward(&s.stream, dmine, r ? none : dwpe, part_dy, part_tokens, tensor_none(), context);
            stage_settle();
            for (int64_t i = 0; i < B * own * C; i++)
                sum[(i / C / own * T + POSITION_OF(at, i / C % own)) * C + i % C] += tensor_get(part_y, i);
        }
    }
    for (int64_t i = 0; i < B * T * C; i++) tensor_set(y, i, (float)sum[i]);
    assert_close(y, y64, act, bound_sum(2));
    assert_close(dwte, dwte64, act, bound_sum(B * T));
    assert_close(dwpe, dwpe64, act, bound_sum(B));
    stage_destroy(&s);
}

static void test_parts(void **state) {
    (void)state;
    static const int64_t shapes[][6] = {{1, 2, 2, 8, 16, 11},
                                        {2, 1, 3, 11, 17, 5},
                                        {3, 2, 2, 20, 42, 389},
                                        {4, 3, 1, 90, 264, 6},
                                        {2, 1, 3, 700, 3, 300}};
    for (int a = 0; a < stage_act_types(); a++)
        for (int i = 0; i < COUNT(shapes); i++)
            compare_parts(ACT_TYPES[a], shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3], shapes[i][4], shapes[i][5]);
}

static void test_shapes(void **state) {
    (void)state;
    static const int64_t shapes[][5] = {{1, 1, 1, 1, 1},   {1, 5, 3, 2, 5},      {2, 7, 16, 11, 9},   {3, 11, 17, 5, 11},
                                        {2, 40, 42, 389, 41}, {2, 33, 64, 20, 33}, {2, 21, 193, 30, 64},
                                        /* Shapes that differ in how often a token occurs: at each place, about 32
                                         * times, and far more often. There are also more tokens than 8 and 16 bits
                                         * can number, in several tiles. */
                                        {3, 50, 24, 1, 50},   {2, 97, 5, 6, 97},    {1, 90, 264, 3, 90},  {3, 701, 3, 300, 701},
                                        {1, 1300, 1, 70000, 1300}};
    for (int t = 0; t < stage_act_types(); t++)
        for (int i = 0; i < COUNT(shapes); i++)
            compare(ACT_TYPES[t], shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3], shapes[i][4]);
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_differences), cmocka_unit_test(test_records),
                                     cmocka_unit_test(test_shapes), cmocka_unit_test(test_parts)};
    return cmocka_run_group_tests_name("embedding", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
