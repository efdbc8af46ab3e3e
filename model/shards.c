/* shards.c - see shards.h. */
#include "model/shards.h"

#include <stdlib.h>

#include "core/injection.h"

static int is_alone(const Shards *z) { return !z->spec.comm || comm_size(z->spec.comm) == 1; }
static Tensor bucket_of(const Shards *z, Tensor flat, int b) { return tensor_slice(flat, z->layout.bucket[b].memory, z->layout.bucket[b].elems); }

/* --- memory ------------------------------------------------------------------------------------------------------- */

/* A row as a tensor inside flat, with its padding rows. */
static Tensor row_view(Tensor flat, const Param *p) {
    Tensor t = tensor_of(NULL, flat.type, p->dims, p->memory_rows, p->dim[1], 1, 1);
    if (flat.data) t.data = (char *)flat.data + (size_t)p->memory * dtype_bytes(flat.type);
    return t;
}

static void **make_views(const Shards *z, Tensor flat) {
    const Layout *l = &z->layout;
    void        **view = (void **)calloc((size_t)l->buckets, sizeof *view);
    for (int b = 0; view && b < l->buckets; b++) {
        view[b] = calloc(1, model_view_bytes(z->spec.shape, b));
        for (int i = l->bucket[b].first_param; view[b] && i < l->bucket[b].first_param + l->bucket[b].params; i++) {
            Tensor t = row_view(flat, &l->param[i]);
            memcpy((char *)view[b] + l->param[i].field, &t, sizeof t);
        }
    }
    for (int b = 0; b < l->buckets; b++)
        if (!view || !view[b]) fail(EXIT_MEMORY, "no memory for the tables of %d buckets", l->buckets);
    return view;
}

/* Stage 0 updates the pieces of all ranks. */
static void list_spans(Shards *z) {
    const Layout *l = &z->layout;
    int           first = z->spec.zero_stage ? z->spec.rank : 0, pieces = z->spec.zero_stage ? 1 : l->ranks;
    z->span = (Span *)malloc(sizeof *z->span * (size_t)l->params * (size_t)(pieces + 1));
    if (!z->span) fail(EXIT_MEMORY, "no memory for the table of parameter spans");
    for (int b = 0; b < l->buckets; b++)
        for (int r = first; r < first + pieces; r++) z->spans += layout_spans(l, b, r, z->span + z->spans);
}

Shards *shards_create(ShardsSpec spec, Layout layout, StepSums sums, Arena *params, Arena *grads) {
    Shards *z = (Shards *)calloc(1, sizeof *z);
    if (!z) fail(EXIT_MEMORY, "no memory for a model");
    z->spec = spec, z->layout = layout, z->sums = sums;
    z->params = arena_tensor(params, spec.act, 1, z->layout.memory_elems, 1, 1);
    z->grads = spec.use == GPT_TRAINING ? arena_tensor(grads, F32, 1, z->layout.memory_elems, 1, 1) : tensor_1d(NULL, F32, z->layout.memory_elems);
    z->weight_view = make_views(z, z->params);
    z->grad_view = make_views(z, z->grads);
    list_spans(z);
    if (spec.micro_batches) {
        z->order = grad_order_create(&z->layout, spec.micro_batches * spec.ranks, z->grads, grads);
        if (spec.comm) comm_tree_open(spec.comm, z->order.leaves);
    }
    return z;
}

void shards_destroy(Shards *z) {
    if (!z) return;
    for (int b = 0; b < z->layout.buckets; b++) free(z->weight_view[b]), free(z->grad_view[b]);
    free(z->weight_view);
    free(z->grad_view);
    free(z->span);
    if (z->computed.handle) event_destroy(&z->computed);
    layout_destroy(&z->layout);
    free(z);
}

/* --- weights ------------------------------------------------------------------------------------------------------ */

const void *shards_need(Shards *z, int bucket) {
    if (z->gathers) comm_wait(z->spec.comm, z->first_gather + bucket);
    if (bucket == z->layout.buckets - 1) z->gathers = 0;
    return z->weight_view[bucket];
}

void shards_need_all(Shards *z) {
    if (z->spec.comm) comm_finish(z->spec.comm);
    z->gathers = 0;
}

void shards_publish(Shards *z) {
    if (is_alone(z) || !z->spec.zero_stage) return; /* every rank has updated all of them */
    z->first_gather = comm_next(z->spec.comm);
    z->gathers = 1;
    for (int b = 0; b < z->layout.buckets; b++) comm_all_gather_start(z->spec.comm, bucket_of(z, z->params, b));
}

