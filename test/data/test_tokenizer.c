/* Bytes to ids and back, and text for a terminal. */
#include "data/tokenizer.h"

#include "core/error.h"
#include "test/data/files.h"

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
    char        back[64] = "", piece[TOKENIZER_TEXT_CHARS];
    int64_t     n = tokenizer_encode(&t, line, strlen(line), ids);
    for (int64_t i = 0; i < n; i++) {
        assert_int_equal(tokenizer_decode(&t, ids[i], piece), 1);
        strcat(back, piece);
    }
    assert_string_equal(back, line);
}

static void control_characters_are_spelled_out(void **state) {
    (void)state;
    Tokenizer t = tokenizer_create("", 256);
    char      piece[TOKENIZER_TEXT_CHARS];
    static const struct { int32_t id; const char *text; } known[] = {
        {0, "\\x00"}, {27, "\\x1b"}, {13, "\\x0d"}, {127, "\\x7f"}, {31, "\\x1f"}, {256, "<256>"}, {-1, "<-1>"},
        {INT32_MIN, "<-2147483648>"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        assert_int_equal(tokenizer_decode(&t, known[i].id, piece), strlen(known[i].text));
        assert_string_equal(piece, known[i].text);
    }
}

static void other_vocabularies_know_ids_only(void **state) {
    (void)state;
    Tokenizer t = tokenizer_create("", 50257);
    char      piece[TOKENIZER_TEXT_CHARS];
    int32_t   id;
    assert_int_equal(t.kind, TOKENIZER_IDS);
    assert_int_equal(tokenizer_encode(&t, "a", 1, &id), -1);
    assert_int_equal(tokenizer_decode(&t, 65, piece), 4);
    assert_string_equal(piece, "<65>");
}

static void create_from(const void *folder) { tokenizer_create(folder, 256); }

static void folders_are_refused_for_now(void **state) {
    (void)state;
    assert_ends(EXIT_CONFIG, create_from, "gpt2", "data.tokenizer: gpt2: BPE tokenizers are not built in yet", NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_go_round),
        cmocka_unit_test(control_characters_are_spelled_out),
        cmocka_unit_test(other_vocabularies_know_ids_only),
        cmocka_unit_test(folders_are_refused_for_now),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
