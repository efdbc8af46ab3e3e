/* test_tokens_json.c - bytes per token from the notes beside shards, and bits per byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/io.h"
#include "data/tokens_json.h"

static void notes_are_read_where_they_are_right(void **state) {
    (void)state;
    char dir[] = "/tmp/test_tokens_json.XXXXXX", notes[80], shard[80];
    assert_non_null(mkdtemp(dir));
    snprintf(notes, sizeof notes, "%s/tokens.json", dir);
    snprintf(shard, sizeof shard, "%s/val_*.bin", dir);
    assert_true(isnan(tokens_json_bytes_per_token(shard)));
    assert_int_equal(tokens_json_vocab_size(shard), 0);
    static const struct {
        const char *text;
        double      is;
        int64_t     ids;
    } cases[] = {{"{\"vocab_size\": 8000, \"bytes_per_token\": 4.25}\n", 4.25, 8000},
                 {"{\"bytes_per_token\": 0}", 0, 0},
                 {"{\"bytes_per_token\": \"4\", \"vocab_size\": 1e300}", 0, 0},
                 {"{\"vocab_size\": -3, \"bytes_per_token\": 2}", 2, 0},
                 {"{\"bytes_per_token\": 4.25", 0, 0},
                 {"[]", 0, 0},
                 {"", 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(io_replace_file(notes, cases[i].text, strlen(cases[i].text)), 0);
        double found = tokens_json_bytes_per_token(shard);
        assert_true(cases[i].is > 0 ? found == cases[i].is : isnan(found));
        assert_int_equal(tokens_json_vocab_size(shard), cases[i].ids);
    }
    assert_int_equal(io_remove_tree(dir), 0);
}

static void a_bit_is_ln_2(void **state) {
    (void)state;
    assert_true(fabs(bits_per_byte(log(256), 1) - 8) < 1e-12);
    assert_true(fabs(bits_per_byte(4 * log(2), 4) - 1) < 1e-12);
    assert_true(isnan(bits_per_byte(1, NAN)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(notes_are_read_where_they_are_right),
        cmocka_unit_test(a_bit_is_ln_2),
    };
    return cmocka_run_group_tests_name("tokens_json", tests, NULL, NULL);
}
