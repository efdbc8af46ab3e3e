/* sources.h - data.train as a blend (data/blend.h): a list of {"path", "weight", "until_tokens"}. */
#ifndef TRAIN_GPT_RUN_CONFIG_SOURCES_H
#define TRAIN_GPT_RUN_CONFIG_SOURCES_H

#include "run/config/options.h"

int sources_are_blend(const cJSON *value); /* a list that begins with an object */

/* As option_set, of a blend: entries are read one by one; sources_check looks at all together. */
int sources_set(const Option *o, Config *config, const cJSON *value, StringList *list, char *fault, size_t capacity,
                int *element);

/* The same back as JSON; exit 71 without memory. */
cJSON *sources_json(const StringList *list);

/* Stages in order, weights that sum to 1, no source twice in a stage, at most BLEND_SOURCES: 1, or 0 and a sentence. */
int sources_check(const char *key, const StringList *list, char *fault, size_t capacity);

/* The blend of a config's JSON without its paths, which hosts may have in other folders: "0.7 of source 0 until 1000,
 * ...". "" = no blend. malloc'ed; exit 71 without memory. */
char *sources_text(const cJSON *train);

#endif
