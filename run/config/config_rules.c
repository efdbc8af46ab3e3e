/* config_rules.c - the rules between options: sizes of the model, the batch and its ranks, settings that exclude each
 * other, names of files. A rule that needs a faulty option is skipped, so that one cause has one message. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/device.h"
#include "core/error.h"
#include "core/io.h"
#include "core/json.h"
#include "model/block.h"
#include "model/params.h"
#include "model/precision.h"
#include "run/config/config_load.h"
#include "run/config/spec.h"

/* The keys that a rule needs. add_fault() reports a fault at the first of them that is set. Ends with NULL. */
typedef const char *const *Keys;
#define KEYS(...) ((const char *const[]){__VA_ARGS__, NULL})

static int is_usable(ConfigLoad *load, Keys keys) {
    for (int i = 0; keys[i]; i++)
        if (config_given(load, keys[i])->faulty) return 0;
    return 1;
}

/* Returns a copy of the text, malloc'ed, in which a key in braces is replaced by the key and its value: "{run.steps} is
 * too large" becomes "run.steps = 600 is too large". The value must be a number, a flag or one of the words of the
 * option. */
static char *with_values(const Config *c, const char *text) {
    char   key[64], *filled;
    size_t bytes;
    FILE  *out = memory_file_open(&filled, &bytes);
    while (*text) {
        size_t plain = strcspn(text, "{");
        fwrite(text, 1, plain, out);
        text += plain;
        if (!*text) break;
        int length = (int)strcspn(text, "}") - 1;
        snprintf(key, sizeof key, "%.*s", length, text + 1);
        cJSON *value = option_to_json(option_find(key), c);
        char  *shown = cJSON_PrintUnformatted(value);
        fprintf(out, "%s = %s", key, shown);
        free(shown);
        cJSON_Delete(value);
        text += length + 2;
    }
    fclose(out);
    return filled;
}

/* Returns a text as asprintf(3) would write it, malloc'ed. A key in braces in the format,
 * such as {model.n_embd}, is replaced by the key and its value. */
static char *sentence(const Config *c, const char *fmt, ...) PRINTF_LIKE(2, 3);
static char *sentence(const Config *c, const char *fmt, ...) {
    char   *filled = with_values(c, fmt), *text;
    va_list args;
    va_start(args, fmt);
    if (vasprintf(&text, filled, args) < 0) fail(EXIT_MEMORY, "no memory for a message about the config; free memory "
                                                 "on this host");
    va_end(args);
    free(filled);
    return text;
}

/* Adds a fault and frees its text. text NULL: there is no fault. The place of the fault is the first of `keys` that an
 * override sets, otherwise the first of them in the file, otherwise the file. */
static void add_fault(ConfigLoad *load, Keys keys, char *text) {
    const Given none = {0, 0, load->file}, *best = &none;
    for (int i = 0; keys[i]; i++) {
        const Given *given = config_given(load, keys[i]);
        if (given->given && (best == &none || (given->where.override && !best->where.override))) best = given;
    }
    if (text) faults_add(&load->faults, best->where, "%s", text);
    free(text);
}
#define REFUSE(load, keys, ...) add_fault(load, keys, sentence((load)->config, __VA_ARGS__))

/* A rule: the keys that it needs, and a function that returns what is wrong, malloc'ed, or NULL. After a fault, later
 * rules skip the key `spoils`; NULL: none. */
typedef struct { Keys keys; char *(*check)(const Config *c); const char *spoils; } Rule;

static void apply(ConfigLoad *load, const Rule *rule, size_t rules) {
    for (; rules-- > 0; rule++) {
        char *text = is_usable(load, rule->keys) ? rule->check(load->config) : NULL;
        if (text && rule->spoils) config_given(load, rule->spoils)->faulty = 1;
        add_fault(load, rule->keys, text);
    }
}
#define APPLY(load, table) apply(load, table, sizeof(table) / sizeof *(table))

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
    if (below) snprintf(out, 64, "%lld%s%lld", (long long)below, joined, (long long)(below + of));
    else       snprintf(out, 64, "%lld", (long long)of);
    return out;
}

/* Returns the largest divisor of `of` that is at most value, or 1. */
static int64_t divisor_below(int64_t value, int64_t of) {
    int64_t below = larger_of(1, smaller_of(value, of));
    while (of % below) below--;
    return below;
}

/* Writes the divisors of `of` that are nearest to value from below and above, such as "4 or 6". Writes only one if
 * there is no other. Returns out. */
static const char *nearest_divisors(char out[64], int64_t value, int64_t of) {
    long long below = divisor_below(value, of), above = value;
    while (above < of && of % above) above++;
    if (above >= of && of % above) snprintf(out, 64, "%lld", below);
    else                           snprintf(out, 64, "%lld or %lld", below, above);
    return out;
}

/* --- the shape of the model --------------------------------------------------------------------------------------- */

static char *check_heads(const Config *c) {
    ModelShape s = c->model.shape;
    if (s.head_dim || s.n_embd % s.n_head == 0) return NULL;
    int64_t below = larger_of(s.n_head, s.n_embd - s.n_embd % s.n_head);
    return sentence(c, "{model.n_embd} must be a multiple of {model.n_head}; nearest valid widths: %lld and %lld",
                    (long long)below, (long long)(below + s.n_head));
}

