/* config_diff.h - finds the keys in which two configs differ, or a config differs from the defaults. */
#ifndef TRAIN_GPT_RUN_CONFIG_CONFIG_DIFF_H
#define TRAIN_GPT_RUN_CONFIG_CONFIG_DIFF_H

#include <cjson/cJSON.h>

/* Returns 1 if two values are equal. NULL equals only NULL. */
int config_same_value(const cJSON *a, const cJSON *b);

/* Calls tell(ctx, key, a, b) for each key whose values differ. A key that only one of them has counts as its default
 * in the other, or as NULL if the option table has none. b NULL: the defaults. run.dir is left out, because it is a
 * path. Returns the number of such keys. If tell is NULL, it is not called. */
typedef void ConfigDiffers(void *ctx, const char *key, const cJSON *a, const cJSON *b);
int config_diff(const cJSON *a, const cJSON *b, ConfigDiffers *tell, void *ctx);

#endif
