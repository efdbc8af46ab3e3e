/* json.c - strict reading of JSON (json.h): a scan of the bytes, libcjson's tree, exact look-ups, quoting, and text for
 * messages.
 *
 * The scan is a recursive descent. It builds only a list that gives the line and column of each value. Every scan_
 * function starts at s->at. It moves s->at past the text that it read and returns 1, or sets s->fault and returns 0.
 * Only white space can hold a line feed (strings refuse it), so skip_space alone counts lines. A soft fault, after
 * which the rest can still be read, goes through soften().
 */
#include "core/json.h"

#include <errno.h>
#include <fenv.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/io.h"

/* Largest number of characters in a JSON number. libcjson copies a number into a buffer of 64 bytes and would split a
 * longer one. */
enum { JSON_NUMBER_BYTES = 63 };

/* Position of an entry (a value of the text) in the tree of values. parent: index of the entry's object or array, -1
 * for the root. name_at: index in the entry's path where its own name begins, -1 for an array element, which has no
 * name. */
typedef struct { int parent, name_at; } Link;

typedef struct {
    const char *text;
    size_t      bytes, at, line_start;
    int         line, depth;
    char        path[JSON_PATH_BYTES + 1];
    size_t      path_bytes;
    Json       *json;  /* the result under construction: lists of entries and of soft faults, which do not
                        * end the scan */
    Link       *link;  /* [json->entries] position of each entry in the tree of values; owned */
    JsonFault  *fault;
    int         keeps_one; /* 1: json->soft keeps only one fault, because json_parse reports only one */
} Scanner;

static int scan_value(Scanner *s, int self);

static JsonPlace place_of(const Scanner *s, size_t at) {
    return (JsonPlace){s->line, (int)(at - s->line_start) + 1};
}

static int fault_at(Scanner *s, size_t at, const char *fmt, ...) PRINTF_LIKE(3, 4);
static int fault_at(Scanner *s, size_t at, const char *fmt, ...) {
    va_list args;
    s->fault->at = place_of(s, at), s->fault->is_number = 0;
    va_start(args, fmt);
    vsnprintf(s->fault->text, sizeof s->fault->text, fmt, args);
    va_end(args);
    return 0;
}

/* Adds s->fault, which the caller has just set, to the list of soft faults, after which scanning continues. With
 * keeps_one the list holds one fault, so that a hostile text cannot fill memory. That fault is the first number that a
 * double cannot hold, or if there is none the first duplicate key. */
static void soften(Scanner *s) {
    Json *json = s->json;
    if (s->keeps_one && json->softs) {
        JsonFault *kept = json->soft;
        int        line = s->fault->at.line - kept->at.line, column = s->fault->at.column - kept->at.column;
        int        is_before = line < 0 || (line == 0 && column < 0);
        if (s->fault->is_number == kept->is_number ? is_before : s->fault->is_number) *kept = *s->fault;
        return;
    }
    json->soft = xgrow(json->soft, json->softs, sizeof *json->soft, "reading JSON");
    json->soft[json->softs++] = *s->fault;
}

