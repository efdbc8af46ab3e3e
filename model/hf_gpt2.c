/* hf_gpt2.c - see hf_gpt2.h. */
#include "model/hf_gpt2.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "core/error.h"
#include "core/json.h"
#include "model/block.h"
#include "model/hf_members.h"
#include "model/hf_softcap.h"

/* --- config.json -------------------------------------------------------------------------------------------------- */

/* Writes an id, or null if there is none. A key must not be missing: transformers would use GPT-2's 50256. */
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

int hf_tokenizer_config_text(int64_t n_positions, const char *begin, int adds_begin, const char *end_of_text, char *text) {
    char end[200] = "null", bos[200] = "null";
    if (end_of_text) json_quote_short(end, sizeof end, end_of_text);
    if (begin || end_of_text) json_quote_short(bos, sizeof bos, begin ? begin : end_of_text);
    return snprintf(text, HF_CONFIG_BYTES,
                    "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n  \"model_max_length\": %" PRId64
                    ",\n  \"add_prefix_space\": false,\n  \"clean_up_tokenization_spaces\": false,\n  \"bos_token\": %s,\n"
                    "%s  \"eos_token\": %s,\n  \"unk_token\": %s\n}\n",
                    n_positions, bos,
                    adds_begin < 0 ? "" : adds_begin ? "  \"add_bos_token\": true,\n" : "  \"add_bos_token\": false,\n", end, end);
}

int64_t hf_size_of(const cJSON *config, const char *key, const char *path) {
    const cJSON *n = json_member(config, key);
    char         shown[SHOWN_BYTES];
    if (!n)
        fail(EXIT_DATA,
             "%s: %s is missing: add it, with the value of this model (most follow from the shapes of its weights)",
             path, key);
    if (!cJSON_IsNumber(n) || n->valuedouble < 1 || n->valuedouble > INT32_MAX ||
        n->valuedouble != floor(n->valuedouble))
        fail(EXIT_DATA, "%s: %s is %s; a whole number from 1 to %d is expected", path, key, value_text(n, shown),
             INT32_MAX);
    return (int64_t)n->valuedouble;
}

/* Returns a size that has two names in transformers. Exits with 65 if both are there and differ. */
static int64_t size_of_either(const cJSON *config, const char *name, const char *other, const char *path) {
    if (!json_member(config, other)) return hf_size_of(config, name, path);
    if (!json_member(config, name)) return hf_size_of(config, other, path);
    if (hf_size_of(config, name, path) != hf_size_of(config, other, path))
        fail(EXIT_DATA, "%s: %s and %s are two names of one size, but differ: remove one of them", path, name, other);
    return hf_size_of(config, name, path);
}

static ModelShape gpt2_shape(const cJSON *config, const char *path) {
    const cJSON *inner = json_member(config, "n_inner");
    ModelShape   shape = GPT2_SHAPE(size_of_either(config, "n_layer", "num_hidden_layers", path),
                                    size_of_either(config, "n_head", "num_attention_heads", path),
                                    size_of_either(config, "n_embd", "hidden_size", path),
                                    size_of_either(config, "n_positions", "max_position_embeddings", path),
                                    hf_size_of(config, "vocab_size", path));
    if (shape.n_embd % shape.n_head != 0)
        fail(EXIT_DATA, "%s: n_embd %lld is no multiple of n_head %lld", path, (long long)shape.n_embd, (long long)shape.n_head);
    if (inner && !cJSON_IsNull(inner) && hf_size_of(config, "n_inner", path) != 4 * shape.n_embd)
        hf_refuse_key(path, inner, "only null or 4 x n_embd is supported");
    shape.tie_embeddings = hf_flag_of(config, "tie_word_embeddings", 1, path);
    return shape;
}

/* Refuses `architectures` that name the language model of another kind, because programs that read it would compute
 * another model. Names of other classes are ignored. */
static void expect_architecture(const cJSON *config, const char *path, int arch) {
    static const char *const stems[ARCH_COUNT] = {"GPT2", "Llama", "Qwen3", "Qwen3Moe"}, *const ends[] = {"LMHeadModel", "ForCausalLM"};
    const cJSON *all = json_member(config, "architectures"), *type = json_member(config, "model_type"), *one;
    cJSON_ArrayForEach(one, all) {
        for (int i = 0; i < 2 && cJSON_IsString(one); i++) {
            const char *name = one->valuestring;
            size_t      bytes = strlen(name), tail = strlen(ends[i]), stem = bytes > tail ? bytes - tail : 0;
            if (stem == 0 || strcmp(name + stem, ends[i]) != 0) continue;
            if (stem == strlen(stems[arch]) && strncasecmp(name, stems[arch], stem) == 0) continue; /* early files have LLaMA */
            if (!type) fail(EXIT_DATA, "%s: model_type is missing, and architectures names %.80s: add the model_type of this model", path, name);
            fail(EXIT_DATA, "%s: architectures names %.80s, but model_type is %.80s: correct the one of them that is wrong", path, name,
                 cJSON_IsString(type) ? type->valuestring : "no text");
        }
    }
}

