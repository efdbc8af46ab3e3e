/* test_attention.c - attention_forward and attention_backward. */
#include "test/ref/attention_bounds.h"

#define HEADS_FILE "test/ref/data/heads.rec"

static void reference_forward(double *y, double *lse, const double *qkv, int64_t B, int64_t T, HeadShape h) {
    ref_attention_forward(y, lse, qkv, NULL, B, T, h.query, h.key, h.size);
}
static void reference_backward(double *dqkv, const double *dy, const double *qkv, int64_t B, int64_t T, HeadShape h) {
    ref_attention_backward(dqkv, dy, qkv, NULL, B, T, h.query, h.key, h.size);
}

typedef struct { int64_t B, T; HeadShape h; double *y, *lse, *qkv, *dy; } Case;

static double objective(void *ctx) {
    Case *k = (Case *)ctx;
    reference_forward(k->y, k->lse, k->qkv, k->B, k->T, k->h);
    return dot(k->y, k->dy, k->B * k->T * k->h.query * k->h.size);
}

static void differ(int64_t B, int64_t T, HeadShape h) {
    int64_t C = h.query * h.size, elems = B * T * heads_columns(h);
    Stage   s = stage_create(0);
    Case    k = {B,
                 T,
                 h,
                 stage_doubles(&s, B * T * C),
                 stage_doubles(&s, B * h.query * T),
                 stage_random_doubles(&s, elems, 1, 1.5, 0),
                 stage_random_doubles(&s, B * T * C, 2, 1, 0)};
    double *dqkv = stage_doubles(&s, elems);
    reference_backward(dqkv, k.dy, k.qkv, B, T, h);
    assert_true(difference_proves(objective, &k, k.qkv, dqkv, elems));
    stage_destroy(&s);
}

static void test_differences(void **state) {
    (void)state;
    differ(2, 5, (HeadShape){2, 2, 3});
    differ(2, 4, (HeadShape){6, 2, 3});
}

static void compare_records(const char *file, int64_t group) {
    RecordFile f = record_load(file);
    const Record *lse_record = record_find(&f, "attention.lse");
    Stage   s = stage_create(8 << 20);
    Tensor        qkv = stage_record(&s, record_find(&f, "attention.qkv"), F32),
           dy = stage_record(&s, record_find(&f, "attention.dy"), F32);
    int64_t T = lse_record->head.dim[1], B = qkv.dim[0] / T, H = lse_record->head.dim[0] / B, C = dy.dim[1],
            columns = qkv.dim[1];
    HeadShape h = {H, H / group, C / H};
    double *y64 = stage_doubles(&s, B * T * C), *lse64 = stage_doubles(&s, B * H * T), *dqkv64 = stage_doubles(&s, B * T * columns);
    reference_forward(y64, lse64, stage_widen(&s, qkv), B, T, h);
    reference_backward(dqkv64, stage_widen(&s, dy), stage_widen(&s, qkv), B, T, h);
    assert_same_float64(y64, record_find(&f, "attention.y"));
    assert_same_float64(lse64, lse_record);
    assert_same_float64(dqkv64, record_find(&f, "attention.dqkv"));

    Tensor y = stage_tensor(&s, F32, 2, B * T, C), lse = stage_tensor(&s, F32, 2, B * H, T),
           dqkv = stage_tensor(&s, F32, 2, B * T, columns);
    /* The values are standard normal. The bound is for uniform values in +-sqrt(3), which have the same variance. */
    AttentionBounds b = attention_bounds(T, h, sqrt(3.0), sqrt(3.0));
    attention_forward(&s.stream, y, lse, qkv, tensor_none(), h);
    attention_backward(&s.stream, dqkv, tensor_none(), dy, y, lse, tensor_none(), qkv, tensor_none(), h);
    assert_close(y, (const double *)record_find(&f, "attention.y")->data, F32, b.y);
    assert_close(lse, (const double *)lse_record->data, F32, b.lse);
    assert_dqkv(&s, dqkv, (const double *)record_find(&f, "attention.dqkv")->data, h, b);
    record_unload(&f);
    stage_destroy(&s);
}

