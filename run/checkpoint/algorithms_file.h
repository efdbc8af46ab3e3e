/* algorithms_file.h - the table of matrix-product algorithms of a run (layers/algorithms.h). It is stored in
 * run.dir/gemm.json and in every checkpoint, and is the same on all ranks. A GPU run repeats its bits only with the
 * same table. The CPU has no table.
 *
 * Records are valid only for the library and GPU that they were chosen with, so the file names both:
 *   {"gpu": "NVIDIA H100 80GB HBM3", "isa": "sm_90", "library": "cuBLASLt 13.1.0",
 *    "products": [{"product": key, "algorithm": [id, its 16 words]}, ...]}
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_ALGORITHMS_FILE_H
#define TRAIN_GPT_RUN_CHECKPOINT_ALGORITHMS_FILE_H

#include <cjson/cJSON.h>

#include "comm/comm.h"
#include "model/gpt.h"

#define ALGORITHMS_NAME "gemm.json"

/* Returns the table of matrix-product algorithms as JSON, with the GPU and library that it was chosen on. The caller
 * deletes it. */
cJSON *algorithms_to_json(void);
/* Sets the table of matrix-product algorithms from json and returns 1. where: the file or folder that json was read
 * from, for the warning. If json is no such table, or was chosen on another GPU or by another version of the library, a
 * warning names the difference. The table then stays unchanged and the function returns 0. */
int    algorithms_from_json(const cJSON *json, const char *where);

/* Completes the table of matrix-product algorithms before the first step. Collective; does nothing on the CPU.
 *   1. Rank 0 reads dir/gemm.json, or else the table of a checkpoint, and sends it to all ranks.
 *   2. Ranks with times = 1, one in each pipeline stage, run a micro-step on `batch` and time the products that the
 *      table lacks. If a step has several micro_batches, a second backward follows, whose products add to gradients.
 *      The first step does not see these gradients, because it begins by zeroing the sums.
 *   3. Rank 0 gathers these products, stores the table if it changed, and sends it to all ranks. Then it is frozen. */
void algorithms_settle(const char *dir, Comm *comm, int times, Gpt *g, Stream *s, Batch batch, int64_t micro_batches);

#endif
