/* weights_index.h - model.safetensors.index.json: which file of a model holds which tensor. The parser is a pure
 * function over bytes and length.
 *
 *   {"metadata": {"total_size": 497759232},
 *    "weight_map": {"transformer.wte.weight": "model-00001-of-00002.safetensors", ...}}
 *
 * Files are named without a folder, so an index can only name files beside itself. The metadata is not used.
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_WEIGHTS_INDEX_H
#define TRAIN_GPT_RUN_CHECKPOINT_WEIGHTS_INDEX_H

#include <stddef.h>
#include <stdint.h>

#include "core/json.h"

enum { WEIGHTS_INDEX_LIMIT = 16 << 20, WEIGHTS_INDEX_FAULT_BYTES = 480 };

typedef struct {
    const char *name;       /* borrowed from json */
    int         file;       /* index in WeightsIndex.file */
} IndexedTensor;

typedef struct {
    IndexedTensor *tensor;  /* owned, in the byte order of names */
    int            tensors;
    const char   **file;    /* owned [files]: borrowed names, each once, in byte order */
    int            files;
    Json           json;    /* owned: holds the names */
} WeightsIndex;

/* Reads text [bytes]. Returns 1, or 0 and the fault as a phrase ("has no weight_map") in fault
 * [WEIGHTS_INDEX_FAULT_BYTES]; *out is then empty. */
int  weights_index_parse(const char *text, size_t bytes, WeightsIndex *out, char *fault);
void weights_index_free(WeightsIndex *index);

int weights_index_find(const WeightsIndex *index, const char *name); /* index in WeightsIndex.tensor, or -1 */

/* Returns the text of an index of these tensors, malloc'ed. total_bytes: size of all tensors. Equal tensors give equal
 * text. */
char *weights_index_text(const IndexedTensor *tensor, int tensors, const char *const *file, uint64_t total_bytes);

#endif
