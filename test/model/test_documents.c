/* test_documents.c - a whole model on sequences of several documents: each token's loss, and the gradients, equal those
 * of the separate documents. */
#include "test/ref/test.h"

#include "model/params.h"

enum { T = 40 };
static ModelShape  SHAPE = GPT2_SHAPE(2, 3, 42, T, 389);
static const char *RECORDS = "test/ref/data/gpt.rec";
#include "test/model/curve_fixture.h"

enum { B = 2, CUTS = 4 };
/* [sequence] positions at which a document begins, except position 0; ends with T, the length of a sequence */
static const int CUT[B][CUTS + 1] = {{3, 4, 19, 31, T}, {1, 25, 26, 38, T}};

static void take_starts(Model *m, Batch *batch) {
    batch->starts = arena_tensor(&m->tokens, I32, 2, B, T, 1);
    for (int b = 0; b < B; b++)
        for (int t = 0, k = 0, start = 0; t < T; t++) {
            if (t == CUT[b][k]) start = CUT[b][k++];
            ((int32_t *)batch->starts.data)[b * T + t] = start;
        }
}

/* Runs forward and backward of a batch. Adds to the model's gradients those of (sum of the batch's losses) / (B T).
 * Writes the loss of each token to out. */
static void step(Model *m, Batch batch, float *out) {
    int64_t N = tensor_elems(batch.inputs);
    float   losses[3 * B * T];
    gpt_forward(&m->gpt, &m->stream, batch);
    gpt_token_losses(&m->gpt, &m->stream, batch, losses);
    gpt_backward(&m->gpt, &m->stream, batch, 1.0f / (B * T), MICRO_EARLIER);
    stage_settle();
    memcpy(out, losses, sizeof *out * (size_t)N);
}

/* Returns a batch of one document: tokens [first, end) of recorded sequence b. */
static Batch document(Model *m, int b, int first, int end) {
    Batch all = batch_of(m, 0, b, 1, T);
    all.inputs = tensor_2d((int32_t *)all.inputs.data + first, I32, 1, end - first);
    all.targets = tensor_2d((int32_t *)all.targets.data + first, I32, 1, end - first);
    return all;
}

static void compare(Recompute recompute) {
    float together[B * T], apart[B * T], whole[B * T];
    DOCUMENT_MASK = 1;
    Model *m = model_create(F32, B, T, recompute, GPT_TRAINING);
    DOCUMENT_MASK = 0;
    Model *alone = model_create(F32, B, T, recompute, GPT_TRAINING);
    shards_begin(m->shards, &m->stream), shards_begin(alone->shards, &alone->stream);
    Batch batch = batch_of(m, 0, 0, B, T);
    take_starts(m, &batch);
    step(m, batch, together);
    for (int b = 0; b < B; b++)
        for (int k = 0, first = 0; k <= CUTS; first = CUT[b][k++])
            step(alone, document(alone, b, first, CUT[b][k]), apart + b * T + first);
    int n = 0;
    double worst = 0.0, size = 0.0, square = 0.0;
    for (int i = 0; i < B * T; i++) worst = fmax(worst, fabs((double)together[i] - (double)apart[i]));
    assert_true(worst < 2e-6);
    for (int64_t i = 0; i < m->shards->layout.memory_elems; i++) {
        double difference = (double)tensor_get(m->shards->grads, i) - (double)tensor_get(alone->shards->grads, i);
        square += difference * difference, size += pow((double)tensor_get(alone->shards->grads, i), 2.0);
    }
    print_message("%s: losses within %.1e, gradients within %.1e of their size\n", m->gpt.kind->name, worst, sqrt(square / size));
    assert_true(size > 0.0 && sqrt(square / size) < 2e-6);

    /* without `starts` there is no mask: the losses differ, except in the first document of each sequence */
    batch.starts = tensor_none();
    step(m, batch, whole);
    for (int b = 0; b < B; b++)
        for (int t = 0; t < T; t++) n += fabsf(whole[b * T + t] - together[b * T + t]) > 1e-4f && t >= CUT[b][0];
    assert_true(n > B * T / 2);
    model_destroy(m);
    model_destroy(alone);
}

static void test_learnt_positions(void **state) {
    (void)state;
    compare(RECOMPUTE_NONE);
    compare(RECOMPUTE_BLOCK);
}

static void test_rotary_positions(void **state) {
    (void)state;
    ModelShape gpt2 = SHAPE;
    SHAPE = (ModelShape){.n_layer = 2, .n_head = 4, .n_embd = 48, .n_positions = T, .vocab_size = 389, .arch = ARCH_LLAMA, .n_kv_head = 2,
                         .n_inner = 92, .norm_eps = 1e-5, .rope_theta = 10000, .rope_factor = 8, .rope_low_freq_factor = 1,
                         .rope_high_freq_factor = 4, .rope_original_positions = 64};
    RECORDS = "test/ref/data/llama.rec";
    compare(RECOMPUTE_NONE);
    compare(RECOMPUTE_BLOCK);
    SHAPE = gpt2, RECORDS = "test/ref/data/gpt.rec";
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_learnt_positions), cmocka_unit_test(test_rotary_positions)};
    return cmocka_run_group_tests_name("documents of a model", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
