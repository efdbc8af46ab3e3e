/* fuzz_json_line.c - any bytes as a line of JSON Lines. The result is a text inside the line, or a message. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "data/json_line.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    char   fault[JSON_LINE_FAULT_CHARS] = "", *line = malloc(bytes ? bytes : 1), *text = NULL;
    size_t length = 0;
    memcpy(line, data, bytes);
    int found = json_line_text(line, bytes, "text", &text, &length, fault);
    if (found == 1 && (text < line || text + length > line + bytes)) abort();
    if (found < 0 && (!fault[0] || !memchr(fault, 0, sizeof fault))) abort();
    free(line);
    return 0;
}
