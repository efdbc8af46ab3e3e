/* gemm.h - the table of matrix-product algorithms of a run (layers/algorithms.h): in run.dir/gemm.json, in every checkpoint, and the same
 * on all ranks. A GPU run repeats its bits with the same table only. The CPU has none.
 */
#ifndef TRAIN_GPT_RUN_GEMM_H
#define TRAIN_GPT_RUN_GEMM_H

#include <cjson/cJSON.h>

#include "comm/comm.h"
#include "layers/gpt.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GEMM_NAME "gemm.json"

/* The table as a list of records; caller deletes. */
cJSON *gemm_to_json(void);
/* Sets the table to the list's records; returns 0, with an empty table, if it is no such list. NULL: empty. */
int    gemm_from_json(const cJSON *list);

/* Collective, once before the first step: the table of dir/gemm.json, else the one a checkpoint has brought; rank 0 times what is missing by
 * a micro-step on `batch` (its gradients and sums are zeroed by the first step), stores it and gives it to all ranks; then it is frozen. */
void gemm_settle(const char *dir, Comm *comm, Gpt *g, Stream *s, Batch batch);

#ifdef __cplusplus
}
#endif
#endif
