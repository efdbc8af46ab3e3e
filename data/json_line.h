/* json_line.h - the text of one line of a JSON Lines file (jsonlines.org): an object a line, and one of its fields is the
 * document.
 */
#ifndef TRAIN_GPT_DATA_JSON_LINE_H
#define TRAIN_GPT_DATA_JSON_LINE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { JSON_LINE_FAULT_CHARS = 500 };

/* A byte-order mark before the object is passed over, and a byte that is no UTF-8 is a fault.
 *
 * Decodes the string under `field` of the object in line [bytes], in its place: line is written over. Returns 1
 * with *text, *length (it may hold zero bytes); 0 where the field is null or the line blank; -1 with the reason in
 * fault, as it follows "line 12". A surrogate without its half becomes U+FFFD; of a key that stands twice the last
 * one counts. */
int json_line_text(char *line, size_t bytes, const char *field, char **text, size_t *length, char fault[JSON_LINE_FAULT_CHARS]);
/* Returns 1 if the line is one whole object, -1 if it is blank, else 0. Control characters, NaN and bytes that are
 * no UTF-8 pass: rows with such faults are rows all the same. The line is written over. */
int json_line_is_object(char *line, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
