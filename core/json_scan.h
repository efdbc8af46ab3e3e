/* json_scan.h - the strict pass over JSON text, without the tree: json_parse() runs it first. Private to core/json*.c
 * and their tests, but for the two small text helpers at the end.
 */
#ifndef TRAIN_GPT_CORE_JSON_SCAN_H
#define TRAIN_GPT_CORE_JSON_SCAN_H

#include "core/json.h"

/* Longest path of a value ("data.train[1]"). It bounds the memory that the list of entries needs for a hostile file. */
enum { JSON_PATH_BYTES = 255 };
/* Longest number in characters. libcjson copies a number into a buffer of 64 and would split a longer one. */
enum { JSON_NUMBER_BYTES = 63 };

typedef struct {
    size_t      limit;   /* most bytes of text              */
    const char *top;     /* text before every path, often "" */
    int         collect; /* 1 lists soft faults; 0 ends at the first, so that a hostile text cannot fill memory with
                          * faults */
} JsonScan;

/* Checks text [bytes] and lists every value except the root in file order, a container before its values. Returns 1
 * with *json set except for its root (*fault may have been overwritten), or 0 with *fault set and an empty *json. */
int  json_scan(const char *text, size_t bytes, JsonScan how, Json *json, JsonFault *fault);
void json_scan_free(Json *json); /* frees everything except the root, which is only forgotten */

/* Returns the number of bytes of the UTF-8 sequence at text (1 to 4), or 0 if none within `bytes` is valid. */
int json_utf8(const char *text, size_t bytes);

/* Writes text as a JSON string to out [capacity], capacity at least 16. Unlike json_quote it always ends in a quote: a
 * text that does not fit is cut and ends in "...". Returns out. */
char *json_quote_short(char *out, size_t capacity, const char *text);

#endif
