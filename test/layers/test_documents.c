/* test_documents.c - attention and embedding of sequences with several documents, given by `starts` (layers.h). */
#include "test/ref/attention_bounds.h"

#define DOCUMENTS_FILE "test/ref/data/documents.rec"

/* Makes starts [B,T], the first position of each token's document. Documents have at most `every` tokens, and their
 * lengths change. every 0: one document. */
static Tensor starts_of(Stage *s, int64_t B, int64_t T, int64_t every) {
    Tensor   starts = stage_tokens(s, 2, B, T, 1, 2);
    int32_t *start = (int32_t *)starts.data;
    stage_settle();
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0, first = 0, length = every; t < T; t++) {
            if (every && t == first + length) first = t, length = 1 + (7 * t + 3 * b) % every;
            start[b * T + t] = (int32_t)first;
        }
    return starts;
}
static const int32_t *ids(Tensor t) { return (const int32_t *)t.data; }

/* --- float64 ------------------------------------------------------------------------------------------------------- */

typedef struct { int64_t B, T; HeadShape h; const int32_t *starts; double *y, *lse, *qkv, *dy; } Case;

static double objective(void *ctx) {
    Case *k = (Case *)ctx;
    ref_attention_forward(k->y, k->lse, k->qkv, k->starts, k->B, k->T, k->h.query, k->h.key, k->h.size);
    return dot(k->y, k->dy, k->B * k->T * k->h.query * k->h.size);
}

static void test_differences(void **state) {
    (void)state;
    HeadShape h = {4, 2, 3};
    int64_t   B = 2, T = 7, C = h.query * h.size, elems = B * T * heads_columns(h);
    Stage     s = stage_create(0);
    Case      k = {B, T, h, ids(starts_of(&s, B, T, 3)), stage_doubles(&s, B * T * C), stage_doubles(&s, B * h.query * T),
                   stage_random_doubles(&s, elems, 1, 1.5, 0), stage_random_doubles(&s, B * T * C, 2, 1, 0)};
    double   *dqkv = stage_doubles(&s, elems);
    ref_attention_backward(dqkv, k.dy, k.qkv, k.starts, B, T, h.query, h.key, h.size);
    assert_true(difference_proves(objective, &k, k.qkv, dqkv, elems));
    stage_destroy(&s);
}

/* A sequence of documents gives the same results as the documents one by one, with positions from 0, up to the last
 * bits of float64. */
static void test_alone(void **state) {
    (void)state;
    HeadShape h = {4, 2, 5};
    int64_t   T = 40, H = h.query, C = H * h.size, columns = heads_columns(h), V = 11;
    Stage     s = stage_create(0);
    Tensor    starts = starts_of(&s, 1, T, 9), tokens = stage_tokens(&s, 2, 1, T, 3, (int32_t)V);
    double   *qkv = stage_random_doubles(&s, T * columns, 4, 1.5, 0), *dy = stage_random_doubles(&s, T * C, 5, 1, 0),
             *y = stage_doubles(&s, T * C), *lse = stage_doubles(&s, H * T), *dqkv = stage_doubles(&s, T * columns),
             *y_alone = stage_doubles(&s, T * C), *lse_alone = stage_doubles(&s, H * T), *dqkv_alone = stage_doubles(&s, T * columns);
    double   *wte = stage_random_doubles(&s, V * C, 6, 1, 0), *wpe = stage_random_doubles(&s, T * C, 7, 1, 0),
             *dwte = stage_doubles(&s, V * C), *dwpe = stage_doubles(&s, T * C), *dwte_alone = stage_doubles(&s, V * C),
             *dwpe_alone = stage_doubles(&s, T * C);
    ref_attention_forward(y, lse, qkv, ids(starts), 1, T, H, h.key, h.size);
    ref_attention_backward(dqkv, dy, qkv, ids(starts), 1, T, H, h.key, h.size);
    int64_t documents = 0;
    for (int64_t first = 0, end; first < T; first = end, documents++) {
        for (end = first + 1; end < T && ids(starts)[end] == first;) end++;
        int64_t n = end - first;
        ref_attention_forward(y_alone + first * C, lse_alone, qkv + first * columns, NULL, 1, n, H, h.key, h.size);
        ref_attention_backward(dqkv_alone + first * columns, dy + first * C, qkv + first * columns, NULL, 1, n, H, h.key, h.size);
        for (int64_t i = 0; i < H * n; i++) assert_true(fabs(lse_alone[i] - lse[i / n * T + first + i % n]) < 1e-13);
    }
    assert_true(documents > 4);
    for (int64_t i = 0; i < T * C; i++) assert_true(fabs(y[i] - y_alone[i]) < 1e-13);
    for (int64_t i = 0; i < T * columns; i++) assert_true(fabs(dqkv[i] - dqkv_alone[i]) < 1e-13);

    ref_embedding_forward(y, ids(tokens), wte, wpe, ids(starts), 1, T, C);
    ref_embedding_backward(dwte, dwpe, dy, ids(tokens), ids(starts), 1, T, C);
    for (int64_t first = 0, end; first < T; first = end) {
        for (end = first + 1; end < T && ids(starts)[end] == first;) end++;
        ref_embedding_forward(y_alone + first * C, ids(tokens) + first, wte, wpe, NULL, 1, end - first, C);
        ref_embedding_backward(dwte_alone, dwpe_alone, dy + first * C, ids(tokens) + first, NULL, 1, end - first, C);
    }
    for (int64_t i = 0; i < T * C; i++) assert_true(y[i] == y_alone[i] && fabs(dwpe[i] - dwpe_alone[i]) < 1e-13);
    for (int64_t i = 0; i < V * C; i++) assert_true(fabs(dwte[i] - dwte_alone[i]) < 1e-13);
    stage_destroy(&s);
}

