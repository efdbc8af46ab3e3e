/* test_messages.c - messages between islands and server: each written and read back, each number at its bounds, and
 * texts that are cut, changed or of another kind. */
#include "run/outer/messages.h" /* before cmocka.h, which makes a macro of fail() */
#include "core/error.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* --- the messages that control, as one table: any text into a message, any message into text ---------------------- */

typedef union {
    Welcome welcome;
    Refuse  refuse;
    Open    open;
    End     end;
    Closed  closed;
    Bye     bye;
} Any;

#define EACH(name)                                                             \
    static int name##_in(const char *text, size_t bytes, Any *m, char *fault) { \
        return name##_read(text, bytes, &m->name, fault);                       \
    }                                                                           \
    static size_t name##_out(const Any *m, char *out) { return name##_write(&m->name, out); }
EACH(welcome)
EACH(refuse)
EACH(open)
EACH(end)
EACH(closed)
EACH(bye)

typedef struct {
    const char *name, *text; /* text: as the writer writes it */
    int       (*in)(const char *, size_t, Any *, char *);
    size_t    (*out)(const Any *, char *);
} Kind;

static const Kind KINDS[] = {
    {"WELCOME", "{\"number\":2,\"round\":17,\"elems\":9007199254740992,\"part\":1,\"parts\":3}", welcome_in,
     welcome_out},
    {"REFUSE", "{\"exit\":64,\"why\":\"model.n_layer is 4 here and \\\"6\\\" there\"}", refuse_in, refuse_out},
    {"OPEN", "{\"round\":17,\"step\":850,\"steps\":50,\"first\":9007199254740000,\"samples\":992,\"islands\":3,"
             "\"lease\":7}",
     open_in, open_out},
    {"END", "{\"round\":17,\"samples\":400,\"tokens\":51200,\"norm\":0.125,\"loss\":2.4375,\"lease\":7}", end_in, end_out},
    {"END", "{\"round\":17,\"samples\":400,\"tokens\":51200,\"norm\":null,\"loss\":null,\"lease\":0}", end_in, end_out},
    {"CLOSED", "{\"round\":18,\"islands\":3,\"norm\":1e-30,\"staleness\":0,\"done\":false}", closed_in, closed_out},
    {"CLOSED", "{\"round\":18,\"islands\":0,\"norm\":0.1,\"staleness\":4,\"done\":true}", closed_in, closed_out},
    {"BYE", "{\"samples\":12}", bye_in, bye_out},
};
enum { KINDS_COUNT = sizeof KINDS / sizeof *KINDS };

static int reads(const Kind *kind, const char *text, size_t bytes) {
    char fault[MESSAGE_FAULT_BYTES] = "";
    Any  m;
    int  is_good = kind->in(text, bytes, &m, fault);
    assert_int_equal(is_good, !fault[0]);
    if (!is_good) assert_non_null(strstr(fault, kind->name));
    return is_good;
}

static void messages_come_back_as_they_were(void **state) {
    (void)state;
    for (int k = 0; k < KINDS_COUNT; k++) {
        char fault[MESSAGE_FAULT_BYTES] = "", text[MESSAGE_TEXT];
        Any  m;
        assert_true(KINDS[k].in(KINDS[k].text, strlen(KINDS[k].text), &m, fault));
        assert_int_equal(KINDS[k].out(&m, text), strlen(KINDS[k].text));
        assert_string_equal(text, KINDS[k].text);
    }
    End  e;
    char fault[MESSAGE_FAULT_BYTES];
    assert_true(end_read(KINDS[4].text, strlen(KINDS[4].text), &e, fault));
    assert_true(isnan(e.norm) && isnan(e.loss) && e.tokens == 51200);
}

