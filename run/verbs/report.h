/* report.h - prints the results of a verb under short keys: lines for people, or one JSON object for scripts. */
#ifndef TRAIN_GPT_RUN_VERBS_REPORT_H
#define TRAIN_GPT_RUN_VERBS_REPORT_H

#include <cjson/cJSON.h>

#include "core/error.h"

typedef struct { cJSON *json; /* owned; NULL: lines, which are printed at once */ } Report;

Report report_begin(int as_json);
void   report_end(Report *r);     /* prints the object, if any */

/* Add a result. The value goes into the object, or the text into a line "key text". A number that is not finite is null
 * in JSON. */
void report_text(Report *r, const char *key, const char *fmt, ...) PRINTF_LIKE(3, 4);
void report_number(Report *r, const char *key, double value, const char *fmt, ...) PRINTF_LIKE(4, 5);
/* Adds a result with a JSON value, and takes ownership of item. If item is NULL for lack of memory, exit 71. */
void report_item(Report *r, const char *key, cJSON *item, const char *fmt, ...) PRINTF_LIKE(4, 5);
/* Prints an indented line of a table, for people only. */
void report_row(const Report *r, const char *fmt, ...) PRINTF_LIKE(2, 3);

cJSON *report_json(double value); /* returns a number, or null if it is not finite */
cJSON *report_copy(const cJSON *value); /* keeps all digits of a number */
/* Writes a value as JSON, cut to REPORT_VALUE bytes, or "-" for NULL. Returns out. */
enum { REPORT_VALUE = 64 };
char *report_value(const cJSON *value, char out[REPORT_VALUE]);

#endif
