/* hf_llama.c - reads and writes config.json for llama and qwen3, as the classes of Hugging Face do (HF_LLAMA of
 * hf_gpt2.h). */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/json.h"
#include "model/hf_gpt2.h"
#include "model/hf_members.h"
#include "model/hf_softcap.h"

/* The classes, and their defaults for keys that config.json lacks. A default of 0 means: heads share no keys; head_dim
 * is the width divided by the heads. */
typedef struct {
    Arch        arch;
    const char *type, *name;
    int64_t     positions, n_kv_head, head_dim;
    const char *rest; /* keys that only this class has, as text */
} HfClass;
static const HfClass CLASSES[] = {
    {ARCH_LLAMA, "llama", "LlamaForCausalLM", 2048, 0, 0, "\"mlp_bias\": false"},
    {ARCH_QWEN3, "qwen3", "Qwen3ForCausalLM", 32768, 32, 128, "\"use_sliding_window\": false,\n  \"sliding_window\": null"},
    {ARCH_QWEN3_MOE, "qwen3_moe", "Qwen3MoeForCausalLM", 32768, 4, 0, "\"use_sliding_window\": false,\n  \"sliding_window\": null"},
};
enum { CLASS_COUNT = sizeof CLASSES / sizeof *CLASSES };

static const HfClass *class_of(int arch) {
    const HfClass *c = CLASSES;
    while (c < CLASSES + CLASS_COUNT && c->arch != (Arch)arch) c++;
    CHECK(c < CLASSES + CLASS_COUNT, "model.arch %d has no class here", arch);
    return c;
}

/* Returns the class that a config.json names, NULL if it is of another kind. */
static const HfClass *class_of_config(const cJSON *config) {
    for (int i = 0; i < CLASS_COUNT; i++)
        if (hf_is_type(config, CLASSES[i].type)) return &CLASSES[i];
    return NULL;
}

static int llama_reads(const cJSON *config) { return class_of_config(config) != NULL; }

/* DeepSeek-V3's value of topk_method for a choice with a bias, which Qwen3MoeForCausalLM does not know. */
static const char WITH_BIAS[] = "noaux_tc";

/* Writes the keys of experts. Every block has experts, so intermediate_size, the width in blocks without, is unused. */
static void experts_text(ModelShape g, char *text, size_t room) {
    snprintf(text, room,
             ",\n  \"decoder_sparse_step\": 1,\n  \"mlp_only_layers\": [],\n  \"num_experts\": %" PRId64
             ",\n  \"num_experts_per_tok\": %" PRId64 ",\n  \"moe_intermediate_size\": %" PRId64
             ",\n  \"norm_topk_prob\": %s,\n  \"output_router_logits\": false,\n  \"router_aux_loss_coef\": %.15g%s%s%s",
             g.n_experts, g.top_k, g.n_expert_inner, g.norm_top_k ? "true" : "false", g.balance == BALANCE_SWITCH ? g.balance_rate : 0.0,
             g.balance == BALANCE_BIAS ? ",\n  \"topk_method\": \"" : "", g.balance == BALANCE_BIAS ? WITH_BIAS : "",
             g.balance == BALANCE_BIAS ? "\"" : "");
}

