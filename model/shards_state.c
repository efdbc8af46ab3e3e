/* shards_state.c - the functions of shards.h for the optimizer: places of masters and states, and hashes. */
#include "model/shards_places.h"

int64_t shards_state_elems(const Shards *z) { return z->stage ? z->layout.shard_elems : z->layout.memory_elems; }
int64_t shards_state_at(const Shards *z, Span span) { return z->stage ? span.shard : span.memory; }
Tensor  shards_state_view(const Shards *z, Tensor state, Span span) {
    return tensor_slice(state, shards_state_at(z, span), span.elems);
}
static int64_t matrix_elems_of(const Shards *z, int rank) {
    Span   *span = z->span + z->spans; /* memory after the list, enough for the spans of one bucket */
    int64_t elems = 0;
    for (int b = 0; b < z->layout.buckets; b++)
        for (int i = layout_spans(&z->layout, b, piece_number(z, b, rank), span); i-- > 0;)
            if (span[i].group == GROUP_MATRIX) elems += span[i].elems / LAYOUT_ALIGN * LAYOUT_ALIGN;
    return elems;
}
int64_t shards_matrix_elems(const Shards *z) {
    int64_t least = INT64_MAX, all = 0;
    for (int r = 0; r < z->layout.ranks; r++) {
        int64_t elems = matrix_elems_of(z, r);
        all += elems;
        if (elems < least) least = elems;
    }
    return z->stage ? least : all;
}

int     shards_state_is_shared(const Shards *z) { return !z->stage; }

int shards_is_own(const Shards *z, Span span) {
    const Param  *p = &z->layout.param[span.param];
    const Bucket *b = &z->layout.bucket[p->bucket];
    if (p->cut == CUT_NONE && z->layout.tensor_rank > 0) return 0;
    return z->spec.replica == 0 && (span.memory - b->memory) / b->piece_elems == piece_number(z, p->bucket, z->spec.rank);
}

int shards_spans_to_save(const Shards *z, int bucket, Span *spans) {
    if (z->spec.replicas > 1 && bucket % z->spec.replicas != z->spec.replica) return 0;
    return layout_spans(&z->layout, bucket, piece_number(z, bucket, z->spec.rank), spans);
}

/* Returns the tensor of a span. It is in `pieces` for a block if blocks have slots, otherwise in `bucket`. */
static Tensor span_of(const Shards *z, int slots, Tensor bucket, Tensor pieces, int b, Span span) {
    if (slots && is_block(z, b)) return tensor_slice(pieces, span.shard - z->layout.bucket[1].shard, span.elems);
    return tensor_slice(bucket, span.memory - z->layout.bucket[b].memory, span.elems);
}
Tensor shards_weight(const Shards *z, Span span) {
    int b = z->layout.param[span.param].bucket;
    return span_of(z, has_param_slots(z), weights_of(z, b), z->param_pieces, b, span);
}
Tensor shards_grad(const Shards *z, Span span) {
    int b = z->layout.param[span.param].bucket;
    return span_of(z, has_grad_slots(z), grads_of(z, b), z->grad_pieces, b, span);
}

void shards_hash_weights(const Shards *z, Stream *s, Tensor hash) {
    if (!has_param_slots(z)) {
        hash_words(s, hash, z->params);
        return;
    }
    if (is_here(z, 0)) hash_words(s, hash, weights_of(z, 0));
    for (int b = last_bucket(z); b < z->layout.buckets; b++)
        if (is_here(z, b)) hash_words(s, hash, weights_of(z, b));
}

void shards_hash_whole(const Shards *z, Stream *s, Tensor hash) {
    for (int i = 0; i < z->layout.params; i++) {
        const Param *p = &z->layout.param[i];
        if (p->cut != CUT_NONE || !is_here(z, p->bucket) || layout_is_of_experts(&z->layout, p->bucket)) continue;
        if (has_param_slots(z) && is_block(z, p->bucket)) continue;
        hash_words(s, hash, tensor_slice(weights_of(z, p->bucket), p->memory - z->layout.bucket[p->bucket].memory, p->local_elems));
    }
}

void shards_hash_pieces(const Shards *z, Stream *s, Tensor hash) {
    if (has_param_slots(z)) hash_words(s, hash, z->param_pieces);
}

void shards_hash_grads(const Shards *z, Stream *s, Tensor hash) {
    for (int b = 0; b < z->layout.buckets; b++) {
        if (!is_here(z, b)) continue;
        Tensor grads = grads_of(z, b);
        if (has_grad_slots(z) && is_block(z, b)) hash_words(s, hash, piece_among(z, z->grad_pieces, b));
        else hash_words(s, hash, z->stage ? piece_of(z, grads, b) : grads);
    }
}
