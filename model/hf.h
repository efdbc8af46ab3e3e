/* hf.h - models in files of Hugging Face: config.json, generation_config.json, tokenizer_config.json, and names of
 * tensors. hf.c reads and writes them for each kind of model. hf_members.c lists the known members of config.json.
 *
 * The table of parameters of each kind of model has the names, shapes and orientation that tensors have in these files.
 * A matrix of gpt2 is [in,out], as Conv1D keeps it, one of llama [out,in]. Nothing is transposed. */
#ifndef TRAIN_GPT_MODEL_HF_H
#define TRAIN_GPT_MODEL_HF_H

#include <cjson/cJSON.h>

#include "core/error.h"
#include "layers/layers.h"
#include "model/params.h"

enum { HF_CONFIG_BYTES = 2048 };
/* Functions that write and read the config.json of a kind of model (BlockKind.files). */
typedef struct {
    /* Writes config.json into text [HF_CONFIG_BYTES]. Returns its length. end: the id that ends a text, as JSON: a
     * number or "null". dtype: type of the weights. */
    int        (*text)(ModelShape shape, const char *end, const char *dtype, char *text);
    /* Returns the shape of the model in a config.json. Exits with 65, naming a key that is wrong or has a value that is
     * not supported. */
    ModelShape (*shape)(const cJSON *config, const char *path);
    /* Compares config.json with the shape `ours`. Exits with 65, naming a key that differs. has_head: 1 if the weights
     * hold an output head. */
    void       (*expect)(const cJSON *config, const char *path, ModelShape ours, int has_head);
} HfFiles;
extern const HfFiles HF_GPT2, HF_LLAMA;

/* Writes the config.json of a model with this shape into text [HF_CONFIG_BYTES]. Returns its length. end_of_text is the
 * id that ends a text, or -1. dtype is the type of the weights, such as "float32". */
int hf_config_text(ModelShape shape, int32_t end_of_text, const char *dtype, char *text);
/* Write generation_config.json, or the tokenizer_config.json that belongs to a tokenizer.json, into text
 * [HF_CONFIG_BYTES]. Return the length. end_of_text ends a text; it is -1 or NULL if there is none. begin is the
 * bos_token; NULL: end_of_text. adds_begin is the value of add_bos_token; -1 leaves it out. */
int hf_generation_text(int32_t end_of_text, char *text);
int hf_tokenizer_config_text(int64_t n_positions, const char *begin, int adds_begin, const char *end_of_text,
                             char *text);

/* Returns the shape of the model in a config.json that was parsed from `path`. Exits with 65, naming a key without a
 * valid value. */
ModelShape hf_config_shape(const cJSON *config, const char *path);
/* Returns the activation that a config.json names for this kind of model (Arch). Returns the default of the kind if the
 * file is for another kind. Exits with 65 at an unknown word. */
Activation hf_config_activation(const cJSON *config, const char *path, int arch);
/* Compares config.json with our model. Exits with 65 if they differ in kind, or in a trait that tensor shapes do not
 * show: heads, activation, epsilon, scaling of rotary positions, a tied head. Warns of unknown members. has_head is 1
 * if the weights hold lm_head.weight. A model with a head of its own then also fits a config.json that calls the head
 * tied. */
void hf_config_expect(const cJSON *config, const char *path, ModelShape ours, int has_head);

/* Copies the name of a tensor without parts that other programs add and that carry no meaning. Such parts are
 * "transformer.", "model.", "module.", "language_model.", "_orig_mod." and similar ones. Returns out. */
enum { HF_NAME_BYTES = 256 };
char *hf_plain_name(const char *name, char out[HF_NAME_BYTES]);
/* What a tensor in a file is, by its plain name (hf_plain_name). HF_ROW: a parameter of the model. HF_HEAD: the output
 * head, which a tied model does not need. HF_NOTHING: a tensor to ignore. */
typedef enum { HF_ROW, HF_HEAD, HF_NOTHING } HfExtra;
HfExtra hf_extra(const char *plain);

/* Returns the soft cap of the logits in a config.json, 0 if its model_type has no soft cap. Exits with 65 if it has one
 * and the cap is not a number above 0. */
double hf_softcap_of(const cJSON *config, const char *path);

/* --- members ------------------------------------------------------------------------------------------------------ */

/* Lists the settings of generation_config.json that `sample` does not use: "temperature 0.6 (temperature=0.6),
 * repetition_penalty 1.1 (not computed here)". Returns a malloc'ed text, or NULL if there are none. Settings whose key
 * of `sample` is in `given`, which ends with NULL, are left out, because the user has set them. is_own_file is 0 if
 * config is a config.json without a generation_config.json in its folder. */
char *hf_generation_unused(const cJSON *config, const char *const *given, int is_own_file);
/* Returns the name of the member of config.json that has the value of a config key for this kind of model. In llama it
 * is "num_hidden_layers" for "model.n_layer". Returns NULL if there is none. */
const char *hf_member_of(int arch, const char *option);
/* Returns the member of a config.json that has the value of the config key `option`, or NULL if it is missing. Exits
 * with 65 if it is there under two names with different values. */
const cJSON *hf_value(const cJSON *config, const char *path, int arch, const char *option);
/* Checks a config.json against weights. `stored` is the value of the config key `option` that the shapes of the weights
 * show. Exits with 65 if the member that has this value is another number. */
void hf_members_expect(const cJSON *config, const char *path, int arch, const char *option, int64_t stored);
/* Copies text into out [capacity] with each config key replaced by the name of its member in config.json. */
void hf_members_translate(int arch, const char *text, char *out, size_t capacity);

/* --- for hf.c ----------------------------------------------------------------------------------------------------- */

/* Checks the members of a config.json by the list of known ones. Some are read, some change nothing, and some must have
 * the one value that the program computes. Exits with 65, naming a member with a value that this kind of model (Arch)
 * does not support. Warns, in one line, of members that are not on the list. */
void hf_members_check(const cJSON *config, const char *path, int arch);
/* Checks the members of the object rope_scaling or rope_parameters of a config.json. Exits with 65 at a member that
 * this program does not support, and warns of unknown ones. */
void hf_members_check_rope(const cJSON *rope, const char *path);
/* Exits with 65 and the message "FILE: key is VALUE; " followed by `ours`, which says what is supported. */
NORETURN void hf_refuse_key(const char *path, const cJSON *value, const char *ours);

#endif