static char *check_head_size(const Config *c) {
    ModelShape s = c->model.shape;
    if (shape_head_dim(s) <= 128 || !strcmp(device_backend(), "cpu")) return NULL;
    return sentence(c, "heads of %s = %lld channels: more than 128 run on the CPU only (make BACKEND=cpu)",
                    s.head_dim ? "model.head_dim" : "model.n_embd / model.n_head", (long long)shape_head_dim(s));
}

/* Refuses queries, keys and values that together have 2^31 columns or more. */
static char *check_columns(const Config *c) {
    ModelShape s = c->model.shape;
    if (shape_head_dim(s) <= INT32_MAX / (s.n_head + 2 * shape_kv_heads(s))) return NULL;
    return sentence(c, "{model.n_head} and 2 x %lld heads of keys and values, each of %lld channels (model.head_dim, "
                    "or model.n_embd / model.n_head), are more than 2^31 columns: make one of them smaller",
                    (long long)shape_kv_heads(s), (long long)shape_head_dim(s));
}

/* Refuses an MLP whose gate and up matrices together have 2^31 columns or more. */
static char *check_inner(const Config *c) {
    if (c->model.shape.n_inner <= INT32_MAX / 2) return NULL;
    return sentence(c, "{model.n_inner} must be at most %d", INT32_MAX / 2);
}

/* Refuses an activation that the kind of model does not have. */
static char *check_activation(const Config *c) {
    ModelShape       s = c->model.shape;
    const BlockKind *kind = block_kind(s);
    char             words[200] = "";
    if (s.activation == (int)kind->activation || kind->activations >> s.activation & 1) return NULL;
    for (int i = 0, used = 0; i < ACTIVATION_COUNT; i++)
        if (i == (int)kind->activation || kind->activations >> i & 1)
            used += snprintf(words + used, sizeof words - (size_t)used, "%s\"%s\"", used ? ", " : "",
                             ACTIVATION_NAMES[i]);
    return sentence(c, "{model.activation}: {model.arch} has %s; leave it out, or model.arch = \"gpt2\"", words);
}

#define NOT_LLAMA "leave it out, or model.arch = \"llama\""
#define NO_EXPERTS ": {model.arch} has no experts; leave it out, or model.arch = \"qwen3-moe\""

