/* hf.c - see hf.h. In this order: values in config.json that all kinds of models have, what each kind has, names of
 * tensors. */
#include "model/hf.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "core/json.h"
#include "model/block.h"

/* --- values in config.json ---------------------------------------------------------------------------------------- */

static int is_word(const cJSON *value, const char *word) {
    return cJSON_IsString(value) && strcmp(value->valuestring, word) == 0;
}

/* Returns a member of config.json as a flag, or `fallback` if it is missing or null. Exits with 65 if it is neither
 * true nor false. */
static int flag_of(const cJSON *value, int fallback, const char *path) {
    if (!value || cJSON_IsNull(value)) return fallback;
    if (!cJSON_IsBool(value)) hf_refuse_key(path, value, "true or false is expected: correct this value");
    return cJSON_IsTrue(value);
}

/* Returns a member of config.json as a number, or `fallback` if it is missing or null. Exits with 65 if it is not a
 * number above 0. */
static double real_of(const cJSON *value, double fallback, const char *path) {
    if (!value || cJSON_IsNull(value)) return fallback;
    if (!cJSON_IsNumber(value) || !(value->valuedouble > 0.0) || !isfinite(value->valuedouble))
        hf_refuse_key(path, value, "a number above 0 is expected: correct this value");
    return value->valuedouble;
}

/* Returns a member of config.json as a size. Exits with 65 if it is not a whole number from 1 to 2^31 - 1. */
static int64_t size_of(const cJSON *value, const char *path) {
    char shown[SHOWN_BYTES];
    if (!cJSON_IsNumber(value) || value->valuedouble < 1 || value->valuedouble > INT32_MAX ||
        value->valuedouble != floor(value->valuedouble))
        fail(EXIT_DATA, "%s: %s is %s; a whole number from 1 to %d is expected", path, value->string,
             value_text(value, shown), INT32_MAX);
    return (int64_t)value->valuedouble;
}

static int64_t size_or(const cJSON *value, int64_t fallback, const char *path) {
    return !value || cJSON_IsNull(value) ? fallback : size_of(value, path);
}

/* Returns the size in config.json that has the value of the config key `option`, such as "model.n_layer". Exits with 65
 * if it is missing. */
static int64_t size_for(const cJSON *config, const char *path, int arch, const char *option) {
    const cJSON *value = hf_value(config, path, arch, option);
    if (!value)
        fail(EXIT_DATA,
             "%s: %s is missing: add it, with the value of this model (most follow from the shapes of its weights)",
             path, hf_member_of(arch, option));
    return size_of(value, path);
}

/* Returns a shape with the sizes that every kind of model has in config.json. */
static ModelShape sizes_of(const cJSON *config, const char *path, int arch) {
    return (ModelShape){.arch = arch,
                        .n_layer = size_for(config, path, arch, "model.n_layer"),
                        .n_head = size_for(config, path, arch, "model.n_head"),
                        .n_embd = size_for(config, path, arch, "model.n_embd"),
                        .vocab_size = size_for(config, path, arch, "model.vocab_size")};
}

/* Exits with 65 because the config.json beside weights has another value of a config key than this run. theirs: the
 * value in config.json; ours: that of the run. */
static NORETURN void refuse_differing(const char *path, const char *key, const char *theirs, const char *ours) {
    fail(EXIT_DATA, "%s: this model has %s = %s, but the config of this run has %s: set %s=%s", path, key,
         theirs, ours, key, theirs);
}

/* Exits with 65 if config.json says that the head is not the embedding, but the weights hold no head. */
static void expect_head(const char *path, int is_tied, int has_head) {
    if (!is_tied && !has_head)
        fail(EXIT_DATA,
             "%s: tie_word_embeddings is false or missing, but the weights hold no lm_head.weight: if the head of this "
             "model is its embedding, set tie_word_embeddings to true there",
             path);
}

/* --- soft cap ----------------------------------------------------------------------------------------------------- */

/* Models with a soft cap of the logits. The library transformers has no class with a soft cap for these kinds of
 * models. So model_type is "gpt2_softcap", "llama_softcap" and so on: transformers refuses these names instead of
 * computing wrong logits. The cap is stored in the key that Gemma 2 has for it, final_logit_softcapping. */
#define SUFFIX "_softcap"
#define TYPE   "\"model_type\": \""

