/* test_tokens_json.c - bytes per token from tokens.json, which lies beside data files, and bits per byte. */
#include <math.h>

#include "core/error.h"
#include "data/tokens_json.h"
#include "test/data/files.h"

static void look(const void *shard) {
    tokens_json_bytes_per_token((const char *)shard);
    tokens_json_check((const char *)shard);
}

static void write_notes(const char *text) { assert_int_equal(io_replace_file("tokens.json", text, strlen(text)), 0); }

static void notes_are_read_where_they_are_right(void **state) {
    (void)state;
    assert_true(isnan(tokens_json_bytes_per_token("val_*.bin")));
    assert_int_equal(tokens_json_vocab_size("val_*.bin"), 0);
    static const struct {
        const char *text;
        double      is;
        int64_t     ids;
    } cases[] = {{"{\"vocab_size\": 8000, \"bytes_per_token\": 4.25}\n", 4.25, 8000},
                 {"{\"bytes_per_token\": 2, \"val_tokens\": 0}", 2, 0},
                 {"{\"vocab_size\": 1}", 0, 1},
                 {"{\"mine\": \"x\"}", 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_notes(cases[i].text);
        double found = tokens_json_bytes_per_token("val_*.bin");
        assert_true(cases[i].is > 0 ? found == cases[i].is : isnan(found));
        assert_int_equal(tokens_json_vocab_size("val_*.bin"), cases[i].ids);
    }
}

/* A damaged tokens.json is refused, because ignoring it would switch off the checks of data files against it. */
static void damaged_notes_are_refused(void **state) {
    (void)state;
    static const struct { const char *text, *why; } cases[] = {
        {"{\"vocab_size\": 80", "is damaged: line 1"}, {"", "is damaged"}, {"{", "is damaged"}, {"[]", "it is no JSON object"}, {"null", "it is no JSON object"},
        {"{\"vocab_size\": \"x\"}", "its vocab_size is no whole number of at least 1"}, {"{\"vocab_size\": 256.5}", "its vocab_size"},
        {"{\"vocab_size\": 0}", "its vocab_size"}, {"{\"vocab_size\": 1e300}", "its vocab_size"}, {"{\"vocab_size\": null}", "its vocab_size"},
        {"{\"bytes_per_token\": -1}", "its bytes_per_token is no number"}, {"{\"bytes_per_token\": 0}", "its bytes_per_token"},
        {"{\"bytes_per_token\": \"4\"}", "its bytes_per_token"}, {"{\"train_tokens\": -1}", "its train_tokens"}, {"{\"bytes\": []}", "its bytes"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_notes(cases[i].text);
        assert_ends(EXIT_DATA, look, "train_*.bin", "tokens.json", cases[i].why, "To use the shards without this check: rm tokens.json;", NULL);
    }
    assert_int_equal(unlink("tokens.json"), 0);
    assert_int_equal(symlink("tokens.json", "tokens.json"), 0);
    assert_ends(EXIT_DATA, look, "train_*.bin", "tokens.json cannot be read: Too many levels of symbolic links", NULL);
    assert_int_equal(unlink("tokens.json"), 0);
    assert_int_equal(symlink("gone", "tokens.json"), 0);
    assert_ends(EXIT_DATA, look, "train_*.bin", "tokens.json cannot be read: No such file", NULL);
}

static void counts_are_those_of_the_shards(void **state) {
    (void)state;
    write_counting_shard("train_000000.bin", 30, 0);
    write_counting_shard("train_000001.bin", 12, 0);
    /* accepted: no file of validation tokens is there that could contradict val_tokens */
    write_notes("{\"train_tokens\": 42, \"val_tokens\": 7}");
    assert_ends(0, look, "train_*.bin", NULL);
    write_notes("{\"train_tokens\": 41}");
    assert_ends(EXIT_DATA, look, "train_*.bin", "tokens.json says train_tokens 41, and the shards beside it hold 42", "rm tokens.json", NULL);
    write_counting_shard("val_000000.bin", 9, 0);
    write_notes("{\"train_tokens\": 42, \"val_tokens\": 8}");
    assert_ends(EXIT_DATA, look, "train_*.bin", "val_tokens 8, and the shards beside it hold 9", NULL);
    /* accepted: a file without a header, whose tokens cannot be counted, switches the comparison off */
    write_file("train_000002.bin", "\1\0\2\0", 4);
    write_notes("{\"train_tokens\": 41}");
    assert_ends(0, look, "train_*.bin", NULL);
}

static void a_bit_is_ln_2(void **state) {
    (void)state;
    assert_true(fabs(bits_per_byte(log(256), 1) - 8) < 1e-12);
    assert_true(fabs(bits_per_byte(4 * log(2), 4) - 1) < 1e-12);
    assert_true(isnan(bits_per_byte(1, NAN)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(notes_are_read_where_they_are_right, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(damaged_notes_are_refused, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(counts_are_those_of_the_shards, enter_folder, leave_folder),
        cmocka_unit_test(a_bit_is_ln_2),
    };
    return cmocka_run_group_tests_name("tokens_json", tests, NULL, NULL);
}
