/* test_messages.c - messages between islands and server: each written and read back, each number at its bounds, and
 * texts that are cut, changed or of another kind. */
#include "run/outer/messages.h" /* before cmocka.h, which defines fail() as a macro */
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
    Given   given;
    Moments moments;
    Turn    turn;
    Turned  turned;
    PartIn  part_in;
    Count   count;
    Drop    drop;
    Step    step;
    Stepped stepped;
    Over    over;
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
EACH(given)
EACH(moments)
EACH(turn)
EACH(turned)
EACH(part_in)
EACH(count)
EACH(drop)
EACH(step)
EACH(stepped)
EACH(over)

typedef struct {
    const char *name, *text; /* text: the bytes that the writer makes */
    int       (*in)(const char *, size_t, Any *, char *);
    size_t    (*out)(const Any *, char *);
} Kind;

/* A sum of squares: 69 words of 8 digits. */
#define ZEROS_11 "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
#define SQUARES  "0000000f" ZEROS_11 ZEROS_11 ZEROS_11 "12345678" ZEROS_11 ZEROS_11 "00000000" ZEROS_11

static const Kind KINDS[] = {
    {"WELCOME", "{\"number\":2,\"round\":17,\"elems\":9007199254740992,\"part\":1,\"parts\":3,\"changes\":true}",
     welcome_in, welcome_out},
    {"REFUSE", "{\"exit\":64,\"why\":\"model.n_layer is 4 here and \\\"6\\\" there\"}", refuse_in, refuse_out},
    {"OPEN", "{\"round\":17,\"step\":850,\"steps\":50,\"first\":9007199254740000,\"samples\":992,\"islands\":3,"
             "\"lease\":7,\"moments\":\"take\"}",
     open_in, open_out},
    {"END", "{\"round\":17,\"samples\":400,\"tokens\":51200,\"norm\":0.125,\"loss\":2.4375,\"lease\":7}", end_in, end_out},
    {"END", "{\"round\":17,\"samples\":400,\"tokens\":51200,\"norm\":null,\"loss\":null,\"lease\":0}", end_in, end_out},
    {"CLOSED", "{\"round\":18,\"islands\":3,\"norm\":1e-30,\"staleness\":0,\"done\":false}", closed_in, closed_out},
    {"CLOSED", "{\"round\":18,\"islands\":0,\"norm\":0.1,\"staleness\":4,\"done\":true}", closed_in, closed_out},
    {"BYE", "{\"samples\":12}", bye_in, bye_out},
    {"GIVEN", "{\"updates\":850}", given_in, given_out},
    {"MOMENTS", "{\"updates\":850,\"later\":false}", moments_in, moments_out},
    {"MOMENTS", "{\"updates\":0,\"later\":true}", moments_in, moments_out},
    {"TURN", "{\"round\":17,\"fragment\":16,\"tokens\":51200}", turn_in, turn_out},
    {"TURNED", "{\"round\":17,\"fragment\":15,\"islands\":3}", turned_in, turned_out},
    {"PART_IN", "{\"lease\":9,\"squares\":\"" SQUARES "\"}", part_in_in, part_in_out},
    {"COUNT", "{\"lease\":9,\"weight\":51200}", count_in, count_out},
    {"DROP", "{\"lease\":9}", drop_in, drop_out},
    {"STEP",
     "{\"rule\":4,\"learning_rate\":0.0006,\"momentum\":0.9,\"scale\":0.25,\"beta2\":0.95,\"eps\":1e-08,"
     "\"weight_decay\":0.1,\"update\":17}",
     step_in, step_out},
    {"STEPPED", "{\"squares\":\"" SQUARES "\"}", stepped_in, stepped_out},
    {"OVER", "{\"exit\":75}", over_in, over_out},
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

/* A message that is cut anywhere is refused. One with any byte changed is refused, or still within bounds. */
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
        for (int other = 0; other < KINDS_COUNT; other++) /* other kinds have these few keys, too */
            if (KINDS[other].in != KINDS[k].in && KINDS[other].in != bye_in && KINDS[other].in != given_in &&
                KINDS[other].in != drop_in && KINDS[other].in != stepped_in && KINDS[other].in != over_in)
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
        {3, "{\"round\":17,\"samples\":400,\"tokens\":1,\"norm\":-1,\"loss\":2,\"lease\":0}", "norm is -1"},
        {3, "{\"round\":17,\"samples\":400,\"tokens\":1,\"norm\":1,\"loss\":\"2\"}", "loss is the string"},
        {5, "{\"round\":18,\"islands\":3,\"norm\":1,\"staleness\":0,\"done\":1}", "done"},
        {5, "{\"round\":18,\"islands\":3,\"norm\":1,\"staleness\":-1,\"done\":true}", "staleness is -1"},
        {7, "{\"samples\":\"12\"}", "samples is the string"},
        {7, "[12]", "object"},
        {2, "{\"round\":17,\"step\":850,\"steps\":5,\"first\":7,\"samples\":9,\"islands\":1,\"lease\":7,\"moments\":\"lend\"}",
         "moments is the string \"lend\""},
        {2, "{\"round\":17,\"step\":850,\"steps\":5,\"first\":7,\"samples\":9,\"islands\":1,\"lease\":7,\"moments\":1}", "moments is 1"},
        {8, "{\"updates\":0}", "updates is 0"},
        {9, "{\"updates\":-1,\"later\":false}", "updates is -1"},
        {9, "{\"updates\":1,\"later\":1}", "later"},
        {9, "{\"updates\":1,\"later\":true}", "come later"},
        {11, "{\"round\":17,\"fragment\":17,\"tokens\":51200}", "fragment is 17"},
        {11, "{\"round\":17,\"fragment\":0,\"tokens\":0}", "tokens is 0"},
        {12, "{\"round\":17,\"fragment\":16,\"islands\":3}", "fragment is 16"},
        {12, "{\"round\":-1,\"fragment\":1,\"islands\":3}", "round is -1"},
        {12, "{\"round\":1,\"fragment\":1,\"islands\":0}", "islands is 0"},
        {2, "{\"round\":17,\"step\":850,\"steps\":5,\"first\":7,\"samples\":9,\"islands\":3,\"lease\":-1,\"moments\":\"keep\"}",
         "lease is -1"},
        {13, "{\"lease\":9,\"squares\":\"00\"}", "squares is"},
        {13, "{\"lease\":-9,\"squares\":\"" SQUARES "\"}", "lease is -9"},
        {14, "{\"lease\":9,\"weight\":0}", "weight is 0"},
        {14, "{\"lease\":9,\"weight\":null}", "weight is nan"},
        {15, "{\"lease\":1.5}", "lease is 1.5"},
        {16, "{\"rule\":5,\"update\":17}", "rule is 5"},
        {17, "{\"squares\":\"" SQUARES "0\"}", "squares is"},
        {18, "{\"exit\":256}", "exit is 256"},
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
    memset(m.why, 1, sizeof m.why - 1); /* each takes six bytes as JSON */
    size_t bytes = refuse_write(&m, text);
    assert_true(refuse_read(text, bytes, &back, fault));
    assert_true(strlen(back.why) > 600 && memcmp(back.why, m.why, 600) == 0);
    /* A reader with a smaller buffer than the text keeps whole characters: 511 of two bytes, of 1023. */
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
                   .data = data, .data_files = 2, .elems = 124439808, .samples = 777, .updates = 850, .wants_moments = 1};
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
    assert_true(m.protocol == CHANNEL_PROTOCOL && m.rank == 1 && m.ranks == 2 && m.elems == 124439808 && m.samples == 777);
    assert_true(m.updates == 850 && m.wants_moments);
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