static void test_records(void **state) {
    (void)state;
    compare_records(OPS_FILE, 1);
    compare_records(HEADS_FILE, 3);
}

/* Adds to sums[c] the elements of column c of x, rounded to its type as stored. */
static void add_columns(double *sums, Tensor x) {
    stage_settle();
    for (int64_t i = 0; i < tensor_elems(x); i++) sums[i % x.dim[1]] += (double)tensor_get(x, i);
}

static void compare(DType act, int64_t B, int64_t T, HeadShape h, double spread) {
    int64_t C = h.query * h.size, columns = heads_columns(h);
    Stage   s = stage_create(STAGE_SCRATCH);
    Tensor  qkv = stage_random(&s, act, 2, B * T, columns, 1, spread, 0), dy = stage_random(&s, act, 2, B * T, C, 2, 1, 0);
    Tensor  y = stage_tensor(&s, act, 2, B * T, C), lse = stage_tensor(&s, F32, 2, B * h.query, T),
           dqkv = stage_tensor(&s, act, 2, B * T, columns);
    double *y64 = stage_doubles(&s, B * T * C), *lse64 = stage_doubles(&s, B * h.query * T),
           *dqkv64 = stage_doubles(&s, B * T * columns);
    reference_forward(y64, lse64, stage_widen(&s, qkv), B, T, h);
    reference_backward(dqkv64, stage_widen(&s, dy), stage_widen(&s, qkv), B, T, h);
    AttentionBounds b = attention_bounds(T, h, spread, 1.0);
    attention_forward(&s.stream, y, lse, qkv, tensor_none(), h);
    assert_close(y, y64, act, b.y);
    assert_close(lse, lse64, act, b.lse);
    attention_backward(&s.stream, dqkv, tensor_none(), dy, y, lse, tensor_none(), qkv, tensor_none(), h);
    assert_dqkv(&s, dqkv, dqkv64, h, b);
    Tensor y_first = stage_copy(&s, y), lse_first = stage_copy(&s, lse), dqkv_first = stage_copy(&s, dqkv);
    Tensor  delta = stage_tensor(&s, F32, 2, h.query, B * T), dbias = stage_random(&s, F32, 1, columns, 1, 5, 1, 0);
    double *delta64 = stage_doubles(&s, h.query * B * T), *dbias64 = stage_widen(&s, dbias);
    ref_attention_delta(delta64, stage_widen(&s, dy), stage_widen(&s, y), B * T, h.query, h.size);
    attention_delta(&s.stream, delta, dy, y);
    assert_close(delta, delta64, F32, bound_sum(h.size));
    /* A second run must overwrite the results of the first with equal bits. The emulator is slow, so there forward runs
     * once. */
    if (!stage_is_slow()) attention_forward(&s.stream, y, lse, qkv, tensor_none(), h);
    /* this time backward gets delta (the row sums of dy * y) instead of computing it, and adds column sums to dbias */
    int has_bias = attention_backward(&s.stream, dqkv, dbias, dy, y, lse, delta, qkv, tensor_none(), h);
    assert_same_bits(y, y_first);
    assert_same_bits(lse, lse_first);
    assert_same_bits(dqkv, dqkv_first);
    /* a return value of 0 means that this kernel cannot compute the sums and left dbias unchanged */
    if (has_bias) add_columns(dbias64, dqkv);
    assert_close(dbias, dbias64, F32, bound_sum(B * T));
    stage_destroy(&s);
}

/* Runs context ranks one after another. Each has its chunks of every sequence, and the gathered keys and values of all
 * ranks. Its rows have the bits that one rank computes. The gradients of keys and values that the ranks compute add up
 * to those of one rank. */
