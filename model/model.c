/* model.c - see model.h. */
#include "model/model.h"

#include <stdlib.h>

static void carve(Model *m) {
    const ModelSpec *spec = &m->spec;
    m->sums = step_sums_create(&m->activations_arena);
    m->shards = shards_create(spec->shards, model_layout(spec->shards.shape, spec->shards.ranks), m->sums, &m->params_arena, &m->grads_arena);
    m->gpt = gpt_create(m->shards, spec->B, spec->T, spec->recompute, &m->activations_arena);
    if (spec->optimizer) m->optimizer = optimizer_create(spec->optimizer, m->shards, &m->optimizer_arena);
}

static void drop(Model *m) {
    if (m->spec.optimizer) optimizer_destroy(&m->optimizer);
    gpt_destroy(&m->gpt);
    shards_destroy(m->shards);
}

ModelBytes model_bytes(ModelSpec spec, int *gradient_buffers) {
    Model m = {.spec = spec, .params_arena = arena_dry("weights"), .grads_arena = arena_dry("gradients"), .optimizer_arena = arena_dry("optimizer"),
               .activations_arena = arena_dry("activations")};
    m.spec.shards.comm = NULL;
    carve(&m);
    ModelBytes bytes = {m.params_arena.peak_bytes, m.grads_arena.peak_bytes, m.optimizer_arena.peak_bytes, m.activations_arena.peak_bytes,
                        gpt_scratch_bytes(&m.gpt)};
    if (gradient_buffers) *gradient_buffers = m.shards->order.leaves ? m.shards->order.buffers : 0;
    drop(&m);
    return bytes;
}

Model *model_create(ModelSpec spec) {
    Model *m = (Model *)calloc(1, sizeof *m);
    if (!m) fail(EXIT_MEMORY, "no memory for a model");
    m->spec = spec;
    m->bytes = model_bytes(spec, NULL);
    m->params_arena = arena_create("parameters", m->bytes.params);
    m->grads_arena = arena_create("gradients", m->bytes.grads);
    m->optimizer_arena = arena_create("optimizer", m->bytes.optimizer);
    m->activations_arena = arena_create("activations", m->bytes.activations);
    m->stream = stream_create(m->bytes.scratch);
    m->stream.math = spec.math;
    m->stream.any_threads = spec.any_threads;
    if (spec.shards.comm) world_follow(comm_world(spec.shards.comm), &m->stream);
    carve(m);
    return m;
}

void model_destroy(Model *m) {
    if (!m) return;
    drop(m);
    Arena *arenas[] = {&m->params_arena, &m->grads_arena, &m->optimizer_arena, &m->activations_arena};
    for (int i = 0; i < 4; i++) arena_destroy(arenas[i]);
    stream_destroy(&m->stream);
    free(m);
}

void model_init_weights(Model *m, uint64_t seed, void (*ticks)(void *ctx), void *ctx) {
    enum { BLOCK = 1 << 20 };
    float *values = (float *)malloc(BLOCK * sizeof *values);
    if (!values) fail(EXIT_MEMORY, "no memory for initial weights");
    for (int i = 0; i < m->shards->spans; i++) {
        Span         span = m->shards->span[i];
        const Param *p = &m->shards->layout.param[span.param];
        Tensor       master = optimizer_master(&m->optimizer, span);
        for (int64_t at = 0; at < span.elems; at += BLOCK) {
            int64_t n = span.elems - at < BLOCK ? span.elems - at : BLOCK;
            param_init_values(values, p, span.offset - p->offset + at, n, seed);
            device_from_host(&m->stream, tensor_slice(master, at, n), values);
            if (ticks) ticks(ctx);
        }
    }
    free(values);
    optimizer_publish(&m->optimizer, &m->stream);
}
