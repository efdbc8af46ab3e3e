/* test_layer_kinds.c - a model whose blocks are of several kinds (BlockKind.pattern). Kinds that compute the same give
 * the bits of a model with one kind, in every mode of recompute. Attention within a window in only some blocks is such
 * a pattern, too. The tokens that a result depends on show which blocks have the window. */
#include "test/ref/test.h"

#include "model/model.h"

enum { LAYERS = 5, B = 2, T = 24, V = 61, WINDOW = 3, STEPS = 2 };

/* chosen: what block_kind() returns instead of the kind that the shape names; NULL: that kind. The linker calls
 * __wrap_block_kind for block_kind, and the original is __real_block_kind. */
static const BlockKind *chosen;
const BlockKind *__real_block_kind(ModelShape shape);
const BlockKind *__wrap_block_kind(ModelShape shape) { return chosen ? chosen : __real_block_kind(shape); }

static Tensor window; /* [B,T] i32: the first key that each query sees */
static int    calls[2];

static void counted_forward(BlockRun *r, void *acts, const void *weights) {
    calls[0] += !r->s->ledger;
    BLOCK_GPT2.forward(r, acts, weights);
}

static void windowed_forward(BlockRun *r, void *acts, const void *weights) {
    Tensor first_keys = r->first_keys;
    calls[1] += !r->s->ledger;
    if (!r->s->ledger && window.data) r->first_keys = tensor_2d(window.data, I32, r->e.B, r->e.T);
    BLOCK_GPT2.forward(r, acts, weights);
    r->first_keys = first_keys;
}

/* Returns a kind of model whose blocks repeat a pattern of `period` kinds. Period 1: all blocks have windowed
 * attention. Period 3: one plain block, then two windowed ones. The windowed kind has its own copy of the list of
 * tensors that a forward writes (BlockKind.act). */
static BlockKind mixed(int period) {
    static BlockKind plain, windowed;
    static ActRow    rows[64];
    static const BlockKind *const both[] = {&plain, &windowed, &windowed}, *const one[] = {&windowed};
    plain = windowed = BLOCK_GPT2;
    plain.forward = counted_forward, windowed.forward = windowed_forward;
    assert_true(BLOCK_GPT2.acts <= (int)COUNT(rows));
    memcpy(rows, BLOCK_GPT2.act, sizeof *rows * (size_t)BLOCK_GPT2.acts);
    windowed.act = rows;
    BlockKind kind = BLOCK_GPT2;
    kind.pattern = period == 1 ? one : both, kind.period = period;
    return kind;
}

static Model *model_with(GptUse use, Recompute recompute) {
    return model_create(
        (ModelSpec){.shards =
                        {.shape = GPT2_SHAPE(LAYERS, 2, 32, T, V), .ranks = 1, .zero_stage = 1, .act = F32, .use = use},
                    .optimizer = use == GPT_TRAINING ? &OPTIMIZER_ADAMW : NULL,
                    .B = B,
                    .T = T,
                    .recompute = recompute});
}

static void fill(Stream *s, Tensor tokens, int first) {
    int32_t ids[B * T];
    for (int i = 0; i < B * T; i++) ids[i] = i == 0 ? first : i * 7 % V;
    device_from_host(s, tokens, ids);
}

/* Trains STEPS steps. Writes the loss of each to losses. Returns the sums of the last step, among them a hash of the
 * weights. */
static StepValues train(Recompute recompute, Exact losses[STEPS]) {
    Model     *m = model_with(GPT_TRAINING, recompute);
    Arena      arena = arena_create("tokens", 1 << 16);
    Batch      batch = {arena_tensor(&arena, I32, 2, B, T, 1), arena_tensor(&arena, I32, 2, B, T, 1), tensor_none()};
    StepValues values;
    fill(&m->stream, batch.inputs, 1);
    fill(&m->stream, batch.targets, 2);
    masters_init(&m->optimizer, &m->stream, 5, NULL, NULL);
    for (int step = 0; step < STEPS; step++) {
        OptimizerStep h = {1e-2, 0.9, 0.95, 1e-8, 0.1, step + 1};
        step_sums_zero(&m->sums, &m->stream);
        shards_begin(m->shards, &m->stream);
        gpt_forward(&m->gpt, &m->stream, batch);
        gpt_backward(&m->gpt, &m->stream, batch, 1.0f / (B * T), MICRO_LAST);
        shards_finish(m->shards, &m->stream);
        optimizer_update(&m->optimizer, &m->stream, h, 1.0f);
        optimizer_numbers(&m->optimizer, &m->stream, NUMBERS_REPLICAS);
        values = step_sums_fetch(&m->sums, &m->stream);
        losses[step] = values.sum[SUM_LOSS];
    }
    assert_int_equal(m->stream.scratch.peak_bytes <= m->bytes.scratch, 1);
    arena_destroy(&arena);
    model_destroy(m);
    return values;
}

