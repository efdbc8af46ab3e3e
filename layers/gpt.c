/* gpt.c - see gpt.h. The model reads top to bottom: the parameter table, memory, forward, backward.
 *
 * A block is two branches off the residual stream, each opened by a layernorm that is fused with the joining of the branch before it:
 *   residual -> ln_1 -> qkv -> attention -> proj -> (+) residual_mid -> ln_2 -> fc -> gelu -> proj -> (+) residual of the next block
 */
#include "layers/gpt.h"


#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"

static const float LAYERNORM_EPS = 1e-5f; /* GPT-2 */
enum { HEAD_TILE = 128 };                 /* rows of a large chunk are a multiple: no tile of the product is half empty */
enum { VOCAB_PAD = 128 };                 /* rows of wte in memory are a multiple: whole tiles for the matrix product */
static const int64_t LOGITS_BYTES = 128 << 20; /* a classifier chunk: large enough that dwte's += traffic is small beside its product */

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* --- the parameter table ------------------------------------------------------------------------------------------------------- */

typedef enum { DIM_NONE, DIM_VOCAB, DIM_POSITIONS, DIM_C, DIM_3C, DIM_4C } Dim;
typedef enum { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_RESIDUAL } Init;

typedef struct {
    const char *name; /* within "transformer." or "transformer.h.<i>." */
    Dim  dim[2];
    Init init;
} ParamRow;

static const ParamRow EMBEDDING_ROWS[] = {
    {"wte.weight", {DIM_VOCAB, DIM_C}, INIT_NORMAL},
    {"wpe.weight", {DIM_POSITIONS, DIM_C}, INIT_NORMAL},
};
static const ParamRow BLOCK_ROWS[] = {
    {"ln_1.weight", {DIM_C, DIM_NONE}, INIT_ONE},           {"ln_1.bias", {DIM_C, DIM_NONE}, INIT_ZERO},
    {"attn.c_attn.weight", {DIM_C, DIM_3C}, INIT_NORMAL},   {"attn.c_attn.bias", {DIM_3C, DIM_NONE}, INIT_ZERO},
    {"attn.c_proj.weight", {DIM_C, DIM_C}, INIT_RESIDUAL},  {"attn.c_proj.bias", {DIM_C, DIM_NONE}, INIT_ZERO},
    {"ln_2.weight", {DIM_C, DIM_NONE}, INIT_ONE},           {"ln_2.bias", {DIM_C, DIM_NONE}, INIT_ZERO},
    {"mlp.c_fc.weight", {DIM_C, DIM_4C}, INIT_NORMAL},      {"mlp.c_fc.bias", {DIM_4C, DIM_NONE}, INIT_ZERO},
    {"mlp.c_proj.weight", {DIM_4C, DIM_C}, INIT_RESIDUAL},  {"mlp.c_proj.bias", {DIM_C, DIM_NONE}, INIT_ZERO},
};
static const ParamRow FINAL_ROWS[] = {
    {"ln_f.weight", {DIM_C, DIM_NONE}, INIT_ONE},
    {"ln_f.bias", {DIM_C, DIM_NONE}, INIT_ZERO},
};
enum {
    EMBEDDING_COUNT = sizeof EMBEDDING_ROWS / sizeof *EMBEDDING_ROWS,
    BLOCK_COUNT = sizeof BLOCK_ROWS / sizeof *BLOCK_ROWS,
    FINAL_COUNT = sizeof FINAL_ROWS / sizeof *FINAL_ROWS
};

static int64_t dim_size(Dim dim, GptShape s) {
    switch (dim) {
        case DIM_VOCAB: return s.vocab_size;
        case DIM_POSITIONS: return s.n_positions;
        case DIM_C: return s.n_embd;
        case DIM_3C: return 3 * s.n_embd;
        case DIM_4C: return 4 * s.n_embd;
        case DIM_NONE: break;
    }
    return 1;
}

