/* json_text.h - JSON values as messages show them, and numbers that keep all their digits. */
#ifndef TRAIN_GPT_CORE_JSON_TEXT_H
#define TRAIN_GPT_CORE_JSON_TEXT_H

#include <cjson/cJSON.h>
#include <stdint.h>

enum { SHOWN_BYTES = 160 }; /* a value or range in a message */

/* Writes the shortest decimal that this program's own JSON reader reads back as value. Returns out [SHOWN_BYTES]. */
char *number_text(double value, char out[SHOWN_BYTES]);
/* 12288 as "12,288". Returns out [32]. */
char *grouped_text(int64_t n, char out[32]);
/* A JSON value as a message shows it: 600, the string "600", a list. Returns out [SHOWN_BYTES]. */
char *value_text(const cJSON *value, char out[SHOWN_BYTES]);
/* A number node that reads back as value from libcjson's output: where its own digits are too few, ours go in
 * verbatim. */
cJSON *number_json(double value);
double number_value(const cJSON *number); /* of a node from number_json() or the parser; NaN if it is neither */
/* To standard output, with a newline; frees it. Ends the program where there is no memory. */
void json_print(cJSON *json);

#endif
