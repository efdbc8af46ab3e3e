/* banner.h - the lines a run starts with, at most 8 on one rank: machine, model, data, batch, memory, limit, start or
 * resume, warmup; and the lines after its end. */
#ifndef TRAIN_GPT_RUN_BANNER_H
#define TRAIN_GPT_RUN_BANNER_H

#include "run/run.h"

/* Collective: hosts are gathered; rank 0 prints. */
void banner_print(const Run *r);
/* Rank 0 prints what to type after a run that is done. */
void banner_next(const Run *r);

#endif