/* --- PyTorch -------------------------------------------------------------------------------------------------------- */

static void test_records(void **state) {
    (void)state;
    RecordFile f = record_load(DOCUMENTS_FILE);
    Stage      s = stage_create(8 << 20);
    Tensor     qkv = stage_record(&s, record_find(&f, "attention.qkv"), F32), dy = stage_record(&s, record_find(&f, "attention.dy"), F32),
               starts = stage_record(&s, record_find(&f, "starts"), I32), tokens = stage_record(&s, record_find(&f, "embedding.tokens"), I32),
               wte = stage_record(&s, record_find(&f, "embedding.wte"), F32), wpe = stage_record(&s, record_find(&f, "embedding.wpe"), F32);
    Tensor     dx = stage_record(&s, record_find(&f, "embedding.dy"), F32);
    const Record  *shape = record_find(&f, "attention.shape");
    const int32_t *heads = (const int32_t *)shape->data;
    HeadShape h = {heads[0], heads[1], heads[2]};
    int64_t   B = starts.dim[0], T = starts.dim[1], C = h.query * h.size, columns = heads_columns(h), V = wte.dim[0], W = wte.dim[1];
    double   *y64 = stage_doubles(&s, B * T * C), *lse64 = stage_doubles(&s, B * h.query * T), *dqkv64 = stage_doubles(&s, B * T * columns),
             *x64 = stage_doubles(&s, B * T * W), *dwte64 = stage_doubles(&s, V * W), *dwpe64 = stage_doubles(&s, wpe.dim[0] * W);
    ref_attention_forward(y64, lse64, stage_widen(&s, qkv), ids(starts), B, T, h.query, h.key, h.size);
    ref_attention_backward(dqkv64, stage_widen(&s, dy), stage_widen(&s, qkv), ids(starts), B, T, h.query, h.key, h.size);
    ref_embedding_forward(x64, ids(tokens), stage_widen(&s, wte), stage_widen(&s, wpe), ids(starts), B, T, W);
    ref_embedding_backward(dwte64, dwpe64, stage_widen(&s, dx), ids(tokens), ids(starts), B, T, W);
    assert_same_float64(y64, record_find(&f, "attention.y"));
    assert_same_float64(lse64, record_find(&f, "attention.lse"));
    assert_same_float64(dqkv64, record_find(&f, "attention.dqkv"));
    assert_same_float64(x64, record_find(&f, "embedding.y"));
    assert_same_float64(dwte64, record_find(&f, "embedding.dwte"));
    assert_same_float64(dwpe64, record_find(&f, "embedding.dwpe"));

    Tensor y = stage_tensor(&s, F32, 2, B * T, C), lse = stage_tensor(&s, F32, 2, B * h.query, T), dqkv = stage_tensor(&s, F32, 2, B * T, columns);
    /* The values are standard normal. The bound is for uniform values in +-sqrt(3), which have the same variance. */
    AttentionBounds b = attention_bounds(T, h, sqrt(3.0), sqrt(3.0));
    attention_forward(&s.stream, y, lse, qkv, starts, h);
    attention_backward(&s.stream, dqkv, tensor_none(), dy, y, lse, tensor_none(), qkv, starts, h);
    assert_close(y, (const double *)record_find(&f, "attention.y")->data, F32, b.y);
    assert_close(lse, (const double *)record_find(&f, "attention.lse")->data, F32, b.lse);
    assert_dqkv(&s, dqkv, (const double *)record_find(&f, "attention.dqkv")->data, h, b);
    record_unload(&f);
    stage_destroy(&s);
}

