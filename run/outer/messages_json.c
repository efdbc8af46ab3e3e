/* messages_json.c - the JSON of messages.h, written and read back. */
#include "run/outer/messages.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/json_scan.h"
#include "core/json_text.h"
#include "core/memory_file.h"

/* --- writing ------------------------------------------------------------------------------------------------------ */

/* A number as JSON: all its digits, or null. */
typedef struct { char text[SHOWN_BYTES]; } Shown;
static Shown shown(double value) {
    Shown s = {"null"};
    if (isfinite(value)) number_text(value, s.text);
    return s;
}

static size_t write_text(char out[MESSAGE_TEXT], const char *fmt, ...) PRINTF_LIKE(2, 3);
static size_t write_text(char out[MESSAGE_TEXT], const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    int bytes = vsnprintf(out, MESSAGE_TEXT, fmt, args);
    va_end(args);
    CHECK(bytes > 0 && bytes < MESSAGE_TEXT, "a message of %d bytes", bytes);
    return (size_t)bytes;
}

size_t welcome_write(const Welcome *m, char out[MESSAGE_TEXT]) {
    return write_text(out, "{\"number\":%d,\"round\":%lld,\"elems\":%lld,\"part\":%d,\"parts\":%d}", m->number,
                      (long long)m->round, (long long)m->elems, m->part, m->parts);
}

size_t refuse_write(const Refuse *m, char out[MESSAGE_TEXT]) {
    char quoted[MESSAGE_TEXT - 64];
    json_quote_short(quoted, sizeof quoted, m->why);
    return write_text(out, "{\"exit\":%d,\"why\":%s}", m->code, quoted);
}

static const char *const OPEN_WORDS[] = {[OPEN_KEEP] = "keep", [OPEN_GIVE] = "give", [OPEN_TAKE] = "take"};

size_t open_write(const Open *m, char out[MESSAGE_TEXT]) {
    return write_text(out,
                      "{\"round\":%lld,\"step\":%lld,\"steps\":%lld,\"first\":%lld,\"samples\":%lld,\"islands\":%d,"
                      "\"moments\":\"%s\"}",
                      (long long)m->round, (long long)m->step, (long long)m->steps, (long long)m->first,
                      (long long)m->samples, m->islands, OPEN_WORDS[m->moments]);
}

size_t end_write(const End *m, char out[MESSAGE_TEXT]) {
    return write_text(out, "{\"round\":%lld,\"samples\":%lld,\"tokens\":%lld,\"norm\":%s,\"loss\":%s}",
                      (long long)m->round, (long long)m->samples, (long long)m->tokens, shown(m->norm).text,
                      shown(m->loss).text);
}

size_t closed_write(const Closed *m, char out[MESSAGE_TEXT]) {
    return write_text(out, "{\"round\":%lld,\"islands\":%d,\"norm\":%s,\"staleness\":%lld,\"done\":%s}",
                      (long long)m->round, m->islands, shown(m->norm).text, (long long)m->staleness,
                      m->is_done ? "true" : "false");
}

size_t bye_write(const Bye *m, char out[MESSAGE_TEXT]) {
    return write_text(out, "{\"samples\":%lld}", (long long)m->samples);
}

size_t given_write(const Given *m, char out[MESSAGE_TEXT]) {
    return write_text(out, "{\"updates\":%lld}", (long long)m->updates);
}

size_t moments_write(const Moments *m, char out[MESSAGE_TEXT]) {
    return write_text(out, "{\"updates\":%lld,\"later\":%s}", (long long)m->updates, m->is_later ? "true" : "false");
}

size_t turn_write(const Turn *m, char out[MESSAGE_TEXT]) {
    return write_text(out, "{\"round\":%lld,\"fragment\":%d,\"tokens\":%lld}", (long long)m->round, m->fragment,
                      (long long)m->tokens);
}

size_t turned_write(const Turned *m, char out[MESSAGE_TEXT]) {
    return write_text(out, "{\"round\":%lld,\"fragment\":%d,\"islands\":%d}", (long long)m->round, m->fragment,
                      m->islands);
}