static Param param_row(const ParamRow *row, const char *prefix, int bucket, GptShape s) {
    Param p = {0};
    snprintf(p.name, sizeof p.name, "%s%s", prefix, row->name);
    p.dims = row->dim[1] == DIM_NONE ? 1 : 2;
    p.dim[0] = dim_size(row->dim[0], s);
    p.dim[1] = dim_size(row->dim[1], s);
    p.memory_rows = row->dim[0] == DIM_VOCAB ? ceil_div(p.dim[0], VOCAB_PAD) * VOCAB_PAD : p.dim[0];
    p.init_mean = row->init == INIT_ONE ? 1.0f : 0.0f;
    p.init_std = row->init == INIT_NORMAL ? 0.02f : row->init == INIT_RESIDUAL ? 0.02f / sqrtf(2.0f * (float)s.n_layer) : 0.0f;
    p.decay = p.dims >= 2 ? DECAY_WEIGHT : DECAY_NONE;
    p.bucket = bucket;
    return p;
}

Param *gpt_params(GptShape s, int *params) {
    int    n = EMBEDDING_COUNT + (int)s.n_layer * BLOCK_COUNT + FINAL_COUNT, at = 0;
    Param *p = (Param *)malloc(sizeof(Param) * (size_t)n);
    if (!p) fail(EXIT_MEMORY, "no memory for a table of %d parameters", n);
    for (int i = 0; i < EMBEDDING_COUNT; i++) p[at++] = param_row(&EMBEDDING_ROWS[i], "transformer.", 0, s);
    for (int l = 0; l < (int)s.n_layer; l++) {
        char prefix[40];
        snprintf(prefix, sizeof prefix, "transformer.h.%d.", l);
        for (int i = 0; i < BLOCK_COUNT; i++) p[at++] = param_row(&BLOCK_ROWS[i], prefix, 1 + l, s);
    }
    for (int i = 0; i < FINAL_COUNT; i++) p[at++] = param_row(&FINAL_ROWS[i], "transformer.", 1 + (int)s.n_layer, s);
    *params = n;
    return p;
}

double gpt_flops_per_token(GptShape s, int64_t P, int64_t T) {
    return 6.0 * (double)P + 6.0 * (double)s.n_layer * (double)s.n_embd * (double)T;
}

void gpt_init_values(float *out, const Param *p, int64_t first, int64_t elems, uint64_t seed) {
    if (p->init_std > 0.0f) rng_normal(out, elems, seed, (uint64_t)(p->offset + first), p->init_mean, p->init_std);
    else for (int64_t i = 0; i < elems; i++) out[i] = p->init_mean;
}

/* --- memory ---------------------------------------------------------------------------------------------------------------------- */

static int ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* A row of the table as a tensor inside flat, the working copy or the gradients; wte with its padding rows. */
static Tensor param_view(Tensor flat, const Layout *layout, int bucket, const char *name) {
    const Bucket *b = &layout->bucket[bucket];
    const Param  *p = &layout->param[b->first_param], *end = p + b->params;
    while (p < end && !ends_with(p->name, name)) p++;
    CHECK(p < end, "no parameter %s in bucket %d", name, bucket);
    Tensor t = tensor_of(NULL, flat.type, p->dims, p->memory_rows, p->dim[1], 1, 1);
    if (flat.data) t.data = (char *)flat.data + (size_t)p->memory * dtype_bytes(flat.type);
    return t;
}

static BlockParams block_params_view(Tensor flat, const Layout *layout, int bucket) {
    BlockParams p = {
        .ln_1_w = param_view(flat, layout, bucket, "ln_1.weight"),
        .ln_1_b = param_view(flat, layout, bucket, "ln_1.bias"),
        .c_attn_w = param_view(flat, layout, bucket, "attn.c_attn.weight"),
        .c_attn_b = param_view(flat, layout, bucket, "attn.c_attn.bias"),
        .attn_proj_w = param_view(flat, layout, bucket, "attn.c_proj.weight"),
        .attn_proj_b = param_view(flat, layout, bucket, "attn.c_proj.bias"),
        .ln_2_w = param_view(flat, layout, bucket, "ln_2.weight"),
        .ln_2_b = param_view(flat, layout, bucket, "ln_2.bias"),
        .c_fc_w = param_view(flat, layout, bucket, "mlp.c_fc.weight"),
        .c_fc_b = param_view(flat, layout, bucket, "mlp.c_fc.bias"),
        .mlp_proj_w = param_view(flat, layout, bucket, "mlp.c_proj.weight"),
        .mlp_proj_b = param_view(flat, layout, bucket, "mlp.c_proj.bias"),
    };
    return p;
}

