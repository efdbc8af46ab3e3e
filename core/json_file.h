/* json_file.h - a JSON file read strictly, with one sentence for any fault: config.json and the others in the folder of a
 * model.
 */
#ifndef TRAIN_GPT_CORE_JSON_FILE_H
#define TRAIN_GPT_CORE_JSON_FILE_H

#include "core/json.h"

enum { JSON_FILE_FAULT_CHARS = 4800 };
/* Reads a file that must be JSON of at most `limit` bytes. Returns 0. Otherwise it writes a sentence that begins with
 * the path into fault, and returns -ENOENT if the file does not exist, else an exit code. With keeps_numbers a number
 * that a double cannot hold is no fault, and must not be read from the tree: tokenizer_config.json has such numbers. */
int  json_read_file(const char *path, size_t limit, int keeps_numbers, Json *json, char fault[JSON_FILE_FAULT_CHARS]);

#endif
