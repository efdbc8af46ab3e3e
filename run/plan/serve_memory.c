/* serve_memory.c - the memory of a server through which jobs train one model together (`train_gpt serve`): see
 * plan.h. */
#include "run/plan/plan.h"

#include <stdlib.h>

#include "core/error.h"
#include "model/params.h"
#include "run/checkpoint/checkpoint.h"
#include "run/outer/rule.h"

/* Divides the memory of a server among the shards and the optimizer of one rank. optimizer.name does not matter. A
 * server applies AdamW to all weights, or has only a momentum, which it keeps in place of AdamW's first moment. */
static void carve(const Config *c, ServeWeights *w) {
    ShardsSpec spec = {.shape = c->model.shape, .ranks = 1, .zero_stage = 0, .act = F32, .use = GPT_INFERENCE};
    Layout     layout = model_layout(spec.shape, (LayoutPlace){1, 1, 0, NULL, 1, 0});
    w->shards = shards_create(spec, layout, step_sums_create(&w->sums, 0, 0), &w->params, &w->grads);
    w->optimizer = optimizer_create(&OPTIMIZER_ADAMW, w->shards, MEMORY_DEVICE, &w->state);
}

static ServeWeights carve_dry(const Config *c) {
    ServeWeights w = {.params = arena_dry("parameters"), .grads = arena_dry("gradients"),
                      .state = arena_dry("optimizer"), .sums = arena_dry("sums")};
    carve(c, &w);
    return w;
}

void serve_weights_destroy(ServeWeights *w) {
    optimizer_destroy(&w->optimizer);
    shards_destroy(w->shards);
    arena_destroy(&w->params), arena_destroy(&w->grads), arena_destroy(&w->state), arena_destroy(&w->sums);
    free(w->part);
}

static size_t elems_of(const Config *c, const Layout *layout, int part) {
    int parts = outer_servers(c->outer.server);
    return (size_t)(outer_part_begin(layout->elems, part + 1, parts) - outer_part_begin(layout->elems, part, parts));
}

ServeBytes serve_bytes(const Config *c, int part) {
    ServeWeights  w = carve_dry(c);
    const Layout *layout = &w.shards->layout;
    size_t        elems = elems_of(c, layout, part);
    ServeBytes    b = {.weights = WEIGHTS_TENSORS * sizeof(float) * elems,
                       .changes = round_change_bytes(c, elems) + held_bytes(c, elems) * (size_t)c->outer.least_islands,
                       .deltas = sizeof(float) * elems * (size_t)c->outer.least_islands};
    if (part == 0) {
        b.weights = w.params.peak_bytes + w.grads.peak_bytes + w.state.peak_bytes + w.sums.peak_bytes;
        b.copy = saver_bytes(layout, w.optimizer.kind);
    }
    b.all = b.weights + b.copy + b.changes + b.deltas;
    serve_weights_destroy(&w);
    return b;
}

ServeWeights serve_weights_create(const Config *c, int part) {
    /* allocates and frees all memory at once, so that a lack of memory shows before anything begins */
    ServeBytes b = serve_bytes(c, part);
    void      *all = malloc(b.all);
    if (!all)
        fail(EXIT_MEMORY,
             "a server of %s takes %s of memory, more than this machine has free (lower outer.least_islands, or name "
             "more servers in outer.server): %s for weights, %s for the copy of checkpoints, %s for changes "
             "that training jobs fetch (outer.compress), %s for those that they send (outer.least_islands = %lld)",
             part > 0 ? "a part of this model" : "this model", bytes_text((double)b.all).text,
             bytes_text((double)b.weights).text, bytes_text((double)b.copy).text, bytes_text((double)b.changes).text,
             bytes_text((double)b.deltas).text, (long long)c->outer.least_islands);
    free(all);
    ServeWeights dry = carve_dry(c), w = {0};
    if (part > 0) {
        size_t elems = elems_of(c, &dry.shards->layout, part);
        dry.part = xcalloc(elems * WEIGHTS_TENSORS, sizeof *dry.part, "this server's part of the weights");
        return dry;
    }
    w.params = arena_create("parameters", dry.params.peak_bytes);
    w.grads = arena_create("gradients", dry.grads.peak_bytes);
    w.state = arena_create_host("optimizer", dry.state.peak_bytes), w.sums = arena_create("sums", dry.sums.peak_bytes);
    serve_weights_destroy(&dry);
    carve(c, &w);
    return w;
}
