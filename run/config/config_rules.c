/* config_rules.c - the rules between options: sizes of the model, the batch and its ranks, settings that exclude each
 * other, names of files. A rule that needs a faulty option is skipped, so that one cause has one message. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/device.h"
#include "core/json.h"
#include "model/block.h"
#include "model/params.h"
#include "model/optimizer.h"
#include "model/precision.h"
#include "run/config/config_load.h"

/* The keys that a rule needs. add_fault() reports a fault at the first of them that is set. Ends with NULL. */
typedef const char *const *Keys;
#define KEYS(...) ((const char *const[]){__VA_ARGS__, NULL})

static int is_usable(ConfigLoad *load, Keys keys) {
    for (int i = 0; keys[i]; i++)
        if (config_given(load, keys[i])->faulty) return 0;
    return 1;
}

/* Formats a text. Returns it, from malloc. */
#define sentence(...) xformat("a fault of the config", __VA_ARGS__)

/* Adds a fault and frees its text. text NULL: there is no fault. The place is the first of these keys that an override
 * sets, otherwise the first in the file, otherwise the file. */
static void add_fault(ConfigLoad *load, Keys keys, char *text) {
    const Given none = {0, 0, load->file}, *best = &none;
    for (int i = 0; keys[i]; i++) {
        const Given *given = config_given(load, keys[i]);
        if (given->given && (best == &none || (given->where.override && !best->where.override))) best = given;
    }
    if (text) faults_add(&load->faults, best->where, "%s", text);
    free(text);
}
#define REFUSE(load, keys, ...) add_fault(load, keys, sentence(__VA_ARGS__))

/* Adds a fault about a key of the model. Later rules that need the key are skipped. */
#define REFUSE_KEY(load, key, ...)                                                      \
    do {                                                                                \
        if (!is_usable(load, KEYS(key, "model.arch"))) break;                           \
        REFUSE(load, KEYS(key, "model.arch"), __VA_ARGS__);                             \
        config_given(load, key)->faulty = 1;                                            \
    } while (0)

/* Multiplies `count` factors. Returns 0 if the product does not fit in 64 bits. */
static int multiply(int64_t *product, int count, const int64_t *factor) {
    *product = 1;
    for (int i = 0; i < count; i++)
        if (__builtin_mul_overflow(*product, factor[i], product)) return 0;
    return 1;
}

/* Writes the multiples of `of` next to value, such as "500 and 1000". Writes only the larger one if there is none
 * below. joined: " and " or " or ". Returns out. */
static const char *nearest_multiples(char out[64], int64_t value, int64_t of, const char *joined) {
    int64_t below = value - value % of;
    if (below) snprintf(out, 64, "%" PRId64 "%s%" PRId64, below, joined, below + of);
    else       snprintf(out, 64, "%" PRId64, of);
    return out;
}

/* Writes the divisors of `of` that are nearest to value from below and above, such as "4 or 6". Writes only one if
 * there is no other. Returns out. */
static const char *nearest_divisors(char out[64], int64_t value, int64_t of) {
    int64_t below = value < of ? value : of, above = value;
    while (of % below) below--;
    while (above < of && of % above) above++;
    if (above >= of && of % above) snprintf(out, 64, "%" PRId64, below);
    else snprintf(out, 64, "%" PRId64 " or %" PRId64, below, above);
    return out;
}

/* --- the shape of the model --------------------------------------------------------------------------------------- */

static void rule_heads(ConfigLoad *load) {
    const char *const keys[] = {"model.n_head", "model.n_embd", "model.head_dim", NULL};
    ModelShape        s = load->config->model.shape;
    int64_t           C = s.n_embd, H = s.n_head;
    if (!is_usable(load, keys)) return;
    if (!s.head_dim && C % H) {
        int64_t below = C - C % H;
        REFUSE(load, keys, "model.n_embd = %" PRId64 " must be a multiple of model.n_head = %" PRId64 "; nearest valid "
               "widths: %" PRId64 " and %" PRId64, C, H, below ? below : H, below ? below + H : 2 * H);
        config_given(load, "model.n_embd")->faulty = 1;
    } else if (shape_head_dim(s) > 128 && strcmp(device_backend(), "cpu")) {
        REFUSE(load, keys, "heads of %s = %" PRId64 " channels: more than 128 run on the CPU only (make BACKEND=cpu)",
               s.head_dim ? "model.head_dim" : "model.n_embd / model.n_head", shape_head_dim(s));
    }
}

/* Refuses a matrix of 2^31 columns or more. */
static void rule_sizes(ConfigLoad *load) {
    const char *const heads[] = {"model.n_head", "model.head_dim", "model.n_kv_head", NULL};
    ModelShape        s = load->config->model.shape;
    if (is_usable(load, heads) && is_usable(load, KEYS("model.n_embd")) &&
        shape_head_dim(s) > INT32_MAX / (s.n_head + 2 * shape_kv_heads(s))) {
        REFUSE(load, heads, "model.n_head = %" PRId64 " and 2 x %" PRId64 " heads of keys and values, each of %" PRId64
               " channels (model.head_dim, or model.n_embd / model.n_head), are more than 2^31 columns: make one of "
               "them smaller", s.n_head, shape_kv_heads(s), shape_head_dim(s));
        config_given(load, "model.n_head")->faulty = 1;
    }
    if (is_usable(load, KEYS("model.n_inner")) && s.n_inner > INT32_MAX / 2) {
        REFUSE(load, KEYS("model.n_inner"), "model.n_inner = %" PRId64 ": at most %d", s.n_inner, INT32_MAX / 2);
        config_given(load, "model.n_inner")->faulty = 1;
    }
}

/* Refuses an activation that the kind of model does not have. */
static void rule_activation(ConfigLoad *load, ModelShape s, const BlockKind *kind) {
    char words[200] = "";
    if (s.activation == (int)kind->activation || kind->activations >> s.activation & 1) return;
    for (int i = 0, used = 0; i < ACTIVATION_COUNT; i++)
        if (i == (int)kind->activation || kind->activations >> i & 1)
            used += snprintf(words + used, sizeof words - (size_t)used, "%s\"%s\"", used ? ", " : "",
                             ACTIVATION_NAMES[i]);
    REFUSE_KEY(load, "model.activation", "model.activation = \"%s\": model.arch = \"%s\" has %s; leave it out, or "
               "model.arch = \"gpt2\"", ACTIVATION_NAMES[s.activation], kind->name, words);
}

