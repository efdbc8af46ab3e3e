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

size_t open_write(const Open *m, char out[MESSAGE_TEXT]) {
    return write_text(out,
                      "{\"round\":%lld,\"step\":%lld,\"steps\":%lld,\"first\":%lld,\"samples\":%lld,\"islands\":%d,"
                      "\"lease\":%lld}",
                      (long long)m->round, (long long)m->step, (long long)m->steps, (long long)m->first,
                      (long long)m->samples, m->islands, (long long)m->lease);
}

size_t end_write(const End *m, char out[MESSAGE_TEXT]) {
    return write_text(out, "{\"round\":%lld,\"samples\":%lld,\"tokens\":%lld,\"norm\":%s,\"loss\":%s,\"lease\":%lld}",
                      (long long)m->round, (long long)m->samples, (long long)m->tokens, shown(m->norm).text,
                      shown(m->loss).text, (long long)m->lease);
}

size_t closed_write(const Closed *m, char out[MESSAGE_TEXT]) {
    return write_text(out, "{\"round\":%lld,\"islands\":%d,\"norm\":%s,\"staleness\":%lld,\"done\":%s}",
                      (long long)m->round, m->islands, shown(m->norm).text, (long long)m->staleness,
                      m->is_done ? "true" : "false");
}

size_t bye_write(const Bye *m, char out[MESSAGE_TEXT]) {
    return write_text(out, "{\"samples\":%lld}", (long long)m->samples);
}

