/* gpt.c - see gpt.h. In this order: sizes, memory, blocks, forward, head, backward. */
#include "model/gpt.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

/* --- sizes from the shape and the ranks --------------------------------------------------------------------------- */

static int tensor_ranks(const Gpt *g) { return g->tensor ? comm_size(g->tensor) : 1; }

/* The rows of a large chunk of logits are a multiple of this, so that all tiles of the product are full. */
enum { HEAD_TILE = 128 };
/* Bytes of logits that the classifier computes at once, a chunk. A chunk is so large that reading and writing the
 * head's gradient in fp32 costs little compared with the products of the chunk. A GPU's products are faster relative to
 * its memory. At 124M parameters, 128 MiB would read and write that gradient 47 times in a micro-batch of 64
 * sequences. */
static const int64_t LOGITS_BYTES_CPU = 128 << 20, LOGITS_BYTES_GPU = 1 << 30;

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Returns how many rows of logits the classifier computes at once (a chunk), if a micro-batch has N rows. They fit in
 * LOGITS_BYTES, and are fewer than N unless the micro-batch is tiny. */
static int64_t head_rows_of(int64_t N, int64_t padded_vocab, DType act, int on_gpu) {
    int64_t bytes = N * padded_vocab * (int64_t)dtype_bytes(act);
    int64_t chunks = ceil_div(bytes, on_gpu ? LOGITS_BYTES_GPU : LOGITS_BYTES_CPU);
    if (chunks < 2 && N >= 64) chunks = 2;
    int64_t rows = ceil_div(N, chunks < 1 ? 1 : chunks);
    return rows > HEAD_TILE ? ceil_div(rows, HEAD_TILE) * HEAD_TILE : rows;
}

int64_t gpt_scored_length(const Gpt *g, int64_t tokens) {
    int64_t most = context_part(g->context).ranks * g->T, length = gpt_sample_step(g);
    while (length < tokens) length *= 2;
    return length < most ? length : most;
}

int gpt_keeps_past(const Gpt *g) { return !g->context && block_keeps_past(g->use, g->recompute); }

int64_t gpt_token_rows(const Gpt *g) { return tensor_ranks(g); }

int64_t gpt_sample_step(const Gpt *g) {
    int64_t step = SAMPLE_STEP;
    /* makes a rank's share of a sequence whole tiles of attention */
    if (g->context) step = 4 * SAMPLE_STEP * comm_size(g->context);
    for (int64_t least = step; step / context_part(g->context).ranks % tensor_ranks(g);) step += least;
    return step;
}

/* --- views of the current micro-batch, which may be smaller than the memory --------------------------------------- */

static Extent batch_extent(const Gpt *g, Batch batch) {
    Extent e = extent_of(batch.inputs.dim[0], batch.inputs.dim[1], tensor_ranks(g));
    e.past = g->past, e.room = g->experts ? g->experts->room : 0;
    CHECK(e.past == 0 || (e.B == 1 && gpt_keeps_past(g)), "%lld tokens before a batch of %lld sequences",
          (long long)e.past, (long long)e.B);
    CHECK(e.N % e.tensor == 0, "%lld rows among %lld tensor ranks", (long long)e.N, (long long)e.tensor);
    CHECK(e.B <= g->B && e.past + e.T <= g->T && context_part(g->context).ranks * e.T <= g->shape.n_positions,
          "batch of %lld x %lld, memory for %lld x %lld", (long long)e.B, (long long)(e.past + e.T), (long long)g->B,
          (long long)g->T);
    return e;
}

static Tensor first_rows(Tensor t, int64_t rows) {
    t.dim[0] = rows;
    return t;
}

/* A part of the model, and which of its tapes (buffers for activations) holds those of the current micro-batch. */
typedef struct { GptPart *part; int tape; } Tape;

static BlockTape *block_of(Tape t, int64_t l) {
    return &t.part->block[t.tape * (t.part->end - t.part->first) + l - t.part->first];
}

static void *block_view(Gpt *g, Tape t, int64_t l, Extent e) {
    block_acts_view(g->kinds[l], g->shape, block_of(t, l)->acts, e, g->one_block);
    return g->one_block;
}

/* Returns the buffer for the starts of documents, in the shape of this micro-batch; none without a document mask. */
static Tensor batch_starts(const Gpt *g, Extent e) {
    return tensor_is_none(g->starts) ? g->starts : tensor_2d(g->starts.data, I32, e.B, e.T);
}