/* Turns the config.json of a model without a soft cap of the logits into one with this soft cap. text has `bytes` bytes
 * in a buffer of HF_CONFIG_BYTES. Returns the new number of bytes. */
static int softcap_text(char *text, int bytes, double softcap) {
    char  plain[HF_CONFIG_BYTES], *type = strstr(text, TYPE), *end = type ? strchr(type + strlen(TYPE), '"') : NULL;
    CHECK(end, "a config.json without a model_type");
    memcpy(plain, text, (size_t)bytes + 1);
    int before = (int)(end - text);
    return snprintf(text, HF_CONFIG_BYTES, "%.*s" SUFFIX "\",\n  \"final_logit_softcapping\": %.15g%s", before, plain,
                    softcap, plain + before + 1);
}

/* Returns the length of a model_type without the suffix _softcap. Returns -1 if it has no such suffix or is not a
 * string. */
static int capped_type(const cJSON *type) {
    if (!cJSON_IsString(type)) return -1;
    int length = (int)(strlen(type->valuestring) - strlen(SUFFIX));
    return length > 0 && strcmp(type->valuestring + length, SUFFIX) == 0 ? length : -1;
}

double hf_softcap_of(const cJSON *config, const char *path) {
    const cJSON *cap = json_member(config, "final_logit_softcapping");
    if (capped_type(json_member(config, "model_type")) < 0) return 0.0;
    double softcap = real_of(cap, 0.0, path);
    if (softcap == 0.0)
        fail(EXIT_DATA, "%s: final_logit_softcapping is missing: add it, with the soft cap of this model's logits",
             path);
    return softcap;
}

/* Returns whether model_type is `plain`, with or without the suffix _softcap. */
static int is_type(const cJSON *config, const char *plain) {
    const cJSON *type = json_member(config, "model_type");
    int          length = capped_type(type);
    return is_word(type, plain) ||
           (length == (int)strlen(plain) && strncmp(type->valuestring, plain, (size_t)length) == 0);
}

/* --- classes ------------------------------------------------------------------------------------------------------ */

/* The class of transformers for each kind of model, and its defaults for keys that are missing in config.json. A
 * default of 0 means: heads share no keys; head_dim is the width divided by the heads. */
typedef struct {
    const char *type, *name;
    int64_t     positions, n_kv_head, head_dim;
    const char *rest; /* keys that only this class has, as JSON text for config.json */
} HfClass;
#define NO_WINDOW "\"use_sliding_window\": false,\n  \"sliding_window\": null"
static const HfClass CLASSES[ARCH_COUNT] = {
    [ARCH_GPT2] = {"gpt2", "GPT2LMHeadModel", 0, 0, 0, NULL},
    [ARCH_LLAMA] = {"llama", "LlamaForCausalLM", 2048, 0, 0, "\"mlp_bias\": false"},
    [ARCH_QWEN3] = {"qwen3", "Qwen3ForCausalLM", 32768, 32, 128, NO_WINDOW},
    [ARCH_QWEN3_MOE] = {"qwen3_moe", "Qwen3MoeForCausalLM", 32768, 4, 0, NO_WINDOW},
};

/* Returns the kind of model (Arch) that a config.json names, -1 if it names none of them. */
static int arch_of(const cJSON *config) {
    for (int arch = 0; arch < ARCH_COUNT; arch++)
        if (is_type(config, CLASSES[arch].type)) return arch;
    return -1;
}

/* --- activations -------------------------------------------------------------------------------------------------- */

/* Other words for activations in config.json, besides ACTIVATION_NAMES, which are words of Hugging Face, too.
 * transformers has several words for GELU by tanh (ACTIVATION_GELU_NEW) and for the exact GELU. */
static const struct { const char *word; Activation kind; } ACTIVATION_WORDS[] = {
    {"gelu_pytorch_tanh", ACTIVATION_GELU_NEW}, {"gelu_fast", ACTIVATION_GELU_NEW},
    {"gelu_accurate", ACTIVATION_GELU_NEW},     {"gelu_python_tanh", ACTIVATION_GELU_NEW},
    {"gelu_python", ACTIVATION_GELU},           {"swish", ACTIVATION_SILU},
};

/* Returns the activation that a member of config.json names. Returns ACTIVATION_GELU_NEW if the member is missing.
 * Exits with 65 if the word is not known. */
