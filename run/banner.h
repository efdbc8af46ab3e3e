/* banner.h - the lines that a run prints at its start, at most 8 on one rank: machine, model, data, batch, memory,
 * limit, start or resume, warmup. Also the lines that it prints after its end. */
#ifndef TRAIN_GPT_RUN_BANNER_H
#define TRAIN_GPT_RUN_BANNER_H

#include "run/run.h"

/* Prints the lines of the start on rank 0. Other ranks return at once. */
void banner_print(const Run *r);
/* Prints, on rank 0, the commands to type after a run that is complete. */
void banner_next(const Run *r);

typedef struct { char text[512]; } SourceUse;

/* Describes the use of each source of a blend in use [BLEND_SOURCES]: "70.0 % from web/train_*.bin: 1,000 tokens, 2.10
 * epochs". Returns the number of sources. data is the opened data.train of config, a blend. samples is the number of
 * samples that the run trains on. */
int blend_use(const Dataset *data, const Config *config, int64_t samples, SourceUse *use);

#endif