static int byte_at(const Scanner *s, size_t at) { return at < s->bytes ? (unsigned char)s->text[at] : -1; }
static int peek(const Scanner *s) { return byte_at(s, s->at); }
static int is_digit(int c) { return c >= '0' && c <= '9'; }
static int is_word(int c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

static const char *found(const Scanner *s, char out[24]) {
    int c = peek(s);
    if (c < 0)               return "the end";
    if (c > ' ' && c < 0x7f) snprintf(out, 24, "'%c'", c);
    else if (s->bytes - s->at > 2 && memcmp(s->text + s->at, "\xe2\x80", 2) == 0 &&
             (s->text[s->at + 2] & 0xf8) == 0x98) return "a curly quote; write \""; /* U+2018 to U+201F */
    else                     snprintf(out, 24, "byte 0x%02x", (unsigned)c);
    return out;
}

static void skip_space(Scanner *s) {
    for (;; s->at++) {
        int c = peek(s);
        if (c == '\n') { s->line++; s->line_start = s->at + 1; }
        else if (c != ' ' && c != '\t' && c != '\r') return;
    }
}

static int add_entry(Scanner *s, int parent, int name_at, JsonPlace key) {
    Json *json = s->json;
    json->entry = xgrow(json->entry, json->entries, sizeof *json->entry, "reading JSON");
    s->link = xgrow(s->link, json->entries, sizeof *s->link, "reading JSON");
    json->entry[json->entries] = (JsonEntry){xstrdup(s->path, "reading JSON"), key, key, 0};
    s->link[json->entries] = (Link){parent, name_at};
    return json->entries++;
}

/* --- strings ------------------------------------------------------------------------------------------------------ */

/* Appends a decoded piece of a key to the path. Does nothing with decode = 0, which is for a string that is a value. */
static int put(Scanner *s, int decode, const char *bytes, size_t count) {
    if (!decode) return 1;
    if (s->path_bytes + count > JSON_PATH_BYTES)
        return fault_at(s, s->at, "the path of this key is longer than %d bytes", JSON_PATH_BYTES);
    memcpy(s->path + s->path_bytes, bytes, count);
    s->path_bytes += count;
    s->path[s->path_bytes] = '\0';
    return 1;
}

/* Returns the value of the four hex digits of the \u escape whose backslash is at `at`, or -1 if there is no such
 * escape. */
static int hex4(const Scanner *s, size_t at) {
    int value = 0;
    if (byte_at(s, at) != '\\' || byte_at(s, at + 1) != 'u') return -1;
    for (size_t i = 2; i < 6; i++) {
        int c = byte_at(s, at + i), lower = c | 0x20;
        if (is_digit(c))                       value = value * 16 + (c - '0');
        else if (lower >= 'a' && lower <= 'f') value = value * 16 + (lower - 'a' + 10);
        else return -1;
    }
    return value;
}

static int scan_unicode_escape(Scanner *s, int decode) {
    int code = hex4(s, s->at);
    if (code < 0)                         return fault_at(s, s->at, "\\u takes four hexadecimal digits");
    if (code == 0)                        return fault_at(s, s->at, "\\u0000 is not allowed (a zero byte); remove it");
    if (code >= 0xdc00 && code <= 0xdfff)
        return fault_at(s, s->at, "\\u%04x is the second half of a surrogate pair without the first", (unsigned)code);
    size_t length = 6;
    if (code >= 0xd800 && code <= 0xdbff) {
        int low = hex4(s, s->at + 6);
        if (low < 0xdc00 || low > 0xdfff)
            return fault_at(s, s->at, "\\u%04x is the first half of a surrogate pair without the second",
                            (unsigned)code);
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        length = 12;
    }
    char   utf8[4];
    size_t count = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = count; i-- > 1; code >>= 6) utf8[i] = (char)(0x80 | (code & 0x3f));
    utf8[0] = (char)(count == 1 ? code : (0xf00 >> count) | code);
    if (!put(s, decode, utf8, count)) return 0;
    s->at += length;
    return 1;
}

static int scan_string(Scanner *s, int decode) {
    static const char names[] = "\"\\/bfnrt", means[] = "\"\\/\b\f\n\r\t"; /* escapes, and the bytes they mean */
    size_t start = s->at++;
    for (;;) {
        int c = peek(s);
        if (c < 0)    return fault_at(s, start, "this string is never closed");
        if (c == '"') { s->at++; return 1; }
        if (c == '\n' || c == '\r') return fault_at(s, start, "this string is not closed on its line");
        if (c < ' ')
            return fault_at(s, s->at, "control character 0x%02x in a string; write it as \\u%04x", (unsigned)c,
                            (unsigned)c);
        int escape = c == '\\' ? byte_at(s, s->at + 1) : 0;
        if (escape == 'u') {
            if (!scan_unicode_escape(s, decode)) return 0;
            continue;
        }
        if (c == '\\') {
            const char *name = escape > 0 ? strchr(names, escape) : NULL;
            if (!name)
                return fault_at(s, s->at,
                                "unknown escape; JSON has \\\" \\\\ \\/ \\b \\f \\n \\r \\t and \\u with four digits");
            if (!put(s, decode, &means[name - names], 1)) return 0;
            s->at += 2;
            continue;
        }
        int length = utf8_bytes(s->text + s->at, s->bytes - s->at);
        if (length == 0) return fault_at(s, s->at, "byte 0x%02x is not valid UTF-8", (unsigned)c);
        if (!put(s, decode, s->text + s->at, (size_t)length)) return 0;
        s->at += (size_t)length;
    }
}