/* --- gradients ---------------------------------------------------------------------------------------------------- */

static Tensor last_row(const Shards *z, int bucket) {
    const Bucket *b = &z->layout.bucket[bucket];
    const Param  *p = &z->layout.param[b->first_param + b->params - 1];
    return tensor_slice(z->grads, p->memory, p->elems);
}

void shards_begin(Shards *z, Stream *s) {
    device_zero(s, z->grads);
    inject_gradient(s, last_row(z, 0), last_row(z, z->layout.buckets - 1));
    if (z->order.leaves) grad_order_begin(&z->order, z->spec.micro_batches * z->spec.rank);
}

const void *shards_grads(Shards *z, int bucket) { return z->grad_view[bucket]; }

/* The gradients of this rank are complete: adds their own check and hash, then starts their sum over the ranks. */
static void start_sum(Shards *z, Stream *s, int bucket) {
    Tensor grads = bucket_of(z, z->grads, bucket);
    Bucket at = z->layout.bucket[bucket];
    if (z->order.leaves) grad_order_join(&z->order, s, at);
    if (bucket == 0) {
        norm_squared(s, step_sum(&z->sums, SUM_RANK_CHECK), last_row(z, 0));
        inject_flip(s, "guard.own", grads);
    }
    if (z->hashes_own) hash_words(s, step_hash(&z->sums, HASH_OWN_GRADS), grads);
    if (z->order.leaves) grad_order_share(&z->order, s, at, z->spec.comm);
    else comm_reduce_scatter_start(z->spec.comm, grads);
}

/* With ordered sums each micro-batch starts from zero. */
static void keep_micro_batch(Shards *z, Stream *s) {
    grad_order_keep(&z->order, s);
    device_zero(s, z->grads);
}

void shards_done(Shards *z, Stream *s, int bucket, MicroBatch which) {
    if (which == MICRO_LAST && (!is_alone(z) || z->order.leaves)) start_sum(z, s, bucket);
    if (which == MICRO_EARLIER && z->order.leaves && bucket == 0) keep_micro_batch(z, s);
    if (!z->spec.comm) return;
    comm_poll(z->spec.comm);
    world_moved(comm_world(z->spec.comm));
}

void shards_finish(Shards *z, Stream *s) {
    if (!is_alone(z)) {
        comm_finish(z->spec.comm);
        if (!z->spec.zero_stage) {
            for (int b = 0; b < z->layout.buckets; b++) comm_all_gather_start(z->spec.comm, bucket_of(z, z->grads, b));
            comm_finish(z->spec.comm);
        }
    }
    int64_t piece = z->layout.bucket[0].piece_elems;
    inject_flip(s, "guard.sum", tensor_slice(z->grads, z->layout.bucket[0].memory + z->spec.rank * piece, piece));
    inject_flip(s, "guard.weight", z->params);
}

/* Most of a GPU's step is spent here. */
void shards_await(Shards *z, Stream *s) {
    if (!z->computed.handle) z->computed = event_create(); /* not before: a plan needs no device */
    event_record(z->computed, s);
    while (!event_is_past(z->computed))
        if (z->spec.comm) comm_poll(z->spec.comm);
}

/* --- for the optimizer -------------------------------------------------------------------------------------------- */

int64_t shards_state_elems(const Shards *z) { return z->spec.zero_stage ? z->layout.shard_elems : z->layout.memory_elems; }
Tensor  shards_state_view(const Shards *z, Tensor state, Span span) { return tensor_slice(state, z->spec.zero_stage ? span.shard : span.memory, span.elems); }
int     shards_state_is_shared(const Shards *z) { return !z->spec.zero_stage; }

int shards_is_own(const Shards *z, Span span) {
    const Bucket *b = &z->layout.bucket[z->layout.param[span.param].bucket];
    return (span.memory - b->memory) / b->piece_elems == z->spec.rank;
}

void shards_hash_grads(const Shards *z, Stream *s, Tensor hash) {
    for (int b = 0; b < z->layout.buckets; b++) {
        const Bucket *bucket = &z->layout.bucket[b];
        int64_t       piece = bucket->piece_elems;
        hash_words(s, hash, z->spec.zero_stage ? tensor_slice(z->grads, bucket->memory + z->spec.rank * piece, piece) : bucket_of(z, z->grads, b));
    }
}