/* Refuses values of keys that the kind of model (model.arch) does not read. */
static void rules_of_unread(ConfigLoad *load, ModelShape s, const BlockKind *kind) {
    if (!(kind->keys & READS_N_KV_HEAD) && shape_kv_heads(s) != s.n_head)
        REFUSE_KEY(load, "model.n_kv_head", "model.n_kv_head = %" PRId64 ": the heads of model.arch = \"%s\" share no "
                   "keys; leave it out, or model.arch = \"llama\"", s.n_kv_head, kind->name);
    if (!(kind->keys & READS_HEAD_DIM) && s.head_dim && (s.n_embd % s.head_dim || s.n_embd / s.head_dim != s.n_head))
        REFUSE_KEY(load, "model.head_dim", "model.head_dim = %" PRId64 ": a head of model.arch = \"%s\" has "
                   "model.n_embd / model.n_head = %" PRId64 "; leave it out, or model.arch = \"llama\"", s.head_dim,
                   kind->name, s.n_embd / s.n_head);
    if (!(kind->keys & READS_N_INNER) && !kind->has_experts && s.n_inner && s.n_inner != 4 * s.n_embd)
        REFUSE_KEY(load, "model.n_inner", "model.n_inner = %" PRId64 ": model.arch = \"%s\" has 4 x model.n_embd = "
                   "%" PRId64 "; leave it out, or model.arch = \"llama\"", s.n_inner, kind->name, 4 * s.n_embd);
    if (!(kind->keys & READS_TIED) && !s.tie_embeddings)
        REFUSE_KEY(load, "model.tie_embeddings", "model.tie_embeddings = false: the head of model.arch = \"%s\" is its "
                   "embedding; leave it out, or model.arch = \"llama\"", kind->name);
    if (!(kind->keys & READS_NORM_EPS) && s.norm_eps != 1e-5)
        REFUSE_KEY(load, "model.norm_eps", "model.norm_eps = %g: model.arch = \"%s\" has 1e-5; leave it out, or "
                   "model.arch = \"llama\"", s.norm_eps, kind->name);
    if (!kind->has_rope && (s.rope_theta != 10000.0 || s.rope_factor != 0.0))
        REFUSE_KEY(load, s.rope_factor != 0.0 ? "model.rope_factor" : "model.rope_theta", "model.arch = \"%s\" has no "
                   "rotary positions: leave model.rope_theta and model.rope_factor out, or model.arch = \"llama\"",
                   kind->name);
}

/* Checks rotary positions and their scaling. */
static void rules_of_rope(ConfigLoad *load, ModelShape s) {
    if (s.head_dim % 2)
        REFUSE_KEY(load, "model.head_dim", "model.head_dim = %" PRId64 " must be even: rotary positions turn pairs; "
                   "%" PRId64, s.head_dim, s.head_dim + 1);
    else if (!s.head_dim && s.n_embd % s.n_head == 0 && s.n_embd / s.n_head % 2)
        REFUSE_KEY(load, "model.n_embd", "model.n_embd / model.n_head = %" PRId64 " channels of a head must be even: "
                   "rotary positions turn pairs; model.n_embd = %" PRId64, s.n_embd / s.n_head, s.n_embd + s.n_head);
    if (s.rope_factor == 0.0) return;
    if (s.rope_factor < 1.0)
        REFUSE_KEY(load, "model.rope_factor", "model.rope_factor = %g must be 0, for none, or at least 1",
                   s.rope_factor);
    else if (s.rope_low_freq_factor <= 0.0 || s.rope_low_freq_factor >= s.rope_high_freq_factor)
        REFUSE_KEY(load, "model.rope_low_freq_factor", "model.rope_low_freq_factor = %g must be more than 0 and less "
                   "than model.rope_high_freq_factor = %g; Llama 3 has 1 and 4", s.rope_low_freq_factor,
                   s.rope_high_freq_factor);
}

/* Checks the keys that the kind of model (model.arch) reads. */
static void rules_of_read(ConfigLoad *load, ModelShape s, const BlockKind *kind) {
    if (kind->keys & READS_N_INNER && s.n_inner == 0)
        REFUSE_KEY(load, "model.n_inner", "missing key \"model.n_inner\": width of the MLP, which model.arch = \"%s\" "
                   "needs; often 8/3 of model.n_embd, here %" PRId64, kind->name, (s.n_embd * 8 / 3 + 63) / 64 * 64);
    if (kind->keys & READS_N_KV_HEAD && s.n_head % s.n_kv_head) {
        int64_t below = s.n_kv_head < s.n_head ? s.n_kv_head : s.n_head;
        while (s.n_head % below) below--;
        REFUSE_KEY(load, "model.n_kv_head", "model.n_kv_head = %" PRId64 " must divide model.n_head = %" PRId64 ": "
                   "%" PRId64, s.n_kv_head, s.n_head, below);
    }
    if (kind->has_rope) rules_of_rope(load, s);
    if (s.mup_base_head_dim == 0) return;
    if (s.mup_base_n_embd == 0)
        REFUSE_KEY(load, "model.mup_base_head_dim", "model.mup_base_head_dim = %" PRId64 " is of muP: give "
                   "model.mup_base_n_embd, too, the width of the model whose heads have that size, or leave it out",
                   s.mup_base_head_dim);
    else if (s.n_head > 0 && s.mup_base_head_dim != shape_head_dim(s) && !mup_knows_attention(s))
        REFUSE_KEY(load, "model.mup_base_head_dim", "model.mup_base_head_dim = %" PRId64 ": the heads of this "
                   "model.arch must have that size, not %" PRId64, s.mup_base_head_dim, shape_head_dim(s));
}

/* Refuses keys of experts if the kind of model has no experts. */
static void rules_of_no_experts(ConfigLoad *load, ModelShape s) {
    const struct { const char *key; int64_t value, most; } of[] = {
        {"moe.experts", s.n_experts, 0}, {"moe.top_k", s.top_k, 0}, {"moe.n_inner", s.n_expert_inner, 0},
        {"parallel.expert", load->config->parallel.expert, 1}};
    for (int i = 0; i < 4; i++)
        if (of[i].value > of[i].most)
            REFUSE_KEY(load, of[i].key, "%s = %" PRId64 ": model.arch = \"%s\" has no experts; leave it out, or "
                       "model.arch = \"qwen3-moe\"", of[i].key, of[i].value, block_kind(s)->name);
    if (s.balance == BALANCE_BIAS)
        REFUSE_KEY(load, "moe.balance", "moe.balance = \"bias\": model.arch = \"%s\" has no experts; leave it out, or "
                   "model.arch = \"qwen3-moe\"", block_kind(s)->name);
}