static void compare_context(DType act, int64_t ranks, int64_t B, int64_t T, HeadShape h) {
    int64_t H = h.query, C = H * h.size, columns = heads_columns(h), wide = columns - C, own = T / ranks, N = B * own,
            in_rank = N * wide;
    Stage   s = stage_create(STAGE_SCRATCH);
    Tensor  qkv = stage_random(&s, act, 2, B * T, columns, 1, 1, 0), dy = stage_random(&s, act, 2, B * T, C, 2, 1, 0);
    Tensor  y = stage_tensor(&s, act, 2, B * T, C), lse = stage_tensor(&s, F32, 2, B * H, T),
           dqkv = stage_tensor(&s, act, 2, B * T, columns);
    Tensor part = stage_tensor(&s, act, 2, N, columns), part_dy = stage_tensor(&s, act, 2, N, C),
           part_y = stage_tensor(&s, act, 2, N, C);
    Tensor part_lse = stage_tensor(&s, F32, 2, B * H, own), dpart = stage_tensor(&s, act, 2, N, columns),
           keys = stage_tensor(&s, act, 2, ranks * N, wide);
    Tensor  dkeys = stage_tensor(&s, act, 2, ranks * N, wide);
    double *dqkv64 = stage_doubles(&s, B * T * columns), *sums = stage_doubles(&s, ranks * in_rank);
    reference_backward(dqkv64, stage_widen(&s, dy), stage_widen(&s, qkv), B, T, h);
    attention_forward(&s.stream, y, lse, qkv, tensor_none(), h);
    attention_backward(&s.stream, dqkv, tensor_none(), dy, y, lse, tensor_none(), qkv, tensor_none(), h);
    stage_settle();
    for (int64_t i = 0; i < ranks * in_rank; i++) {
        int64_t   row = i / wide % N;
        Positions at = positions_of((ContextPart){ranks, i / in_rank}, own);
        tensor_set(keys, i, tensor_get(qkv, (row / own * T + POSITION_OF(at, row % own)) * columns + C + i % wide));
    }
    for (int64_t rank = 0; rank < ranks; rank++) {
        ContextPart context = {ranks, rank};
        Positions   at = positions_of(context, own);
        for (int64_t i = 0; i < N * columns; i++) {
            int64_t row = i / columns, from = row / own * T + POSITION_OF(at, row % own), column = i % columns;
            tensor_set(part, i, tensor_get(qkv, from * columns + column));
            if (column < C) tensor_set(part_dy, row * C + column, tensor_get(dy, from * C + column));
        }
        attention_context_forward(&s.stream, part_y, part_lse, part, keys, tensor_none(), context, h);
        attention_context_backward(&s.stream, dpart, tensor_none(), dkeys, part_dy, part_y, part_lse, tensor_none(), part, keys, tensor_none(), context,
                                   h);
        stage_settle();
        for (int64_t i = 0; i < N * C; i++) {
            int64_t row = i / C, from = row / own * T + POSITION_OF(at, row % own);
            assert_true(tensor_get(part_y, i) == tensor_get(y, from * C + i % C));
            assert_true(tensor_get(dpart, row * columns + i % C) == tensor_get(dqkv, from * columns + i % C));
        }
        for (int64_t i = 0; i < B * H * own; i++)
            assert_true(tensor_get(part_lse, i) == tensor_get(lse, i / own * T + POSITION_OF(at, i % own)));
        for (int64_t i = 0; i < ranks * in_rank; i++) sums[i] += tensor_get(dkeys, i);
    }
    for (int64_t i = 0; i < ranks * in_rank; i++) {
        int64_t   row = i / wide % N;
        Positions at = positions_of((ContextPart){ranks, i / in_rank}, own);
        tensor_set(dqkv, (row / own * T + POSITION_OF(at, row % own)) * columns + C + i % wide, (float)sums[i]);
    }
    AttentionBounds b = attention_bounds(T, h, 1.0, 1.0);
    /* each rank rounds its share of the gradient, which adds one rounding to the bound; the errors of the shares are
     * independent */
    b.dv.roundings++, b.dqk.roundings++;
    assert_dqkv(&s, dqkv, dqkv64, h, b);
    stage_destroy(&s);
}