/* What of a block's activations is its own and what all blocks share, because backward computes it again. */
typedef enum { KEEP_STREAM, KEEP_STATE, KEEP_CHEAP } KeepClass; /* the entry | qkv, attention, fc ... | norms' outputs and gelu */

static int is_shared(KeepClass class, GptUse use, Recompute recompute) {
    if (use == GPT_INFERENCE) return 1;
    if (class == KEEP_STREAM) return 0;
    return recompute == RECOMPUTE_BLOCK || (recompute == RECOMPUTE_LIGHT && class == KEEP_CHEAP);
}

typedef struct { Arena *arena; GptUse use; Recompute recompute; int64_t l; } BlockCarver;

/* The tensor of this block: new memory for the first block and for what is not shared, else the first block's. */
static Tensor carve(BlockCarver c, Tensor first, KeepClass class, DType type, int dims, int64_t a, int64_t b) {
    if (c.l > 0 && is_shared(class, c.use, c.recompute)) return first;
    return arena_tensor(c.arena, type, dims, a, b, 1);
}

static void carve_block(Gpt *g, BlockCarver c) {
    BlockActivations *x = &g->block[c.l], *first = &g->block[0];
    DType   act = g->act;
    int64_t N = g->B * g->T, C = g->shape.n_embd;
    x->residual     = carve(c, first->residual, KEEP_STREAM, act, 2, N, C);
    x->ln_1         = carve(c, first->ln_1, KEEP_CHEAP, act, 2, N, C);
    x->ln_1_mean    = carve(c, first->ln_1_mean, KEEP_STATE, F32, 1, N, 1);
    x->ln_1_rstd    = carve(c, first->ln_1_rstd, KEEP_STATE, F32, 1, N, 1);
    x->qkv          = carve(c, first->qkv, KEEP_STATE, act, 2, N, 3 * C);
    x->attention    = carve(c, first->attention, KEEP_STATE, act, 2, N, C);
    x->lse          = carve(c, first->lse, KEEP_STATE, F32, 2, g->B * g->shape.n_head, g->T);
    x->residual_mid = c.use == GPT_INFERENCE ? x->residual : carve(c, first->residual_mid, KEEP_STATE, act, 2, N, C);
    x->ln_2         = carve(c, first->ln_2, KEEP_CHEAP, act, 2, N, C);
    x->ln_2_mean    = carve(c, first->ln_2_mean, KEEP_STATE, F32, 1, N, 1);
    x->ln_2_rstd    = carve(c, first->ln_2_rstd, KEEP_STATE, F32, 1, N, 1);
    x->fc           = carve(c, first->fc, KEEP_STATE, act, 2, N, 4 * C);
    x->gelu         = carve(c, first->gelu, KEEP_CHEAP, act, 2, N, 4 * C);
}

/* Rows of logits at once: within LOGITS_BYTES, and never the whole micro-batch unless it is tiny. */
static int64_t head_rows(int64_t N, int64_t padded_vocab, DType act) {
    int64_t bytes = N * padded_vocab * (int64_t)dtype_bytes(act);
    int64_t chunks = ceil_div(bytes, LOGITS_BYTES);
    if (chunks < 2 && N >= 64) chunks = 2;
    int64_t rows = ceil_div(N, chunks < 1 ? 1 : chunks);
    return rows > HEAD_TILE ? ceil_div(rows, HEAD_TILE) * HEAD_TILE : rows;
}