/* --- the ops -------------------------------------------------------------------------------------------------------- */

static void compare(DType act, int64_t B, int64_t T, int64_t every, HeadShape h, double spread) {
    int64_t C = h.query * h.size, columns = heads_columns(h);
    Stage   s = stage_create(STAGE_SCRATCH);
    Tensor  starts = starts_of(&s, B, T, every);
    Tensor  qkv = stage_random(&s, act, 2, B * T, columns, 1, spread, 0), dy = stage_random(&s, act, 2, B * T, C, 2, 1, 0);
    Tensor  y = stage_tensor(&s, act, 2, B * T, C), lse = stage_tensor(&s, F32, 2, B * h.query, T),
            dqkv = stage_tensor(&s, act, 2, B * T, columns);
    double *y64 = stage_doubles(&s, B * T * C), *lse64 = stage_doubles(&s, B * h.query * T),
           *dqkv64 = stage_doubles(&s, B * T * columns);
    ref_attention_forward(y64, lse64, stage_widen(&s, qkv), ids(starts), B, T, h.query, h.key, h.size);
    ref_attention_backward(dqkv64, stage_widen(&s, dy), stage_widen(&s, qkv), ids(starts), B, T, h.query, h.key, h.size);
    AttentionBounds b = attention_bounds(T, h, spread, 1.0);
    attention_forward(&s.stream, y, lse, qkv, starts, h);
    attention_backward(&s.stream, dqkv, tensor_none(), dy, y, lse, tensor_none(), qkv, starts, h);
    assert_close(y, y64, act, b.y);
    assert_close(lse, lse64, act, b.lse);
    assert_dqkv(&s, dqkv, dqkv64, h, b);
    if (!stage_is_slow()) { /* on the slow emulator only test_attention.c repeats the kernels */
        Tensor y_first = stage_copy(&s, y), lse_first = stage_copy(&s, lse), dqkv_first = stage_copy(&s, dqkv);
        attention_forward(&s.stream, y, lse, qkv, starts, h);
        attention_backward(&s.stream, dqkv, tensor_none(), dy, y, lse, tensor_none(), qkv, starts, h);
        assert_same_bits(y, y_first);
        assert_same_bits(lse, lse_first);
        assert_same_bits(dqkv, dqkv_first);
    }
    stage_destroy(&s);
}

/* Documents are shorter and longer than a tile, and begin inside tiles and where a tile begins. Also documents of one
 * token, and a single document. */
