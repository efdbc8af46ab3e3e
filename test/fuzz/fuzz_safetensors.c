/* fuzz_safetensors.c - any bytes as a .safetensors header. The last eight bytes are the length of the file beyond the
 * given bytes. In an accepted header the tensors cover the file's data exactly, one after another. */
#include <stdlib.h>
#include <string.h>

#include "run/checkpoint/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    char        fault[SAFETENSORS_FAULT_BYTES] = "", shape[64];
    Safetensors s;
    uint64_t    more = 0;
    if (bytes >= 8) memcpy(&more, data + bytes - 8, 8);
    uint64_t file_bytes = bytes + (more < UINT64_MAX - bytes ? more : 0);
    if (!safetensors_parse(data, bytes, file_bytes, &s, fault)) {
        if (!fault[0] || !memchr(fault, 0, sizeof fault)) abort();
        return 0;
    }
    uint64_t at = 0;
    for (int i = 0; i < s.tensors; i++) {
        if (s.tensor[i].begin != at || s.tensor[i].end < at || safetensors_find(&s, s.tensor[i].name) == NULL) abort();
        at = s.tensor[i].end;
        safetensors_shape(shape, sizeof shape, &s.tensor[i]);
    }
    if (s.data_offset > file_bytes || at != file_bytes - s.data_offset) abort();
    safetensors_free(&s);
    return 0;
}
