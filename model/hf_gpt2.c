/* hf_gpt2.c - see hf_gpt2.h. */
#include "model/hf_gpt2.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/json.h"
#include "core/json_scan.h"
#include "core/json_text.h"
#include "model/block.h"
#include "model/hf_softcap.h"

/* --- config.json -------------------------------------------------------------------------------------------------- */

/* An id, or null: transformers takes GPT-2's 50256 where a key is missing. */
enum { ID_CHARS = 16 };
static const char *id_text(int32_t id, char out[ID_CHARS]) {
    snprintf(out, ID_CHARS, id < 0 ? "null" : "%d", id);
    return out;
}

static int gpt2_text(ModelShape g, const char *end, const char *dtype, char *text) {
    return snprintf(text, HF_CONFIG_BYTES,
        "{\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": \"gpt2\",\n  \"vocab_size\": %" PRId64 ",\n  \"n_positions\": %" PRId64
        ",\n  \"n_ctx\": %" PRId64 ",\n  \"n_embd\": %" PRId64 ",\n  \"n_layer\": %" PRId64 ",\n  \"n_head\": %" PRId64
        ",\n  \"n_inner\": null,\n  \"activation_function\": \"gelu_new\",\n  \"layer_norm_epsilon\": 1e-05,\n  \"attn_pdrop\": 0.0,\n"
        "  \"embd_pdrop\": 0.0,\n  \"resid_pdrop\": 0.0,\n  \"summary_first_dropout\": 0.0,\n  \"initializer_range\": %.15g,\n"
        "  \"bos_token_id\": %s,\n  \"eos_token_id\": %s,\n  \"tie_word_embeddings\": true,\n  \"dtype\": \"%s\",\n  \"torch_dtype\": \"%s\"\n}\n",
        g.vocab_size, g.n_positions, g.n_positions, g.n_embd, g.n_layer, g.n_head, shape_init_std(g), end, end, dtype, dtype);
}

int hf_config_text(ModelShape g, int32_t end_of_text, const char *dtype, char *text) {
    char end[ID_CHARS];
    id_text(end_of_text, end);
    int bytes = block_kind(g)->files->text(g, end, dtype, text);
    return g.logit_softcap > 0.0 ? hf_softcap_text(text, bytes, g.logit_softcap) : bytes;
}

int hf_generation_text(int32_t end_of_text, char *text) {
    char end[ID_CHARS];
    id_text(end_of_text, end);
    return snprintf(text, HF_CONFIG_BYTES, "{\n  \"bos_token_id\": %s,\n  \"eos_token_id\": %s,\n  \"pad_token_id\": %s\n}\n", end, end, end);
}

int hf_tokenizer_config_text(int64_t n_positions, const char *end_of_text, char *text) {
    char end[200] = "null";
    if (end_of_text) json_quote_short(end, sizeof end, end_of_text);
    return snprintf(text, HF_CONFIG_BYTES,
                    "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n  \"model_max_length\": %" PRId64
                    ",\n  \"add_prefix_space\": false,\n  \"clean_up_tokenization_spaces\": false,\n  \"bos_token\": %s,\n"
                    "  \"eos_token\": %s,\n  \"unk_token\": %s\n}\n",
                    n_positions, end, end, end);
}

int64_t hf_size_of(const cJSON *config, const char *key, const char *path) {
    const cJSON *n = json_member(config, key);
    if (!cJSON_IsNumber(n) || n->valuedouble < 1 || n->valuedouble > 1 << 30 || n->valuedouble != floor(n->valuedouble))
        fail(EXIT_DATA, "%s: %s is missing or no size: this is no config of a model that is trained here", path, key);
    return (int64_t)n->valuedouble;
}

static ModelShape gpt2_shape(const cJSON *config, const char *path) {
    ModelShape shape = GPT2_SHAPE(hf_size_of(config, "n_layer", path), hf_size_of(config, "n_head", path), hf_size_of(config, "n_embd", path),
                      hf_size_of(config, "n_positions", path), hf_size_of(config, "vocab_size", path));
    if (shape.n_embd % shape.n_head != 0)
        fail(EXIT_DATA, "%s: n_embd %lld is no multiple of n_head %lld", path, (long long)shape.n_embd, (long long)shape.n_head);
    return shape;
}