/* Copies of columns arrive at the right place and change no others, with whole 16-byte vectors and without. */
static void test_columns(void **state) {
    (void)state;
    static const int64_t cases[][6] = {{1, 1, 0, 1, 0, 1}, {5, 48, 16, 32, 0, 32}, {70, 24, 8, 40, 16, 16},
                                       {3, 17, 3, 11, 2, 7}, {9, 64, 0, 96, 32, 64}, {2, 8, 8, 8, 0, 0}};
    for (int a = 0; a < stage_act_types(); a++)
        for (int i = 0; i < COUNT(cases); i++) {
            int64_t N = cases[i][0], to_width = cases[i][1], to_first = cases[i][2], from_width = cases[i][3],
                    from_first = cases[i][4], columns = cases[i][5];
            Stage   s = stage_create(0);
            Tensor  to = stage_random(&s, ACT_TYPES[a], 2, N, to_width, 1, 1, 0),
                   from = stage_random(&s, ACT_TYPES[a], 2, N, from_width, 2, 1, 0);
            Tensor  before = stage_copy(&s, to);
            copy_columns(&s.stream, to, to_first, from, from_first, columns);
            stage_settle();
            for (int64_t k = 0; k < N * to_width; k++) {
                int64_t row = k / to_width, column = k % to_width - to_first;
                float want = column >= 0 && column < columns ? tensor_get(from, row * from_width + from_first + column)
                                                             : tensor_get(before, k);
                assert_true(tensor_get(to, k) == want);
            }
            stage_destroy(&s);
        }
}

/* Tests context ranks with several shapes and types. On the emulator each type runs two of the first four shapes: the
 * code that finds a rank's rows is the same for all types. */
static void test_context(void **state) {
    (void)state;
    static const struct { int64_t ranks, B, T; HeadShape h; } cases[] = {
        {2, 1, 256, {1, 1, 16}}, {3, 2, 384, {2, 2, 5}},  {2, 1, 256, {1, 1, 64}},
        {2, 1, 256, {2, 1, 8}},  {4, 1, 512, {1, 1, 80}}, {2, 2, 256, {3, 3, 24}}, {3, 2, 384, {3, 1, 33}}};
    for (int a = 0; a < stage_act_types(); a++)
        for (int i = 0; i < (stage_is_slow() ? 4 : COUNT(cases)); i++)
            if (!stage_is_slow() || (i + a) % 2 == 0)
                compare_context(ACT_TYPES[a], cases[i].ranks, cases[i].B, cases[i].T, cases[i].h);
}

/* GPU kernels exist for heads of 32, 64, 96 and 128 channels. Rows that are not whole 16-byte vectors are loaded in
 * another way. The last shapes have heads that share keys: one head of keys for all queries, several, odd sizes, more
 * than a tile. */