/* --- numbers ------------------------------------------------------------------------------------------------------ */

/* Returns whether a number literal whose double is an integer equals that integer exactly. 9007199254740993.0,
 * 600.00000000000000001 and 1e-999 do not: rounded up and rounded down they give different doubles. */
static int is_exact(const char *literal, double value) {
    if (fabs(value) > 0x1p53 || value != floor(value)) return 1;
    /* strtod rounds what lies below the least double by instructions of the processor, and valgrind ignores their
     * rounding mode: a 0 is exact if the literal has no other digit before its exponent */
    if (value == 0) return !is_digit((unsigned char)literal[strcspn(literal, "123456789eE")]);
    int rounding = fegetround();
    fesetround(FE_UPWARD);
    double above = strtod(literal, NULL);
    fesetround(FE_DOWNWARD);
    double below = strtod(literal, NULL);
    fesetround(rounding);
    return above == below;
}

static int scan_digits(Scanner *s, const char *after) {
    char text[24];
    if (!is_digit(peek(s))) return fault_at(s, s->at, "expected a digit %s, found %s", after, found(s, text));
    while (is_digit(peek(s))) s->at++;
    return 1;
}

enum { NAMED = 96 }; /* largest number of characters of a value's path in a message, so that the rest of the message
                      * still fits */

/* Writes the path of the current value for the start of a message, such as "optimizer.learning_rate: ". The path is in
 * quotes if a character is escaped or the end is cut. Returns "" for the root. */
static const char *named(const Scanner *s, char out[NAMED]) {
    if (!s->path_bytes) return "";
    json_quote_short(out, NAMED - 2, s->path);
    size_t length = strlen(out);
    if (length == s->path_bytes + 2) memmove(out, out + 1, length -= 2); /* removes the quotes if nothing was escaped or
                                                                          * cut */
    strcpy(out + length, ": ");
    return out;
}

/* Checks the number literal at start [length]. Adds a soft fault if a double cannot hold the number as written. Returns
 * 0 with s->fault set if the literal is too long, otherwise 1. integer: 1 if the literal has no point and no exponent.
 * self: index of the number's entry in the list, -1 for the root. */
static int check_number(Scanner *s, size_t start, size_t length, int integer, int self) {
    char literal[JSON_NUMBER_BYTES + 1], name[NAMED];
    /* this fault ends the scan, because libcjson could not read such a number */
    if (length > JSON_NUMBER_BYTES)
        return fault_at(s, start, "%sthe number has %zu characters; at most %d are allowed", named(s, name), length,
                        JSON_NUMBER_BYTES);
    memcpy(literal, s->text + start, length);
    literal[length] = '\0';
    double value = strtod(literal, NULL);
    if (!isfinite(value))
        fault_at(s, start, "%sthe number %s is too large", named(s, name), literal);
    else if (integer && (fabs(value) > 0x1p53 || !is_exact(literal, value)))
        fault_at(s, start, "%sthe integer %s is beyond 2^53 = 9007199254740992 and cannot be kept exactly",
                 named(s, name), literal);
    else if (!is_exact(literal, value))
        fault_at(s, start, "%sthe number %s cannot be kept exactly; it would be read as %.0f", named(s, name), literal,
                 value);
    else
        return 1;
    if (self >= 0) s->json->entry[self].faulty = 1;
    s->fault->is_number = 1;
    soften(s);
    return 1;
}