/* Checks the keys that belong to a kind of model (model.arch). After a fault of a key, later rules skip that key. */
static void rules_of_kind(ConfigLoad *load) {
    ModelShape       s = load->config->model.shape;
    const BlockKind *kind = block_kind(s);
    int64_t          expert = load->config->parallel.expert;
    /* The gate and up matrices of an expert are read as one matrix. So each must fill a multiple of LAYOUT_ALIGN
     * elements, and moe.n_inner must be a multiple of this unit. */
    int64_t    unit = LAYOUT_ALIGN / common_divisor(LAYOUT_ALIGN, s.n_embd);
    int        reads = kind->keys, has_experts = kind->traits & HAS_EXPERTS, has_rope = kind->has_rope;
    int        scales = has_rope && s.rope_factor != 0.0, base = s.mup_base_head_dim != 0;
    const struct { const char *key; int when; const char *says; int64_t value[2]; } rules[] = {
        /* Rules for the keys of experts: kinds of model with experts need them, other kinds refuse them. */
        {"moe.experts", has_experts && !s.n_experts,
         "missing key \"moe.experts\": experts of a block, which {model.arch} needs"},
        {"moe.top_k", has_experts && !s.top_k,
         "missing key \"moe.top_k\": experts of a token, which {model.arch} needs"},
        {"moe.n_inner", has_experts && !s.n_expert_inner,
         "missing key \"moe.n_inner\": width of an expert's MLP, which {model.arch} needs"},
        {"moe.top_k", has_experts && s.n_experts && s.top_k > s.n_experts,
         "{moe.top_k} is more than {moe.experts}: at most %lld", {s.n_experts}},
        {"model.n_inner", has_experts && s.n_inner,
         "{model.n_inner}: the MLPs of {model.arch} are those of experts, of width moe.n_inner; leave it out"},
        {"moe.n_inner", has_experts && s.n_expert_inner % unit,
         "{moe.n_inner} times model.n_embd must be a multiple of %lld: moe.n_inner = %lld",
         {LAYOUT_ALIGN, round_up(s.n_expert_inner, unit)}},
        {"model.mup_base_n_embd", has_experts && s.mup_base_n_embd,
         "{model.mup_base_n_embd}: muP's factors are those of a width, and experts have two ({model.arch}); leave it "
         "out"},
        {"parallel.expert", has_experts && s.n_experts % expert,
         "{parallel.expert} must divide {moe.experts}: parallel.expert = %lld",
         {divisor_below(expert, s.n_experts)}},
        {"moe.experts", !has_experts && s.n_experts, "{moe.experts}" NO_EXPERTS},
        {"moe.top_k", !has_experts && s.top_k, "{moe.top_k}" NO_EXPERTS},
        {"moe.n_inner", !has_experts && s.n_expert_inner, "{moe.n_inner}" NO_EXPERTS},
        {"parallel.expert", !has_experts && expert > 1, "{parallel.expert}" NO_EXPERTS},
        {"moe.balance", !has_experts && s.balance == BALANCE_BIAS, "{moe.balance}" NO_EXPERTS},
        /* Refuses values of keys that this kind of model does not read. */
        {"model.n_kv_head", !(reads & READS_N_KV_HEAD) && shape_kv_heads(s) != s.n_head,
         "{model.n_kv_head}: the heads of {model.arch} share no keys; " NOT_LLAMA},
        {"model.head_dim",
         !(reads & READS_HEAD_DIM) && s.head_dim && (s.n_embd % s.head_dim || s.n_embd / s.head_dim != s.n_head),
         "{model.head_dim}: a head of {model.arch} has model.n_embd / model.n_head = %lld; " NOT_LLAMA,
         {s.n_embd / s.n_head}},
        {"model.n_inner", !(reads & READS_N_INNER) && !has_experts && s.n_inner && s.n_inner != 4 * s.n_embd,
         "{model.n_inner}: {model.arch} has 4 x model.n_embd = %lld; " NOT_LLAMA, {4 * s.n_embd}},
        {"model.tie_embeddings", !(reads & READS_TIED) && !s.tie_embeddings,
         "{model.tie_embeddings}: the head of {model.arch} is its embedding; " NOT_LLAMA},
        {"model.norm_eps", !(reads & READS_NORM_EPS) && s.norm_eps != 1e-5,
         "{model.norm_eps}: {model.arch} has 1e-5; " NOT_LLAMA},
        {s.rope_factor != 0.0 ? "model.rope_factor" : "model.rope_theta",
         !has_rope && (s.rope_theta != 10000.0 || s.rope_factor != 0.0),
         "{model.arch} has no rotary positions: leave model.rope_theta and model.rope_factor out, or model.arch = "
         "\"llama\""},
        /* Checks the values of keys that this kind of model reads. */
        {"model.n_inner", reads & READS_N_INNER && s.n_inner == 0,
         "missing key \"model.n_inner\": width of the MLP, which {model.arch} needs; often 8/3 of model.n_embd, here "
         "%lld", {round_up(s.n_embd * 8 / 3, 64)}},
        {"model.n_kv_head", reads & READS_N_KV_HEAD && s.n_head % s.n_kv_head,
         "{model.n_kv_head} must divide {model.n_head}: %lld", {divisor_below(s.n_kv_head, s.n_head)}},
        {"model.head_dim", has_rope && s.head_dim % 2,
         "{model.head_dim} must be even: rotary positions turn pairs; %lld", {s.head_dim + 1}},
        {"model.n_embd", has_rope && !s.head_dim && s.n_embd % s.n_head == 0 && s.n_embd / s.n_head % 2,
         "model.n_embd / model.n_head = %lld channels of a head must be even: rotary positions turn pairs; "
         "model.n_embd = %lld", {s.n_embd / s.n_head, s.n_embd + s.n_head}},
        {"model.rope_factor", scales && s.rope_factor < 1.0,
         "{model.rope_factor} must be 0, for none, or at least 1"},
        {"model.rope_low_freq_factor",
         scales && s.rope_factor >= 1.0 &&
             (s.rope_low_freq_factor <= 0.0 || s.rope_low_freq_factor >= s.rope_high_freq_factor),
         "{model.rope_low_freq_factor} must be more than 0 and less than {model.rope_high_freq_factor}; Llama 3 has 1 "
         "and 4"},
        {"model.mup_base_head_dim", base && !s.mup_base_n_embd,
         "{model.mup_base_head_dim} is of muP: give model.mup_base_n_embd, too, the width of the model whose heads "
         "have that size, or leave it out"},
        {"model.mup_base_head_dim",
         base && s.mup_base_n_embd && s.mup_base_head_dim != shape_head_dim(s) && !mup_knows_attention(s),
         "{model.mup_base_head_dim}: the heads of {model.arch} must have that size, not %lld",
         {shape_head_dim(s)}},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        Keys keys = KEYS(rules[i].key, "model.arch");
        if (!rules[i].when || !is_usable(load, keys)) continue;
        REFUSE(load, keys, rules[i].says, (long long)rules[i].value[0], (long long)rules[i].value[1]);
        config_given(load, rules[i].key)->faulty = 1;
    }
}

#define TOO_LARGE                                                                                                      \
    "{model.n_layer}, {model.n_embd}, {model.n_positions}, {model.vocab_size} does not fit in 64 bits of address: "    \
    "lower one of them"
static char *check_parameters(const Config *c) {
    ModelShape s = c->model.shape;
    int64_t    parameters, bytes;
    /* 64 bytes for each parameter are more than weight, master, moments and gradients need, with padding */
    if (model_parameters(s, &parameters) && multiply(&bytes, 2, (int64_t[]){parameters, 64})) return NULL;
    return sentence(c, s.n_experts ? "a model of {moe.experts}, {moe.n_inner}, " TOO_LARGE
                       : s.n_inner ? "a model of {model.n_inner}, " TOO_LARGE
                                   : "a model of " TOO_LARGE);
}

#define ROWS "makes a model of %lld tensors; a file of weights holds at most %d"

/* Refuses a model with more tensors than the header of a weights file can list. A model that does not fit into memory
 * is not reported again. */
static char *check_rows(const Config *c) {
    ModelShape s = c->model.shape;
    int64_t    parameters;
    if (!model_parameters(s, &parameters) || parameters > INT64_MAX / 64 || model_rows(s) <= MODEL_MOST_ROWS)
        return NULL;
    return sentence(c, s.n_experts ? "{model.n_layer} with {moe.experts} " ROWS ": lower one of the two"
                                   : "{model.n_layer} " ROWS ": lower it", (long long)model_rows(s), MODEL_MOST_ROWS);
}