static int llama_text(ModelShape g, const char *end, const char *dtype, char *text) {
    const HfClass *class = class_of(g.arch);
    char           scaling[240] = "null", experts[420] = "";
    int64_t        inner = dim_size(DIM_FC, g);
    if (g.arch == ARCH_QWEN3_MOE) experts_text(g, experts, sizeof experts), inner = g.top_k * g.n_expert_inner;
    if (g.rope_factor != 0.0)
        snprintf(scaling, sizeof scaling,
                 "{\"rope_type\": \"llama3\", \"factor\": %.15g, \"low_freq_factor\": %.15g, \"high_freq_factor\": %.15g, "
                 "\"original_max_position_embeddings\": %" PRId64 "}",
                 g.rope_factor, g.rope_low_freq_factor, g.rope_high_freq_factor, g.rope_original_positions);
    return snprintf(text, HF_CONFIG_BYTES,
        "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n  \"vocab_size\": %" PRId64
        ",\n  \"max_position_embeddings\": %" PRId64 ",\n  \"hidden_size\": %" PRId64 ",\n  \"intermediate_size\": %" PRId64
        ",\n  \"num_hidden_layers\": %" PRId64 ",\n  \"num_attention_heads\": %" PRId64 ",\n  \"num_key_value_heads\": %" PRId64
        ",\n  \"head_dim\": %" PRId64 ",\n  \"hidden_act\": \"silu\",\n  \"rms_norm_eps\": %.15g,\n  \"rope_theta\": %.15g,\n"
        "  \"rope_scaling\": %s,\n  \"attention_bias\": false,\n  %s%s,\n  \"attention_dropout\": 0.0,\n"
        "  \"initializer_range\": %.15g,\n  \"bos_token_id\": %s,\n  \"eos_token_id\": %s,\n  \"tie_word_embeddings\": %s,\n"
        "  \"dtype\": \"%s\",\n  \"torch_dtype\": \"%s\"\n}\n",
        class->name, class->type, g.vocab_size, g.n_positions, g.n_embd, inner, g.n_layer, g.n_head, shape_kv_heads(g),
        shape_head_dim(g), g.norm_eps, g.rope_theta, scaling, class->rest, experts, shape_init_std(g), end, end,
        g.tie_embeddings ? "true" : "false", dtype, dtype);
}

/* --- read --------------------------------------------------------------------------------------------------------- */

/* Returns a number above 0, or `fallback` if the key is missing or null. */
static double real_of(const cJSON *config, const char *key, double fallback, const char *path) {
    const cJSON *n = json_member(config, key);
    if (!n || cJSON_IsNull(n)) return fallback;
    if (!cJSON_IsNumber(n) || !(n->valuedouble > 0.0) || !isfinite(n->valuedouble)) hf_refuse_key(path, n, "a number above 0 is expected");
    return n->valuedouble;
}

static int64_t size_or(const cJSON *config, const char *key, int64_t fallback, const char *path) {
    const cJSON *n = json_member(config, key);
    return !n || cJSON_IsNull(n) ? fallback : hf_size_of(config, key, path);
}

/* Returns the object with the rotary parameters, or NULL. As in transformers 5 it is rope_scaling, or rope_parameters
 * if rope_scaling is empty. With `warns` it warns if the two differ, and of unknown members. */
static const cJSON *rope_of(const cJSON *config, const char *path, int warns) {
    static const char *const names[] = {"rope_scaling", "rope_parameters"};
    const cJSON *rope = NULL;
    for (int i = 0; i < 2; i++) {
        const cJSON *one = json_member(config, names[i]);
        if (one && !cJSON_IsNull(one) && !cJSON_IsObject(one))
            hf_refuse_key(path, one, "an object or null is expected");
        if (!one || !one->child) continue;
        if (warns) hf_members_check_rope(one, path);
        if (!rope) rope = one;
        else if (warns && !cJSON_Compare(rope, one, 1))
            warn("%s: rope_scaling and rope_parameters differ: only rope_scaling is used, as in transformers 5", path);
    }
    return rope;
}

static void need_real(const cJSON *rope, const char *key, double *value, const char *path) {
    const cJSON *n = json_member(rope, key);
    if (!n || cJSON_IsNull(n))
        fail(EXIT_DATA, "%s: %s.%s is missing, which rope_type \"llama3\" needs: add it", path, rope->string, key);
    *value = real_of(rope, key, 0.0, path);
}

static void take_scaling(ModelShape *shape, const cJSON *config, const char *path, int warns) {
    const cJSON *rope = rope_of(config, path, warns), *type = json_member(rope, "rope_type");
    if (!rope) return;
    shape->rope_theta = real_of(rope, "rope_theta", shape->rope_theta, path);
    if (!type) type = json_member(rope, "type");
    if (!type || hf_is_word(type, "default")) return;
    if (!hf_is_word(type, "llama3")) hf_refuse_key(path, type, "only \"default\" and \"llama3\" are supported");
    need_real(rope, "factor", &shape->rope_factor, path);
    need_real(rope, "low_freq_factor", &shape->rope_low_freq_factor, path);
    need_real(rope, "high_freq_factor", &shape->rope_high_freq_factor, path);
    const char  *known = "original_max_position_embeddings";
    const cJSON *outside = json_member(config, known);
    shape->rope_original_positions = size_or(rope, known, size_or(config, known, shape->n_positions, path), path);
    if (outside && !cJSON_IsNull(outside) && hf_size_of(config, known, path) != shape->rope_original_positions)
        hf_refuse_key(path, outside, "rope_scaling or rope_parameters has another value: remove one of the two");
    if (shape->rope_factor < 1.0 || shape->rope_low_freq_factor >= shape->rope_high_freq_factor)
        hf_refuse_key(path, type, "its factor must be at least 1, and low_freq_factor less than high_freq_factor");
}

