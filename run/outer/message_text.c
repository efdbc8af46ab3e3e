/* message_text.c - see message_text.h. */
#include "run/outer/message_text.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/io.h"

/* --- writing ------------------------------------------------------------------------------------------------------ */

ShownNumber message_number(double value) {
    ShownNumber s = {"null"};
    if (isfinite(value)) number_text(value, s.text);
    return s;
}

size_t message_text(char out[MESSAGE_TEXT], const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    int bytes = vsnprintf(out, MESSAGE_TEXT, fmt, args);
    va_end(args);
    CHECK(bytes > 0 && bytes < MESSAGE_TEXT, "a message of %d bytes", bytes);
    return (size_t)bytes;
}

char *message_long(int (*write)(FILE *, const void *), const void *m, size_t *bytes) {
    char *text = NULL;
    *bytes = 0;
    FILE *out = memory_file_open(&text, bytes);
    int   is_whole = out && write(out, m);
    if (out && fclose(out) != 0) is_whole = 0;
    if (!is_whole) *bytes = 0;
    if (is_whole && *bytes <= MESSAGE_JSON_LIMIT) return text;
    free(text);
    return NULL;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

void reading_refuse(Reading *r, const char *fmt, ...) {
    char    text[MESSAGE_FAULT_BYTES - 32];
    va_list args;
    if (!r->is_good) return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    snprintf(r->fault, MESSAGE_FAULT_BYTES, "sent %s %s", r->name, text);
    r->is_good = 0;
}

Reading reading_begin(const char *name, const char *text, size_t bytes, Json *json, char *fault) {
    Reading   r = {name, fault, 1};
    JsonFault why;
    fault[0] = 0;
    memset(json, 0, sizeof *json);
    if (!json_parse(text, bytes, MESSAGE_JSON_LIMIT, json, &why)) {
        memset(json, 0, sizeof *json);
        reading_refuse(&r, "that is no JSON: %s, at byte %d of line %d", why.text, why.at.column, why.at.line);
    } else if (!cJSON_IsObject(json->root)) reading_refuse(&r, "that is no JSON object");
    return r;
}

const cJSON *read_member(Reading *r, const cJSON *object, const char *key) {
    const cJSON *value = r->is_good ? json_member(object, key) : NULL;
    if (!value) reading_refuse(r, "without \"%s\"", key);
    return value;
}

int64_t read_number(Reading *r, const cJSON *object, const char *key, int64_t least, int64_t most) {
    const cJSON *value = read_member(r, object, key);
    char         text[SHOWN_BYTES];
    if (!value) return least;
    double n = cJSON_IsNumber(value) ? value->valuedouble : NAN;
    if (n >= (double)least && n <= (double)most && n == floor(n)) return (int64_t)n;
    reading_refuse(r, "whose %s is %s: it must be from %lld to %lld", key, value_text(value, text), (long long)least,
                   (long long)most);
    return least;
}

double read_real(Reading *r, const cJSON *object, const char *key) {
    const cJSON *value = read_member(r, object, key);
    char         text[SHOWN_BYTES];
    if (!value || cJSON_IsNull(value)) return NAN;
    if (cJSON_IsNumber(value)) return value->valuedouble;
    reading_refuse(r, "whose %s is %s: it must be a number or null", key, value_text(value, text));
    return NAN;
}

void read_hex(Reading *r, const cJSON *object, const char *key, size_t least, char *out, size_t capacity) {
    const cJSON *value = read_member(r, object, key);
    char         text[SHOWN_BYTES];
    const char  *word = cJSON_IsString(value) ? value->valuestring : "";
    size_t       length = strlen(word);
    out[0] = 0;
    if (!value) return;
    if (length < least || length >= capacity || strspn(word, "0123456789abcdef") != length)
        reading_refuse(r, "whose %s is %s: it must be %zu to %zu hex digits", key, value_text(value, text), least,
                       capacity - 1);
    else memcpy(out, word, length + 1);
}

int read_flag(Reading *r, const cJSON *object, const char *key) {
    const cJSON *value = read_member(r, object, key);
    if (!cJSON_IsBool(value)) reading_refuse(r, "whose %s is neither true nor false", key);
    return cJSON_IsTrue(value);
}

int read_choice(Reading *r, const cJSON *object, const char *key, const char *const *words, int count) {
    const cJSON *value = read_member(r, object, key);
    char         text[SHOWN_BYTES];
    for (int i = 0; i < count && cJSON_IsString(value); i++)
        if (!strcmp(value->valuestring, words[i])) return i;
    if (value) reading_refuse(r, "whose %s is %s", key, value_text(value, text));
    return 0;
}
