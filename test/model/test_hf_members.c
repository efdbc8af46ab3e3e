/* test_hf_members.c - the list of members of Hugging Face's config.json: names of keys, settings that are not used,
 * flags, activations, and plain names of tensors. */
#include "core/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h> /* after error.h, because cmocka's macro fail() would change the declarations there */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/hf.h"
#include "model/params.h"

static void keys_have_the_names_of_members(void **state) {
    (void)state;
    static const struct { int arch; const char *key, *member; } cases[] = {
        {ARCH_GPT2, "model.n_layer", "n_layer"},       {ARCH_LLAMA, "model.n_layer", "num_hidden_layers"},
        {ARCH_QWEN3, "model.norm_eps", "rms_norm_eps"}, {ARCH_QWEN3_MOE, "moe.top_k", "num_experts_per_tok"},
        {ARCH_LLAMA, "model.rope_factor", "factor"},    {ARCH_LLAMA, "moe.top_k", NULL},
        {ARCH_GPT2, "model.rope_factor", NULL},         {ARCH_LLAMA, "run.steps", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *found = hf_member_of(cases[i].arch, cases[i].key);
        if (!cases[i].member) assert_null(found);
        else assert_string_equal(found, cases[i].member);
    }
    char out[100];
    hf_members_translate(ARCH_LLAMA, "model.n_embd = 5 must be a multiple of model.n_head = 2.", out, sizeof out);
    assert_string_equal(out, "hidden_size = 5 must be a multiple of num_attention_heads = 2.");
    hf_members_translate(ARCH_GPT2, "run.steps, model.n_layer.", out, sizeof out);
    assert_string_equal(out, "run.steps, n_layer.");
    /* the result does not fit into 20 bytes, so it is cut and ends with a NUL */
    hf_members_translate(ARCH_LLAMA, "model.n_layer model.n_layer", out, 20);
    assert_true(strlen(out) < 20);
}

static void unused(const char *json, const char *const *given, int is_own_file, const char *expected) {
    cJSON *config = cJSON_Parse(json);
    char  *text = hf_generation_unused(config, given, is_own_file);
    if (!expected) assert_null(text);
    else assert_string_equal(text, expected);
    free(text);
    cJSON_Delete(config);
}

static void settings_that_change_a_text_are_named(void **state) {
    (void)state;
    static const char *const none[] = {NULL}, *const some[] = {"temperature", "tokens", NULL};
    unused("{}", none, 1, NULL);
    unused("[1]", none, 1, NULL);
    unused("{\"temperature\": 1.0, \"top_k\": 0, \"suppress_tokens\": [], \"num_beams\": 1, \"eos_token_id\": 7, \"pad_token_id\": 8, "
           "\"do_sample\": true, \"forced_eos_token_id\": null, \"transformers_version\": \"5\"}",
           none, 1, NULL);
    unused("{\"do_sample\": false}", none, 1, "do_sample false (temperature=0)");
    unused("{\"temperature\": 0.7, \"max_new_tokens\": 9, \"begin_suppress_tokens\": [1]}", none, 1,
           "temperature 0.7 (temperature=0.7), max_new_tokens 9 (tokens=9), begin_suppress_tokens a list (not computed here)");
    unused("{\"temperature\": 0.7, \"max_new_tokens\": 9, \"min_length\": 4}", some, 1,
           "min_length 4 (not computed here)");
    unused("{\"hidden_size\": 4, \"no_repeat_ngram_size\": 3}", none, 0, "no_repeat_ngram_size 3 (not computed here)");
    unused("{\"hidden_size\": 4}", none, 1, "hidden_size 4 (not known here)");
}

static void names_lose_what_programs_add(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"transformer.h.3.attn.c_attn.weight", "h.3.attn.c_attn.weight"},
        {"model.layers.0.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight"},
        {"_orig_mod.module.model.norm.weight", "norm.weight"},
        {"module._orig_mod.lm_head.weight", "lm_head.weight"},
        {"model.layers.1._orig_mod.self_attn.q_proj.weight", "layers.1.self_attn.q_proj.weight"},
        {"model.language_model.embed_tokens.weight", "embed_tokens.weight"},
        {"models.norm.weight", "models.norm.weight"},
        {"h.0.model.weight", "h.0.model.weight"},
        {"", ""},
    };
    char plain[HF_NAME_BYTES], longest[2 * HF_NAME_BYTES];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(hf_plain_name(cases[i][0], plain), cases[i][1]);
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = 0;
    assert_int_equal(strlen(hf_plain_name(longest, plain)), HF_NAME_BYTES - 1);
}

/* Words of Hugging Face are read, and each activation is written and read back. */
static void activations_have_words(void **state) {
    (void)state;
    static const struct { const char *word; Activation kind; } words[] = {
        {"gelu_new", ACTIVATION_GELU_NEW}, {"gelu_pytorch_tanh", ACTIVATION_GELU_NEW},
        {"gelu_fast", ACTIVATION_GELU_NEW}, {"relu2", ACTIVATION_RELU2}, {"silu", ACTIVATION_SILU},
        {"swish", ACTIVATION_SILU}, {"gelu", ACTIVATION_GELU}, {"gelu_python", ACTIVATION_GELU}};
    char text[HF_CONFIG_BYTES];
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        snprintf(text, sizeof text, "{\"activation_function\": \"%s\"}", words[i].word);
        cJSON *config = cJSON_Parse(text);
        assert_int_equal(hf_config_activation(config, "config.json", ARCH_GPT2), words[i].kind);
        assert_int_equal(hf_config_activation(config, "config.json", ARCH_LLAMA), ACTIVATION_SILU);
        cJSON_Delete(config);
    }
    for (int kind = 0; kind < ACTIVATION_COUNT; kind++) {
        ModelShape shape = GPT2_SHAPE(2, 3, 42, 40, 256);
        shape.activation = kind;
        hf_config_text(shape, -1, "float32", text);
        cJSON *config = cJSON_Parse(text);
        assert_non_null(strstr(text, ACTIVATION_NAMES[kind]));
        assert_int_equal(hf_config_shape(config, "config.json").activation, kind);
        cJSON_Delete(config);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(activations_have_words),
        cmocka_unit_test(keys_have_the_names_of_members),
        cmocka_unit_test(settings_that_change_a_text_are_named),
        cmocka_unit_test(names_lose_what_programs_add),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
