/* json_line.c - see json_line.h. The syntax is RFC 8259. Values of other fields are checked and skipped. */
#include "data/json_line.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "core/format.h"
#include "core/error.h"
#include "data/split.h"

enum { DEPTH = 64, SHOWN_CHARS = 240 };

typedef struct {
    char  *at, *end;
    size_t column; /* column of the fault in the line; the first byte, `from`, has column 1 */
    char  *from;
    const char *wrong; /* sentence about the fault; NULL if there is none */
    int    is_lenient; /* 1: control characters, NaN and Infinity are allowed */
    int    is_open;    /* 1: the fault is that the line ends before its value ends */
    /* for a fault by a value that is not a string: what to say about values of its kind; else NULL */
    const struct NoText *no_text;
} Reader;

static const char IN_STRING[] = "ends in the middle of a string";

static int fails(Reader *r, const char *wrong) {
    if (!r->wrong) r->wrong = wrong, r->column = (size_t)(r->at - r->from) + 1, r->is_open = r->at == r->end;
    return 0;
}

static void skip_space(Reader *r) {
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\r' || *r->at == '\n')) r->at++;
}

static int takes(Reader *r, char c) {
    skip_space(r);
    if (r->at == r->end || *r->at != c) return 0;
    r->at++;
    return 1;
}

/* --- strings ------------------------------------------------------------------------------------------------------ */

/* Returns the value of the four hexadecimal digits at `at`, or -1 if these are not four digits. */
static int hex4(const char *at, const char *end) {
    int value = 0;
    if (end - at < 4) return -1;
    for (int i = 0; i < 4; i++) {
        char c = at[i];
        int  digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (digit < 0) return -1;
        value = 16 * value + digit;
    }
    return value;
}

/* A Python command for the user, which rewrites each line l as a row with `value`. Python's parser accepts lines that
 * this parser refuses. */
#define BY_PYTHON(value) \
    "($ python3 -c 'import json, sys; [print(json.dumps(" value ")) for l in sys.stdin if l.strip()]' < FILE > " \
    "NEW.jsonl "
static const char ESCAPE[] =
    "holds a backslash that begins no escape ($ perl -pe 's/\\\\(u[0-9a-fA-F]{4}|[\"\\\\\\/bfnrt])|\\\\/$1 ? $& : "
    "\"\\\\\\\\\"/ge' < FILE > NEW.jsonl writes it twice, as JSON does)";
static const char HALF[] = "holds half of a surrogate pair, which is no character " BY_PYTHON(
    "json.loads(json.dumps(json.loads(l), ensure_ascii=False).encode(\"utf-16\", \"surrogatepass\").decode(\"utf-16\", "
    "\"replace\"))") "puts U+FFFD in its place)";
static const char CONTROL[] =
    "holds a control character in a string " BY_PYTHON("json.loads(l, strict=False)") "writes it as an escape)";
static const char BEHIND[] =
    "has text after its object " BY_PYTHON("json.JSONDecoder().raw_decode(l.strip())[0]") "takes it away)";
static const char COMMA_LAST[] = "has a comma before its } ($ sed 's/,[[:space:]]*}[[:space:]]*$/}/' < FILE > "
                                 "NEW.jsonl takes it away at the end of a line)";

/* Decodes an escape sequence of a JSON string, after its backslash, and writes the character to `out`. The sequence is
 * never shorter than the character, so it can be decoded in place. */
static char *escape(Reader *r, char *out) {
    static const char FROM[] = "\"\\/bfnrt", TO[] = "\"\\/\b\f\n\r\t";
    if (r->at == r->end) return out;
    char        c = *r->at++;
    const char *plain = c ? strchr(FROM, c) : NULL;
    if (plain) return *out = TO[plain - FROM], out + 1;
    int code = c == 'u' ? hex4(r->at, r->end) : -1;
    if (code < 0 && r->is_lenient) return out;
    if (code < 0) return r->at--, fails(r, ESCAPE), out;
    r->at += 4;
    if (code >= 0xD800 && code < 0xDC00 && r->end - r->at >= 6 && r->at[0] == '\\' && r->at[1] == 'u') {
        int low = hex4(r->at + 2, r->end);
        if (low >= 0xDC00 && low < 0xE000) {
            r->at += 6;
            return out +
                   utf8proc_encode_char(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00), (utf8proc_uint8_t *)out);
        }
    }
    int is_half = code >= 0xD800 && code < 0xE000;
    if (is_half && !r->is_lenient) return r->at -= 6, fails(r, HALF), out;
    return out + utf8proc_encode_char(is_half ? 0xFFFD : code, (utf8proc_uint8_t *)out);
}

