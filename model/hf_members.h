/* hf_members.h - the members of a model's config.json that are known here: which the program reads, which change
 * nothing, and which are refused unless they hold the one value that is computed here. The one list for that file. */
#ifndef TRAIN_GPT_MODEL_HF_MEMBERS_H
#define TRAIN_GPT_MODEL_HF_MEMBERS_H

#include <cjson/cJSON.h>

#include "core/error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Exit 65 naming a member that asks for what this kind of model (Arch) does not compute here. Warns, in one line, of
 * the members that are not on the list. */
void hf_members_check(const cJSON *config, const char *path, int arch);
/* The same of rope_scaling or rope_parameters. */
void hf_members_check_rope(const cJSON *rope, const char *path);
/* The settings of generation_config.json, or of a config.json that has none beside it, that `sample` does not use,
 * as text: "temperature 0.6 (temperature=0.6), repetition_penalty 1.1 (not computed here)". given: keys of `sample`
 * that the user has set, which count instead; ends with NULL. Returns a malloc'ed text, NULL if there are none. */
char *hf_generation_unused(const cJSON *config, const char *const *given, int is_own_file);
/* The member that holds the value of a config key in this kind's config.json: "num_hidden_layers" for
 * "model.n_layer". NULL if there is none. */
const char *hf_member_of(int arch, const char *option);
/* Copies text with the names of config keys replaced by those of the members, into out [capacity]. */
void hf_members_translate(int arch, const char *text, char *out, size_t capacity);

/* A member as a flag, `fallback` where it is missing or null. Exit 65 where it is neither true nor false. */
int hf_flag_of(const cJSON *config, const char *key, int fallback, const char *path);
/* Exit 65: FILE: key is VALUE; `ours`. */
NORETURN void hf_refuse_key(const char *path, const cJSON *value, const char *ours);

#ifdef __cplusplus
}
#endif
#endif