static int scan_number(Scanner *s, int self) {
    size_t start = s->at;
    int    integer = 1;
    if (peek(s) == '-') s->at++;
    if (peek(s) == '0' && is_digit(byte_at(s, s->at + 1))) return fault_at(s, start, "a number must not begin with 0");
    if (!scan_digits(s, "in a number")) return 0;
    if (peek(s) == '.') {
        integer = 0;
        s->at++;
        if (!scan_digits(s, "after the point")) return 0;
    }
    if (peek(s) == 'e' || peek(s) == 'E') {
        integer = 0;
        s->at++;
        if (peek(s) == '+' || peek(s) == '-') s->at++;
        if (!scan_digits(s, "in the exponent")) return 0;
    }
    if (is_word(peek(s)) || peek(s) == '.') {
        char text[24];
        return fault_at(s, s->at, "unexpected %s after a number", found(s, text));
    }
    return check_number(s, start, s->at - start, integer, self);
}

/* --- values ------------------------------------------------------------------------------------------------------- */

/* Scans true, false or null. At any other word sets a fault that suggests the word probably meant. */
static int scan_word(Scanner *s) {
    size_t start = s->at, length = 0;
    char   word[32];
    while (is_word(byte_at(s, start + length))) length++;
    snprintf(word, sizeof word, "%.*s", length < 24 ? (int)length : 24, s->text + start);
    s->at += length;
    if (!strcmp(word, "true") || !strcmp(word, "false") || !strcmp(word, "null")) return 1;
    if (!strcmp(word, "NaN") || !strcmp(word, "Infinity") || !strcmp(word, "nan") || !strcmp(word, "inf"))
        return fault_at(s, start, "%s is no JSON number; numbers are finite", word);
    if (!strcmp(word, "True") || !strcmp(word, "TRUE")) return fault_at(s, start, "unknown word %s; write true", word);
    if (!strcmp(word, "False") || !strcmp(word, "FALSE"))
        return fault_at(s, start, "unknown word %s; write false", word);
    if (!strcmp(word, "None") || !strcmp(word, "NULL")) return fault_at(s, start, "unknown word %s; write null", word);
    return fault_at(s, start, "unknown word %s%s; text stands in double quotes", word, length > 24 ? "..." : "");
}

static int fault_expected(Scanner *s, const char *expected) {
    char text[24];
    int  c = peek(s);
    if (c == '\'') return fault_at(s, s->at, "expected %s, found ' (text stands in double quotes)", expected);
    if (c == '/' || c == '#')
        return fault_at(s, s->at, "expected %s, found %s (JSON has no comments)", expected, found(s, text));
    return fault_at(s, s->at, "expected %s, found %s", expected, found(s, text));
}

/* Scans the opening bracket of an object or array. Returns 1 if an item follows, 0 if the closing bracket follows (it
 * is scanned as well), -1 at a fault. */
static int first_item(Scanner *s, int close) {
    if (++s->depth > JSON_DEPTH)
        return fault_at(s, s->at, "objects and lists are nested deeper than %d levels, the most that is read",
                        JSON_DEPTH), -1;
    s->at++;
    skip_space(s);
    if (peek(s) != close) return 1;
    s->at++;
    s->depth--;
    return 0;
}

/* Scans what follows an item of an object or array. Returns 1 at a comma (another item follows), 0 at the closing
 * bracket, -1 at a fault. */
static int next_item(Scanner *s, int close) {
    skip_space(s);
    if (peek(s) == close) {
        s->at++;
        s->depth--;
        return 0;
    }
    if (peek(s) != ',') {
        fault_expected(s, close == '}' ? "',' or '}'" : "',' or ']'");
        return -1;
    }
    JsonPlace comma = place_of(s, s->at++);
    skip_space(s);
    if (peek(s) != close) return 1;
    fault_at(s, s->at, "a comma before '%c': remove it, because JSON allows none after the last item", close);
    s->fault->at = comma;
    return -1;
}

