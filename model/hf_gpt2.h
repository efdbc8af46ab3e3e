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
    void       (*expect)(const cJSON *config, const char *path, ModelShape ours, int has_head);
} HfFiles;
extern const HfFiles HF_GPT2, HF_LLAMA;

/* config.json of the shape's kind, into text [HF_CONFIG_BYTES]; returns its bytes. end_of_text: the id that ends a
 * text, -1: none. dtype: of the weights, "float32". */
int hf_config_text(ModelShape shape, int32_t end_of_text, const char *dtype, char *text);
/* generation_config.json, and tokenizer_config.json beside a tokenizer.json; the same room. end_of_text as text,
 * NULL: none. */
int hf_generation_text(int32_t end_of_text, char *text);
int hf_tokenizer_config_text(int64_t n_positions, const char *end_of_text, char *text);

/* The sizes in a config.json, parsed from `path`; exit 65 naming the key where they are none. */
ModelShape hf_config_shape(const cJSON *config, const char *path);
/* Exit 65 where config.json differs from our model in its kind, or in a trait that no tensor's shape shows: heads,
 * activation, epsilon, scaling, a tied head. Warns of members that are not known here. has_head: the weights hold
 * lm_head.weight; then a config.json that calls the head tied fits a model with a head of its own, too. */
void hf_config_expect(const cJSON *config, const char *path, ModelShape ours, int has_head);

/* Copies a tensor's name without the parts that programs add to it and that say nothing: "transformer.", "model.",
 * "module.", "language_model.", "_orig_mod." and the like. Returns out. */
enum { HF_NAME_BYTES = 256 };
char *hf_plain_name(const char *name, char out[HF_NAME_BYTES]);
/* Kinds of tensors in files, by their plain names: a row of the model; the head, which a tied model does not need;
 * nothing that is needed. */
typedef enum { HF_ROW, HF_HEAD, HF_NOTHING } HfExtra;
HfExtra hf_extra(const char *plain);

/* For the files of the kinds. The size of a member; exit 65 where it is missing or not a whole number from 1 to 2^31
 * - 1. */
int     hf_is_word(const cJSON *value, const char *word);
int64_t hf_size_of(const cJSON *config, const char *key, const char *path);
/* Exit 65 where config.json says that the head is no copy of the embedding, and the weights hold none. */
void    hf_expect_head(const char *path, int is_tied, int has_head);


#ifdef __cplusplus
}
#endif
#endif