/* Decodes a JSON string in place, after its opening quote. */
static int string(Reader *r, char **text, size_t *length) {
    char *out = *text = r->at;
    while (!r->wrong) {
        char *run = r->at;
        while (r->at < r->end && *r->at != '"' && *r->at != '\\' && ((unsigned char)*r->at >= 0x20 || r->is_lenient))
            r->at++;
        memmove(out, run, (size_t)(r->at - run));
        out += r->at - run;
        if (r->at == r->end) return fails(r, IN_STRING);
        if ((unsigned char)*r->at < 0x20 && !r->is_lenient) return fails(r, CONTROL);
        if (*r->at++ == '"') return *length = (size_t)(out - *text), 1;
        out = escape(r, out);
    }
    return 0;
}

/* --- other values ------------------------------------------------------------------------------------------------- */

static int is_digit(const Reader *r) { return r->at < r->end && *r->at >= '0' && *r->at <= '9'; }

static int number(Reader *r) {
    if (*r->at == '-') r->at++;
    if (!is_digit(r)) return fails(r, "has no value where one is expected");
    if (*r->at == '0') r->at++;
    else
        while (is_digit(r)) r->at++;
    if (r->at < r->end && *r->at == '.') {
        r->at++;
        if (!is_digit(r)) return fails(r, "holds a number without digits after its point");
        while (is_digit(r)) r->at++;
    }
    if (r->at < r->end && (*r->at | 32) == 'e') {
        r->at++;
        if (r->at < r->end && (*r->at == '+' || *r->at == '-')) r->at++;
        if (!is_digit(r)) return fails(r, "holds a number without digits in its exponent");
        while (is_digit(r)) r->at++;
    }
    return 1;
}

static int word(Reader *r, const char *is) {
    size_t length = strlen(is);
    if ((size_t)(r->end - r->at) < length || memcmp(r->at, is, length) != 0) return 0;
    r->at += length;
    return 1;
}

/* Fault of a line with NaN or Infinity, which are not JSON but which some programs write. A lenient reader skips
 * them. */
static const char NOT_FINITE[] =
    "holds NaN or Infinity, which JSON does not have (Python writes them; write null instead)";
static const char TOO_DEEP[] = "is nested too deeply: the limit is 64 levels";
static const char NO_NAME[] = "has no name in quotes where one is expected";

static int value(Reader *r, int depth);

static int members(Reader *r, int depth, char close) {
    if (depth == DEPTH) return fails(r, TOO_DEEP);
    if (takes(r, close)) return 1;
    do {
        char  *key;
        size_t length;
        if (close == '}' && !takes(r, '"')) return fails(r, NO_NAME);
        if (close == '}' && (!string(r, &key, &length) || !takes(r, ':'))) return fails(r, "has no : after a name");
        if (!value(r, depth + 1)) return 0;
    } while (takes(r, ','));
    return takes(r, close) || fails(r, close == '}' ? "has no , or } after a value" : "has no , or ] after a value");
}

static int value(Reader *r, int depth) {
    char  *text;
    size_t length;
    skip_space(r);
    if (r->at == r->end) return fails(r, "ends before a value");
    switch (*r->at) {
        case '"': return r->at++, string(r, &text, &length);
        case '{': return r->at++, members(r, depth, '}');
        case '[': return r->at++, members(r, depth, ']');
    }
    if (word(r, "null") || word(r, "true") || word(r, "false")) return 1;
    Reader at_word = *r;
    if (*at_word.at == '-') at_word.at++;
    if (!word(&at_word, "NaN") && !word(&at_word, "Infinity")) return number(r);
    if (!r->is_lenient) return fails(r, NOT_FINITE);
    r->at = at_word.at;
    return 1;
}

/* --- the line ----------------------------------------------------------------------------------------------------- */

/* Names of the fields of an object, as many as fit, for the message about a missing field. strings: number of fields
 * that hold a string. */
typedef struct { char text[SHOWN_CHARS]; size_t used; int strings; } Names;

/* Faults that the message names for a value that is not a string, chosen by the first character of the value. jq is the
 * filter that turns such a row into rows with text; NULL if there is none. `makes` says what the filter does. */
static const struct NoText { const char *first, *fault, *jq, *makes; } NO_TEXT[] = {
    {"{", "has an object", ".[$f]", "makes rows of the objects, and field= names the text in them"},
    {"[", "has a list", ".[$f] |= if type == \"array\" then flatten | join(\"\\n\") else . end",
     "joins its strings by line ends"},
    {"tf", "has true or false", ".[$f] |= tostring", "writes it as a string"},
    {"NI", NOT_FINITE, NULL, NULL},
    {"", "has a number or another word", ".[$f] |= tostring", "writes it as a string"}};

