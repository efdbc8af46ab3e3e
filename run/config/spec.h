/* spec.h - from the config of a run to the model of a rank. */
#ifndef TRAIN_GPT_RUN_CONFIG_SPEC_H
#define TRAIN_GPT_RUN_CONFIG_SPEC_H

#include "model/groups.h"
#include "model/model.h"
#include "run/config/config.h"

/* Returns the model of a rank of pipeline stage `stage`, in a run of this config on so many ranks. act: the resolved
 * type of activations. groups is NULL for a plan, which is for the first rank of the stage. */
ModelSpec config_model_spec(const Config *config, DType act, int ranks, int stage, const Groups *groups);

/* Returns 1 if islands send gradients: then the server updates the weights, and the islands do not. */
int config_server_updates(const Config *config);

#endif