Gpt gpt_create(GptShape shape, const Layout *layout, DType act, int64_t B, int64_t T, Recompute recompute, GptUse use, GptArenas a) {
    CHECK(shape.n_embd % shape.n_head == 0, "n_embd %lld, n_head %lld", (long long)shape.n_embd, (long long)shape.n_head);
    Gpt     g = {.shape = shape, .recompute = recompute, .act = act, .B = B, .T = T, .layout = layout};
    int64_t N = B * T, C = shape.n_embd, L = shape.n_layer;
    int     trains = use == GPT_TRAINING;

    g.params = arena_tensor(a.params, act, 1, layout->memory_elems, 1, 1);
    g.grads = trains ? arena_tensor(a.grads, F32, 1, layout->memory_elems, 1, 1) : tensor_1d(NULL, F32, layout->memory_elems);
    g.block_params = (BlockParams *)calloc((size_t)L, sizeof *g.block_params);
    g.block_grads = (BlockParams *)calloc((size_t)L, sizeof *g.block_grads);
    g.block = (BlockActivations *)calloc((size_t)L, sizeof *g.block);
    if (!g.block_params || !g.block_grads || !g.block) fail(EXIT_MEMORY, "no memory for the tables of %lld blocks", (long long)L);
    for (int64_t l = 0; l < L; l++) {
        g.block_params[l] = block_params_view(g.params, layout, (int)l + 1);
        g.block_grads[l] = block_params_view(g.grads, layout, (int)l + 1);
    }
    g.wte = param_view(g.params, layout, 0, "wte.weight"), g.dwte = param_view(g.grads, layout, 0, "wte.weight");
    g.wpe = param_view(g.params, layout, 0, "wpe.weight"), g.dwpe = param_view(g.grads, layout, 0, "wpe.weight");
    g.ln_f_w = param_view(g.params, layout, (int)L + 1, "ln_f.weight"), g.dln_f_w = param_view(g.grads, layout, (int)L + 1, "ln_f.weight");
    g.ln_f_b = param_view(g.params, layout, (int)L + 1, "ln_f.bias"), g.dln_f_b = param_view(g.grads, layout, (int)L + 1, "ln_f.bias");

    for (int64_t l = 0; l < L; l++) carve_block(&g, (BlockCarver){a.activations, use, recompute, l});
    g.update         = arena_tensor(a.activations, act, 2, N, C, 1);
    g.residual_final = trains ? arena_tensor(a.activations, act, 2, N, C, 1) : g.block[0].residual;
    g.ln_f           = arena_tensor(a.activations, act, 2, N, C, 1);
    g.ln_f_mean      = arena_tensor(a.activations, F32, 1, N, 1, 1);
    g.ln_f_rstd      = arena_tensor(a.activations, F32, 1, N, 1, 1);
    g.head_rows      = head_rows(N, g.wte.dim[0], act);
    g.logits         = arena_tensor(a.activations, act, 2, g.head_rows, g.wte.dim[0], 1);
    g.losses         = arena_tensor(a.activations, F32, 1, N, 1, 1);
    g.sums           = arena_tensor(a.activations, I64, 1, GPT_SUMS * EXACT_WORDS + GPT_HASHES, 1, 1);
    if (trains) {
        g.dresidual = arena_tensor(a.activations, act, 2, N, C, 1);
        g.dbranch   = arena_tensor(a.activations, act, 2, N, C, 1);
        g.dqkv      = arena_tensor(a.activations, act, 2, N, 3 * C, 1);
        g.dfc       = arena_tensor(a.activations, act, 2, N, 4 * C, 1);
    }
    return g;
}

void gpt_destroy(Gpt *g) {
    free(g->block_params);
    free(g->block_grads);
    free(g->block);
    g->block_params = g->block_grads = NULL;
    g->block = NULL;
}

size_t gpt_scratch_bytes(const Gpt *g) {
    int64_t N = g->B * g->T, C = g->shape.n_embd, last_rows = N % g->head_rows ? N % g->head_rows : g->head_rows; /* of logits */
    size_t  needs[] = {
        embedding_scratch_bytes(N),
        layernorm_scratch_bytes(N, C),
        linear_scratch_bytes(N, C, 3 * C, g->act),
        linear_scratch_bytes(N, C, C, g->act),
        linear_scratch_bytes(N, C, 4 * C, g->act),
        linear_scratch_bytes(N, 4 * C, C, g->act),
        attention_scratch_bytes(g->B, g->T, C, g->shape.n_head, g->act),
        head_scratch_bytes(g->head_rows, C, g->wte.dim[0], g->act),
        head_scratch_bytes(last_rows, C, g->wte.dim[0], g->act),
    };
    size_t most = 0;
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++)
        if (needs[i] > most) most = needs[i];
    return most;
}