/* Copies the starts of the batch's documents to the buffer that the CUDA graphs of the blocks read. */
static void take_starts(Gpt *g, Stream *s, Extent e, Batch batch) {
    Tensor here = batch_starts(g, e);
    CHECK(!tensor_is_none(here) || !batch.starts.data, "documents in a batch of a model without a mask");
    if (tensor_is_none(here)) return;
    here = tensor_1d(here.data, I32, e.N);
    /* tokens_own is used as a copy: with this range it changes no number */
    if (batch.starts.data) tokens_own(s, here, tensor_1d(batch.starts.data, I32, e.N), 0, INT32_MAX);
    else device_zero(s, here);
}

static BlockRun block_run(const Gpt *g, Stream *s, Extent e) {
    Tensor delta = g->delta;
    if (!tensor_is_none(delta)) delta.dim[1] = e.N;
    return (BlockRun){.s = s,
                      .shape = g->shape,
                      .recompute = g->recompute,
                      .e = e,
                      .tensor = g->tensor,
                      .context = g->context,
                      .frequencies = g->frequencies,
                      .experts = g->experts, .expert_counts = tensor_none(), .balance = g->balance,
                      .entry_sums = tensor_none(), .exit_sums = tensor_none(),
                      .update = first_rows(g->update, e.N),
                      .delta = delta,
                      .dresidual = first_rows(g->dresidual, e.own),
                      .dbranch = first_rows(g->dbranch, e.N),
                      .keys = first_rows(g->keys, context_part(g->context).ranks * e.N),
                      .dkeys = first_rows(g->dkeys, context_part(g->context).ranks * e.N)};
}

/* Returns a tensor of block l, by its offset in the struct of activations of its kind (BlockKind.entry,
 * BlockKind.mid). */
static Tensor act_of(Gpt *g, Tape t, int64_t l, Extent e, size_t offset) {
    return *(const Tensor *)(void *)((char *)block_view(g, t, l, e) + offset);
}
/* Returns the residual stream before block l. */
static Tensor entry_of(Gpt *g, Tape t, int64_t l, Extent e) { return act_of(g, t, l, e, g->kinds[l]->entry); }

/* --- memory ------------------------------------------------------------------------------------------------------- */

/* Returns the struct of activations of the first block that has been created with the same rows of activations as this
 * kind of block. Returns NULL if there is none. */
static const void *first_like(const Gpt *g, const BlockKind *kind) {
    for (int p = 0; p < g->parts; p++)
        for (int64_t l = g->part[p].first; l < g->part[p].end; l++)
            if (g->kinds[l]->act == kind->act && g->kinds[l]->traits == kind->traits)
                return block_of((Tape){&g->part[p], 0}, l)->acts;
    return NULL;
}

/* Makes the activations of a part of the model. Tensors that are not kept for backward use the memory of the first
 * block whose kind has the same BlockKind.act and BlockKind.traits. */
static void create_part(Gpt *g, int part, GptPartSpec spec, Extent e, Arena *a) {
    GptPart *p = &g->part[part];
    int64_t  blocks = spec.end - spec.first;
    *p = (GptPart){.first = spec.first, .end = spec.end, .tapes = spec.tapes};
    p->embeds = spec.first == 0, p->classifies = spec.end == g->shape.n_layer;
    p->block = xcalloc((size_t)(p->tapes * blocks), sizeof *p->block, "the tables of the blocks");
    for (int t = 0; t < p->tapes; t++)
        for (int64_t l = p->first; l < p->end; l++) {
            BlockTape *b = block_of((Tape){p, t}, l);
            b->acts = block_acts_create(g->kinds[l], g->shape, g->act, e, g->recompute, g->use,
                                        first_like(g, g->kinds[l]), a);
            if (g->experts)
                b->expert_rows = xcalloc((size_t)(comm_size(g->experts->comm) * g->shape.n_experts),
                                         sizeof *b->expert_rows, "the tables of the blocks");
        }
}

/* Allocates the tensors exchanged with the pipeline stages before and after this one: forward_* for activations,
 * backward_* for their gradients. A model that only evaluates has no gradients. */
