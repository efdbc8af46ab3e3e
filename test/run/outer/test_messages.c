/* test_messages.c - messages between islands (training jobs) and their server: each written and read back, each number
 * at its bounds, and texts that are cut, changed or are messages of another kind. */
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
    PartIn  part_in;
    Count   count;
    Drop    drop;
    Step    step;
    Stepped stepped;
    Over    over;
} Any;

typedef struct {
    MessageKind kind;
    const char *text; /* JSON text of the example, which the writer must make */
} Example;

/* A sum of squares as text: 69 words of 8 hexadecimal digits. */
#define ZEROS_11 "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
#define SQUARES  "0000000f" ZEROS_11 ZEROS_11 ZEROS_11 "12345678" ZEROS_11 ZEROS_11 "00000000" ZEROS_11

static const Example EXAMPLES[] = {
    {MESSAGE_WELCOME, "{\"number\":2,\"round\":17,\"elems\":9007199254740992,\"parts\":3,\"part\":1,\"changes\":true}"},
    {MESSAGE_REFUSE, "{\"exit\":64,\"why\":\"model.n_layer is 4 here and \\\"6\\\" there\"}"},
    {MESSAGE_OPEN, "{\"round\":17,\"step\":850,\"steps\":50,\"first\":9007199254740000,\"samples\":992,\"islands\":3,\"lease\":7}"},
    {MESSAGE_END, "{\"round\":17,\"samples\":400,\"tokens\":51200,\"norm\":0.125,\"loss\":2.4375,\"lease\":7}"},
    {MESSAGE_END, "{\"round\":17,\"samples\":400,\"tokens\":51200,\"norm\":null,\"loss\":null,\"lease\":0}"},
    {MESSAGE_CLOSED, "{\"round\":18,\"islands\":3,\"norm\":1e-30,\"staleness\":0,\"done\":false}"},
    {MESSAGE_CLOSED, "{\"round\":18,\"islands\":0,\"norm\":0.1,\"staleness\":4,\"done\":true}"},
    {MESSAGE_BYE, "{\"samples\":12}"},
    {MESSAGE_PART_IN, "{\"lease\":9,\"squares\":\"" SQUARES "\"}"},
    {MESSAGE_COUNT, "{\"lease\":9,\"weight\":51200}"},
    {MESSAGE_DROP, "{\"lease\":9}"},
    {MESSAGE_STEP, "{\"rule\":4,\"learning_rate\":0.0006,\"momentum\":0.9,\"scale\":0.25,\"beta2\":0.95,\"eps\":1e-08,"
                   "\"weight_decay\":0.1,\"update\":17}"},
    {MESSAGE_STEPPED, "{\"squares\":\"" SQUARES "\"}"},
    {MESSAGE_OVER, "{\"exit\":75}"},
};
enum { COUNT_OF_EXAMPLES = sizeof EXAMPLES / sizeof *EXAMPLES };

static int reads(MessageKind kind, const char *text, size_t bytes) {
    char fault[MESSAGE_FAULT_BYTES] = "";
    Any  m;
    int  is_good = message_read(kind, text, bytes, &m, fault);
    assert_int_equal(is_good, !fault[0]);
    if (!is_good) assert_non_null(strstr(fault, message_name(kind)));
    return is_good;
}

static void messages_come_back_as_they_were(void **state) {
    (void)state;
    End  e;
    char fault[MESSAGE_FAULT_BYTES] = "";
    for (int k = 0; k < COUNT_OF_EXAMPLES; k++) {
        const Example *x = &EXAMPLES[k];
        size_t         bytes;
        Any            m;
        assert_true(message_read(x->kind, x->text, strlen(x->text), &m, fault));
        char *text = message_write(x->kind, &m, &bytes);
        assert_int_equal(bytes, strlen(x->text));
        assert_string_equal(text, x->text);
        free(text);
    }
    assert_true(message_read(MESSAGE_END, EXAMPLES[4].text, strlen(EXAMPLES[4].text), &e, fault));
    assert_true(isnan(e.norm) && isnan(e.loss) && e.tokens == 51200);
}

/* A message that is cut anywhere is refused. A message in which any bit is flipped is refused, or has only numbers
 * within their bounds. */
