/* curve_fixture.h - a whole model on one rank, compared with recorded float64 results of PyTorch: twenty AdamW steps
 * (test/ref/generate.py). The test that includes it first defines the model: SHAPE, with T positions, and RECORDS, a
 * file of results. */
#ifndef TEST_MODEL_CURVE_FIXTURE_H
#define TEST_MODEL_CURVE_FIXTURE_H

#include "core/rng.h"
#include "model/optimizer.h"
#include "model/gpt.h"

/* STEPS_EMULATED: number of steps on the emulator, which is slow. It is more than one because the first step records a
 * CUDA graph, which later steps run. */
enum { STEPS = 20, STEPS_EMULATED = 3, WARMUP = 5, SEQUENCES = 4 };
static const double   LEARNING_RATE = 1e-3, FINAL_FRACTION = 0.1, GRAD_CLIP = 1.0;

/* Bounds for the fp32 model. PyTorch's own fp32 has errors of 1.1e-7 in the losses and 4.5e-7 in the gradients. */
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

static inline void load_initial(Model *m) {
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

static int DOCUMENT_MASK; /* 1: models created from now on keep documents apart (data.document_mask) */

static inline Model *model_of(const OptimizerKind *kind, int ranks, DType act, int64_t B, int64_t positions,
                              Recompute recompute, GptUse use) {
    Model *m = calloc(1, sizeof *m);
    m->records = record_load(RECORDS);
    m->params = stage_arena("params", 8 << 20), m->grads = stage_arena("grads", 8 << 20),
    m->state = stage_arena("optimizer", 16 << 20);
    m->activations = stage_arena("activations", 64 << 20), m->tokens = stage_arena("tokens", 1 << 20);
    m->sums = step_sums_create(&m->activations, block_kind(SHAPE)->traits & HAS_EXPERTS ? SHAPE.n_layer * SHAPE.n_experts : 0, 0);
    m->shards = shards_create((ShardsSpec){.shape = SHAPE, .ranks = ranks, .act = act, .use = use},
                              model_layout(SHAPE, (LayoutPlace){ranks, 1, 0, NULL, 1, 0}), m->sums, &m->params, &m->grads);
    m->gpt = gpt_create(m->shards, (GptSpec){B, positions, NULL, NULL, 1, recompute, DOCUMENT_MASK, NULL, 0.0, 0, SIZES_HERE}, &m->activations);
    m->stream = stream_create(STAGE_SCRATCH); stage_watch(m->stream);
    m->optimizer = optimizer_create(kind, m->shards, MEMORY_DEVICE, &m->state);
    load_initial(m);
    optimizer_zero_states(&m->optimizer, &m->stream);
    return m;
}

/* Creates a model on one rank, but with the memory layout for three ranks. Its padding must not change any result. */
static inline Model *model_create(DType act, int64_t B, int64_t positions, Recompute recompute, GptUse use) {
    return model_of(&OPTIMIZER_ADAMW, 3, act, B, positions, recompute, use);
}

static inline void model_destroy(Model *m) {
    Arena *arenas[] = {&m->params, &m->grads, &m->activations, &m->state, &m->tokens};
    for (int i = 0; i < COUNT(arenas); i++) stage_arena_destroy(arenas[i]);
    stage_forget(m->stream), stream_destroy(&m->stream);
    optimizer_destroy(&m->optimizer);
    gpt_destroy(&m->gpt);
    shards_destroy(m->shards);
    record_unload(&m->records);
    free(m);
}

/* Returns sequences [first, first + B) of the recorded tokens of `step`, cut to their first `positions` tokens. */
static inline Batch batch_of(Model *m, int64_t step, int64_t first, int64_t B, int64_t positions) {
    const int32_t *tokens = (const int32_t *)record_find(&m->records, "tokens")->data + (step * SEQUENCES + first) * (T + 1);
    stage_settle(); /* waits, because the previous micro-batch may still read its tokens */
    m->tokens.used_bytes = 0;
    Batch batch = {arena_tensor(&m->tokens, I32, 2, B, positions, 1), arena_tensor(&m->tokens, I32, 2, B, positions, 1), tensor_none()};
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < positions; t++) {
            ((int32_t *)batch.inputs.data)[b * positions + t] = tokens[b * (T + 1) + t];
            ((int32_t *)batch.targets.data)[b * positions + t] = tokens[b * (T + 1) + t + 1];
        }
    return batch;
}