static void rules_of_experts(ConfigLoad *load, ModelShape s) {
    const struct { const char *key, *what; int64_t value; } of[] = {
        {"moe.experts", "experts of a block", s.n_experts}, {"moe.top_k", "experts of a token", s.top_k},
        {"moe.n_inner", "width of an expert's MLP", s.n_expert_inner}};
    int64_t expert = load->config->parallel.expert, below = expert;
    for (int i = 0; i < 3; i++)
        if (!of[i].value)
            REFUSE_KEY(load, of[i].key, "missing key \"%s\": %s, which model.arch = \"qwen3-moe\" needs", of[i].key,
                       of[i].what);
    if (s.top_k > s.n_experts && s.n_experts)
        REFUSE_KEY(load, "moe.top_k", "moe.top_k = %" PRId64 " is more than moe.experts = %" PRId64 ": at most "
                   "%" PRId64, s.top_k, s.n_experts, s.n_experts);
    if (s.n_inner)
        REFUSE_KEY(load, "model.n_inner", "model.n_inner = %" PRId64 ": the MLPs of model.arch = \"qwen3-moe\" are "
                   "those of experts, of width moe.n_inner; leave it out", s.n_inner);
    /* The gate and up matrices of an expert are read as one matrix. So each must fill a multiple of LAYOUT_ALIGN
     * elements. */
    int64_t unit = LAYOUT_ALIGN / common_divisor(LAYOUT_ALIGN, s.n_embd);
    if (s.n_expert_inner % unit)
        REFUSE_KEY(load, "moe.n_inner", "moe.n_inner = %" PRId64 " times model.n_embd must be a multiple of %d: "
                   "moe.n_inner = %" PRId64, s.n_expert_inner, LAYOUT_ALIGN, (s.n_expert_inner / unit + 1) * unit);
    if (s.mup_base_n_embd)
        REFUSE_KEY(load, "model.mup_base_n_embd", "model.mup_base_n_embd = %" PRId64 ": muP's factors are those of a "
                   "width, and experts have two (model.arch = \"qwen3-moe\"); leave it out", s.mup_base_n_embd);
    while (s.n_experts % below) below--;
    if (s.n_experts % expert)
        REFUSE_KEY(load, "parallel.expert", "parallel.expert = %" PRId64 " must divide moe.experts = %" PRId64
                   ": parallel.expert = %" PRId64, expert, s.n_experts, below);
}

static void rule_parameters(ConfigLoad *load) {
    const char *const keys[] = {"model.n_embd", "model.n_layer", "model.n_positions", "model.vocab_size",
                                "model.n_kv_head", "model.head_dim", "model.n_inner", "model.n_head", NULL};
    ModelShape        s = load->config->model.shape;
    int64_t           parameters, bytes;
    char              more[100] = "";
    /* 64 bytes for each parameter are more than weight, master, moments and gradients need, with padding */
    if (!is_usable(load, keys) ||
        (model_parameters(s, &parameters) && multiply(&bytes, 2, (int64_t[]){parameters, 64})))
        return;
    if (s.n_inner) snprintf(more, sizeof more, ", model.n_inner = %" PRId64, s.n_inner);
    if (s.n_experts)
        snprintf(more, sizeof more, ", moe.experts = %" PRId64 ", moe.n_inner = %" PRId64, s.n_experts,
                 s.n_expert_inner);
    REFUSE(load, keys,
           "a model of model.n_layer = %" PRId64 ", model.n_embd = %" PRId64 "%s, model.n_positions = "
           "%" PRId64 ", model.vocab_size = %" PRId64 " does not fit in 64 bits of address: lower one of them",
           s.n_layer, s.n_embd, more, s.n_positions, s.vocab_size);
}

/* Refuses a model with more tensors than the header of a weights file can list. A model that does not fit into memory
 * is not reported again. */
static void rule_rows(ConfigLoad *load) {
    const char *const keys[] = {"model.n_layer", "model.n_head", "model.n_embd", "model.n_positions",
                                "model.vocab_size", "moe.experts", NULL};
    ModelShape        s = load->config->model.shape;
    int64_t           parameters;
    if (!is_usable(load, keys) || !is_usable(load, KEYS("model.n_kv_head", "model.head_dim", "model.n_inner")) ||
        !model_parameters(s, &parameters) || parameters > INT64_MAX / 64 || model_rows(s) <= MODEL_MOST_ROWS)
        return;
    REFUSE(load, keys, "model.n_layer = %" PRId64 "%s%.0" PRId64 " make a model of %" PRId64 " tensors; a file of "
           "weights holds at most %d", s.n_layer, s.n_experts ? ", moe.experts = " : "", s.n_experts, model_rows(s),
           MODEL_MOST_ROWS);
    config_given(load, "model.n_layer")->faulty = 1;
}

void config_rules_of_shape(ConfigLoad *load) {
    ModelShape s = load->config->model.shape;
    rule_heads(load);
    rule_sizes(load);
    if (is_usable(load, KEYS("model.arch", "model.n_head", "model.n_embd", "model.head_dim"))) {
        if (block_kind(s)->has_experts) rules_of_experts(load, s);
        else rules_of_no_experts(load, s);
        rule_activation(load, s, block_kind(s));
        rules_of_unread(load, s, block_kind(s));
        rules_of_read(load, s, block_kind(s));
    }
    rule_parameters(load);
    rule_rows(load);
}

/* --- the batch and the ranks -------------------------------------------------------------------------------------- */

/* Checks that each context rank (which has a part of every sequence) has whole tiles of attention, of 128 tokens. */
static char *check_context(const Config *c) {
    int64_t unit = 128 * c->parallel.context, T = c->batch.seq_len;
    char    nearest[64];
    if (c->parallel.context == 1 || T % unit == 0) return NULL;
    return sentence("batch.seq_len = %" PRId64 " with parallel.context = %" PRId64 " must be a multiple of %" PRId64
                    ": %s", T, c->parallel.context, unit, nearest_multiples(nearest, T, unit, " or "));
}

/* Checks matrices that are neighbours in memory and read as one: q, k and v; gate and up. Each must fill a multiple of
 * LAYOUT_ALIGN elements, so that the next one follows without a gap. */
static char *check_neighbours(const Config *c) {
    ModelShape s = c->model.shape;
    int64_t    t = c->parallel.tensor, C = s.n_embd;
    uint64_t   keys = (uint64_t)(dim_size(DIM_KV, s) / t) * (uint64_t)C;
    uint64_t   inner = s.arch == ARCH_QWEN3_MOE ? 0 : (uint64_t)(dim_size(DIM_FC, s) / t) * (uint64_t)C;
    /* heads: model.n_embd must be a multiple of this number */
    int64_t    heads = s.head_dim ? 1 : 2 * s.n_head;
    int64_t    unit = heads / common_divisor(LAYOUT_ALIGN, heads) * LAYOUT_ALIGN;
    int        of_keys = keys % LAYOUT_ALIGN != 0;
    if (!block_kind(s)->joins_matrices || (keys % LAYOUT_ALIGN == 0 && inner % LAYOUT_ALIGN == 0)) return NULL;
    return sentence("model.n_embd = %" PRId64 " times the %s per tensor rank is %" PRIu64 ", which must be a multiple "
                    "of %d with model.arch = \"%s\": model.n_embd = %" PRId64, C, of_keys ? "columns of keys" :
                    "model.n_inner", of_keys ? keys : inner, LAYOUT_ALIGN, block_kind(s)->name, (C / unit + 1) * unit);
}

