/* test_gpt.c - the whole model against PyTorch's float64 records of twenty steps of AdamW and of Muon
 * (test/ref/generate.py), and against itself: other micro-batches, recomputation, smaller batches than its memory,
 * inference.
 *
 * Odd sizes throughout: head size 14, vocabulary 389, T 40.
 */
#include "test/ref/test.h"

#include "core/rng.h"
#include "model/gpt.h"
#include "model/optimizer.h"

enum { STEPS = 20, WARMUP = 5, SEQUENCES = 4, T = 40 };
static const ModelShape SHAPE = {2, 3, 42, T, 389};
static const double   LEARNING_RATE = 1e-3, FINAL_FRACTION = 0.1, GRAD_CLIP = 1.0;

/* The bounds of the fp32 model. PyTorch's own fp32 gets 1.1e-7 for the losses and 4.5e-7 for the gradients. */
static const double LOSS_ALLOWED = 1e-6, GRADIENT_ALLOWED = 2e-6, WEIGHT_ALLOWED = 1e-5;

typedef struct {
    RecordFile records;
    Arena      params, grads, activations, state, tokens;
    Stream     stream;
    StepSums   sums;
    Shards    *shards;
    Gpt        gpt;
    Optimizer  optimizer;
} Model;

static void load_initial(Model *m) {
    for (int i = 0; i < m->shards->spans; i++) {
        Span         span = m->shards->span[i];
        const Param *p = &m->shards->layout.param[span.param];
        char         name[80];
        snprintf(name, sizeof name, "init.%s", p->name);
        const Record *r = record_find(&m->records, name);
        Tensor master = optimizer_master(&m->optimizer, span);
        for (int64_t k = 0; k < span.elems; k++) tensor_set(master, k, (float)record_value(r, span.first + k));
    }
    optimizer_publish(&m->optimizer, &m->stream);
}

static Model *model_of(const OptimizerKind *kind, int ranks, DType act, int64_t B, int64_t positions, Recompute recompute,
                       GptUse use) {
    Model *m = (Model *)calloc(1, sizeof *m);
    m->records = record_load("test/ref/data/gpt.rec");
    m->params = stage_arena("params", 8 << 20), m->grads = stage_arena("grads", 8 << 20),
    m->state = stage_arena("optimizer", 16 << 20);
    m->activations = stage_arena("activations", 64 << 20), m->tokens = stage_arena("tokens", 1 << 20);
    m->sums = step_sums_create(&m->activations);
    m->shards = shards_create((ShardsSpec){.shape = SHAPE, .ranks = ranks, .act = act, .use = use},
                              model_layout(SHAPE, (LayoutPlace){ranks, 1, 0, NULL}), m->sums, &m->params, &m->grads);
    m->gpt = gpt_create(m->shards, (GptSpec){B, positions, NULL, NULL, 1, recompute}, &m->activations);
    m->stream = stream_create(STAGE_SCRATCH); stage_watch(m->stream);
    m->optimizer = optimizer_create(kind, m->shards, MEMORY_DEVICE, &m->state);
    load_initial(m);
    optimizer_zero_states(&m->optimizer, &m->stream);
    return m;
}

/* The layout is that of three ranks, whose padding must matter to nobody. */
static Model *model_create(DType act, int64_t B, int64_t positions, Recompute recompute, GptUse use) {
    return model_of(&OPTIMIZER_ADAMW, 3, act, B, positions, recompute, use);
}

static void model_destroy(Model *m) {
    Arena *arenas[] = {&m->params, &m->grads, &m->activations, &m->state, &m->tokens};
    for (int i = 0; i < COUNT(arenas); i++) stage_arena_destroy(arenas[i]);
    stage_forget(m->stream), stream_destroy(&m->stream);
    optimizer_destroy(&m->optimizer);
    gpt_destroy(&m->gpt);
    shards_destroy(m->shards);
    record_unload(&m->records);
    free(m);
}

