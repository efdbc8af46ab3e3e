/* json_text.h - JSON values as messages show them, and numbers that keep all their digits. */
#ifndef TRAIN_GPT_CORE_JSON_TEXT_H
#define TRAIN_GPT_CORE_JSON_TEXT_H

#include <cjson/cJSON.h>
#include <stdint.h>

enum { SHOWN_BYTES = 160 }; /* longest value or range in a message */

/* Writes the shortest decimal that this program's JSON reader reads back as `value`. Returns out [SHOWN_BYTES]. */
char *number_text(double value, char out[SHOWN_BYTES]);
/* Writes 12288 as "12,288". Returns out [32]. */
char *grouped_text(int64_t n, char out[32]);
/* Writes a JSON value for a message: 600, the string "600", a list. Returns out [SHOWN_BYTES]. */
char *value_text(const cJSON *value, char out[SHOWN_BYTES]);
/* Returns a number node that reads back as `value` from libcjson's output. If libcjson writes too few digits, ours are
 * inserted verbatim. */
cJSON *number_json(double value);
double number_value(const cJSON *number); /* value of a node from number_json() or the parser; NaN if it is neither */
/* Prints json to standard output with a newline, and frees it. Exit 71 if memory runs out. */
void json_print(cJSON *json);

#endif
