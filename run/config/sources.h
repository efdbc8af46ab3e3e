/* sources.h - reads data.train as a blend (data/blend.h): a list of {"path", "weight", "until_tokens"}. */
#ifndef TRAIN_GPT_RUN_CONFIG_SOURCES_H
#define TRAIN_GPT_RUN_CONFIG_SOURCES_H

#include "run/config/options.h"

int sources_are_blend(const cJSON *value); /* returns 1 for a list that begins with an object */

/* Sets a blend like option_set. Reads its entries one by one. sources_check checks them together. */
int sources_set(const Option *o, Config *config, const cJSON *value, StringList *list, char *fault, size_t capacity,
                int *element);

/* Returns a blend as JSON. Exit 71 without memory. */
cJSON *sources_json(const StringList *list);

/* Checks that stages are in order, weights sum to 1, no source is twice in a stage, and there are at most
 * BLEND_SOURCES. Returns 1, or 0 with a sentence in fault. */
int sources_check(const char *key, const StringList *list, char *fault, size_t capacity);

/* Returns the blend in the JSON of a config as text, malloc'ed: "0.7 of source 0 until 1000, ...". The text has no
 * paths, because hosts may have the files in other folders. "": no blend. Exit 71 without memory. */
char *sources_text(const cJSON *train);

#endif
