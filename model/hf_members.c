/* hf_members.c - the list of known members of config.json: see hf.h. The source of their meanings is transformers 5:
 * configuration_gpt2.py, configuration_llama.py, configuration_qwen3.py, configuration_qwen3_moe.py and
 * configuration_utils.py. */
#include "model/hf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/io.h"

enum {
    G = 1 << ARCH_GPT2, L = 1 << ARCH_LLAMA, Q = 1 << ARCH_QWEN3, M = 1 << ARCH_QWEN3_MOE,
    LQM = L | Q | M, ALL = G | LQM
};

/* A member of config.json, of one of three sorts. First, `option` is set: the program reads it, and option is the
 * config key of its value, or "". Second, `only` is set: the member is refused unless its value is one of these JSON
 * texts, which | separates. null, [] and {} are always allowed, and `ours` ends the message. Third, neither is set: it
 * changes no result, and `name` lists several names. kinds: set of bits 1 << Arch. */
typedef struct { const char *name; int kinds; const char *option, *only, *ours; } Member;

static const Member MEMBERS[] = {
    {"model_type", ALL, "model.arch"},
    {"vocab_size", ALL, "model.vocab_size"},
    {"tie_word_embeddings", ALL, "model.tie_embeddings"},
    {"bos_token_id", ALL, ""},
    {"eos_token_id", ALL, ""},
    {"final_logit_softcapping", ALL, "model.logit_softcap"},

    {"n_layer", G, "model.n_layer"},
    {"n_head", G, "model.n_head"},
    {"n_embd", G, "model.n_embd"},
    {"n_positions", G, "model.n_positions"},
    {"n_inner", G, "model.n_inner"},
    {"activation_function", G, "model.activation"},
    {"layer_norm_epsilon", G, "model.norm_eps"},
    {"scale_attn_weights", G, NULL, "true", "only attention divided by the root of the head size is supported"},
    {"scale_attn_by_inverse_layer_idx", G, NULL, "false",
     "attention divided by the number of the layer is not supported"},
    {"add_cross_attention", G, NULL, "false", "attention to another model is not supported"},
    /* reorder_and_upcast_attn only computes the product of attention in another order, in fp32, as this program does;
     * n_ctx is no longer read by transformers, which reads n_positions */
    {"reorder_and_upcast_attn n_ctx embd_pdrop attn_pdrop resid_pdrop summary_type summary_use_proj summary_activation "
     "summary_proj_to_labels summary_first_dropout", G},

    /* this name and the next three are second names that gpt2 accepts */
    {"num_hidden_layers", ALL, "model.n_layer"},
    {"num_attention_heads", ALL, "model.n_head"},
    {"hidden_size", ALL, "model.n_embd"},
    {"max_position_embeddings", ALL, "model.n_positions"},
    {"num_key_value_heads", LQM, "model.n_kv_head"},
    {"head_dim", LQM, "model.head_dim"},
    {"intermediate_size", LQM, "model.n_inner"},
    {"rms_norm_eps", LQM, "model.norm_eps"},
    {"rope_theta", LQM, "model.rope_theta"},
    {"rope_scaling", LQM, ""},
    {"rope_parameters", LQM, ""},
    {"hidden_act", LQM, NULL, "\"silu\"|\"swish\"", "only silu is supported"},
    {"attention_bias", LQM, NULL, "false", "biases are not supported"},
    {"mlp_bias", L, NULL, "false", "biases are not supported"},
    {"partial_rotary_factor", LQM, NULL, "1", "only rotation of all channels of a head is supported"},
    {"use_sliding_window", Q | M, ""},
    {"sliding_window", Q | M, ""},
    {"max_window_layers", Q | M, ""},
    {"original_max_position_embeddings", LQM, ""},
    {"layer_types", LQM, NULL, "[\"full_attention\"]", "only \"full_attention\" is supported, for each layer"},
    {"attention_dropout", LQM},
    {"pretraining_tp", L}, /* number of slices in which a product is computed; the sum does not depend on it */

    {"num_experts", M, "moe.experts"},
    {"num_local_experts", M, "moe.experts"},
    {"num_experts_per_tok", M, "moe.top_k"},
    {"moe_intermediate_size", M, "moe.n_inner"},
    {"norm_topk_prob", M, "moe.norm_top_k"},
    {"topk_method", M, ""},
    {"decoder_sparse_step", M, NULL, "1", "only 1 is supported: every block has experts"},
    {"mlp_only_layers", M, NULL, "[]", "only [] is supported: every block has experts"},
    /* members about a loss that is used only in training */
    {"output_router_logits router_aux_loss_coef", M},

    {"quantization_config", ALL, NULL, "null", "quantized weights are not supported: use unquantized ones"},
    {"compression_config", ALL, NULL, "null", "quantized weights are not supported: use unquantized ones"},
    {"pruned_heads", ALL, NULL, "null", "pruned heads are not supported"},
    {"is_encoder_decoder", ALL, NULL, "false", "encoders are not supported"},
    {"cross_attention_hidden_size", ALL, NULL, "null", "encoders are not supported"},

    {"architectures transformers_version _name_or_path dtype torch_dtype use_cache initializer_range pad_token_id "
     "sep_token_id cls_token_id decoder_start_token_id is_decoder return_dict output_attentions output_hidden_states "
     "chunk_size_feed_forward task_specific_params problem_type finetuning_task id2label label2id num_labels "
     "tokenizer_class prefix torchscript use_bfloat16 tf_legacy_loss gradient_checkpointing attn_implementation "
     "_attn_implementation _attn_implementation_autoset keys_to_ignore_at_inference _commit_hash $comment", ALL},
    {NULL},
};

