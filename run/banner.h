/* banner.h - the lines that a run prints at its start, at most 8 on one rank: machine, model, data, batch, memory,
 * limit, start or resume, warmup. Also the lines that it prints after its end. */
#ifndef TRAIN_GPT_RUN_BANNER_H
#define TRAIN_GPT_RUN_BANNER_H

#include "run/run.h"

/* Rank 0 prints; the other ranks return at once. */
void banner_print(const Run *r);
/* Prints, on rank 0, the commands to type after a run that is complete. */
void banner_next(const Run *r);

#endif