static void test_shapes(void **state) {
    (void)state;
    static const int64_t shapes[][5] = {{1, 1, 1, 1, 1},   {2, 2, 1, 1, 3},   {1, 17, 2, 2, 5},   {4, 40, 3, 3, 14},  {1, 65, 1, 1, 16},
                                        {2, 33, 2, 2, 32}, {1, 130, 2, 2, 64}, {1, 300, 1, 1, 24}, {1, 64, 1, 1, 128}, {2, 40, 1, 1, 40},
                                        {1, 65, 2, 2, 50}, {1, 130, 1, 1, 80}, {1, 1, 2, 2, 96},   {1, 40, 1, 1, 77},  {1, 65, 1, 1, 96},
                                        {1, 130, 1, 1, 128}, {1, 65, 1, 1, 101}, {2, 257, 1, 1, 64}, {1, 20, 1, 1, 160},
                                        {1, 1, 2, 1, 4},   {2, 19, 6, 2, 16}, {2, 67, 4, 1, 9},   {1, 20, 4, 2, 128}, {1, 131, 4, 2, 64},
                                        {3, 37, 5, 1, 24}, {2, 20, 4, 2, 80}};
    for (int t = 0; t < stage_act_types(); t++)
        for (int i = 0; i < COUNT(shapes); i++) {
            HeadShape h = {shapes[i][2], shapes[i][3], shapes[i][4]};
            /* a GPU has no kernels for heads of more than 128 channels */
            if (h.size > 128 && stage_act_types() == 3) continue;
            /* T = 257 in fp32 is left out on the slow emulator, because T = 130 already has three tiles */
            if (stage_is_slow() && ACT_TYPES[t] == F32 && shapes[i][1] == 257) continue;
            for (int spread = 1; spread <= 3; spread += 2) {
                /* the slow emulator runs each shape with one of the two sizes of values */
                if (stage_is_slow() && (i + t + spread / 2) % 2) continue;
                compare(ACT_TYPES[t], shapes[i][0], shapes[i][1], h, spread);
            }
        }
}

/* A GPU of compute capability 9.0 has kernels of its own for heads of 64 and 128 channels, which compute 128 rows at
 * once. Tests lengths around multiples of 128, a case in which a thread block computes several work items, and
 * context ranks whose chunks have 64 rows. */
static void test_whole_tiles(void **state) {
    (void)state;
    static const struct { int64_t B, T; HeadShape h; } cases[] = {
        {1, 1, {1, 1, 64}},   {2, 63, {1, 1, 128}}, {1, 128, {2, 1, 64}}, {1, 129, {1, 1, 128}},
        {1, 191, {1, 1, 64}}, {7, 65, {1, 1, 64}},  {2, 193, {2, 1, 64}}};
    for (int t = 0; t < stage_act_types(); t++) {
        if (ACT_TYPES[t] == F32) continue; /* kernels for compute capability 9.0 take only 16-bit types */
        for (int i = 0; i < COUNT(cases); i++)
            if (!stage_is_slow() || (i + t) % 2) compare(ACT_TYPES[t], cases[i].B, cases[i].T, cases[i].h, 1 + 2 * (i % 2));
        compare_context(ACT_TYPES[t], 2, 1, 256, (HeadShape){2, 1, 128});
    }
}

/* Sets TRAIN_GPT_ATTENTION, by which users choose attention kernels. Returns the previous value, which asked_before()
 * restores. */
static char *ask(const char *kernels) {
    const char *before = getenv("TRAIN_GPT_ATTENTION");
    char       *kept = before ? strdup(before) : NULL;
    setenv("TRAIN_GPT_ATTENTION", kernels, 1);
    return kept;
}
static void asked_before(char *kept) {
    if (kept) setenv("TRAIN_GPT_ATTENTION", kept, 1);
    else unsetenv("TRAIN_GPT_ATTENTION");
    free(kept);
}

/* Tests the portable attention kernels for heads of 64 and 128 channels. GPUs that are not Hopper use them. */
static void test_portable(void **state) {
    (void)state;
    char *before = ask("portable");
    for (int t = 0; t < stage_act_types(); t++) {
        compare(ACT_TYPES[t], 1, 130, (HeadShape){1, 1, 64}, 1);
        compare(ACT_TYPES[t], 1, 70, (HeadShape){2, 1, 128}, 3);
    }
    compare_context(ACT_TYPES[stage_act_types() - 1], 2, 1, 256, (HeadShape){1, 1, 64});
    asked_before(before);
}

/* Returns the FLOPs that all wgmma instructions have computed so far. Only the emulator has this function. */
double emu_products(void) __attribute__((weak));

/* Returns the FLOPs of a backward pass with five products for each tile of 128 keys by 64 queries. A tile is computed
 * if some of its queries see some of its keys. Of each 128 keys the first tile counts half. */
