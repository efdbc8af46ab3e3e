/* params.c - see params.h. */
#include "model/params.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/rng.h"
#include "model/block.h"

int64_t dim_size(Dim dim, ModelShape s) {
    switch (dim) {
        case DIM_V: return s.vocab_size;
        case DIM_P: return s.n_positions;
        case DIM_C: return s.n_embd;
        case DIM_D: return shape_head_dim(s);
        case DIM_Q: return shape_head_dim(s) * s.n_head;
        case DIM_KV: return shape_head_dim(s) * shape_kv_heads(s);
        case DIM_QKV: return dim_size(DIM_Q, s) + 2 * dim_size(DIM_KV, s);
        case DIM_FC: return s.n_inner ? s.n_inner : 4 * s.n_embd;
        case DIM_E: return s.n_experts;
        case DIM_FE: return s.n_expert_inner;
        case DIM_NONE: break;
    }
    return 1;
}

const char *dim_option(Dim dim) {
    static const char *const names[] = {[DIM_V] = "model.vocab_size",
                                        [DIM_P] = "model.n_positions",
                                        [DIM_C] = "model.n_embd",
                                        [DIM_D] = "model.head_dim",
                                        [DIM_Q] = "model.n_head x model.head_dim",
                                        [DIM_KV] = "model.n_kv_head x model.head_dim",
                                        [DIM_QKV] = "3 x model.n_embd",
                                        [DIM_FC] = "model.n_inner",
                                        [DIM_E] = "moe.experts",
                                        [DIM_FE] = "moe.n_inner"};
    return names[dim] ? names[dim] : "1";
}

/* --- µP ---------------------------------------------------------------------------------------------------------- */

typedef struct {
    double init;      /* factor of the mean and standard deviation of the initial values */
    double rate;      /* factor of AdamW's learning rate; the product of learning rate and weight decay is unchanged */
    /* Factor of Muon's learning rate: 1/sqrt(m), with m the width divided by that of the base model. It is not 1/m,
     * because Muon's scale 0.2 sqrt(max(R,M)) of an R x M matrix grows with the width. So spectral norms of updates do
     * not grow: Yang, Simon & Bernstein, arXiv:2310.17813. */
    double muon_rate;
} MupFactors;

/* Parameters of attention that µP multiplies by b^power, with b = (D_base / D)^(1/4) for head sizes D and, in the base
 * model, D_base (params.h). */
static const struct { const char *name; int power; } ATTENTION[] = {
    {"attn.c_attn.weight", 1},      {"attn.c_attn.bias", 1},        {"attn.c_proj.weight", -1},
    {"self_attn.q_proj.weight", 1}, {"self_attn.k_proj.weight", 1}, {"self_attn.v_proj.weight", 1},
    {"self_attn.o_proj.weight", -1},
    /* after these norms the sizes of q and k do not matter, so the gains of the norms get the factor */
    {"self_attn.q_norm.weight", 1}, {"self_attn.k_norm.weight", 1},
};

static int attention_power(const ParamRow *row) {
    for (size_t i = 0; i < sizeof ATTENTION / sizeof *ATTENTION; i++)
        if (strcmp(row->name, ATTENTION[i].name) == 0) return ATTENTION[i].power;
    return 0;
}

int mup_knows_attention(ModelShape s) {
    const ParamTable *block = &block_kind_at(s, 0)->block;
    for (int i = 0; i < block->rows; i++)
        if (attention_power(&block->row[i]) > 0) return 1;
    return 0;
}

/* Returns the factors of µP for a parameter in `bucket`. All are exactly 1 without µP (mup_base_n_embd 0), or if the
 * width is that of the base model. */
static MupFactors mup_factors(ModelShape s, int bucket, const ParamRow *row) {
    if (s.mup_base_n_embd == 0) return (MupFactors){1.0, 1.0, 1.0};
    double m = (double)s.n_embd / (double)s.mup_base_n_embd, head = (double)shape_head_dim(s);
    double b = s.mup_base_head_dim ? pow((double)s.mup_base_head_dim / head, 0.25) : 1.0;
    int    in_block = bucket > 0 && bucket <= s.n_layer, is_last = bucket > s.n_layer;
    double size = is_last && row->group == GROUP_VECTOR ? 1.0 / m : in_block ? pow(b, attention_power(row)) : 1.0;
    if (row->group != GROUP_MATRIX) return (MupFactors){size, size, size};
    return (MupFactors){size / sqrt(m), size / m, size / sqrt(m)};
}

