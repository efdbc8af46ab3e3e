/* fuzz_text_file.c - any bytes as a file of text. The result is valid text, or a message with the reason. zstd and xz
 * are left out, because their libraries may need more memory than a fuzzer allows. */
#include <stdlib.h>
#include <string.h>

#include "data/text_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    enum { LIMIT = 1 << 20 };
    char   fault[TEXT_FILE_FAULT_CHARS] = "", *text = malloc(bytes + 1);
    size_t clean = bytes;
    if (!text || unpack_kind((const char *)data, bytes) > PACKED_GZIP) return free(text), 0;
    memcpy(text, data, bytes);
    text[bytes] = 0;
    if (text_clean(&text, &clean, LIMIT, "FILE", fault) == 0) {
        if (clean > LIMIT || text[clean] != 0) abort();
    } else if (!fault[0] || !memchr(fault, 0, sizeof fault) || memcmp(text, data, bytes) != 0) {
        abort();
    }
    free(text);
    return 0;
}