static char *check_tensor(const Config *c) {
    const struct { const char *key; int64_t size; } of[] = {
        {"model.n_head", c->model.shape.n_head},
        {"model.n_embd", c->model.shape.n_embd},
        {"model.n_kv_head", shape_kv_heads(c->model.shape)},
        {"model.n_inner", dim_size(DIM_FC, c->model.shape)},
        {"batch.seq_len / parallel.context", c->batch.seq_len / c->parallel.context}};
    int64_t t = c->parallel.tensor, all = 0;
    char    nearest[64];
    for (int i = 0; i < 5; i++) all = common_divisor(all, of[i].size);
    for (int i = 0; i < 5; i++)
        if (of[i].size % t)
            return sentence("parallel.tensor = %" PRId64 " must divide %s = %" PRId64 ": %s", t, of[i].key, of[i].size,
                            nearest_divisors(nearest, t, all));
    return check_neighbours(c);
}

/* Checks that each part of the pipeline has a layer. Returns NULL or a sentence such as "parallel.pipeline (4) x
 * interleave (4) = 16 parts of 12 layers: at most 12; interleave = 3 or pipeline = 3". */
static char *check_pipeline(const Config *c) {
    int64_t P = c->parallel.pipeline, V = c->parallel.interleave, L = c->model.shape.n_layer;
    char    cure[100];
    if (V > 1 && P == 1)
        return sentence("parallel.interleave = %" PRId64 " needs stages: parallel.pipeline = 2 or more, or "
                        "parallel.interleave = 1", V);
    if (P * V <= L) return NULL;
    if (V == 1 || P > L) snprintf(cure, sizeof cure, "pipeline = %" PRId64, V == 1 || L < V ? L : L / V);
    else if (L / V > 1) snprintf(cure, sizeof cure, "interleave = %" PRId64 " or pipeline = %" PRId64, L / P, L / V);
    /* pipeline = 1 is not proposed, because interleave needs at least two stages */
    else snprintf(cure, sizeof cure, "interleave = %" PRId64, L / P);
    return sentence("parallel.pipeline (%" PRId64 ") x interleave (%" PRId64 ") = %" PRId64 " parts of %" PRId64
                    " layer%s: at most %" PRId64 "; %s", P, V, P * V, L, plural(L), L, cure);
}

/* Rules about the size of an axis of the grid that hold for any number of ranks. */
static const struct { Keys keys; char *(*check)(const Config *); } AXIS_RULES[] = {
    {KEYS("parallel.context", "batch.seq_len"), check_context},
    {KEYS("parallel.tensor", "parallel.context", "model.n_head", "model.n_embd", "model.n_kv_head", "model.head_dim",
          "model.n_inner", "batch.seq_len"), check_tensor},
    {KEYS("parallel.pipeline", "parallel.interleave", "model.n_layer"), check_pipeline}};
enum { AXIS_RULE_COUNT = sizeof AXIS_RULES / sizeof *AXIS_RULES };

static char *check_axes(const Config *c) {
    char *text = NULL;
    for (int i = 0; i < AXIS_RULE_COUNT && !text; i++) text = AXIS_RULES[i].check(c);
    return text;
}

/* Returns 1 if an axis of this size can divide the model, for any number of ranks. */
static int divides_model(const Config *c, int axis, int64_t size) {
    Config   other = *c;
    int64_t *sizes[] = {&other.parallel.tensor, &other.parallel.context, &other.parallel.pipeline,
                        &other.parallel.replicas};
    *sizes[axis] = size;
    char *fault = check_axes(&other);
    free(fault);
    return !fault;
}

/* Writes the nearest sizes of an axis that give whole grids, such as ", or tensor = 2 or 4". Writes "" if there are
 * none. */
static void other_sizes(char out[100], const Config *c, int axis, const char *name, int64_t size, int64_t of) {
    int64_t below = size < of ? size - 1 : of, above = size + 1;
    while (below > 0 && (of % below || !divides_model(c, axis, below))) below--;
    while (above <= of && (of % above || !divides_model(c, axis, above))) above++;
    int is_above = above <= of;
    if (below > 0 && is_above) snprintf(out, 100, ", or %s = %" PRId64 " or %" PRId64, name, below, above);
    else if (below > 0 || is_above) snprintf(out, 100, ", or %s = %" PRId64, name, is_above ? above : below);
}

/* Checks parallel.expert. It must divide the number of ranks that share one state and compute different micro-batches.
 * shared: number of ranks that compute one micro-batch together. */
static char *check_expert_ranks(const Config *c, int ranks, int64_t shared) {
    int64_t e = c->parallel.expert, shards = ranks / shared;
    char    nearest[64];
    if (shards % e == 0) return NULL;
    if (shards == 1)
        return sentence("parallel.expert = %" PRId64 " divides the experts among ranks that share the state, and there "
                        "is one: mpirun -np %" PRId64 ", or parallel.expert = 1", e, ranks * e);
    return sentence("parallel.expert = %" PRId64 " must divide the %" PRId64 " ranks that share the state: "
                    "parallel.expert = %s", e, shards,
                    nearest_divisors(nearest, e, common_divisor(shards, c->model.shape.n_experts)));
}

static const char *const GRID_KEYS[] = {"parallel.tensor", "parallel.context", "parallel.pipeline", "parallel.replicas",
                                        "parallel.expert", "moe.experts", NULL};

/* Checks that the grid divides the ranks. ranks 0: their number is not known. Returns NULL or a sentence such as "8
 * ranks are no multiple of parallel.tensor (3) x context (1) x pipeline (1): start 6 or 9 ranks, or tensor = 2 or
 * 4". */