static inline double loss_sum(Model *m) {
    StepValues values = step_sums_fetch(&m->sums, &m->stream);
    return exact_value(&values.sum[SUM_LOSS]);
}

/* Computes loss and gradients of a step's SEQUENCES sequences, in micro-batches of B. Returns the mean loss of a
 * token. */
static inline double gradients(Model *m, int64_t step, int64_t B) {
    shards_begin(m->shards, &m->stream);
    step_sums_zero(&m->sums, &m->stream);
    for (int64_t first = 0; first < SEQUENCES; first += B) {
        Batch batch = batch_of(m, step, first, B, T);
        gpt_forward(&m->gpt, &m->stream, batch);
        gpt_backward(&m->gpt, &m->stream, batch, 1.0f / (SEQUENCES * T), MICRO_EARLIER);
    }
    return loss_sum(m) / (SEQUENCES * T);
}

static inline double learning_rate(int64_t s) {
    if (s < WARMUP) return LEARNING_RATE * (double)(s + 1) / WARMUP;
    double progress = (double)(s - WARMUP) / (STEPS - WARMUP);
    return LEARNING_RATE * (FINAL_FRACTION + (1.0 - FINAL_FRACTION) * (1.0 + cos(acos(-1.0) * progress)) / 2.0);
}

/* Returns the norm of all gradients. It adds all shards, because the model has the memory layout for several ranks. */
static inline double gradient_norm(Model *m) {
    Tensor sum = step_sum(&m->sums, SUM_GRAD_SQUARES);
    device_zero(&m->stream, sum);
    for (int i = 0; i < m->shards->spans; i++) {
        Tensor grad = tensor_slice(m->shards->grads, m->shards->span[i].memory, m->shards->span[i].elems);
        norm_squared(&m->stream, sum, &grad, 1);
    }
    StepValues values = step_sums_fetch(&m->sums, &m->stream);
    return sqrt(exact_value(&values.sum[SUM_GRAD_SQUARES]));
}

static inline void update(Model *m, int64_t step, double norm) {
    OptimizerStep h = {(float)learning_rate(step), 0.9f, 0.95f, 1e-8f, 0.1f, step + 1};
    optimizer_update(&m->optimizer, &m->stream, h, norm > GRAD_CLIP ? (float)(GRAD_CLIP / norm) : 1.0f);
    if (tensor_is_none(m->sums.experts)) return;
    int64_t *counts = malloc(tensor_bytes(m->sums.experts));
    device_to_host(&m->stream, counts, m->sums.experts);
    experts_balance(&m->optimizer, &m->stream, counts);
    free(counts);
}

/* Compares `memory`, all weights or all gradients of the model, with the recorded tensors of PyTorch named
 * "prefix.ROW". Returns the largest ||got - want|| / ||want|| over the rows of the parameter table. A row recorded as
 * zeros must be zero. skip_qkv_bias leaves out the biases of queries, keys and values. */
static inline double worst_row(Model *m, Tensor memory, const char *prefix, int skip_qkv_bias) {
    double worst = 0.0;
    for (int i = 0; i < m->shards->layout.params; i++) {
        const Param *p = &m->shards->layout.param[i];
        char         name[80];
        if (skip_qkv_bias && strstr(p->name, "c_attn.bias")) continue;
        snprintf(name, sizeof name, "%s.%s", prefix, p->name);
        const Record *r = record_find(&m->records, name);
        double *want = malloc(sizeof(double) * (size_t)r->elems);
        for (int64_t k = 0; k < r->elems; k++) want[k] = record_value(r, k);
        double error = compare_norm(tensor_slice(memory, p->memory, p->elems), want);
        if (dot(want, want, r->elems) == 0.0) {
            error = 0.0;
            for (int64_t k = 0; k < p->elems; k++) error += tensor_get(memory, p->memory + k) != 0.0f;
        }
        if (getenv("COMPARE_VERBOSE")) printf("    %-48s %.2e\n", name, error);
        if (!(error <= worst)) worst = error;
        free(want);
    }
    return worst;
}