static void kinds_that_compute_the_same_have_the_same_bits(void **state) {
    (void)state;
    BlockKind kind = mixed(3);
    window = tensor_none();
    for (Recompute r = RECOMPUTE_NONE; r <= RECOMPUTE_BLOCK; r++) {
        Exact one[STEPS], several[STEPS];
        chosen = NULL;
        StepValues plain = train(r, one);
        calls[0] = calls[1] = 0;
        chosen = &kind;
        StepValues pattern = train(r, several);
        assert_memory_equal(one, several, sizeof one);
        assert_int_equal(plain.hash[HASH_REPLICAS], pattern.hash[HASH_REPLICAS]);
        /* calls[0] counts forwards of the plain kind, in blocks 0 and 3; calls[1] those of the windowed kind, in
         * blocks 1, 2 and 4. On a GPU later steps replay a CUDA graph and call no function. */
        if (device_is_host()) assert_true(calls[0] == 2 * STEPS && calls[1] == 3 * STEPS);
    }
    chosen = NULL;
}

static void a_pattern_has_the_rows_of_its_kinds(void **state) {
    (void)state;
    BlockKind  kind = mixed(3), longer = BLOCK_LLAMA;
    ModelShape             shape = {.n_layer = LAYERS,
                                    .n_head = 2,
                                    .n_embd = 32,
                                    .n_positions = T,
                                    .vocab_size = V,
                                    .n_inner = 48,
                                    .norm_eps = 1e-5};
    const BlockKind *const turns[] = {&BLOCK_GPT2, &longer};
    int64_t    gpt2, llama, both;
    int        count;
    chosen = &BLOCK_GPT2;
    assert_true(model_parameters(shape, &gpt2));
    chosen = &BLOCK_LLAMA;
    assert_true(model_parameters(shape, &llama));
    kind.pattern = turns, kind.period = 2;
    chosen = &kind;
    assert_true(model_parameters(shape, &both));
    free(model_params(shape, &count));
    assert_int_equal(count, model_rows(shape));
    /* blocks 0, 2 and 4 are gpt2's, blocks 1 and 3 llama's; embeddings and the last norm are gpt2's */
    int64_t ends = V * 32 + T * 32 + 2 * 32, of_gpt2 = (gpt2 - ends) / LAYERS,
            of_llama = (llama - 2 * V * 32 - 32) / LAYERS;
    assert_int_equal(both, ends + 3 * of_gpt2 + 2 * of_llama);
    chosen = NULL;
}

/* Writes to out the logits at the last position of a sequence whose first token is `first`. The model has blocks of
 * this kind and random weights. Windowed blocks have a window of WINDOW tokens. */
static void last_logits(const BlockKind *kind, int first, float out[V]) {
    chosen = kind;
    Model  *trained = model_with(GPT_TRAINING, RECOMPUTE_NONE), *m = model_with(GPT_INFERENCE, RECOMPUTE_NONE);
    Arena   arena = arena_create("tokens", 1 << 16);
    Tensor  inputs = arena_tensor(&arena, I32, 2, B, T, 1);
    int32_t keys[B * T];
    for (int i = 0; i < B * T; i++) keys[i] = i % T < WINDOW ? 0 : i % T - WINDOW + 1;
    window = arena_tensor(&arena, I32, 2, B, T, 1);
    device_from_host(&m->stream, window, keys);
    fill(&m->stream, inputs, first);
    masters_init(&trained->optimizer, &trained->stream, 5, NULL, NULL);
    device_sync(&trained->stream);
    cast_forward(&m->stream, m->shards->params, trained->shards->params);
    gpt_forward(&m->gpt, &m->stream, (Batch){inputs, inputs, tensor_none()});
    gpt_logits(&m->gpt, &m->stream, (Batch){inputs, inputs, tensor_none()}, T - 1, out);
    device_sync(&m->stream);
    arena_destroy(&arena);
    model_destroy(m);
    model_destroy(trained);
    window = tensor_none(), chosen = NULL;
}

static void windows_in_some_blocks_leave_the_others_whole(void **state) {
    (void)state;
    BlockKind everywhere = mixed(1), in_some = mixed(3);
    float     a[V], b[V];
    /* with windows in all blocks the result at a token depends on this many tokens before it, too few to reach the
     * first */
    assert_true(LAYERS * (WINDOW - 1) < T - 1);
    last_logits(&everywhere, 1, a);
    last_logits(&everywhere, 9, b);
    assert_memory_equal(a, b, sizeof a);
    last_logits(&in_some, 1, a);
    last_logits(&in_some, 9, b);
    assert_memory_not_equal(a, b, sizeof a);
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(kinds_that_compute_the_same_have_the_same_bits),
                                     cmocka_unit_test(a_pattern_has_the_rows_of_its_kinds),
                                     cmocka_unit_test(windows_in_some_blocks_leave_the_others_whole)};
    return cmocka_run_group_tests_name("layer kinds", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