static char *check_grid(const Config *c, int ranks) {
    const struct { const char *key; int64_t size; } axis[] = {
        {"tensor", c->parallel.tensor}, {"context", c->parallel.context}, {"pipeline", c->parallel.pipeline},
        {"replicas", c->parallel.replicas}};
    int     splits_model = axis[0].size * axis[1].size * axis[2].size > 1, used = 0, first = -1;
    int64_t product = 1;
    char    names[200], other[100] = "";
    for (int i = 0; i < 4; i++) {
        product *= axis[i].size;
        if (i < 3 ? !splits_model : axis[i].size == 1) continue;
        used += snprintf(names + used, sizeof names - (size_t)used, "%s%s (%" PRId64 ")", used ? " x " : "parallel.",
                         axis[i].key, axis[i].size);
        if (first < 0 && axis[i].size > 1) first = i;
    }
    if (ranks <= 0) return NULL;
    if (ranks % product == 0) return check_expert_ranks(c, ranks, product);
    int64_t rest = product / axis[first].size, below = ranks - ranks % product, start = below > 0 ? below : product;
    if (ranks % rest == 0 && ranks > rest)
        other_sizes(other, c, first, axis[first].key, axis[first].size, ranks / rest);
    return sentence("%d rank%s no multiple of %s: start %" PRId64 " or %" PRId64 " ranks%s", ranks,
                    ranks == 1 ? " is" : "s are", names, start, start + product, other);
}

/* Writes "; or start N ranks". N is the most ranks, fewer than `ranks`, that divide batch.global_tokens. Writes nothing
 * if there are none. */
static char *fewer_ranks(char out[64], const Config *c, int ranks) {
    int     grid = (int)(c->parallel.tensor * c->parallel.context * c->parallel.pipeline);
    int64_t samples = c->batch.global_tokens / c->batch.seq_len;
    int64_t group = c->parallel.interleave > 1 ? c->parallel.pipeline : 1;
    *out = 0;
    if (c->batch.global_tokens % c->batch.seq_len) return out;
    for (int datas = ranks / grid - 1; datas > 0 && !*out; datas--) {
        int64_t each = c->batch.micro_batch * datas;
        if (samples % each == 0 && samples / each % group == 0 && datas % c->parallel.replicas == 0)
            snprintf(out, 64, "; or start %d rank%s", datas * grid, plural(datas * grid));
    }
    return out;
}

/* Checks that whole micro-batches make a step. Interleaved stages need a multiple of parallel.pipeline
 * micro-batches. */
static char *check_batch(const Config *c, int ranks) {
    int64_t unit, total = c->batch.global_tokens, P = c->parallel.pipeline;
    char    product[200], text[64];
    int     used = snprintf(product, sizeof product, "batch.micro_batch (%" PRId64 ") x batch.seq_len (%" PRId64 ")",
                            c->batch.micro_batch, c->batch.seq_len);
    int     datas = ranks > 0 ? config_datas(c, ranks) : 1;
    if (ranks > 0)
        snprintf(product + used, sizeof product - (size_t)used,
                 datas == ranks ? " x ranks (%d)" : " x ranks / (tensor x context x pipeline) (%d)", datas);
    if (!multiply(&unit, 3, (int64_t[]){c->batch.micro_batch, c->batch.seq_len, datas}))
        return sentence("%s does not fit in 64 bits", product);
    if (total % unit) {
        int64_t step = c->parallel.interleave > 1 && unit <= INT64_MAX / P ? unit * P : unit;
        int64_t below = total - total % step, first = below > 0 ? below : step;
        return sentence("batch.global_tokens = %" PRId64 " is %s %s = %" PRId64 "%s; nearest valid values: %" PRId64 " "
                        "and %" PRId64 "%s", total, total > unit ? "no multiple of" : "less than", product, unit,
                        total > unit ? "" : "; it must be a multiple of that", first, first + step,
                        fewer_ranks(text, c, ranks));
    }
    if (c->parallel.interleave == 1 || ranks <= 0 || total % (unit * P) == 0) return NULL;
    return sentence("%" PRId64 " micro-batches a step with interleave = %" PRId64 " must be a multiple of pipeline = "
                    "%" PRId64 ": global_tokens = %s", total / unit, c->parallel.interleave, P,
                    nearest_multiples(text, total, unit * P, " or "));
}

char *config_check_ranks(const Config *c, int ranks) {
    char *text = check_grid(c, ranks);
    return text ? text : check_batch(c, ranks);
}

static void rules_of_ranks(ConfigLoad *load, int ranks) {
    const char *const batch[] = {"batch.global_tokens", "batch.micro_batch", "batch.seq_len", NULL};
    for (int i = 0; i < AXIS_RULE_COUNT; i++)
        if (is_usable(load, AXIS_RULES[i].keys)) add_fault(load, AXIS_RULES[i].keys, AXIS_RULES[i].check(load->config));
    if (!is_usable(load, GRID_KEYS)) return;
    char *unequal = check_grid(load->config, ranks);
    if (!unequal && is_usable(load, batch)) add_fault(load, batch, check_batch(load->config, ranks));
    add_fault(load, GRID_KEYS, unequal);
}

static void rule_seq_len(ConfigLoad *load) {
    const Config     *c = load->config;
    const char *const keys[] = {"batch.seq_len", "model.n_positions", NULL};
    if (!is_usable(load, keys) || c->batch.seq_len <= c->model.shape.n_positions) return;
    REFUSE(load, keys, "batch.seq_len = %" PRId64 " must be at most model.n_positions = %" PRId64, c->batch.seq_len,
           c->model.shape.n_positions);
    config_given(load, "batch.seq_len")->faulty = 1;
}

/* Refuses runs whose count of tokens may overflow. A resumed run adds the tokens of its steps to those of a checkpoint,
 * which are at most MANIFEST_COUNT_LIMIT. The sum must fit in 64 bits. */
static void rule_tokens(ConfigLoad *load) {
    const Config     *c = load->config;
    const char *const keys[] = {"run.steps", "batch.global_tokens", NULL};
    int64_t           tokens;
    if (!is_usable(load, keys) ||
        (multiply(&tokens, 2, (int64_t[]){c->run.steps, c->batch.global_tokens}) && tokens <= INT64_MAX / 2))
        return;
    REFUSE(load, keys, "run.steps = %" PRId64 " x batch.global_tokens = %" PRId64 " is not below 2^62: lower run.steps",
           c->run.steps, c->batch.global_tokens);
}

