/* shards.c - see shards.h. */
#include "model/shards.h"

#include <stdlib.h>

#include "core/injection.h"
#include "core/error.h"

/* Number of gathers of weights that start at once after an update: those of the embedding and the first block. NCCL
 * starts a thread at each call, and the host waits for it. If all gathers started at once, the GPU would be idle until
 * the last one has started. */
enum { FIRST_GATHERS = 2 };

/* --- the numbers of a step ---------------------------------------------------------------------------------------- */

StepSums step_sums_create(Arena *arena, int64_t experts, int64_t fp8_cells) {
    StepSums n = {tensor_none(), tensor_none(), tensor_none(), tensor_none()};
    n.cells = arena_tensor(arena, I64, 1, SUMS * EXACT_WORDS + HASHES, 1, 1);
    if (experts) n.experts = arena_tensor(arena, I64, 1, experts, 1, 1);
    if (!fp8_cells) return n;
    n.fp8_amax = arena_tensor(arena, I32, 1, fp8_cells, 1, 1);
    n.fp8_counts = arena_tensor(arena, I64, 1, 2 * fp8_cells, 1, 1);
    return n;
}

void step_sums_zero(const StepSums *n, Stream *s) {
    device_zero(s, n->cells);
    if (!tensor_is_none(n->experts)) device_zero(s, n->experts);
    if (tensor_is_none(n->fp8_amax)) return;
    device_zero(s, n->fp8_amax);
    device_zero(s, n->fp8_counts);
}

Tensor step_sum(const StepSums *n, int which) { return tensor_slice(n->cells, which * EXACT_WORDS, EXACT_WORDS); }

Tensor step_hash(const StepSums *n, int which) { return tensor_slice(n->cells, SUMS * EXACT_WORDS + which, 1); }

StepValues step_sums_fetch(const StepSums *n, Stream *s) {
    StepValues values;
    CHECK(sizeof values == tensor_bytes(n->cells), "%zu bytes of sums", sizeof values);
    device_to_host(s, &values, n->cells);
    return values;
}

/* --- which buckets ------------------------------------------------------------------------------------------------ */

/* Returns the bucket of the final norm. The buckets of experts follow it. */
static int last_bucket(const Shards *z) {
    int b = z->layout.buckets - 1;
    while (layout_is_of_experts(&z->layout, b)) b--;
    return b;
}
static int is_block(const Shards *z, int b) { return b > 0 && b < last_bucket(z); }
static int has_experts(const Shards *z, int b) { return z->layout.expert_ranks > 1 && is_block(z, b); }
static int experts_of(const Shards *z, int b) { return last_bucket(z) + b; }
static int is_here(const Shards *z, int b) { return z->layout.bucket[b].hold != BUCKET_ELSEWHERE; }
static int is_twin(const Shards *z, int b) { return z->layout.bucket[b].hold == BUCKET_TWIN; }
static int has_twin(const Shards *z, int b) { return b == 0 && z->spec.twin_up && !is_twin(z, 0); }
/* Returns the bucket that backward reaches last on this rank. */
static int first_own(const Shards *z) {
    int b = 0;
    while (z->layout.bucket[b].hold != BUCKET_OWN) b++;
    return b;
}
/* Returns the bucket of the i-th block of this rank. Blocks with adjacent i are in different slots (buffers that blocks
 * share). */
static int block_here(const Shards *z, int i) {
    for (int b = 1; b < last_bucket(z); b++)
        if (is_here(z, b) && i-- == 0) return b;
    return 0;
}
static int blocks_before(const Shards *z, int b) {
    int before = 0;
    for (int k = 1; k < b; k++) before += is_here(z, k);
    return before;
}
static int slot_of(const Shards *z, int b) { return blocks_before(z, b) % SHARDS_SLOTS; }

/* --- where buckets lie -------------------------------------------------------------------------------------------- */

static int has_grad_slots(const Shards *z) { return z->stage >= 2; }
static int has_param_slots(const Shards *z) { return z->stage == 3; }
static int is_in_slot(const Shards *z, int b) { return has_grad_slots(z) && is_block(z, b); }

/* Returns the index of the first element after the slots (buffers that blocks share). With slots the order in memory
 * is: first bucket, last bucket, slots, experts. All blocks have the same size. */