/* Cut anywhere it is none; with any byte changed it is none, or still within bounds. */
static void cut_and_changed_messages(void **state) {
    (void)state;
    for (int k = 0; k < KINDS_COUNT; k++) {
        size_t bytes = strlen(KINDS[k].text);
        char  *text = strdup(KINDS[k].text);
        for (size_t cut = 0; cut < bytes; cut++) assert_false(reads(&KINDS[k], text, cut));
        for (size_t at = 0; at < bytes; at++)
            for (int bit = 0; bit < 8; bit++) {
                text[at] ^= (char)(1 << bit);
                reads(&KINDS[k], text, bytes);
                text[at] ^= (char)(1 << bit);
            }
        for (int other = 0; other < KINDS_COUNT; other++) /* BYE's one key is in others, too */
            if (KINDS[other].in != KINDS[k].in && KINDS[other].in != bye_in)
                assert_false(reads(&KINDS[other], text, bytes));
        free(text);
    }
}

static void numbers_out_of_range_are_refused(void **state) {
    (void)state;
    static const struct { int kind; const char *text, *key; } BAD[] = {
        {0, "{\"number\":-1,\"round\":17,\"elems\":5,\"part\":1,\"parts\":3}", "number is -1"},
        {0, "{\"number\":2,\"round\":17,\"elems\":0,\"part\":1,\"parts\":3}", "elems is 0"},
        {0, "{\"number\":2,\"round\":1.5,\"elems\":5,\"part\":1,\"parts\":3}", "round is 1.5"},
        {0, "{\"number\":2,\"round\":17,\"elems\":5,\"part\":3,\"parts\":3}", "part is 3"},
        {0, "{\"number\":2,\"round\":17,\"elems\":5,\"part\":0,\"parts\":0}", "parts is 0"},
        {0, "{\"number\":2,\"round\":17,\"elems\":9007199254740993,\"part\":0,\"parts\":1}", "JSON"},
        {1, "{\"exit\":0,\"why\":\"no\"}", "exit is 0"},
        {1, "{\"exit\":64,\"why\":3}", "why"},
        {1, "{\"exit\":64}", "why"},
        {2, "{\"round\":17,\"step\":850,\"steps\":5,\"first\":7,\"samples\":0,\"islands\":3}", "samples is 0"},
        {2, "{\"round\":17,\"step\":850,\"steps\":0,\"first\":7,\"samples\":9,\"islands\":3}", "steps is 0"},
        {2, "{\"round\":17,\"step\":850,\"steps\":5,\"first\":-7,\"samples\":9,\"islands\":3}", "first is -7"},
        {2, "{\"round\":17,\"step\":850,\"steps\":5,\"first\":9007199254740992,\"samples\":9,\"islands\":3}",
         "samples is 9"},
        {2, "{\"round\":17,\"step\":850,\"steps\":5,\"first\":7,\"samples\":9,\"islands\":0}", "islands is 0"},
        {3, "{\"round\":17,\"samples\":400,\"tokens\":-1,\"norm\":0.125,\"loss\":2}", "tokens is -1"},
        {3, "{\"round\":17,\"samples\":400,\"tokens\":1,\"norm\":-1,\"loss\":2}", "norm is -1"},
        {3, "{\"round\":17,\"samples\":400,\"tokens\":1,\"norm\":1,\"loss\":\"2\"}", "loss is the string"},
        {5, "{\"round\":18,\"islands\":3,\"norm\":1,\"staleness\":0,\"done\":1}", "done"},
        {5, "{\"round\":18,\"islands\":3,\"norm\":1,\"staleness\":-1,\"done\":true}", "staleness is -1"},
        {7, "{\"samples\":\"12\"}", "samples is the string"},
        {7, "[12]", "object"},
    };
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        char fault[MESSAGE_FAULT_BYTES] = "";
        Any  m;
        assert_false(KINDS[BAD[i].kind].in(BAD[i].text, strlen(BAD[i].text), &m, fault));
        if (!strstr(fault, BAD[i].key)) fail_msg("%s: %s", BAD[i].text, fault);
    }
}

static void a_long_reason_is_cut(void **state) {
    (void)state;
    Refuse m = {.code = 64}, back;
    char   text[MESSAGE_TEXT], fault[MESSAGE_FAULT_BYTES];
    memset(m.why, 1, sizeof m.why - 1); /* six bytes each, as JSON */
    size_t bytes = refuse_write(&m, text);
    assert_true(refuse_read(text, bytes, &back, fault));
    assert_true(strlen(back.why) > 600 && memcmp(back.why, m.why, 600) == 0);
    /* A reader with less room than the text takes whole characters: 511 of two bytes, of 1023. */
    bytes = (size_t)snprintf(text, sizeof text, "{\"exit\":64,\"why\":\"");
    for (int i = 0; i < 600; i++) bytes += (size_t)snprintf(text + bytes, sizeof text - bytes, "\xc3\xa4");
    bytes += (size_t)snprintf(text + bytes, sizeof text - bytes, "\"}");
    assert_true(refuse_read(text, bytes, &back, fault));
    assert_int_equal(strlen(back.why), 1022);
}