static double five_products(int64_t heads, int64_t T, int64_t D) {
    double tiles = 0.0;
    for (int64_t key = 0; key < T; key += 128) tiles += (double)((T - key + 63) / 64) - 0.5;
    return tiles * (double)heads * 5 * 2 * 128 * 64 * (double)D;
}

/* Runs the backward kernel in which one block computes a whole head. Compares it with the reference, and with the
 * kernel that has separate blocks for keys and for queries. dqkv must have equal bits. every: tokens of a document;
 * 0: no documents. In each sequence documents are 20 tokens shorter than in the one before, so that wrong heads
 * would show. */
static void compare_by_heads(DType act, int64_t B, int64_t T, int64_t every, HeadShape h) {
    int64_t C = h.query * h.size, columns = heads_columns(h);
    Stage   s = stage_create(STAGE_SCRATCH);
    Tensor  qkv = stage_random(&s, act, 2, B * T, columns, 1, 2, 0), dy = stage_random(&s, act, 2, B * T, C, 2, 1, 0),
            y = stage_tensor(&s, act, 2, B * T, C), lse = stage_tensor(&s, F32, 2, B * h.query, T),
            dqkv = stage_random(&s, act, 2, B * T, columns, 3, 1, 0), by_tiles = stage_copy(&s, dqkv), starts = tensor_none(),
            dbias = stage_random(&s, F32, 1, columns, 1, 5, 1, 0), dbias_by_tiles = stage_copy(&s, dbias);
    double *dqkv64 = stage_doubles(&s, B * T * columns), *dbias64 = stage_widen(&s, dbias);
    if (every) starts = stage_tokens(&s, 2, B, T, 1, 2);
    stage_settle();
    for (int64_t i = 0; every && i < B * T; i++) ((int32_t *)starts.data)[i] = (int32_t)(i % T - i % T % (every - i / T * 20));
    ref_attention_backward(dqkv64, stage_widen(&s, dy), stage_widen(&s, qkv), (const int32_t *)starts.data, B, T, h.query, h.key, h.size);
    attention_forward(&s.stream, y, lse, qkv, starts, h);
    double products = emu_products ? emu_products() : 0.0;
    assert_true(attention_backward(&s.stream, dqkv, dbias, dy, y, lse, tensor_none(), qkv, starts, h));
    assert_dqkv(&s, dqkv, dqkv64, h, attention_bounds(T, h, 2.0, 1.0));
    add_columns(dbias64, dqkv);
    assert_close(dbias, dbias64, F32, bound_sum(B * T));
    if (emu_products && !every && h.query == h.key) assert_true(emu_products() - products == five_products(B * h.query, T, h.size));
    char *before = ask("hopper-tiles");
    assert_true(attention_backward(&s.stream, by_tiles, dbias_by_tiles, dy, y, lse, tensor_none(), qkv, starts, h));
    asked_before(before);
    assert_same_bits(dqkv, by_tiles);
    assert_close(dbias_by_tiles, dbias64, F32, bound_sum(B * T));
    stage_destroy(&s);
}
static void test_by_heads(void **state) {
    (void)state;
    static const struct { int64_t B, T, every; HeadShape h; } cases[] = {
        {1, 300, 0, {1, 1, 64}}, {1, 260, 0, {1, 1, 64}},   {3, 65, 0, {3, 3, 64}},   {1, 128, 0, {2, 2, 64}},
        {2, 1, 0, {1, 1, 64}},   {5, 200, 110, {1, 1, 64}}, {1, 385, 150, {1, 1, 64}}, {1, 192, 0, {2, 1, 64}},
        {1, 200, 0, {1, 1, 128}}, {1, 260, 0, {1, 1, 128}}, {3, 140, 80, {1, 1, 128}}, {3, 65, 0, {2, 2, 128}}};
    if (strcmp(device_isa(), "sm_90") != 0) skip();
    char *before = ask("hopper-heads");
    for (int t = 0; t < stage_act_types(); t++)
        for (int i = 0; i < COUNT(cases); i++)
            if (ACT_TYPES[t] != F32 && (!stage_is_slow() || (i + t) % 2))
                compare_by_heads(ACT_TYPES[t], cases[i].B, cases[i].T, cases[i].every, cases[i].h);
    asked_before(before);
}