/* --- views of the current micro-batch, which may be smaller than the memory ------------------------------------------------------------ */

typedef struct { int64_t B, T, N; } Extent;

static Extent batch_extent(const Gpt *g, Batch batch) {
    Extent e = {batch.inputs.dim[0], batch.inputs.dim[1], batch.inputs.dim[0] * batch.inputs.dim[1]};
    CHECK(e.B <= g->B && e.T <= g->T && e.T <= g->shape.n_positions, "batch of %lld x %lld, memory for %lld x %lld", (long long)e.B,
          (long long)e.T, (long long)g->B, (long long)g->T);
    return e;
}

static Tensor first_rows(Tensor t, int64_t rows) {
    t.dim[0] = rows;
    return t;
}

static BlockActivations block_view(const Gpt *g, int64_t l, Extent e) {
    BlockActivations x = g->block[l];
    Tensor *per_row[] = {&x.residual, &x.ln_1, &x.ln_1_mean, &x.ln_1_rstd, &x.qkv, &x.attention, &x.residual_mid,
                         &x.ln_2, &x.ln_2_mean, &x.ln_2_rstd, &x.fc, &x.gelu};
    for (size_t i = 0; i < sizeof per_row / sizeof *per_row; i++) *per_row[i] = first_rows(*per_row[i], e.N);
    x.lse = tensor_2d(x.lse.data, F32, e.B * g->shape.n_head, e.T);
    return x;
}

/* --- sums ------------------------------------------------------------------------------------------------------------------------ */

void   gpt_zero_sums(Gpt *g, Stream *s) { device_zero(s, g->sums); }
Tensor gpt_sum(const Gpt *g, int which) { return tensor_slice(g->sums, which * EXACT_WORDS, EXACT_WORDS); }

Tensor gpt_hash(const Gpt *g, int which) { return tensor_slice(g->sums, GPT_SUMS * EXACT_WORDS + which, 1); }

void gpt_fetch_sums(Gpt *g, Stream *s, Exact sums[GPT_SUMS], int64_t hashes[GPT_HASHES]) {
    struct { Exact sums[GPT_SUMS]; int64_t hashes[GPT_HASHES]; } all;
    device_to_host(s, &all, g->sums);
    memcpy(sums, all.sums, sizeof all.sums);
    if (hashes) memcpy(hashes, all.hashes, sizeof all.hashes);
}

/* --- forward --------------------------------------------------------------------------------------------------------------------- */

/* From ln_1 to gelu: everything of block l that its backward wants; the mlp's projection is left to the caller. */
static void block_forward(Gpt *g, Stream *s, int64_t l, Extent e) {
    const BlockParams *w = &g->block_params[l];
    BlockActivations   x = block_view(g, l, e);
    Tensor             update = first_rows(g->update, e.N);

    linear_forward(s, x.qkv, x.ln_1, w->c_attn_w, w->c_attn_b);
    attention_forward(s, x.attention, x.lse, x.qkv, g->shape.n_head);
    linear_forward(s, update, x.attention, w->attn_proj_w, w->attn_proj_b);
    residual_layernorm_forward(s, x.residual_mid, x.ln_2, x.ln_2_mean, x.ln_2_rstd, x.residual, update, w->ln_2_w, w->ln_2_b, LAYERNORM_EPS);
    linear_gelu_forward(s, x.gelu, x.fc, x.ln_2, w->c_fc_w, w->c_fc_b);
}

static void need(const Gpt *g, int bucket) {
    if (g->needs.bucket_needed) g->needs.bucket_needed(g->needs.ctx, bucket);
}