static Activation activation_of(const cJSON *value, const char *path) {
    char known[200] = "";
    if (!value) return ACTIVATION_GELU_NEW;
    for (int kind = 0; kind < ACTIVATION_COUNT; kind++)
        if (is_word(value, ACTIVATION_NAMES[kind])) return (Activation)kind;
    for (size_t i = 0; i < sizeof ACTIVATION_WORDS / sizeof *ACTIVATION_WORDS; i++)
        if (is_word(value, ACTIVATION_WORDS[i].word)) return ACTIVATION_WORDS[i].kind;
    for (int kind = 0, used = 0; kind < ACTIVATION_COUNT; kind++)
        used += snprintf(known + used, sizeof known - (size_t)used, "%s%s", kind ? ", " : "", ACTIVATION_NAMES[kind]);
    strcat(known, " are supported");
    hf_refuse_key(path, value, known);
}

/* --- gpt2 --------------------------------------------------------------------------------------------------------- */

static int gpt2_text(ModelShape g, const char *end, const char *dtype, char *text) {
    return snprintf(
        text, HF_CONFIG_BYTES,
        "{\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": \"gpt2\",\n  \"vocab_size\": %" PRId64
        ",\n  \"n_positions\": %" PRId64 ",\n  \"n_ctx\": %" PRId64 ",\n  \"n_embd\": %" PRId64
        ",\n  \"n_layer\": %" PRId64 ",\n  \"n_head\": %" PRId64
        ",\n  \"n_inner\": null,\n  \"activation_function\": \"%s\",\n  \"layer_norm_epsilon\": 1e-05,\n  "
        "\"attn_pdrop\": 0.0,\n"
        "  \"embd_pdrop\": 0.0,\n  \"resid_pdrop\": 0.0,\n  \"summary_first_dropout\": 0.0,\n  \"initializer_range\": "
        "%.15g,\n"
        "  \"bos_token_id\": %s,\n  \"eos_token_id\": %s,\n  \"tie_word_embeddings\": true,\n  \"dtype\": \"%s\",\n  "
        "\"torch_dtype\": \"%s\"\n}\n",
        g.vocab_size, g.n_positions, g.n_positions, g.n_embd, g.n_layer, g.n_head, ACTIVATION_NAMES[g.activation],
        shape_init_std(g), end, end, dtype, dtype);
}

static ModelShape gpt2_shape(const cJSON *config, const char *path) {
    const cJSON *inner = json_member(config, "n_inner");
    ModelShape   shape = sizes_of(config, path, ARCH_GPT2);
    shape.n_positions = size_for(config, path, ARCH_GPT2, "model.n_positions");
    if (shape.n_embd % shape.n_head != 0)
        fail(EXIT_DATA, "%s: n_embd %lld is no multiple of n_head %lld: correct the one of them that is wrong", path,
             (long long)shape.n_embd, (long long)shape.n_head);
    if (inner && !cJSON_IsNull(inner) && size_of(inner, path) != 4 * shape.n_embd)
        hf_refuse_key(path, inner, "only null or 4 x n_embd is supported: use another model");
    shape.tie_embeddings = flag_of(json_member(config, "tie_word_embeddings"), 1, path);
    shape.activation = activation_of(json_member(config, "activation_function"), path);
    return shape;
}

static void gpt2_expect(const cJSON *config, const char *path, ModelShape shape, int has_head) {
    char         ours[120];
    const cJSON *type = json_member(config, "model_type");
    const cJSON *heads = hf_value(config, path, ARCH_GPT2, "model.n_head");
    const cJSON *epsilon = json_member(config, "layer_norm_epsilon");
    snprintf(ours, sizeof ours, "but model.n_head of this run is %" PRId64 ": set it to the value of this model",
             shape.n_head);
    if (type && !is_type(config, "gpt2")) hf_refuse_key(path, type, "but model.arch of this run is gpt2: set "
                                                        "model.arch to the kind of this model");
    if (heads && number_value(heads) != (double)shape.n_head) hf_refuse_key(path, heads, ours);
    Activation activation = activation_of(json_member(config, "activation_function"), path);
    if ((int)activation != shape.activation)
        refuse_differing(path, "model.activation", ACTIVATION_NAMES[activation], ACTIVATION_NAMES[shape.activation]);
    if (epsilon && !(fabs(number_value(epsilon) - 1e-5) <= 1e-11))
        hf_refuse_key(path, epsilon, "only 1e-5 is supported: use another model");
    expect_head(path, flag_of(json_member(config, "tie_word_embeddings"), 1, path), has_head);
}

