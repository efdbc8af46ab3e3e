/* json_file.c - see json_file.h. */
#include "core/json_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/error.h"
#include "core/io.h"
#include "core/shell_word.h"

/* Returns the first soft fault that must be reported, or NULL. */
static const JsonFault *soft_fault(const Json *json, int keeps_numbers) {
    for (int i = 0; i < json->softs; i++)
        if (!keeps_numbers || !json->soft[i].is_number) return &json->soft[i];
    return NULL;
}

int json_read_file(const char *path, size_t limit, int keeps_numbers, Json *json, char fault[JSON_FILE_FAULT_CHARS]) {
    char     *text;
    JsonFault wrong;
    int64_t   bytes = io_read_file(path, limit, &text);
    if (bytes < 0) {
        snprintf(fault, JSON_FILE_FAULT_CHARS, "%s cannot be read: %s", path, io_error_text((int)bytes));
        if (bytes == -ENOENT) return -ENOENT;
        int is_other = bytes <= -IO_IS_FIFO || bytes == -EFBIG || bytes == -EISDIR || bytes == -ENOTDIR || bytes == -ELOOP;
        return bytes == -ENOMEM ? EXIT_MEMORY : is_other ? EXIT_DATA : EXIT_IO;
    }
    int is_read = json_parse_all(text, (size_t)bytes, limit, "", json, &wrong);
    free(text);
    const JsonFault *first = is_read ? soft_fault(json, keeps_numbers) : &wrong;
    if (!first) return 0;
    int at = snprintf(fault, JSON_FILE_FAULT_CHARS, "%s:%d:%d: ", path, first->at.line, first->at.column);
    if (at >= JSON_FILE_FAULT_CHARS) at = 0; /* the path is so long that nothing else fits */
    snprintf(fault + at, (size_t)(JSON_FILE_FAULT_CHARS - at), "%s", first->text);
    shell_name_file(fault + at, (size_t)(JSON_FILE_FAULT_CHARS - at), path);
    if (is_read) json_free(json);
    return EXIT_DATA;
}
