/* blend_use.h - text about how many tokens each source of a blend gives in a whole run, for the banner and for
 * check. */
#ifndef TRAIN_GPT_RUN_BLEND_USE_H
#define TRAIN_GPT_RUN_BLEND_USE_H

#include "data/dataset.h"
#include "run/config/config.h"

typedef struct { char text[512]; } SourceUse;

/* Writes "70.0 % from web/train_*.bin: 1,000 tokens, 2.10 epochs" for each source into use [BLEND_SOURCES]. Returns the
 * number of sources. data is the opened data.train of config, a blend. samples is the number of samples that the run
 * trains on. */
int blend_use(const Dataset *data, const Config *config, int64_t samples, SourceUse *use);

#endif