/* Returns the text with one part replaced. */
static void bad_hellos_are_refused(void **state) {
    (void)state;
    static const char *const BAD[][3] = {
        {"\"protocol\":3", "\"protocol\":2", "protocol"},
        {"\"protocol\":3", "\"protocol\":4", "protocol"},
        {"\"island\":\"00ff00ff00ff00ff\"", "\"island\":\"00FF00ff00ff00ff\"", "island"},
        {"\"island\":\"00ff00ff00ff00ff\"", "\"island\":\"00ff00ff00ff00\"", "island"},
        {"\"rank\":1", "\"rank\":2", "rank"},
        {"\"ranks\":2", "\"ranks\":0", "ranks"},
        {"\"elems\":124439808", "\"elems\":-5", "elems"},
        {"\"updates\":850", "\"updates\":-850", "updates"},
        {"\"wants\":true", "\"wants\":850", "wants"},
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
    Hello            m = {.protocol = CHANNEL_PROTOCOL, .island = "00ff00ff00ff00ff", .ranks = 1, .config = config, .data = data,
                          .data_files = FILES, .elems = 1};
    size_t           bytes;
    for (int i = 0; i < FILES; i++) data[i] = (HelloData){name, 1, "f"};
    assert_null(hello_write(&m, &bytes));
    assert_true(bytes > MESSAGE_JSON_LIMIT);
    cJSON_Delete(config);
}

/* --- between servers ---------------------------------------------------------------------------------------------- */

/* A sum of parts is sent and rounded with equal bits. A NaN and an infinity stay as they are. */
static void squares_keep_their_bits(void **state) {
    (void)state;
    char   text[MESSAGE_TEXT], fault[MESSAGE_FAULT_BYTES];
    Exact  whole = {{0}}, sum = {{0}};
    PartIn back;
    for (int k = 0; k < 5; k++) {
        PartIn m = {.lease = k};
        for (int i = 0; i < 1000; i++) {
            double value = ldexp(1.0 + i * 0.001, 40 - (i * 7 + k) % 90);
            exact_add(&m.squares, value), exact_add(&whole, value);
        }
        assert_true(part_in_read(text, part_in_write(&m, text), &back, fault));
        assert_true(exact_value(&back.squares) == exact_value(&m.squares));
        exact_merge(&sum, &back.squares);
    }
    assert_true(exact_value(&sum) == exact_value(&whole));
    static const double ODD[] = {NAN, INFINITY};
    for (int i = 0; i < 2; i++) {
        Stepped odd = {{{0}}}, again;
        exact_add(&odd.squares, 1.0), exact_add(&odd.squares, ODD[i]);
        assert_true(stepped_read(text, stepped_write(&odd, text), &again, fault));
        assert_false(isfinite(exact_value(&again.squares)));
    }
}

static void a_follow_comes_back(void **state) {
    (void)state;
    char   fault[MESSAGE_FAULT_BYTES];
    cJSON *config = cJSON_Parse("{\"run\":{\"steps\":100}}");
    size_t bytes;
    Follow m = {.protocol = CHANNEL_PROTOCOL, .part = 2, .parts = 3, .elems = 777, .config = config}, back;
    char  *text = follow_write(&m, &bytes);
    assert_non_null(text);
    assert_true(follow_read(text, bytes, &back, fault));
    assert_true(back.part == 2 && back.parts == 3 && back.elems == 777 && cJSON_Compare(back.config, config, 1));
    follow_free(&back);
    for (size_t cut = 0; cut < bytes; cut++) assert_false(follow_read(text, cut, &back, fault));
    free(text);
    m.part = 3;
    text = follow_write(&m, &bytes);
    assert_false(follow_read(text, bytes, &back, fault));
    assert_non_null(strstr(fault, "part is 3"));
    free(text);
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
    enum { S = 1 << FROM_SERVER, I = 1 << FROM_ISLAND, F = 1 << FROM_FOLLOWER, L = 1 << FROM_LEADER };
    static const int senders[MESSAGE_KINDS] = {
        [MESSAGE_HELLO] = I,         [MESSAGE_GET] = I,       [MESSAGE_DELTA] = I,      [MESSAGE_END] = I,
        [MESSAGE_BYE] = I,           [MESSAGE_X] = S,         [MESSAGE_WELCOME] = S,    [MESSAGE_OPEN] = S,
        [MESSAGE_CLOSED] = S,        [MESSAGE_GIVEN] = I,     [MESSAGE_GET_M] = I,      [MESSAGE_GET_V] = I,
        [MESSAGE_M] = S | I,         [MESSAGE_V] = S | I,     [MESSAGE_MOMENTS] = S,    [MESSAGE_FRAGMENT] = I,
        [MESSAGE_TURN] = I,          [MESSAGE_TURNED] = S,    [MESSAGE_FOLLOW] = F,     [MESSAGE_PART_IN] = F,
        [MESSAGE_STEPPED] = F,       [MESSAGE_COUNT] = L,     [MESSAGE_DROP] = L,       [MESSAGE_STEP] = L,
        [MESSAGE_COLLECT] = L,       [MESSAGE_OVER] = L,      [MESSAGE_STATE] = F | L,  [MESSAGE_REFUSE] = S | L,
        [MESSAGE_GET_CHANGE] = I,    [MESSAGE_CHANGE] = S,
        [MESSAGE_PING] = S | I | F | L};
    for (int kind = 0; kind < 256; kind++) {
        FrameHeader h = {.kind = (uint8_t)kind, .type = FRAME_BYTES, .round = 4};
        int         is_moments = kind == MESSAGE_M || kind == MESSAGE_V, asks = message_answer(kind) != 0;
        int         is_values = kind == MESSAGE_X || kind == MESSAGE_DELTA || kind == MESSAGE_FRAGMENT || is_moments ||
                        kind == MESSAGE_STATE || kind == MESSAGE_CHANGE;
        if (is_values) h.type = FRAME_F32, h.elems = 10, h.payload_bytes = 40;
        else if (asks) h.offset = 5, h.elems = 10;
        else if (kind != MESSAGE_PING && kind != MESSAGE_COLLECT) h.payload_bytes = 2;
        int is_kind = kind > 0 && kind < MESSAGE_KINDS;
        for (int from = FROM_SERVER; from <= FROM_LEADER; from++)
            assert_int_equal(passes(h, (MessageFrom)from), is_kind && senders[kind] >> from & 1);
        if (!is_kind) continue;
        MessageFrom from = (MessageFrom)__builtin_ctz((unsigned)senders[kind]);
        FrameHeader bad = h;
        bad.type = is_values ? FRAME_BYTES : FRAME_F32;
        assert_false(passes(bad, from));
        bad = h, bad.elems = is_values || asks ? 0 : 1;
        assert_false(passes(bad, from));
        bad = h, bad.elems = MESSAGE_ELEMS + 1;
        assert_int_equal(passes(bad, from), asks);
        bad = h, bad.payload_bytes = MESSAGE_JSON_LIMIT + 1;
        assert_int_equal(passes(bad, from), is_values); /* the frame's code checks messages with values */
    }
    FrameHeader compressed = {.kind = MESSAGE_DELTA, .type = FRAME_INT8, .elems = 10, .payload_bytes = 14};
    assert_true(passes(compressed, FROM_ISLAND));
    compressed.kind = MESSAGE_X;
    assert_false(passes(compressed, FROM_SERVER));
    compressed.kind = MESSAGE_CHANGE;
    assert_true(passes(compressed, FROM_SERVER));
    compressed.kind = MESSAGE_M; /* moments are fp32 */
    assert_false(passes(compressed, FROM_ISLAND));
    assert_int_equal(message_answer(MESSAGE_GET_V), MESSAGE_V);
    assert_int_equal(message_answer(MESSAGE_GET_CHANGE), MESSAGE_CHANGE);
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
        cmocka_unit_test(squares_keep_their_bits),
        cmocka_unit_test(a_follow_comes_back),
        cmocka_unit_test(headers_are_as_their_kind_wants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