/* Refuses a sliding window that limits any layer of the model. In qwen3 it limits layers from max_window_layers on, in
 * qwen3_moe all layers. */
static void refuse_window(const cJSON *config, const char *path, ModelShape shape) {
    const cJSON *window = json_member(config, "sliding_window");
    const cJSON *first = json_member(config, "max_window_layers");
    double       from = shape.arch != ARCH_QWEN3 ? 0.0 : cJSON_IsNumber(first) ? number_value(first) : 28.0;
    if (shape.arch == ARCH_LLAMA || !hf_flag_of(config, "use_sliding_window", 0, path)) return;
    if (window && (cJSON_IsNull(window) || number_value(window) >= (double)shape.n_positions)) return;
    if (from >= (double)shape.n_layer) return;
    hf_refuse_key(path, json_member(config, "use_sliding_window"),
                  "only false is supported: a token sees all tokens before it");
}

static void take_experts(ModelShape *shape, const cJSON *config, const char *path) {
    const cJSON *method = json_member(config, "topk_method");
    shape->n_inner = 0;
    /* in transformers 5, and in 4 */
    const char *count = json_member(config, "num_local_experts") ? "num_local_experts" : "num_experts";
    shape->n_experts = hf_size_of(config, count, path);
    if (json_member(config, "num_experts") && hf_size_of(config, "num_experts", path) != shape->n_experts)
        fail(EXIT_DATA,
             "%s: num_experts and num_local_experts are two names of one size, but differ: remove one of them", path);
    shape->top_k = hf_size_of(config, "num_experts_per_tok", path);
    shape->n_expert_inner = hf_size_of(config, "moe_intermediate_size", path);
    shape->norm_top_k = hf_flag_of(config, "norm_topk_prob", 0, path);
    if (method && !cJSON_IsNull(method) && !hf_is_word(method, WITH_BIAS) && !hf_is_word(method, "greedy"))
        hf_refuse_key(path, method, "only \"greedy\" and \"noaux_tc\" are supported");
    shape->balance = hf_is_word(method, WITH_BIAS) ? BALANCE_BIAS : BALANCE_NONE;
    if (shape->top_k > shape->n_experts)
        hf_refuse_key(path, json_member(config, "num_experts_per_tok"), "at most num_experts is expected");
}

static ModelShape shape_of(const cJSON *config, const char *path, const HfClass *class, int warns) {
    int64_t    heads = hf_size_of(config, "num_attention_heads", path);
    ModelShape shape = {.n_layer = hf_size_of(config, "num_hidden_layers", path),
                        .n_head = heads,
                        .n_embd = hf_size_of(config, "hidden_size", path),
                        .n_positions = size_or(config, "max_position_embeddings", class->positions, path),
                        .vocab_size = hf_size_of(config, "vocab_size", path),
                        .arch = class->arch,
                        .tie_embeddings = hf_flag_of(config, "tie_word_embeddings", 0, path),
                        .n_kv_head = size_or(config, "num_key_value_heads", class->n_kv_head ? class->n_kv_head : heads, path),
                        .head_dim = size_or(config, "head_dim", class->head_dim, path),
                        .n_inner = hf_size_of(config, "intermediate_size", path),
                        .norm_eps = real_of(config, "rms_norm_eps", 1e-6, path),
                        .rope_theta = real_of(config, "rope_theta", 10000.0, path),
                        .rope_low_freq_factor = 1.0, .rope_high_freq_factor = 4.0, .rope_original_positions = 8192};
    take_scaling(&shape, config, path, warns);
    if (class->arch == ARCH_QWEN3_MOE) take_experts(&shape, config, path);
    refuse_window(config, path, shape);
    if (shape.n_head % shape.n_kv_head != 0 || (shape.head_dim ? shape.head_dim % 2 : shape.n_embd % (2 * shape.n_head)) != 0)
        fail(EXIT_DATA,
             "%s: num_attention_heads %lld, hidden_size %lld, num_key_value_heads %lld: head_dim, or hidden_size / num_attention_heads, must "
             "be even, and num_attention_heads a multiple of num_key_value_heads",
             path, (long long)shape.n_head, (long long)shape.n_embd, (long long)shape.n_kv_head);
    return shape;
}