static void test_shapes(void **state) {
    (void)state;
    static const int64_t shapes[][6] = {{1, 1, 0, 1, 1, 4},    {2, 17, 1, 2, 2, 5},    {2, 70, 9, 4, 2, 16},  {1, 130, 64, 2, 2, 64},
                                        {2, 257, 90, 1, 1, 64}, {1, 131, 30, 4, 2, 64}, {1, 300, 128, 2, 1, 32}, {1, 200, 60, 2, 2, 80},
                                        {3, 150, 100, 2, 1, 128}, {1, 97, 0, 2, 2, 40}, {1, 400, 150, 1, 1, 24}, {1, 70, 20, 1, 1, 160},
                                        {1, 320, 140, 2, 1, 64}, {1, 193, 70, 1, 1, 128}};
    for (int t = 0; t < stage_act_types(); t++)
        for (int i = 0; i < COUNT(shapes); i++) {
            HeadShape h = {shapes[i][3], shapes[i][4], shapes[i][5]};
            /* a GPU has no kernels for heads of more than 128 channels */
            if (h.size > 128 && stage_act_types() == 3) continue;
            if (stage_is_slow() && (i + t) % 3 == 2) continue;    /* the slow emulator runs two of the three types */
            compare(ACT_TYPES[t], shapes[i][0], shapes[i][1], shapes[i][2], h, 1 + 2 * (i % 2));
        }
}

/* With one document in each sequence, the op gives the bits that it gives without `starts`. */
static void test_one_document(void **state) {
    (void)state;
    HeadShape h = {4, 2, 24};
    int64_t   B = 2, T = 150, C = h.query * h.size;
    for (int t = 0; t < stage_act_types(); t++) {
        DType  act = ACT_TYPES[t];
        Stage  s = stage_create(STAGE_SCRATCH);
        Tensor starts = starts_of(&s, B, T, 0), qkv = stage_random(&s, act, 2, B * T, heads_columns(h), 1, 2, 0),
               dy = stage_random(&s, act, 2, B * T, C, 2, 1, 0), y = stage_tensor(&s, act, 2, B * T, C), y_plain = stage_copy(&s, y);
        Tensor lse = stage_tensor(&s, F32, 2, B * h.query, T), lse_plain = stage_copy(&s, lse), dqkv = stage_copy(&s, qkv),
               dplain = stage_copy(&s, qkv);
        attention_forward(&s.stream, y, lse, qkv, starts, h);
        attention_backward(&s.stream, dqkv, tensor_none(), dy, y, lse, tensor_none(), qkv, starts, h);
        attention_forward(&s.stream, y_plain, lse_plain, qkv, tensor_none(), h);
        attention_backward(&s.stream, dplain, tensor_none(), dy, y_plain, lse_plain, tensor_none(), qkv, tensor_none(), h);
        assert_same_bits(y, y_plain);
        assert_same_bits(lse, lse_plain);
        assert_same_bits(dqkv, dplain);
        stage_destroy(&s);
    }
}

/* Runs the ranks of context parallelism one after another, on parts of a sequence. Their y and gradients of queries
 * have the same bits as those computed in one piece. The gradients of keys and values, added up over the ranks,
 * agree with the fp64 reference. Documents begin in any chunk and end in another. */