ModelShape hf_config_shape(const cJSON *config, const char *path) {
    const HfFiles *files = &HF_GPT2; /* of a config.json without a type, too */
    for (int arch = 0; arch < ARCH_COUNT; arch++) {
        const BlockKind *kind = block_kind((ModelShape){.arch = arch});
        if (kind->files->reads(config)) files = kind->files;
    }
    ModelShape shape = files->shape(config, path);
    shape.logit_softcap = hf_softcap_of(config, path);
    return shape;
}

NORETURN void hf_refuse_key(const char *path, const cJSON *value, const char *ours) {
    char theirs[SHOWN_BYTES];
    fail(EXIT_DATA, "%s: %s is %s; %s (the shapes of weights do not show it)", path, value->string,
         value_text(value, theirs), ours);
}

int hf_is_word(const cJSON *value, const char *word) { return cJSON_IsString(value) && strcmp(value->valuestring, word) == 0; }

/* The names that transformers has for GELU by tanh. */
static int is_gelu_by_tanh(const cJSON *value) {
    return hf_is_word(value, "gelu_new") || hf_is_word(value, "gelu_pytorch_tanh") || hf_is_word(value, "gelu_fast");
}

static int gpt2_reads(const cJSON *config) { return hf_is_type(config, "gpt2"); }

static void gpt2_expect(const cJSON *config, const char *path, ModelShape shape) {
    char         ours[80];
    const cJSON *type = json_member(config, "model_type"), *heads = json_member(config, "n_head");
    const cJSON *activation = json_member(config, "activation_function"), *epsilon = json_member(config, "layer_norm_epsilon");
    const cJSON *by_layer = json_member(config, "scale_attn_by_inverse_layer_idx"),
                *scaled = json_member(config, "scale_attn_weights");
    snprintf(ours, sizeof ours, "model.n_head is %" PRId64, shape.n_head);
    if (type && !hf_is_type(config, "gpt2")) hf_refuse_key(path, type, "model.arch is gpt2");
    if (heads && number_value(heads) != (double)shape.n_head) hf_refuse_key(path, heads, ours);
    if (activation && !is_gelu_by_tanh(activation)) hf_refuse_key(path, activation, "gelu_new, by tanh, is computed here");
    if (epsilon && fabs(number_value(epsilon) - 1e-5) > 1e-11) hf_refuse_key(path, epsilon, "1e-5 is used here");
    if (by_layer && cJSON_IsTrue(by_layer)) hf_refuse_key(path, by_layer, "attention is not scaled so here");
    if (scaled && cJSON_IsFalse(scaled)) hf_refuse_key(path, scaled, "attention is scaled here");
}

const HfFiles HF_GPT2 = {gpt2_text, gpt2_reads, gpt2_shape, gpt2_expect};

void hf_config_expect(const cJSON *config, const char *path, ModelShape ours) {
    double cap = hf_softcap_of(config, path);
    if (cap != ours.logit_softcap)
        fail(EXIT_DATA, "%s: the soft cap of this model's logits is %.9g, ours %.9g (0: none; the shapes of weights do not show it): give "
             "model.logit_softcap = %.9g", path, cap, ours.logit_softcap, cap);
    block_kind(ours)->files->expect(config, path, ours);
}

/* --- names -------------------------------------------------------------------------------------------------------- */

#define PREFIX "transformer."

const char *hf_plain_name(const char *name) { return strncmp(name, PREFIX, strlen(PREFIX)) == 0 ? name + strlen(PREFIX) : name; }

/* '#' stands for the number of a block. */
static const struct { const char *name; HfExtra is; } EXTRAS[] = {
    {"lm_head.weight", HF_HEAD},
    {"h.#.attn.bias", HF_NOTHING},        /* attention's causal mask, */
    {"h.#.attn.masked_bias", HF_NOTHING}, /* and what it writes: in old files */
    {"model.layers.#.self_attn.rotary_emb.inv_freq", HF_NOTHING}, /* a table of angles, in old files of llama */
};

static int is_like(const char *name, const char *pattern) {
    for (; *pattern && *pattern != '#'; name++, pattern++)
        if (*name != *pattern) return 0;
    if (!*pattern) return !*name;
    size_t digits = strspn(name, "0123456789");
    return digits > 0 && strcmp(name + digits, pattern + 1) == 0;
}

HfExtra hf_extra(const char *name) {
    for (size_t i = 0; i < sizeof EXTRAS / sizeof *EXTRAS; i++)
        if (is_like(hf_plain_name(name), EXTRAS[i].name)) return EXTRAS[i].is;
    return HF_ROW;
}