static void cut_and_changed_messages(void **state) {
    (void)state;
    enum { FEW_KEYS = 1 << MESSAGE_BYE | 1 << MESSAGE_DROP | 1 << MESSAGE_STEPPED | 1 << MESSAGE_OVER };
    for (int k = 0; k < COUNT_OF_EXAMPLES; k++) {
        MessageKind kind = EXAMPLES[k].kind;
        size_t      bytes = strlen(EXAMPLES[k].text);
        char       *text = strdup(EXAMPLES[k].text);
        for (size_t cut = 0; cut < bytes; cut++) assert_false(reads(kind, text, cut));
        for (size_t at = 0; at < bytes; at++)
            for (int bit = 0; bit < 8; bit++) {
                text[at] ^= (char)(1 << bit);
                reads(kind, text, bytes);
                text[at] ^= (char)(1 << bit);
            }
        /* A message of another kind is refused, except by the kinds in FEW_KEYS. They need so few keys that other
         * messages have them too. */
        for (int i = 0; i < COUNT_OF_EXAMPLES; i++) {
            MessageKind other = EXAMPLES[i].kind;
            if (other != kind && !(FEW_KEYS >> other & 1)) assert_false(reads(other, text, bytes));
        }
        free(text);
    }
}

static void numbers_out_of_range_are_refused(void **state) {
    (void)state;
    static const struct { MessageKind kind; const char *text, *key; } BAD[] = {
        {MESSAGE_WELCOME, "{\"number\":-1,\"round\":17,\"elems\":5,\"parts\":3,\"part\":1}", "number is -1"},
        {MESSAGE_WELCOME, "{\"number\":2,\"round\":17,\"elems\":0,\"parts\":3,\"part\":1}", "elems is 0"},
        {MESSAGE_WELCOME, "{\"number\":2,\"round\":1.5,\"elems\":5,\"parts\":3,\"part\":1}", "round is 1.5"},
        {MESSAGE_WELCOME, "{\"number\":2,\"round\":17,\"elems\":5,\"parts\":3,\"part\":3}", "part is 3"},
        {MESSAGE_WELCOME, "{\"number\":2,\"round\":17,\"elems\":5,\"part\":0,\"parts\":0}", "parts is 0"},
        {MESSAGE_WELCOME, "{\"number\":2,\"round\":17,\"elems\":9007199254740993,\"part\":0,\"parts\":1}", "JSON"},
        {MESSAGE_REFUSE, "{\"exit\":0,\"why\":\"no\"}", "exit is 0"},
        {MESSAGE_REFUSE, "{\"exit\":64,\"why\":3}", "why"},
        {MESSAGE_REFUSE, "{\"exit\":64}", "why"},
        {MESSAGE_OPEN, "{\"round\":17,\"step\":850,\"steps\":5,\"first\":7,\"samples\":0,\"islands\":3}", "samples is 0"},
        {MESSAGE_OPEN, "{\"round\":17,\"step\":850,\"steps\":0,\"first\":7,\"samples\":9,\"islands\":3}", "steps is 0"},
        {MESSAGE_OPEN, "{\"round\":17,\"step\":850,\"steps\":5,\"first\":-7,\"samples\":9,\"islands\":3}", "first is -7"},
        {MESSAGE_OPEN, "{\"round\":17,\"step\":850,\"steps\":5,\"first\":9007199254740992,\"samples\":9,\"islands\":3}",
         "samples is 9"},
        {MESSAGE_OPEN, "{\"round\":17,\"step\":850,\"steps\":5,\"first\":7,\"samples\":9,\"islands\":0}", "islands is 0"},
        {MESSAGE_END, "{\"round\":17,\"samples\":400,\"tokens\":-1,\"norm\":0.125,\"loss\":2}", "tokens is -1"},
        {MESSAGE_END, "{\"round\":17,\"samples\":400,\"tokens\":1,\"norm\":-1,\"loss\":2,\"lease\":0}", "norm is -1"},
        {MESSAGE_END, "{\"round\":17,\"samples\":400,\"tokens\":1,\"norm\":1,\"loss\":\"2\"}", "loss is the string"},
        {MESSAGE_CLOSED, "{\"round\":18,\"islands\":3,\"norm\":1,\"staleness\":0,\"done\":1}", "done"},
        {MESSAGE_CLOSED, "{\"round\":18,\"islands\":3,\"norm\":1,\"staleness\":-1,\"done\":true}", "staleness is -1"},
        {MESSAGE_BYE, "{\"samples\":\"12\"}", "samples is the string"},
        {MESSAGE_BYE, "[12]", "object"},
        {MESSAGE_OPEN, "{\"round\":17,\"step\":850,\"steps\":5,\"first\":7,\"samples\":9,\"islands\":3,\"lease\":-1}",
         "lease is -1"},
        {MESSAGE_PART_IN, "{\"lease\":9,\"squares\":\"00\"}", "squares is"},
        {MESSAGE_PART_IN, "{\"lease\":-9,\"squares\":\"" SQUARES "\"}", "lease is -9"},
        {MESSAGE_COUNT, "{\"lease\":9,\"weight\":0}", "weight is 0"},
        {MESSAGE_COUNT, "{\"lease\":9,\"weight\":null}", "weight is nan"},
        {MESSAGE_DROP, "{\"lease\":1.5}", "lease is 1.5"},
        {MESSAGE_STEP, "{\"rule\":5,\"update\":17}", "rule is 5"},
        {MESSAGE_STEPPED, "{\"squares\":\"" SQUARES "0\"}", "squares is"},
        {MESSAGE_OVER, "{\"exit\":256}", "exit is 256"},
    };
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        char fault[MESSAGE_FAULT_BYTES] = "";
        Any  m;
        assert_false(message_read(BAD[i].kind, BAD[i].text, strlen(BAD[i].text), &m, fault));
        if (!strstr(fault, BAD[i].key)) fail_msg("%s: %s", BAD[i].text, fault);
    }
}

