/* json_file.c - see json_file.h. */
#include "core/json_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/error.h"
#include "core/io.h"
#include "core/shell_word.h"

/* Returns the first soft fault that counts, or NULL. */
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
        return bytes == -ENOENT ? -ENOENT : bytes == -ENOMEM ? EXIT_MEMORY : bytes == -EIO || bytes == -EACCES ? EXIT_IO : EXIT_DATA;
    }
    int is_read = json_parse_all(text, (size_t)bytes, limit, "", json, &wrong);
    free(text);
    const JsonFault *first = is_read ? soft_fault(json, keeps_numbers) : &wrong;
    if (!first) return 0;
    snprintf(fault, JSON_FILE_FAULT_CHARS, "%s:%d:%d: %s", path, first->at.line, first->at.column, first->text);
    shell_name_file(fault, JSON_FILE_FAULT_CHARS, path);
    if (is_read) json_free(json);
    return EXIT_DATA;
}
