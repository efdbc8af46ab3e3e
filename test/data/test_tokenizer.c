/* Bytes to ids and back, and text for a terminal. */
#include "data/tokenizer.h"

#include "core/error.h"
#include "test/data/files.h"

static const char *decoded(const Tokenizer *t, const int32_t *ids, int64_t count) {
    static char text[4096];
    FILE       *out = fmemopen(text, sizeof text, "w");
    for (int64_t i = 0; i < count; i++) tokenizer_decode(t, ids[i], out);
    fputc(0, out);
    fclose(out);
    return text;
}

static void bytes_go_round(void **state) {
    (void)state;
    Tokenizer t = tokenizer_create("", 256);
    char      text[256];
    int32_t   ids[256];
    for (int i = 0; i < 256; i++) text[i] = (char)i;
    assert_int_equal(tokenizer_encode(&t, text, 256, ids), 256);
    for (int i = 0; i < 256; i++) assert_int_equal(ids[i], i);
    assert_int_equal(tokenizer_encode(&t, "", 0, ids), 0);

    const char *line = "\tIn the beginning\n\xc3\xa9 \xf0\x9f\x98\x80~";
    int64_t     n = tokenizer_encode(&t, line, strlen(line), ids);
    assert_string_equal(decoded(&t, ids, n), line);
}

static void control_characters_are_spelled_out(void **state) {
    (void)state;
    Tokenizer t = tokenizer_create("", 256);
    static const struct { int32_t id; const char *text; } known[] = {
        {0, "\\x00"}, {27, "\\x1b"}, {13, "\\x0d"}, {127, "\\x7f"}, {31, "\\x1f"}, {256, "<256>"}, {-1, "<-1>"},
        {INT32_MIN, "<-2147483648>"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) assert_string_equal(decoded(&t, &known[i].id, 1), known[i].text);
}

static void other_vocabularies_know_ids_only(void **state) {
    (void)state;
    Tokenizer t = tokenizer_create("", 50257);
    int32_t   id = 65;
    assert_int_equal(t.kind, TOKENIZER_IDS);
    assert_int_equal(tokenizer_encode(&t, "a", 1, &id), -1);
    assert_string_equal(decoded(&t, &id, 1), "<65>");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_go_round),
        cmocka_unit_test(control_characters_are_spelled_out),
        cmocka_unit_test(other_vocabularies_know_ids_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
