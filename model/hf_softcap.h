/* hf_softcap.h - config.json of a model whose logits have a soft cap. The library transformers has no class with a soft
 * cap for the kinds here. So model_type is "gpt2_softcap" or "llama_softcap": transformers refuses these names instead
 * of computing wrong logits. The cap is stored as Gemma 2's key final_logit_softcapping.
 */
#ifndef TRAIN_GPT_MODEL_HF_SOFTCAP_H
#define TRAIN_GPT_MODEL_HF_SOFTCAP_H

#include <cjson/cJSON.h>

#include "model/params.h"

/* Turns the text of a plain model's config.json into one with a cap. text has `bytes` bytes in a buffer of
 * HF_CONFIG_BYTES. Returns the new number of bytes. */
int    hf_softcap_text(char *text, int bytes, double softcap);
/* Returns the cap of a config.json, 0 if it has none. Exits with 65 if its model_type has a cap and the key is not a
 * number above 0. */
double hf_softcap_of(const cJSON *config, const char *path);
/* Returns whether model_type is `plain`, with or without a cap. */
int    hf_is_type(const cJSON *config, const char *plain);

#endif
