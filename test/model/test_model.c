/* test_model.c - a dry run of a model, which computes nothing and only counts, compared with the same model computed.
 * Scratch memory must be equal to the byte, and operations and sent bytes equal to those of formulas. */
#include "test/ref/test.h"

#include "core/thread.h"
#include "model/model.h"

static ModelSpec spec_of(DType act, int64_t B, int64_t T, Recompute recompute, int any_threads) {
    return (ModelSpec){.shards = {.shape = GPT2_SHAPE(2, 3, 42, 96, 389), .ranks = 1, .zero_stage = 1, .act = act, .use = GPT_TRAINING},
                       .optimizer = &OPTIMIZER_ADAMW, .B = B, .T = T, .recompute = recompute, .any_threads = any_threads};
}

static void run_everything(Model *m) {
    Arena  tokens = arena_create("tokens", 1 << 20);
    Batch  batch = {arena_tensor(&tokens, I32, 2, m->spec.B, m->spec.T, 1), arena_tensor(&tokens, I32, 2, m->spec.B, m->spec.T, 1),
                     /* there are no starts of documents; the memory of the batch is zero, so all tokens are 0 */
                     tensor_none()};
    OptimizerStep  h = {1e-3, 0.9, 0.95, 1e-8, 0.1, 1};
    float  logits[389];
    masters_init(&m->optimizer, &m->stream, 1, NULL, NULL);
    step_sums_zero(&m->sums, &m->stream);
    shards_begin(m->shards, &m->stream);
    /* the first micro-batch of a step sets the gradients of blocks, the others add to them */
    for (MicroBatch which = MICRO_EARLIER; which <= MICRO_LAST; which++) {
        gpt_forward(&m->gpt, &m->stream, batch);
        gpt_backward(&m->gpt, &m->stream, batch, 1.0f, which);
    }
    shards_finish(m->shards, &m->stream);
    optimizer_numbers(&m->optimizer, &m->stream, NUMBERS_REPLICAS | NUMBERS_GRADS);
    optimizer_update(&m->optimizer, &m->stream, h, 1.0f);
    for (int64_t b = 1; b <= m->spec.B; b++) {
        Batch part = {tensor_2d(batch.inputs.data, I32, b, m->spec.T), tensor_2d(batch.targets.data, I32, b, m->spec.T), tensor_none()};
        gpt_forward(&m->gpt, &m->stream, part);
        gpt_loss(&m->gpt, &m->stream, part);
    }
    for (int64_t t = SAMPLE_STEP; t < m->spec.T + SAMPLE_STEP; t += SAMPLE_STEP) {
        Tensor text = tensor_2d(batch.inputs.data, I32, 1, t < m->spec.T ? t : m->spec.T);
        gpt_forward(&m->gpt, &m->stream, (Batch){text, text, tensor_none()});
        gpt_logits(&m->gpt, &m->stream, (Batch){text, text, tensor_none()}, 0, logits);
    }
    device_sync(&m->stream);
    arena_destroy(&tokens);
}

static void test_scratch(void **state) {
    (void)state;
    static const int64_t sizes[][2] = {{1, 7}, {3, 67}, {2, 96}};
    for (int t = 0; t < stage_act_types(); t++)
        for (int i = 0; i < (stage_is_slow() ? 1 : COUNT(sizes)); i++)
            for (Recompute r = RECOMPUTE_NONE; r <= RECOMPUTE_BLOCK; r++)
                for (int any_threads = 0; any_threads <= 1; any_threads++) {
                    Model *m = model_create(spec_of(ACT_TYPES[t], sizes[i][0], sizes[i][1], r, any_threads));
                    /* ends the program if an operation needs more scratch memory than the dry run counted */
                    run_everything(m);
                    assert_int_equal(m->stream.scratch.used_bytes, 0);
                    assert_int_equal(m->stream.scratch.peak_bytes, m->bytes.scratch);
                    model_destroy(m);
                }
}

static double flops_of(const Ledger *l, const char *op) {
    double sum = 0.0;
    for (int i = 0; i < l->entries; i++)
        if (strncmp(l->entry[i].op, op, strlen(op)) == 0) sum += l->entry[i].flops * (double)l->entry[i].count;
    return sum;
}

static double bytes_of(const Ledger *l, const char *op) {
    double sum = 0.0;
    for (int i = 0; i < l->entries; i++)
        if (strcmp(l->entry[i].op, op) == 0) sum += l->entry[i].bytes * (double)l->entry[i].count;
    return sum;
}

/* A product of [m,k] and [k,n] takes 2 m n k FLOPs. Each weight of a block is in one product of the forward pass and
 * in two of the backward pass. So is each of the V' x C weights of the output head, with V' the padded vocabulary.
 * Attention has 2 products forward and 5 backward, over the causal half of T x T. */
