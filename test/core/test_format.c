/* test_format.c - sizes, times and counts in messages. Also the commands that messages propose, and the files that
 * these read: plain, packed, in another encoding, and standard input. */
#include "core/format.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void commands_read_the_file(void **state) {
    (void)state;
    static const struct { const char *sentence; ShellFile file; const char *due; } CASES[] = {
        {"($ jq -c . < FILE > NEW makes rows)", {"a.json", NULL, NULL}, "(jq -c . < a.json > NEW makes rows)"},
        {"$ jq -c . < FILE > NEW", {"-a b", NULL, NULL}, "jq -c . < ./'-a b' > NEW"},
        {"$ jq -c . < FILE > NEW", {"a.gz", "gzip -dc", NULL}, "gzip -dc < a.gz | jq -c . > NEW"},
        {"$ jq -c . < FILE > NEW", {"a", NULL, "iconv -f utf-16"}, "iconv -f utf-16 < a | jq -c . > NEW"},
        {"$ jq -c . < FILE > NEW", {"-a", "xz -dc", "iconv -f utf-16"}, "xz -dc < ./-a | iconv -f utf-16 | jq -c . > NEW"},
        {"$ jq -c . < FILE > NEW", {NULL, NULL, NULL}, "... | jq -c . > NEW"},
        {"$ jq -c . < FILE > NEW", {NULL, "xz -dc", "iconv -f utf-16"}, "... | xz -dc | iconv -f utf-16 | jq -c . > NEW"},
        {"$ sed '$s/a/b/' < FILE | jq . > NEW", {"a", "xz -dc", NULL}, "xz -dc < a | sed '$s/a/b/' | jq . > NEW"},
        {"$ unzip FILE unpacks it", {"a.zip", NULL, NULL}, "unzip a.zip unpacks it"},
        {"$ unzip FILE unpacks it", {"a.gz", "gzip -dc", NULL}, "gzip -dc < a.gz > NEW && unzip NEW unpacks it"},
        {"$ unzip FILE unpacks it", {NULL, NULL, NULL}, "... | cat > NEW && unzip NEW unpacks it"},
        {"$ unzip FILE unpacks it", {NULL, "gzip -dc", NULL}, "... | gzip -dc > NEW && unzip NEW unpacks it"},
        {"$ gzip -dc < PACKED > NEW", {"a.gz", "gzip -dc", NULL}, "gzip -dc < a.gz > NEW"},
        {"$ gzip -dc < PACKED > NEW", {NULL, "gzip -dc", NULL}, "... | gzip -dc > NEW"},
        {"$ tar -xf PACKED", {"a.gz", "gzip -dc", NULL}, "tar -xf a.gz"},
        {"$ jq -c . < FILE > NEW.jsonl makes rows", {"NEW.jsonl", NULL, NULL}, "jq -c . < NEW.jsonl > NEW2.jsonl makes rows"},
        {"$ jq -c . < FILE > NEW.jsonl", {"d/NEW2.jsonl", NULL, NULL}, "jq -c . < d/NEW2.jsonl > NEW.jsonl"},
        {"NEW: $ gzip -dc < PACKED > NEW", {"NEW", "gzip -dc", NULL}, "NEW: gzip -dc < NEW > NEW2"},
        {"$ unzip FILE", {"NEW.gz", "gzip -dc", NULL}, "gzip -dc < NEW.gz > NEW2 && unzip NEW2"},
        {"$ a FILE \"NEW.bin\" RENEWED NEWS", {"./NEW", NULL, NULL}, "a ./NEW \"NEW2.bin\" RENEWED NEWS"},
        {"$ jq -c . < FILE > NEW", {"NEWS.txt", NULL, NULL}, "jq -c . < NEWS.txt > NEW"},
        {"one, $ a < FILE, or $ b FILE", {"x", "xz -dc", NULL}, "one, xz -dc < x | a, or xz -dc < x > NEW && b NEW"},
        {"tail FILE of FILE_OR_FOLDER FILES", {"x", "xz -dc", NULL}, "tail x of FILE_OR_FOLDER FILES"},
        {"costs 5$ a FILE", {"x", "xz -dc", NULL}, "costs 5$ a x"},
        {" FILE", {NULL, NULL, NULL}, " FILE"},
        {"no file", {"x", "xz -dc", NULL}, "no file"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char sentence[200];
        strcpy(sentence, CASES[i].sentence);
        shell_read_file(sentence, sizeof sentence, CASES[i].file);
        assert_string_equal(sentence, CASES[i].due);
        for (size_t capacity = strlen(CASES[i].sentence) + 1; capacity <= strlen(CASES[i].due); capacity++) {
            strcpy(sentence, CASES[i].sentence);
            shell_read_file(sentence, capacity, CASES[i].file);
            assert_string_equal(sentence, CASES[i].sentence);
        }
    }
}

static void durations(void **state) {
    (void)state;
    static const struct { double ms; const char *text; } cases[] = {
        {0, "0s"}, {499, "0s"}, {8000, "8s"}, {59499, "59s"}, {59500, "1m00s"}, {128000, "2m08s"}, {3599000, "59m59s"}, {3600000, "1h00m"},
        {6420000, "1h47m"}, {86399000, "23h59m"}, {86400000, "1d00h"}, {273600000, "3d04h"}, {-1, "?"}, {NAN, "?"}, {INFINITY, "?"}, {1e300, "?"},
    };
    char text[32];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        duration_text(text, cases[i].ms);
        assert_string_equal(text, cases[i].text);
    }
}


static void sizes_and_counts(void **state) {
    (void)state;
    assert_string_equal(bytes_text(0).text, "0.0 MiB");
    assert_string_equal(bytes_text(1536.0 * 1024).text, "1.5 MiB");
    assert_string_equal(bytes_text(1024.0 * 1024 * 1024).text, "1.00 GiB");
    assert_string_equal(bytes_text(3e12).text, "2793.97 GiB");
    assert_string_equal(plural(0), "s");
    assert_string_equal(plural(1), "");
    assert_int_equal(common_divisor(12, 18), 6);
    assert_int_equal(common_divisor(7, 0), 7);
    assert_int_equal(common_divisor(0, 7), 7);
    assert_int_equal(common_divisor((1ll << 40), 3 * (1ll << 40)), (1ll << 40));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(commands_read_the_file), cmocka_unit_test(durations),
                                       cmocka_unit_test(sizes_and_counts)};
    return cmocka_run_group_tests_name("format", tests, NULL, NULL);
}