static int scan_object(Scanner *s, int self) {
    size_t path_bytes = s->path_bytes;
    int    more = first_item(s, '}');
    for (; more > 0; more = next_item(s, '}')) {
        JsonPlace key = place_of(s, s->at);
        if (peek(s) != '"') return fault_expected(s, "a key in double quotes");
        if (s->path_bytes && !put(s, 1, ".", 1)) return 0;
        int name_at = (int)s->path_bytes;
        if (!scan_string(s, 1)) return 0;
        int entry = add_entry(s, self, name_at, key);
        skip_space(s);
        if (peek(s) != ':') return fault_expected(s, "':' after the key");
        s->at++;
        skip_space(s);
        s->json->entry[entry].value = place_of(s, s->at);
        if (!scan_value(s, entry)) return 0;
        s->path[s->path_bytes = path_bytes] = '\0';
    }
    return more == 0;
}

static int scan_array(Scanner *s, int self) {
    size_t path_bytes = s->path_bytes;
    int    more = first_item(s, ']');
    for (int index = 0; more > 0; more = next_item(s, ']')) {
        char name[16];
        snprintf(name, sizeof name, "[%d]", index++);
        if (!put(s, 1, name, strlen(name))) return 0;
        int entry = add_entry(s, self, -1, place_of(s, s->at));
        if (!scan_value(s, entry)) return 0;
        s->path[s->path_bytes = path_bytes] = '\0';
    }
    return more == 0;
}

static int scan_value(Scanner *s, int self) {
    int c = peek(s);
    if (c == '{') return scan_object(s, self);
    if (c == '[') return scan_array(s, self);
    if (c == '"') return scan_string(s, 0);
    if (c == '-' || is_digit(c)) return scan_number(s, self);
    if (is_word(c)) return scan_word(s);
    if (c == '+' || c == '.') return fault_at(s, s->at, "a number begins with a digit or '-', not with '%c'", c);
    return fault_expected(s, "a value");
}

/* --- duplicates --------------------------------------------------------------------------------------------------- */

typedef struct { int parent, index; const char *name; } Sibling;

static int compare_siblings(const void *a, const void *b) {
    const Sibling *x = a, *y = b;
    int order = (x->parent > y->parent) - (x->parent < y->parent);
    if (!order) order = strcmp(x->name, y->name);
    return order ? order : (x->index > y->index) - (x->index < y->index);
}

/* Adds a soft fault for each duplicate key: the rest of the text is still readable. Sorts the entries, so that a
 * hostile file cannot make the search quadratic. */
static void check_duplicates(Scanner *s) {
    JsonEntry *entry = s->json->entry;
    Sibling   *list = xmalloc(sizeof *list * (size_t)(s->json->entries + 1), "reading JSON");
    int        count = 0;
    for (int i = 0; i < s->json->entries; i++)
        if (s->link[i].name_at >= 0)
            list[count++] = (Sibling){s->link[i].parent, i, entry[i].path + s->link[i].name_at};
    qsort(list, (size_t)count, sizeof *list, compare_siblings);
    for (int i = 1, first = 0; i < count; i++) {
        if (list[i].parent != list[first].parent || strcmp(list[i].name, list[first].name)) {
            first = i;
            continue;
        }
        JsonEntry *second = &entry[list[i].index], *before = &entry[list[first].index];
        char       name[120];
        second->faulty = before->faulty = 1;
        fault_at(s, 0, "duplicate key %s, first at line %d",
                 json_quote_short(name, sizeof name, second->path),
                 before->key.line);
        s->fault->at = second->key;
        soften(s);
    }
    free(list);
}

static int compare_places(const void *a, const void *b) {
    const JsonPlace x = ((const JsonFault *)a)->at, y = ((const JsonFault *)b)->at;
    return x.line != y.line ? (x.line > y.line) - (x.line < y.line) : (x.column > y.column) - (x.column < y.column);
}

