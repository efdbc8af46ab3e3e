/* json_scan.h - the strict pass over JSON text, without the tree: json_parse() runs it first. Private to core/json*.c
 * and their tests, but for the two small text helpers at the end.
 */
#ifndef TRAIN_GPT_CORE_JSON_SCAN_H
#define TRAIN_GPT_CORE_JSON_SCAN_H

#include "core/json.h"

/* Longest path of a value ("data.train[1]"): bounds the memory that the list of entries takes for a hostile file. */
enum { JSON_PATH_BYTES = 255 };
/* Longest number in characters: libcjson copies a number into a buffer of 64 and would split a longer one. */
enum { JSON_NUMBER_BYTES = 63 };

typedef struct {
    size_t      limit;   /* most bytes of text              */
    const char *top;     /* the start of paths, often ""    */
    int         collect; /* soft faults are listed; 0: the first one ends it, so that a hostile text cannot fill memory with them */
} JsonScan;

/* Checks text [bytes] and lists every value but the root in file order, a container before its values. Returns 1 with
 * *json set but for its root (*fault may be overwritten all the same), or 0 with *fault set and an empty *json. */
int  json_scan(const char *text, size_t bytes, JsonScan how, Json *json, JsonFault *fault);
void json_scan_free(Json *json); /* all but the root, which is forgotten */

/* Bytes of the UTF-8 sequence at text (1 to 4), or 0 if there is no valid one within bytes. */
int json_utf8(const char *text, size_t bytes);

/* As json_quote, but always ends in a quote: text beyond out [capacity] (at least 16) is cut and shown as "...".
 * Returns out. */
char *json_quote_short(char *out, size_t capacity, const char *text);

#endif