/* --- HELLO -------------------------------------------------------------------------------------------------------- */

static char *a_hello(size_t *bytes) {
    char      odd[] = "a \"b\"\n\xc3\xa4.bin", plain[] = "train_000.bin";
    HelloData data[] = {{plain, 123456789012, "0123456789abcdef"}, {odd, 0, "f"}};
    cJSON    *config = cJSON_Parse("{\"run\":{\"steps\":100},\"optimizer\":{\"beta2\":0.95}}");
    Hello     m = {.protocol = CHANNEL_PROTOCOL, .island = "00ff00ff00ff00ff", .rank = 1, .ranks = 2, .config = config,
                   .data = data, .data_files = 2, .elems = 124439808, .samples = 777};
    char     *text = hello_write(&m, bytes);
    cJSON_Delete(config);
    assert_non_null(text);
    return text;
}

static void a_hello_comes_back(void **state) {
    (void)state;
    size_t bytes;
    char  *text = a_hello(&bytes), fault[MESSAGE_FAULT_BYTES];
    Hello  m;
    assert_int_equal(bytes, strlen(text));
    assert_true(hello_read(text, bytes, &m, fault));
    assert_true(m.protocol == 1 && m.rank == 1 && m.ranks == 2 && m.elems == 124439808 && m.samples == 777);
    assert_string_equal(m.island, "00ff00ff00ff00ff");
    assert_true(json_member(json_member(m.config, "optimizer"), "beta2")->valuedouble == 0.95);
    assert_int_equal(m.data_files, 2);
    assert_int_equal(m.data[0].tokens, 123456789012);
    assert_string_equal(m.data[0].name, "train_000.bin");
    assert_string_equal(m.data[0].fingerprint, "0123456789abcdef");
    assert_string_equal(m.data[1].name, "a \"b\"\n\xc3\xa4.bin");
    hello_free(&m);
    for (size_t cut = 0; cut < bytes; cut++) assert_false(hello_read(text, cut, &m, fault));
    free(text);
}

/* The text with one part replaced. */
static void bad_hellos_are_refused(void **state) {
    (void)state;
    static const char *const BAD[][3] = {
        {"\"protocol\":1", "\"protocol\":2", "protocol"},
        {"\"island\":\"00ff00ff00ff00ff\"", "\"island\":\"00FF00ff00ff00ff\"", "island"},
        {"\"island\":\"00ff00ff00ff00ff\"", "\"island\":\"00ff00ff00ff00\"", "island"},
        {"\"rank\":1", "\"rank\":2", "rank"},
        {"\"ranks\":2", "\"ranks\":0", "ranks"},
        {"\"elems\":124439808", "\"elems\":-5", "elems"},
        {"\"config\":{", "\"config\":0,\"x\":{", "config"},
        {"\"data\":[", "\"data\":7,\"x\":[", "data"},
        {"\"tokens\":0", "\"tokens\":-1", "tokens"},
        {"\"name\":\"train_000.bin\"", "\"name\":7", "name"},
        {"\"fingerprint\":\"f\"", "\"fingerprint\":\"\"", "fingerprint"},
        {"\"fingerprint\":\"f\"", "\"finger\":\"f\"", "fingerprint"},
        {"\"rank\":1", "\"rank\":1,\"rank\":1", "duplicate"},
    };
    size_t bytes;
    char  *text = a_hello(&bytes);
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        char        fault[MESSAGE_FAULT_BYTES], changed[2048];
        const char *at = strstr(text, BAD[i][0]);
        Hello       m;
        assert_non_null(at);
        snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, BAD[i][1], at + strlen(BAD[i][0]));
        assert_false(hello_read(changed, strlen(changed), &m, fault));
        if (!strstr(fault, BAD[i][2])) fail_msg("%s: %s", BAD[i][1], fault);
        assert_null(m.data);
    }
    free(text);
}