static const Rule HEAD_RULES[] = {
    {KEYS("model.n_head", "model.n_embd", "model.head_dim"), check_heads, "model.n_embd"},
    {KEYS("model.n_head", "model.n_embd", "model.head_dim"), check_head_size, NULL},
    {KEYS("model.n_head", "model.head_dim", "model.n_kv_head", "model.n_embd"), check_columns, "model.n_head"},
    {KEYS("model.n_inner"), check_inner, "model.n_inner"}};
static const Rule MODEL_RULES[] = {
    {KEYS("model.activation", "model.arch"), check_activation, NULL},
    {KEYS("model.n_embd", "model.n_layer", "model.n_positions", "model.vocab_size", "model.n_kv_head", "model.head_dim",
          "model.n_inner", "model.n_head"), check_parameters, NULL},
    {KEYS("model.n_layer", "model.n_head", "model.n_embd", "model.n_positions", "model.vocab_size", "moe.experts",
          "model.n_kv_head", "model.head_dim", "model.n_inner"), check_rows, "model.n_layer"}};

void config_rules_of_shape(ConfigLoad *load) {
    APPLY(load, HEAD_RULES);
    if (is_usable(load, KEYS("model.arch", "model.n_head", "model.n_embd", "model.head_dim"))) rules_of_kind(load);
    APPLY(load, MODEL_RULES);
}

/* --- the batch and the ranks -------------------------------------------------------------------------------------- */

/* Checks that each context rank (which has a part of every sequence) has whole tiles of attention, of 128 tokens. */
static char *check_context(const Config *c) {
    int64_t unit = 128 * c->parallel.context, T = c->batch.seq_len;
    char    nearest[64];
    if (c->parallel.context == 1 || T % unit == 0) return NULL;
    return sentence(c, "{batch.seq_len} with {parallel.context} must be a multiple of %lld: %s", (long long)unit,
                    nearest_multiples(nearest, T, unit, " or "));
}

/* Checks matrices that are neighbours in memory and read as one: q, k and v; gate and up. Each must fill a multiple of
 * LAYOUT_ALIGN elements, so that the next one follows without a gap. */
static char *check_neighbours(const Config *c) {
    ModelShape s = c->model.shape;
    int64_t    t = c->parallel.tensor, C = s.n_embd;
    uint64_t   keys = (uint64_t)(dim_size(DIM_KV, s) / t) * (uint64_t)C;
    uint64_t   inner = block_kind(s)->traits & HAS_EXPERTS ? 0 : (uint64_t)(dim_size(DIM_FC, s) / t) * (uint64_t)C;
    /* heads: model.n_embd must be a multiple of this number */
    int64_t    heads = s.head_dim ? 1 : 2 * s.n_head;
    int64_t    unit = heads / common_divisor(LAYOUT_ALIGN, heads) * LAYOUT_ALIGN;
    int        of_keys = keys % LAYOUT_ALIGN != 0;
    if (!block_kind(s)->joins_matrices || (keys % LAYOUT_ALIGN == 0 && inner % LAYOUT_ALIGN == 0)) return NULL;
    return sentence(c, "{model.n_embd} times the %s per tensor rank is %llu, which must be a multiple of %d with "
                    "{model.arch}: model.n_embd = %lld", of_keys ? "columns of keys" : "model.n_inner",
                    (unsigned long long)(of_keys ? keys : inner), LAYOUT_ALIGN, (long long)((C / unit + 1) * unit));
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
            return sentence(c, "{parallel.tensor} must divide %s = %lld: %s", of[i].key, (long long)of[i].size,
                            nearest_divisors(nearest, t, all));
    return check_neighbours(c);
}

/* Checks that each part of the pipeline has a layer. Returns NULL or a sentence such as "parallel.pipeline (4) x
 * interleave (4) = 16 parts of 12 layers: at most 12; interleave = 3 or pipeline = 3". */
static char *check_pipeline(const Config *c) {
    long long P = c->parallel.pipeline, V = c->parallel.interleave, L = c->model.shape.n_layer;
    char      cure[100];
    if (V > 1 && P == 1)
        return sentence(c, "{parallel.interleave} needs stages: parallel.pipeline = 2 or more, or "
                        "parallel.interleave = 1");
    if (P * V <= L) return NULL;
    if (V == 1 || P > L) snprintf(cure, sizeof cure, "pipeline = %lld", V == 1 || L < V ? L : L / V);
    else if (L / V > 1) snprintf(cure, sizeof cure, "interleave = %lld or pipeline = %lld", L / P, L / V);
    /* pipeline = 1 is not proposed, because interleave needs at least two stages */
    else snprintf(cure, sizeof cure, "interleave = %lld", L / P);
    return sentence(c, "parallel.pipeline (%lld) x interleave (%lld) = %lld parts of %lld layer%s: at most %lld; %s", P,
                    V, P * V, L, plural(L), L, cure);
}

/* Rules about the size of an axis of the grid that hold for any number of ranks. */
static const Rule AXIS_RULES[] = {
    {KEYS("parallel.context", "batch.seq_len"), check_context, NULL},
    {KEYS("parallel.tensor", "parallel.context", "model.n_head", "model.n_embd", "model.n_kv_head", "model.head_dim",
          "model.n_inner", "batch.seq_len"), check_tensor, NULL},
    {KEYS("parallel.pipeline", "parallel.interleave", "model.n_layer"), check_pipeline, NULL}};

