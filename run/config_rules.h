/* config_rules.h - sizes that follow from a config, checked in 64 bits. */
#ifndef TRAIN_GPT_RUN_CONFIG_RULES_H
#define TRAIN_GPT_RUN_CONFIG_RULES_H

#include "run/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Parameters of the model, wte once: (V + P) C + L (12 C^2 + 13 C) + 2 C. 0 if that does not fit in 64 bits. */
int config_parameters(const Config *config, int64_t *parameters);

#ifdef __cplusplus
}
#endif
#endif
