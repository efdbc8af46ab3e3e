/* hf_llama.h - config.json of the kinds llama and qwen3, as their classes in Hugging Face have it. For hf_gpt2.c, which
 * chooses by kind. */
#ifndef TRAIN_GPT_MODEL_HF_LLAMA_H
#define TRAIN_GPT_MODEL_HF_LLAMA_H

#include <cjson/cJSON.h>

#include "model/params.h"

#ifdef __cplusplus
extern "C" {
#endif

/* end: the id that ends a text as JSON, "null" for none. Returns the bytes of text [HF_CONFIG_BYTES]. */
int hf_llama_text(ModelShape shape, const char *end, const char *dtype, char *text);
/* Whether a config.json is of these kinds. */
int hf_llama_reads(const cJSON *config);
/* The shape in one; exit 65 naming the key where it is none, or asks for what is not computed here. */
ModelShape hf_llama_shape(const cJSON *config, const char *path);
/* Exit 65 where the config is of another model than ours in what the weights do not show. */
void hf_llama_expect(const cJSON *config, const char *path, ModelShape ours);

#ifdef __cplusplus
}
#endif
#endif