static char *check_axes(const Config *c) {
    char *text = NULL;
    for (size_t i = 0; i < sizeof AXIS_RULES / sizeof *AXIS_RULES && !text; i++) text = AXIS_RULES[i].check(c);
    return text;
}

/* Returns 1 if the model can be divided by this size of an axis of the grid (such as tensor ranks), for any number of
 * ranks. */
static int divides_model(const Config *c, int axis, int64_t size) {
    Config   other = *c;
    int64_t *sizes[] = {&other.parallel.tensor, &other.parallel.context, &other.parallel.pipeline,
                        &other.parallel.replicas};
    *sizes[axis] = size;
    char *fault = check_axes(&other);
    free(fault);
    return !fault;
}

/* Writes the sizes of an axis of the grid, nearest to `size`, that divide `of` and the model, such as ", or tensor = 2
 * or 4". Writes nothing if there are none. */
static void other_sizes(char out[100], const Config *c, int axis, const char *name, int64_t size, int64_t of) {
    long long below = size < of ? size - 1 : of, above = size + 1;
    while (below > 0 && (of % below || !divides_model(c, axis, below))) below--;
    while (above <= of && (of % above || !divides_model(c, axis, above))) above++;
    int       is_above = above <= of;
    if (below > 0 && is_above) snprintf(out, 100, ", or %s = %lld or %lld", name, below, above);
    else if (below > 0 || is_above) snprintf(out, 100, ", or %s = %lld", name, is_above ? above : below);
}

/* Checks parallel.expert. It must divide the number of ranks that share one state and compute different micro-batches.
 * shared: number of ranks that compute one micro-batch together. */
static char *check_expert_ranks(const Config *c, int ranks, int64_t shared) {
    int64_t e = c->parallel.expert, shards = ranks / shared;
    char    nearest[64];
    if (shards % e == 0) return NULL;
    if (shards == 1)
        return sentence(c, "{parallel.expert} divides the experts among ranks that share the state, and there is one: "
                        "mpirun -np %lld, or parallel.expert = 1", (long long)(ranks * e));
    return sentence(c, "{parallel.expert} must divide the %lld ranks that share the state: parallel.expert = %s",
                    (long long)shards,
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
        used += snprintf(names + used, sizeof names - (size_t)used, "%s%s (%lld)", used ? " x " : "parallel.",
                         axis[i].key, (long long)axis[i].size);
        if (first < 0 && axis[i].size > 1) first = i;
    }
    if (ranks <= 0) return NULL;
    if (ranks % product == 0) return check_expert_ranks(c, ranks, product);
    int64_t rest = product / axis[first].size, below = ranks - ranks % product, start = below > 0 ? below : product;
    if (ranks % rest == 0 && ranks > rest)
        other_sizes(other, c, first, axis[first].key, axis[first].size, ranks / rest);
    return sentence(c, "%d rank%s no multiple of %s: start %lld or %lld ranks%s", ranks, ranks == 1 ? " is" : "s are",
                    names, (long long)start, (long long)(start + product), other);
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
    int     used = snprintf(product, sizeof product, "batch.micro_batch (%lld) x batch.seq_len (%lld)",
                            (long long)c->batch.micro_batch, (long long)c->batch.seq_len);
    int     datas = ranks > 0 ? config_datas(c, ranks) : 1;
    if (ranks > 0)
        snprintf(product + used, sizeof product - (size_t)used,
                 datas == ranks ? " x ranks (%d)" : " x ranks / (tensor x context x pipeline) (%d)", datas);
    if (!multiply(&unit, 3, (int64_t[]){c->batch.micro_batch, c->batch.seq_len, datas}))
        return sentence(c, "%s does not fit in 64 bits: lower one of them", product);
    if (total % unit) {
        int64_t step = c->parallel.interleave > 1 && unit <= INT64_MAX / P ? unit * P : unit;
        int64_t first = larger_of(step, total - total % step);
        return sentence(c, "{batch.global_tokens} is %s %s = %lld%s; nearest valid values: %lld and %lld%s",
                        total > unit ? "no multiple of" : "less than", product, (long long)unit,
                        total > unit ? "" : "; it must be a multiple of that", (long long)first,
                        (long long)(first + step), fewer_ranks(text, c, ranks));
    }
    if (c->parallel.interleave == 1 || ranks <= 0 || total % (unit * P) == 0) return NULL;
    return sentence(c, "%lld micro-batches a step with {parallel.interleave} must be a multiple of "
                    "{parallel.pipeline}: batch.global_tokens = %s", (long long)(total / unit),
                    nearest_multiples(text, total, unit * P, " or "));
}

char *config_check_ranks(const Config *c, int ranks) {
    char *text = check_grid(c, ranks);
    return text ? text : check_batch(c, ranks);
}

static char *check_seq_len(const Config *c) {
    if (c->batch.seq_len <= c->model.shape.n_positions) return NULL;
    return sentence(c, "{batch.seq_len} must be at most {model.n_positions}");
}

/* Refuses runs whose count of tokens may overflow. A resumed run adds the tokens of its steps to those of a checkpoint,
 * which are at most MANIFEST_COUNT_LIMIT. The sum must fit in 64 bits. */
static char *check_tokens(const Config *c) {
    int64_t tokens;
    if (multiply(&tokens, 2, (int64_t[]){c->run.steps, c->batch.global_tokens}) && tokens <= INT64_MAX / 2) return NULL;
    return sentence(c, "{run.steps} x {batch.global_tokens} is not below 2^62: lower run.steps");
}