/* Sequences [first, first + B) of step `step`, cut to their first `positions` tokens. */
static Batch batch_of(Model *m, int64_t step, int64_t first, int64_t B, int64_t positions) {
    const int32_t *tokens = (const int32_t *)record_find(&m->records, "tokens")->data + (step * SEQUENCES + first) * (T + 1);
    stage_settle(); /* the micro-batch before may still read its tokens */
    m->tokens.used_bytes = 0;
    Batch batch = {arena_tensor(&m->tokens, I32, 2, B, positions, 1), arena_tensor(&m->tokens, I32, 2, B, positions, 1)};
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < positions; t++) {
            ((int32_t *)batch.inputs.data)[b * positions + t] = tokens[b * (T + 1) + t];
            ((int32_t *)batch.targets.data)[b * positions + t] = tokens[b * (T + 1) + t + 1];
        }
    return batch;
}

static double loss_sum(Model *m) {
    StepValues values = step_sums_fetch(&m->sums, &m->stream);
    return exact_value(&values.sum[SUM_LOSS]);
}

/* Loss and gradients of one step's four sequences, B at a time. */
static double gradients(Model *m, int64_t step, int64_t B) {
    shards_begin(m->shards, &m->stream);
    step_sums_zero(&m->sums, &m->stream);
    for (int64_t first = 0; first < SEQUENCES; first += B) {
        Batch batch = batch_of(m, step, first, B, T);
        gpt_forward(&m->gpt, &m->stream, batch);
        gpt_backward(&m->gpt, &m->stream, batch, 1.0f / (SEQUENCES * T), MICRO_EARLIER);
    }
    return loss_sum(m) / (SEQUENCES * T);
}

static double learning_rate(int64_t s) {
    if (s < WARMUP) return LEARNING_RATE * (double)(s + 1) / WARMUP;
    double progress = (double)(s - WARMUP) / (STEPS - WARMUP);
    return LEARNING_RATE * (FINAL_FRACTION + (1.0 - FINAL_FRACTION) * (1.0 + cos(acos(-1.0) * progress)) / 2.0);
}

static double gradient_norm(Model *m) { /* rank 0 answers for its pieces only, so the norm is taken over all of it here */
    Tensor sum = step_sum(&m->sums, SUM_GRAD_SQUARES);
    device_zero(&m->stream, sum);
    for (int i = 0; i < m->shards->spans; i++)
        norm_squared(&m->stream, sum, tensor_slice(m->shards->grads, m->shards->span[i].memory, m->shards->span[i].elems));
    StepValues values = step_sums_fetch(&m->sums, &m->stream);
    return sqrt(exact_value(&values.sum[SUM_GRAD_SQUARES]));
}

static void update(Model *m, int64_t step, double norm) {
    AdamW h = {(float)learning_rate(step), 0.9f, 0.95f, 1e-8f, 0.1f, step + 1};
    optimizer_update(&m->optimizer, &m->stream, h, norm > GRAD_CLIP ? (float)(GRAD_CLIP / norm) : 1.0f);
}

/* Worst ||got - want|| / ||want|| over the rows of the parameter table; got is parameter memory, want the records of
 * that prefix. */
static double worst_row(Model *m, Tensor memory, const char *prefix, int skip_qkv_bias) {
    double worst = 0.0;
    for (int i = 0; i < m->shards->layout.params; i++) {
        const Param *p = &m->shards->layout.param[i];
        char         name[80];
        if (skip_qkv_bias && strstr(p->name, "c_attn.bias")) continue;
        snprintf(name, sizeof name, "%s.%s", prefix, p->name);
        const Record *r = record_find(&m->records, name);
        double *want = (double *)malloc(sizeof(double) * (size_t)r->elems);
        for (int64_t k = 0; k < r->elems; k++) want[k] = record_value(r, k);
        double error = compare_norm(tensor_slice(memory, p->memory, p->elems), want);
        if (getenv("COMPARE_VERBOSE")) printf("    %-48s %.2e\n", name, error);
        if (!(error <= worst)) worst = error;
        free(want);
    }
    return worst;
}

static double relative(double got, double want) { return fabs(got - want) / fabs(want); }

