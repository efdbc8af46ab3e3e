/* hf_gpt2.h - GPT-2 in files of Hugging Face: reads and writes config.json, and knows tensors that are not parameters.
 *
 * The rows of the kind (model/gpt2.c) have the names, shapes and orientation of parameters as in the files: a matrix is
 * [in,out], as Conv1D keeps it. Nothing is transposed. */
#ifndef TRAIN_GPT_MODEL_HF_GPT2_H
#define TRAIN_GPT_MODEL_HF_GPT2_H

#include <cjson/cJSON.h>

#include "core/error.h"
#include "model/params.h"

enum { HF_CONFIG_BYTES = 2048 };
/* Functions that write and read config.json of a kind of model (BlockKind.files). */
typedef struct {
    /* Writes config.json into text [HF_CONFIG_BYTES]. Returns its length. end: the id that ends a text, or "null". */
    int        (*text)(ModelShape shape, const char *end, const char *dtype, char *text);
    /* returns 1 if config.json describes one of these kinds */
    int        (*reads)(const cJSON *config);
    /* Returns the shape. Exits with 65, naming a key that is wrong or has a value that is not supported. */
    ModelShape (*shape)(const cJSON *config, const char *path);
    /* Exits with 65, naming a key that differs from `ours`. */
    void       (*expect)(const cJSON *config, const char *path, ModelShape ours, int has_head);
} HfFiles;
extern const HfFiles HF_GPT2, HF_LLAMA;

/* Writes config.json for a shape into text [HF_CONFIG_BYTES]. Returns its length. end_of_text is the id that ends a
 * text, or -1. dtype is the type of the weights, such as "float32". */
int hf_config_text(ModelShape shape, int32_t end_of_text, const char *dtype, char *text);
/* Write generation_config.json, and tokenizer_config.json for a folder with a tokenizer.json, into text
 * [HF_CONFIG_BYTES]. Return the length. end_of_text is -1 or NULL if there is none. begin is the bos_token, NULL for the
 * end of text. adds_begin is add_bos_token, -1 to leave it out. */
int hf_generation_text(int32_t end_of_text, char *text);
int hf_tokenizer_config_text(int64_t n_positions, const char *begin, int adds_begin, const char *end_of_text, char *text);

/* Returns the sizes in a config.json that was parsed from `path`. Exits with 65, naming a key without a valid size. */
ModelShape hf_config_shape(const cJSON *config, const char *path);
/* Compares config.json with our model. Exits with 65 if they differ in kind, or in a trait that tensor shapes do not
 * show: heads, activation, epsilon, scaling, a tied head. Warns of unknown members. has_head is 1 if the weights hold
 * lm_head.weight. A model with a head of its own then also fits a config.json that calls the head tied. */
void hf_config_expect(const cJSON *config, const char *path, ModelShape ours, int has_head);

/* Copies the name of a tensor without the parts that programs add and that carry no meaning: "transformer.", "model.",
 * "module.", "language_model.", "_orig_mod." and similar ones. Returns out. */
enum { HF_NAME_BYTES = 256 };
char *hf_plain_name(const char *name, char out[HF_NAME_BYTES]);
/* Kinds of tensors in files, by plain name. HF_ROW: a parameter of the model. HF_HEAD: the head, which a tied model
 * does not need. HF_NOTHING: a tensor to ignore. */
typedef enum { HF_ROW, HF_HEAD, HF_NOTHING } HfExtra;
HfExtra hf_extra(const char *plain);

/* Helpers for hf_gpt2.c and hf_llama.c. hf_size_of returns a size, and exits with 65 if it is missing or not a whole
 * number from 1 to 2^31 - 1. */
int     hf_is_word(const cJSON *value, const char *word);
int64_t hf_size_of(const cJSON *config, const char *key, const char *path);
/* Exits with 65 if config.json says that the head is not the embedding and the weights hold no head. */
void    hf_expect_head(const char *path, int is_tied, int has_head);

#endif