static void rule_activations(ConfigLoad *load) {
    const Config     *c = load->config;
    const char *const keys[] = {"batch.micro_batch", "batch.seq_len", "model.n_embd", "model.n_layer",
                                "model.vocab_size", "model.n_inner", "model.head_dim", "model.n_head", NULL};
    if (!is_usable(load, keys)) return;
    ModelShape s = c->model.shape;
    int64_t    bytes, B = c->batch.micro_batch, T = c->batch.seq_len, width = dim_size(DIM_Q, s);
    if (width < s.n_embd) width = s.n_embd;
    if (width < s.n_inner) width = s.n_inner;
    if (s.arch == ARCH_QWEN3_MOE) width = (width < s.n_expert_inner ? s.n_expert_inner : width) * s.top_k;
    /* 128 bytes per token, channel and block are twice the floats that fp32 keeps for backward */
    if (multiply(&bytes, 5, (int64_t[]){B, T, width, s.n_layer, 128}) &&
        multiply(&bytes, 4, (int64_t[]){B, T, s.vocab_size, 8}))
        return;
    REFUSE(load, keys,
           "activations of batch.micro_batch = %" PRId64 " x batch.seq_len = %" PRId64 " do not fit in 64 "
           "bits of address with model.n_embd = %" PRId64 ", model.n_layer = %" PRId64 ", model.vocab_size = %" PRId64
           ": lower batch.micro_batch",
           B, T, s.n_embd, s.n_layer, s.vocab_size);
}

/* --- settings that do not go together ----------------------------------------------------------------------------- */

typedef struct {
    /* keys of two settings that exclude each other; the rule is skipped if one is faulty; with may be NULL */
    const char *key, *with;
    int         when;       /* 1 if the config has both of the settings that exclude each other, so that a fault is
                             * reported */
    const char *says;       /* message: why the settings exclude each other, and what to set; may print `value` */
    int64_t     value;
    int         is_of_grid; /* 1 if a change of parallel.* or memory.* can cause the conflict (config_check_changed) */
} Pair;

#define ORDER_ROW(axis, cure)                                                                                          \
    {"parallel." #axis, "parallel.deterministic", c->parallel.deterministic && c->parallel.axis > 1,                   \
     "parallel.deterministic = true adds gradients in one order, with parallel." #axis " = %" PRId64                   \
     " it cannot: " cure, c->parallel.axis, 1}
#define EQUALLY "its ranks exchange in every micro-batch, and need equally many: "
#define GRADIENTS " with outer.send = \"gradients\", which has one of every step: "

/* Adds a fault for each pair of settings that exclude each other. Without `load` it returns the first pair that a
 * change of the grid can cause, as a text from malloc, or NULL. */
static char *check_pairs(const Config *c, ConfigLoad *load) {
    int has_server = c->outer.server && *c->outer.server, gradients = c->outer.send == SEND_GRADIENTS;
    int is_muon = c->optimizer.name && !strcmp(c->optimizer.name, OPTIMIZER_MUON.name), even = c->parallel.balance;
    int has_experts = c->model.shape.arch == ARCH_QWEN3_MOE, balance = c->model.shape.balance;
    int fp8 = c->precision == PRECISION_FP8;
    int is_expert = has_experts && c->parallel.expert > 1 && c->model.shape.n_experts;
    int on_cpu = load && !load->is_elsewhere && !strcmp(device_backend(), "cpu");
    const Pair pairs[] = {
        /* Settings that parallel.deterministic excludes, because they change the order of sums. A pipeline without
         * interleave keeps the order. */
        ORDER_ROW(tensor, "parallel.tensor = 1"),
        ORDER_ROW(context, "parallel.context = 1"),
        ORDER_ROW(interleave, "parallel.interleave = 1"),
        ORDER_ROW(expert, "parallel.expert = 1"),
        ORDER_ROW(replicas, "parallel.replicas = 1"),
        ORDER_ROW(zero_stage, "at most 1"),
        /* Settings that parallel.balance (uneven shares of micro-batches) excludes. Uneven shares change the order of
         * sums. Ranks that gather weights in every micro-batch need equally many micro-batches. */
        {"parallel.balance", "parallel.deterministic", even && c->parallel.deterministic,
         "parallel.balance = true changes the order of sums, which parallel.deterministic = true keeps: set one of "
         "them to false", .is_of_grid = 1},
        {"parallel.balance", "parallel.zero_stage", even && c->parallel.zero_stage > 1,
         "parallel.balance = true with parallel.zero_stage = %" PRId64 ": " EQUALLY "at most 1",
         c->parallel.zero_stage, 1},
        {"parallel.balance", "parallel.expert", even && c->parallel.expert > 1,
         "parallel.balance = true with parallel.expert = %" PRId64 ": " EQUALLY "parallel.expert = 1",
         c->parallel.expert, 1},
        {"parallel.balance", "parallel.pipeline", even && c->parallel.pipeline > 1,
         "parallel.balance = true with parallel.pipeline = %" PRId64 ": stages are given their share by their layers: "
         "parallel.pipeline = 1", c->parallel.pipeline, 1},
        /* Settings that Muon excludes. It updates whole matrices on the device that computes the products. */
        {"optimizer.name", "memory.offload", is_muon && c->memory.offload == MEMORY_HOST,
         "optimizer.name = \"muon\" updates where the products run, with memory.offload = \"optimizer\" it cannot: "
         "memory.offload = \"none\", or optimizer.name = \"adamw\"", .is_of_grid = 1},
        {"optimizer.name", "outer.send", is_muon && has_server && gradients,
         "optimizer.name = \"muon\" with outer.send = \"gradients\": a server updates with AdamW alone: outer.send = "
         "\"deltas\", or optimizer.name = \"adamw\"", .is_of_grid = 1},
        /* Settings that a model with experts excludes. */
        {"parallel.tensor", "model.arch", has_experts && c->parallel.tensor > 1,
         "parallel.tensor = %" PRId64 ": no matrix of an expert is divided (model.arch = \"qwen3-moe\"); "
         "parallel.tensor = 1, and parallel.zero_stage = 3 divides weights, parallel.expert the experts",
         c->parallel.tensor, 1},
        {"parallel.zero_stage", NULL, is_expert && c->parallel.zero_stage == 0,
         "parallel.zero_stage = 0 with parallel.expert = %" PRId64 ": no rank has all experts to update; "
         "parallel.zero_stage = 1", c->parallel.expert},
        {"parallel.expert", "outer.server", is_expert && has_server,
         "parallel.expert = %" PRId64 " with outer.server: an island's ranks send rounds of whole blocks; "
         "parallel.expert = 1", c->parallel.expert},
        {"moe.balance", "parallel.context", has_experts && c->parallel.context > 1 && balance == BALANCE_SWITCH,
         "moe.balance = \"switch\" is a loss of whole sequences, which parallel.context = %" PRId64 " divides: "
         "moe.balance = \"bias\" or \"none\"", c->parallel.context},
        {"moe.balance", "outer.send", has_experts && has_server && gradients && balance == BALANCE_BIAS,
         "moe.balance = \"bias\": with outer.send = \"gradients\" no island sees all assignments; moe.balance = "
         "\"switch\" or \"none\", or outer.send = \"deltas\""},
        /* Settings for which this build has no kernels. */
        {"precision", NULL, on_cpu && c->precision == PRECISION_TF32,
         "precision \"tf32\" needs a GPU, and this is the CPU build: \"auto\", \"fp32\" or \"bf16\""},
        {"precision", NULL, on_cpu && c->precision == PRECISION_FP16,
         "precision \"fp16\" needs a GPU, and this is the CPU build: \"auto\", \"fp32\" or \"bf16\""},
        {"parallel.comm", NULL, on_cpu && c->parallel.comm == PARALLEL_NCCL,
         "parallel.comm \"nccl\" needs the CUDA build; this one has \"auto\", \"ring\" or \"mpi\""},
        /* Settings that outer.send = "gradients" excludes. With it a job sends the gradient of every step to the
         * server. */
        {"outer.every", "outer.send", gradients && c->outer.every > 1, "outer.every above 1" GRADIENTS "1"},
        {"run.on_nonfinite", "outer.send", gradients && c->run.on_nonfinite == ON_TROUBLE_SKIP,
         "run.on_nonfinite \"skip\"" GRADIENTS "\"stop\""},
        {"run.on_spike", "outer.send", gradients && c->run.on_spike == ON_TROUBLE_SKIP,
         "run.on_spike \"skip\"" GRADIENTS "\"warn\" or \"stop\""},
        {"precision", "outer.send", gradients && c->precision == PRECISION_FP16,
         "precision \"fp16\", which leaves steps out," GRADIENTS "\"bf16\""},
        /* Settings that islands (jobs with outer.server) exclude. */
        {"run.on_nonfinite", NULL, has_server && c->run.on_nonfinite == ON_TROUBLE_ROLLBACK,
         "run.on_nonfinite \"rollback\" with outer.server is not built yet: \"stop\" or \"skip\""},
        {"run.on_spike", NULL, has_server && c->run.on_spike == ON_TROUBLE_ROLLBACK,
         "run.on_spike \"rollback\" with outer.server is not built yet: \"warn\", \"stop\" or \"skip\""},
        /* Settings that precision fp8 excludes. */
        {"precision", "model.arch", fp8 && has_experts,
         "precision \"fp8\" is not built for model.arch = \"qwen3-moe\", whose experts' products have no kernel in it: "
         "\"bf16\""},
        {"precision", "outer.server", fp8 && has_server,
         "precision \"fp8\" is not built for outer.server: islands would each have scales of their own: \"bf16\""},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const Pair *p = &pairs[i];
        if (!p->when || (load ? !is_usable(load, KEYS(p->key, p->with)) : !p->is_of_grid)) continue;
        char *text = sentence(p->says, p->value);
        if (!load) return text;
        add_fault(load, KEYS(p->key, p->with), text);
    }
    return NULL;
}