static inline double relative(double got, double want) { return fabs(got - want) / fabs(want); }

/* Runs twenty steps of AdamW and compares losses, norms, first gradients and final weights. */
static inline void follow_curve(void) {
    Model  *m = model_create(F32, 2, T, RECOMPUTE_NONE, GPT_TRAINING);
    double  worst_loss = 0.0;
    int64_t steps = stage_is_slow() ? STEPS_EMULATED : STEPS;
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
    if (steps == STEPS) { /* PyTorch's weights were recorded only after all steps */
        double worst = worst_row(m, m->shards->params, "final", 1);
        print_message("worst final weight %.2e of %.0e\n", worst, WEIGHT_ALLOWED);
        assert_true(worst <= WEIGHT_ALLOWED);
    }
    model_destroy(m);
}

/* Runs Muon with the bounds of AdamW. The bounds suffice: Newton-Schulz amplifies a rounding error in a direction to
 * some 1e-6 (test_newton_schulz.c), and twenty steps change the weights only by a fraction. weight_allowed: bound for
 * the last weights; 0 if PyTorch's were not recorded. */
static inline void follow_muon(const OptimizerKind *kind, NewtonKind newton, const char *file, double weight_allowed) {
    Model     *m = model_of(kind, 1, F32, 2, T, RECOMPUTE_NONE, GPT_TRAINING);
    RecordFile adamw = m->records, muon = record_load(file);
    m->optimizer.settings.newton = newton;
    double     worst_loss = 0.0;
    int64_t    steps = !stage_is_slow() ? STEPS : kind == &OPTIMIZER_MUON && newton == NEWTON_QUINTIC ? STEPS_EMULATED : 2;
    for (int64_t step = 0; step < steps; step++) {
        double loss = gradients(m, step, 2), norm = gradient_norm(m);
        worst_loss = fmax(worst_loss, relative(loss, record_value(record_find(&muon, "loss"), step)));
        assert_true(relative(norm, record_value(record_find(&muon, "grad_norm"), step)) <= GRADIENT_ALLOWED + WEIGHT_ALLOWED);
        update(m, step, norm);
    }
    print_message("%s: worst loss %.2e of %.0e\n", file, worst_loss, LOSS_ALLOWED);
    assert_true(worst_loss <= LOSS_ALLOWED);
    if (steps == STEPS && weight_allowed > 0.0) {
        m->records = muon;
        double worst = worst_row(m, m->shards->params, "final", 1);
        print_message("%s: worst final weight %.2e of %.0e\n", file, worst, weight_allowed);
        assert_true(worst <= weight_allowed);
    }
    m->records = adamw;
    record_unload(&muon);
    model_destroy(m);
}

/* The first micro-batch of a step sets the gradients, and does not add to old ones. So NaN in all memory of gradients,
 * also in its padding, changes no bit of loss and gradients. An earlier step on other sequences changes none either.
 * Tried with one micro-batch and with four. From the second step on, blocks run as CUDA graphs. */
static inline void nan_leaves_no_trace(void) {
    for (int t = 0; t < stage_act_types(); t++)
        for (int64_t B = 1; B <= SEQUENCES; B *= SEQUENCES) {
            Model  *m = model_create(ACT_TYPES[t], B, T, RECOMPUTE_NONE, GPT_TRAINING);
            Tensor  grads = m->shards->grads;
            double  loss = gradients(m, 0, B);
            float  *first = malloc(tensor_bytes(grads));
            stage_settle();
            memcpy(first, grads.data, tensor_bytes(grads));
            for (int again = 0; again < (stage_is_slow() ? 1 : 2); again++) {
                if (again) gradients(m, 1, B);
                stage_settle();
                memset(grads.data, 0xff, tensor_bytes(grads));
                assert_true(gradients(m, 0, B) == loss);
                stage_settle();
                for (int64_t i = 0; i < tensor_elems(grads); i++) assert_true(((const float *)grads.data)[i] == first[i]);
            }
            free(first);
            model_destroy(m);
        }
}

/* Recomputation runs the same operations on the same inputs, so loss and gradients have equal bits. It needs less
 * memory. */
static inline void recompute_all(void) {
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

#endif