static void test_curve(void **state) {
    (void)state;
    Model  *m = model_create(F32, 2, T, RECOMPUTE_NONE, GPT_TRAINING);
    double  worst_loss = 0.0;
    int64_t steps = stage_is_slow() ? STEPS / 4 : STEPS;
    for (int64_t step = 0; step < steps; step++) {
        double loss = gradients(m, step, 2), norm = gradient_norm(m);
        worst_loss = fmax(worst_loss, relative(loss, record_value(record_find(&m->records, "loss"), step)));
        assert_true(relative(norm, record_value(record_find(&m->records, "grad_norm"), step)) <= GRADIENT_ALLOWED + WEIGHT_ALLOWED);
        if (step == 0) {
            double worst = worst_row(m, m->shards->grads, "grad", 0);
            print_message("step 1: worst gradient %.2e of %.0e\n", worst, GRADIENT_ALLOWED);
            assert_true(worst <= GRADIENT_ALLOWED);
        }
        update(m, step, norm);
    }
    print_message("worst loss %.2e of %.0e\n", worst_loss, LOSS_ALLOWED);
    assert_true(worst_loss <= LOSS_ALLOWED);
    if (steps == STEPS) { /* the record holds the final weights */
        double worst = worst_row(m, m->shards->params, "final", 1);
        print_message("worst final weight %.2e of %.0e\n", worst, WEIGHT_ALLOWED);
        assert_true(worst <= WEIGHT_ALLOWED);
    }
    model_destroy(m);
}

/* The same bounds: what is rounded off in a direction grows with it (test_newton_schulz.c), to some 1e-6, and twenty steps
 * move the weights by a part of themselves. */
static void test_muon(void **state) {
    (void)state;
    Model     *m = model_of(&OPTIMIZER_MUON, 1, F32, 2, T, RECOMPUTE_NONE, GPT_TRAINING);
    RecordFile adamw = m->records, muon = record_load("test/ref/data/muon.rec");
    double     worst_loss = 0.0;
    int64_t    steps = stage_is_slow() ? STEPS / 4 : STEPS;
    for (int64_t step = 0; step < steps; step++) {
        double loss = gradients(m, step, 2);
        worst_loss = fmax(worst_loss, relative(loss, record_value(record_find(&muon, "loss"), step)));
        update(m, step, gradient_norm(m));
    }
    print_message("muon: worst loss %.2e of %.0e\n", worst_loss, LOSS_ALLOWED);
    assert_true(worst_loss <= LOSS_ALLOWED);
    m->records = muon;
    double worst = steps == STEPS ? worst_row(m, m->shards->params, "final", 1) : 0.0;
    print_message("muon: worst final weight %.2e of %.0e\n", worst, WEIGHT_ALLOWED);
    assert_true(worst <= WEIGHT_ALLOWED);
    m->records = adamw;
    record_unload(&muon);
    model_destroy(m);
}

static void test_micro_batches(void **state) {
    (void)state;
    static const int64_t splits[] = {1, 2, 4};
    for (int i = 0; i < COUNT(splits); i++) {
        Model *m = model_create(F32, splits[i], T, RECOMPUTE_NONE, GPT_TRAINING);
        double loss = gradients(m, 0, splits[i]);
        assert_true(relative(loss, record_value(record_find(&m->records, "loss"), 0)) <= LOSS_ALLOWED);
        assert_true(worst_row(m, m->shards->grads, "grad", 0) <= GRADIENT_ALLOWED);
        model_destroy(m);
    }
}

/* The same ops on the same inputs: the same bits. */
static void test_recompute(void **state) {
    (void)state;
    for (int t = 0; t < stage_act_types(); t++) {
        Model *kept = model_create(ACT_TYPES[t], 2, T, RECOMPUTE_NONE, GPT_TRAINING);
        double loss = gradients(kept, 0, 2);
        for (Recompute r = RECOMPUTE_LIGHT; r <= RECOMPUTE_BLOCK; r++) {
            Model *m = model_create(ACT_TYPES[t], 2, T, r, GPT_TRAINING);
            assert_true(gradients(m, 0, 2) == loss);
            assert_same_bits(m->shards->grads, kept->shards->grads);
            assert_true(m->activations.peak_bytes < kept->activations.peak_bytes);
            model_destroy(m);
        }
        model_destroy(kept);
    }
}