static char *check_activations(const Config *c) {
    ModelShape s = c->model.shape;
    int64_t    bytes, B = c->batch.micro_batch, T = c->batch.seq_len;
    int64_t    width = larger_of(dim_size(DIM_Q, s), larger_of(s.n_embd, s.n_inner));
    if (s.arch == ARCH_QWEN3_MOE) width = larger_of(width, s.n_expert_inner) * s.top_k;
    /* 128 bytes per token, channel and block are twice the floats that fp32 keeps for backward */
    if (multiply(&bytes, 5, (int64_t[]){B, T, width, s.n_layer, 128}) &&
        multiply(&bytes, 4, (int64_t[]){B, T, s.vocab_size, 8}))
        return NULL;
    return sentence(c, "activations of {batch.micro_batch} x {batch.seq_len} do not fit in 64 bits of address with "
                    "{model.n_embd}, {model.n_layer}, {model.vocab_size}: lower batch.micro_batch");
}

/* --- settings that do not go together ----------------------------------------------------------------------------- */

typedef struct {
    /* keys of two settings that exclude each other; the rule is skipped if one is faulty; with may be NULL */
    const char *key, *with;
    int         when;       /* 1 if the config has both settings, so that a fault is reported */
    const char *says;       /* message: why the settings exclude each other, and what to set; see with_values() */
    int         is_of_grid; /* 1 if a change of parallel.* or memory.* can cause the conflict (config_check_changed) */
} Pair;