/* Files in other formats, known by their first bytes, and the command that turns each into JSON. FILE stands for the
 * path. */
static const struct { const char *start; size_t bytes; const char *what; } OTHER_FORMS[] = {
    {"\xef\xbb\xbf", 3, "starts with a byte-order mark; save it as plain UTF-8, as by $ tail -c +4 FILE > NEW.json"},
    {"\xff\xfe\0\0", 4, "is UTF-32, not UTF-8: $ iconv -f utf-32 -t utf-8 FILE > NEW.json converts it"},
    {"\xff\xfe", 2, "is UTF-16, not UTF-8: $ iconv -f utf-16 -t utf-8 FILE > NEW.json converts it"},
    {"\xfe\xff", 2, "is UTF-16, not UTF-8: $ iconv -f utf-16 -t utf-8 FILE > NEW.json converts it"},
    {"{\0\0\0", 4, "is UTF-32, not UTF-8: $ iconv -f utf-32le -t utf-8 FILE > NEW.json converts it"},
    {"\0\0\0{", 4, "is UTF-32, not UTF-8: $ iconv -f utf-32be -t utf-8 FILE > NEW.json converts it"},
    {"{\0", 2, "is UTF-16, not UTF-8: $ iconv -f utf-16le -t utf-8 FILE > NEW.json converts it"},
    {"\0{", 2, "is UTF-16, not UTF-8: $ iconv -f utf-16be -t utf-8 FILE > NEW.json converts it"},
    {"\x1f\x8b", 2, "is packed by gzip: $ gzip -dc < FILE > NEW.json unpacks it"},
    {"\x28\xb5\x2f\xfd", 4, "is packed by zstd: $ zstd -dc < FILE > NEW.json unpacks it"},
    {"\xfd" "7zXZ", 5, "is packed by xz: $ xz -dc < FILE > NEW.json unpacks it"},
    {"BZh", 3, "is packed by bzip2: $ bzip2 -dc < FILE > NEW.json unpacks it"},
    {"PK\3\4", 4, "is a zip archive: unzip FILE unpacks it"},
};

static int scan_all(Scanner *s, size_t limit, const char *top) {
    for (size_t i = 0; i < sizeof OTHER_FORMS / sizeof *OTHER_FORMS; i++)
        if (s->bytes >= OTHER_FORMS[i].bytes && !memcmp(s->text, OTHER_FORMS[i].start, OTHER_FORMS[i].bytes))
            return fault_at(s, 0, "%s", OTHER_FORMS[i].what);
    if (s->bytes > limit) return fault_at(s, 0, "the JSON text is larger than %zu bytes, the most that is read", limit);
    if (!put(s, 1, top, strlen(top))) return 0;
    skip_space(s);
    if (s->at == s->bytes) return fault_at(s, s->at, "the JSON text holds nothing but white space; expected a value");
    if (!scan_value(s, -1)) return 0;
    skip_space(s);
    if (s->at < s->bytes) return fault_expected(s, "nothing after the end of the value");
    check_duplicates(s);
    if (s->json->softs) qsort(s->json->soft, (size_t)s->json->softs, sizeof *s->json->soft, compare_places);
    return 1;
}

static void free_entries(Json *json) {
    for (int i = 0; i < json->entries; i++) free(json->entry[i].path);
    free(json->entry);
    free(json->soft);
    memset(json, 0, sizeof *json);
}

/* --- the tree ----------------------------------------------------------------------------------------------------- */

static void *memory(size_t bytes) { return xmalloc(bytes, "JSON"); }

/* Makes libcjson allocate through xmalloc, which ends the process when memory runs out. Without that, libcjson's
 * functions that build, parse, copy or print a tree would return NULL or leave a member out. */
__attribute__((constructor)) static void end_without_memory(void) {
    cJSON_InitHooks(&(cJSON_Hooks){.malloc_fn = memory, .free_fn = free});
}

