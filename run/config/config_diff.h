/* config_diff.h - the keys by which two configs differ, or a config differs from the defaults. */
#ifndef TRAIN_GPT_RUN_CONFIG_CONFIG_DIFF_H
#define TRAIN_GPT_RUN_CONFIG_CONFIG_DIFF_H

#include <cjson/cJSON.h>

/* NULL is the same as NULL alone. */
int config_same_value(const cJSON *a, const cJSON *b);

/* Calls tell(ctx, key, a, b) for each key whose values differ. A key that stands in one of them alone has its default
 * in the other, NULL where the option table knows none. b NULL: the defaults. run.dir is left out: it is a place. Returns
 * the number of keys. tell NULL: only counts. */
typedef void ConfigDiffers(void *ctx, const char *key, const cJSON *a, const cJSON *b);
int config_diff(const cJSON *a, const cJSON *b, ConfigDiffers *tell, void *ctx);

#endif