void gpt_forward(Gpt *g, Stream *s, Batch batch) {
    Extent           e = batch_extent(g, batch);
    BlockActivations x = block_view(g, 0, e);
    Tensor           update = first_rows(g->update, e.N);

    need(g, 0);
    embedding_forward(s, x.residual, batch.inputs, g->wte, g->wpe);
    need(g, 1);
    layernorm_forward(s, x.ln_1, x.ln_1_mean, x.ln_1_rstd, x.residual, g->block_params[0].ln_1_w, g->block_params[0].ln_1_b, LAYERNORM_EPS);
    for (int64_t l = 0; l < g->shape.n_layer; l++) {
        const BlockParams *w = &g->block_params[l];
        device_range_begin("block forward");
        block_forward(g, s, l, e);
        x = block_view(g, l, e);
        linear_forward(s, update, x.gelu, w->mlp_proj_w, w->mlp_proj_b);
        need(g, (int)l + 2); /* the next block, or ln_f */
        if (l + 1 < g->shape.n_layer) {
            BlockActivations   next = block_view(g, l + 1, e);
            const BlockParams *nw = &g->block_params[l + 1];
            residual_layernorm_forward(s, next.residual, next.ln_1, next.ln_1_mean, next.ln_1_rstd, x.residual_mid, update, nw->ln_1_w,
                                       nw->ln_1_b, LAYERNORM_EPS);
        } else {
            residual_layernorm_forward(s, first_rows(g->residual_final, e.N), first_rows(g->ln_f, e.N), first_rows(g->ln_f_mean, e.N),
                                       first_rows(g->ln_f_rstd, e.N), x.residual_mid, update, g->ln_f_w, g->ln_f_b, LAYERNORM_EPS);
        }
        device_range_end();
    }
}

void gpt_loss(Gpt *g, Stream *s, Batch batch) {
    Extent  e = batch_extent(g, batch);
    int64_t V = g->shape.vocab_size;
    Tensor  targets = tensor_1d(batch.targets.data, I32, e.N);
    for (int64_t row = 0; row < e.N; row += g->head_rows) {
        int64_t n = e.N - row < g->head_rows ? e.N - row : g->head_rows;
        Tensor  logits = first_rows(g->logits, n);
        head_forward(s, logits, tensor_rows(g->ln_f, row, n), g->wte);
        classifier_forward(s, tensor_rows(g->losses, row, n), logits, tensor_rows(targets, row, n), V);
    }
    sum_forward(s, gpt_sum(g, GPT_LOSS), first_rows(g->losses, e.N));
}

void gpt_logits(Gpt *g, Stream *s, int64_t row, float *out) {
    int64_t V = g->shape.vocab_size;
    Tensor  logits = first_rows(g->logits, 1);
    head_forward(s, logits, tensor_rows(g->ln_f, row, 1), g->wte);
    Tensor used = tensor_1d(logits.data, logits.type, V);
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
}

/* --- backward -------------------------------------------------------------------------------------------------------------------- */

/* Logits become their gradients chunk by chunk: losses, dwte, and the gradient of ln_f's output. */
static void head_loss_backward(Gpt *g, Stream *s, Batch batch, Extent e, float grad_scale, Tensor dln_f) {
    int64_t V = g->shape.vocab_size;
    Tensor  targets = tensor_1d(batch.targets.data, I32, e.N);
    for (int64_t row = 0; row < e.N; row += g->head_rows) {
        int64_t n = e.N - row < g->head_rows ? e.N - row : g->head_rows;
        Tensor  logits = first_rows(g->logits, n), x = tensor_rows(g->ln_f, row, n);
        head_forward(s, logits, x, g->wte);
        classifier_forward_backward(s, tensor_rows(g->losses, row, n), logits, tensor_rows(targets, row, n), V, grad_scale);
        head_backward(s, tensor_rows(dln_f, row, n), g->dwte, logits, x, g->wte);
    }
    sum_forward(s, gpt_sum(g, GPT_LOSS), first_rows(g->losses, e.N));
}

