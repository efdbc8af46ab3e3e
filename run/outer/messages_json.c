/* messages_json.c - writes and reads the JSON of messages between islands and servers (messages.h). messages_servers.c
 * has that between servers. */
#include "run/outer/message_text.h"

#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/error.h"

/* --- writing ------------------------------------------------------------------------------------------------------ */

size_t welcome_write(const Welcome *m, char out[MESSAGE_TEXT]) {
    return message_text(out, "{\"number\":%d,\"round\":%lld,\"elems\":%lld,\"part\":%d,\"parts\":%d,\"changes\":%s}",
                        m->number, (long long)m->round, (long long)m->elems, m->part, m->parts,
                        m->changes ? "true" : "false");
}

size_t refuse_write(const Refuse *m, char out[MESSAGE_TEXT]) {
    char quoted[MESSAGE_TEXT - 64];
    json_quote_short(quoted, sizeof quoted, m->why);
    return message_text(out, "{\"exit\":%d,\"why\":%s}", m->code, quoted);
}

static const char *const OPEN_WORDS[] = {[OPEN_KEEP] = "keep", [OPEN_GIVE] = "give", [OPEN_TAKE] = "take"};

size_t open_write(const Open *m, char out[MESSAGE_TEXT]) {
    return message_text(out,
                        "{\"round\":%lld,\"step\":%lld,\"steps\":%lld,\"first\":%lld,\"samples\":%lld,\"islands\":%d,"
                        "\"lease\":%lld,\"moments\":\"%s\"}",
                        (long long)m->round, (long long)m->step, (long long)m->steps, (long long)m->first,
                        (long long)m->samples, m->islands, (long long)m->lease, OPEN_WORDS[m->moments]);
}

size_t end_write(const End *m, char out[MESSAGE_TEXT]) {
    return message_text(out, "{\"round\":%lld,\"samples\":%lld,\"tokens\":%lld,\"norm\":%s,\"loss\":%s,\"lease\":%lld}",
                        (long long)m->round, (long long)m->samples, (long long)m->tokens, message_number(m->norm).text,
                        message_number(m->loss).text, (long long)m->lease);
}

size_t closed_write(const Closed *m, char out[MESSAGE_TEXT]) {
    return message_text(out, "{\"round\":%lld,\"islands\":%d,\"norm\":%s,\"staleness\":%lld,\"done\":%s}",
                        (long long)m->round, m->islands, message_number(m->norm).text, (long long)m->staleness,
                        m->is_done ? "true" : "false");
}

size_t bye_write(const Bye *m, char out[MESSAGE_TEXT]) {
    return message_text(out, "{\"samples\":%lld}", (long long)m->samples);
}

size_t given_write(const Given *m, char out[MESSAGE_TEXT]) {
    return message_text(out, "{\"updates\":%lld}", (long long)m->updates);
}

size_t moments_write(const Moments *m, char out[MESSAGE_TEXT]) {
    return message_text(out, "{\"updates\":%lld,\"later\":%s}", (long long)m->updates, m->is_later ? "true" : "false");
}

size_t turn_write(const Turn *m, char out[MESSAGE_TEXT]) {
    return message_text(out, "{\"round\":%lld,\"fragment\":%d,\"tokens\":%lld}", (long long)m->round, m->fragment,
                        (long long)m->tokens);
}

size_t turned_write(const Turned *m, char out[MESSAGE_TEXT]) {
    return message_text(out, "{\"round\":%lld,\"fragment\":%d,\"islands\":%d}", (long long)m->round, m->fragment,
                        m->islands);
}

