/* fuzz_shard.c - any bytes as the start of a data file of tokens, and of a Megatron index. The first eight bytes are
 * the file's length. An accepted header names tokens inside the file. */
#include <stdlib.h>
#include <string.h>

#include "data/shard.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void judge(int status, const ShardHeader *h, uint64_t file_bytes, const char fault[SHARD_FAULT_CHARS]) {
    if (status == 0) {
        uint64_t each = (uint64_t)h->token_bytes;
        if ((each != 2 && each != 4) || h->tokens < 0 || h->data_offset > file_bytes ||
            (uint64_t)h->tokens > (file_bytes - h->data_offset) / each)
            abort();
    } else if (!fault[0] || !memchr(fault, 0, SHARD_FAULT_CHARS)) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    char        fault[SHARD_FAULT_CHARS] = "";
    ShardHeader h;
    uint64_t    file_bytes = bytes;
    if (bytes >= 8) memcpy(&file_bytes, data, 8), data += 8, bytes -= 8;
    static const int64_t VOCABULARIES[] = {0, 256, 128256};
    for (int i = 0; i < 3; i++) judge(shard_parse_header(data, bytes, file_bytes, VOCABULARIES[i], &h, fault), &h, file_bytes, fault);
    /* length of the index file; a small number, so that it matches the header now and then */
    uint64_t index_bytes = file_bytes & 0xffff;
    memset(fault, 0, sizeof fault);
    int status = shard_parse_index(data, bytes, index_bytes, file_bytes >> 16, &h, fault);
    judge(status, &h, file_bytes >> 16, fault);
    if (status == 0 && (h.sequences < 1 || (uint64_t)h.sequences > (index_bytes - SHARD_INDEX_BYTES) / 12)) abort();
    return 0;
}
