/* json.h - strict JSON on top of libcjson. A scan of our own over the bytes checks syntax, UTF-8, duplicate keys and
 * numbers, and records the line and column of each value. libcjson then builds the tree.
 *
 * The scan is a pure function over (bytes, length). It refuses these faults, against RFC 8259 or a limit of ours, that
 * libcjson accepts: trailing bytes, leading zeros, control characters, bad UTF-8, a byte-order mark, \u0000, lone
 * surrogates, duplicate keys, numbers that are not finite, integers beyond 2^53 or not exact as written, depth over 32,
 * files over 1 MiB (JSON_LIMIT, or the caller's own).
 *
 * After a duplicate key, or a number that a double cannot hold, the rest of the text is still readable: these are the
 * soft faults. json_parse() refuses them like any other fault. json_parse_all() lists them all, for a reader that
 * prints all faults at once.
 */
#ifndef TRAIN_GPT_CORE_JSON_H
#define TRAIN_GPT_CORE_JSON_H

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "core/format.h"

enum { JSON_LIMIT = 1 << 20, JSON_DEPTH = 32 };
/* Longest path of a value ("data.train[1]"), in bytes. The limit bounds the memory that the list of values takes for a
 * hostile file. */
enum { JSON_PATH_BYTES = 255 };

typedef struct { int line, column; } JsonPlace; /* place in a text; line and column count from 1, columns in bytes */

typedef struct {
    JsonPlace at;
    char      text[240]; /* message of the fault, such as: duplicate key "seed", first at line 3 */
    int       is_number; /* 1: the fault is a number that a double cannot hold; the rest of the text is readable */
} JsonFault;

typedef struct {
    char     *path;      /* path of the value, such as "optimizer.learning_rate" or "data.train[1]"; owned */
    JsonPlace key;       /* position of the value's key in the file; in an array, which has no keys, of the value
                          * itself */
    JsonPlace value;
    int       faulty;    /* 1: the value is a number that a double cannot hold, or its key appears twice (then both
                          * entries are marked) */
} JsonEntry;

typedef struct {
    cJSON     *root;     /* tree of the file; NULL if there was a fault; owned */
    JsonEntry *entry;    /* [entries] every value except the root, in file order; owned */
    int        entries;
    JsonFault *soft;     /* [softs] soft faults, after which the rest of the text was readable, in file order; NULL from
                          * json_parse(); owned */
    int        softs;
} Json;

/* Parses text [bytes], which may have at most `limit` bytes. Returns 1, or 0 with *fault set. */
int  json_parse(const char *text, size_t bytes, size_t limit, Json *json, JsonFault *fault);
/* Parses text [bytes] and lists soft faults, after which the rest is readable, in json->soft; they do not make it
 * return 0. A number with a soft fault must not be read from the tree. Paths start with `top`, the name of the root (""
 * for none), of at most 255 bytes. Returns 1, or 0 with *fault set. */
int  json_parse_all(const char *text, size_t bytes, size_t limit, const char *top, Json *json, JsonFault *fault);
void json_free(Json *json);
/* Parses a file that another program wrote, with libcjson alone, which is less strict than json_parse. text has a NUL
 * after `bytes` bytes, and only blanks may follow the value. Returns NULL if it is not JSON. */
cJSON *json_of_others(const char *text, size_t bytes);

enum { JSON_FILE_FAULT_CHARS = 4800 };
/* Reads a file that must be JSON of at most `limit` bytes. Returns 0. Otherwise it writes a sentence that begins with
 * the path into fault, and returns -ENOENT if the file does not exist, else an exit code. With keeps_numbers a number
 * that a double cannot hold is no fault; the caller must not read such a number from the tree. tokenizer_config.json
 * has such numbers. */
int  json_read_file(const char *path, size_t limit, int keeps_numbers, Json *json, char fault[JSON_FILE_FAULT_CHARS]);

const JsonEntry *json_entry(const Json *json, const char *path);  /* returns the entry of the value with this path, or
                                                                   * NULL if there is none */
/* Returns the member with exactly this name (case matters), or NULL if there is none or `object` is not an object. */
cJSON *json_member(const cJSON *object, const char *name);

/* --- text and numbers --------------------------------------------------------------------------------------------- */

/* Appends text as a JSON string with quotes and escapes to out [capacity]. Returns the number of bytes that the whole
 * output needs, even if they did not fit. */
size_t json_quote(char *out, size_t capacity, const char *text);
/* Prints text as a JSON string with quotes and escapes. */
void   json_print_string(FILE *out, const char *text);
/* Writes text as a JSON string to out [capacity], capacity at least 16. It always ends in a quote: a text that does not
 * fit is cut and ends in "...". Returns out. */
char  *json_quote_short(char *out, size_t capacity, const char *text);
/* Returns whether `read` is the string that a reader gets back from the JSON of `text`. The two may differ, because
 * names of files need not be UTF-8. */
int    json_reads_as(const char *read, const char *text);
/* Returns a JSON string node of text, with U+FFFD for each byte that is not UTF-8. */
cJSON *json_string(const char *text);
/* Returns a JSON number node that reads back as `value` after libcjson has printed it. Where libcjson would print too
 * few digits, the node holds digits from number_text() verbatim. */
cJSON *number_json(double value);
double number_value(const cJSON *number); /* returns the value of a node from number_json() or the parser; NaN for any
                                           * other node */
/* Writes a JSON value for a message: 600, the string "600", a list. Returns out [SHOWN_BYTES]. */
char  *value_text(const cJSON *value, char out[SHOWN_BYTES]);
/* Prints json to standard output with a newline, and frees it. Exit 71 if memory runs out. */
void   json_print(cJSON *json);

#endif