static void test_flops(void **state) {
    (void)state;
    ModelSpec spec = spec_of(BF16, 3, 40, RECOMPUTE_NONE, 0);
    Ledger    one = {0}, four = {0}, again = {0};
    double    L = 2, C = 42, V = 512, N = 3 * 40, H = 3, T = 40, B = 3;
    model_dry(spec, 1, &one);
    model_dry(spec, 4, &four);
    assert_true(flops_of(&one, "matmul") == 6.0 * N * (12.0 * L * C * C + V * C));
    assert_true(flops_of(&four, "matmul") == 4.0 * flops_of(&one, "matmul"));
    assert_true(flops_of(&one, "attention") == 7.0 * L * B * H * (C / H) * T * (T + 1));
    /* the update runs once in a step, however many micro-batches */
    assert_true(flops_of(&four, "adamw_update") == flops_of(&one, "adamw_update"));
    assert_true(flops_of(&one, "adamw_update") == 16.0 * (double)(2 * (12 * 42 * 42 + 13 * 42) + (389 + 96) * 42 + 2 * 42));
    /* products for the gradients of weights add to them, except for blocks in the first micro-batch, which set them */
    double blocks = 2.0 * N * 12.0 * L * C * C, head = 2.0 * N * V * C;
    assert_true(flops_of(&one, "matmul, set") == blocks && flops_of(&one, "matmul, added") == head);
    assert_true(flops_of(&four, "matmul, set") == blocks && flops_of(&four, "matmul, added") == 3.0 * blocks + 4.0 * head);
    /* bytes zeroed for column sums (gradients of biases) after each block, in each micro-batch: 4 for each of L C
     * channels */
    double sums = 4.0 * L * C;
    assert_true(bytes_of(&one, "device_zero") < 4.0 * 12 * C * C && bytes_of(&one, "zero_tensors") == bytes_of(&four, "zero_tensors") - 3.0 * sums);
    Layout layout = model_layout(spec.shards.shape, (LayoutPlace){1, 1, 0, NULL, 1, 0});
    assert_true(bytes_of(&one, "zero_tensors") == 4.0 * ((double)layout.memory_elems - 12.0 * L * C * C) + sums);
    layout_destroy(&layout);
    spec.recompute = RECOMPUTE_BLOCK;
    /* with recompute "block" all products of a block's forward run again, except the MLP's last */
    model_dry(spec, 1, &again);
    assert_true(flops_of(&again, "matmul") == flops_of(&one, "matmul") + 2.0 * N * 8.0 * L * C * C);
    assert_true(ledger_bytes(&one) > 0 && ledger_sent(&one, NULL) == 0);
    ledger_free(&one), ledger_free(&four), ledger_free(&again);
}

/* Bytes that one of four ranks sends in a step. zero_stage 1: 3/4 of the gradients (fp32) to the ranks that sum them,
 * and 3/4 of the weights (bf16) after the update. zero_stage 0: 3/4 of the summed gradients (fp32) instead of weights.
 * In a sum of fixed order (deterministic) over 3 micro-batches of 4 ranks, a rank sends each partial sum that its own
 * micro-batches do not complete. */
static void test_sent(void **state) {
    (void)state;
    ModelSpec spec = spec_of(BF16, 3, 40, RECOMPUTE_NONE, 0);
    Ledger    one = {0}, zero = {0}, order = {0};
    spec.shards.ranks = 4, spec.shards.rank = 2;
    Layout layout = model_layout(spec.shards.shape, (LayoutPlace){4, 1, 0, NULL, 1, 0});
    double elems = (double)layout.memory_elems;
    layout_destroy(&layout);
    model_dry(spec, 2, &one);
    spec.shards.zero_stage = 0;
    model_dry(spec, 2, &zero);
    spec.shards.zero_stage = 1, spec.shards.micro_batches = 3;
    model_dry(spec, 3, &order);
    assert_true(ledger_sent(&one, NULL) == 0.75 * (4 + 2) * elems && ledger_sent(&one, "all") == ledger_sent(&one, NULL));
    assert_true(ledger_sent(&zero, NULL) == 0.75 * (4 + 4) * elems);
    assert_true(ledger_sent(&one, "tensor") == 0);
    int nodes = tree_of_rank(12, 4, 2).count;
    assert_true(nodes > 1 && ledger_sent(&order, NULL) == 0.75 * (4 * nodes + 2) * elems);
    ledger_free(&one), ledger_free(&zero), ledger_free(&order);
}

