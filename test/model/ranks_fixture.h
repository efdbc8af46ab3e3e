/* ranks_fixture.h - a model on a grid of ranks, compared with the recorded float64 results of PyTorch for the same
 * steps (test/ref/generate.py). Shared by ranks_grid.c and ranks_experts.c. Each has a struct Job for the state of a
 * training; its first field is a Ranked, defined here. */
#ifndef TEST_MODEL_RANKS_FIXTURE_H
#define TEST_MODEL_RANKS_FIXTURE_H

#include "core/exact.h"
#include "model/groups.h"
#include "model/model.h"
#include "test/comm/ranks.h"
#include "test/ref/record.h"

#include <math.h>

enum { STEPS = 20, WARMUP = 5, MOST_ROWS = 64 };
static const double LEARNING_RATE = 1e-3, FINAL_FRACTION = 0.1, GRAD_CLIP = 1.0;

static RecordFile records;

typedef struct {
    Groups  groups;
    Model  *model;
    Arena   tokens;
    int64_t step, micro;  /* the present step, and the number of this rank's next micro-batch in it */
} Ranked;

static inline const Record *record_of(const char *prefix, const Param *p) {
    char name[80];
    snprintf(name, sizeof name, "%s.%s", prefix, p->name);
    return record_find(&records, name);
}

/* Returns the index of element k of a span within its parameter, as whole files store the parameter. */
static inline int64_t row_elem(const Model *m, Span span, int64_t k) {
    return layout_extent(&m->shards->layout, &span, k).offset - m->shards->layout.param[span.param].offset;
}

static inline void load_initial(Model *m) {
    float *values = malloc(sizeof *values * (size_t)m->shards->layout.elems);
    CHECK(values, "no memory");
    for (int i = 0; i < m->shards->spans; i++) {
        Span          span = m->shards->span[i];
        const Record *r = record_of("init", &m->shards->layout.param[span.param]);
        for (int64_t k = 0; k < span.elems; k++) values[k] = (float)record_value(r, row_elem(m, span, k));
        optimizer_put(&m->optimizer, &m->stream, optimizer_master(&m->optimizer, span), values);
    }
    free(values);
    optimizer_publish(&m->optimizer, &m->stream);
    shards_publish(m->shards, &m->stream);
}

/* Creates the model on the grid of r->groups and loads the first weights of PyTorch's record. Also takes memory for the
 * inputs and targets of a step, twice as much as step_tokens tokens need. */
static inline void ranked_create(Ranked *r, ModelSpec spec, int64_t step_tokens) {
    model_take_groups(&spec, &r->groups);
    r->model = model_create(spec);
    r->tokens = arena_create("tokens", (size_t)(4 * step_tokens) * sizeof(int32_t));
    load_initial(r->model);
}

static inline void ranked_drop(Ranked *r) {
    shards_need_all(r->model->shards);
    model_destroy(r->model);
    world_follow(comm_world(world), &stream);
    groups_free(&r->groups);
    arena_destroy(&r->tokens);
}

typedef struct { double loss, norm; } Numbers;

/* Fills the memory of gradients with NaN. A step must set this memory before it reads it. */
static inline void spoil_gradients(Model *m) {
    Tensor all = m->shards->grads;
    void  *nan = malloc(tensor_bytes(all));
    CHECK(nan, "no memory");
    memset(nan, 0xff, tensor_bytes(all));
    device_from_host(&m->stream, all, nan);
    free(nan);
}

/* Computes the gradients of a step that has step_tokens tokens in all. next(ctx) returns this rank's next micro-batch.
 * Returns the mean loss of a token and the norm of the gradients. */
static inline Numbers gradients(Ranked *r, int64_t step, int64_t step_tokens, Batch (*next)(void *ctx), void *ctx) {
    Model *m = r->model;
    r->step = step, r->micro = 0, r->tokens.used_bytes = 0;
    step_sums_zero(&m->sums, &m->stream);
    spoil_gradients(m);
    shards_begin(m->shards, &m->stream);
    pipeline_step(&m->pipeline, &m->stream, 1.0f / (float)step_tokens, next, ctx);
    shards_finish(m->shards, &m->stream);
    optimizer_numbers(&m->optimizer, &m->stream, 0);
    StepValues v = step_sums_fetch(&m->sums, &m->stream);
    comm_all_reduce_i64(world, v.sum[0].word, sizeof v.sum / (sizeof(int64_t)), COMM_SUM);
    return (Numbers){exact_value(&v.sum[SUM_LOSS]) / (double)step_tokens, sqrt(exact_value(&v.sum[SUM_GRAD_SQUARES]))};
}

static inline double learning_rate(int64_t s) {
    if (s < WARMUP) return LEARNING_RATE * (double)(s + 1) / WARMUP;
    double progress = (double)(s - WARMUP) / (STEPS - WARMUP);
    return LEARNING_RATE * (FINAL_FRACTION + (1.0 - FINAL_FRACTION) * (1.0 + cos(acos(-1.0) * progress)) / 2.0);
}

static inline void update(Ranked *r, int64_t step, double norm) {
    OptimizerStep h = {(float)learning_rate(step), 0.9f, 0.95f, 1e-8f, 0.1f, step + 1};
    optimizer_update(&r->model->optimizer, &r->model->stream, h, norm > GRAD_CLIP ? (float)(GRAD_CLIP / norm) : 1.0f);
}

static inline double row_error(double square_off, double square_want) {
    return square_want > 0 ? sqrt(square_off / square_want) : square_off > 0 ? INFINITY : 0.0;
}

/* Compares `of` (weights or gradients of a span) on all ranks with the recorded tensors of PyTorch named "prefix.ROW".
 * Returns the largest ||got - want|| / ||want|| over the rows of the parameter table. A row recorded as zeros must be
 * zero. Each element must be on exactly `copies` ranks; if copies is 0, each row must be there a whole number of times,
 * at least once. */
static inline double worst_row(const Ranked *r, const char *prefix, int copies, Tensor (*of)(const Model *m, Span span)) {
    const Model *m = r->model;
    double       sums[3 * MOST_ROWS] = {0}, worst = 0.0;
    CHECK(m->shards->layout.params <= MOST_ROWS, "%d rows", m->shards->layout.params);
    for (int i = 0; i < m->shards->spans; i++) {
        Span          span = m->shards->span[i];
        const Record *record = record_of(prefix, &m->shards->layout.param[span.param]);
        Tensor        got = of(m, span);
        double       *sum = sums + 3 * span.param;
        for (int64_t k = 0; k < span.elems; k++) {
            double want = record_value(record, row_elem(m, span, k)), off = (double)((const float *)got.data)[k] - want;
            sum[0] += off * off, sum[1] += want * want, sum[2] += 1.0;
        }
    }
    comm_all_reduce_f64(world, sums, 3 * MOST_ROWS, COMM_SUM);
    for (int i = 0; i < m->shards->layout.params; i++) {
        int64_t elems = m->shards->layout.param[i].elems, seen = (int64_t)sums[3 * i + 2];
        CHECK(copies ? seen == copies * elems : seen > 0 && seen % elems == 0, "row %d: %.0f elements", i, sums[3 * i + 2]);
        worst = fmax(worst, row_error(sums[3 * i], sums[3 * i + 1]));
    }
    return worst;
}
static inline Tensor grad_of(const Model *m, Span span) { return shards_grad(m->shards, span); }
static inline Tensor master_of(const Model *m, Span span) { return optimizer_master(&m->optimizer, span); }

#endif