static void compare_context(DType act, int64_t ranks, int64_t B, int64_t T, int64_t every, HeadShape h) {
    int64_t H = h.query, C = H * h.size, columns = heads_columns(h), wide = columns - C, own = T / ranks, N = B * own;
    Stage   s = stage_create(STAGE_SCRATCH);
    Tensor  starts = starts_of(&s, B, T, every), part_starts = stage_tokens(&s, 2, B, own, 1, 2);
    Tensor  qkv = stage_random(&s, act, 2, B * T, columns, 1, 1, 0), dy = stage_random(&s, act, 2, B * T, C, 2, 1, 0);
    Tensor  y = stage_tensor(&s, act, 2, B * T, C), lse = stage_tensor(&s, F32, 2, B * H, T), dqkv = stage_tensor(&s, act, 2, B * T, columns);
    Tensor  part = stage_tensor(&s, act, 2, N, columns), part_dy = stage_tensor(&s, act, 2, N, C), part_y = stage_tensor(&s, act, 2, N, C),
            part_lse = stage_tensor(&s, F32, 2, B * H, own), dpart = stage_tensor(&s, act, 2, N, columns),
            keys = stage_tensor(&s, act, 2, ranks * N, wide), dkeys = stage_tensor(&s, act, 2, ranks * N, wide);
    double *dqkv64 = stage_doubles(&s, B * T * columns), *sums = stage_doubles(&s, ranks * N * wide);
    ref_attention_backward(dqkv64, stage_widen(&s, dy), stage_widen(&s, qkv), ids(starts), B, T, H, h.key, h.size);
    attention_forward(&s.stream, y, lse, qkv, starts, h);
    attention_backward(&s.stream, dqkv, tensor_none(), dy, y, lse, tensor_none(), qkv, starts, h);
    stage_settle();
    for (int64_t i = 0; i < ranks * N * wide; i++) {
        int64_t   row = i / wide % N;
        Positions at = positions_of((ContextPart){ranks, i / (N * wide)}, own);
        tensor_set(keys, i, tensor_get(qkv, (row / own * T + POSITION_OF(at, row % own)) * columns + C + i % wide));
    }
    for (int64_t rank = 0; rank < ranks; rank++) {
        ContextPart context = {ranks, rank};
        Positions   at = positions_of(context, own);
        for (int64_t b = 0; b < B; b++) context_take((int32_t *)part_starts.data + b * own, ids(starts) + b * T, context, own);
        for (int64_t i = 0; i < N * columns; i++) {
            int64_t row = i / columns, from = row / own * T + POSITION_OF(at, row % own), column = i % columns;
            tensor_set(part, i, tensor_get(qkv, from * columns + column));
            if (column < C) tensor_set(part_dy, row * C + column, tensor_get(dy, from * C + column));
        }
        attention_context_forward(&s.stream, part_y, part_lse, part, keys, part_starts, context, h);
        attention_context_backward(&s.stream, dpart, tensor_none(), dkeys, part_dy, part_y, part_lse, tensor_none(), part, keys, part_starts, context,
                                   h);
        stage_settle();
        for (int64_t i = 0; i < N * C; i++) {
            int64_t row = i / C, from = row / own * T + POSITION_OF(at, row % own);
            assert_true(tensor_get(part_y, i) == tensor_get(y, from * C + i % C));
            assert_true(tensor_get(dpart, row * columns + i % C) == tensor_get(dqkv, from * columns + i % C));
        }
        for (int64_t i = 0; i < ranks * N * wide; i++) sums[i] += tensor_get(dkeys, i);
    }
    for (int64_t i = 0; i < ranks * N * wide; i++) {
        int64_t   row = i / wide % N;
        Positions at = positions_of((ContextPart){ranks, i / (N * wide)}, own);
        tensor_set(dqkv, (row / own * T + POSITION_OF(at, row % own)) * columns + C + i % wide, (float)sums[i]);
    }
    AttentionBounds b = attention_bounds(T, h, 1.0, 1.0);
    /* each rank rounds its share of the gradient, which adds one rounding to the bound */
    b.dv.roundings++, b.dqk.roundings++;
    assert_dqkv(&s, dqkv, dqkv64, h, b);
    stage_destroy(&s);
}

static void test_context(void **state) {
    (void)state;
    static const struct { int64_t ranks, B, T, every; HeadShape h; } cases[] = {
        {2, 1, 256, 50, {1, 1, 16}}, {2, 2, 256, 150, {2, 1, 64}}, {3, 2, 384, 100, {2, 2, 5}}, {4, 1, 512, 300, {1, 1, 80}}};
    for (int a = 0; a < stage_act_types(); a++)
        for (int i = 0; i < (stage_is_slow() ? 2 : COUNT(cases)); i++)
            if (!stage_is_slow() || i != 1 - a) /* the slow emulator runs one of the first two shapes in fp32, the other
                                                 * in bf16, and both in fp16 */
                compare_context(ACT_TYPES[a], cases[i].ranks, cases[i].B, cases[i].T, cases[i].every, cases[i].h);
}

