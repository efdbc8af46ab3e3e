/* fuzz_weights_index.c - any bytes as model.safetensors.index.json. An accepted index names each tensor once, and only
 * files in its own folder. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "run/checkpoint/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    char         fault[SAFETENSORS_FAULT_BYTES] = "", again[SAFETENSORS_FAULT_BYTES];
    WeightsIndex index, written;
    if (!weights_index_parse((const char *)data, bytes, &index, fault)) {
        if (!fault[0] || !memchr(fault, 0, sizeof fault)) abort();
        return 0;
    }
    if (index.tensors < 1 || index.files < 1 || index.files > index.tensors) abort();
    size_t longest = 0;
    for (int i = 0; i < index.tensors; i++) {
        if (weights_index_find(&index, index.tensor[i].name) != i) abort();
        if (index.tensor[i].file < 0 || index.tensor[i].file >= index.files) abort();
        if (strlen(index.tensor[i].name) > longest) longest = strlen(index.tensor[i].name);
    }
    for (int f = 0; f < index.files; f++)
        if (strchr(index.file[f], '/') || (f && strcmp(index.file[f - 1], index.file[f]) >= 0)) abort();
    /* an index with names below 60 bytes, as the program writes, must stay the same when written and read again */
    if (longest < 60) {
        char *text = weights_index_text(index.tensor, index.tensors, index.file, 1);
        if (!weights_index_parse(text, strlen(text), &written, again) || written.tensors != index.tensors || written.files != index.files) abort();
        for (int i = 0; i < index.tensors; i++)
            if (strcmp(written.tensor[i].name, index.tensor[i].name) != 0 || written.tensor[i].file != index.tensor[i].file) abort();
        weights_index_free(&written);
        free(text);
    }
    weights_index_free(&index);
    return 0;
}