/* A run repeats its bits. */
static void test_repeat(void **state) {
    (void)state;
    for (int t = 0; t < stage_act_types(); t++) {
        Model *a = model_create(ACT_TYPES[t], 4, T, RECOMPUTE_NONE, GPT_TRAINING);
        Model *b = model_create(ACT_TYPES[t], 4, T, RECOMPUTE_NONE, GPT_TRAINING);
        for (int64_t step = 0; step < (stage_is_slow() ? 1 : 2); step++) {
            assert_true(gradients(a, step, 4) == gradients(b, step, 4));
            assert_same_bits(a->shards->grads, b->shards->grads);
            update(a, step, 1.0), update(b, step, 1.0);
        }
        assert_same_bits(a->shards->params, b->shards->params);
        model_destroy(a);
        model_destroy(b);
    }
}

/* One sequence of 17 tokens through memory for four of 40, and through memory made for it, after other work. */
static void test_smaller_batch(void **state) {
    (void)state;
    Model *large = model_create(F32, 4, T, RECOMPUTE_NONE, GPT_TRAINING),
          *fitting = model_create(F32, 1, 17, RECOMPUTE_NONE, GPT_TRAINING);
    Model   *both[] = {large, fitting};
    gradients(large, 3, 4);
    for (int i = 0; i < 2; i++) {
        Model *m = both[i];
        Batch  batch = batch_of(m, 1, 2, 1, 17);
        shards_begin(m->shards, &m->stream);
        step_sums_zero(&m->sums, &m->stream);
        gpt_forward(&m->gpt, &m->stream, batch);
        gpt_backward(&m->gpt, &m->stream, batch, 1.0f / 17, MICRO_EARLIER);
    }
    assert_true(relative(loss_sum(large), loss_sum(fitting)) <= LOSS_ALLOWED);
    double *want = (double *)malloc(sizeof(double) * (size_t)large->shards->layout.memory_elems);
    for (int64_t i = 0; i < large->shards->layout.memory_elems; i++) want[i] = (double)tensor_get(fitting->shards->grads, i);
    assert_true(compare_norm(large->shards->grads, want) <= GRADIENT_ALLOWED);
    free(want);
    model_destroy(large);
    model_destroy(fitting);
}

/* Inference keeps one block's memory and gives the same losses; the losses follow from its logits. */
static void test_inference(void **state) {
    (void)state;
    for (int t = 0; t < stage_act_types(); t++) {
        Model *trains = model_create(ACT_TYPES[t], 2, T, RECOMPUTE_NONE, GPT_TRAINING);
        Model *m = model_create(ACT_TYPES[t], 2, T, RECOMPUTE_NONE, GPT_INFERENCE);
        Batch  batch = batch_of(m, 0, 0, 2, T), same = batch_of(trains, 0, 0, 2, T);
            gpt_forward(&trains->gpt, &trains->stream, same);
        gpt_backward(&trains->gpt, &trains->stream, same, 1.0f, MICRO_EARLIER);
        gpt_forward(&m->gpt, &m->stream, batch);
        gpt_loss(&m->gpt, &m->stream, batch);
        assert_true(loss_sum(m) == loss_sum(trains));
        float  logits[389];
        double loss;
        for (int32_t row = 0; row < 2 * T; row += 13) {
            gpt_logits(&m->gpt, &m->stream, batch, row, logits);
            double wide[389];
            for (int v = 0; v < 389; v++) wide[v] = (double)logits[v];
            ref_classifier_forward(&loss, wide, (const int32_t *)batch.targets.data + row, 1, 389, 389);
            /* The product of one row may sum its 42 terms in another order than that of many; bf16 then may round to
             * the neighbour. */
            double allowed = ACT_TYPES[t] == F32 ? 1e-6 : 0x1p-8;
            assert_true(fabs(loss - (double)tensor_get(m->gpt.losses, row)) <= allowed * loss);
        }
        model_destroy(trains);
        model_destroy(m);
    }
}