static const Member ROPE_MEMBERS[] = {
    {"rope_type", ALL, ""},
    {"type", ALL, ""},
    {"rope_theta", ALL, "model.rope_theta"},
    {"factor", ALL, "model.rope_factor"},
    {"low_freq_factor", ALL, "model.rope_low_freq_factor"},
    {"high_freq_factor", ALL, "model.rope_high_freq_factor"},
    {"original_max_position_embeddings", ALL, "model.rope_original_positions"},
    {"partial_rotary_factor", ALL, NULL, "1", "only rotation of all channels of a head is supported"},
    {"mrope_section", ALL, NULL, "null", "only one position for each token is supported"},
    {NULL},
};

/* Settings that `generate` of transformers reads, from generation_config.json or, without this file, from config.json.
 * A value that is null or among `idle` changes no text; with idle NULL no value does. key is the option of the command
 * `sample` that does the same; "" or NULL if there is none. */
static const struct { const char *names, *idle, *key; } GENERATION[] = {
    {"temperature", "1", "temperature"},
    {"top_k", "0", "top_k"},
    {"top_p", "1", "top_p"},
    {"min_p", "0", "min_p"},
    {"do_sample", "true", "temperature"},
    {"max_new_tokens max_length", "null", "tokens"},
    {"num_return_sequences", "1", "n"},
    {"stop_strings", "null", "stop"},
    {"typical_p repetition_penalty encoder_repetition_penalty guidance_scale num_beams num_beam_groups", "1", ""},
    {"epsilon_cutoff eta_cutoff no_repeat_ngram_size encoder_no_repeat_ngram_size penalty_alpha diversity_penalty "
     "min_length min_new_tokens", "0", ""},
    {"top_h bad_words_ids suppress_tokens begin_suppress_tokens forced_bos_token_id forced_eos_token_id sequence_bias "
     "exponential_decay_length_penalty constraints force_words_ids watermarking_config dola_layers max_time",
     "null", ""},
    {"force_bos_token_to_be_generated token_healing", "false", ""},
    /* settings that change no text of the command `sample`, whatever their value; run/text/stored_model.c reads
     * eos_token_id */
    {"bos_token_id eos_token_id pad_token_id decoder_start_token_id length_penalty early_stopping "
     "renormalize_logits remove_invalid_values use_cache use_mtp cache_implementation cache_config max_cache_len "
     "output_attentions output_hidden_states output_scores output_logits return_dict_in_generate is_assistant "
     "num_assistant_tokens num_assistant_tokens_schedule assistant_confidence_threshold prompt_lookup_num_tokens "
     "max_matching_ngram_size assistant_early_exit assistant_lookbehind target_lookbehind speculation_type "
     "compile_config disable_compile continuous_batching_config low_memory prefill_chunk_size transformers_version "
     "_from_model_config _commit_hash $comment", NULL, NULL},
};
enum { GENERATIONS = sizeof GENERATION / sizeof *GENERATION };

