/* json.c - see json.h: the tree behind the strict pass of json_scan.c, look-ups that are exact, and quoting. */
#include "core/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/json_scan.h"

static int parse(const char *text, size_t bytes, JsonScan how, Json *json, JsonFault *fault) {
    if (!json_scan(text, bytes, how, json, fault)) return 0;
    json->root = cJSON_ParseWithLength(text, bytes);
    /* libcjson refuses no text that passed json_scan, so memory ran out */
    if (!json->root) fail(EXIT_MEMORY, "out of memory while reading %zu bytes of JSON", bytes);
    return 1;
}

int json_parse(const char *text, size_t bytes, size_t limit, Json *json, JsonFault *fault) {
    return parse(text, bytes, (JsonScan){.limit = limit, .top = "", .collect = 0}, json, fault);
}

int json_parse_all(const char *text, size_t bytes, size_t limit, const char *top, Json *json, JsonFault *fault) {
    return parse(text, bytes, (JsonScan){.limit = limit, .top = top, .collect = 1}, json, fault);
}

cJSON *json_of_others(const char *text, size_t bytes, const char *name, const char **end) {
    errno = 0;
    cJSON *json = cJSON_ParseWithLengthOpts(text, bytes + 1, end, 1);
    if (!json && errno == ENOMEM) fail(EXIT_MEMORY, "out of memory while reading the JSON of %s", name);
    return json;
}

void json_free(Json *json) {
    cJSON_Delete(json->root);
    json_scan_free(json);
}

const JsonEntry *json_entry(const Json *json, const char *path) {
    for (int i = 0; i < json->entries; i++)
        if (!strcmp(json->entry[i].path, path)) return &json->entry[i];
    return NULL;
}

cJSON *json_member(const cJSON *object, const char *name) {
    return cJSON_IsObject(object) ? cJSON_GetObjectItemCaseSensitive(object, name) : NULL;
}

/* Writes one character of text as a JSON string holds it to piece (NUL-terminated). Returns the bytes of text that it
 * covers. A byte that is not UTF-8 becomes U+FFFD, so the output is always valid. */
static size_t escape(const char *text, char piece[8]) {
    static const char means[] = "\"\\\b\f\n\r\t", names[] = "\"\\bfnrt";
    const char *special = strchr(means, *text);
    int         length = json_utf8(text, strnlen(text, 4));
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

cJSON *json_string(const char *text) {
    static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD */
    char *clean = malloc(3 * strlen(text) + 1), *to = clean;
    if (!clean) return NULL;
    for (int length; *text; text += length ? length : 1) {
        length = json_utf8(text, strnlen(text, 4));
        size_t bytes = length ? (size_t)length : sizeof replacement - 1;
        memcpy(to, length ? text : replacement, bytes);
        to += bytes;
    }
    *to = 0;
    cJSON *string = cJSON_CreateString(clean);
    free(clean);
    return string;
}

int json_reads_as(const char *read, const char *text) {
    cJSON *string = json_string(text);
    if (!string) fail(EXIT_MEMORY, "no memory to compare names");
    int is_same = strcmp(string->valuestring, read) == 0;
    cJSON_Delete(string);
    return is_same;
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
