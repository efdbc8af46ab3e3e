/* fuzz_shard.c - any bytes as the start of a token shard. The first eight say how long the file claims to be; an accepted header names
 * tokens that lie within it. */
#include <stdlib.h>
#include <string.h>

#include "data/shard.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    char        fault[SHARD_FAULT_CHARS] = "";
    ShardHeader h;
    uint64_t    file_bytes = bytes;
    if (bytes >= 8) memcpy(&file_bytes, data, 8), data += 8, bytes -= 8;
    if (shard_parse_header(data, bytes, file_bytes, &h, fault) == 0) {
        uint64_t each = (uint64_t)h.token_bytes;
        if ((each != 2 && each != 4) || h.tokens < 0 || h.data_offset > file_bytes || (uint64_t)h.tokens > (file_bytes - h.data_offset) / each) abort();
    } else if (!fault[0] || !memchr(fault, 0, sizeof fault)) {
        abort();
    }
    return 0;
}