static int write_hello(FILE *out, const Hello *m) {
    char *config = cJSON_PrintUnformatted(m->config);
    if (!config) return 0;
    fprintf(out, "{\"protocol\":%d,\"island\":\"%s\",\"rank\":%d,\"ranks\":%d,", m->protocol, m->island, m->rank,
            m->ranks);
    fprintf(out, "\"elems\":%lld,\"samples\":%lld,\"config\":%s", (long long)m->elems, (long long)m->samples, config);
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

static int write_follow(FILE *out, const Follow *m) {
    char *config = cJSON_PrintUnformatted(m->config);
    if (!config) return 0;
    fprintf(out, "{\"protocol\":%d,\"part\":%d,\"parts\":%d,\"elems\":%lld,\"config\":%s}", m->protocol, m->part,
            m->parts, (long long)m->elems, config);
    cJSON_free(config);
    return 1;
}

/* Of a HELLO, or a FOLLOW. */
static char *write_long(const Hello *hello, const Follow *follow, size_t *bytes) {
    char *text = NULL;
    *bytes = 0;
    FILE *out = memory_file_open(&text, bytes);
    int   is_whole = out && (hello ? write_hello(out, hello) : write_follow(out, follow));
    if (out && fclose(out) != 0) is_whole = 0;
    if (!is_whole) *bytes = 0;
    if (is_whole && *bytes <= MESSAGE_JSON_LIMIT) return text;
    free(text);
    return NULL;
}

char *hello_write(const Hello *m, size_t *bytes) { return write_long(m, NULL, bytes); }
char *follow_write(const Follow *m, size_t *bytes) { return write_long(NULL, m, bytes); }

/* The words of a sum as hex digits: carries are settled first, so 8 digits hold each. */
enum { WORD_DIGITS = 8, SQUARES_BYTES = EXACT_WORDS * WORD_DIGITS + 1 };
typedef struct { char text[SQUARES_BYTES]; } Squares;
static Squares squares_text(const Exact *sum) {
    Squares s;
    int64_t carry = 0;
    for (int i = 0; i < EXACT_WORDS; i++) {
        int64_t word = sum->word[i] + (i < EXACT_DIGITS ? carry : 0);
        carry = word >> 32;
        unsigned digits = i < EXACT_DIGITS ? (unsigned)(word & 0xffffffff) : word != 0;
        snprintf(s.text + i * WORD_DIGITS, WORD_DIGITS + 1, "%08x", digits);
    }
    return s;
}

size_t part_in_write(const PartIn *m, char out[MESSAGE_TEXT]) {
    return write_text(out, "{\"lease\":%lld,\"squares\":\"%s\"}", (long long)m->lease, squares_text(&m->squares).text);
}

size_t count_write(const Count *m, char out[MESSAGE_TEXT]) {
    return write_text(out, "{\"lease\":%lld,\"weight\":%s}", (long long)m->lease, shown(m->weight).text);
}

size_t drop_write(const Drop *m, char out[MESSAGE_TEXT]) {
    return write_text(out, "{\"lease\":%lld}", (long long)m->lease);
}

size_t step_write(const Step *m, char out[MESSAGE_TEXT]) {
    return write_text(out,
                      "{\"rule\":%d,\"learning_rate\":%s,\"momentum\":%s,\"scale\":%s,\"beta2\":%s,\"eps\":%s,"
                      "\"weight_decay\":%s,\"update\":%lld}",
                      m->rule, shown(m->learning_rate).text, shown(m->momentum).text, shown(m->scale).text,
                      shown(m->beta2).text, shown(m->eps).text, shown(m->weight_decay).text, (long long)m->update);
}

size_t stepped_write(const Stepped *m, char out[MESSAGE_TEXT]) {
    return write_text(out, "{\"squares\":\"%s\"}", squares_text(&m->squares).text);
}

size_t over_write(const Over *m, char out[MESSAGE_TEXT]) { return write_text(out, "{\"exit\":%d}", m->code); }

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
    m->lease = number(&r, json.root, "lease", 0, MESSAGE_COUNT_LIMIT);
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
    m->lease = number(&r, json.root, "lease", 0, MESSAGE_COUNT_LIMIT);
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
    const cJSON *done = member(&r, json.root, "done");
    if (!cJSON_IsBool(done)) refuse(&r, "whose done is neither true nor false");
    m->is_done = cJSON_IsTrue(done);
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

/* --- reading what servers say to each other ----------------------------------------------------------------------- */

static void read_squares(Reading *r, const cJSON *object, Exact *sum) {
    char hex[SQUARES_BYTES];
    memset(sum, 0, sizeof *sum);
    hex_word(r, object, "squares", SQUARES_BYTES - 1, hex, sizeof hex);
    for (int i = 0; r->is_good && i < EXACT_WORDS; i++) {
        char digits[WORD_DIGITS + 1] = {0};
        memcpy(digits, hex + i * WORD_DIGITS, WORD_DIGITS);
        sum->word[i] = (int64_t)strtoull(digits, NULL, 16);
    }
}

int follow_read(const char *text, size_t bytes, Follow *m, char fault[MESSAGE_FAULT_BYTES]) {
    memset(m, 0, sizeof *m);
    Reading r = read_json("a FOLLOW", text, bytes, &m->json, fault);
    m->protocol = (int)number(&r, m->json.root, "protocol", CHANNEL_PROTOCOL, CHANNEL_PROTOCOL);
    m->parts = (int)number(&r, m->json.root, "parts", 2, MESSAGE_PARTS);
    m->part = (int)number(&r, m->json.root, "part", 1, m->parts - 1);
    m->elems = number(&r, m->json.root, "elems", 1, MESSAGE_COUNT_LIMIT);
    const cJSON *config = member(&r, m->json.root, "config");
    if (!cJSON_IsObject(config)) refuse(&r, "whose config is no object");
    m->config = r.is_good ? json_member(m->json.root, "config") : NULL;
    if (!r.is_good) follow_free(m);
    return r.is_good;
}

void follow_free(Follow *m) {
    json_free(&m->json);
    memset(m, 0, sizeof *m);
}

int part_in_read(const char *text, size_t bytes, PartIn *m, char fault[MESSAGE_FAULT_BYTES]) {
    Json    json;
    Reading r = read_json("a PART_IN", text, bytes, &json, fault);
    m->lease = number(&r, json.root, "lease", 0, MESSAGE_COUNT_LIMIT);
    read_squares(&r, json.root, &m->squares);
    json_free(&json);
    return r.is_good;
}

int count_read(const char *text, size_t bytes, Count *m, char fault[MESSAGE_FAULT_BYTES]) {
    Json    json;
    Reading r = read_json("a COUNT", text, bytes, &json, fault);
    m->lease = number(&r, json.root, "lease", 0, MESSAGE_COUNT_LIMIT);
    m->weight = real(&r, json.root, "weight");
    if (!(m->weight > 0)) refuse(&r, "whose weight is %g: it must be over 0", m->weight);
    json_free(&json);
    return r.is_good;
}

int drop_read(const char *text, size_t bytes, Drop *m, char fault[MESSAGE_FAULT_BYTES]) {
    Json    json;
    Reading r = read_json("a DROP", text, bytes, &json, fault);
    m->lease = number(&r, json.root, "lease", 0, MESSAGE_COUNT_LIMIT);
    json_free(&json);
    return r.is_good;
}

int step_read(const char *text, size_t bytes, Step *m, char fault[MESSAGE_FAULT_BYTES]) {
    Json    json;
    Reading r = read_json("a STEP", text, bytes, &json, fault);
    m->rule = (StepRule)number(&r, json.root, "rule", 0, STEP_RULES - 1);
    m->learning_rate = real(&r, json.root, "learning_rate");
    m->momentum = real(&r, json.root, "momentum");
    m->scale = real(&r, json.root, "scale");
    m->beta2 = real(&r, json.root, "beta2");
    m->eps = real(&r, json.root, "eps");
    m->weight_decay = real(&r, json.root, "weight_decay");
    m->update = number(&r, json.root, "update", 0, MESSAGE_COUNT_LIMIT);
    json_free(&json);
    return r.is_good;
}

int stepped_read(const char *text, size_t bytes, Stepped *m, char fault[MESSAGE_FAULT_BYTES]) {
    Json    json;
    Reading r = read_json("a STEPPED", text, bytes, &json, fault);
    read_squares(&r, json.root, &m->squares);
    json_free(&json);
    return r.is_good;
}

int over_read(const char *text, size_t bytes, Over *m, char fault[MESSAGE_FAULT_BYTES]) {
    Json    json;
    Reading r = read_json("an OVER", text, bytes, &json, fault);
    m->code = (int)number(&r, json.root, "exit", 0, 255);
    json_free(&json);
    return r.is_good;
}