/* The tokens of another document change no bit of this document, and get no gradient from it. */
static void test_apart(void **state) {
    (void)state;
    enum { T = 150, FIRST = 70, C = 32 };
    HeadShape h = {2, 1, 16};
    int64_t   columns = heads_columns(h);
    for (int t = 0; t < stage_act_types(); t++) {
        DType  act = ACT_TYPES[t];
        Stage  s = stage_create(STAGE_SCRATCH);
        Tensor starts = starts_of(&s, 1, T, FIRST), qkv = stage_random(&s, act, 2, T, columns, 1, 2, 0), lse = stage_tensor(&s, F32, 2, 2, T),
               y = stage_tensor(&s, act, 2, T, C), y_changed = stage_tensor(&s, act, 2, T, C), dqkv = stage_tensor(&s, act, 2, T, columns),
               dy = stage_random(&s, act, 2, T, C, 2, 1, 0);
        assert_int_equal(ids(starts)[FIRST], FIRST);
        attention_forward(&s.stream, y, lse, qkv, starts, h);
        stage_settle();
        for (int64_t i = 0; i < FIRST * columns; i++) tensor_set(qkv, i, 3.0f);
        for (int64_t i = 0; i < FIRST * C; i++) tensor_set(dy, i, 0.0f);
        attention_forward(&s.stream, y_changed, lse, qkv, starts, h);
        attention_backward(&s.stream, dqkv, tensor_none(), dy, y_changed, lse, tensor_none(), qkv, starts, h);
        stage_settle();
        for (int64_t i = FIRST * C; i < T * C; i++) assert_true(tensor_get(y, i) == tensor_get(y_changed, i));
        for (int64_t i = 0; i < FIRST * columns; i++) assert_true(tensor_get(dqkv, i) == 0.0f);
        stage_destroy(&s);
    }
}

/* Compares the embedding of documents with the reference. Positions begin at 0 in each document, so each row of wpe
 * gets many additions, in two calls. */
static void compare_embedding(DType act, int64_t B, int64_t T, int64_t every, int64_t C) {
    enum { V = 30 };
    Stage   s = stage_create(STAGE_SCRATCH);
    Tensor  starts = starts_of(&s, B, T, every), tokens = stage_tokens(&s, 2, B, T, 5, V), y = stage_tensor(&s, act, 2, B * T, C);
    Tensor  wte = stage_random(&s, act, 2, V, C, 6, 1, 0), wpe = stage_random(&s, act, 2, T + 2, C, 7, 1, 0),
            dy = stage_random(&s, act, 2, B * T, C, 8, 1, 0), dwte = stage_random(&s, F32, 2, V, C, 9, 1, 0),
            dwpe = stage_random(&s, F32, 2, T + 2, C, 10, 1, 0);
    double *y64 = stage_doubles(&s, B * T * C), *dwte64 = stage_widen(&s, dwte), *dwpe64 = stage_widen(&s, dwpe), *dy64 = stage_widen(&s, dy);
    ref_embedding_forward(y64, ids(tokens), stage_widen(&s, wte), stage_widen(&s, wpe), ids(starts), B, T, C);
    embedding_forward(&s.stream, y, tokens, wte, wpe, starts, WHOLE_SEQUENCE);
    assert_close(y, y64, act, bound_sum(2));
    for (int pass = 0; pass < 2; pass++) {
        ref_embedding_backward(dwte64, dwpe64, dy64, ids(tokens), ids(starts), B, T, C);
        embedding_backward(&s.stream, dwte, dwpe, dy, tokens, starts, WHOLE_SEQUENCE);
    }
    assert_close(dwte, dwte64, act, bound_sum(2 * B * T));
    assert_close(dwpe, dwpe64, act, bound_sum(2 * B * T));
    stage_destroy(&s);
}

static void test_embedding(void **state) {
    (void)state;
    for (int t = 0; t < stage_act_types(); t++) {
        compare_embedding(ACT_TYPES[t], 1, 1, 0, 3);
        compare_embedding(ACT_TYPES[t], 2, 40, 7, 24);
        /* documents of one token have only position 0, so one row of wpe gets all additions */
        compare_embedding(ACT_TYPES[t], 3, 90, 1, 37);
        compare_embedding(ACT_TYPES[t], 2, 33, 0, 64);
    }
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_differences), cmocka_unit_test(test_alone), cmocka_unit_test(test_records),
                                     cmocka_unit_test(test_shapes), cmocka_unit_test(test_one_document), cmocka_unit_test(test_context),
                                     cmocka_unit_test(test_apart), cmocka_unit_test(test_embedding)};
    return cmocka_run_group_tests_name("documents", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
