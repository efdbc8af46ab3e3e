/* hf_softcap.h - config.json of a model whose logits have a soft cap. No class of transformers for the kinds here has one:
 * model_type is "gpt2_softcap" or "llama_softcap", which transformers refuses by name, so that it computes no other logits.
 * The cap is Gemma 2's key final_logit_softcapping.
 */
#ifndef TRAIN_GPT_MODEL_HF_SOFTCAP_H
#define TRAIN_GPT_MODEL_HF_SOFTCAP_H

#include <cjson/cJSON.h>

#include "model/params.h"

/* Turns the text of a plain model's config.json, of `bytes` in HF_CONFIG_BYTES, into one with a cap. Returns its bytes. */
int    hf_softcap_text(char *text, int bytes, double softcap);
/* The cap of a config.json; 0: none. Exit 65 where its type has one, and the key no number above 0. */
double hf_softcap_of(const cJSON *config, const char *path);
/* Whether model_type is `plain`, with a cap or without. */
int    hf_is_type(const cJSON *config, const char *plain);

#endif