static int64_t end_of_slots(const Shards *z) {
    const Bucket *bucket = z->layout.bucket;
    return bucket[0].elems + bucket[last_bucket(z)].elems + SHARDS_SLOTS * bucket[block_here(z, 0)].elems;
}
static int64_t place_of(const Shards *z, int slots, int b) {
    const Bucket *bucket = z->layout.bucket;
    int           last = last_bucket(z);
    if (!slots) return bucket[b].memory;
    if (b == 0) return 0;
    if (b > last) return end_of_slots(z) + bucket[b].memory - bucket[last + 1].memory;
    return bucket[0].elems + (is_block(z, b) ? bucket[last].elems + slot_of(z, b) * bucket[b].elems : 0);
}
static int64_t room_of(const Shards *z, int slots) {
    const Bucket *last = &z->layout.bucket[last_bucket(z)];
    return slots ? end_of_slots(z) + z->layout.memory_elems - (last->memory + last->elems) : z->layout.memory_elems;
}
static Tensor weights_of(const Shards *z, int b) {
    return tensor_slice(z->params, place_of(z, has_param_slots(z), b), z->layout.bucket[b].elems);
}
static Tensor grads_of(const Shards *z, int b) {
    return tensor_slice(z->grads, place_of(z, has_grad_slots(z), b), z->layout.bucket[b].elems);
}

/* comm_of returns the ranks that share a bucket. piece_number returns the number of the piece (ZeRO shard) of the
 * bucket that belongs to `rank`. */
static Comm *comm_of(const Shards *z, int b) {
    return layout_is_of_experts(&z->layout, b) ? z->spec.expert_state : z->spec.comm;
}
static int piece_number(const Shards *z, int b, int rank) {
    return rank / (z->layout.ranks / z->layout.bucket[b].ranks);
}

/* Return this rank's piece (ZeRO shard) of bucket b. piece_of returns it inside the memory of the whole bucket.
 * piece_among returns it inside `pieces`, the memory of this rank's pieces of all blocks. */
static Tensor piece_of(const Shards *z, Tensor bucket, int b) {
    int64_t q = z->layout.bucket[b].piece_elems;
    return tensor_slice(bucket, piece_number(z, b, z->spec.rank) * q, q);
}
static Tensor piece_among(const Shards *z, Tensor pieces, int b) {
    return tensor_slice(pieces, z->layout.bucket[b].shard - z->layout.bucket[1].shard, z->layout.bucket[b].piece_elems);
}
/* Returns whether no other rank shares this rank's copy of the state (masters and moments). */
static int is_alone(const Shards *z) { return !z->spec.comm || comm_size(z->spec.comm) == 1; }

/* --- gradients in the order of a tree ----------------------------------------------------------------------------- */

/* Adds the gradients of a micro-batch to the partial sums of the tree that they complete. If they complete none, copies
 * them to a buffer. Not used for the last micro-batch of this rank. A sum may overwrite either operand, because a + b
 * has the bits of b + a. */
static void order_keep(GradOrder *t, Stream *s) {
    /* a rank without buffers has one micro-batch in a step; an earlier one only serves to time products */
    if (t->buffers == 0) return;
    int at = t->nodes.count, joined = tree_push(&t->nodes, (TreeNode){t->leaf++, 1});
    if (joined == 0) cast_forward(s, t->buffer[at], t->grads);
    for (Tensor sum = t->grads; joined > 0; joined--, sum = t->buffer[at]) add_forward(s, t->buffer[--at], sum);
}

static Tensor of_bucket(Tensor flat, Bucket bucket) { return tensor_slice(flat, bucket.memory, bucket.elems); }

/* Returns how many partial sums are still in buffers after the last micro-batch has been added to the sums that it
 * completes. */
static int waiting(const GradOrder *t) {
    TreeNodes nodes = t->nodes;
    return t->nodes.count - tree_push(&nodes, (TreeNode){t->leaf, 1});
}

/* Starts the sum of a bucket of gradients over the ranks of comm. The whole sum arrives in this rank's piece (ZeRO
 * shard) of the gradients. With one rank, or comm NULL, the sum is complete at once. */