/* The fault of a list of objects, whose members jq cannot join. */
static const struct NoText OBJECTS = {"[", "has a list of objects",
                                      ".[$f] | if type == \"array\" then .[] else {($f): .} end",
                                      "makes rows of the objects, and field= names the text in them"};

/* Returns 1 if the value that follows is a list whose first entry is an object. */
static int begins_objects(const Reader *r) {
    const char *at = r->at;
    if (at == r->end || *at != '[') return 0;
    while (++at < r->end && *at && strchr(" \t", *at)) {}
    return at < r->end && *at == '{';
}

static const char COMMA_BEHIND[] = "has a comma after its object, which JSON Lines has not ($ sed 's/,[[:space:]]*$//' "
                                   "< FILE > NEW.jsonl takes it away)";
static const char COMMA_BETWEEN[] = "has several objects with commas between, and JSON Lines has one a line ($ sed "
                                    "'1s/^/[/; $s/,*[[:space:]]*$/]/' < FILE | jq -c '.[]' > NEW.jsonl writes them so)";
static const char PYTHON[] = "is a Python dict, not JSON ($ python3 -c 'import ast, json, sys; "
                             "[print(json.dumps(ast.literal_eval(l))) for l in sys.stdin if l.strip()]' < FILE > "
                             "NEW.jsonl writes JSON)";

/* Reads the object in a line and finds the string in its field `field`; with NULL it only checks the object. Returns 1
 * with the string, 0 if the field is null, or -2 if there is no such field. Returns -1 with the fault in *r. */
static int read_object(Reader *r, const char *field, Names *names, char **text, size_t *length) {
    size_t wanted = field ? strlen(field) : 0;
    int    found = field ? -2 : 0;
    r->at++;
    int is_open = !takes(r, '}');
    while (is_open) {
        char  *key;
        size_t key_length;
        if (!takes(r, '"'))
            fails(r, r->at == r->end ? NO_NAME : *r->at == '\'' ? PYTHON : *r->at == '}' ? COMMA_LAST : NO_NAME);
        else if (string(r, &key, &key_length) && !takes(r, ':')) fails(r, "has no : after a name");
        if (r->wrong) break;
        skip_space(r);
        if (key_length <= 60 && names->used + key_length + 8 <= sizeof names->text)
            names->used += (size_t)snprintf(names->text + names->used, sizeof names->text - names->used, "%s%.*s",
                                            names->used ? ", " : "", (int)key_length, key);
        names->strings += r->at < r->end && *r->at == '"';
        if (!field || key_length != wanted || memcmp(key, field, wanted) != 0) value(r, 1);
        else if (word(r, "null")) found = 0;
        else if (takes(r, '"')) found = string(r, text, length);
        else if (r->at == r->end) fails(r, "ends before a value");
        else {
            const struct NoText *value_is = begins_objects(r) ? &OBJECTS : NO_TEXT;
            while (*value_is->first && !(*r->at && strchr(value_is->first, *r->at))) value_is++;
            r->no_text = value_is;
            fails(r, value_is->fault);
        }
        if (r->wrong) break;
        is_open = takes(r, ',');
        if (!is_open && !takes(r, '}')) fails(r, "has no , or } after a value");
    }
    const char *behind = r->at;
    skip_space(r);
    if (!r->wrong && r->at < r->end && *r->at == ',') {
        for (r->at++; r->at < r->end && strchr(" \t\r\n", *r->at); r->at++) {}
        fails(r, r->at == r->end ? COMMA_BEHIND : *r->at == '{' ? COMMA_BETWEEN : BEHIND);
        /* the object before this comma is complete, so if the line ends here, the object was not cut off */
        r->is_open = 0;
    }
    if (!r->wrong && r->at < r->end)
        fails(r, memchr(behind, '\r', (size_t)(r->at - behind))
                     ? "has text after a carriage return: a line must end in LF or CR LF ($ tr '\\r' '\\n' < FILE > "
                       "NEW makes lines of it)"
                 : *r->at == '{'
                     ? "has two objects, and JSON Lines has one a line ($ jq -c . < FILE > NEW.jsonl writes them so)"
                     : BEHIND);
    return r->wrong ? -1 : found;
}

/* Returns a reader that begins after the byte-order mark and the white space of a line. */
static Reader reader_of(char *line, size_t bytes, int is_lenient) {
    Reader r = {.at = line, .end = line + bytes, .from = line, .is_lenient = is_lenient};
    if (bytes >= 3 && memcmp(line, "\xef\xbb\xbf", 3) == 0) r.at += 3;
    skip_space(&r);
    return r;
}

