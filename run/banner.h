/* banner.h - the lines a run starts with, at most 8: machine, model, data, batch, memory, limit, start or resume. */
#ifndef TRAIN_GPT_RUN_BANNER_H
#define TRAIN_GPT_RUN_BANNER_H

#include "run/run.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Collective: hosts are gathered; rank 0 prints. */
void banner_print(const Run *r);

#ifdef __cplusplus
}
#endif
#endif