/* bf16. A rounding errs by at most u = 2^-8 of the value, in the root mean square by 0.42 u (evenly within the spacing,
 * mantissas evenly in the logarithm). Along the longest path through the model (two blocks, forward and backward) some
 * 70 values are rounded, weights included: their independent errors make sqrt(70) of one, norm-wise. The logits see
 * half the path; their size is at most 1 here, a loss moves by as much as they do, and the mean over 160 tokens by 1 /
 * sqrt(160) of that. Four standard deviations for the worst of twenty losses. */
static void test_bf16(void **state) {
    (void)state;
    Model *m = model_create(BF16, 2, T, RECOMPUTE_NONE, GPT_TRAINING);
    double u = 0.42 * 0x1p-8, gradient_allowed = u * sqrt(70.0), loss_allowed = 4.0 * u * sqrt(35.0) / sqrt(160.0),
           worst_loss = 0.0;
    for (int64_t step = 0; step < (stage_is_slow() ? STEPS / 4 : STEPS); step++) {
        double loss = gradients(m, step, 2);
        worst_loss = fmax(worst_loss, fabs(loss - record_value(record_find(&m->records, "loss"), step)));
        if (step == 0) {
            double worst = worst_row(m, m->shards->grads, "grad", 0);
            print_message("bf16 step 1: worst gradient %.2e of %.2e\n", worst, gradient_allowed);
            assert_true(worst <= gradient_allowed);
        }
        update(m, step, gradient_norm(m));
    }
    print_message("bf16 worst loss %.2e off of %.2e\n", worst_loss, loss_allowed);
    assert_true(worst_loss <= loss_allowed);
    model_destroy(m);
}

/* Initial values: a function of seed and offset alone; N(0, 0.02), residual projections N(0, 0.02/sqrt(2 n_layer)),
 * biases 0, norms 1. */
static void test_initial(void **state) {
    (void)state;
    enum { MOST = 389 * 42 };
    Model *m = model_create(F32, 1, T, RECOMPUTE_NONE, GPT_TRAINING);
    float *whole = (float *)malloc(sizeof(float) * MOST), *part = (float *)malloc(sizeof(float) * MOST);
    for (int i = 0; i < m->shards->layout.params; i++) {
        const Param *p = &m->shards->layout.param[i];
        int64_t cut = p->elems / 3;
        param_init_values(whole, p, p->offset, p->elems, 7);
        param_init_values(part, p, p->offset, cut, 7);
        param_init_values(part + cut, p, p->offset + cut, p->elems - cut, 7);
        assert_memory_equal(whole, part, sizeof(float) * (size_t)p->elems);
        double mean = 0.0, square = 0.0, n = (double)p->elems;
        for (int64_t k = 0; k < p->elems; k++) mean += (double)whole[k] / n, square += (double)whole[k] * (double)whole[k] / n;
        if (p->dims == 1) {
            float want = strstr(p->name, "ln_") && strstr(p->name, "weight") ? 1.0f : 0.0f;
            for (int64_t k = 0; k < p->elems; k++) assert_true(whole[k] == want);
        } else {
            double std = strstr(p->name, "c_proj") ? 0.02 / sqrt(2.0 * (double)SHAPE.n_layer) : 0.02;
            assert_true(fabs(mean) <= 5.0 * std / sqrt(n));
            assert_true(fabs(sqrt(square) / std - 1.0) <= 5.0 / sqrt(2.0 * n));
            rng_normal(part, p->elems, 7, (uint64_t)p->offset, 0.0f, p->init_std); /* keyed by the global offset: no two tensors alike */
            assert_memory_equal(whole, part, sizeof(float) * (size_t)p->elems);
        }
    }
    free(whole);
    free(part);
    model_destroy(m);
}

static int tests(void) {
    const struct CMUnitTest all[] = {
        cmocka_unit_test(test_curve),         cmocka_unit_test(test_micro_batches), cmocka_unit_test(test_recompute),
        cmocka_unit_test(test_repeat),        cmocka_unit_test(test_smaller_batch), cmocka_unit_test(test_inference),
        cmocka_unit_test(test_bf16),          cmocka_unit_test(test_initial),       cmocka_unit_test(test_muon),
    };
    return cmocka_run_group_tests_name("gpt", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
