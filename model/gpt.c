/* gpt.c - see gpt.h. The model reads top to bottom: memory, forward, head, backward. */
#include "model/gpt.h"

#include <stdlib.h>
#include <string.h>

#include "model/gpt2.h"

enum { HEAD_TILE = 128 };                 /* rows of a large chunk are a multiple: no tile of the product is half empty */
static const int64_t LOGITS_BYTES = 128 << 20; /* a classifier chunk: large enough that dwte's += traffic is small beside its product */

/* --- views of the current micro-batch, which may be smaller than the memory --------------------------------------- */

static int tensor_ranks(const Gpt *g) { return g->tensor ? comm_size(g->tensor) : 1; }

static Extent batch_extent(const Gpt *g, Batch batch) {
    Extent e = extent_of(batch.inputs.dim[0], batch.inputs.dim[1], tensor_ranks(g));
    CHECK(e.N % e.tensor == 0, "%lld rows among %lld tensor ranks", (long long)e.N, (long long)e.tensor);
    CHECK(e.B <= g->B && e.T <= g->T && context_part(g->context).ranks * e.T <= g->shape.n_positions, "batch of %lld x %lld, memory for %lld x %lld", (long long)e.B,
          (long long)e.T, (long long)g->B, (long long)g->T);
    return e;
}

static Tensor first_rows(Tensor t, int64_t rows) {
    t.dim[0] = rows;
    return t;
}

static void *block_view(Gpt *g, int64_t l, Extent e) {
    block_acts_view(g->kind, g->shape, g->acts, l, e, g->one_block);
    return g->one_block;
}

static BlockRun block_run(const Gpt *g, Stream *s, Extent e) {
    return (BlockRun){.s = s, .shape = g->shape, .recompute = g->recompute, .e = e, .tensor = g->tensor, .context = g->context, .update = first_rows(g->update, e.N),
                      .dresidual = first_rows(g->dresidual, e.own), .dbranch = first_rows(g->dbranch, e.N),
                      .keys = first_rows(g->keys, context_part(g->context).ranks * e.N), .dkeys = first_rows(g->dkeys, context_part(g->context).ranks * e.N)};
}

/* The residual stream entering block l, and the one that leaves it but for its last branch. */
static Tensor entry_of(Gpt *g, int64_t l, Extent e) { return *(const Tensor *)(void *)((char *)block_view(g, l, e) + g->kind->entry); }
static Tensor mid_of(Gpt *g, int64_t l, Extent e) { return *(const Tensor *)(void *)((char *)block_view(g, l, e) + g->kind->mid); }

/* --- memory ------------------------------------------------------------------------------------------------------- */

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Rows of logits at once: within LOGITS_BYTES, and never the whole micro-batch unless it is tiny. */
static int64_t head_rows(int64_t N, int64_t padded_vocab, DType act) {
    int64_t bytes = N * padded_vocab * (int64_t)dtype_bytes(act);
    int64_t chunks = ceil_div(bytes, LOGITS_BYTES);
    if (chunks < 2 && N >= 64) chunks = 2;
    int64_t rows = ceil_div(N, chunks < 1 ? 1 : chunks);
    return rows > HEAD_TILE ? ceil_div(rows, HEAD_TILE) * HEAD_TILE : rows;
}

Gpt gpt_create(Shards *z, Comm *context, int64_t B, int64_t T, Recompute recompute, Arena *a) {
    ModelShape shape = z->spec.shape;
    DType      act = z->spec.act;
    CHECK(shape.n_embd % shape.n_head == 0, "n_embd %lld, n_head %lld", (long long)shape.n_embd, (long long)shape.n_head);
    Gpt     g = {.shape = shape, .kind = block_kind(shape), .recompute = recompute, .use = z->spec.use, .act = act, .B = B, .T = T, .tensor = z->spec.tensor,
                 .context = context, .shards = z, .sums = z->sums};
    Extent  e = extent_of(B, T, tensor_ranks(&g));
    int64_t N = e.N, C = shape.n_embd, padded = ((const EmbeddingParams *)z->weight_view[0])->wte.dim[0];
    int     trains = g.use == GPT_TRAINING;

    g.acts = block_acts_create(g.kind, shape, act, e, recompute, g.use, a);
    g.one_block = calloc(1, g.kind->act_bytes);
    g.forward = (BlockGraph *)calloc((size_t)shape.n_layer, sizeof *g.forward);
    g.backward = (BlockGraph *)calloc((size_t)shape.n_layer, sizeof *g.backward);
    if (!g.one_block || !g.forward || !g.backward) fail(EXIT_MEMORY, "no memory for the tables of %lld blocks", (long long)shape.n_layer);
    g.update         = arena_tensor(a, act, 2, N, C, 1);
    g.residual_final = trains ? arena_tensor(a, act, 2, e.own, C, 1) : entry_of(&g, 0, e);
    g.ln_f           = arena_tensor(a, act, 2, e.own, C, 1);
    g.ln_f_mean      = arena_tensor(a, F32, 1, e.own, 1, 1);
    g.ln_f_rstd      = arena_tensor(a, F32, 1, e.own, 1, 1);
    g.head_rows      = head_rows(N, padded, act);
    if (g.head_rows < e.tensor) g.head_rows = e.tensor; /* gpt_logits has the whole vocabulary's in them */
    g.logits         = arena_tensor(a, act, 2, g.head_rows, padded, 1);
    g.losses         = arena_tensor(a, F32, 1, N, 1, 1);
    if (trains) {
        g.dresidual = arena_tensor(a, act, 2, e.own, C, 1);
        g.dbranch   = arena_tensor(a, act, 2, N, C, 1);
    }
    if (context) {
        int64_t ranks = comm_size(context), width = 2 * C / e.tensor;
        g.keys = arena_tensor(a, act, 2, ranks * N, width, 1);
        if (trains) g.dkeys = arena_tensor(a, act, 2, ranks * N, width, 1);
    }
    if (g.tensor) {
        g.tokens    = arena_tensor(a, I32, 1, N, 1, 1);
        g.most      = arena_tensor(a, F32, 1, g.head_rows, 1, 1);
        g.part_sums = arena_tensor(a, F32, 1, 2 * g.head_rows, 1, 1);
    }
    return g;
}