/* --- rows --------------------------------------------------------------------------------------------------------- */

static int is_each(const ParamRow *row) { return strchr(row->name, '*') != NULL; }

static Param param_of(const ParamRow *row, const char *prefix, int bucket, ModelShape s, int expert) {
    Param p = {.field = row->field, .group = row->group, .bucket = bucket, .cut = row->cut, .pad = VOCAB_PAD};
    size_t before = strcspn(row->name, "*");
    int    length = snprintf(p.name, sizeof p.name, "%s%s", prefix, row->name);
    if (is_each(row))
        length = snprintf(p.name, sizeof p.name, "%s%.*s%d%s", prefix, (int)before, row->name, expert,
                          row->name + before + 1);
    CHECK(length < (int)sizeof p.name, "%s%s", prefix, row->name);
    p.dims = row->dim[1] == DIM_NONE ? 1 : 2;
    p.dim[0] = dim_size(row->dim[0], s);
    p.dim[1] = dim_size(row->dim[1], s);
    for (int d = 0; d < 2; d++) p.symbol[d] = (int)row->dim[d];
    MupFactors width = mup_factors(s, bucket, row);
    float      std = (float)shape_init_std(s), factor = (float)width.init;
    p.init_mean = row->init == INIT_ONE ? factor : 0.0f;
    p.init_std = row->init == INIT_NORMAL     ? factor * std
                 : row->init == INIT_RESIDUAL ? factor * (std / sqrtf(2.0f * (float)s.n_layer))
                                              : 0.0f;
    p.rate = (float)width.rate, p.matrix_rate = (float)width.muon_rate;
    return p;
}

/* Returns how many parameters a row of the table stands for: none if the model lacks it, one for each expert if the
 * row's name has a *, otherwise one. */
static int64_t repeats(const ParamRow *row, const BlockKind *kind, ModelShape s, int64_t experts) {
    return kind_has(kind, s, row->needs) ? is_each(row) ? experts : 1 : 0;
}

typedef struct { int64_t rows; __int128 elems; } Count;

/* Adds to *all the number of parameters in `times` copies of a table, and the number of their elements. `experts`:
 * number of experts in a block. Each size is below 2^31, so 128 bits are enough. */
static void count_rows(Count *all, int64_t times, const ParamTable *t, const BlockKind *kind, ModelShape s,
                       int64_t experts) {
    for (int i = 0; i < t->rows; i++) {
        int64_t rows = times * repeats(&t->row[i], kind, s, experts);
        all->rows += rows;
        all->elems += (__int128)rows * dim_size(t->row[i].dim[0], s) * dim_size(t->row[i].dim[1], s);
    }
}

/* Counts the parameters of a model, and their elements, as if each block had `experts` experts. */
static Count count_parameters(ModelShape s, int64_t experts) {
    const BlockKind *kind = block_kind(s);
    Count            all = {0, 0};
    count_rows(&all, 1, &kind->embedding, kind, s, 0);
    count_rows(&all, 1, &kind->final, kind, s, 0);
    for (int k = 0, period = kind->period ? kind->period : 1; k < period; k++) {
        /* number of the blocks k, k + period, k + 2 period and so on */
        int64_t blocks = (s.n_layer - k + period - 1) / period;
        count_rows(&all, blocks, &block_kind_at(s, k)->block, block_kind_at(s, k), s, experts);
    }
    return all;
}

int64_t model_rows(ModelShape s) { return count_parameters(s, s.n_experts).rows; }

/* Returns the kind of block that has the table of parameters of a bucket. */
static const BlockKind *kind_of(ModelShape s, int bucket) {
    return bucket > 0 && bucket <= s.n_layer ? block_kind_at(s, bucket - 1) : block_kind(s);
}
static const ParamTable *table_of(ModelShape s, int bucket) {
    const BlockKind *kind = kind_of(s, bucket);
    return bucket == 0 ? &kind->embedding : bucket > s.n_layer ? &kind->final : &kind->block;
}

size_t model_view_bytes(ModelShape s, int bucket) { return table_of(s, bucket)->view_bytes; }