/* The outputs of heads that share keys equal, bit for bit, those of heads with copies of these keys. */
static void test_copied_keys(void **state) {
    (void)state;
    enum { T = 70, H = 4, D = 16 };
    HeadShape h = {H, 2, D}, apart = {H, H, D};
    for (int t = 0; t < stage_act_types(); t++) {
        DType  act = ACT_TYPES[t];
        Stage  s = stage_create(STAGE_SCRATCH);
        Tensor qkv = stage_random(&s, act, 2, T, heads_columns(h), 1, 2, 0), dy = stage_random(&s, act, 2, T, H * D, 2, 1, 0),
               copied = stage_tensor(&s, act, 2, T, heads_columns(apart)), y = stage_tensor(&s, act, 2, T, H * D),
               y_apart = stage_copy(&s, y);
        Tensor lse = stage_tensor(&s, F32, 2, H, T), lse_apart = stage_copy(&s, lse), dqkv = stage_copy(&s, qkv),
               dcopied = stage_copy(&s, copied);
        stage_settle();
        for (int64_t i = 0; i < tensor_elems(copied); i++) {
            int64_t row = i / (3 * H * D), head = i / D % (3 * H), own = head < H ? head : H + (head - H) / 2;
            tensor_set(copied, i, tensor_get(qkv, row * heads_columns(h) + own * D + i % D));
        }
        attention_forward(&s.stream, y, lse, qkv, tensor_none(), h);
        attention_forward(&s.stream, y_apart, lse_apart, copied, tensor_none(), apart);
        assert_same_bits(y, y_apart);
        assert_same_bits(lse, lse_apart);
        attention_backward(&s.stream, dqkv, tensor_none(), dy, y, lse, tensor_none(), qkv, tensor_none(), h);
        attention_backward(&s.stream, dcopied, tensor_none(), dy, y, lse, tensor_none(), copied, tensor_none(), apart);
        stage_settle();
        for (int64_t i = 0; i < T * H * D; i++)
            assert_true(tensor_get(dqkv, i / (H * D) * heads_columns(h) + i % (H * D)) ==
                        tensor_get(dcopied, i / (H * D) * heads_columns(apart) + i % (H * D)));
        stage_destroy(&s);
    }
}

/* A change of tokens at a later position must change no bit of the results at earlier positions. */
static void test_causal(void **state) {
    (void)state;
    enum { T = 70, C = 32, H = 2 };
    HeadShape h = {H, H, C / H};
    for (int t = 0; t < stage_act_types(); t++) {
        DType  act = ACT_TYPES[t];
        Stage  s = stage_create(STAGE_SCRATCH);
        Tensor qkv = stage_random(&s, act, 2, T, 3 * C, 1, 2, 0), lse = stage_tensor(&s, F32, 2, H, T),
               lse_changed = stage_tensor(&s, F32, 2, H, T);
        Tensor y = stage_tensor(&s, act, 2, T, C), y_changed = stage_tensor(&s, act, 2, T, C);
        attention_forward(&s.stream, y, lse, qkv, tensor_none(), h);
        for (int64_t at = T - 1; at > 0; at -= 13) {
            stage_settle();
            for (int64_t c = 0; c < 3 * C; c++) tensor_set(qkv, at * 3 * C + c, 5.0f);
            attention_forward(&s.stream, y_changed, lse_changed, qkv, tensor_none(), h);
            stage_settle();
            assert_memory_equal(y_changed.data, y.data, (size_t)(at * C) * dtype_bytes(act));
            for (int64_t head = 0; head < H; head++)
                assert_memory_equal((float *)lse_changed.data + head * T, (float *)lse.data + head * T, (size_t)at * sizeof(float));
            assert_true(tensor_get(lse_changed, at) != tensor_get(lse, at));
        }
        stage_destroy(&s);
    }
}