/* Returns how config.json is read, by its model_type; without one it is read as gpt2. */
static const HfFiles *files_of(const cJSON *config, const char *path) {
    const cJSON *type = json_member(config, "model_type");
    if (!cJSON_IsObject(config)) fail(EXIT_DATA, "%s: an object is expected: this is no config.json of a model", path);
    for (int arch = 0; arch < ARCH_COUNT; arch++) {
        const HfFiles *files = block_kind((ModelShape){.arch = arch})->files;
        if (files->reads(config)) return files;
    }
    if (!type) expect_architecture(config, path, ARCH_GPT2);
    if (type) hf_refuse_key(path, type, "gpt2, llama, qwen3 and qwen3_moe are supported");
    return &HF_GPT2;
}

ModelShape hf_config_shape(const cJSON *config, const char *path) {
    ModelShape shape = files_of(config, path)->shape(config, path);
    shape.logit_softcap = hf_softcap_of(config, path);
    return shape;
}

int hf_is_word(const cJSON *value, const char *word) { return cJSON_IsString(value) && strcmp(value->valuestring, word) == 0; }

/* Returns whether value is one of transformers' names for GELU by tanh. */
static int is_gelu_by_tanh(const cJSON *value) {
    static const char *const names[] = {"gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate",
                                        "gelu_python_tanh"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (hf_is_word(value, names[i])) return 1;
    return 0;
}

static int gpt2_reads(const cJSON *config) { return hf_is_type(config, "gpt2"); }

void hf_expect_head(const char *path, int is_tied, int has_head) {
    if (!is_tied && !has_head)
        fail(EXIT_DATA,
             "%s: tie_word_embeddings is false or missing, but the weights hold no lm_head.weight: if the head of this "
             "model is its embedding, set tie_word_embeddings to true there",
             path);
}

static void gpt2_expect(const cJSON *config, const char *path, ModelShape shape, int has_head) {
    char         ours[80];
    const cJSON *type = json_member(config, "model_type"), *heads = json_member(config, "n_head");
    const cJSON *activation = json_member(config, "activation_function"), *epsilon = json_member(config, "layer_norm_epsilon");
    snprintf(ours, sizeof ours, "model.n_head is %" PRId64, shape.n_head);
    if (type && !hf_is_type(config, "gpt2")) hf_refuse_key(path, type, "model.arch is gpt2");
    if (!heads) heads = json_member(config, "num_attention_heads");
    if (heads && number_value(heads) != (double)shape.n_head) hf_refuse_key(path, heads, ours);
    if (activation && !is_gelu_by_tanh(activation))
        hf_refuse_key(path, activation, "only gelu_new (by tanh) is supported");
    if (epsilon && !(fabs(number_value(epsilon) - 1e-5) <= 1e-11))
        hf_refuse_key(path, epsilon, "only 1e-5 is supported");
    hf_expect_head(path, hf_flag_of(config, "tie_word_embeddings", 1, path), has_head);
}

const HfFiles HF_GPT2 = {gpt2_text, gpt2_reads, gpt2_shape, gpt2_expect};

void hf_config_expect(const cJSON *config, const char *path, ModelShape ours, int has_head) {
    if (!cJSON_IsObject(config)) fail(EXIT_DATA, "%s: an object is expected: this is no config.json of a model", path);
    hf_members_check(config, path, ours.arch);
    double cap = hf_softcap_of(config, path);
    char has[SHOWN_BYTES], have[SHOWN_BYTES];
    number_text(cap, has), number_text(ours.logit_softcap, have);
    if (cap != ours.logit_softcap)
        fail(EXIT_DATA,
             "%s: the soft cap of this model's logits is %s, ours %s (0: none; the shapes of weights do not show it): give "
             "model.logit_softcap=%s",
             path, has, have, has);
    block_kind(ours)->files->expect(config, path, ours, has_head);
    expect_architecture(config, path, ours.arch);
}

/* --- names -------------------------------------------------------------------------------------------------------- */

/* Parts of names that other programs add at the front, or anywhere, and that carry no meaning. They come from the
 * wrappers of torch (compile, data parallel, FSDP, recomputation) and from models that transformers keeps inside
 * another. */
static const char *const PREFIXES[] = {"module.", "model.", "transformer.", "language_model."};
static const char *const WRAPPERS[] = {"_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."};

/* Returns the length of the first of `parts` that text begins with, or 0. */
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

/* '#' stands for the number of a block. */
static const struct { const char *name; HfExtra is; } EXTRAS[] = {
    {"lm_head.weight", HF_HEAD},
    {"h.#.attn.bias", HF_NOTHING},        /* attention's causal mask, */
    {"h.#.attn.masked_bias", HF_NOTHING}, /* and what it writes: in old files */
    {"layers.#.self_attn.rotary_emb.inv_freq", HF_NOTHING}, /* tables of angles, in files of llama */
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
