/* hf_gpt2.h - GPT-2 in Hugging Face's files: tensors that are no rows of the model, and config.json, written and read.
 *
 * Names, shapes and orientation of all others stand in the family's rows (model/gpt2.c) as the files have them: a matrix
 * is [in,out], as Conv1D keeps it, and nothing is transposed on the way. */
#ifndef TRAIN_GPT_MODEL_HF_GPT2_H
#define TRAIN_GPT_MODEL_HF_GPT2_H

#include <cjson/cJSON.h>

#include "core/error.h"
#include "model/params.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { HF_CONFIG_BYTES = 2048 };
/* config.json of a kind of model (BlockKind.files), written and read. */
typedef struct {
    /* Into text [HF_CONFIG_BYTES]; returns its bytes. end: the id that ends a text as JSON, "null" for none. */
    int        (*text)(ModelShape shape, const char *end, const char *dtype, char *text);
    int        (*reads)(const cJSON *config);                                    /* whether it is of these kinds */
    /* Exit 65 naming the key: where it is no shape, or asks for what is not computed here; where it is not ours. */
    ModelShape (*shape)(const cJSON *config, const char *path);
    void       (*expect)(const cJSON *config, const char *path, ModelShape ours);
} HfFiles;
extern const HfFiles HF_GPT2, HF_LLAMA;

/* config.json of the shape's kind, into text [HF_CONFIG_BYTES]; returns its bytes. end_of_text: the id that ends a text,
 * -1: none. dtype: of the weights, "float32". */
int hf_config_text(ModelShape shape, int32_t end_of_text, const char *dtype, char *text);
/* generation_config.json, and tokenizer_config.json beside a tokenizer.json; the same room. end_of_text as text, NULL: none. */
int hf_generation_text(int32_t end_of_text, char *text);
int hf_tokenizer_config_text(int64_t n_positions, const char *end_of_text, char *text);

/* The sizes in a config.json, parsed from `path`; exit 65 naming the key where they are none. */
ModelShape hf_config_shape(const cJSON *config, const char *path);
/* Exit 65 where config.json differs from our model in its kind, or in a trait that no tensor's shape shows: heads,
 * activation, epsilon, scaling. */
void hf_config_expect(const cJSON *config, const char *path, ModelShape ours);

/* A tensor's name without "transformer.", which some files leave out. */
const char *hf_plain_name(const char *name);
/* Tensors of files: a row of the model; the head, whose values are those of the embedding; nothing that is needed. */
typedef enum { HF_ROW, HF_HEAD, HF_NOTHING } HfExtra; /* lm_head.weight is HF_HEAD where it is no row */
HfExtra hf_extra(const char *name);

/* For the files of the kinds: exit 65 for a key of config.json that differs from ours, and its size. */
NORETURN void hf_refuse_key(const char *path, const cJSON *value, const char *ours);
int           hf_is_word(const cJSON *value, const char *word);
int64_t       hf_size_of(const cJSON *config, const char *key, const char *path);


#ifdef __cplusplus
}
#endif
#endif
