/* hf_gpt2.h - GPT-2 in Hugging Face's files: names of tensors that differ from the rows' (model/gpt2.c), and config.json,
 * written and read. Nothing else in the tree spells them. */
#ifndef TRAIN_GPT_MODEL_HF_GPT2_H
#define TRAIN_GPT_MODEL_HF_GPT2_H

#include <cjson/cJSON.h>

#include "model/params.h"

#ifdef __cplusplus
extern "C" {
#endif

/* config.json as GPT2LMHeadModel reads it, into text [HF_CONFIG_BYTES]; returns its bytes. end_of_text: the id that ends a
 * text, -1: none. dtype: of the weights, "float32". */
enum { HF_CONFIG_BYTES = 2048 };
int hf_config_text(ModelShape shape, int32_t end_of_text, const char *dtype, char *text);
/* generation_config.json, and tokenizer_config.json beside a tokenizer.json; the same room. end_of_text as text, NULL: none. */
int hf_generation_text(int32_t end_of_text, char *text);
int hf_tokenizer_config_text(int64_t n_positions, const char *end_of_text, char *text);

/* The sizes in a config.json, parsed from `path`; exit 65 naming the key where they are none. */
ModelShape hf_config_shape(const cJSON *config, const char *path);
/* Exit 65 where config.json differs from our model with n_head heads in a trait that no tensor's shape shows: heads,
 * activation, epsilon, scaling. */
void hf_config_expect(const cJSON *config, const char *path, int64_t n_head);

/* A tensor's name without "transformer.", which some files leave out. */
const char *hf_plain_name(const char *name);
/* Tensors that carry nothing: attention's causal masks in old files, and the head, which is tied to wte. */
int hf_is_passed_over(const char *name);
int hf_is_head(const char *name); /* "lm_head.weight" */

#ifdef __cplusplus
}
#endif
#endif