static void a_long_reason_is_cut(void **state) {
    (void)state;
    Refuse m = {.code = 64}, back;
    char   text[4096], fault[MESSAGE_FAULT_BYTES];
    size_t bytes;
    memset(m.why, 1, sizeof m.why - 1); /* each of these characters takes six bytes as JSON */
    char *odd = message_write(MESSAGE_REFUSE, &m, &bytes);
    assert_true(message_read(MESSAGE_REFUSE, odd, bytes, &back, fault));
    assert_string_equal(back.why, m.why);
    free(odd);
    /* This text is longer than the reader's buffer of 1024 bytes. The reader keeps only whole characters: 511 of two
     * bytes each. */
    bytes = (size_t)snprintf(text, sizeof text, "{\"exit\":64,\"why\":\"");
    for (int i = 0; i < 600; i++) bytes += (size_t)snprintf(text + bytes, sizeof text - bytes, "\xc3\xa4");
    bytes += (size_t)snprintf(text + bytes, sizeof text - bytes, "\"}");
    assert_true(message_read(MESSAGE_REFUSE, text, bytes, &back, fault));
    assert_int_equal(strlen(back.why), 1022);
}

/* --- HELLO -------------------------------------------------------------------------------------------------------- */

static char *a_hello(size_t *bytes) {
    HelloData data[] = {{"train_000.bin", 123456789012, "0123456789abcdef"}, {"a \"b\"\n\xc3\xa4.bin", 0, "f"}};
    cJSON    *config = cJSON_Parse("{\"run\":{\"steps\":100},\"optimizer\":{\"beta2\":0.95}}");
    Hello     m = {.protocol = CHANNEL_PROTOCOL, .island = "00ff00ff00ff00ff", .rank = 1, .ranks = 2, .config = config,
                   .data = data, .data_files = 2, .elems = 124439808, .samples = 777};
    char     *text = message_write(MESSAGE_HELLO, &m, bytes);
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
    assert_true(message_read(MESSAGE_HELLO, text, bytes, &m, fault));
    assert_true(m.protocol == CHANNEL_PROTOCOL && m.rank == 1 && m.ranks == 2 && m.elems == 124439808 && m.samples == 777);
    assert_string_equal(m.island, "00ff00ff00ff00ff");
    assert_true(json_member(json_member(m.config, "optimizer"), "beta2")->valuedouble == 0.95);
    assert_int_equal(m.data_files, 2);
    assert_int_equal(m.data[0].tokens, 123456789012);
    assert_string_equal(m.data[0].name, "train_000.bin");
    assert_string_equal(m.data[0].fingerprint, "0123456789abcdef");
    assert_string_equal(m.data[1].name, "a \"b\"\n\xc3\xa4.bin");
    message_free(MESSAGE_HELLO, &m);
    for (size_t cut = 0; cut < bytes; cut++) assert_false(message_read(MESSAGE_HELLO, text, cut, &m, fault));
    free(text);
}

/* Refuses a HELLO message in which one value has been replaced. */
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
        assert_false(message_read(MESSAGE_HELLO, changed, strlen(changed), &m, fault));
        if (!strstr(fault, BAD[i][2])) fail_msg("%s: %s", BAD[i][1], fault);
        assert_null(m.data);
    }
    free(text);
}

static void a_hello_over_the_limit_is_not_written(void **state) {
    (void)state;
    enum { FILES = 20000 };
    static HelloData data[FILES];
    const char      *name = "a name of a file of tokens, long enough that 20000 of them take over a MiB";
    cJSON           *config = cJSON_CreateObject();
    Hello            m = {.protocol = CHANNEL_PROTOCOL, .island = "00ff00ff00ff00ff", .ranks = 1, .config = config, .data = data,
                          .data_files = FILES, .elems = 1};
    size_t           bytes;
    for (int i = 0; i < FILES; i++) data[i] = (HelloData){name, 1, "f"};
    assert_null(message_write(MESSAGE_HELLO, &m, &bytes));
    assert_true(bytes > MESSAGE_JSON_LIMIT);
    cJSON_Delete(config);
}

/* --- between servers ---------------------------------------------------------------------------------------------- */

