/* spec.h - makes the description of a rank's model (ModelSpec) from the config of a run. */
#ifndef TRAIN_GPT_RUN_CONFIG_SPEC_H
#define TRAIN_GPT_RUN_CONFIG_SPEC_H

#include "model/groups.h"
#include "model/model.h"
#include "run/config/config.h"

/* Returns the description of the model of a rank in pipeline stage `stage`, for a run of this config on this number of
 * ranks. act: the resolved type of activations. groups is NULL for a plan, which is for the first rank of the stage. */
ModelSpec config_model_spec(const Config *config, DType act, int ranks, int stage, const Groups *groups);

/* Returns the kind of optimizer that optimizer.name and optimizer.normuon choose, NULL if there is none. */
const OptimizerKind *config_optimizer(const Config *config);

/* Returns 1 if islands (jobs with outer.server) send gradients. Then the server updates the weights, and the islands do
 * not. */
int config_server_updates(const Config *config);

#endif