char *config_check_changed(const Config *c, int ranks) {
    char *text = check_pairs(c, NULL);
    if (!text) text = check_axes(c);
    return text ? text : config_check_ranks(c, ranks);
}

/* --- keys of one section ------------------------------------------------------------------------------------------ */

/* Refuses a key of the Muon optimizer that differs from its default, if the optimizer is another. */
static void rule_unread(ConfigLoad *load, const char *key) {
    const char   *name = load->config->optimizer.name;
    const Option *o = option_find(key);
    if (!is_usable(load, KEYS(key, "optimizer.name")) || !strcmp(name, OPTIMIZER_MUON.name)) return;
    cJSON *value = option_to_json(o, load->config), *usual = cJSON_Parse(o->fallback);
    char  *shown = cJSON_PrintUnformatted(value);
    if (!config_same_value(value, usual))
        REFUSE(load, KEYS(key, "optimizer.name"), "%s = %s with optimizer.name = \"%s\", which does not read it: leave "
               "it out (%s), or optimizer.name = \"%s\"", key, shown, name, o->fallback, OPTIMIZER_MUON.name);
    cJSON_Delete(value), cJSON_Delete(usual), free(shown);
}

/* Checks that both dimensions of the four matrices of a block, per tensor rank, are allowed for products in fp8. */
static void rule_fp8_widths(ConfigLoad *load) {
    enum { MULTIPLE = 16 }; /* both dimensions of a matrix must be multiples of it, for cuBLASLt */
    const char *const keys[] = {"model.n_embd", "model.n_inner", "model.n_head", "model.head_dim", "model.n_kv_head",
                                "parallel.tensor", "precision", NULL};
    ModelShape        s = load->config->model.shape;
    int64_t           tensor = load->config->parallel.tensor;
    if (load->config->precision != PRECISION_FP8 || !is_usable(load, keys) || s.n_head < 1 ||
        (!s.head_dim && s.n_embd % s.n_head))
        return;
    const struct { const char *what; int64_t all, ranks; } width[] = {
        {"model.n_embd", s.n_embd, 1}, {"the width of the queries, heads x channels,", dim_size(DIM_Q, s), tensor},
        {"the width of queries, keys and values together", dim_size(DIM_QKV, s), tensor},
        {s.n_inner ? "model.n_inner" : "the MLP's width, 4 x model.n_embd,", dim_size(DIM_FC, s), tensor}};
    for (size_t i = 0; i < sizeof width / sizeof *width; i++) {
        char of[64] = "";
        if (width[i].all % width[i].ranks || width[i].all / width[i].ranks % MULTIPLE == 0) continue;
        if (width[i].ranks > 1) snprintf(of, sizeof of, " over parallel.tensor = %" PRId64, width[i].ranks);
        REFUSE(load, keys, "precision \"fp8\" multiplies matrices whose sides are multiples of %d, and %s%s is %" PRId64
               ": another width, or \"bf16\"", MULTIPLE, width[i].what, of, width[i].all / width[i].ranks);
        return;
    }
}

/* Returns 1 for text [bytes] of the form "host:port", with a port from 1 to 65535. A host may be "[::1]". */
static int is_host_port(const char *text, size_t bytes) {
    const char *colon = memrchr(text, ':', bytes);
    char       *end;
    if (!colon || colon == text || colon[1] < '0' || colon[1] > '9') return 0;
    long port = strtol(colon + 1, &end, 10);
    for (const char *c = text; c < colon; c++)
        if (*c <= ' ' || (*c == ':' && *text != '[')) return 0;
    return end == text + bytes && port >= 1 && port <= 65535;
}

/* Checks the addresses of the servers in outer.server, and that a run with them ends with a whole round (outer.every
 * steps). */