/* Each server computes the sum of squares over its part of a delta (change of the weights) and sends it as text. The
 * text must be read back with equal bits. The sum of all parts must not depend on their number. */
static void squares_keep_their_bits(void **state) {
    (void)state;
    char   fault[MESSAGE_FAULT_BYTES], *text;
    Exact  whole = {{0}}, sum = {{0}};
    PartIn back;
    size_t bytes;
    for (int k = 0; k < 5; k++) {
        PartIn m = {.lease = k};
        for (int i = 0; i < 1000; i++) {
            double value = ldexp(1.0 + i * 0.001, 40 - (i * 7 + k) % 90);
            exact_add(&m.squares, value), exact_add(&whole, value);
        }
        text = message_write(MESSAGE_PART_IN, &m, &bytes);
        assert_true(message_read(MESSAGE_PART_IN, text, bytes, &back, fault));
        assert_true(exact_value(&back.squares) == exact_value(&m.squares));
        exact_merge(&sum, &back.squares);
        free(text);
    }
    assert_true(exact_value(&sum) == exact_value(&whole));
    static const double ODD[] = {NAN, INFINITY};
    for (int i = 0; i < 2; i++) {
        Stepped odd = {{{0}}}, again;
        exact_add(&odd.squares, 1.0), exact_add(&odd.squares, ODD[i]);
        text = message_write(MESSAGE_STEPPED, &odd, &bytes);
        assert_true(message_read(MESSAGE_STEPPED, text, bytes, &again, fault));
        assert_false(isfinite(exact_value(&again.squares)));
        free(text);
    }
}

static void a_follow_comes_back(void **state) {
    (void)state;
    char   fault[MESSAGE_FAULT_BYTES];
    cJSON *config = cJSON_Parse("{\"run\":{\"steps\":100}}");
    size_t bytes;
    Follow m = {.protocol = CHANNEL_PROTOCOL, .part = 2, .parts = 3, .elems = 777, .config = config}, back;
    char  *text = message_write(MESSAGE_FOLLOW, &m, &bytes);
    assert_non_null(text);
    assert_true(message_read(MESSAGE_FOLLOW, text, bytes, &back, fault));
    assert_true(back.part == 2 && back.parts == 3 && back.elems == 777 && cJSON_Compare(back.config, config, 1));
    message_free(MESSAGE_FOLLOW, &back);
    for (size_t cut = 0; cut < bytes; cut++) assert_false(message_read(MESSAGE_FOLLOW, text, cut, &back, fault));
    free(text);
    m.part = 3;
    text = message_write(MESSAGE_FOLLOW, &m, &bytes);
    assert_false(message_read(MESSAGE_FOLLOW, text, bytes, &back, fault));
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
        [MESSAGE_HELLO] = I,      [MESSAGE_GET] = I,    [MESSAGE_DELTA] = I,   [MESSAGE_END] = I,
        [MESSAGE_BYE] = I,        [MESSAGE_X] = S,      [MESSAGE_WELCOME] = S, [MESSAGE_OPEN] = S,
        [MESSAGE_CLOSED] = S,     [MESSAGE_FOLLOW] = F, [MESSAGE_PART_IN] = F, [MESSAGE_STEPPED] = F,
        [MESSAGE_COUNT] = L,      [MESSAGE_DROP] = L,   [MESSAGE_STEP] = L,    [MESSAGE_COLLECT] = L,
        [MESSAGE_OVER] = L,       [MESSAGE_STATE] = F | L, [MESSAGE_REFUSE] = S | L, [MESSAGE_GET_CHANGE] = I,
        [MESSAGE_CHANGE] = S,     [MESSAGE_PING] = S | I | F | L};
    for (int kind = 0; kind < 256; kind++) {
        FrameHeader h = {.kind = (uint8_t)kind, .type = FRAME_BYTES, .round = 4};
        int         asks = message_answer(kind) != 0;
        int         is_values = kind == MESSAGE_X || kind == MESSAGE_DELTA || kind == MESSAGE_STATE || kind == MESSAGE_CHANGE;
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
        /* the length of frames with values is not checked here, but in comm/frame.h */
        assert_int_equal(passes(bad, from), is_values);
    }
    FrameHeader compressed = {.kind = MESSAGE_DELTA, .type = FRAME_INT8, .elems = 10, .payload_bytes = 14};
    assert_true(passes(compressed, FROM_ISLAND));
    compressed.kind = MESSAGE_X;
    assert_false(passes(compressed, FROM_SERVER));
    compressed.kind = MESSAGE_CHANGE;
    assert_true(passes(compressed, FROM_SERVER));
    /* STATE carries a server's part of the state, always in fp32, so int8 is refused */
    compressed.kind = MESSAGE_STATE;
    assert_false(passes(compressed, FROM_LEADER));
    assert_int_equal(message_answer(MESSAGE_GET), MESSAGE_X);
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