static ModelShape llama_shape(const cJSON *config, const char *path) {
    return shape_of(config, path, class_of_config(config), 0);
}

/* --- compared ----------------------------------------------------------------------------------------------------- */

static int differ(double a, double b) { return fabs(a - b) > 1e-6 * fabs(b); }

/* Writes a value as in a config: a number with all its digits, or true or false. */
static void value_as_given(const char *key, double value, char out[SHOWN_BYTES]) {
    int is_flag = strcmp(key, "model.tie_embeddings") == 0 || strcmp(key, "moe.norm_top_k") == 0;
    if (is_flag) snprintf(out, SHOWN_BYTES, value != 0.0 ? "true" : "false");
    else number_text(value, out);
}

static NORETURN void refuse_value(const char *path, const char *key, double theirs, double ours) {
    char has[SHOWN_BYTES], have[SHOWN_BYTES];
    value_as_given(key, theirs, has), value_as_given(key, ours, have);
    fail(EXIT_DATA, "%s: this model has %s = %s, ours %s (the shapes of weights do not show it): give %s=%s", path, key, has, have, key,
         has);
}

static void llama_expect(const cJSON *config, const char *path, ModelShape ours, int has_head) {
    const HfClass *class = class_of(ours.arch);
    const cJSON   *type = json_member(config, "model_type");
    char           arch[40];
    snprintf(arch, sizeof arch, "model.arch is %s", ours.arch == ARCH_QWEN3_MOE ? "qwen3-moe" : class->type);
    if (type && !hf_is_type(config, class->type)) hf_refuse_key(path, type, arch);
    ModelShape theirs = shape_of(config, path, class, 1);
    hf_expect_head(path, theirs.tie_embeddings, has_head);
    if (has_head && theirs.tie_embeddings) theirs.tie_embeddings = ours.tie_embeddings; /* the stored values decide */
    struct { const char *key; double theirs, ours; } of[] = {
        {"model.n_head", (double)theirs.n_head, (double)ours.n_head},
        {"model.head_dim", (double)shape_head_dim(theirs), (double)shape_head_dim(ours)},
        {"model.n_kv_head", (double)theirs.n_kv_head, (double)shape_kv_heads(ours)},
        {"model.tie_embeddings", theirs.tie_embeddings, ours.tie_embeddings},
        {"model.norm_eps", theirs.norm_eps, ours.norm_eps},
        {"moe.top_k", (double)theirs.top_k, (double)ours.top_k},
        {"moe.norm_top_k", theirs.norm_top_k, ours.arch == ARCH_QWEN3_MOE ? ours.norm_top_k : 0},
        {"model.rope_theta", theirs.rope_theta, ours.rope_theta},
        {"model.rope_factor", theirs.rope_factor, ours.rope_factor},
        {"model.rope_low_freq_factor", theirs.rope_low_freq_factor, ours.rope_low_freq_factor},
        {"model.rope_high_freq_factor", theirs.rope_high_freq_factor, ours.rope_high_freq_factor},
        {"model.rope_original_positions", (double)theirs.rope_original_positions, (double)ours.rope_original_positions},
    };
    int scaled = theirs.rope_factor != 0.0 || ours.rope_factor != 0.0;
    for (int i = 0; i < (scaled ? 12 : 9); i++)
        if (differ(of[i].theirs, of[i].ours)) refuse_value(path, of[i].key, of[i].theirs, of[i].ours);
}

const HfFiles HF_LLAMA = {llama_text, llama_reads, llama_shape, llama_expect};
