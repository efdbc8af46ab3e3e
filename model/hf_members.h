/* hf_members.h - the list of known members of a model's config.json: those that the program reads, those that change
 * nothing, and those that are refused unless they have the one value that the program computes. */
#ifndef TRAIN_GPT_MODEL_HF_MEMBERS_H
#define TRAIN_GPT_MODEL_HF_MEMBERS_H

#include <cjson/cJSON.h>

#include "core/error.h"

/* Checks a config.json. Exits with 65, naming a member with a value that this kind of model (Arch) does not support.
 * Warns, in one line, of members that are not on the list. */
void hf_members_check(const cJSON *config, const char *path, int arch);
/* Checks the object rope_scaling or rope_parameters in the same way. */
void hf_members_check_rope(const cJSON *rope, const char *path);
/* Lists the settings of generation_config.json that `sample` does not use: "temperature 0.6 (temperature=0.6),
 * repetition_penalty 1.1 (not computed here)". Returns a malloc'ed text, or NULL if there are none. Settings whose key
 * of `sample` is in `given`, which ends with NULL, are left out, because the user has set them. is_own_file is 0 if
 * config is a config.json without a generation_config.json beside it. */
char *hf_generation_unused(const cJSON *config, const char *const *given, int is_own_file);
/* Returns the member of config.json that has the value of a config key for this kind of model, such as
 * "num_hidden_layers" for "model.n_layer", or NULL. */
const char *hf_member_of(int arch, const char *option);
/* Exits with 65 if a member of config.json that has the value of a config key is a number other than `stored`, which
 * the shapes of the weights show. */
void hf_members_expect(const cJSON *config, const char *path, int arch, const char *option, int64_t stored);
/* Copies text into out [capacity] with each config key replaced by the name of its member in config.json. */
void hf_members_translate(int arch, const char *text, char *out, size_t capacity);

/* Returns a member as a flag, or `fallback` if it is missing or null. Exits with 65 if it is neither true nor false. */
int hf_flag_of(const cJSON *config, const char *key, int fallback, const char *path);
/* Exits with 65 and the message "FILE: key is VALUE; " followed by `ours`, which says what is supported. */
NORETURN void hf_refuse_key(const char *path, const cJSON *value, const char *ours);

#endif