static void rules_of_islands(ConfigLoad *load) {
    const Config     *c = load->config;
    const char *const rounds[] = {"outer.every", "outer.server", "run.steps", NULL};
    const char       *text = c->outer.server;
    char              shown[SHOWN_BYTES], values[64];
    for (size_t bytes; *text && is_usable(load, KEYS("outer.server")); text += bytes + (text[bytes] == ',')) {
        bytes = strcspn(text, ",");
        if (is_host_port(text, bytes) && strcmp(text + bytes, ",")) continue;
        REFUSE(load, KEYS("outer.server"), "outer.server must be host:port, or several separated by commas, not the "
               "string %s", json_quote_short(shown, sizeof shown, c->outer.server));
        break;
    }
    if (is_usable(load, rounds) && *c->outer.server && c->run.steps % c->outer.every)
        REFUSE(load, rounds, "run.steps = %" PRId64 " must be a multiple of outer.every = %" PRId64 "; nearest valid "
               "run.steps: %s", c->run.steps, c->outer.every,
               nearest_multiples(values, c->run.steps, c->outer.every, " and "));
}

/* Checks that milestones (keep_every) and the best checkpoint are saved at all, and that the best one can be known from
 * evaluations. */
static void rules_of_checkpoints(ConfigLoad *load) {
    const Config     *c = load->config;
    const char *const kept[] = {"checkpoint.keep_every", "checkpoint.every", NULL};
    const char *const best[] = {"checkpoint.keep_best", "eval.every", "checkpoint.every", "data.val", NULL};
    int64_t           N = c->checkpoint.keep_every, every = c->checkpoint.every;
    char              values[64];
    if (is_usable(load, kept) && N && every == 0)
        REFUSE(load, kept, "checkpoint.keep_every = %" PRId64 " has nothing to keep: checkpoint.every = 0 saves at the "
               "end alone", N);
    else if (is_usable(load, kept) && N && N % every)
        REFUSE(load, kept, "checkpoint.keep_every = %" PRId64 " must be a multiple of checkpoint.every = %" PRId64 "; "
               "nearest valid values: %s", N, every, nearest_multiples(values, N, every, " and "));
    if (!is_usable(load, best) || !c->checkpoint.keep_best) return;
    if (c->data.val.count == 0 || c->eval.every == 0)
        REFUSE(load, best, "checkpoint.keep_best needs validation losses: %s",
               c->eval.every == 0 ? "set eval.every above 0" : "set data.val");
    else if (every % c->eval.every)
        REFUSE(load, best, "checkpoint.keep_best needs an evaluation at each checkpoint: checkpoint.every = %" PRId64
               " must be a multiple of eval.every = %" PRId64 "; nearest valid values: %s", every, c->eval.every,
               nearest_multiples(values, every, c->eval.every, " and "));
}

static void rule_allow_change(ConfigLoad *load) {
    const StringList *list = &load->config->run.allow_change;
    for (int i = 0; i < list->count && is_usable(load, KEYS("run.allow_change")); i++) {
        const char *name = list->item[i];
        char        typed[SHOWN_BYTES];
        if (!option_find(name) && !option_is_section(name))
            REFUSE(load, KEYS("run.allow_change"), "run.allow_change names keys or sections of this config, and the "
                   "string %s is neither; the nearest key is \"%s\"", json_quote_short(typed, sizeof typed, name),
                   nearest_key(name, NEAREST_OPTION).word);
    }
}

/* --- names of files and folders ----------------------------------------------------------------------------------- */

/* Returns the first text in a path that a shell would have replaced, ~ at its beginning or $NAME, or NULL if there is
 * none. */
static const char *shell_part(const char *path) {
    if (*path == '~') return path;
    for (const char *c = strchr(path, '$'); c; c = strchr(c + 1, '$'))
        if (c[1] == '{' || c[1] == '_' || (c[1] >= 'A' && c[1] <= 'Z') || (c[1] >= 'a' && c[1] <= 'z')) return c;
    return NULL;
}

/* Refuses a path with text that a shell should have replaced, unless a file or folder with this name exists. */
static void rule_path(ConfigLoad *load, const char *key, const char *path) {
    char        typed[SHOWN_BYTES], begin[4096];
    const char *part = path ? shell_part(path) : NULL;
    /* bytes of the path up to the end of the name that contains ~ or $NAME */
    int         bytes = part ? (int)(part - path) + (int)strcspn(part, "/") : 0;
    if (!part || !is_usable(load, KEYS(key))) return;
    if (snprintf(begin, sizeof begin, "%.*s", bytes, path) < (int)sizeof begin && access(begin, F_OK) == 0) return;
    REFUSE(load, KEYS(key), "%s is %s, and only a shell expands %s, outside of quotes: write the whole path%s", key,
           json_quote_short(typed, sizeof typed, path), *part == '~' ? "~" : "$NAME",
           *part == '~' ? ", or ./~ for a name that begins so" : "");
}

static void rules_of_paths(ConfigLoad *load) {
    const Config *c = load->config;
    const struct { const char *key, *path; } paths[] = {
        {"run.dir", config_given(load, "run.dir")->given ? c->run.dir : NULL}, {"model.init_from", c->model.init_from},
        {"data.tokenizer", c->data.tokenizer}, {"outer.key", c->outer.key},
        {"checkpoint.memory_dir", c->checkpoint.memory_dir}};
    const struct { const char *key; const StringList *list; } lists[] = {
        {"data.train", &c->data.train}, {"data.val", &c->data.val}, {"eval.tasks", &c->eval.tasks}};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) rule_path(load, paths[i].key, paths[i].path);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        for (int k = 0; k < lists[i].list->count; k++) rule_path(load, lists[i].key, lists[i].list->item[k]);
    if (!c->run.dir || !is_usable(load, KEYS("run.dir"))) return;
    if (*c->run.dir && c->run.dir[strspn(c->run.dir, "/")] == 0)
        REFUSE(load, KEYS("run.dir"), "run.dir is the root of the file system: name a folder for this run alone, as "
               "runs/mine");
    if (strchr(c->run.dir, '\n') && access(c->run.dir, F_OK) != 0)
        REFUSE(load, KEYS("run.dir"), "run.dir holds a newline, which scripts that read a line at a time cut: write it "
               "without");
}

void config_rules(ConfigLoad *load, int ranks) {
    const StringList *train = &load->config->data.train;
    OptionFault       fault;
    rule_allow_change(load);
    rules_of_paths(load);
    if (is_usable(load, KEYS("data.train")) && train->share && !sources_check("data.train", train, &fault))
        REFUSE(load, KEYS("data.train"), "%s", fault.text);
    config_rules_of_shape(load);
    rule_seq_len(load);
    rules_of_ranks(load, ranks);
    rule_tokens(load);
    rules_of_checkpoints(load);
    rule_activations(load);
    rule_unread(load, "optimizer.muon_momentum");
    rule_unread(load, "optimizer.newton_schulz");
    rule_unread(load, "optimizer.normuon");
    rules_of_islands(load);
    check_pairs(load->config, load);
    rule_fp8_widths(load);
}
