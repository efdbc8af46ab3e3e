/* json_line.c - see json_line.h. Syntax is RFC 8259's; values other than the field's are checked and passed over. */
#include "data/json_line.h"

#include <stdio.h>
#include <string.h>

enum { DEPTH = 64, SHOWN_CHARS = 240 };

typedef struct {
    char  *at, *end;
    size_t column; /* of `from`, where a fault was seen */
    char  *from;
    const char *wrong; /* the fault, NULL: none */
} Reader;

static int fails(Reader *r, const char *wrong) {
    if (!r->wrong) r->wrong = wrong, r->column = (size_t)(r->at - r->from) + 1;
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

/* Four hexadecimal digits, or -1. */
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

static char *put_utf8(char *out, unsigned c) {
    if (c < 0x80) {
        *out++ = (char)c;
    } else if (c < 0x800) {
        *out++ = (char)(0xC0 | c >> 6);
        *out++ = (char)(0x80 | (c & 63));
    } else {
        if (c < 0x10000) {
            *out++ = (char)(0xE0 | c >> 12);
        } else {
            *out++ = (char)(0xF0 | c >> 18);
            *out++ = (char)(0x80 | (c >> 12 & 63));
        }
        *out++ = (char)(0x80 | (c >> 6 & 63));
        *out++ = (char)(0x80 | (c & 63));
    }
    return out;
}

/* After the backslash. An escape is never shorter than what it stands for. */
static char *escape(Reader *r, char *out) {
    static const char FROM[] = "\"\\/bfnrt", TO[] = "\"\\/\b\f\n\r\t";
    if (r->at == r->end) return out;
    char        c = *r->at++;
    const char *plain = c ? strchr(FROM, c) : NULL;
    if (plain) return *out = TO[plain - FROM], out + 1;
    int code = c == 'u' ? hex4(r->at, r->end) : -1;
    if (code < 0) return fails(r, "holds an escape that is none"), out;
    r->at += 4;
    if (code >= 0xD800 && code < 0xDC00 && r->end - r->at >= 6 && r->at[0] == '\\' && r->at[1] == 'u') {
        int low = hex4(r->at + 2, r->end);
        if (low >= 0xDC00 && low < 0xE000) {
            r->at += 6;
            return put_utf8(out, 0x10000u + ((unsigned)(code - 0xD800) << 10) + (unsigned)(low - 0xDC00));
        }
    }
    return put_utf8(out, code >= 0xD800 && code < 0xE000 ? 0xFFFDu : (unsigned)code);
}

/* A string behind its quote, decoded in its place. */
static int string(Reader *r, char **text, size_t *length) {
    char *out = *text = r->at;
    while (!r->wrong) {
        char *run = r->at;
        while (r->at < r->end && *r->at != '"' && *r->at != '\\' && (unsigned char)*r->at >= 0x20) r->at++;
        memmove(out, run, (size_t)(r->at - run));
        out += r->at - run;
        if (r->at == r->end) return fails(r, "ends in the middle of a string");
        if ((unsigned char)*r->at < 0x20) return fails(r, "holds a control character in a string");
        if (*r->at++ == '"') return *length = (size_t)(out - *text), 1;
        out = escape(r, out);
    }
    return 0;
}

/* --- other values ------------------------------------------------------------------------------------------------- */

static int is_digit(const Reader *r) { return r->at < r->end && *r->at >= '0' && *r->at <= '9'; }

static int number(Reader *r) {
    if (*r->at == '-') r->at++;
    if (!is_digit(r)) return fails(r, "holds no value where one is due");
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

static int value(Reader *r, int depth);

static int members(Reader *r, int depth, char close) {
    if (depth == DEPTH) return fails(r, "is nested too deeply");
    if (takes(r, close)) return 1;
    do {
        char  *key;
        size_t length;
        if (close == '}' && !takes(r, '"')) return fails(r, "has no name in quotes where one is due");
        if (close == '}' && (!string(r, &key, &length) || !takes(r, ':'))) return fails(r, "has no : after a name");
        if (!value(r, depth + 1)) return 0;
    } while (takes(r, ','));
    return takes(r, close) || fails(r, close == '}' ? "has no , or } after a value" : "has no , or ] after a value");
}

static int value(Reader *r, int depth) {
    char  *text;
    size_t length;
    skip_space(r);
    if (r->at == r->end) return fails(r, "ends where a value is due");
    switch (*r->at) {
        case '"': return r->at++, string(r, &text, &length);
        case '{': return r->at++, members(r, depth, '}');
        case '[': return r->at++, members(r, depth, ']');
        default: return word(r, "null") || word(r, "true") || word(r, "false") || number(r);
    }
}

/* --- the line ----------------------------------------------------------------------------------------------------- */

/* The names of fields, as far as they fit, for the message on one that is missing. */
typedef struct { char text[SHOWN_CHARS]; size_t used; } Names;
static void add_name(Names *n, const char *name, size_t length) {
    if (length > 60 || n->used + length + 8 > sizeof n->text) return;
    n->used += (size_t)snprintf(n->text + n->used, sizeof n->text - n->used, "%s%.*s", n->used ? ", " : "",
                                (int)length, name);
}

int json_line_text(char *line, size_t bytes, const char *field, char **text, size_t *length, char fault[JSON_LINE_FAULT_CHARS]) {
    Reader r = {.at = line, .end = line + bytes, .from = line};
    Names  names = {.used = 0};
    size_t wanted = strlen(field);
    int    found = -1; /* 0: null */
    skip_space(&r);
    if (r.at == r.end) return 0;
    if (*r.at != '{') {
        snprintf(fault, JSON_LINE_FAULT_CHARS, *r.at == '[' ? "is an array, and an object is meant, one a line (JSON Lines)"
                                                            : "is no JSON object");
        return -1;
    }
    r.at++;
    int is_open = !takes(&r, '}');
    while (is_open) {
        char  *key;
        size_t key_length;
        if (!takes(&r, '"')) fails(&r, "has no name in quotes where one is due");
        else if (string(&r, &key, &key_length) && !takes(&r, ':')) fails(&r, "has no : after a name");
        if (r.wrong) break;
        skip_space(&r);
        add_name(&names, key, key_length);
        if (key_length != wanted || memcmp(key, field, wanted) != 0) value(&r, 1);
        else if (word(&r, "null")) found = 0;
        else if (takes(&r, '"')) found = string(&r, text, length);
        else fails(&r, "has something else than text under its field");
        if (r.wrong) break;
        is_open = takes(&r, ',');
        if (!is_open && !takes(&r, '}')) fails(&r, "has no , or } after a value");
    }
    skip_space(&r);
    if (!r.wrong && r.at < r.end) fails(&r, "goes on after its object");
    if (r.wrong) return snprintf(fault, JSON_LINE_FAULT_CHARS, "%s (column %zu)", r.wrong, r.column), -1;
    if (found < 0)
        return snprintf(fault, JSON_LINE_FAULT_CHARS, "has no field \"%.60s\"; its fields are %s: field=NAME names the text's",
                        field, names.used ? names.text : "none"), -1;
    return found;
}
