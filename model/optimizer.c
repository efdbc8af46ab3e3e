/* optimizer.c - see optimizer.h. */
#include "model/optimizer.h"

#include <stdlib.h>
#include <string.h>

#include "core/injection.h"

Optimizer optimizer_create(const OptimizerKind *kind, Shards *z, Arena *arena) {
    Optimizer o = {.kind = kind, .shards = z};
    int64_t   elems = shards_state_elems(z);
    for (int k = 0; k < kind->states; k++) o.state[k] = arena_tensor(arena, F32, 1, elems, 1, 1);
    o.master = z->params.type == F32 ? tensor_1d(NULL, F32, elems) : arena_tensor(arena, F32, 1, elems, 1, 1);
    o.spans = (AdamWSpan *)malloc(sizeof(AdamWSpan) * (size_t)(z->spans + 1));
    if (!o.spans) fail(EXIT_MEMORY, "no memory for the list of spans to update");
    return o;
}

void optimizer_destroy(Optimizer *o) {
    free(o->spans);
    o->spans = NULL;
}

Tensor optimizer_state(const Optimizer *o, int k, Span span) { return shards_state_view(o->shards, o->state[k], span); }
Tensor optimizer_master(const Optimizer *o, Span span) {
    if (o->shards->params.type == F32) return shards_weight(o->shards, span);
    return shards_state_view(o->shards, o->master, span);
}
Tensor optimizer_tensor(const Optimizer *o, int which, Span span) { return which == 0 ? optimizer_master(o, span) : optimizer_state(o, which - 1, span); }

void optimizer_publish(const Optimizer *o, Stream *s) {
    const Shards *z = o->shards;
    if (z->params.type == F32) return;
    for (int i = 0; i < z->spans; i++) cast_forward(s, shards_weight(z, z->span[i]), optimizer_master(o, z->span[i]));
}

void optimizer_zero_states(const Optimizer *o, Stream *s) {
    for (int k = 0; k < o->kind->states; k++) device_zero(s, o->state[k]);
}

void optimizer_hash_replicas(const Optimizer *o, Stream *s, Tensor hash) {
    shards_hash_weights(o->shards, s, hash);
    if (!shards_state_is_shared(o->shards)) return;
    for (int k = 0; k < o->kind->states; k++) hash_words(s, hash, o->state[k]);
    if (o->master.data) hash_words(s, hash, o->master);
}

void optimizer_numbers(const Optimizer *o, Stream *s, int hashes) {
    const Shards *z = o->shards;
    static const char *const points[OPTIMIZER_STATES] = {"guard.m", "guard.v"};
    for (int k = 0; k < o->kind->states; k++) inject_flip(s, points[k], o->state[k]);
    if (hashes & NUMBERS_REPLICAS) optimizer_hash_replicas(o, s, step_hash(&z->sums, HASH_REPLICAS));
    if (hashes & NUMBERS_GRADS) shards_hash_grads(z, s, step_hash(&z->sums, HASH_GRADS));
    for (int i = 0; i < z->spans; i++)
        if (shards_is_own(z, z->span[i])) norm_squared(s, step_sum(&z->sums, SUM_GRAD_SQUARES), shards_grad(z, z->span[i]));
}

void optimizer_update(Optimizer *o, Stream *s, AdamW h, float grad_scale) { o->kind->update(o, s, h, grad_scale); }

/* --- adamw -------------------------------------------------------------------------------------------------------- */

static void adamw(Optimizer *o, Stream *s, AdamW h, float grad_scale) {
    const Shards *z = o->shards;
    for (int i = 0; i < z->spans; i++) {
        Span span = z->span[i];
        o->spans[i] = (AdamWSpan){optimizer_master(o, span), optimizer_state(o, 0, span), optimizer_state(o, 1, span),
                                   shards_weight(z, span), shards_grad(z, span), span.group != GROUP_VECTOR};
    }
    adamw_update(s, o->spans, z->spans, h, grad_scale);
}

const OptimizerKind OPTIMIZER_ADAMW = {"adamw", 2, {"m", "v"}, adamw};

const OptimizerKind *optimizer_kind(const char *name) { return strcmp(name, OPTIMIZER_ADAMW.name) == 0 ? &OPTIMIZER_ADAMW : NULL; }