/* With scores of some thousands, only a running maximum keeps the exponentials finite. One key dominates each row, so y
 * is a row of v. */
static void test_large_scores(void **state) {
    (void)state;
    enum { T = 50, D = 16 };
    Stage  s = stage_create(STAGE_SCRATCH);
    Tensor qkv = stage_random(&s, F32, 2, T, 3 * D, 1, 1, 0), y = stage_tensor(&s, F32, 2, T, D),
           lse = stage_tensor(&s, F32, 2, 1, T);
    for (int64_t i = 0; i < T; i++)
        for (int64_t d = 0; d < D; d++) {
            stage_settle();
            tensor_set(qkv, i * 3 * D + d, 50.0f);
            tensor_set(qkv, i * 3 * D + D + d, (float)(i - T / 2)); /* the score grows with the key's position */
        }
    attention_forward(&s.stream, y, lse, qkv, tensor_none(), (HeadShape){1, 1, D});
    for (int64_t i = 0; i < T; i++) {
        stage_settle();
        assert_true(fabs((double)tensor_get(lse, i) - 50.0 * (double)(i - T / 2) * 4.0) <= 5000.0 * 8 * 0x1p-24);
        for (int64_t d = 0; d < D; d++)
            assert_true(fabsf(tensor_get(y, i * D + d) - tensor_get(qkv, i * 3 * D + 2 * D + d)) < 1e-6f);
    }
    stage_destroy(&s);
}

/* Scores grow by 8 every 128 keys, from tile to tile. The sums under a lower maximum must be scaled down each time. */
static void test_rising_scores(void **state) {
    (void)state;
    enum { T = 300, D = 64 };
    HeadShape h = {1, 1, D};
    for (int t = 0; t < stage_act_types(); t++) {
        DType  act = ACT_TYPES[t];
        Stage  s = stage_create(STAGE_SCRATCH);
        Tensor qkv = stage_random(&s, act, 2, T, 3 * D, 1, 1, 0), y = stage_tensor(&s, act, 2, T, D), lse = stage_tensor(&s, F32, 2, 1, T);
        stage_settle();
        for (int64_t i = 0; i < T * D; i++) {
            tensor_set(qkv, i / D * 3 * D + i % D, 1.0f);
            /* a score is a sum over 64 channels, divided by sqrt(64) = 8, so it grows by 64 x 0.5 / 8 = 4 every 64
             * keys */
            tensor_set(qkv, i / D * 3 * D + D + i % D, (float)(i / D / 64) * 0.5f);
        }
        double *y64 = stage_doubles(&s, T * D), *lse64 = stage_doubles(&s, T);
        reference_forward(y64, lse64, stage_widen(&s, qkv), 1, T, h);
        AttentionBounds b = attention_bounds(T, h, 1.0, 1.0);
        attention_forward(&s.stream, y, lse, qkv, tensor_none(), h);
        assert_close(y, y64, act, b.y);
        stage_settle();
        for (int64_t i = 0; i < T; i++) assert_true(fabs((double)tensor_get(lse, i) - lse64[i]) <= 32.0 * D * 0x1p-24);
        stage_destroy(&s);
    }
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_differences), cmocka_unit_test(test_records),
                                     cmocka_unit_test(test_shapes), cmocka_unit_test(test_whole_tiles),
                                     cmocka_unit_test(test_portable), cmocka_unit_test(test_by_heads),
                                     cmocka_unit_test(test_copied_keys), cmocka_unit_test(test_context),
                                     cmocka_unit_test(test_columns), cmocka_unit_test(test_causal),
                                     cmocka_unit_test(test_large_scores), cmocka_unit_test(test_rising_scores)};
    return cmocka_run_group_tests_name("attention", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