void gpt_destroy(Gpt *g) {
    for (int64_t l = 0; g->forward && l < g->shape.n_layer; l++) graph_destroy(&g->forward[l].graph), graph_destroy(&g->backward[l].graph);
    free(g->acts);
    free(g->one_block);
    free(g->forward);
    free(g->backward);
    g->acts = g->one_block = NULL;
    g->forward = g->backward = NULL;
}

/* --- blocks ------------------------------------------------------------------------------------------------------- */

enum { EMBEDDING_BUCKET };
static int block_bucket(int64_t l) { return 1 + (int)l; }
static int final_bucket(const Gpt *g) { return 1 + (int)g->shape.n_layer; }

typedef void BlockOps(Gpt *g, BlockRun *r, int64_t l);

static void forward_ops(Gpt *g, BlockRun *r, int64_t l) {
    g->kind->forward(r, block_view(g, l, r->e), shards_need(g->shards, r->s, block_bucket(l)));
}

static void backward_ops(Gpt *g, BlockRun *r, int64_t l) {
    void       *x = block_view(g, l, r->e);
    const void *w = shards_need(g->shards, r->s, block_bucket(l));
    g->kind->recompute(r, x, w);
    g->kind->backward(r, x, w, shards_grads(g->shards, r->s, block_bucket(l)));
}

/* Queues a block's operations, from the second time on as a graph. Smaller micro-batches have no graph: their shapes
 * differ. Nor have tensor and context ranks: their blocks exchange rows. */
static void queue_block(Gpt *g, BlockRun *r, int64_t l, BlockGraph *b, BlockOps *ops) {
    int whole = r->e.B == g->B && r->e.T == g->T && !r->s->ledger && !g->tensor && !g->context;
    if (!whole || !b->graph.handle) {
        int records = whole && b->runs++ > 0 && graph_begin(r->s);
        ops(g, r, l);
        if (!records) return;
        b->graph = graph_end(r->s);
    }
    graph_launch(b->graph, r->s);
}

void gpt_apart(Gpt *g, int is_apart) {
    shards_apart(g->shards, is_apart);
    if (g->tensor) comm_set_apart(g->tensor, is_apart);
    if (g->context) comm_set_apart(g->context, is_apart);
}

/* --- embedding: tensor ranks have a part of the vocabulary each ---------------------------------------------------- */

/* Tokens, or targets, in numbers of this rank's rows of wte. */
static Tensor own_tokens(Gpt *g, Stream *s, Tensor tokens, Tensor wte) {
    Tensor all = tensor_1d(tokens.data, I32, tensor_elems(tokens)), own = first_rows(g->tokens, all.dim[0]);
    tokens_own(s, own, all, comm_rank(g->tensor) * wte.dim[0], wte.dim[0]);
    return own;
}

static void embed(Gpt *g, BlockRun *r, Batch batch, const EmbeddingParams *w) {
    Tensor entry = entry_of(g, 0, r->e);
    if (!g->tensor) {
        embedding_forward(r->s, entry, batch.inputs, w->wte, w->wpe, context_part(g->context));
        return;
    }
    Tensor own = own_tokens(g, r->s, batch.inputs, w->wte);
    embedding_forward(r->s, r->update, tensor_2d(own.data, I32, r->e.B, r->e.T), w->wte, counted_once(r, w->wpe), context_part(g->context));
    Tensor rows = sum_rows(r, r->update);
    cast_forward(r->s, tensor_slice(entry, 0, tensor_elems(entry)), tensor_slice(rows, 0, tensor_elems(rows)));
}