static void order_share(const GradOrder *t, Stream *s, Bucket bucket, Comm *comm) {
    Tensor x = of_bucket(t->grads, bucket), node[TREE_MOST];
    int    count = waiting(t);
    for (int i = 0; i < count; i++) node[i] = of_bucket(t->buffer[i], bucket);
    if (comm && comm_size(comm) > 1) comm_tree_sum_start(comm, x, node, count);
    else
        for (int i = count - 1; i >= 0; i--) add_forward(s, x, node[i]);
}

/* --- gradients that products set ---------------------------------------------------------------------------------- */

/* Returns whether only matrix products write the gradient of a parameter, and each micro-batch writes all of it. This
 * is so for matrices and for an output head with weights of its own. It is not so for an embedding, because the
 * gradients of its tokens are added row by row. */
static int is_of_products(const Shards *z, const Param *p) {
    return p->group == GROUP_MATRIX || (p->group == GROUP_EMBEDDING && p->bucket == last_bucket(z));
}

/* Sets whether the next products add to the gradients of a bucket (adds = 1) or overwrite them (adds = 0). */
static void set_adds(Shards *z, int b, int adds) {
    char *view = (char *)z->grad_view[model_view_bucket(z->spec.shape, b)];
    z->adds[b] = adds;
    for (int i = 0; is_here(z, b) && i < z->layout.bucket[b].params; i++) {
        const Param *p = &z->layout.param[z->layout.bucket[b].first_param + i];
        if (p->bucket == b && p->field != NO_FIELD && is_of_products(z, p))
            ((Tensor *)(void *)(view + p->field))->is_fresh = !adds;
    }
}

/* Makes the products of the next micro-batch add to the gradients of a bucket. Called after the products of a
 * micro-batch. In a slot (a buffer that blocks share), and with ordered sums, the products still overwrite. There each
 * micro-batch begins with empty gradients. */
static void pile_up(Shards *z, int b) {
    if (!is_in_slot(z, b) && !z->order.leaves) set_adds(z, b, 1);
}

/* Appends elements [from, to) of a bucket to z->rest, the list of gradient memory to zero, which has `runs` ranges.
 * Returns the new number of ranges. */
static int add_run(Shards *z, Tensor bucket, int64_t from, int64_t to, int runs) {
    Tensor run = tensor_slice(bucket, from, to - from), *last = runs ? &z->rest[runs - 1] : NULL;
    if (from == to) return runs;
    if (last && (char *)last->data + tensor_bytes(*last) == run.data) last->dim[0] += run.dim[0];
    else z->rest[runs++] = run;
    return runs;
}

/* Appends to z->rest, the list of gradient memory to zero, what products do not set in a bucket: vectors, embeddings,
 * padding. Returns the new number of ranges. */
static int list_rest(Shards *z, int b, int runs) {
    const Bucket *bucket = &z->layout.bucket[b];
    int64_t       at = 0;
    for (int i = 0; i < bucket->params; i++) {
        const Param *p = &z->layout.param[bucket->first_param + i];
        if (p->bucket != b || p->local_elems == 0 || !is_of_products(z, p)) continue;
        runs = add_run(z, grads_of(z, b), at, p->memory - bucket->memory, runs);
        at = p->memory - bucket->memory + p->local[0] * p->local[1];
    }
    return add_run(z, grads_of(z, b), at, bucket->elems, runs);
}

/* Empties the gradients: zeroes them, or marks them to be overwritten. Of the blocks that share a slot (buffer) only
 * one is emptied, because all blocks have their parameters at the same places. */