static void a_hello_over_the_limit_is_not_written(void **state) {
    (void)state;
    enum { FILES = 20000 };
    static HelloData data[FILES];
    char             name[] = "a name of a file of tokens, long enough that 20000 of them take over a MiB";
    cJSON           *config = cJSON_CreateObject();
    Hello            m = {.protocol = 1, .island = "00ff00ff00ff00ff", .ranks = 1, .config = config, .data = data,
                          .data_files = FILES, .elems = 1};
    size_t           bytes;
    for (int i = 0; i < FILES; i++) data[i] = (HelloData){name, 1, "f"};
    assert_null(hello_write(&m, &bytes));
    assert_true(bytes > MESSAGE_JSON_LIMIT);
    cJSON_Delete(config);
}

/* --- headers of messages ------------------------------------------------------------------------------------------ */

static int passes(FrameHeader h, MessageFrom from) {
    char fault[MESSAGE_FAULT_BYTES] = "";
    int  is_good = message_check(&h, from, fault);
    assert_int_equal(is_good, !fault[0]);
    return is_good;
}

static void headers_are_as_their_kind_wants(void **state) {
    (void)state;
    static const int islands[MESSAGE_KINDS] = {[MESSAGE_HELLO] = 1, [MESSAGE_GET] = 1,  [MESSAGE_DELTA] = 1,
                                               [MESSAGE_END] = 1,   [MESSAGE_PING] = 1, [MESSAGE_BYE] = 1};
    for (int kind = 0; kind < 256; kind++) {
        FrameHeader h = {.kind = (uint8_t)kind, .type = FRAME_BYTES, .round = 4};
        int         is_values = kind == MESSAGE_X || kind == MESSAGE_DELTA;
        if (is_values) h.type = FRAME_F32, h.elems = 10, h.payload_bytes = 40;
        else if (kind == MESSAGE_GET) h.offset = 5, h.elems = 10;
        else if (kind != MESSAGE_PING) h.payload_bytes = 2;
        int is_kind = kind > 0 && kind < MESSAGE_KINDS;
        assert_int_equal(passes(h, FROM_ISLAND), is_kind && islands[kind]);
        assert_int_equal(passes(h, FROM_SERVER), is_kind && (!islands[kind] || kind == MESSAGE_PING));
        if (!is_kind) continue;
        MessageFrom from = islands[kind] ? FROM_ISLAND : FROM_SERVER;
        FrameHeader bad = h;
        bad.type = is_values ? FRAME_BYTES : FRAME_F32;
        assert_false(passes(bad, from));
        bad = h, bad.elems = is_values || kind == MESSAGE_GET ? 0 : 1;
        assert_false(passes(bad, from));
        bad = h, bad.elems = MESSAGE_ELEMS + 1;
        assert_int_equal(passes(bad, from), kind == MESSAGE_GET);
        bad = h, bad.payload_bytes = MESSAGE_JSON_LIMIT + 1;
        assert_int_equal(passes(bad, from), is_values); /* theirs is the frame's to check */
    }
    FrameHeader compressed = {.kind = MESSAGE_DELTA, .type = FRAME_INT8, .elems = 10, .payload_bytes = 14};
    assert_true(passes(compressed, FROM_ISLAND));
    compressed.kind = MESSAGE_X;
    assert_false(passes(compressed, FROM_SERVER));
    assert_string_equal(message_name(MESSAGE_DELTA), "DELTA");
    assert_string_equal(message_name(0), "?");
    assert_string_equal(message_name(MESSAGE_KINDS), "?");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_come_back_as_they_were),
        cmocka_unit_test(cut_and_changed_messages),
        cmocka_unit_test(numbers_out_of_range_are_refused),
        cmocka_unit_test(a_long_reason_is_cut),
        cmocka_unit_test(a_hello_comes_back),
        cmocka_unit_test(bad_hellos_are_refused),
        cmocka_unit_test(a_hello_over_the_limit_is_not_written),
        cmocka_unit_test(headers_are_as_their_kind_wants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