/* What memory.recompute did not keep of block l is computed again, with the same ops on the same inputs. */
static void block_recompute(Gpt *g, Stream *s, int64_t l, Extent e) {
    if (g->recompute == RECOMPUTE_NONE) return;
    const BlockParams *w = &g->block_params[l];
    BlockActivations   x = block_view(g, l, e);
    layernorm_forward(s, x.ln_1, x.ln_1_mean, x.ln_1_rstd, x.residual, w->ln_1_w, w->ln_1_b, LAYERNORM_EPS);
    if (g->recompute == RECOMPUTE_BLOCK) {
        block_forward(g, s, l, e);
    } else {
        layernorm_forward(s, x.ln_2, x.ln_2_mean, x.ln_2_rstd, x.residual_mid, w->ln_2_w, w->ln_2_b, LAYERNORM_EPS);
        gelu_forward(s, x.gelu, x.fc);
    }
}

/* g->dresidual: gradient of the stream leaving block l in, of the stream entering it out. */
static void block_backward(Gpt *g, Stream *s, int64_t l, Extent e) {
    const BlockParams *w = &g->block_params[l], *d = &g->block_grads[l];
    BlockActivations   x = block_view(g, l, e);
    Tensor dresidual = first_rows(g->dresidual, e.N), dbranch = first_rows(g->dbranch, e.N);
    Tensor dqkv = first_rows(g->dqkv, e.N), dfc = first_rows(g->dfc, e.N);

    linear_gelu_backward(s, dfc, d->mlp_proj_w, d->mlp_proj_b, dresidual, x.gelu, x.fc, w->mlp_proj_w);
    linear_backward(s, dbranch, d->c_fc_w, d->c_fc_b, dfc, x.ln_2, w->c_fc_w);
    layernorm_backward(s, dresidual, d->ln_2_w, d->ln_2_b, dresidual, dbranch, x.residual_mid, w->ln_2_w, x.ln_2_mean, x.ln_2_rstd);

    linear_backward(s, dbranch, d->attn_proj_w, d->attn_proj_b, dresidual, x.attention, w->attn_proj_w);
    attention_backward(s, dqkv, dbranch, x.attention, x.lse, x.qkv, g->shape.n_head);
    linear_backward(s, dbranch, d->c_attn_w, d->c_attn_b, dqkv, x.ln_1, w->c_attn_w);
    layernorm_backward(s, dresidual, d->ln_1_w, d->ln_1_b, dresidual, dbranch, x.residual, w->ln_1_w, x.ln_1_mean, x.ln_1_rstd);
}

static void bucket_done(GptHooks hooks, int bucket) {
    if (hooks.bucket_ready) hooks.bucket_ready(hooks.ctx, bucket);
    if (hooks.poll) hooks.poll(hooks.ctx);
}

void gpt_zero_grads(Gpt *g, Stream *s) { device_zero(s, g->grads); }

void gpt_own_squares(Gpt *g, Stream *s) { norm_squared(s, gpt_sum(g, GPT_OWN_SQUARES), tensor_slice(g->dwpe, 0, tensor_elems(g->dwpe))); }

void gpt_backward(Gpt *g, Stream *s, Batch batch, float grad_scale, GptHooks hooks) {
    Extent e = batch_extent(g, batch);
    Tensor dresidual = first_rows(g->dresidual, e.N), dbranch = first_rows(g->dbranch, e.N);
    Tensor none = dresidual;
    none.data = NULL; /* nothing flows past the last norm */
    int    L = (int)g->shape.n_layer;

    device_range_begin("head and classifier");
    head_loss_backward(g, s, batch, e, grad_scale, dbranch);
    device_range_end();
    layernorm_backward(s, dresidual, g->dln_f_w, g->dln_f_b, none, dbranch, first_rows(g->residual_final, e.N), g->ln_f_w,
                       first_rows(g->ln_f_mean, e.N), first_rows(g->ln_f_rstd, e.N));
    bucket_done(hooks, L + 1);
    for (int l = L - 1; l >= 0; l--) {
        device_range_begin("block backward");
        block_recompute(g, s, l, e);
        block_backward(g, s, l, e);
        device_range_end();
        bucket_done(hooks, 1 + l);
    }
    embedding_backward(s, g->dwte, g->dwpe, dresidual, batch.inputs);
    bucket_done(hooks, 0);
}
