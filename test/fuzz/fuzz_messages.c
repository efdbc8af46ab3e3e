/* fuzz_messages.c - any bytes as the JSON of each message between islands and server. It is refused with a message, or
 * it is within bounds and stays the same when written and read again. The first byte of the input chooses the kind of
 * message. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "run/outer/messages.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static char fault[MESSAGE_FAULT_BYTES];

static int is_count(int64_t n) { return n >= 0 && n <= MESSAGE_COUNT_LIMIT; }
static void within_welcome(const Welcome *m) {
    if (m->number < 0 || m->part < 0 || m->part >= m->parts || m->parts > MESSAGE_PARTS || m->elems < 1) abort();
}
static void within_refuse(const Refuse *m) {
    if (m->code < 1 || m->code > 255 || !memchr(m->why, 0, sizeof m->why)) abort();
}
static void within_open(const Open *m) {
    if (!is_count(m->step + m->steps) || !is_count(m->first + m->samples) || m->steps < 1 || m->samples < 1) abort();
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

static void within_follow(const Follow *m) {
    if (m->part < 1 || m->part >= m->parts || m->parts > MESSAGE_PARTS || m->elems < 1 || !m->config) abort();
}
static void within_hello(const Hello *m) {
    if (strlen(m->island) != ISLAND_ID_BYTES - 1 || m->rank < 0 || m->rank >= m->ranks || !m->config) abort();
    for (int i = 0; i < m->data_files; i++)
        if (!m->data[i].name || !is_count(m->data[i].tokens)) abort();
}

/* Reads the message, writes it, reads that and writes it again. Both texts must be equal. A HELLO or FOLLOW may grow over
 * the limit when it is written. */
#define TRY(KIND, Type, name)                                                                 \
    case KIND: {                                                                              \
        Type   m, back;                                                                       \
        size_t length, again;                                                                 \
        if (!message_read(KIND, (const char *)data, bytes, &m, fault)) return 0;              \
        within_##name(&m);                                                                    \
        char *first = message_write(KIND, &m, &length), *second = NULL;                       \
        if (first && !message_read(KIND, first, length, &back, fault)) abort();               \
        if (first) second = message_write(KIND, &back, &again);                               \
        if (first && (!second || again != length || memcmp(first, second, length))) abort();  \
        if (first) message_free(KIND, &back);                                                 \
        message_free(KIND, &m);                                                               \
        free(first), free(second);                                                            \
        return 1;                                                                             \
    }

static int try(int kind, const uint8_t *data, size_t bytes) {
    switch (kind) {
        TRY(MESSAGE_WELCOME, Welcome, welcome)
        TRY(MESSAGE_REFUSE, Refuse, refuse)
        TRY(MESSAGE_OPEN, Open, open)
        TRY(MESSAGE_END, End, end)
        TRY(MESSAGE_CLOSED, Closed, closed)
        TRY(MESSAGE_BYE, Bye, bye)
        TRY(MESSAGE_PART_IN, PartIn, part_in)
        TRY(MESSAGE_COUNT, Count, count)
        TRY(MESSAGE_DROP, Drop, drop)
        TRY(MESSAGE_STEP, Step, step)
        TRY(MESSAGE_STEPPED, Stepped, stepped)
        TRY(MESSAGE_OVER, Over, over)
        TRY(MESSAGE_FOLLOW, Follow, follow)
        default:
        TRY(MESSAGE_HELLO, Hello, hello)
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (bytes < 1) return 0;
    fault[0] = 0;
    if (!try(data[0] % MESSAGE_KINDS, data + 1, bytes - 1) && (!fault[0] || !memchr(fault, 0, sizeof fault))) abort();
    return 0;
}
