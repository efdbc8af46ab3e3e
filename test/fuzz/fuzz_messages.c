/* fuzz_messages.c - any bytes as the JSON of each message between islands and server: refused with a sentence, or
 * within bounds and the same again once written and read. The first byte of the input picks the message. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "run/outer/messages.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static char   fault[MESSAGE_FAULT_BYTES], text[MESSAGE_TEXT];
static size_t length;

/* Writes the message that was read, reads it and writes it again. Both texts must be equal. */
#define TRY(Type, name)                                                                  \
    do {                                                                                 \
        Type m, back;                                                                    \
        char first[MESSAGE_TEXT];                                                        \
        if (!name##_read((const char *)data, bytes, &m, fault)) return 0;                \
        length = name##_write(&m, first);                                                \
        if (!name##_read(first, length, &back, fault)) abort();                          \
        if (name##_write(&back, text) != length || memcmp(first, text, length)) abort(); \
        within_##name(&m);                                                               \
        return 1;                                                                        \
    } while (0)

static int is_count(int64_t n) { return n >= 0 && n <= MESSAGE_COUNT_LIMIT; }
static void within_welcome(const Welcome *m) {
    if (m->number < 0 || m->part < 0 || m->part >= m->parts || m->parts > MESSAGE_PARTS || m->elems < 1) abort();
}
static void within_refuse(const Refuse *m) {
    if (m->code < 1 || m->code > 255 || !memchr(m->why, 0, sizeof m->why)) abort();
}
static void within_open(const Open *m) {
    if (!is_count(m->step + m->steps) || !is_count(m->first + m->samples) || m->steps < 1 || m->samples < 1) abort();
    if ((unsigned)m->moments > OPEN_TAKE) abort();
}
static void within_end(const End *m) {
    if (!is_count(m->samples) || !is_count(m->tokens) || m->norm < 0 || isinf(m->loss)) abort();
}
static void within_closed(const Closed *m) {
    if (!is_count(m->round) || !is_count(m->staleness) || m->islands < 0 || m->norm < 0) abort();
}
static void within_bye(const Bye *m) {
    if (!is_count(m->samples)) abort();
}
static void within_given(const Given *m) {
    if (!is_count(m->updates) || m->updates < 1) abort();
}
static void within_moments(const Moments *m) {
    if (!is_count(m->updates) || (m->is_later && m->updates)) abort();
}
static void within_turn(const Turn *m) {
    if (m->fragment < 0 || m->fragment > FRAGMENTS_MOST || m->tokens < 1 || !is_count(m->tokens)) abort();
}
static void within_turned(const Turned *m) {
    if (m->fragment < 0 || m->fragment >= FRAGMENTS_MOST || m->islands < 1 || !is_count(m->round)) abort();
}

static void within_part_in(const PartIn *m) {
    for (int i = 0; i < EXACT_WORDS; i++)
        if (m->squares.word[i] < 0 || m->squares.word[i] > UINT32_MAX) abort();
    if (!is_count(m->lease)) abort();
}
static void within_count(const Count *m) {
    if (!is_count(m->lease) || !(m->weight > 0)) abort();
}
static void within_drop(const Drop *m) {
    if (!is_count(m->lease)) abort();
}
static void within_step(const Step *m) {
    if (m->rule < 0 || m->rule >= STEP_RULES || !is_count(m->update)) abort();
}
static void within_stepped(const Stepped *m) { within_part_in(&(PartIn){0, m->squares}); }
static void within_over(const Over *m) {
    if (m->code < 0 || m->code > 255) abort();
}

static int try_follow(const uint8_t *data, size_t bytes) {
    Follow m, back;
    if (!follow_read((const char *)data, bytes, &m, fault)) return 0;
    if (m.part < 1 || m.part >= m.parts || m.parts > MESSAGE_PARTS || m.elems < 1 || !m.config) abort();
    char *again = follow_write(&m, &length);
    if (again && (!follow_read(again, length, &back, fault) || back.part != m.part)) abort();
    if (again) follow_free(&back);
    free(again);
    follow_free(&m);
    return 1;
}

static int try_hello(const uint8_t *data, size_t bytes) {
    Hello m, back;
    if (!hello_read((const char *)data, bytes, &m, fault)) return 0;
    if (strlen(m.island) != ISLAND_ID_BYTES - 1 || m.rank < 0 || m.rank >= m.ranks || !m.config) abort();
    char *again = hello_write(&m, &length);
    if (again && (!hello_read(again, length, &back, fault) || back.data_files != m.data_files)) abort();
    if (again) hello_free(&back);
    free(again);
    hello_free(&m);
    return 1;
}

static int try(int kind, const uint8_t *data, size_t bytes) {
    switch (kind) {
    case MESSAGE_WELCOME: TRY(Welcome, welcome);
    case MESSAGE_REFUSE:  TRY(Refuse, refuse);
    case MESSAGE_OPEN:    TRY(Open, open);
    case MESSAGE_END:     TRY(End, end);
    case MESSAGE_CLOSED:  TRY(Closed, closed);
    case MESSAGE_BYE:     TRY(Bye, bye);
    case MESSAGE_GIVEN:   TRY(Given, given);
    case MESSAGE_MOMENTS: TRY(Moments, moments);
    case MESSAGE_TURN:    TRY(Turn, turn);
    case MESSAGE_TURNED:  TRY(Turned, turned);
    case MESSAGE_PART_IN: TRY(PartIn, part_in);
    case MESSAGE_COUNT:   TRY(Count, count);
    case MESSAGE_DROP:    TRY(Drop, drop);
    case MESSAGE_STEP:    TRY(Step, step);
    case MESSAGE_STEPPED: TRY(Stepped, stepped);
    case MESSAGE_OVER:    TRY(Over, over);
    case MESSAGE_FOLLOW:  return try_follow(data, bytes);
    default:              return try_hello(data, bytes);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (bytes < 1) return 0;
    fault[0] = 0;
    if (!try(data[0] % MESSAGE_KINDS, data + 1, bytes - 1) && (!fault[0] || !memchr(fault, 0, sizeof fault))) abort();
    return 0;
}