static void create_borders(Gpt *g, Extent e, Arena *a) {
    int64_t C = g->shape.n_embd;
    int     takes = 0, gives = 0, trains = g->use == GPT_TRAINING;
    for (int p = 0; p < g->parts; p++) takes |= !g->part[p].embeds, gives |= !g->part[p].classifies;
    if (takes) g->forward_in = arena_tensor(a, g->act, 2, e.own, C, 1);
    if (gives) g->forward_out = arena_tensor(a, g->act, 2, e.own, C, 1);
    if (gives && trains) g->backward_in = arena_tensor(a, g->act, 2, e.own, C, 1);
    if (takes && trains) g->backward_out = arena_tensor(a, g->act, 2, e.own, C, 1);
}

Gpt gpt_create(Shards *z, GptSpec spec, Arena *a) {
    int64_t    B = spec.B, T = spec.T;
    ModelShape shape = z->spec.shape;
    DType      act = z->spec.act;
    CHECK(shape.head_dim || shape.n_embd % shape.n_head == 0, "n_embd %lld, n_head %lld", (long long)shape.n_embd,
          (long long)shape.n_head);
    Gpt     g = {.shape = shape, .kind = block_kind(shape), .recompute = spec.recompute, .use = z->spec.use, .act = act,
                 .B = B, .T = T, .tensor = z->spec.tensor,
                 .context = spec.context, .shards = z, .sums = z->sums};
    Extent  e = extent_of(B, T, tensor_ranks(&g));
    if (spec.experts) g.experts = expert_ranks_create(spec.experts, shape.n_experts, e.N * shape.top_k, spec.capacity);
    if (g.experts) e.room = g.experts->room;
    int64_t N = e.N, C = shape.n_embd;
    int     trains = g.use == GPT_TRAINING;
    int     on_gpu = spec.sizes == SIZES_HERE ? !device_is_host() : spec.sizes == SIZES_OF_GPU;

    GptPartSpec whole = {0, shape.n_layer, 1};
    g.parts = spec.part ? spec.parts : 1;
    g.part = xcalloc((size_t)g.parts, sizeof *g.part, "the tables of a model");
    g.kinds = xcalloc((size_t)shape.n_layer, sizeof *g.kinds, "the tables of a model");
    size_t act_bytes = 0;
    int    has_biases = 0, has_delta = 0;
    for (int64_t l = 0; l < shape.n_layer; l++) {
        g.kinds[l] = block_kind_at(shape, l);
        if (g.kinds[l]->act_bytes > act_bytes) act_bytes = g.kinds[l]->act_bytes;
        has_biases |= g.kinds[l]->has_biases, has_delta |= g.kinds[l]->has_delta;
    }
    g.one_block = xcalloc(1, act_bytes, "the tables of a model");
    for (int p = 0; p < g.parts; p++) create_part(&g, p, spec.part ? spec.part[p] : whole, e, a);
    create_borders(&g, e, a);
    /* the gradient of attention's output uses the memory of update, too */
    int64_t heads = dim_size(DIM_Q, shape) / e.tensor;
    g.update = arena_tensor(a, act, 2, N, trains && heads > C ? heads : C, 1);
    g.update.dim[1] = C;
    if (g.part[g.parts - 1].classifies) {
        Tape    last = {&g.part[g.parts - 1], 0};
        int64_t padded = kind_has(g.kind, shape, HAS_OWN_HEAD)
                             ? ((const FinalParams *)z->weight_view[1 + shape.n_layer])->head.dim[0]
                             : ((const EmbeddingParams *)z->weight_view[0])->wte.dim[0];
        g.residual_final = trains ? arena_tensor(a, act, 2, e.own, C, 1) : entry_of(&g, last, last.part->first, e);
        g.ln_f           = arena_tensor(a, act, 2, e.own, C, 1);
        g.ln_f_mean      = arena_tensor(a, F32, 1, e.own, 1, 1);
        g.ln_f_rstd      = arena_tensor(a, F32, 1, e.own, 1, 1);
        g.head_rows      = head_rows_of(N, padded, act, on_gpu);
        /* gives logits a row for each tensor rank, because gpt_logits gathers the logits of all tensor ranks in it */
        if (g.head_rows < e.tensor) g.head_rows = e.tensor;
        g.logits         = arena_tensor(a, act, 2, g.head_rows, padded, 1);
        g.losses         = arena_tensor(a, F32, 1, N, 1, 1);
    }
    g.dresidual_sums = trains && has_biases && !g.tensor ? arena_tensor(a, F32, 1, C, 1, 1) : tensor_none();
    /* Only a GPU has a buffer for delta. On the CPU attention's backward computes delta at no cost, from rows that it
     * has loaded. */
    g.delta = trains && has_delta && on_gpu ? arena_tensor(a, F32, 2, shape.n_head / e.tensor, N, 1) : tensor_none();
    if (trains) {
        g.dresidual = arena_tensor(a, act, 2, e.own, C, 1);
        g.dbranch   = arena_tensor(a, act, 2, N, C, 1);
    }
    if (g.context) {
        int64_t ranks = comm_size(g.context), width = 2 * dim_size(DIM_KV, shape) / e.tensor;
        g.keys = arena_tensor(a, act, 2, ranks * N, width, 1);
        if (trains) g.dkeys = arena_tensor(a, act, 2, ranks * N, width, 1);
    }
    if (g.tensor) g.tokens = arena_tensor(a, I32, 1, N, 1, 1);
    g.starts = spec.document_mask ? arena_tensor(a, I32, 2, B, T, 1) : tensor_none();
    if (g.kind->has_rope) g.frequencies = arena_tensor(a, F32, 1, shape_head_dim(shape) / 2, 1, 1);
    int has_balance = g.kind->traits & HAS_EXPERTS && shape.balance == BALANCE_SWITCH && trains;
    g.balance = has_balance ? arena_tensor(a, F32, 1, 1, 1, 1) : tensor_none();
    if (spec.fp8) g.fp8 = fp8_scales_create(shape.n_layer, a);
    if (g.head_rows) {
        g.most      = arena_tensor(a, F32, 1, g.head_rows, 1, 1);
        g.part_sums = arena_tensor(a, F32, 1, 2 * g.head_rows, 1, 1);
    }
    return g;
}

