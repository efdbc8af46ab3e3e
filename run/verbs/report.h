/* report.h - what a verb has found, under short words: lines for people, or one JSON object for scripts. */
#ifndef TRAIN_GPT_RUN_VERBS_REPORT_H
#define TRAIN_GPT_RUN_VERBS_REPORT_H

#include <cjson/cJSON.h>

#include "core/error.h"

typedef struct { cJSON *json; /* owned; NULL: lines, printed at once */ } Report;

Report report_begin(int as_json);
void   report_end(Report *r);     /* prints the object */

/* The value goes into the object, the text into the line "key   text". A number that is not finite is null in JSON. */
void report_text(Report *r, const char *key, const char *fmt, ...) PRINTF_LIKE(3, 4);
void report_number(Report *r, const char *key, double value, const char *fmt, ...) PRINTF_LIKE(4, 5);
/* Takes the item; NULL: no memory, exit 71. */
void report_item(Report *r, const char *key, cJSON *item, const char *fmt, ...) PRINTF_LIKE(4, 5);
/* For people alone: an indented line of a table. */
void report_row(const Report *r, const char *fmt, ...) PRINTF_LIKE(2, 3);

cJSON *report_json(double value); /* a number, or null */
cJSON *report_copy(const cJSON *value); /* with all digits of a number */
/* A value as JSON writes it, cut after so many bytes; "-" for NULL. Returns out. */
enum { REPORT_VALUE = 64 };
char *report_value(const cJSON *value, char out[REPORT_VALUE]);

#endif