/* Returns whether `name` is one of these names, which are separated by spaces. */
static int is_named(const char *names, const char *name) {
    size_t n = strlen(name);
    for (const char *at = names; n && (at = strstr(at, name)); at += n)
        if ((at == names || at[-1] == ' ') && (at[n] == ' ' || !at[n])) return 1;
    return 0;
}

static int generation_find(const char *name) {
    int i = 0;
    while (i < GENERATIONS && !is_named(GENERATION[i].names, name)) i++;
    return i;
}

/* Searches a table, from row m on, for the first row for this kind of model (Arch) with this name and this option. A
 * name or option that is NULL matches any. Returns NULL if there is none. */
static const Member *member_find(const Member *m, int arch, const char *name, const char *option) {
    for (; m->name; m++)
        if (m->kinds & 1 << arch && (!name || is_named(m->name, name)) &&
            (!option || (m->option && strcmp(m->option, option) == 0)))
            return m;
    return NULL;
}

NORETURN void hf_refuse_key(const char *path, const cJSON *value, const char *ours) {
    char theirs[SHOWN_BYTES];
    fail(EXIT_DATA, "%s: %s is %s; %s", path, value->string,
         value_text(value, theirs), ours);
}

/* Returns 1 if a value is null, [], {} or equal to one of the JSON texts, which | separates. A text that is a list of
 * one element also allows a list of that element any number of times. */
static int is_among(const cJSON *value, const char *texts) {
    int found = cJSON_IsNull(value) || ((cJSON_IsArray(value) || cJSON_IsObject(value)) && !value->child);
    for (const char *text = texts; text && !found; text = strchr(text, '|') ? strchr(text, '|') + 1 : NULL) {
        cJSON *allowed = cJSON_ParseWithLength(text, strcspn(text, "|"));
        if (!cJSON_IsArray(value) || !cJSON_IsArray(allowed)) found = cJSON_Compare(value, allowed, 1);
        else if (allowed->child) {
            found = 1;
            for (const cJSON *item = value->child; item; item = item->next)
                found &= cJSON_Compare(item, allowed->child, 1);
        }
        cJSON_Delete(allowed);
    }
    return found;
}

/* Checks the members of an object by a table: refuses values that are not supported, and warns of unknown members.
 * `what` is written before their names: "" or "rope_scaling.". */
static void check(const Member *table, const cJSON *object, const char *what, const char *path, int arch) {
    enum { NAMED = 8 };
    char  *names = NULL, quoted[100];
    size_t bytes;
    int    unknown = 0;
    FILE  *out = memory_file_open(&names, &bytes);
    for (const cJSON *item = object->child; item; item = item->next) {
        const Member *m = member_find(table, arch, item->string, NULL);
        if (m && m->only && !is_among(item, m->only)) hf_refuse_key(path, item, m->ours);
        if (m || (!*what && (cJSON_IsNull(item) || generation_find(item->string) < GENERATIONS))) continue;
        if (unknown++ < NAMED)
            fprintf(out, "%s%s%s", unknown > 1 ? ", " : "", what,
                    json_quote_short(quoted, sizeof quoted, item->string));
    }
    if (unknown > NAMED) fprintf(out, " and %d more", unknown - NAMED);
    fclose(out);
    if (unknown) warn("%s: these members are unknown to this program, which ignores them: %s", path, names);
    free(names);
}