void gpt_destroy(Gpt *g) {
    for (int p = 0; p < g->parts; p++) {
        GptPart *part = &g->part[p];
        for (int64_t i = 0; i < part->tapes * (part->end - part->first); i++) {
            BlockTape *b = &part->block[i];
            for (int k = 0; k < GRAPHS; k++) graph_destroy(&b->graph[k].graph);
            free(b->acts);
            free(b->expert_rows);
        }
        free(part->block);
    }
    expert_ranks_destroy(g->experts);
    free(g->part);
    free(g->kinds);
    free(g->one_block);
    g->part = NULL, g->kinds = NULL, g->one_block = NULL, g->parts = 0;
}

/* --- small numbers that the host computes and the device reads ---------------------------------------------------- */

/* Computes the rotary frequencies and copies them to the device, once. */
static void take_frequencies(Gpt *g, Stream *s) {
    ModelShape m = g->shape;
    if (!g->kind->has_rope || g->has_frequencies || s->ledger) return;
    float *frequencies = xmalloc(tensor_bytes(g->frequencies), "the table of rotary positions");
    rope_frequencies(frequencies, shape_head_dim(m), m.rope_theta,
                     (RopeScaling){m.rope_factor, m.rope_low_freq_factor, m.rope_high_freq_factor,
                                   m.rope_original_positions});
    device_from_host(s, g->frequencies, frequencies);
    free(frequencies);
    g->has_frequencies = 1;
}

/* Returns the buffer for the column sums of dresidual where block l begins; l may be the part's end. Returns none
 * unless the block before l reads these sums, and block l or the final norm computes them. */
static Tensor sums_at(const Gpt *g, const GptPart *part, int64_t l) {
    int is_between = l > part->first && (l < part->end || part->classifies);
    if (!is_between || !g->kinds[l - 1]->has_biases) return tensor_none();
    return (l < g->shape.n_layer ? g->kinds[l] : g->kind)->has_biases ? g->dresidual_sums : tensor_none();
}

/* --- blocks ------------------------------------------------------------------------------------------------------- */

enum { EMBEDDING_BUCKET };
static int block_bucket(int64_t l) { return 1 + (int)l; }
static int final_bucket(const Gpt *g) { return 1 + (int)g->shape.n_layer; }

typedef void BlockOps(Gpt *g, BlockRun *r, Tape t, int64_t l);

static void forward_ops(Gpt *g, BlockRun *r, Tape t, int64_t l) {
    if (!tensor_is_none(g->sums.experts))
        r->expert_counts = tensor_slice(g->sums.experts, l * g->shape.n_experts, g->shape.n_experts);
    r->kind->forward(r, block_view(g, t, l, r->e), shards_need(g->shards, r->s, block_bucket(l)));
}