#define ORDER_ROW(axis, cure)                                                                                          \
    {"parallel." #axis, "parallel.deterministic", c->parallel.deterministic && c->parallel.axis > 1,                   \
     "{parallel.deterministic} adds gradients in one order, with {parallel." #axis "} it cannot: set " cure, 1}
#define EQUALLY "its ranks exchange in every micro-batch, and need equally many: set "
#define GRADIENTS " with {outer.send}: the server needs the gradient of every step; set "

/* Adds a fault for each pair of settings that exclude each other. Without `load` it returns the first pair that a
 * change of the grid can cause, as a text from malloc, or NULL. */
static char *check_pairs(const Config *c, ConfigLoad *load) {
    int has_server = c->outer.server && *c->outer.server, gradients = c->outer.send == SEND_GRADIENTS;
    const OptimizerKind *optimizer = config_optimizer(c);
    int even = c->parallel.balance;
    int has_experts = block_kind(c->model.shape)->traits & HAS_EXPERTS, balance = c->model.shape.balance;
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
        ORDER_ROW(zero_stage, "parallel.zero_stage = 1 or 0"),
        /* Settings that parallel.balance (uneven shares of micro-batches) excludes. Uneven shares change the order of
         * sums. Ranks that gather weights in every micro-batch need equally many micro-batches. */
        {"parallel.balance", "parallel.deterministic", even && c->parallel.deterministic,
         "{parallel.balance} changes the order of sums, which {parallel.deterministic} keeps: set one of them to false",
         1},
        {"parallel.balance", "parallel.zero_stage", even && c->parallel.zero_stage > 1,
         "{parallel.balance} with {parallel.zero_stage}: " EQUALLY "parallel.zero_stage = 1 or 0", 1},
        {"parallel.balance", "parallel.expert", even && c->parallel.expert > 1,
         "{parallel.balance} with {parallel.expert}: " EQUALLY "parallel.expert = 1", 1},
        {"parallel.balance", "parallel.pipeline", even && c->parallel.pipeline > 1,
         "{parallel.balance} with {parallel.pipeline}: stages are given their share by their layers: "
         "set parallel.pipeline = 1", 1},
        /* Settings that a kind of optimizer excludes, by its fields (model/optimizer.h). */
        {"optimizer.name", "memory.offload",
         optimizer && !optimizer->update_on_host && c->memory.offload == MEMORY_HOST,
         "{optimizer.name} updates where the products run, with memory.offload = \"optimizer\" it cannot: "
         "memory.offload = \"none\", or optimizer.name = \"adamw\"", .is_of_grid = 1},
        {"optimizer.name", "outer.send", optimizer && !optimizer->server_can_update && has_server && gradients,
         "{optimizer.name} with outer.send = \"gradients\": a server updates with AdamW alone: outer.send = "
         "\"deltas\", or optimizer.name = \"adamw\"", .is_of_grid = 1},
        /* Settings that a model with experts excludes. */
        {"parallel.tensor", "model.arch", has_experts && c->parallel.tensor > 1,
         "{parallel.tensor}: no matrix of an expert is divided ({model.arch}); set parallel.tensor = 1. "
         "parallel.zero_stage = 3 divides weights, and parallel.expert the experts", 1},
        {"parallel.zero_stage", NULL, is_expert && c->parallel.zero_stage == 0,
         "{parallel.zero_stage} with {parallel.expert}: no rank has all experts to update; set parallel.zero_stage = "
         "1"},
        {"parallel.expert", "outer.server", is_expert && has_server,
         "{parallel.expert} with outer.server: an island's ranks send rounds of whole blocks; set "
         "parallel.expert = 1"},
        {"moe.balance", "parallel.context", has_experts && c->parallel.context > 1 && balance == BALANCE_SWITCH,
         "{moe.balance} is a loss of whole sequences, which {parallel.context} divides: set moe.balance = "
         "\"bias\" or \"none\""},
        {"moe.balance", "outer.send", has_experts && has_server && gradients && balance == BALANCE_BIAS,
         "{moe.balance}: with {outer.send} no island sees all assignments; set moe.balance = \"switch\" or \"none\", "
         "or outer.send = \"deltas\""},
        /* Settings for which this build has no kernels. */
        {"precision", NULL, on_cpu && c->precision == PRECISION_TF32,
         "{precision} needs a GPU, and this is the CPU build: set precision = \"auto\", \"fp32\" or \"bf16\""},
        {"precision", NULL, on_cpu && c->precision == PRECISION_FP16,
         "{precision} needs a GPU, and this is the CPU build: set precision = \"auto\", \"fp32\" or \"bf16\""},
        {"parallel.comm", NULL, on_cpu && c->parallel.comm == PARALLEL_NCCL,
         "{parallel.comm} needs the CUDA build (make BACKEND=cuda); set parallel.comm = \"auto\", \"ring\" or \"mpi\""},
        /* Settings that outer.send = "gradients" excludes. With it a job sends the gradient of every step to the
         * server. */
        {"outer.every", "outer.send", gradients && c->outer.every > 1, "{outer.every}" GRADIENTS "outer.every = 1"},
        {"run.on_nonfinite", "outer.send", gradients && c->run.on_nonfinite == ON_TROUBLE_SKIP,
         "{run.on_nonfinite}" GRADIENTS "run.on_nonfinite = \"stop\""},
        {"run.on_spike", "outer.send", gradients && c->run.on_spike == ON_TROUBLE_SKIP,
         "{run.on_spike}" GRADIENTS "run.on_spike = \"warn\" or \"stop\""},
        {"precision", "outer.send", gradients && c->precision == PRECISION_FP16,
         "{precision}, which leaves steps out," GRADIENTS "precision = \"bf16\""},
        /* Settings that islands (jobs with outer.server) exclude. */
        {"run.on_nonfinite", NULL, has_server && c->run.on_nonfinite == ON_TROUBLE_ROLLBACK,
         "{run.on_nonfinite} with outer.server is not built yet: set it to \"stop\" or \"skip\""},
        {"run.on_spike", NULL, has_server && c->run.on_spike == ON_TROUBLE_ROLLBACK,
         "{run.on_spike} with outer.server is not built yet: set it to \"warn\", \"stop\" or \"skip\""},
        /* Settings that precision fp8 excludes. */
        {"precision", "model.arch", fp8 && has_experts,
         "{precision} is not built for {model.arch}, whose experts' products have no kernel in it: set precision = "
         "\"bf16\""},
        {"precision", "outer.server", fp8 && has_server,
         "{precision} is not built for outer.server, because each island would have scales of its own: set precision = "
         "\"bf16\""},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const Pair *p = &pairs[i];
        if (!p->when || (load ? !is_usable(load, KEYS(p->key, p->with)) : !p->is_of_grid)) continue;
        char *text = with_values(c, p->says);
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

/* Refuses each key that only one optimizer reads and that differs from its default, if the optimizer is another. */
static void rule_unread(ConfigLoad *load) {
    const char *name = load->config->optimizer.name;
    for (const Option *o = OPTIONS; o < OPTIONS + OPTION_COUNT; o++) {
        if (!o->optimizer || !is_usable(load, KEYS(o->key, "optimizer.name")) || !strcmp(name, o->optimizer)) continue;
        cJSON *value = option_to_json(o, load->config), *usual = cJSON_Parse(o->fallback);
        char  *shown = cJSON_PrintUnformatted(value);
        if (!config_same_value(value, usual))
            REFUSE(load, KEYS(o->key, "optimizer.name"), "%s = %s with optimizer.name = \"%s\", which does not read it:"
                   " leave it out (%s), or optimizer.name = \"%s\"", o->key, shown, name, o->fallback, o->optimizer);
        cJSON_Delete(value), cJSON_Delete(usual), free(shown);
    }
}

/* Checks that both dimensions of the matrices of a block, divided by the tensor ranks, are allowed for products in
 * fp8. */
static char *check_fp8_widths(const Config *c) {
    enum { MULTIPLE = 16 }; /* both dimensions of a matrix must be multiples of it, for cuBLASLt */
    ModelShape s = c->model.shape;
    int64_t    tensor = c->parallel.tensor;
    if (c->precision != PRECISION_FP8 || s.n_head < 1 || (!s.head_dim && s.n_embd % s.n_head)) return NULL;
    const struct { const char *what; int64_t all, ranks; } width[] = {
        {"model.n_embd", s.n_embd, 1}, {"the width of the queries, heads x channels,", dim_size(DIM_Q, s), tensor},
        {"the width of queries, keys and values together", dim_size(DIM_QKV, s), tensor},
        {s.n_inner ? "model.n_inner" : "the MLP's width, 4 x model.n_embd,", dim_size(DIM_FC, s), tensor}};
    for (size_t i = 0; i < sizeof width / sizeof *width; i++) {
        char of[64] = "";
        if (width[i].all % width[i].ranks || width[i].all / width[i].ranks % MULTIPLE == 0) continue;
        if (width[i].ranks > 1) snprintf(of, sizeof of, " over parallel.tensor = %lld", (long long)width[i].ranks);
        return sentence(c, "{precision} multiplies matrices whose sides are multiples of %d, and %s%s is %lld: choose "
                        "another width, or precision = \"bf16\"", MULTIPLE, width[i].what, of,
                        (long long)(width[i].all / width[i].ranks));
    }
    return NULL;
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

/* Checks the addresses of the servers in outer.server. */
static char *check_servers(const Config *c) {
    char        shown[SHOWN_BYTES];
    const char *text = c->outer.server;
    for (size_t bytes; *text; text += bytes + (text[bytes] == ',')) {
        bytes = strcspn(text, ",");
        if (!is_host_port(text, bytes) || !strcmp(text + bytes, ","))
            return sentence(c, "outer.server must be host:port, or several separated by commas, not the string %s",
                            json_quote_short(shown, sizeof shown, c->outer.server));
    }
    return NULL;
}

/* Checks that a run with outer.server ends with a whole round (outer.every steps). */
static char *check_rounds(const Config *c) {
    char values[64];
    if (!*c->outer.server || c->run.steps % c->outer.every == 0) return NULL;
    return sentence(c, "{run.steps} must be a multiple of {outer.every}; nearest valid run.steps: %s",
                    nearest_multiples(values, c->run.steps, c->outer.every, " and "));
}

/* Checks that checkpoint.keep_every, the distance in steps of checkpoints that are kept for good, is a multiple of
 * checkpoint.every. Otherwise none would be saved. */
static char *check_milestones(const Config *c) {
    int64_t N = c->checkpoint.keep_every, every = c->checkpoint.every;
    char    values[64];
    if (N == 0 || (every && N % every == 0)) return NULL;
    if (every == 0)
        return sentence(c, "{checkpoint.keep_every} has nothing to keep: {checkpoint.every} saves at the end alone; "
                        "set checkpoint.every, or checkpoint.keep_every = 0");
    return sentence(c, "{checkpoint.keep_every} must be a multiple of {checkpoint.every}; nearest valid values: %s",
                    nearest_multiples(values, N, every, " and "));
}

/* Checks that checkpoint.keep_best can find the best checkpoint: each checkpoint needs an evaluation at its step. */
static char *check_keep_best(const Config *c) {
    char values[64];
    if (!c->checkpoint.keep_best) return NULL;
    if (c->eval.every == 0) return sentence(c, "checkpoint.keep_best needs validation losses: set eval.every above 0");
    if (c->data.val.count == 0) return sentence(c, "checkpoint.keep_best needs validation losses: set data.val");
    if (c->checkpoint.every % c->eval.every == 0) return NULL;
    return sentence(c, "checkpoint.keep_best needs an evaluation at each checkpoint: {checkpoint.every} must be a "
                    "multiple of {eval.every}; nearest valid values: %s",
                    nearest_multiples(values, c->checkpoint.every, c->eval.every, " and "));
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

/* The rules that need one or several keys, and neither the number of ranks nor the kind of model. */
static const Rule RULES[] = {
    {KEYS("batch.seq_len", "model.n_positions"), check_seq_len, "batch.seq_len"},
    {KEYS("run.steps", "batch.global_tokens"), check_tokens, NULL},
    {KEYS("checkpoint.keep_every", "checkpoint.every"), check_milestones, NULL},
    {KEYS("checkpoint.keep_best", "eval.every", "checkpoint.every", "data.val"), check_keep_best, NULL},
    {KEYS("batch.micro_batch", "batch.seq_len", "model.n_embd", "model.n_layer", "model.vocab_size", "model.n_inner",
          "model.head_dim", "model.n_head"), check_activations, NULL},
    {KEYS("outer.server"), check_servers, NULL},
    {KEYS("outer.every", "outer.server", "run.steps"), check_rounds, NULL},
    {KEYS("model.n_embd", "model.n_inner", "model.n_head", "model.head_dim", "model.n_kv_head", "parallel.tensor",
          "precision"), check_fp8_widths, NULL}};

void config_rules(ConfigLoad *load, int ranks) {
    static const char *const BATCH_KEYS[] = {"batch.global_tokens", "batch.micro_batch", "batch.seq_len", NULL};
    const Config     *c = load->config;
    const StringList *train = &c->data.train, *changes = &c->run.allow_change;
    OptionFault       fault;
    for (int i = 0; i < changes->count && is_usable(load, KEYS("run.allow_change")); i++) {
        const char *name = changes->item[i];
        char        typed[SHOWN_BYTES];
        if (!option_find(name) && !option_is_section(name))
            REFUSE(load, KEYS("run.allow_change"), "run.allow_change names keys or sections of this config, and the "
                   "string %s is neither; the nearest key is \"%s\"", json_quote_short(typed, sizeof typed, name),
                   nearest_key(name, NEAREST_OPTION).word);
    }
    rules_of_paths(load);
    if (is_usable(load, KEYS("data.train")) && train->share && !sources_check("data.train", train, &fault))
        REFUSE(load, KEYS("data.train"), "%s", fault.text);
    config_rules_of_shape(load);
    APPLY(load, RULES);
    APPLY(load, AXIS_RULES);
    if (is_usable(load, GRID_KEYS)) {
        char *unequal = check_grid(c, ranks);
        if (!unequal && is_usable(load, BATCH_KEYS)) add_fault(load, BATCH_KEYS, check_batch(c, ranks));
        add_fault(load, GRID_KEYS, unequal);
    }
    rule_unread(load);
    check_pairs(c, load);
}
