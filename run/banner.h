/* banner.h - the lines that a run prints at its start, at most 8 on one rank: machine, model, data, batch, memory,
 * limit, start or resume, warmup. Also the lines that it prints after its end. */
#ifndef TRAIN_GPT_RUN_BANNER_H
#define TRAIN_GPT_RUN_BANNER_H

#include "run/run.h"

/* Rank 0 prints; the other ranks return at once. */
void banner_print(const Run *r);
/* Prints, on rank 0, the commands to type after a run that is complete. */
void banner_next(const Run *r);

typedef struct { char text[512]; } SourceUse;

/* Writes "70.0 % from web/train_*.bin: 1,000 tokens, 2.10 epochs" for each source into use [BLEND_SOURCES]. Returns the
 * number of sources. data is the opened data.train of config, a blend. samples is the number of samples that the run
 * trains on. */
int blend_use(const Dataset *data, const Config *config, int64_t samples, SourceUse *use);

#endif