static int parse(Scanner s, size_t limit, const char *top) {
    Json *json = s.json;
    memset(json, 0, sizeof *json);
    int good = scan_all(&s, limit, top);
    free(s.link);
    if (!good) return free_entries(json), 0;
    json->root = cJSON_ParseWithLength(s.text, s.bytes);
    CHECK(json->root, "libcjson reads what passed the scan");
    return 1;
}

int json_parse_all(const char *text, size_t bytes, size_t limit, const char *top, Json *json, JsonFault *fault) {
    return parse((Scanner){.text = text, .bytes = bytes, .line = 1, .json = json, .fault = fault}, limit, top);
}

int json_parse(const char *text, size_t bytes, size_t limit, Json *json, JsonFault *fault) {
    Scanner s = {.text = text, .bytes = bytes, .line = 1, .json = json, .fault = fault, .keeps_one = 1};
    if (!parse(s, limit, "")) return 0;
    if (!json->softs) return 1;
    *fault = json->soft[0];
    json_free(json);
    return 0;
}

void json_free(Json *json) {
    cJSON_Delete(json->root);
    free_entries(json);
}

cJSON *json_of_others(const char *text, size_t bytes) { return cJSON_ParseWithLengthOpts(text, bytes + 1, NULL, 1); }

int json_read_file(const char *path, size_t limit, int keeps_numbers, Json *json, char fault[JSON_FILE_FAULT_CHARS]) {
    char     *text;
    JsonFault wrong;
    int64_t   bytes = io_read_file(path, limit, &text);
    if (bytes < 0) {
        snprintf(fault, JSON_FILE_FAULT_CHARS, "%s cannot be read: %s", path, io_error_text((int)bytes));
        if (bytes == -ENOENT) return -ENOENT;
        int is_other =
            bytes <= -IO_IS_FIFO || bytes == -EFBIG || bytes == -EISDIR || bytes == -ENOTDIR || bytes == -ELOOP;
        return bytes == -ENOMEM ? EXIT_MEMORY : is_other ? EXIT_DATA : EXIT_IO;
    }
    int is_read = json_parse_all(text, (size_t)bytes, limit, "", json, &wrong);
    free(text);
    const JsonFault *first = is_read ? NULL : &wrong; /* the first fault that must be reported; NULL if there is none */
    for (int i = 0; is_read && i < json->softs && !first; i++)
        if (!keeps_numbers || !json->soft[i].is_number) first = &json->soft[i];
    if (!first) return 0;
    int at = snprintf(fault, JSON_FILE_FAULT_CHARS, "%s:%d:%d: ", path, first->at.line, first->at.column);
    if (at >= JSON_FILE_FAULT_CHARS) at = 0; /* the path fills the whole buffer, so the fault is written without it */
    snprintf(fault + at, (size_t)(JSON_FILE_FAULT_CHARS - at), "%s", first->text);
    shell_name_file(fault + at, (size_t)(JSON_FILE_FAULT_CHARS - at), path);
    if (is_read) json_free(json);
    return EXIT_DATA;
}

const JsonEntry *json_entry(const Json *json, const char *path) {
    for (int i = 0; i < json->entries; i++)
        if (!strcmp(json->entry[i].path, path)) return &json->entry[i];
    return NULL;
}

cJSON *json_member(const cJSON *object, const char *name) {
    return cJSON_IsObject(object) ? cJSON_GetObjectItemCaseSensitive(object, name) : NULL;
}

/* --- text and numbers --------------------------------------------------------------------------------------------- */

/* Writes one character of text to piece, escaped as in a JSON string, with a NUL. Returns the bytes of text that the
 * character has. A byte that is not UTF-8 becomes U+FFFD, so the output is always valid. */
static size_t escape(const char *text, char piece[8]) {
    static const char means[] = "\"\\\b\f\n\r\t", names[] = "\"\\bfnrt";
    const char *special = strchr(means, *text);
    int         length = utf8_bytes(text, strnlen(text, 4));
    if (special)                          snprintf(piece, 8, "\\%c", names[special - means]);
    else if ((unsigned char)*text < ' ')  snprintf(piece, 8, "\\u%04x", (unsigned char)*text);
    else if (length == 0)                 snprintf(piece, 8, "\\ufffd");
    else                                  snprintf(piece, 8, "%.*s", length, text);
    return length ? (size_t)length : 1;
}