static void embed_backward(Gpt *g, BlockRun *r, Batch batch, const EmbeddingParams *d) {
    Tensor dy = gather_rows(r, r->dresidual, r->dbranch), tokens = batch.inputs;
    if (g->tensor) tokens.data = own_tokens(g, r->s, batch.inputs, d->wte).data;
    embedding_backward(r->s, d->wte, counted_once(r, d->wpe), dy, tokens, context_part(g->context));
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

void gpt_forward(Gpt *g, Stream *s, Batch batch) {
    Extent   e = batch_extent(g, batch);
    BlockRun r = block_run(g, s, e);
    embed(g, &r, batch, (const EmbeddingParams *)shards_need(g->shards, s, EMBEDDING_BUCKET));
    for (int64_t l = 0; l < g->shape.n_layer; l++) {
        shards_need(g->shards, s, block_bucket(l)); /* comes before the block's graph */
        shards_prefetch(g->shards, s, block_bucket(l + 1));
        device_range_begin("block forward");
        queue_block(g, &r, l, &g->forward[l], forward_ops);
        device_range_end();
        r.mid = mid_of(g, l, e);
    }
    const FinalParams *final = (const FinalParams *)shards_need(g->shards, s, final_bucket(g));
    residual_layernorm_forward(s, first_rows(g->residual_final, e.own), first_rows(g->ln_f, e.own), first_rows(g->ln_f_mean, e.own),
                               first_rows(g->ln_f_rstd, e.own), r.mid, own_rows(&r, r.update), final->ln_f_w, final->ln_f_b, LAYERNORM_EPS);
}

/* --- head --------------------------------------------------------------------------------------------------------- */

static Tensor wte_of(const Gpt *g, Stream *s) { return ((const EmbeddingParams *)shards_need(g->shards, s, EMBEDDING_BUCKET))->wte; }

/* The losses of rows whose logits lie on several ranks. */
static void classify_parts(Gpt *g, Stream *s, Tensor losses, Tensor logits, Tensor targets, float grad_scale) {
    int64_t n = logits.dim[0], columns = logits.dim[1], V = g->shape.vocab_size - comm_rank(g->tensor) * columns;
    Tensor  most = first_rows(g->most, n), sums = first_rows(g->part_sums, 2 * n), two = tensor_2d(sums.data, F32, 2, n);
    V = V < 0 ? 0 : V > columns ? columns : V;
    classifier_part_most(s, most, logits, V);
    comm_all_reduce_max(g->tensor, most);
    classifier_part_sums(s, two, logits, targets, V, most);
    comm_all_reduce(g->tensor, sums);
    classifier_part_loss(s, losses, logits, targets, V, most, two, grad_scale);
}

typedef enum { LOSS_ONLY, WITH_GRADIENT } HeadPass;

/* The rows' losses, chunk by chunk. WITH_GRADIENT the logits also become their gradients: dwte is added to, and the
 * gradient of ln_f's output set, all rows' in dbranch. */
static void head_and_loss(Gpt *g, BlockRun *r, Batch batch, HeadPass pass, float grad_scale) {
    Stream *s = r->s;
    int64_t N = r->e.N, V = g->shape.vocab_size;
    Tensor  targets = tensor_1d(batch.targets.data, I32, N), wte = wte_of(g, s);
    Tensor  ln_f = gather_rows(r, first_rows(g->ln_f, r->e.own), r->update);
    if (g->tensor) targets = own_tokens(g, s, targets, wte);
    for (int64_t row = 0; row < N; row += g->head_rows) {
        int64_t n = N - row < g->head_rows ? N - row : g->head_rows;
        Tensor  logits = first_rows(g->logits, n), x = tensor_rows(ln_f, row, n);
        Tensor  losses = tensor_rows(g->losses, row, n), chunk_targets = tensor_rows(targets, row, n);
        head_forward(s, logits, x, wte);
        if (g->tensor) classify_parts(g, s, losses, logits, chunk_targets, grad_scale);
        else if (pass == LOSS_ONLY) classifier_forward(s, losses, logits, chunk_targets, V);
        else classifier_forward_backward(s, losses, logits, chunk_targets, V, grad_scale);
        if (pass == LOSS_ONLY) continue;
        Tensor dwte = ((const EmbeddingParams *)shards_grads(g->shards, s, EMBEDDING_BUCKET))->wte;
        head_backward(s, tensor_rows(r->dbranch, row, n), dwte, logits, x, wte);
    }
    if (is_counting(g->tensor)) sum_forward(s, step_sum(&g->sums, SUM_LOSS), first_rows(g->losses, N));
}

static Tensor no_tensor(Tensor like) {
    like.data = NULL;
    return like;
}

void gpt_loss(Gpt *g, Stream *s, Batch batch) {
    BlockRun r = block_run(g, s, batch_extent(g, batch));
    head_and_loss(g, &r, batch, LOSS_ONLY, 0.0f);
}

int64_t gpt_sample_step(const Gpt *g) {
    int64_t step = SAMPLE_STEP;
    if (g->context) step = 4 * SAMPLE_STEP * comm_size(g->context); /* a chunk is whole tiles of attention */
    for (int64_t least = step; step / context_part(g->context).ranks % tensor_ranks(g);) step += least;
    return step;
}

/* Of all the vocabulary, on every tensor rank. */
static Tensor logits_of_row(Gpt *g, Stream *s, Batch batch, int64_t row) {
    BlockRun r = block_run(g, s, batch_extent(g, batch));
    int64_t  ranks = tensor_ranks(g), columns = g->logits.dim[1];
    Tensor   ln_f = gather_rows(&r, first_rows(g->ln_f, r.e.own), r.update), all = first_rows(g->logits, ranks);
    head_forward(s, g->tensor ? tensor_rows(all, comm_rank(g->tensor), 1) : all, tensor_rows(ln_f, row, 1), wte_of(g, s));
    all = tensor_slice(all, 0, ranks * columns);
    if (g->tensor) comm_all_gather(g->tensor, all);
    return all;
}

/* The context rank that has a position, and its row there. */
static int owner_of(const Gpt *g, int64_t T, int64_t position, int64_t *row) {
    int64_t ranks = context_part(g->context).ranks;
    for (int rank = 0; rank < ranks; rank++) {
        Positions p = positions_of((ContextPart){ranks, rank}, T);
        for (*row = 0; *row < T; ++*row)
            if (POSITION_OF(p, *row) == position) return rank;
    }
    CHECK(0, "position %lld of %lld", (long long)position, (long long)(ranks * T));
    return 0;
}

void gpt_logits(Gpt *g, Stream *s, Batch batch, int64_t position, float *out) {
    int64_t V = g->shape.vocab_size, row;
    int     owner = owner_of(g, batch.inputs.dim[1], position, &row);
    Tensor  logits = logits_of_row(g, s, batch, row);
    if (s->ledger) return;
    Tensor used = tensor_slice(logits, 0, V);
    if (logits.type == F32) {
        device_to_host(s, out, used);
    } else { /* the 16-bit values arrive in the upper half of out, then spread upwards from the front */
        char *bits = (char *)out + 2 * V;
        device_to_host(s, bits, used);
        for (int64_t v = 0; v < V; v++) {
            uint16_t h;
            memcpy(&h, bits + 2 * v, sizeof h);
            out[v] = logits.type == BF16 ? bf16_to_f32(h) : f16_to_f32(h);
        }
    }
    if (g->context) comm_broadcast(g->context, out, sizeof *out * (size_t)V, owner);
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

void gpt_backward(Gpt *g, Stream *s, Batch batch, float grad_scale, MicroBatch which) {
    Extent   e = batch_extent(g, batch);
    BlockRun r = block_run(g, s, e);
    device_range_begin("head and classifier");
    head_and_loss(g, &r, batch, WITH_GRADIENT, grad_scale);
    device_range_end();
    const FinalParams *final = (const FinalParams *)shards_need(g->shards, s, final_bucket(g));
    const FinalParams *dfinal = (const FinalParams *)shards_grads(g->shards, s, final_bucket(g));
    layernorm_backward(s, r.dresidual, dfinal->ln_f_w, dfinal->ln_f_b, no_tensor(r.dresidual) /* nothing flows past the last norm */, sum_rows(&r, r.dbranch),
                       first_rows(g->residual_final, e.own), final->ln_f_w, first_rows(g->ln_f_mean, e.own), first_rows(g->ln_f_rstd, e.own));
    shards_done(g->shards, s, final_bucket(g), which);
    for (int64_t l = g->shape.n_layer - 1; l >= 0; l--) {
        shards_need(g->shards, s, block_bucket(l)); /* these, too */
        shards_prefetch(g->shards, s, block_bucket(l - 1));
        shards_grads(g->shards, s, block_bucket(l));
        device_range_begin("block backward");
        queue_block(g, &r, l, &g->backward[l], backward_ops);
        device_range_end();
        shards_done(g->shards, s, block_bucket(l), which);
    }
    embed_backward(g, &r, batch, (const EmbeddingParams *)shards_grads(g->shards, s, EMBEDDING_BUCKET));
    shards_done(g->shards, s, EMBEDDING_BUCKET, which);
}
