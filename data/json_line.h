/* json_line.h - the text in one line of a JSON Lines file (jsonlines.org): each line is an object, and one of its
 * fields is the document.
 */
#ifndef TRAIN_GPT_DATA_JSON_LINE_H
#define TRAIN_GPT_DATA_JSON_LINE_H

#include <stddef.h>

enum { JSON_LINE_FAULT_CHARS = 900 };

/* Returns advice how to make rows of the JSON array with which text [bytes] begins. Returns NULL if it begins with no
 * array. */
const char *json_line_array_rows(const char *text, size_t bytes);
/* Finds the string in the field `field` of the object in line [bytes]. Decodes it in place, so the line is overwritten.
 * Returns 1 with *text and *length; the text may hold zero bytes. Returns 0 if the field is null or the line blank. On
 * a fault returns -1 with the reason in fault, worded to follow "line 12".
 *
 * A byte-order mark before the object is ignored. A byte that is not UTF-8 is a fault, and so is a lone surrogate. If a
 * key occurs twice, the last one counts. */
int json_line_text(char *line, size_t bytes, const char *field, char **text, size_t *length,
                   char fault[JSON_LINE_FAULT_CHARS]);
/* Returns 1 if the line is one whole JSON object, -1 if it is blank, else 0. Control characters, NaN and bytes that are
 * not UTF-8 are allowed, because a line with such a fault is still a row. */
int json_line_is_object(const char *line, size_t bytes);

#endif