static int write_hello(FILE *out, const void *hello) {
    const Hello *m = (const Hello *)hello;
    char        *config = cJSON_PrintUnformatted(m->config);
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

char *hello_write(const Hello *m, size_t *bytes) { return message_long(write_hello, m, bytes); }

/* --- reading ------------------------------------------------------------------------------------------------------ */

int welcome_read(const char *text, size_t bytes, Welcome *m, char fault[MESSAGE_FAULT_BYTES]) {
    Json    json;
    Reading r = reading_begin("a WELCOME", text, bytes, &json, fault);
    m->number = (int)read_number(&r, json.root, "number", 0, MESSAGE_ISLANDS);
    m->round = read_number(&r, json.root, "round", 0, MESSAGE_COUNT_LIMIT);
    m->elems = read_number(&r, json.root, "elems", 1, MESSAGE_COUNT_LIMIT);
    m->parts = (int)read_number(&r, json.root, "parts", 1, MESSAGE_PARTS);
    m->part = (int)read_number(&r, json.root, "part", 0, m->parts - 1);
    m->changes = read_flag(&r, json.root, "changes");
    json_free(&json);
    return r.is_good;
}

/* Copies as much of the text as fits, without cutting a character. */
static void copy_cut(char *out, size_t capacity, const char *text) {
    size_t length = strnlen(text, capacity - 1);
    while (length > 0 && ((unsigned char)text[length] & 0xc0) == 0x80) length--;
    memcpy(out, text, length);
    out[length] = 0;
}

int refuse_read(const char *text, size_t bytes, Refuse *m, char fault[MESSAGE_FAULT_BYTES]) {
    Json    json;
    Reading r = reading_begin("a REFUSE", text, bytes, &json, fault);
    m->code = (int)read_number(&r, json.root, "exit", 1, 255);
    const cJSON *why = read_member(&r, json.root, "why");
    if (!cJSON_IsString(why)) reading_refuse(&r, "whose why is no string");
    copy_cut(m->why, sizeof m->why, r.is_good ? why->valuestring : "");
    json_free(&json);
    return r.is_good;
}

int open_read(const char *text, size_t bytes, Open *m, char fault[MESSAGE_FAULT_BYTES]) {
    Json    json;
    Reading r = reading_begin("an OPEN", text, bytes, &json, fault);
    m->round = read_number(&r, json.root, "round", 0, MESSAGE_COUNT_LIMIT);
    m->step = read_number(&r, json.root, "step", 0, MESSAGE_COUNT_LIMIT);
    m->steps = read_number(&r, json.root, "steps", 1, MESSAGE_COUNT_LIMIT - m->step);
    m->first = read_number(&r, json.root, "first", 0, MESSAGE_COUNT_LIMIT);
    m->samples = read_number(&r, json.root, "samples", 1, MESSAGE_COUNT_LIMIT - m->first);
    m->islands = (int)read_number(&r, json.root, "islands", 1, MESSAGE_ISLANDS);
    m->lease = read_number(&r, json.root, "lease", 0, MESSAGE_COUNT_LIMIT);
    m->moments = (OpenMoments)read_choice(&r, json.root, "moments", OPEN_WORDS, sizeof OPEN_WORDS / sizeof *OPEN_WORDS);
    json_free(&json);
    return r.is_good;
}

int end_read(const char *text, size_t bytes, End *m, char fault[MESSAGE_FAULT_BYTES]) {
    Json    json;
    Reading r = reading_begin("an END", text, bytes, &json, fault);
    m->round = read_number(&r, json.root, "round", 0, MESSAGE_COUNT_LIMIT);
    m->samples = read_number(&r, json.root, "samples", 0, MESSAGE_COUNT_LIMIT);
    m->tokens = read_number(&r, json.root, "tokens", 0, MESSAGE_COUNT_LIMIT);
    m->norm = read_real(&r, json.root, "norm");
    m->loss = read_real(&r, json.root, "loss");
    m->lease = read_number(&r, json.root, "lease", 0, MESSAGE_COUNT_LIMIT);
    if (m->norm < 0) reading_refuse(&r, "whose norm is %g: it must be at least 0", m->norm);
    json_free(&json);
    return r.is_good;
}

int closed_read(const char *text, size_t bytes, Closed *m, char fault[MESSAGE_FAULT_BYTES]) {
    Json    json;
    Reading r = reading_begin("a CLOSED", text, bytes, &json, fault);
    m->round = read_number(&r, json.root, "round", 0, MESSAGE_COUNT_LIMIT);
    m->islands = (int)read_number(&r, json.root, "islands", 0, MESSAGE_ISLANDS);
    m->norm = read_real(&r, json.root, "norm");
    m->staleness = read_number(&r, json.root, "staleness", 0, MESSAGE_COUNT_LIMIT);
    m->is_done = read_flag(&r, json.root, "done");
    if (m->norm < 0) reading_refuse(&r, "whose norm is %g: it must be at least 0", m->norm);
    json_free(&json);
    return r.is_good;
}

int bye_read(const char *text, size_t bytes, Bye *m, char fault[MESSAGE_FAULT_BYTES]) {
    Json    json;
    Reading r = reading_begin("a BYE", text, bytes, &json, fault);
    m->samples = read_number(&r, json.root, "samples", 0, MESSAGE_COUNT_LIMIT);
    json_free(&json);
    return r.is_good;
}

int given_read(const char *text, size_t bytes, Given *m, char fault[MESSAGE_FAULT_BYTES]) {
    Json    json;
    Reading r = reading_begin("a GIVEN", text, bytes, &json, fault);
    m->updates = read_number(&r, json.root, "updates", 1, MESSAGE_COUNT_LIMIT);
    json_free(&json);
    return r.is_good;
}

int turn_read(const char *text, size_t bytes, Turn *m, char fault[MESSAGE_FAULT_BYTES]) {
    Json    json;
    Reading r = reading_begin("a TURN", text, bytes, &json, fault);
    m->round = read_number(&r, json.root, "round", 0, MESSAGE_COUNT_LIMIT);
    m->fragment = (int)read_number(&r, json.root, "fragment", 0, FRAGMENTS_MOST);
    m->tokens = read_number(&r, json.root, "tokens", 1, MESSAGE_COUNT_LIMIT);
    json_free(&json);
    return r.is_good;
}

int moments_read(const char *text, size_t bytes, Moments *m, char fault[MESSAGE_FAULT_BYTES]) {
    Json    json;
    Reading r = reading_begin("a MOMENTS", text, bytes, &json, fault);
    m->updates = read_number(&r, json.root, "updates", 0, MESSAGE_COUNT_LIMIT);
    m->is_later = read_flag(&r, json.root, "later");
    if (m->is_later && m->updates) reading_refuse(&r, "that are there, and are to come later");
    json_free(&json);
    return r.is_good;
}

int turned_read(const char *text, size_t bytes, Turned *m, char fault[MESSAGE_FAULT_BYTES]) {
    Json    json;
    Reading r = reading_begin("a TURNED", text, bytes, &json, fault);
    m->round = read_number(&r, json.root, "round", 0, MESSAGE_COUNT_LIMIT);
    m->fragment = (int)read_number(&r, json.root, "fragment", 0, FRAGMENTS_MOST - 1);
    m->islands = (int)read_number(&r, json.root, "islands", 1, MESSAGE_ISLANDS);
    json_free(&json);
    return r.is_good;
}

static void read_data(Reading *r, Hello *m) {
    const cJSON *data = read_member(r, m->json.root, "data"), *file;
    if (!cJSON_IsArray(data)) reading_refuse(r, "whose data is no list");
    if (!r->is_good) return;
    m->data = xcalloc((size_t)cJSON_GetArraySize(data) + 1, sizeof *m->data, "the data files of a HELLO");
    cJSON_ArrayForEach(file, data) {
        HelloData   *d = &m->data[m->data_files];
        const cJSON *name = read_member(r, file, "name");
        if (!cJSON_IsString(name)) reading_refuse(r, "with a data file whose name is no string");
        d->tokens = read_number(r, file, "tokens", 0, MESSAGE_COUNT_LIMIT);
        read_hex(r, file, "fingerprint", 1, d->fingerprint, sizeof d->fingerprint);
        if (!r->is_good) return;
        d->name = name->valuestring;
        m->data_files++;
    }
}

int hello_read(const char *text, size_t bytes, Hello *m, char fault[MESSAGE_FAULT_BYTES]) {
    memset(m, 0, sizeof *m);
    Reading r = reading_begin("a HELLO", text, bytes, &m->json, fault);
    m->protocol = (int)read_number(&r, m->json.root, "protocol", CHANNEL_PROTOCOL, CHANNEL_PROTOCOL);
    read_hex(&r, m->json.root, "island", ISLAND_ID_BYTES - 1, m->island, sizeof m->island);
    m->ranks = (int)read_number(&r, m->json.root, "ranks", 1, MESSAGE_RANKS);
    m->rank = (int)read_number(&r, m->json.root, "rank", 0, m->ranks - 1);
    m->elems = read_number(&r, m->json.root, "elems", 1, MESSAGE_COUNT_LIMIT);
    m->samples = read_number(&r, m->json.root, "samples", 0, MESSAGE_COUNT_LIMIT);
    m->updates = read_number(&r, m->json.root, "updates", 0, MESSAGE_COUNT_LIMIT);
    m->wants_moments = read_flag(&r, m->json.root, "wants");
    const cJSON *config = read_member(&r, m->json.root, "config");
    if (!cJSON_IsObject(config)) reading_refuse(&r, "whose config is no object");
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