const HfFiles HF_GPT2 = {gpt2_text, gpt2_shape, gpt2_expect};

/* --- llama, qwen3 and qwen3-moe: as the classes of Hugging Face do ------------------------------------------------ */

/* Value of topk_method in DeepSeek-V3 for experts that are chosen with a bias. Qwen3MoeForCausalLM does not know it. */
static const char WITH_BIAS[] = "noaux_tc";

static int llama_text(ModelShape g, const char *end, const char *dtype, char *text) {
    const HfClass *class = &CLASSES[g.arch];
    char           scaling[240] = "null", experts[420] = "";
    int64_t        inner = dim_size(DIM_FC, g);
    if (block_kind(g)->traits & HAS_EXPERTS) {
        int has_bias = g.balance == BALANCE_BIAS;
        snprintf(
            experts, sizeof experts,
            ",\n  \"decoder_sparse_step\": 1,\n  \"mlp_only_layers\": [],\n  \"num_experts\": %" PRId64
            ",\n  \"num_experts_per_tok\": %" PRId64 ",\n  \"moe_intermediate_size\": %" PRId64
            ",\n  \"norm_topk_prob\": %s,\n  \"output_router_logits\": false,\n  \"router_aux_loss_coef\": %.15g%s%s%s",
            g.n_experts, g.top_k, g.n_expert_inner, g.norm_top_k ? "true" : "false",
            g.balance == BALANCE_SWITCH ? g.balance_rate : 0.0, has_bias ? ",\n  \"topk_method\": \"" : "",
            has_bias ? WITH_BIAS : "", has_bias ? "\"" : "");
        /* unused: every block has experts, and this is the width of the MLP in blocks without experts */
        inner = g.top_k * g.n_expert_inner;
    }
    if (g.rope_factor != 0.0)
        snprintf(scaling, sizeof scaling,
                 "{\"rope_type\": \"llama3\", \"factor\": %.15g, \"low_freq_factor\": %.15g, \"high_freq_factor\": "
                 "%.15g, "
                 "\"original_max_position_embeddings\": %" PRId64 "}",
                 g.rope_factor, g.rope_low_freq_factor, g.rope_high_freq_factor, g.rope_original_positions);
    return snprintf(text, HF_CONFIG_BYTES,
                    "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n  \"vocab_size\": %" PRId64
                    ",\n  \"max_position_embeddings\": %" PRId64 ",\n  \"hidden_size\": %" PRId64
                    ",\n  \"intermediate_size\": %" PRId64 ",\n  \"num_hidden_layers\": %" PRId64
                    ",\n  \"num_attention_heads\": %" PRId64 ",\n  \"num_key_value_heads\": %" PRId64
                    ",\n  \"head_dim\": %" PRId64
                    ",\n  \"hidden_act\": \"silu\",\n  \"rms_norm_eps\": %.15g,\n  \"rope_theta\": %.15g,\n"
                    "  \"rope_scaling\": %s,\n  \"attention_bias\": false,\n  %s%s,\n  \"attention_dropout\": 0.0,\n"
                    "  \"initializer_range\": %.15g,\n  \"bos_token_id\": %s,\n  \"eos_token_id\": %s,\n  "
                    "\"tie_word_embeddings\": %s,\n"
                    "  \"dtype\": \"%s\",\n  \"torch_dtype\": \"%s\"\n}\n",
                    class->name, class->type, g.vocab_size, g.n_positions, g.n_embd, inner, g.n_layer, g.n_head,
                    shape_kv_heads(g), shape_head_dim(g), g.norm_eps, g.rope_theta, scaling, class->rest, experts,
                    shape_init_std(g), end, end, g.tie_embeddings ? "true" : "false", dtype, dtype);
}

/* Returns the object with the rotary parameters in config.json, or NULL. It is rope_scaling, or rope_parameters if
 * rope_scaling is empty, as in transformers 5. With `warns` it warns if these two objects differ, and of unknown
 * members. */
