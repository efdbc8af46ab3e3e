/* messages_servers.c - writes and reads the JSON of messages between servers (messages.h). */
#include "run/outer/message_text.h"

#include <stdlib.h>
#include <string.h>

/* --- writing ------------------------------------------------------------------------------------------------------ */

static int write_follow(FILE *out, const void *follow) {
    const Follow *m = (const Follow *)follow;
    char         *config = cJSON_PrintUnformatted(m->config);
    if (!config) return 0;
    fprintf(out, "{\"protocol\":%d,\"part\":%d,\"parts\":%d,\"elems\":%lld,\"config\":%s}", m->protocol, m->part,
            m->parts, (long long)m->elems, config);
    cJSON_free(config);
    return 1;
}

char *follow_write(const Follow *m, size_t *bytes) { return message_long(write_follow, m, bytes); }

/* Writes the words of a sum as hex digits, 8 each. It settles the carries first, so that each word fits. */
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
    return message_text(out, "{\"lease\":%lld,\"squares\":\"%s\"}", (long long)m->lease,
                        squares_text(&m->squares).text);
}

size_t count_write(const Count *m, char out[MESSAGE_TEXT]) {
    return message_text(out, "{\"lease\":%lld,\"weight\":%s}", (long long)m->lease, message_number(m->weight).text);
}

size_t drop_write(const Drop *m, char out[MESSAGE_TEXT]) {
    return message_text(out, "{\"lease\":%lld}", (long long)m->lease);
}

size_t step_write(const Step *m, char out[MESSAGE_TEXT]) {
    return message_text(out,
                        "{\"rule\":%d,\"learning_rate\":%s,\"momentum\":%s,\"scale\":%s,\"beta2\":%s,\"eps\":%s,"
                        "\"weight_decay\":%s,\"update\":%lld}",
                        m->rule, message_number(m->learning_rate).text, message_number(m->momentum).text,
                        message_number(m->scale).text, message_number(m->beta2).text, message_number(m->eps).text,
                        message_number(m->weight_decay).text, (long long)m->update);
}

size_t stepped_write(const Stepped *m, char out[MESSAGE_TEXT]) {
    return message_text(out, "{\"squares\":\"%s\"}", squares_text(&m->squares).text);
}

size_t over_write(const Over *m, char out[MESSAGE_TEXT]) { return message_text(out, "{\"exit\":%d}", m->code); }

/* --- reading ------------------------------------------------------------------------------------------------------ */

static void read_squares(Reading *r, const cJSON *object, Exact *sum) {
    char hex[SQUARES_BYTES];
    memset(sum, 0, sizeof *sum);
    read_hex(r, object, "squares", SQUARES_BYTES - 1, hex, sizeof hex);
    for (int i = 0; r->is_good && i < EXACT_WORDS; i++) {
        char digits[WORD_DIGITS + 1] = {0};
        memcpy(digits, hex + i * WORD_DIGITS, WORD_DIGITS);
        sum->word[i] = (int64_t)strtoull(digits, NULL, 16);
    }
}

int follow_read(const char *text, size_t bytes, Follow *m, char fault[MESSAGE_FAULT_BYTES]) {
    memset(m, 0, sizeof *m);
    Reading r = reading_begin("a FOLLOW", text, bytes, &m->json, fault);
    m->protocol = (int)read_number(&r, m->json.root, "protocol", CHANNEL_PROTOCOL, CHANNEL_PROTOCOL);
    m->parts = (int)read_number(&r, m->json.root, "parts", 2, MESSAGE_PARTS);
    m->part = (int)read_number(&r, m->json.root, "part", 1, m->parts - 1);
    m->elems = read_number(&r, m->json.root, "elems", 1, MESSAGE_COUNT_LIMIT);
    const cJSON *config = read_member(&r, m->json.root, "config");
    if (!cJSON_IsObject(config)) reading_refuse(&r, "whose config is no object");
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
    Reading r = reading_begin("a PART_IN", text, bytes, &json, fault);
    m->lease = read_number(&r, json.root, "lease", 0, MESSAGE_COUNT_LIMIT);
    read_squares(&r, json.root, &m->squares);
    json_free(&json);
    return r.is_good;
}

int count_read(const char *text, size_t bytes, Count *m, char fault[MESSAGE_FAULT_BYTES]) {
    Json    json;
    Reading r = reading_begin("a COUNT", text, bytes, &json, fault);
    m->lease = read_number(&r, json.root, "lease", 0, MESSAGE_COUNT_LIMIT);
    m->weight = read_real(&r, json.root, "weight");
    if (!(m->weight > 0)) reading_refuse(&r, "whose weight is %g: it must be over 0", m->weight);
    json_free(&json);
    return r.is_good;
}

int drop_read(const char *text, size_t bytes, Drop *m, char fault[MESSAGE_FAULT_BYTES]) {
    Json    json;
    Reading r = reading_begin("a DROP", text, bytes, &json, fault);
    m->lease = read_number(&r, json.root, "lease", 0, MESSAGE_COUNT_LIMIT);
    json_free(&json);
    return r.is_good;
}

int step_read(const char *text, size_t bytes, Step *m, char fault[MESSAGE_FAULT_BYTES]) {
    Json    json;
    Reading r = reading_begin("a STEP", text, bytes, &json, fault);
    m->rule = (StepRule)read_number(&r, json.root, "rule", 0, STEP_RULES - 1);
    m->learning_rate = read_real(&r, json.root, "learning_rate");
    m->momentum = read_real(&r, json.root, "momentum");
    m->scale = read_real(&r, json.root, "scale");
    m->beta2 = read_real(&r, json.root, "beta2");
    m->eps = read_real(&r, json.root, "eps");
    m->weight_decay = read_real(&r, json.root, "weight_decay");
    m->update = read_number(&r, json.root, "update", 0, MESSAGE_COUNT_LIMIT);
    json_free(&json);
    return r.is_good;
}

int stepped_read(const char *text, size_t bytes, Stepped *m, char fault[MESSAGE_FAULT_BYTES]) {
    Json    json;
    Reading r = reading_begin("a STEPPED", text, bytes, &json, fault);
    read_squares(&r, json.root, &m->squares);
    json_free(&json);
    return r.is_good;
}

int over_read(const char *text, size_t bytes, Over *m, char fault[MESSAGE_FAULT_BYTES]) {
    Json    json;
    Reading r = reading_begin("an OVER", text, bytes, &json, fault);
    m->code = (int)read_number(&r, json.root, "exit", 0, 255);
    json_free(&json);
    return r.is_good;
}