/* Bytes that a rank sends in a step with two replicas of four ranks each, ZeRO-2 and 3, five blocks, three
 * micro-batches. Within its replica it sends 3/4 of the gradients. Then the two replicas add their shards: a shard is
 * 1/4 of the gradients, and a rank sends it in two halves. Gradients of blocks are summed in each micro-batch. With
 * ZeRO-3 every forward and every backward gathers the weights of the blocks. Two blocks are still in memory from the
 * pass before and are not gathered. */
static void test_sent_in_slots(void **state) {
    (void)state;
    enum { RANKS = 4, BLOCKS = 5, MICRO = 3 };
    ModelSpec spec = spec_of(BF16, 3, 40, RECOMPUTE_NONE, 0);
    spec.shards.shape.n_layer = BLOCKS;
    spec.shards.ranks = RANKS, spec.shards.rank = 2, spec.shards.replicas = 2, spec.shards.replica = 1;
    Layout layout = model_layout(spec.shards.shape, (LayoutPlace){RANKS, 1, 0, NULL, 1, 0});
    double block = (double)layout.bucket[1].elems, all = (double)layout.memory_elems, stays = all - BLOCKS * block;
    layout_destroy(&layout);
    for (int stage = 2; stage <= 3; stage++) {
        Ledger step = {0};
        spec.shards.zero_stage = stage;
        model_dry(spec, MICRO, &step);
        double sums = 4 * (stays + MICRO * BLOCKS * block),
               weights = 2 * (stays + (stage == 2 ? BLOCKS : 2 * MICRO * (BLOCKS - 2) + 2) * block);
        assert_true(ledger_sent(&step, "shard") == 0.75 * (sums + weights));
        assert_true(ledger_sent(&step, "replica") == 4 * all / RANKS);
        ledger_free(&step);
    }
}

static int64_t products_of(const Ledger *l, int64_t m, int64_t n, int64_t k) {
    int64_t count = 0;
    for (int i = 0; i < l->entries; i++) {
        const LedgerEntry *e = &l->entry[i];
        if (strncmp(e->op, "matmul", 6) == 0 && e->dim[0] == m && e->dim[1] == n && e->dim[2] == k) count += e->count;
    }
    return count;
}

/* Tests two-dimensional tensor parallelism: t tensor ranks and ZeRO-3 over Z ranks. Every matrix, its gradient and
 * its moments are stored on a t x Z grid. Each product has a t-th of the columns, or of the inner extent. */
static void test_two_dimensions(void **state) {
    (void)state;
    enum { TENSOR = 2, Z = 3, C = 48, L = 3, V = 512, B = 4, T = 40, N = B * T };
    ModelSpec spec = spec_of(BF16, B, T, RECOMPUTE_NONE, 0);
    Ledger    step = {0};
    spec.shards.shape = (ModelShape)GPT2_SHAPE(L, 4, C, 96, 389);
    spec.shards.zero_stage = 3, spec.shards.ranks = Z, spec.shards.rank = 1, spec.shards.tensor_ranks = TENSOR,
    spec.shards.tensor_rank = 1;
    Layout     layout = model_spec_layout(&spec);
    ModelBytes bytes = model_dry(spec, 1, &step);
    int64_t    blocks = 0, stays = layout.bucket[0].elems + layout.bucket[L + 1].elems;
    for (int b = 1; b <= L; b++) blocks += layout.bucket[b].piece_elems;
    for (int i = 0; i < layout.params; i++) {
        const Param *p = &layout.param[i];
        if (p->dims == 2 && p->cut != CUT_NONE)
            assert_true(p->local[0] * p->local[1] * TENSOR == (p->cut == CUT_VOCABULARY ? (int64_t)V * C : p->elems));
    }
    int64_t matrices = 12 * C * C / TENSOR, rest = layout.bucket[1].elems - matrices;
    /* rest: elements besides those of matrices: the vectors of the block, and padding to multiples of 64 */
    assert_true(rest >= 0 && rest <= 20 * C + Z * 64 + 12 * 64);
    assert_true(layout.bucket[1].piece_elems * Z == layout.bucket[1].elems);
    size_t params = 2 * (size_t)(stays + 2 * layout.bucket[1].elems + blocks), optimizer = 3 * 4 * (size_t)layout.shard_elems;
    /* weights in bf16: those outside blocks, two buffers for gathered blocks, and this rank's shards of blocks */
    assert_true(bytes.params >= params && bytes.params < params + 2 * ARENA_ALIGN);
    /* fp32 masters and moments (m and v) of this rank's shards */
    assert_true(bytes.optimizer >= optimizer && bytes.optimizer < optimizer + 3 * ARENA_ALIGN);
    /* Counts products of the forward pass, for gradients of inputs and for gradients of weights. The matrices are qkv,
     * attention's projection, and the two of the MLP. */
    assert_true(products_of(&step, N, 3 * C / TENSOR, C) == L && products_of(&step, N, C, 3 * C / TENSOR) == L &&
                products_of(&step, C, 3 * C / TENSOR, N) == L);
    assert_true(products_of(&step, N, C, C / TENSOR) == L && products_of(&step, N, C / TENSOR, C) == L &&
                products_of(&step, C / TENSOR, C, N) == L);
    assert_true(products_of(&step, N, 4 * C / TENSOR, C) == 2 * L && products_of(&step, N, C, 4 * C / TENSOR) == 2 * L);
    assert_true(products_of(&step, C, 4 * C / TENSOR, N) == L && products_of(&step, 4 * C / TENSOR, C, N) == L);
    layout_destroy(&layout);
    ledger_free(&step);
}

