/* test_tokens_json.c - bytes a token, from the notes beside shards. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/io.h"
#include "data/tokens_json.h"

#undef fail
#include <cmocka.h>

static void the_note_beside_shards(void **state) {
    (void)state;
    static const struct { const char *text; double value; } cases[] = {
        {"{\"vocab_size\": 8000, \"bytes\": 9000, \"bytes_per_token\": 4.500000}\n", 4.5},
        {"{\"vocab_size\": 8000}", 0},
        {"{\"bytes_per_token\": -1}", 0},
        {"{\"bytes_per_token\": \"4\"}", 0},
        {"not JSON", 0},
        {"", 0},
    };
    char folder[] = "/tmp/test_tokens_json_XXXXXX", notes[64], shards[64];
    assert_non_null(mkdtemp(folder));
    snprintf(notes, sizeof notes, "%s/tokens.json", folder);
    snprintf(shards, sizeof shards, "%s/train_*.bin", folder);
    assert_true(tokens_json_bytes_per_token(shards) == 0); /* none */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(io_replace_file(notes, cases[i].text, strlen(cases[i].text)), 0);
        assert_true(tokens_json_bytes_per_token(shards) == cases[i].value);
    }
    unlink(notes);
    rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_note_beside_shards)};
    return cmocka_run_group_tests_name("tokens_json", tests, NULL, NULL);
}