void hf_members_check(const cJSON *config, const char *path, int arch) {
    check(MEMBERS, config, "", path, arch);
}

void hf_members_check_rope(const cJSON *rope, const char *path) {
    char what[64];
    snprintf(what, sizeof what, "%s.", rope->string);
    check(ROPE_MEMBERS, rope, what, path, ARCH_LLAMA);
}

char *hf_generation_unused(const cJSON *config, const char *const *given, int is_own_file) {
    enum { NAMED = 12 };
    char  *text = NULL;
    size_t bytes;
    int    count = 0;
    FILE  *out = memory_file_open(&text, &bytes);
    for (const cJSON *item = cJSON_IsObject(config) ? config->child : NULL; item; item = item->next) {
        int i = generation_find(item->string), is_known = i < GENERATIONS;
        if ((!is_known && !is_own_file) || cJSON_IsNull(item)) continue;
        if (is_known && (!GENERATION[i].idle || is_among(item, GENERATION[i].idle))) continue;
        int is_given = 0;
        for (const char *const *key = given; is_known && *key; key++) is_given |= strcmp(*key, GENERATION[i].key) == 0;
        if (is_given || ++count > NAMED) continue;
        const char *option = is_known ? GENERATION[i].key : NULL; /* the option of `sample` that does the same */
        char        shown[SHOWN_BYTES], name[100];
        snprintf(name, sizeof name, "%.90s", item->string);
        fprintf(out, "%s%s %s", count > 1 ? ", " : "", name, value_text(item, shown));
        if (!option) fputs(" (not known here)", out);
        else if (!*option) fputs(" (not computed here)", out);
        else if (strcmp(name, "do_sample") == 0) fputs(" (temperature=0)", out);
        else if (cJSON_IsNumber(item)) fprintf(out, " (%s=%s)", option, shown);
        else fprintf(out, " (%s=)", option);
    }
    if (count > NAMED) fprintf(out, " and %d more", count - NAMED);
    fclose(out);
    if (count) return text;
    free(text);
    return NULL;
}

const char *hf_member_of(int arch, const char *option) {
    const Member *m = member_find(MEMBERS, arch, NULL, option);
    if (!m && arch != ARCH_GPT2) m = member_find(ROPE_MEMBERS, arch, NULL, option);
    return m ? m->name : NULL;
}

const cJSON *hf_value(const cJSON *config, const char *path, int arch, const char *option) {
    const cJSON *found = NULL;
    for (const Member *m = MEMBERS; (m = member_find(m, arch, NULL, option)); m++) {
        const cJSON *value = json_member(config, m->name);
        if (found && value && !cJSON_Compare(found, value, 1))
            fail(EXIT_DATA, "%s: %s and %s are two names of the same size, but have different values: remove the wrong "
                 "one", path,
                 found->string, value->string);
        if (!found) found = value;
    }
    return found;
}

void hf_members_expect(const cJSON *config, const char *path, int arch, const char *option, int64_t stored) {
    char         shown[SHOWN_BYTES];
    const cJSON *value = hf_value(config, path, arch, option);
    if (cJSON_IsNumber(value) && value->valuedouble != (double)stored)
        fail(EXIT_DATA,
             "%s: %s is %s; the shapes of the weights beside it show %lld: correct it, or use the config.json of these "
             "weights", path, value->string, value_text(value, shown), (long long)stored);
}

void hf_members_translate(int arch, const char *text, char *out, size_t capacity) {
    size_t at = 0;
    out[0] = 0;
    while (*text && at + 1 < capacity) {
        char   key[64];
        size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyz_.0123456789");
        while (n > 0 && text[n - 1] == '.') n--;
        snprintf(key, sizeof key, "%.*s", (int)n, text);
        const char *name = n > 0 && n < sizeof key && strchr(key, '.') ? hf_member_of(arch, key) : NULL;
        if (n == 0) n = 1;
        at += (size_t)snprintf(out + at, capacity - at, "%.*s", name ? (int)strlen(name) : (int)n, name ? name : text);
        text += n;
    }
}