static int write_hello(FILE *out, const Hello *m) {
    char *config = cJSON_PrintUnformatted(m->config);
    if (!config) return 0;
    fprintf(out, "{\"protocol\":%d,\"island\":\"%s\",\"rank\":%d,\"ranks\":%d,", m->protocol, m->island, m->rank,
            m->ranks);
    fprintf(out, "\"elems\":%lld,\"samples\":%lld,\"updates\":%lld,\"wants\":%s,\"config\":%s", (long long)m->elems,
            (long long)m->samples, (long long)m->updates, m->wants_moments ? "true" : "false", config);
    cJSON_free(config);
    fputs(",\"data\":[", out);
    for (int i = 0; i < m->data_files; i++) {
        size_t bytes = json_quote(NULL, 0, m->data[i].name) + 1;
        char  *quoted = malloc(bytes);
        if (!quoted) return 0;
        json_quote(quoted, bytes, m->data[i].name);
        fprintf(out, "%s{\"name\":%s,\"tokens\":%lld,\"fingerprint\":\"%s\"}", i ? "," : "", quoted,
                (long long)m->data[i].tokens, m->data[i].fingerprint);
        free(quoted);
    }
    fputs("]}", out);
    return 1;
}

char *hello_write(const Hello *m, size_t *bytes) {
    char *text = NULL;
    *bytes = 0;
    FILE *out = memory_file_open(&text, bytes);
    int   is_whole = out && write_hello(out, m);
    if (out && fclose(out) != 0) is_whole = 0;
    if (!is_whole) *bytes = 0;
    if (is_whole && *bytes <= MESSAGE_JSON_LIMIT) return text;
    free(text);
    return NULL;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* A message that is being read. After the first fault all further reads do nothing. */
typedef struct {
    const char *name; /* of its kind, with an article */
    char       *fault;
    int         is_good;
} Reading;

static void refuse(Reading *r, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void refuse(Reading *r, const char *fmt, ...) {
    char    text[MESSAGE_FAULT_BYTES - 32];
    va_list args;
    if (!r->is_good) return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    snprintf(r->fault, MESSAGE_FAULT_BYTES, "sent %s %s", r->name, text);
    r->is_good = 0;
}

static Reading read_json(const char *name, const char *text, size_t bytes, Json *json, char *fault) {
    Reading   r = {name, fault, 1};
    JsonFault why;
    fault[0] = 0;
    memset(json, 0, sizeof *json);
    if (!json_parse(text, bytes, MESSAGE_JSON_LIMIT, json, &why)) {
        memset(json, 0, sizeof *json);
        refuse(&r, "that is no JSON: %s, at byte %d of line %d", why.text, why.at.column, why.at.line);
    } else if (!cJSON_IsObject(json->root)) refuse(&r, "that is no JSON object");
    return r;
}

/* A member that must be there. NULL: it is not, or there was a fault before. */
static const cJSON *member(Reading *r, const cJSON *object, const char *key) {
    const cJSON *value = r->is_good ? json_member(object, key) : NULL;
    if (!value) refuse(r, "without \"%s\"", key);
    return value;
}

/* A whole number of [least, most]. */
static int64_t number(Reading *r, const cJSON *object, const char *key, int64_t least, int64_t most) {
    const cJSON *value = member(r, object, key);
    char         text[SHOWN_BYTES];
    if (!value) return least;
    double n = cJSON_IsNumber(value) ? value->valuedouble : NAN;
    if (n >= (double)least && n <= (double)most && n == floor(n)) return (int64_t)n;
    refuse(r, "whose %s is %s: it must be from %lld to %lld", key, value_text(value, text), (long long)least,
           (long long)most);
    return least;
}

/* A number, or null: NaN. */
static double real(Reading *r, const cJSON *object, const char *key) {
    const cJSON *value = member(r, object, key);
    char         text[SHOWN_BYTES];
    if (!value || cJSON_IsNull(value)) return NAN;
    if (cJSON_IsNumber(value)) return value->valuedouble;
    refuse(r, "whose %s is %s: it must be a number or null", key, value_text(value, text));
    return NAN;
}

/* Hex digits, from least to capacity - 1 of them. */
static void hex_word(Reading *r, const cJSON *object, const char *key, size_t least, char *out, size_t capacity) {
    const cJSON *value = member(r, object, key);
    char         text[SHOWN_BYTES];
    const char  *word = cJSON_IsString(value) ? value->valuestring : "";
    size_t       length = strlen(word);
    out[0] = 0;
    if (!value) return;
    if (length < least || length >= capacity || strspn(word, "0123456789abcdef") != length)
        refuse(r, "whose %s is %s: it must be %zu to %zu hex digits", key, value_text(value, text), least,
               capacity - 1);
    else memcpy(out, word, length + 1);
}

static int flag(Reading *r, const cJSON *object, const char *key) {
    const cJSON *value = member(r, object, key);
    if (!cJSON_IsBool(value)) refuse(r, "whose %s is neither true nor false", key);
    return cJSON_IsTrue(value);
}

/* One of words [count]. */
static int choice(Reading *r, const cJSON *object, const char *key, const char *const *words, int count) {
    const cJSON *value = member(r, object, key);
    char         text[SHOWN_BYTES];
    for (int i = 0; i < count && cJSON_IsString(value); i++)
        if (!strcmp(value->valuestring, words[i])) return i;
    if (value) refuse(r, "whose %s is %s", key, value_text(value, text));
    return 0;
}

int welcome_read(const char *text, size_t bytes, Welcome *m, char fault[MESSAGE_FAULT_BYTES]) {
    Json    json;
    Reading r = read_json("a WELCOME", text, bytes, &json, fault);
    m->number = (int)number(&r, json.root, "number", 0, MESSAGE_ISLANDS);
    m->round = number(&r, json.root, "round", 0, MESSAGE_COUNT_LIMIT);
    m->elems = number(&r, json.root, "elems", 1, MESSAGE_COUNT_LIMIT);
    m->parts = (int)number(&r, json.root, "parts", 1, MESSAGE_PARTS);
    m->part = (int)number(&r, json.root, "part", 0, m->parts - 1);
    json_free(&json);
    return r.is_good;
}

/* As much of the text as there is room for, whole characters alone. */
static void copy_cut(char *out, size_t capacity, const char *text) {
    size_t length = strnlen(text, capacity - 1);
    while (length > 0 && ((unsigned char)text[length] & 0xc0) == 0x80) length--;
    memcpy(out, text, length);
    out[length] = 0;
}

int refuse_read(const char *text, size_t bytes, Refuse *m, char fault[MESSAGE_FAULT_BYTES]) {
    Json    json;
    Reading r = read_json("a REFUSE", text, bytes, &json, fault);
    m->code = (int)number(&r, json.root, "exit", 1, 255);
    const cJSON *why = member(&r, json.root, "why");
    if (!cJSON_IsString(why)) refuse(&r, "whose why is no string");
    copy_cut(m->why, sizeof m->why, r.is_good ? why->valuestring : "");
    json_free(&json);
    return r.is_good;
}

int open_read(const char *text, size_t bytes, Open *m, char fault[MESSAGE_FAULT_BYTES]) {
    Json    json;
    Reading r = read_json("an OPEN", text, bytes, &json, fault);
    m->round = number(&r, json.root, "round", 0, MESSAGE_COUNT_LIMIT);
    m->step = number(&r, json.root, "step", 0, MESSAGE_COUNT_LIMIT);
    m->steps = number(&r, json.root, "steps", 1, MESSAGE_COUNT_LIMIT - m->step);
    m->first = number(&r, json.root, "first", 0, MESSAGE_COUNT_LIMIT);
    m->samples = number(&r, json.root, "samples", 1, MESSAGE_COUNT_LIMIT - m->first);
    m->islands = (int)number(&r, json.root, "islands", 1, MESSAGE_ISLANDS);
    m->moments = (OpenMoments)choice(&r, json.root, "moments", OPEN_WORDS, sizeof OPEN_WORDS / sizeof *OPEN_WORDS);
    json_free(&json);
    return r.is_good;
}

int end_read(const char *text, size_t bytes, End *m, char fault[MESSAGE_FAULT_BYTES]) {
    Json    json;
    Reading r = read_json("an END", text, bytes, &json, fault);
    m->round = number(&r, json.root, "round", 0, MESSAGE_COUNT_LIMIT);
    m->samples = number(&r, json.root, "samples", 0, MESSAGE_COUNT_LIMIT);
    m->tokens = number(&r, json.root, "tokens", 0, MESSAGE_COUNT_LIMIT);
    m->norm = real(&r, json.root, "norm");
    m->loss = real(&r, json.root, "loss");
    if (m->norm < 0) refuse(&r, "whose norm is %g: it must be at least 0", m->norm);
    json_free(&json);
    return r.is_good;
}

int closed_read(const char *text, size_t bytes, Closed *m, char fault[MESSAGE_FAULT_BYTES]) {
    Json    json;
    Reading r = read_json("a CLOSED", text, bytes, &json, fault);
    m->round = number(&r, json.root, "round", 0, MESSAGE_COUNT_LIMIT);
    m->islands = (int)number(&r, json.root, "islands", 0, MESSAGE_ISLANDS);
    m->norm = real(&r, json.root, "norm");
    m->staleness = number(&r, json.root, "staleness", 0, MESSAGE_COUNT_LIMIT);
    m->is_done = flag(&r, json.root, "done");
    if (m->norm < 0) refuse(&r, "whose norm is %g: it must be at least 0", m->norm);
    json_free(&json);
    return r.is_good;
}

int bye_read(const char *text, size_t bytes, Bye *m, char fault[MESSAGE_FAULT_BYTES]) {
    Json    json;
    Reading r = read_json("a BYE", text, bytes, &json, fault);
    m->samples = number(&r, json.root, "samples", 0, MESSAGE_COUNT_LIMIT);
    json_free(&json);
    return r.is_good;
}

int given_read(const char *text, size_t bytes, Given *m, char fault[MESSAGE_FAULT_BYTES]) {
    Json    json;
    Reading r = read_json("a GIVEN", text, bytes, &json, fault);
    m->updates = number(&r, json.root, "updates", 1, MESSAGE_COUNT_LIMIT);
    json_free(&json);
    return r.is_good;
}

int turn_read(const char *text, size_t bytes, Turn *m, char fault[MESSAGE_FAULT_BYTES]) {
    Json    json;
    Reading r = read_json("a TURN", text, bytes, &json, fault);
    m->round = number(&r, json.root, "round", 0, MESSAGE_COUNT_LIMIT);
    m->fragment = (int)number(&r, json.root, "fragment", 0, FRAGMENTS_MOST);
    m->tokens = number(&r, json.root, "tokens", 1, MESSAGE_COUNT_LIMIT);
    json_free(&json);
    return r.is_good;
}

int moments_read(const char *text, size_t bytes, Moments *m, char fault[MESSAGE_FAULT_BYTES]) {
    Json    json;
    Reading r = read_json("a MOMENTS", text, bytes, &json, fault);
    m->updates = number(&r, json.root, "updates", 0, MESSAGE_COUNT_LIMIT);
    m->is_later = flag(&r, json.root, "later");
    if (m->is_later && m->updates) refuse(&r, "that are there, and are to come later");
    json_free(&json);
    return r.is_good;
}

int turned_read(const char *text, size_t bytes, Turned *m, char fault[MESSAGE_FAULT_BYTES]) {
    Json    json;
    Reading r = read_json("a TURNED", text, bytes, &json, fault);
    m->round = number(&r, json.root, "round", 0, MESSAGE_COUNT_LIMIT);
    m->fragment = (int)number(&r, json.root, "fragment", 0, FRAGMENTS_MOST - 1);
    m->islands = (int)number(&r, json.root, "islands", 1, MESSAGE_ISLANDS);
    json_free(&json);
    return r.is_good;
}

static void read_data(Reading *r, Hello *m) {
    const cJSON *data = member(r, m->json.root, "data"), *file;
    if (!cJSON_IsArray(data)) refuse(r, "whose data is no list");
    if (!r->is_good) return;
    m->data = calloc((size_t)cJSON_GetArraySize(data) + 1, sizeof *m->data);
    if (!m->data) fail(EXIT_MEMORY, "no memory for a HELLO with %d data files", cJSON_GetArraySize(data));
    cJSON_ArrayForEach(file, data) {
        HelloData   *d = &m->data[m->data_files];
        const cJSON *name = member(r, file, "name");
        if (!cJSON_IsString(name)) refuse(r, "with a data file whose name is no string");
        d->tokens = number(r, file, "tokens", 0, MESSAGE_COUNT_LIMIT);
        hex_word(r, file, "fingerprint", 1, d->fingerprint, sizeof d->fingerprint);
        if (!r->is_good) return;
        d->name = name->valuestring;
        m->data_files++;
    }
}

int hello_read(const char *text, size_t bytes, Hello *m, char fault[MESSAGE_FAULT_BYTES]) {
    memset(m, 0, sizeof *m);
    Reading r = read_json("a HELLO", text, bytes, &m->json, fault);
    m->protocol = (int)number(&r, m->json.root, "protocol", CHANNEL_PROTOCOL, CHANNEL_PROTOCOL);
    hex_word(&r, m->json.root, "island", ISLAND_ID_BYTES - 1, m->island, sizeof m->island);
    m->ranks = (int)number(&r, m->json.root, "ranks", 1, MESSAGE_RANKS);
    m->rank = (int)number(&r, m->json.root, "rank", 0, m->ranks - 1);
    m->elems = number(&r, m->json.root, "elems", 1, MESSAGE_COUNT_LIMIT);
    m->samples = number(&r, m->json.root, "samples", 0, MESSAGE_COUNT_LIMIT);
    m->updates = number(&r, m->json.root, "updates", 0, MESSAGE_COUNT_LIMIT);
    m->wants_moments = flag(&r, m->json.root, "wants");
    const cJSON *config = member(&r, m->json.root, "config");
    if (!cJSON_IsObject(config)) refuse(&r, "whose config is no object");
    m->config = r.is_good ? json_member(m->json.root, "config") : NULL;
    read_data(&r, m);
    if (!r.is_good) hello_free(m);
    return r.is_good;
}

void hello_free(Hello *m) {
    free(m->data);
    json_free(&m->json);
    memset(m, 0, sizeof *m);
}