void shards_empty(Shards *z, Stream *s) {
    int runs = 0;
    for (int b = 0; b < z->layout.buckets; b++) {
        if (!is_here(z, b)) continue;
        set_adds(z, b, 0);
        if (!is_in_slot(z, b) || blocks_before(z, b) < SHARDS_SLOTS) runs = list_rest(z, b, runs);
    }
    zero_tensors(s, z->rest, runs);
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

/* Makes a struct for each bucket with the Tensors through which blocks read or write its parameters. Each Tensor is
 * this rank's slice of a parameter inside its bucket, with padding rows. */
static void **make_views(const Shards *z, Tensor (*bucket_of)(const Shards *z, int b)) {
    const Layout *l = &z->layout;
    void        **view = xcalloc((size_t)l->buckets, sizeof *view, "the tables of buckets");
    for (int b = 0; b <= last_bucket(z); b++)
        view[b] = xcalloc(1, model_view_bytes(z->spec.shape, b), "the tables of buckets");
    for (int i = 0; i < l->params; i++) {
        const Param *p = &l->param[i];
        void        *in = view[model_view_bucket(z->spec.shape, p->bucket)];
        if (!in || !is_here(z, p->bucket) || p->field == NO_FIELD) continue;
        Tensor  bucket = bucket_of(z, p->bucket);
        Tensor  t = tensor_of(NULL, bucket.type, p->dims, p->local[0], p->local[1], 1, 1);
        int64_t at = p->memory - l->bucket[p->bucket].memory;
        if (bucket.data) t.data = (char *)bucket.data + (size_t)at * dtype_bytes(bucket.type);
        memcpy((char *)in + p->field, &t, sizeof t);
    }
    return view;
}

/* Lists the spans (parts of parameters) in this rank's pieces (ZeRO shards) that tensor ranks do not divide. Returns
 * the number of their elements. */
static int64_t list_whole(Shards *z) {
    int64_t elems = 0;
    z->whole = xmalloc(sizeof *z->whole * (size_t)z->layout.params, "the table of parameter spans");
    for (int b = 0; b < z->layout.buckets; b++) {
        Span *span = z->span + z->spans; /* scratch memory after the list, enough for the spans of one bucket */
        int   count = layout_spans(&z->layout, b, piece_number(z, b, z->spec.rank), span);
        for (int i = 0; i < count; i++) {
            if (z->layout.param[span[i].param].cut != CUT_NONE) continue;
            z->whole[z->wholes++] = span[i];
            elems += span[i].elems;
        }
    }
    return elems;
}

Shards *shards_create(ShardsSpec spec, Layout layout, StepSums sums, Arena *params, Arena *grads) {
    Shards *z = xcalloc(1, sizeof *z, "a model");
    z->spec = spec, z->layout = layout, z->sums = sums;
    CHECK(layout.buckets > 2, "%d buckets", layout.buckets);
    for (int64_t l = 1; spec.zero_stage > 1 && l < spec.shape.n_layer; l++)
        CHECK(block_kind_at(spec.shape, l)->block.row == block_kind_at(spec.shape, 0)->block.row &&
                  block_kind_at(spec.shape, l)->traits == block_kind_at(spec.shape, 0)->traits,
              "block %lld has other rows", (long long)l);
    z->stage = spec.zero_stage > 1 && is_alone(z) ? 1 : spec.zero_stage;
    z->params = arena_tensor(params, spec.act, 1, room_of(z, has_param_slots(z)), 1, 1);
    z->grads = spec.use == GPT_TRAINING ? arena_tensor(grads, F32, 1, room_of(z, has_grad_slots(z)), 1, 1)
                                         : tensor_1d(NULL, F32, z->layout.memory_elems);
    /* number of elements in this rank's pieces (ZeRO shards) of all blocks, which are adjacent */
    int64_t pieces = layout.bucket[last_bucket(z)].shard - layout.bucket[1].shard;
    if (has_param_slots(z)) z->param_pieces = arena_tensor(params, spec.act, 1, pieces, 1, 1);
    if (has_grad_slots(z)) z->grad_pieces = arena_tensor(grads, F32, 1, pieces, 1, 1);
    z->weight_view = make_views(z, weights_of);
    z->grad_view = make_views(z, grads_of);
    z->gather = xcalloc((size_t)layout.buckets, sizeof *z->gather, "the tables of buckets");
    z->sums_of = xcalloc((size_t)layout.buckets, sizeof *z->sums_of, "the tables of buckets");
    z->adds = xcalloc((size_t)layout.buckets, sizeof *z->adds, "the tables of buckets");
    z->rest = xmalloc(sizeof *z->rest * (size_t)(layout.params + layout.buckets), "the tables of buckets");
    for (int b = 0; b < z->layout.buckets; b++) z->gather[b] = -1;
    z->due = z->layout.buckets;
    /* this rank updates the spans of its own pieces (ZeRO shards), or in ZeRO stage 0 those of all pieces */
    size_t most = (size_t)layout.params * (size_t)((z->stage ? 1 : layout.ranks) + 1);
    z->span = xmalloc(sizeof *z->span * most, "the table of parameter spans");
    for (int b = 0; b < layout.buckets; b++) {
        int first = z->stage ? piece_number(z, b, spec.rank) : 0, count = z->stage ? 1 : layout.bucket[b].ranks;
        for (int r = first; r < first + count; r++) z->spans += layout_spans(&z->layout, b, r, z->span + z->spans);
    }
    /* The first product of a step overwrites each gradient. Memory from the arena is already zero, so gradients without
     * a product are right, too. */
    for (int b = 0; b < z->layout.buckets; b++) set_adds(z, b, 0);
    if (has_twin(z, 0) && spec.use == GPT_TRAINING)
        z->twin_grads = arena_tensor(grads, F32, 1, z->layout.bucket[0].piece_elems, 1, 1);
    if (z->layout.tensor_ranks > 1 && spec.use == GPT_TRAINING)
        z->whole_grads = arena_tensor(grads, F32, 1, list_whole(z), 1, 1);
    if (spec.micro_batches) {
        GradOrder *t = &z->order; /* every rank has as many buffers as the rank that needs most of them */
        t->leaves = spec.micro_batches * spec.ranks, t->grads = z->grads;
        t->buffers = tree_buffers(t->leaves, z->layout.ranks);
        for (int i = 0; i < t->buffers; i++) t->buffer[i] = arena_tensor(grads, F32, 1, z->layout.memory_elems, 1, 1);
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
    free(z->whole);
    free(z->gather);
    free(z->sums_of);
    free(z->adds);
    free(z->rest);
    if (z->computed.handle) event_destroy(&z->computed);
    layout_destroy(&z->layout);
    free(z);
}

/* --- weights ------------------------------------------------------------------------------------------------------ */

static void gather(Shards *z, int b) {
    z->gather[b] = comm_next(comm_of(z, b));
    comm_all_gather_start(comm_of(z, b), weights_of(z, b));
}

/* Returns whether the weights of a bucket must be gathered from other ranks after an update. In ZeRO stage 0 every rank
 * has updated all weights. */
static int is_gathered(const Shards *z, int b) { return is_here(z, b) && (z->stage || is_twin(z, b)); }

/* Starts at most `most` of the gathers of weights that have not started, in the order in which forward needs the
 * buckets. */
static void gather_due(Shards *z, int most, GatherOrder order) {
    Tensor list[GATHERS_MOST];
    int    count = 0;
    z->due_size = most < GATHERS_MOST ? most : GATHERS_MOST;
    z->due_since = z->due;
    for (; z->due < z->layout.buckets && count < z->due_size; z->due++) {
        if (!is_gathered(z, z->due)) continue;
        z->gather[z->due] = comm_next(z->spec.comm) + count;
        list[count++] = weights_of(z, z->due);
    }
    comm_all_gathers_start(z->spec.comm, list, count, order);
}

/* Waits until the weights of a bucket have been gathered. */
static void await_weights(Shards *z, int b) {
    while (z->due <= b) gather_due(z, GATHERS_MOST, GATHERS_BEHIND);
    if (b > z->wanted) z->wanted = b;
    if (z->gather[b] >= 0) comm_wait(comm_of(z, b), z->gather[b]);
    z->gather[b] = -1;
}

/* Starts the gather of the weights of block b into its slot (a buffer that blocks share). The work that reads the
 * previous weights in the slot is already queued. */
void shards_prefetch(Shards *z, Stream *s, int b) {
    if (!has_param_slots(z) || !is_block(z, b) || !is_here(z, b)) return;
    int *in = &z->weights_in[slot_of(z, b)];
    if (*in == b || z->is_offline) return;
    if (*in) await_weights(z, *in);
    *in = b;
    cast_forward(s, piece_of(z, weights_of(z, b), b), piece_among(z, z->param_pieces, b));
    gather(z, b);
}

const void *shards_need(Shards *z, Stream *s, int bucket) {
    shards_prefetch(z, s, bucket);
    await_weights(z, bucket);
    if (has_experts(z, bucket)) await_weights(z, experts_of(z, bucket));
    return z->weight_view[bucket];
}

void shards_need_all(Shards *z) {
    while (z->due < z->layout.buckets) gather_due(z, GATHERS_MOST, GATHERS_BEHIND);
    if (z->spec.comm) comm_finish(z->spec.comm);
    if (z->spec.expert_state) comm_finish(z->spec.expert_state);
    for (int b = 0; b < z->layout.buckets; b++) z->gather[b] = -1;
}

void shards_publish(Shards *z, Stream *s) {
    /* for a tied embedding: each rank of the first stage sends its piece to the rank of the last stage with the same
     * piece */
    if (z->spec.twin_down) {
        Tensor piece = piece_of(z, weights_of(z, 0), 0);
        if (has_twin(z, 0)) comm_send_start(z->spec.twin_down, piece);
        else comm_receive_start(z->spec.twin_down, piece);
        comm_finish(z->spec.twin_down);
    }
    if (is_alone(z)) return;
    memset(z->weights_in, 0, sizeof z->weights_in);
    if (comm_kind(z->spec.comm) == COMM_NCCL && !s->ledger && !has_param_slots(z) && z->layout.expert_ranks == 1) {
        z->due = 0, z->wanted = -1;
        gather_due(z, FIRST_GATHERS, GATHERS_NOW);
        return;
    }
    for (int b = 0; b < z->layout.buckets; b++) {
        if (!is_gathered(z, b)) continue;
        if (!has_param_slots(z) || !is_block(z, b)) gather(z, b);
        else if (b == block_here(z, 0) || b == block_here(z, 1)) shards_prefetch(z, s, b);
    }
}

void shards_rewind(Shards *z, Stream *s) {
    for (int i = 0; i < SHARDS_SLOTS; i++) shards_prefetch(z, s, block_here(z, i));
}

int shards_gathers(const Shards *z) { return has_param_slots(z) || z->layout.expert_ranks > 1; }

/* --- gradients ---------------------------------------------------------------------------------------------------- */

/* Returns the gradient of the first or of the last parameter of a bucket. */
static Tensor end_row(const Shards *z, int bucket, int is_last) {
    const Bucket *b = &z->layout.bucket[bucket];
    const Param  *p = &z->layout.param[b->first_param + (is_last ? b->params - 1 : 0)];
    return tensor_slice(grads_of(z, bucket), p->memory - b->memory, p->local_elems);
}

/* Returns the gradient of the parameter that backward completes last. A NaN from anywhere in backward is visible in it.
 * On the first stage it is the last parameter of bucket 0 (positions, if there are any). On a later stage it is the
 * first parameter of a block, its norm. */
static Tensor check_row(const Shards *z) { return end_row(z, first_own(z), first_own(z) == 0); }

void shards_begin(Shards *z, Stream *s) {
    shards_empty(z, s);
    memset(z->sums_of, 0, sizeof *z->sums_of * (size_t)z->layout.buckets);
    int last = last_bucket(z); /* the last bucket that this rank has */
    while (!is_here(z, last)) last--;
    inject_gradient(s, check_row(z), end_row(z, last, 1));
    z->order.leaf = z->spec.micro_batches * z->spec.rank;
    z->order.nodes.count = 0;
}

/* Waits for the sum over the ranks of the gradients in a slot (a buffer that blocks share). Adds this rank's piece to
 * the sum of the earlier micro-batches. The slot is free afterwards. */
static void take_sum(Shards *z, Stream *s, int slot) {
    int b = z->grads_in[slot];
    if (!b) return;
    z->grads_in[slot] = 0;
    comm_wait(z->spec.comm, z->sum_number[slot]);
    if (z->sums_of[b]++) add_forward(s, piece_among(z, z->grad_pieces, b), piece_of(z, grads_of(z, b), b));
    else cast_forward(s, piece_among(z, z->grad_pieces, b), piece_of(z, grads_of(z, b), b));
    zero_tensors(s, z->rest, list_rest(z, b, 0));
    if (z->sum_is_last[slot] && z->spec.across)
        comm_all_reduce_start(z->spec.across, piece_among(z, z->grad_pieces, b));
}

const void *shards_grads(Shards *z, Stream *s, int bucket) {
    if (is_in_slot(z, bucket)) take_sum(z, s, slot_of(z, bucket));
    return z->grad_view[bucket];
}

/* Starts the sum over the ranks of the gradients of a bucket, which are complete on this rank. First adds a check and a
 * hash of these gradients to the step's numbers. */
static void start_sum(Shards *z, Stream *s, int bucket, MicroBatch which) {
    Tensor           grads = grads_of(z, bucket);
    const GradOrder *t = &z->order;
    Bucket           at = z->layout.bucket[bucket];
    /* adds the partial sums of this rank that the last micro-batch completes */
    for (int i = t->nodes.count - 1; t->leaves && i >= waiting(t); i--)
        add_forward(s, grads, of_bucket(t->buffer[i], at));
    if (bucket == first_own(z)) {
        Tensor row = check_row(z);
        norm_squared(s, step_sum(&z->sums, SUM_RANK_CHECK), &row, 1);
        inject_flip(s, "guard.own", grads);
    }
    if (z->hashes_own) hash_words(s, step_hash(&z->sums, HASH_OWN_GRADS), grads);
    if (is_in_slot(z, bucket)) {
        z->grads_in[slot_of(z, bucket)] = bucket;
        z->sum_number[slot_of(z, bucket)] = comm_next(z->spec.comm);
        z->sum_is_last[slot_of(z, bucket)] = which == MICRO_LAST;
        comm_reduce_scatter_start(z->spec.comm, grads);
        return;
    }
    if (t->leaves) order_share(t, s, at, z->spec.comm);
    else comm_reduce_scatter_start(comm_of(z, bucket), grads);
    if (z->spec.across && !is_twin(z, bucket) && !has_twin(z, bucket))
        comm_all_reduce_after(z->spec.across, piece_of(z, grads, bucket), comm_of(z, bucket));
}

/* Advances the communication of all groups of ranks. Gathers of weights start in growing groups, so that they overlap
 * with computation. Once the weights of the last group are in use, starts the next one, with twice as many gathers. */
void shards_poll(Shards *z) {
    if (!z->spec.comm) return;
    if (z->due < z->layout.buckets && z->wanted >= z->due_since) gather_due(z, 2 * z->due_size, GATHERS_BEHIND);
    comm_poll(z->spec.comm);
    world_moved(comm_world(z->spec.comm));
}

void shards_done(Shards *z, Stream *s, int bucket, MicroBatch which) {
    int is_due = which == MICRO_LAST || is_in_slot(z, bucket);
    int has_peers = !is_alone(z) || z->spec.across || z->spec.tensor || z->spec.twin_up;
    pile_up(z, bucket);
    if (has_experts(z, bucket)) pile_up(z, experts_of(z, bucket));
    if (is_due && !z->is_offline && (has_peers || z->order.leaves)) start_sum(z, s, bucket, which);
    if (which == MICRO_LAST && !z->is_offline && has_experts(z, bucket)) start_sum(z, s, experts_of(z, bucket), which);
    int is_last_here = bucket == (is_here(z, 0) && !is_twin(z, 0) ? 0 : first_own(z));
    if (which == MICRO_EARLIER && !z->is_offline && z->order.leaves && is_last_here) {
        order_keep(&z->order, s);
        shards_empty(z, s); /* empty gradients for the next micro-batch */
    }
    shards_poll(z);
}

/* Adds the gradient of the tied embedding from the last pipeline stage to that of the first stage. Then adds up the
 * sums of the replicas of the state. */
static void join_twin(Shards *z, Stream *s) {
    Tensor piece = piece_of(z, grads_of(z, 0), 0);
    if (!has_twin(z, 0)) {
        comm_send_start(z->spec.twin_up, piece);
        comm_finish(z->spec.twin_up);
        return;
    }
    comm_receive_start(z->spec.twin_up, z->twin_grads);
    comm_finish(z->spec.twin_up);
    add_forward(s, piece, z->twin_grads);
    if (z->spec.across) comm_all_reduce(z->spec.across, piece);
}

/* Copies the gradients of rows that tensor ranks do not divide to z->whole_grads; with to_grads 1 copies them back. */
static void copy_whole(Shards *z, Stream *s, int to_grads) {
    for (int64_t i = 0, at = 0; i < z->wholes; at += z->whole[i++].elems) {
        Tensor there = tensor_slice(z->whole_grads, at, z->whole[i].elems), grad = shards_grad(z, z->whole[i]);
        cast_forward(s, to_grads ? grad : there, to_grads ? there : grad);
    }
}

void shards_finish(Shards *z, Stream *s) {
    for (int slot = SHARDS_SLOTS - 1; slot >= 0; slot--) take_sum(z, s, slot);
    if (z->spec.across) comm_finish(z->spec.across);
    if (!is_alone(z)) comm_finish(z->spec.comm);
    if (z->spec.expert_state) comm_finish(z->spec.expert_state);
    if (z->spec.twin_up) join_twin(z, s);
    /* adds up the gradients of rows that all tensor ranks hold; ring and NCCL give all ranks equal bits, so these rows
     * stay equal */
    if (z->spec.tensor) {
        copy_whole(z, s, 0);
        comm_all_reduce(z->spec.tensor, z->whole_grads);
        copy_whole(z, s, 1);
    }
    if (!is_alone(z) && !z->stage) {
        for (int b = 0; b < z->layout.buckets; b++)
            if (is_here(z, b) && !is_twin(z, b)) comm_all_gather_start(z->spec.comm, grads_of(z, b));
        comm_finish(z->spec.comm);
    }
    inject_flip(s, "guard.sum", piece_of(z, grads_of(z, first_own(z)), first_own(z)));
    inject_flip(s, "guard.weight", z->params);
}

/* Waits until the stream has done all queued work. The host spends most of a step on a GPU in this function. */
void shards_await(Shards *z, Stream *s) {
    if (!z->computed.handle) z->computed = event_create(); /* created late, because a plan has no device */
    event_record(z->computed, s);
    for (int is_past = 0; !is_past;) {
        is_past = event_is_past(z->computed);
        /* polls once more after the event is past: it also passes if a collective was aborted, and the poll reports
         * that */
        if (z->spec.comm) comm_poll(z->spec.comm);
    }
}

/* --- for the optimizer -------------------------------------------------------------------------------------------- */

int64_t shards_state_elems(const Shards *z) { return z->stage ? z->layout.shard_elems : z->layout.memory_elems; }
int64_t shards_state_at(const Shards *z, Span span) { return z->stage ? span.shard : span.memory; }
Tensor  shards_state_view(const Shards *z, Tensor state, Span span) {
    return tensor_slice(state, shards_state_at(z, span), span.elems);
}

int64_t shards_matrix_elems(const Shards *z) {
    Span   *span = z->span + z->spans; /* scratch memory after the list, enough for the spans of one bucket */
    int64_t least = INT64_MAX, all = 0;
    for (int r = 0; r < z->layout.ranks; r++) {
        int64_t elems = 0;
        for (int b = 0; b < z->layout.buckets; b++)
            for (int i = layout_spans(&z->layout, b, piece_number(z, b, r), span); i-- > 0;)
                if (span[i].group == GROUP_MATRIX) elems += span[i].elems / LAYOUT_ALIGN * LAYOUT_ALIGN;
        all += elems;
        if (elems < least) least = elems;
    }
    return z->stage ? least : all;
}

int shards_state_is_shared(const Shards *z) { return !z->stage; }

int shards_is_own(const Shards *z, Span span) {
    const Param  *p = &z->layout.param[span.param];
    const Bucket *b = &z->layout.bucket[p->bucket];
    if (p->cut == CUT_NONE && z->layout.tensor_rank > 0) return 0;
    int is_own_piece = (span.memory - b->memory) / b->piece_elems == piece_number(z, p->bucket, z->spec.rank);
    return z->spec.replica == 0 && is_own_piece;
}

int shards_spans_to_save(const Shards *z, int bucket, Span *spans) {
    if (z->spec.replicas > 1 && bucket % z->spec.replicas != z->spec.replica) return 0;
    return layout_spans(&z->layout, bucket, piece_number(z, bucket, z->spec.rank), spans);
}

/* Returns the memory of a span (part of a parameter) of bucket b. If blocks have slots (shared buffers), that of a
 * block is in `pieces`, otherwise in `bucket`. */
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
        hash_words(s, hash,
                   tensor_slice(weights_of(z, p->bucket), p->memory - z->layout.bucket[p->bucket].memory,
                                p->local_elems));
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
