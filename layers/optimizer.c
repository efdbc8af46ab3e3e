/* optimizer.c - see optimizer.h. */
#include "layers/optimizer.h"

#include <stdlib.h>

Optimizer optimizer_create(const Layout *layout, int rank, int zero_stage, Tensor params, Tensor grads, Arena *arena) {
    Optimizer o = {.layout = layout, .rank = rank, .zero_stage = zero_stage, .params = params, .grads = grads};
    int64_t   elems = zero_stage ? layout->shard_elems : layout->memory_elems;
    o.m = arena_tensor(arena, F32, 1, elems, 1, 1);
    o.v = arena_tensor(arena, F32, 1, elems, 1, 1);
    o.master = params.type == F32 ? tensor_1d(NULL, F32, elems) : arena_tensor(arena, F32, 1, elems, 1, 1);

    int first_rank = zero_stage ? rank : 0, ranks = zero_stage ? 1 : layout->ranks;
    o.spans = (Span *)malloc(sizeof(Span) * (size_t)layout->params * (size_t)(ranks + 1));
    o.bucket_first_span = (int *)malloc(sizeof(int) * (size_t)(layout->buckets + 1));
    if (!o.spans || !o.bucket_first_span) fail(EXIT_MEMORY, "no memory for the table of parameter spans");
    for (int b = 0; b < layout->buckets; b++) {
        o.bucket_first_span[b] = o.span_count;
        for (int r = first_rank; r < first_rank + ranks; r++) o.span_count += layout_spans(layout, b, r, o.spans + o.span_count);
    }
    o.bucket_first_span[layout->buckets] = o.span_count;
    o.pieces = (AdamWPiece *)malloc(sizeof(AdamWPiece) * (size_t)(o.span_count + 1));
    if (!o.pieces) fail(EXIT_MEMORY, "no memory for the list of what AdamW updates");
    return o;
}

void optimizer_destroy(Optimizer *o) {
    free(o->spans);
    free(o->bucket_first_span);
    free(o->pieces);
    o->pieces = NULL;
    o->spans = NULL;
    o->bucket_first_span = NULL;
}

static Tensor state_view(const Optimizer *o, Tensor state, Span span) {
    return tensor_slice(state, o->zero_stage ? span.shard : span.memory, span.elems);
}

Tensor optimizer_m(const Optimizer *o, Span span) { return state_view(o, o->m, span); }
Tensor optimizer_v(const Optimizer *o, Span span) { return state_view(o, o->v, span); }
Tensor optimizer_master(const Optimizer *o, Span span) {
    return o->params.type == F32 ? tensor_slice(o->params, span.memory, span.elems) : state_view(o, o->master, span);
}

void optimizer_publish(const Optimizer *o, Stream *s) {
    if (o->params.type == F32) return;
    for (int i = 0; i < o->span_count; i++)
        cast_forward(s, tensor_slice(o->params, o->spans[i].memory, o->spans[i].elems), optimizer_master(o, o->spans[i]));
}

/* Is the span in this rank's own piece? With zero_stage 0 a rank holds the others' as well. */
static int is_own(const Optimizer *o, Span span) {
    const Bucket *b = &o->layout->bucket[o->layout->param[span.param].bucket];
    return (span.memory - b->memory) / b->piece_elems == o->rank;
}

void optimizer_norm_squared(const Optimizer *o, Stream *s, Tensor sum) {
    for (int i = 0; i < o->span_count; i++)
        if (is_own(o, o->spans[i])) norm_squared(s, sum, tensor_slice(o->grads, o->spans[i].memory, o->spans[i].elems));
}

void optimizer_hash_replicas(const Optimizer *o, Stream *s, Tensor hash) {
    hash_words(s, hash, o->params);
    if (o->zero_stage) return;
    hash_words(s, hash, o->m);
    hash_words(s, hash, o->v);
    if (o->master.data) hash_words(s, hash, o->master);
}

void optimizer_hash_grads(const Optimizer *o, Stream *s, Tensor hash) {
    for (int b = 0; b < o->layout->buckets; b++) {
        const Bucket *bucket = &o->layout->bucket[b];
        int64_t       first = o->zero_stage ? o->rank * bucket->piece_elems : 0, elems = o->zero_stage ? bucket->piece_elems : bucket->elems;
        hash_words(s, hash, tensor_slice(o->grads, bucket->memory + first, elems));
    }
}

void optimizer_update(Optimizer *o, Stream *s, AdamW h, float grad_scale) {
    for (int i = 0; i < o->span_count; i++) {
        Span span = o->spans[i];
        o->pieces[i] = (AdamWPiece){optimizer_master(o, span), optimizer_m(o, span), optimizer_v(o, span), tensor_slice(o->params, span.memory, span.elems),
                                    tensor_slice(o->grads, span.memory, span.elems), span.decay != DECAY_NONE};
    }
    adamw_update(s, o->pieces, o->span_count, h, grad_scale);
}