/* Checks the bytes sent in a step along each axis, by the formulas of docs/parallel-inside.md. The axes are tensor,
 * context and stages, each together with the others. */
static void test_sent_on_a_grid(void **state) {
    (void)state;
    enum { TENSOR = 2, CONTEXT = 2, STAGES = 2, L = 4, C = 48, B = 2, T = 512, M = 4, A = 2, N = B * T / CONTEXT };
    ModelSpec spec = spec_of(BF16, B, T, RECOMPUTE_NONE, 0);
    for (int stage = 0; stage < STAGES; stage++) {
        Ledger step = {0};
        spec.shards.shape = (ModelShape)GPT2_SHAPE(L, 4, C, T, 389);
        spec.shards.zero_stage = 1, spec.shards.ranks = CONTEXT * 3, spec.shards.tensor_ranks = TENSOR,
        spec.context_ranks = CONTEXT;
        spec.pipeline = (PipelineSpec){.stages = STAGES, .stage = stage, .parts = 1, .micro_batches = M};
        Layout layout = model_spec_layout(&spec);
        double blocks = 0, G0 = (double)layout.bucket[0].elems, Z = CONTEXT * 3,
               once = (TENSOR - 1.0) / TENSOR * N * C * A, whole = 0;
        Span   spans[16];
        for (int b = 0; b < layout.buckets; b++) {
            blocks += b > 0 && b <= L && layout.bucket[b].hold == BUCKET_OWN;
            for (int i = layout_spans(&layout, b, 0, spans); i-- > 0;)
                whole += layout.param[spans[i].param].cut == CUT_NONE ? (double)spans[i].elems : 0;
        }
        model_dry(spec, M, &step);
        double head = stage ? M * (2 * once + 24 * (TENSOR - 1.0) / TENSOR * N) : M * 2 * once;
        assert_true(ledger_sent(&step, "tensor") == 10 * blocks * M * once + head + 2 * (TENSOR - 1.0) / TENSOR * 4 * whole);
        assert_true(ledger_sent(&step, "context") == 3 * blocks * M * (CONTEXT - 1) * (double)N * 2 * C / TENSOR * A);
        assert_true(ledger_sent(&step, "stage") == M * (double)N / TENSOR * C * A + (stage ? 4 : A) * G0 / Z);
        layout_destroy(&layout);
        ledger_free(&step);
    }
}

/* An evaluation takes its sequences in batches of a size that model_batch returns. Scratch memory is measured for each
 * of these sizes. There are few, however large B is. */
static void test_batch_sizes(void **state) {
    (void)state;
    for (int64_t B = 1; B <= 300; B += B < 70 ? 1 : 23)
        for (int64_t left = 1; left <= 700; left++) {
            int64_t size = model_batch(B, left);
            assert_true(size >= 1 && size <= left && size <= B);
            assert_true(size == B || size <= 64 || (size & (size - 1)) == 0);
            /* up to B = 64 a batch of an evaluation may have any size up to B */
            if (B <= 64) assert_int_equal(size, left < B ? left : B);
        }
    ModelSpec spec = spec_of(F32, 1 << 20, 40, RECOMPUTE_NONE, 0);
    double    begin = clock_ms();
    assert_true(model_dry(spec, 1, NULL).scratch > 0);
    if (clock_ms() - begin > 2000.0) fail_msg("a dry run of %lld sequences took %.0f ms", (long long)spec.B, clock_ms() - begin);
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_scratch), cmocka_unit_test(test_flops), cmocka_unit_test(test_batch_sizes),
                                     cmocka_unit_test(test_sent), cmocka_unit_test(test_sent_in_slots),
                                     cmocka_unit_test(test_two_dimensions), cmocka_unit_test(test_sent_on_a_grid)};
    return cmocka_run_group_tests_name("model", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
