/* test_planned.c - every matrix product that a model runs was planned, so its scratch memory was, too: with the same
 * extents, types, orders and leading dimensions, which are the key of a product. A library may need other scratch
 * memory for another key, and on another processor. With native bf16, oneDNN takes 200 MB for logits whose rows are
 * longer than the product. So the test compares the keys, which are the same on every processor.
 *
 * The linker puts the functions below in the place of matmul() and simd_has_bf16(): products are noted, none is
 * computed, and the processor multiplies bf16.
 */
#include "test/ref/test.h"

#include "layers/matmul.h"
#include "model/model.h"

enum { MOST = 512 };
typedef struct { Matmul key[MOST]; int count; } Keys;
static Keys planned, ran;

static int same_matrix(Matrix a, Matrix b) { return a.type == b.type && a.ld == b.ld && a.order == b.order; }
static int same_key(const Matmul *p, const Matmul *q) {
    return p->m == q->m && p->n == q->n && p->k == q->k && p->write == q->write && !p->bias == !q->bias &&
           same_matrix(p->a, q->a) && same_matrix(p->b, q->b) && same_matrix(p->c, q->c);
}
static int is_among(const Keys *keys, const Matmul *p) {
    for (int i = 0; i < keys->count; i++)
        if (same_key(&keys->key[i], p)) return 1;
    return 0;
}
static void note(Keys *keys, Matmul p) {
    if (is_among(keys, &p)) return;
    assert_true(keys->count < MOST);
    keys->key[keys->count++] = p;
}

int  __wrap_simd_has_bf16(void);
int  __wrap_simd_has_bf16(void) { return 1; }
int  __wrap_simd_has_quick_bf16(void);
int  __wrap_simd_has_quick_bf16(void) { return 1; }
void __wrap_matmul(Stream *s, Matmul p);
void __wrap_matmul(Stream *s, Matmul p) {
    if (s->ledger) {
        note(&planned, p);
        return;
    }
    note(&ran, p);
    for (int64_t i = 0; i < p.m; i++)
        memset((char *)p.c.data + (size_t)(i * p.c.ld) * dtype_bytes(p.c.type), 0, (size_t)p.n * dtype_bytes(p.c.type));
}

static void run_model(const OptimizerKind *optimizer, ModelShape shape, DType act, int64_t B, int64_t T,
                      Recompute recompute) {
    planned.count = ran.count = 0;
    ModelSpec spec = {.shards = {.shape = shape, .ranks = 1, .zero_stage = 1, .act = act, .use = GPT_TRAINING},
                      .optimizer = optimizer,
                      .B = B,
                      .T = T,
                      .recompute = recompute};
    /* creates the model; before, model_create does a dry run to size its memory, whose products are noted in
     * `planned` */
    Model *m = model_create(spec);
    assert_true(ran.count == 0);
    Arena  tokens = arena_create("tokens", 1 << 20);
    float  logits[1025];
    /* all tokens are 0 */
    Batch  batch = {arena_tensor(&tokens, I32, 2, B, T, 1), arena_tensor(&tokens, I32, 2, B, T, 1), tensor_none()};
    for (MicroBatch which = MICRO_EARLIER; which <= MICRO_LAST; which++) {
        gpt_forward(&m->gpt, &m->stream, batch);
        gpt_backward(&m->gpt, &m->stream, batch, 1.0f, which);
    }
    optimizer_update(&m->optimizer, &m->stream, (OptimizerStep){.step = 1}, 1.0f);
    for (int64_t b = 1; b <= B; b++) { /* an evaluation's last batch may have any size up to B */
        Batch part = {tensor_2d(batch.inputs.data, I32, b, T), tensor_2d(batch.targets.data, I32, b, T), tensor_none()};
        gpt_forward(&m->gpt, &m->stream, part);
        gpt_loss(&m->gpt, &m->stream, part);
    }
    /* the model samples with sequences whose length is a multiple of SAMPLE_STEP tokens, at most T */
    for (int64_t t = SAMPLE_STEP; t < T + SAMPLE_STEP; t += SAMPLE_STEP) {
        Tensor text = tensor_2d(batch.inputs.data, I32, 1, t < T ? t : T);
        gpt_forward(&m->gpt, &m->stream, (Batch){text, text, tensor_none()});
        gpt_logits(&m->gpt, &m->stream, (Batch){text, text, tensor_none()}, 0, logits);
    }
    assert_true(ran.count > 8);
    for (int i = 0; i < ran.count; i++)
        if (!is_among(&planned, &ran.key[i])) {
            const Matmul *p = &ran.key[i];
            fail_msg("never planned: a product of m %lld n %lld k %lld, a %s ld %lld, b ld %lld, c %s ld %lld",
                     (long long)p->m, (long long)p->n, (long long)p->k, dtype_name(p->a.type), (long long)p->a.ld,
                     (long long)p->b.ld, dtype_name(p->c.type), (long long)p->c.ld);
        }
    arena_destroy(&tokens);
    model_destroy(m);
}

/* Compares the planned products with those that run. Vocabularies are with and without padding. The classifier
 * divides the rows of a micro-batch into equal chunks, or the last chunk is shorter. */
static void test_step(void **state) {
    (void)state;
    /* skipped on a GPU, where the workspace is the same for all products */
    if (strcmp(device_backend(), "cpu") != 0) skip();
    static const int64_t vocabularies[] = {256, 389}, sizes[][2] = {{1, 7}, {2, 40}, {3, 67}};
    for (int v = 0; v < COUNT(vocabularies); v++)
        for (int b = 0; b < COUNT(sizes); b++)
            for (Recompute r = RECOMPUTE_NONE; r <= RECOMPUTE_BLOCK; r++) {
                ModelShape shape = GPT2_SHAPE(2, 3, 42, 96, vocabularies[v]);
                run_model(&OPTIMIZER_ADAMW, shape, F32, sizes[b][0], sizes[b][1], r);
                run_model(&OPTIMIZER_ADAMW, shape, BF16, sizes[b][0], sizes[b][1], r);
            }
}

/* Muon's update has matrix products of its own, which must be planned too. */
static void test_muon(void **state) {
    (void)state;
    if (strcmp(device_backend(), "cpu") != 0) skip();
    run_model(&OPTIMIZER_MUON, (ModelShape)GPT2_SHAPE(2, 3, 42, 96, 256), F32, 1, 7, RECOMPUTE_NONE);
    run_model(&OPTIMIZER_MUON, (ModelShape)GPT2_SHAPE(2, 3, 42, 96, 256), BF16, 1, 7, RECOMPUTE_NONE);
}

int main(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_step), cmocka_unit_test(test_muon)};
    return cmocka_run_group_tests_name("planned products", all, NULL, NULL);
}