/* Writes the parameters of a bucket to p. Returns how many they are. */
static int append_rows(Param *p, int bucket, ModelShape s) {
    const BlockKind  *kind = kind_of(s, bucket), *all = block_kind(s);
    const ParamTable *t = table_of(s, bucket);
    char              prefix[48];
    int               at = 0;
    snprintf(prefix, sizeof prefix, "%s", all->prefix);
    if (t == &kind->block) snprintf(prefix, sizeof prefix, "%s%s.%d.", all->prefix, all->blocks, bucket - 1);
    for (int i = 0, end; i < t->rows; i = end) {
        for (end = i + 1; end < t->rows && is_each(&t->row[i]) && is_each(&t->row[end]);) end++;
        for (int e = 0; e < repeats(&t->row[i], kind, s, s.n_experts); e++)
            for (int k = i; k < end; k++) {
                p[at] = param_of(&t->row[k], prefix, bucket, s, e);
                if (is_each(&t->row[k])) p[at].expert = 1 + e;
                at++;
            }
    }
    return at;
}

Param *model_params(ModelShape s, int *count) {
    int64_t n = model_rows(s);
    int     at = 0;
    CHECK(n <= MODEL_MOST_ROWS, "%" PRId64 " tensors", n);
    Param *p = xmalloc(sizeof(Param) * (size_t)n, "a table of parameters");
    for (int b = 0; b < (int)s.n_layer + 2; b++) at += append_rows(p + at, b, s);
    *count = (int)n;
    return p;
}

int model_parameters(ModelShape s, int64_t *parameters) {
    __int128 elems = count_parameters(s, s.n_experts).elems;
    *parameters = (int64_t)elems;
    return elems <= INT64_MAX;
}

Layout model_layout(ModelShape s, LayoutPlace place) {
    int    count;
    Param *rows = model_params(s, &count);
    int    ranks = place.expert_ranks > 1 ? place.expert_ranks : 1;
    int    first = 1 + (int)s.n_experts / ranks * place.expert_rank;
    for (int i = 0; i < count; i++) {
        if (!rows[i].expert) continue;
        if (rows[i].expert != first) rows[i].field = NO_FIELD;
        if (ranks > 1) rows[i].bucket = model_expert_bucket(s, rows[i].bucket);
    }
    Layout layout = layout_create(rows, count, place);
    free(rows);
    return layout;
}

double model_flops_per_token(ModelShape s, int64_t T) {
    int64_t P = (int64_t)count_parameters(s, s.top_k).elems;
    /* subtracts wte, in which tokens are only looked up, because no product reads it */
    if (kind_has(block_kind(s), s, HAS_OWN_HEAD)) P -= s.vocab_size * s.n_embd;
    return 6.0 * (double)P + 6.0 * (double)s.n_layer * (double)dim_size(DIM_Q, s) * (double)T;
}

ShapeText model_shape_text(ModelShape s) {
    ShapeText        t;
    char             kind[160] = "", size[40] = "", activation[40] = "";
    const BlockKind *k = block_kind(s);
    if (s.activation != (int)k->activation)
        snprintf(activation, sizeof activation, ", %s", ACTIVATION_NAMES[s.activation]);
    if (s.head_dim) snprintf(size, sizeof size, " of %" PRId64, s.head_dim);
    if (k->traits & HAS_EXPERTS)
        snprintf(kind, sizeof kind,
                 "%s, %" PRId64 " heads of keys, %" PRId64 " of %" PRId64 " experts of width %" PRId64 ", ", k->name,
                 shape_kv_heads(s), s.top_k, s.n_experts, s.n_expert_inner);
    else if (k->keys & READS_N_INNER)
        snprintf(kind, sizeof kind, "%s, %" PRId64 " heads of keys, inner width %" PRId64 ", ", k->name,
                 shape_kv_heads(s), dim_size(DIM_FC, s));
    snprintf(t.text, sizeof t.text,
             "%s%" PRId64 " layers, %" PRId64 " heads%s, width %" PRId64 "%s, %" PRId64 " positions, vocabulary "
             "%" PRId64,
             kind, s.n_layer, s.n_head, size, s.n_embd, activation, s.n_positions, s.vocab_size);
    return t;
}

void param_init_values(float *out, const Param *p, int64_t offset, int64_t elems, uint64_t seed) {
    if (p->init_std > 0.0f) rng_normal(out, elems, seed, (uint64_t)offset, p->init_mean, p->init_std);
    else for (int64_t i = 0; i < elems; i++) out[i] = p->init_mean;
}