static size_t append(char *out, size_t capacity, size_t used, const char *piece) {
    size_t length = strlen(piece);
    for (size_t i = 0; i < length; i++)
        if (used + i + 1 < capacity) out[used + i] = piece[i];
    return used + length;
}

size_t json_quote(char *out, size_t capacity, const char *text) {
    char   piece[8];
    size_t used = append(out, capacity, 0, "\"");
    while (*text) {
        text += escape(text, piece);
        used = append(out, capacity, used, piece);
    }
    used = append(out, capacity, used, "\"");
    if (capacity) out[used < capacity ? used : capacity - 1] = '\0';
    return used;
}

void json_print_string(FILE *out, const char *text) {
    char piece[8];
    fputc('"', out);
    while (*text) {
        text += escape(text, piece);
        fputs(piece, out);
    }
    fputc('"', out);
}

char *json_quote_short(char *out, size_t capacity, const char *text) {
    static const char cut[] = "...\"";
    if (json_quote(out, capacity, text) < capacity) return out;
    char   piece[8];
    size_t used = append(out, capacity, 0, "\"");
    for (;;) {
        text += escape(text, piece);
        if (used + strlen(piece) + sizeof cut > capacity) break;
        used = append(out, capacity, used, piece);
    }
    append(out, capacity, used, cut);
    out[used + sizeof cut - 1] = '\0';
    return out;
}

int json_reads_as(const char *read, const char *text) {
    cJSON *string = json_string(text);
    int is_same = strcmp(string->valuestring, read) == 0;
    cJSON_Delete(string);
    return is_same;
}

cJSON *json_string(const char *text) {
    static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD */
    char *clean = xmalloc(3 * strlen(text) + 1, "JSON"), *to = clean;
    for (int length; *text; text += length ? length : 1) {
        length = utf8_bytes(text, strnlen(text, 4));
        size_t bytes = length ? (size_t)length : sizeof replacement - 1;
        memcpy(to, length ? text : replacement, bytes);
        to += bytes;
    }
    *to = 0;
    cJSON *string = cJSON_CreateString(clean);
    free(clean);
    return string;
}

cJSON *number_json(double value) {
    cJSON *number = cJSON_CreateNumber(value);
    char  *printed = cJSON_PrintUnformatted(number);
    int    same = strtod(printed, NULL) == value && (fabs(value) <= 0x1p53 || strchr(printed, 'e'));
    free(printed);
    if (same) return number;
    char text[SHOWN_BYTES];
    cJSON_Delete(number);
    return cJSON_CreateRaw(number_text(value, text));
}

double number_value(const cJSON *number) {
    if (cJSON_IsRaw(number)) return strtod(number->valuestring, NULL);
    return cJSON_GetNumberValue(number);
}

char *value_text(const cJSON *value, char out[SHOWN_BYTES]) {
    char quoted[SHOWN_BYTES - 16];
    if (cJSON_IsString(value))
        snprintf(out, SHOWN_BYTES, "the string %s", json_quote_short(quoted, sizeof quoted, value->valuestring));
    else if (cJSON_IsNumber(value)
          || cJSON_IsRaw(value))    number_text(number_value(value), out);
    else if (cJSON_IsArray(value))  snprintf(out, SHOWN_BYTES, "a list");
    else if (cJSON_IsObject(value)) snprintf(out, SHOWN_BYTES, "an object");
    else snprintf(out, SHOWN_BYTES, "%s", cJSON_IsTrue(value) ? "true" : cJSON_IsFalse(value) ? "false" : "null");
    return out;
}

void json_print(cJSON *json) {
    char *text = cJSON_Print(json);
    printf("%s\n", text);
    free(text);
    cJSON_Delete(json);
}