static void backward_ops(Gpt *g, BlockRun *r, Tape t, int64_t l) {
    void       *x = block_view(g, t, l, r->e);
    const void *w = shards_need(g->shards, r->s, block_bucket(l));
    Tensor      counts = r->fp8.counts;
    /* no counts, because forward has counted the fp8 elements that recompute casts again */
    r->fp8.counts = tensor_none();
    r->kind->recompute(r, x, w);
    r->fp8.counts = counts;
    r->kind->backward(r, x, w, shards_grads(g->shards, r->s, block_bucket(l)));
}

/* Sets what differs from block to block in *r, then queues the operations of block l. The second time, they are
 * recorded as a CUDA graph, which is launched from then on. Three cases have no graph. Smaller micro-batches have other
 * shapes. Blocks with tensor, context or expert ranks exchange rows. The first step with fp8 computes its scales
 * itself. */
static void queue_block(Gpt *g, BlockRun *r, Tape t, int64_t l, GraphKind kind, BlockOps *ops) {
    BlockGraph *b = &block_of(t, l)->graph[kind];
    int whole = r->e.B == g->B && r->e.T == g->T && !r->e.past && !r->s->ledger && !g->tensor && !g->context &&
                !g->experts && !g->fp8.uses_own;
    r->kind = g->kinds[l];
    r->first_keys = batch_starts(g, r->e);
    r->fp8 = fp8_of_block(&g->fp8, g->sums.fp8_amax, g->sums.fp8_counts, l);
    r->expert_rows = block_of(t, l)->expert_rows;
    if (!whole || !b->graph.handle) {
        int records = whole && b->runs++ > 0 && graph_begin(r->s);
        ops(g, r, t, l);
        if (!records) return;
        b->graph = graph_end(r->s), b->has_joined = r->has_joined;
    }
    graph_launch(b->graph, r->s);
    r->has_joined = b->has_joined;
}

void gpt_set_offline(Gpt *g, int is_offline) {
    g->shards->is_offline = is_offline;
    if (g->tensor) comm_set_offline(g->tensor, is_offline);
    if (g->context) comm_set_offline(g->context, is_offline);
    if (g->experts) comm_set_offline(g->experts->comm, g->experts->is_offline = is_offline);
}

/* --- embedding: each tensor rank has a slice of the vocabulary ---------------------------------------------------- */

/* Returns tokens (or targets) counted from the first row of wte (or of the head) that this tensor rank holds. */
static Tensor own_tokens(Gpt *g, Stream *s, Tensor tokens, Tensor wte) {
    Tensor all = tensor_1d(tokens.data, I32, tensor_elems(tokens)), own = first_rows(g->tokens, all.dim[0]);
    tokens_own(s, own, all, comm_rank(g->tensor) * wte.dim[0], wte.dim[0]);
    return own;
}