const char *json_line_array_rows(const char *text, size_t bytes) {
    size_t at = 1;
    if (bytes == 0 || *text != '[') return NULL;
    while (at < bytes && strchr(" \t\r\n[", text[at])) at++;
    int is_nested = memchr(text + 1, '[', at - 1) != NULL;
    if (at < bytes && text[at] == '\'') return "a list of Python, not JSON: write it with json.dumps, a value a line";
    if (at < bytes && text[at] == '"')
        return is_nested ? "$ jq -c '.[][] | {text: .}' < FILE > NEW.jsonl makes objects of its strings"
                         : "$ jq -c '.[] | {text: .}' < FILE > NEW.jsonl makes objects of its strings";
    return is_nested ? "$ jq -c '.[][]' < FILE > NEW.jsonl makes lines of the objects in it"
                     : "$ jq -c '.[]' < FILE > NEW.jsonl makes lines of the objects in an array";
}

int json_line_text(char *line, size_t bytes, const char *field, char **text, size_t *length,
                   char fault[JSON_LINE_FAULT_CHARS]) {
    Reader r = reader_of(line, bytes, 0);
    Names  names = {.used = 0};
    if (r.at == r.end) return 0;
    size_t ignored, invalid = utf8_valid(line, bytes, SPLIT_END, &ignored);
    if (invalid < bytes)
        return snprintf(fault, JSON_LINE_FAULT_CHARS, "holds the byte 0x%02X, which is not UTF-8 (column %zu): give "
                        "the encoding of the file, such as encoding=latin-1", (unsigned char)line[invalid],
                        invalid + 1), -1;
    if (*r.at != '{') {
        const char *rows = json_line_array_rows(r.at, (size_t)(r.end - r.at));
        if (rows) snprintf(fault, JSON_LINE_FAULT_CHARS, "is an array; each line must be an object (%s)", rows);
        else if (*r.at == '"')
            snprintf(fault, JSON_LINE_FAULT_CHARS, "is a string; each line must be an object ($ jq -c '{text: .}' < "
                     "FILE > NEW.jsonl makes objects of strings)");
        else snprintf(fault, JSON_LINE_FAULT_CHARS, "is not a JSON object (format=text reads the file as text)");
        return -1;
    }
    int found = read_object(&r, field, &names, text, length);
    if (r.no_text && r.no_text->jq)
        snprintf(fault, JSON_LINE_FAULT_CHARS, "%s in its field \"%.60s\", not a string (column %zu): $ jq -c --arg f "
                 "%.120s '%s' < FILE > NEW.jsonl %s", r.wrong, field, r.column, shell_word(field).text,
                 r.no_text->jq, r.no_text->makes);
    else if (r.wrong == IN_STRING)
        snprintf(fault, JSON_LINE_FAULT_CHARS, "%s (column %zu): a line end in a text is written \\n in JSON; write "
                 "the rows by a program for JSON, or copy the file again if it was cut off (format=text reads the file "
                 "as text)", r.wrong, r.column);
    else if (r.wrong && r.is_open)
        snprintf(fault, JSON_LINE_FAULT_CHARS, "%s (column %zu): its value spans several lines or was cut off, and "
                 "JSON Lines has one value a line ($ jq -c . < FILE > NEW.jsonl writes it so; format=text reads the "
                 "file as text)", r.wrong, r.column);
    else if (r.wrong)
        snprintf(fault, JSON_LINE_FAULT_CHARS, "%s (column %zu)%s", r.wrong, r.column,
                 strchr(r.wrong, '(') ? "" : ": correct the line, or remove it");
    else if (found == -2)
        snprintf(fault, JSON_LINE_FAULT_CHARS,
                 "has no field \"%.60s\"; its fields are %s: give %sformat=text to read the file as text", field,
                 names.used ? names.text : "none", names.strings ? "field=NAME of the text, or " : "");
    return found < 0 ? -1 : found;
}

int json_line_is_object(const char *line, size_t bytes) {
    /* a copy of the line, because reading decodes strings in place */
    char  *copy = memcpy(xmalloc(bytes + 1, "a line of JSON"), line, bytes), *text;
    Reader r = reader_of(copy, bytes, 1);
    Names  names = {.used = 0};
    size_t length;
    int is_object = r.at == r.end ? -1 : 0;
    if (!is_object && *r.at == '{')
        is_object = read_object(&r, NULL, &names, &text, &length) == 0 || r.wrong == TOO_DEEP;
    free(copy);
    return is_object;
}
