/* algorithms_file.h - the table of matrix-product algorithms of a run (layers/algorithms.h): in run.dir/gemm.json, in
 * every checkpoint, and the same on all ranks. A GPU run repeats its bits with the same table only. The CPU has none.
 *
 * Records mean something to the library and GPU they were chosen with only, so both stand beside them:
 *   {"gpu": "NVIDIA H100 80GB HBM3", "isa": "sm_90", "library": "cuBLASLt 13.1.0",
 *    "products": [{"product": key, "algorithm": [id, its 16 words]}, ...]}
 */
#ifndef TRAIN_GPT_MODEL_ALGORITHMS_FILE_H
#define TRAIN_GPT_MODEL_ALGORITHMS_FILE_H

#include <cjson/cJSON.h>

#include "comm/comm.h"
#include "model/gpt.h"

#define ALGORITHMS_NAME "gemm.json"

/* The table, with the GPU and library that it was chosen on; caller deletes. */
cJSON *algorithms_to_json(void);
/* Sets the table to that of json, from `where` (a file or folder, for the warning); returns 1. Returns 0, with the
 * table as it was, if json is no such table or was chosen on another GPU or by another version of the library. A
 * warning names the difference. */
int    algorithms_from_json(const cJSON *json, const char *where);

/* Collective, once before the first step; nothing on the CPU:
 *   1. rank 0 takes the table of dir/gemm.json, else the one of a checkpoint, and gives it to all ranks
 *   2. each rank that `times`, one of each stage of the pipeline, times the products that the table lacks by a micro-step on `batch`,
 *      and by a second backward where a step has several micro_batches, whose products add to gradients; the first step begins
 *      with none of them, and zeroes the sums
 *   3. rank 0 gathers these products, stores a changed table and gives it to all ranks; then it is frozen */
void algorithms_settle(const char *dir, Comm *comm, int times, Gpt *g, Stream *s, Batch batch, int64_t micro_batches);

#endif