static const cJSON *rope_of(const cJSON *config, const char *path, int warns) {
    static const char *const names[] = {"rope_scaling", "rope_parameters"};
    const cJSON *rope = NULL;
    for (int i = 0; i < 2; i++) {
        const cJSON *one = json_member(config, names[i]);
        if (one && !cJSON_IsNull(one) && !cJSON_IsObject(one))
            hf_refuse_key(path, one, "an object { ... } or null is expected: correct this value");
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
    *value = real_of(n, 0.0, path);
}

static void take_scaling(ModelShape *shape, const cJSON *config, const char *path, int warns) {
    const cJSON *rope = rope_of(config, path, warns), *type = json_member(rope, "rope_type");
    if (!rope) return;
    shape->rope_theta = real_of(json_member(rope, "rope_theta"), shape->rope_theta, path);
    if (!type) type = json_member(rope, "type");
    if (!type || is_word(type, "default")) return;
    if (!is_word(type, "llama3")) hf_refuse_key(path, type, "only \"default\" and \"llama3\" are supported");
    need_real(rope, "factor", &shape->rope_factor, path);
    need_real(rope, "low_freq_factor", &shape->rope_low_freq_factor, path);
    need_real(rope, "high_freq_factor", &shape->rope_high_freq_factor, path);
    const char  *known = "original_max_position_embeddings";
    const cJSON *outside = json_member(config, known);
    shape->rope_original_positions =
        size_or(json_member(rope, known), size_or(outside, shape->n_positions, path), path);
    if (outside && !cJSON_IsNull(outside) && size_of(outside, path) != shape->rope_original_positions)
        hf_refuse_key(path, outside, "but rope_scaling or rope_parameters gives this key another value: remove one of "
                      "the two values");
    if (shape->rope_factor < 1.0 || shape->rope_low_freq_factor >= shape->rope_high_freq_factor)
        hf_refuse_key(path, type, "its factor must be at least 1, and low_freq_factor less than high_freq_factor");
}

/* Exits with 65 if config.json has a sliding window that limits any layer of the model. In qwen3 it limits layers from
 * max_window_layers on, in qwen3_moe all layers. */
static void refuse_window(const cJSON *config, const char *path, ModelShape shape) {
    const cJSON *window = json_member(config, "sliding_window");
    const cJSON *first = json_member(config, "max_window_layers");
    double       from = shape.arch != ARCH_QWEN3 ? 0.0 : cJSON_IsNumber(first) ? number_value(first) : 28.0;
    if (shape.arch == ARCH_LLAMA || !flag_of(json_member(config, "use_sliding_window"), 0, path)) return;
    if (window && (cJSON_IsNull(window) || number_value(window) >= (double)shape.n_positions)) return;
    if (from >= (double)shape.n_layer) return;
    hf_refuse_key(path, json_member(config, "use_sliding_window"),
                  "only false is supported, because a token always attends to all tokens before it: use another model");
}

static void take_experts(ModelShape *shape, const cJSON *config, const char *path) {
    const cJSON *method = json_member(config, "topk_method");
    shape->n_inner = 0;
    shape->n_experts = size_for(config, path, shape->arch, "moe.experts");
    shape->top_k = size_for(config, path, shape->arch, "moe.top_k");
    shape->n_expert_inner = size_for(config, path, shape->arch, "moe.n_inner");
    shape->norm_top_k = flag_of(json_member(config, "norm_topk_prob"), 0, path);
    if (method && !cJSON_IsNull(method) && !is_word(method, WITH_BIAS) && !is_word(method, "greedy"))
        hf_refuse_key(path, method, "only \"greedy\" and \"noaux_tc\" are supported");
    shape->balance = is_word(method, WITH_BIAS) ? BALANCE_BIAS : BALANCE_NONE;
    if (shape->top_k > shape->n_experts)
        hf_refuse_key(path, json_member(config, "num_experts_per_tok"), "the value of num_experts is the most that it "
                      "may be: correct one of the two");
}

static ModelShape shape_of(const cJSON *config, const char *path, int arch, int warns) {
    const HfClass *class = &CLASSES[arch];
    ModelShape     shape = sizes_of(config, path, arch);
    int64_t        shared = class->n_kv_head ? class->n_kv_head : shape.n_head;
    shape.n_positions = size_or(hf_value(config, path, arch, "model.n_positions"), class->positions, path);
    shape.tie_embeddings = flag_of(json_member(config, "tie_word_embeddings"), 0, path);
    shape.n_kv_head = size_or(json_member(config, "num_key_value_heads"), shared, path);
    shape.head_dim = size_or(json_member(config, "head_dim"), class->head_dim, path);
    shape.n_inner = size_for(config, path, arch, "model.n_inner");
    shape.norm_eps = real_of(json_member(config, "rms_norm_eps"), 1e-6, path);
    shape.rope_theta = real_of(json_member(config, "rope_theta"), 10000.0, path);
    /* no other value is possible, because hf_members.c refuses another hidden_act */
    shape.activation = ACTIVATION_SILU;
    shape.rope_low_freq_factor = 1.0, shape.rope_high_freq_factor = 4.0, shape.rope_original_positions = 8192;
    take_scaling(&shape, config, path, warns);
    if (block_kind(shape)->traits & HAS_EXPERTS) take_experts(&shape, config, path);
    refuse_window(config, path, shape);
    if (shape.n_head % shape.n_kv_head != 0 ||
        (shape.head_dim ? shape.head_dim % 2 : shape.n_embd % (2 * shape.n_head)) != 0)
        fail(EXIT_DATA,
             "%s: num_attention_heads %lld, hidden_size %lld, num_key_value_heads %lld: head_dim, or hidden_size / "
             "num_attention_heads, must "
             "be even, and num_attention_heads a multiple of num_key_value_heads",
             path, (long long)shape.n_head, (long long)shape.n_embd, (long long)shape.n_kv_head);
    return shape;
}

static ModelShape llama_shape(const cJSON *config, const char *path) {
    return shape_of(config, path, arch_of(config), 0);
}

/* Writes the value of a config key as a config has it: a number with all its digits, or true or false. */
static void value_as_given(const char *key, double value, char out[SHOWN_BYTES]) {
    int is_flag = strcmp(key, "model.tie_embeddings") == 0 || strcmp(key, "moe.norm_top_k") == 0;
    if (is_flag) snprintf(out, SHOWN_BYTES, value != 0.0 ? "true" : "false");
    else number_text(value, out);
}

static void llama_expect(const cJSON *config, const char *path, ModelShape ours, int has_head) {
    const HfClass *class = &CLASSES[ours.arch];
    const cJSON   *type = json_member(config, "model_type");
    int            has_experts = block_kind(ours)->traits & HAS_EXPERTS;
    char           arch[40], has[SHOWN_BYTES], have[SHOWN_BYTES];
    snprintf(arch, sizeof arch, "model.arch is %s", block_kind(ours)->name);
    if (type && !is_type(config, class->type)) hf_refuse_key(path, type, arch);
    ModelShape theirs = shape_of(config, path, ours.arch, 1);
    expect_head(path, theirs.tie_embeddings, has_head);
    /* the weights decide, not config.json: if they hold a head, a model with a head of its own can use it */
    if (has_head && theirs.tie_embeddings) theirs.tie_embeddings = ours.tie_embeddings;
    struct { const char *key; double theirs, ours; } of[] = {
        {"model.n_head", (double)theirs.n_head, (double)ours.n_head},
        {"model.head_dim", (double)shape_head_dim(theirs), (double)shape_head_dim(ours)},
        {"model.n_kv_head", (double)theirs.n_kv_head, (double)shape_kv_heads(ours)},
        {"model.tie_embeddings", theirs.tie_embeddings, ours.tie_embeddings},
        {"model.norm_eps", theirs.norm_eps, ours.norm_eps},
        {"moe.top_k", (double)theirs.top_k, (double)ours.top_k},
        {"moe.norm_top_k", theirs.norm_top_k, has_experts ? ours.norm_top_k : 0},
        {"model.rope_theta", theirs.rope_theta, ours.rope_theta},
        {"model.rope_factor", theirs.rope_factor, ours.rope_factor},
        {"model.rope_low_freq_factor", theirs.rope_low_freq_factor, ours.rope_low_freq_factor},
        {"model.rope_high_freq_factor", theirs.rope_high_freq_factor, ours.rope_high_freq_factor},
        {"model.rope_original_positions", (double)theirs.rope_original_positions, (double)ours.rope_original_positions},
    };
    int scaled = theirs.rope_factor != 0.0 || ours.rope_factor != 0.0;
    for (int i = 0; i < (scaled ? 12 : 9); i++) {
        value_as_given(of[i].key, of[i].theirs, has), value_as_given(of[i].key, of[i].ours, have);
        if (fabs(of[i].theirs - of[i].ours) > 1e-6 * fabs(of[i].ours)) refuse_differing(path, of[i].key, has, have);
    }
}

const HfFiles HF_LLAMA = {llama_text, llama_shape, llama_expect};

/* --- any kind ----------------------------------------------------------------------------------------------------- */

/* Writes an id as JSON, or null if it is negative. The key of an id must not be missing, because transformers would
 * then use GPT-2's 50256. */
enum { ID_CHARS = 16 };
static const char *id_text(int32_t id, char out[ID_CHARS]) {
    snprintf(out, ID_CHARS, id < 0 ? "null" : "%d", id);
    return out;
}

int hf_config_text(ModelShape g, int32_t end_of_text, const char *dtype, char *text) {
    char end[ID_CHARS];
    id_text(end_of_text, end);
    int bytes = block_kind(g)->files->text(g, end, dtype, text);
    return g.logit_softcap > 0.0 ? softcap_text(text, bytes, g.logit_softcap) : bytes;
}

int hf_generation_text(int32_t end_of_text, char *text) {
    char end[ID_CHARS];
    id_text(end_of_text, end);
    return snprintf(text, HF_CONFIG_BYTES,
                    "{\n  \"bos_token_id\": %s,\n  \"eos_token_id\": %s,\n  \"pad_token_id\": %s\n}\n", end, end, end);
}

int hf_tokenizer_config_text(int64_t n_positions, const char *begin, int adds_begin, const char *end_of_text,
                             char *text) {
    char end[200] = "null", bos[200] = "null";
    if (end_of_text) json_quote_short(end, sizeof end, end_of_text);
    if (begin || end_of_text) json_quote_short(bos, sizeof bos, begin ? begin : end_of_text);
    return snprintf(text, HF_CONFIG_BYTES,
                    "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n  \"model_max_length\": %" PRId64
                    ",\n  \"add_prefix_space\": false,\n  \"clean_up_tokenization_spaces\": false,\n  \"bos_token\": "
                    "%s,\n"
                    "%s  \"eos_token\": %s,\n  \"unk_token\": %s\n}\n",
                    n_positions, bos,
                    adds_begin < 0 ? ""
                    : adds_begin   ? "  \"add_bos_token\": true,\n"
                                   : "  \"add_bos_token\": false,\n",
                    end, end);
}

/* Exits with 65 if `architectures` in config.json names the class of another kind of model. Programs that read this key
 * would compute another model. Names that are not classes of language models are ignored. */
static void expect_architecture(const cJSON *config, const char *path, int arch) {
    /* endings of such names; the code below needs both to have 11 letters */
    static const char *const ends[] = {"LMHeadModel", "ForCausalLM"};
    const char  *ours = CLASSES[arch].name;
    const cJSON *all = json_member(config, "architectures"), *type = json_member(config, "model_type"), *one;
    cJSON_ArrayForEach(one, all) {
        for (int i = 0; i < 2 && cJSON_IsString(one); i++) {
            const char *name = one->valuestring;
            size_t      bytes = strlen(name), tail = strlen(ends[i]), stem = bytes > tail ? bytes - tail : 0;
            if (stem == 0 || strcmp(name + stem, ends[i]) != 0) continue;
            /* case is ignored, because early files have LLaMA instead of Llama */
            if (stem == strlen(ours) - tail && strncasecmp(name, ours, stem) == 0) continue;
            if (!type)
                fail(EXIT_DATA,
                     "%s: model_type is missing, and architectures names %.80s: add the model_type of this model", path,
                     name);
            fail(EXIT_DATA,
                 "%s: architectures names %.80s, but model_type is %.80s: correct the one of them that is wrong", path,
                 name, cJSON_IsString(type) ? type->valuestring : "no text");
        }
    }
}

static void expect_object(const cJSON *config, const char *path) {
    if (!cJSON_IsObject(config))
        fail(EXIT_DATA, "%s: this file is not the config.json of a model, which is an object { ... }: replace it by "
             "the model's config.json",
             path);
}

ModelShape hf_config_shape(const cJSON *config, const char *path) {
    expect_object(config, path);
    const cJSON *type = json_member(config, "model_type");
    int          arch = arch_of(config);
    if (arch < 0 && type)
        hf_refuse_key(path, type, "only gpt2, llama, qwen3 and qwen3_moe are supported: use a model of one of these "
                      "kinds");
    if (arch < 0) { /* a file without a model_type is read as gpt2 */
        arch = ARCH_GPT2;
        expect_architecture(config, path, arch);
    }
    ModelShape shape = block_kind((ModelShape){.arch = arch})->files->shape(config, path);
    shape.logit_softcap = hf_softcap_of(config, path);
    return shape;
}

Activation hf_config_activation(const cJSON *config, const char *path, int arch) {
    const cJSON *type = json_member(config, "model_type");
    if (arch != ARCH_GPT2 || (type && !is_type(config, CLASSES[arch].type)))
        return block_kind((ModelShape){.arch = arch})->activation;
    return activation_of(json_member(config, "activation_function"), path);
}

void hf_config_expect(const cJSON *config, const char *path, ModelShape ours, int has_head) {
    expect_object(config, path);
    hf_members_check(config, path, ours.arch);
    double cap = hf_softcap_of(config, path);
    char has[SHOWN_BYTES], have[SHOWN_BYTES];
    number_text(cap, has), number_text(ours.logit_softcap, have);
    if (cap != ours.logit_softcap)
        fail(EXIT_DATA,
             "%s: this model caps its logits at %s, but the config of this run has model.logit_softcap = %s (0 means "
             "no cap): set model.logit_softcap=%s",
             path, has, have, has);
    block_kind(ours)->files->expect(config, path, ours, has_head);
    expect_architecture(config, path, ours.arch);
}

/* --- names -------------------------------------------------------------------------------------------------------- */

/* Parts of tensor names that other programs add at the front, or anywhere, and that carry no meaning. They come from
 * the wrappers of torch (compile, data parallel, FSDP, recomputation), and from models that transformers keeps inside
 * another model. */
static const char *const PREFIXES[] = {"module.", "model.", "transformer.", "language_model."};
static const char *const WRAPPERS[] = {"_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."};

/* Returns the length of the first of these parts with which text begins, or 0 if there is none. */
static size_t begins_with(const char *text, const char *const *parts, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (strncmp(text, parts[i], strlen(parts[i])) == 0) return strlen(parts[i]);
    return 0;
}

char *hf_plain_name(const char *name, char out[HF_NAME_BYTES]) {
    size_t at = 0, own, is_start = 1;
    while (*name && at + 1 < HF_NAME_BYTES) {
        own = is_start ? begins_with(name, WRAPPERS, sizeof WRAPPERS / sizeof *WRAPPERS) : 0;
        if (!own && at == 0) own = begins_with(name, PREFIXES, sizeof PREFIXES / sizeof *PREFIXES);
        name += own;
        if (own) continue;
        is_start = *name == '.';
        out[at++] = *name++;
    }
    out[at] = 0;
    return out;
}

/* Tensors in files that are no parameters of a model with a tied head, by plain name. '#' stands for the number of a
 * block. */
static const struct { const char *name; HfExtra is; } EXTRAS[] = {
    {"lm_head.weight", HF_HEAD},
    {"h.#.attn.bias", HF_NOTHING},        /* causal mask of attention, in old files */
    {"h.#.attn.masked_bias", HF_NOTHING}, /* value that the mask gives to hidden scores, in old files */
    {"layers.#.self_attn.rotary_emb.inv_freq", HF_NOTHING}, /* tables of rotary angles, in old files of llama */
    {"rotary_emb.inv_freq", HF_NOTHING},
};

static int is_like(const char *name, const char *pattern) {
    for (; *pattern && *pattern != '#'; name++, pattern++)
        if (*name != *pattern) return 0;
    if (!*pattern) return !*name;
    size_t digits = strspn(name, "0123456789");
    return digits > 0 && strcmp(name + digits, pattern + 1) == 0;
}

HfExtra hf_extra(const char *plain) {
    for (size_t i = 0; i < sizeof EXTRAS / sizeof *EXTRAS; i++)
        if (is_like(plain, EXTRAS[i].name)) return EXTRAS[i].is;
    return HF_ROW;
}