static void embed(Gpt *g, BlockRun *r, Tape t, Batch batch, const EmbeddingParams *w) {
    Tensor entry = entry_of(g, t, 0, r->e), wpe = w->wpe, starts = batch_starts(g, r->e);
    if (!tensor_is_none(wpe)) wpe = tensor_rows(wpe, r->e.past, wpe.dim[0] - r->e.past);
    if (!g->tensor) {
        embedding_forward(r->s, entry, batch.inputs, w->wte, wpe, starts, context_part(g->context));
        return;
    }
    Tensor own = own_tokens(g, r->s, batch.inputs, w->wte);
    embedding_forward(r->s, r->update, tensor_2d(own.data, I32, r->e.B, r->e.T), w->wte, counted_once(r, wpe),
                      starts, context_part(g->context));
    Tensor rows = sum_rows(r, r->update);
    cast_forward(r->s, tensor_flat(entry), tensor_flat(rows));
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

void gpt_take_forward(Gpt *g, Stream *s, int part, int tape, Batch batch) {
    Extent e = batch_extent(g, batch);
    Tape   t = {&g->part[part], tape};
    if (!t.part->embeds)
        cast_forward(s, tensor_flat(entry_of(g, t, t.part->first, e)), tensor_flat(first_rows(g->forward_in, e.own)));
}

static FinalActs final_acts(const Gpt *g, Extent e) {
    return (FinalActs){first_rows(g->residual_final, e.own), first_rows(g->ln_f, e.own),
                       first_rows(g->ln_f_mean, e.own), first_rows(g->ln_f_rstd, e.own)};
}

/* Returns the tensor for the residual stream after block l. It is the input of the next block, of the final norm, or of
 * the next pipeline stage. */
static Tensor exit_of(Gpt *g, Tape t, int64_t l, Extent e) {
    if (l + 1 < t.part->end) return entry_of(g, t, l + 1, e);
    return first_rows(t.part->classifies ? g->residual_final : g->forward_out, e.own);
}

void gpt_part_forward(Gpt *g, Stream *s, int part, int tape, Batch batch) {
    take_frequencies(g, s);
    Extent   e = batch_extent(g, batch);
    take_starts(g, s, e, batch);
    BlockRun r = block_run(g, s, e);
    Tape     t = {&g->part[part], tape};
    if (t.part->embeds) embed(g, &r, t, batch, (const EmbeddingParams *)shards_need(g->shards, s, EMBEDDING_BUCKET));
    for (int64_t l = t.part->first; l < t.part->end; l++) {
        /* waits for the weights here, because a CUDA graph cannot contain the wait */
        shards_need(g->shards, s, block_bucket(l));
        if (l + 1 < t.part->end) shards_prefetch(g->shards, s, block_bucket(l + 1));
        r.exit = exit_of(g, t, l, e);
        device_range_begin("block forward");
        queue_block(g, &r, t, l, GRAPH_FORWARD, forward_ops);
        device_range_end();
        shards_poll(g->shards);
        r.mid = r.has_joined ? tensor_none() : act_of(g, t, l, e, g->kinds[l]->mid);
    }
    if (!t.part->classifies) {
        if (!r.has_joined) residual_forward(s, exit_of(g, t, t.part->end - 1, e), r.mid, own_rows(&r, r.update));
        return;
    }
    const FinalParams *final = (const FinalParams *)shards_need(g->shards, s, final_bucket(g));
    g->kind->final_forward(&r, final_acts(g, e), *final);
}

static int is_whole(const Gpt *g) { return g->parts == 1 && g->part[0].embeds && g->part[0].classifies; }

void gpt_forward(Gpt *g, Stream *s, Batch batch) {
    CHECK(is_whole(g), "a part of the model, not all of it");
    gpt_part_forward(g, s, 0, 0, batch);
}

/* --- head --------------------------------------------------------------------------------------------------------- */

/* Returns the head's matrix [V',C] if bucket_of is shards_need, or its gradient if it is shards_grads. The matrix of a
 * tied head is the embedding. */
static Tensor head_of(const Gpt *g, Stream *s, const void *bucket_of(Shards *, Stream *, int)) {
    if (kind_has(g->kind, g->shape, HAS_OWN_HEAD))
        return ((const FinalParams *)bucket_of(g->shards, s, final_bucket(g)))->head;
    return ((const EmbeddingParams *)bucket_of(g->shards, s, EMBEDDING_BUCKET))->wte;
}

static LossTerms loss_terms(const Gpt *g) { return (LossTerms){(float)g->shape.logit_softcap, (float)g->shape.z_loss}; }

/* Computes the losses of rows in steps that also leave the row's maximum in g->most and its sums in g->part_sums. Used
 * if tensor ranks divide the logits, or if the caller reads these numbers. */
static void classify_parts(Gpt *g, Stream *s, Tensor losses, Tensor logits, Tensor targets, float grad_scale) {
    int64_t n = logits.dim[0], columns = logits.dim[1];
    int64_t V = g->shape.vocab_size - (g->tensor ? comm_rank(g->tensor) : 0) * columns;
    Tensor most = first_rows(g->most, n), sums = first_rows(g->part_sums, 2 * n), two = tensor_2d(sums.data, F32, 2, n);
    V = V < 0 ? 0 : V > columns ? columns : V;
    classifier_part_most(s, most, logits, V, loss_terms(g));
    if (g->tensor) comm_all_reduce_max(g->tensor, most);
    classifier_part_sums(s, two, logits, targets, V, most, loss_terms(g));
    if (g->tensor) comm_all_reduce(g->tensor, sums);
    classifier_part_loss(s, losses, logits, targets, V, most, two, loss_terms(g), grad_scale);
}

/* What the head computes besides the losses. PASS_LOSS: nothing. PASS_GRADIENT: turns the logits into their gradients.
 * PASS_TOKENS: copies the numbers of each row to the host. */
typedef enum { PASS_LOSS, PASS_GRADIENT, PASS_TOKENS } HeadPass;

/* Computes the losses of all rows, one chunk of rows at a time. PASS_GRADIENT: also computes the gradients. The first
 * chunk sets the head's gradient if it is fresh, and all others add to it. dbranch gets the gradients of ln_f, the
 * final norm's output. PASS_TOKENS: writes each row's loss, largest logit and logit of the target to out [3][N]. The
 * other passes add the losses to SUM_LOSS. */
static void head_and_loss(Gpt *g, BlockRun *r, Batch batch, HeadPass pass, float grad_scale, float *out) {
    Stream *s = r->s;
    int64_t N = r->e.N, V = g->shape.vocab_size;
    Tensor  targets = tensor_1d(batch.targets.data, I32, N), head = head_of(g, s, shards_need);
    Tensor  ln_f = gather_rows(r, first_rows(g->ln_f, r->e.own), r->update);
    Tensor  dhead = pass == PASS_GRADIENT ? head_of(g, s, shards_grads) : tensor_none();
    if (g->tensor) targets = own_tokens(g, s, targets, head);
    for (int64_t row = 0; row < N; row += g->head_rows, dhead.is_fresh = 0) {
        int64_t n = N - row < g->head_rows ? N - row : g->head_rows;
        Tensor  logits = first_rows(g->logits, n), x = tensor_rows(ln_f, row, n);
        Tensor  losses = tensor_rows(g->losses, row, n), chunk_targets = tensor_rows(targets, row, n);
        linear_forward(s, logits, x, head, tensor_none(), TRANSPOSED);
        if (g->tensor || pass == PASS_TOKENS) classify_parts(g, s, losses, logits, chunk_targets, grad_scale);
        else classifier_loss(s, losses, logits, chunk_targets, V, loss_terms(g), grad_scale);
        if (pass == PASS_GRADIENT)
            linear_backward(s, tensor_rows(r->dbranch, row, n), dhead, tensor_none(), logits, x, head, TRANSPOSED);
        if (pass != PASS_TOKENS || s->ledger) continue;
        device_to_host(s, out + row, losses);
        device_to_host(s, out + N + row, first_rows(g->most, n));
        device_to_host(s, out + 2 * N + row, tensor_slice(g->part_sums, n, n));
    }
    if (pass != PASS_TOKENS && is_counting(g->tensor))
        sum_forward(s, step_sum(&g->sums, SUM_LOSS), first_rows(g->losses, N));
}

void gpt_loss(Gpt *g, Stream *s, Batch batch) {
    BlockRun r = block_run(g, s, batch_extent(g, batch));
    head_and_loss(g, &r, batch, PASS_LOSS, 0.0f, NULL);
}

void gpt_token_losses(Gpt *g, Stream *s, Batch batch, float *out) {
    BlockRun r = block_run(g, s, batch_extent(g, batch));
    head_and_loss(g, &r, batch, PASS_TOKENS, 0.0f, out);
}

/* Returns the context rank that has a row of the batch. On entry *row counts the rows of whole sequences. On return it
 * is the row's number on that rank. T: tokens of a sequence on one rank. */
static int owner_of(const Gpt *g, int64_t T, int64_t *row) {
    int64_t ranks = context_part(g->context).ranks, sequence = *row / (ranks * T), position = *row % (ranks * T);
    for (int rank = 0; rank < ranks; rank++) {
        Positions p = positions_of((ContextPart){ranks, rank}, T);
        for (int64_t t = 0; t < T; t++) {
            *row = sequence * T + t;
            if (POSITION_OF(p, t) == position) return rank;
        }
    }
    CHECK(0, "position %lld of %lld", (long long)position, (long long)(ranks * T));
    return 0;
}

void gpt_logits(Gpt *g, Stream *s, Batch batch, int64_t row, float *out) {
    int64_t  V = g->shape.vocab_size, ranks = tensor_ranks(g);
    int      owner = owner_of(g, batch.inputs.dim[1], &row);
    BlockRun r = block_run(g, s, batch_extent(g, batch));
    Tensor   ln_f = gather_rows(&r, first_rows(g->ln_f, r.e.own), r.update), logits = first_rows(g->logits, ranks);
    linear_forward(s, g->tensor ? tensor_rows(logits, comm_rank(g->tensor), 1) : logits, tensor_rows(ln_f, row, 1),
                   head_of(g, s, shards_need), tensor_none(), TRANSPOSED);
    logits = tensor_slice(logits, 0, ranks * logits.dim[1]);
    if (g->tensor) comm_all_gather(g->tensor, logits);
    if (s->ledger) return;
    Tensor used = tensor_slice(logits, 0, V), host = used;
    /* 16-bit values are copied to the upper half of `out`. They are then widened to f32 from the front on, which never
     * overwrites a value that is still to be widened. */
    host.data = (char *)out + (logits.type == F32 ? 0 : 2 * V);
    device_to_host(s, host.data, used);
    for (int64_t v = 0; v < V; v++) out[v] = tensor_get(host, v);
    float c = loss_terms(g).softcap;
    for (int64_t v = 0; c != 0.0f && v < V; v++) out[v] = (float)((double)c * tanh((double)out[v] / (double)c));
    if (g->context) comm_broadcast(g->context, out, sizeof *out * (size_t)V, owner);
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

void gpt_take_backward(Gpt *g, Stream *s, Batch batch) {
    Extent e = batch_extent(g, batch);
    cast_forward(s, tensor_flat(first_rows(g->dresidual, e.own)), tensor_flat(first_rows(g->backward_in, e.own)));
}

void gpt_part_backward(Gpt *g, Stream *s, int part, int tape, Batch batch, float grad_scale, MicroBatch which) {
    Extent   e = batch_extent(g, batch);
    take_starts(g, s, e, batch);
    BlockRun r = block_run(g, s, e);
    Tape     t = {&g->part[part], tape};
    float    balance = (float)(g->shape.balance_rate * (double)grad_scale);
    if (!tensor_is_none(g->balance) && !s->ledger && balance != g->balance_there) {
        device_from_host(s, g->balance, &balance);
        g->balance_there = balance;
    }
    if (t.part->classifies) {
        device_range_begin("head and classifier");
        head_and_loss(g, &r, batch, PASS_GRADIENT, grad_scale, NULL);
        device_range_end();
        const FinalParams *final = (const FinalParams *)shards_need(g->shards, s, final_bucket(g));
        const FinalParams *dfinal = (const FinalParams *)shards_grads(g->shards, s, final_bucket(g));
        r.entry_sums = sums_at(g, &g->part[g->parts - 1], g->shape.n_layer);
        g->kind->final_backward(&r, final_acts(g, e), sum_rows(&r, r.dbranch), *final, *dfinal);
        shards_done(g->shards, s, final_bucket(g), which);
        /* with a tied embedding the head's gradient is now complete on a last stage that has no embedding */
        if (!g->part[0].embeds) shards_done(g->shards, s, EMBEDDING_BUCKET, which);
    }
    for (int64_t l = t.part->end - 1; l >= t.part->first; l--) {
        shards_need(g->shards, s, block_bucket(l)); /* waits for the weights outside of the CUDA graph, as in forward */
        if (l > t.part->first) shards_prefetch(g->shards, s, block_bucket(l - 1));
        shards_grads(g->shards, s, block_bucket(l));
        r.entry_sums = sums_at(g, t.part, l), r.exit_sums = sums_at(g, t.part, l + 1);
        device_range_begin("block backward");
        queue_block(g, &r, t, l, g->shards->adds[block_bucket(l)] ? GRAPH_ADDS : GRAPH_SETS, backward_ops);
        device_range_end();
        shards_done(g->shards, s, block_bucket(l), which);
    }
    if (!t.part->embeds) {
        cast_forward(s, tensor_flat(first_rows(g->backward_out, e.own)), tensor_flat(r.dresidual));
        return;
    }
    const EmbeddingParams *d = (const EmbeddingParams *)shards_grads(g->shards, s, EMBEDDING_BUCKET);
    Tensor dy = gather_rows(&r, r.dresidual, r.dbranch), tokens = batch.inputs;
    if (g->tensor) tokens.data = own_tokens(g, s, batch.inputs, d->wte).data;
    embedding_backward(s, d->wte, counted_once(&r, d->wpe), dy, tokens, batch_starts(g, e), context_part(g->context));
    shards_done(g->shards, s, EMBEDDING_BUCKET, which);
}

void gpt_backward(Gpt *g, Stream *s, Batch batch, float grad_scale, MicroBatch which) {
    CHECK(is_whole(g), "a part of the model, not all of it");
    gpt_part_backward(g, s, 0, 0, batch, grad_scale, which);
}
