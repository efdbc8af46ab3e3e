/* test_documents.c - which files are read as rows of JSON Lines. The user's keys decide, then the file's name, then its
 * first line. Also files that change while they are read. */
#include "core/error.h"
#include "core/io.h"
#include "data/documents.h"

#include "test/data/files.h"

typedef struct { char text[1 << 18]; size_t bytes; } Collected;
static void begin(void *with, int is_row) {
    Collected *c = (Collected *)with;
    c->text[c->bytes++] = is_row ? '<' : '(';
}
static void put(void *with, const char *text, size_t bytes) {
    Collected *c = (Collected *)with;
    memcpy(c->text + c->bytes, text, bytes);
    c->bytes += bytes;
}
static void end(void *with) {
    Collected *c = (Collected *)with;
    c->text[c->bytes++] = '>';
}

static Collected got; /* static, because it is too large for the stack */

/* Reads the file or folder. Returns the exit code; the text is in `got`, a message in `fault`. */
static int read_all(const char *name, DocumentOptions options, char fault[DOCUMENT_FAULT_CHARS]) {
    Documents *d;
    char      *names[] = {(char *)name};
    got.bytes = 0;
    int exit_code = documents_find(&d, names, 1, &options, fault);
    if (exit_code == 0) exit_code = documents_read(d, (DocumentSink){begin, put, end, &got}, fault);
    documents_free(d);
    got.text[got.bytes] = 0;
    return exit_code;
}

#define ROWS "{\"text\":\"a\"}\n{\"text\":\"b\"}\n"
#define FIELD .options = {.field = "text"}
#define FORMAT(is) .options = {.format = FORMAT_##is}

static void the_user_wins_over_a_guess(void **state) {
    (void)state;
    static const struct { const char *name, *content; DocumentOptions options; const char *text, *fault; } CASES[] = {
        /* if the user gives no option (format=, field=), the file's name and contents decide whether it is read as
         * JSON rows, one document each */
        {.name = "a", .content = ROWS, .text = "<a><b>"},
        {.name = "a.jsonl", .content = ROWS, .text = "<a><b>"},
        {.name = "a.NDJSON", .content = ROWS, .text = "<a><b>"},
        {.name = "a.json", .content = ROWS, .text = "<a><b>"},
        {.name = "a.txt", .content = ROWS, .text = "(" ROWS ">"},
        {.name = "a.md", .content = ROWS, .text = "(" ROWS ">"},
        {.name = "a.text", .content = ROWS, .text = "(" ROWS ">"},
        {.name = "a.csv", .content = "text\nwords\n", .text = "(text\nwords\n>"},
        {.name = "a.jsonl", .content = "words\n", .fault = "a.jsonl: line 1 is not a JSON object (format=text"},
        {.name = "a", .content = "words\n" ROWS, .text = "(words\n" ROWS ">"},
        {.name = "a.json", .content = "{\n\"text\": \"a\"}\n", .text = "({\n\"text\": \"a\"}\n>"},
        {.name = "a.json", .content = "[" "{\"text\":\"a\"}]\n", .text = "([{\"text\":\"a\"}]\n>"},
        {.name = "a.json", .content = "{\"name\":\"a\"}\n", .fault = "a.json: line 1 has no field \"text\"; its fields are name"},
        {.name = "a.jsonl", .content = "\r\n", .text = ""},
        {.name = "a.jsonl.gz", .content = ROWS, .text = "<a><b>"},
        {.name = "a.txt.gz", .content = ROWS, .text = "(" ROWS ">"},
        {.name = "a.parquet", .content = "<html>not found</html>\n", .fault = "a.parquet is no parquet file"},
        {.name = "a.parquet", .content = "words\n", FORMAT(TEXT), .text = "(words\n>"},
        {.name = "a", .content = "version https://git-lfs.github.com/spec/v1\noid sha256:00\n", .fault = "is a pointer of Git LFS"},
        /* if the user sets no option and the file's name tells nothing, the first lines decide whether the file is
         * read as rows of JSON */
        {.name = "a", .content = "\n\r\n \t\n" ROWS, .text = "<a><b>"},
        {.name = "a", .content = "\xef\xbb\xbf" ROWS, .text = "<a><b>"},
        {.name = "a", .content = "\xef\xbb\xbf\n  " ROWS, .text = "<a><b>"},
        {.name = "a", .content = "{\"text\":\"a\"}\r\n{\"text\":\"b\"}\r\n", .text = "<a><b>"},
        {.name = "a", .content = "{\"text\":\"a\"}", .text = "<a>"},
        {.name = "a", .content = "{\"text\":\r\"a\"}\n", .text = "<a>"},
        {.name = "a", .content = "{ int a; }\n", .text = "({ int a; }\n>"},
        {.name = "a", .content = "{\"text\":\"a\"}\r{\"text\":\"b\"}\r", .fault = "line 1 has text after a carriage return"},
        {.name = "a", .content = "{\"text\":\"\xe9\"}\n", .fault = "line 1 holds the byte 0xE9"},
        {.name = "a", .content = "{\"text\":\"\1\"}\n", .fault = "line 1 holds a control character"},
        {.name = "a", .content = "{\"text\":NaN}\n", .fault = "line 1 holds NaN"},
        {.name = "a", .content = ROWS "{\"text\":\"\xff\"}\n", .fault = "line 3 holds the byte 0xFF"},
        {.name = "a", .content = ROWS "\n\x7f\n", .fault = "line 4 is not a JSON object"},
        {.name = "a", .content = ROWS "{\"text\":\"c", .fault = "line 3 ends in the middle of a string"},
        /* files read with the key field= */
        {.name = "a.txt", .content = ROWS, FIELD, .text = "<a><b>"},
        {.name = "a.txt", .content = "words\n", FIELD, .fault = "is plain text, and field=text is for rows"},
        {.name = "a", .content = "{\n\"text\": \"a\"}\n", FIELD, .fault = "its value spans several lines"},
        {.name = "a", .content = "[" "{\"text\":\"a\"}]\n", FIELD, .fault = "line 1 is an array"},
        {.name = "a", .content = "{\"text\":\"\x7f\"}\n", FIELD, .text = "<\x7f>"},
        {.name = "a", .content = "\1\2\3\n", FIELD, .fault = "is plain text, and field=text is for rows"},
        {.name = "a", .content = "{\"body\":\"\"}\n", .options = {.field = "body"}, .text = ""},
        /* files read with the key format= */
        {.name = "a.txt", .content = ROWS, FORMAT(JSONL), .text = "<a><b>"},
        {.name = "a.jsonl", .content = ROWS, FORMAT(TEXT), .text = "(" ROWS ">"},
        {.name = "a", .content = "words\n", FORMAT(JSONL), .fault = "line 1 is not a JSON object"},
        {.name = "a", .content = "\1\2\3\xff", FORMAT(TEXT), .text = "(\1\2\3\xff>"},
        {.name = "a", .content = "\x89PNG", FORMAT(TEXT), .text = "(\x89PNG>"},
        {.name = "a", .content = ROWS, FORMAT(PARQUET), .fault = "no parquet file"},
        {.name = "a", .content = ROWS, .options = {.field = "text", .format = FORMAT_TEXT}, .fault = "field=text is for rows"},
        /* files read with the key encoding= */
        {.name = "a", .content = "{\"text\":\"\xe9\"}\n", .options = {.encoding = ENCODING_LATIN1}, .text = "<\xc3\xa9>"},
        {.name = "a", .content = "caf\xe9", .options = {.encoding = ENCODING_LATIN1}, .text = "(caf\xc3\xa9>"},
        {.name = "a", .content = "caf\xe9", .fault = "1 of 4 bytes are not UTF-8, the first at byte 3"},
        {.name = "a", .content = "caf\xe9", .options = {.encoding = ENCODING_UTF8}, .fault = "1 of 4 bytes are not UTF-8"},
        {.name = "a", .content = "caf\xe9", FORMAT(TEXT), .text = "(caf\xe9>"},
        {.name = "a", .content = "\x93q\x94", .options = {.encoding = ENCODING_LATIN1}, .fault = "2 of 5 bytes are not Latin-1, the first at byte 0"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char fault[DOCUMENT_FAULT_CHARS] = "";
        write_file(CASES[i].name, CASES[i].content, strlen(CASES[i].content));
        int exit_code = read_all(CASES[i].name, CASES[i].options, fault);
        if (CASES[i].text ? exit_code != 0 || strcmp(got.text, CASES[i].text) != 0
                          : exit_code == 0 || !strstr(fault, CASES[i].fault))
            fail_msg("case %zu, %s: exit %d, %s: %s", i, CASES[i].name, exit_code, fault, got.text);
        remove(CASES[i].name);
    }
}

/* A text may have up to 1 % of bytes that are not UTF-8. If far more are found, reading ends before the end of the
 * file. */
static void few_invalid_bytes_are_kept(void **state) {
    (void)state;
    char fault[DOCUMENT_FAULT_CHARS] = "", *text = malloc(200000);
    memset(text, 'x', 200000);
    /* 5 % of the first fifth, which is 1 % of the whole text, so the text is accepted */
    for (int i = 0; i < 2000; i++) text[i * 20] = '\xe9';
    write_file("few", text, 200000);
    assert_int_equal(read_all("few", (DocumentOptions){.field = NULL}, fault), 0);
    assert_int_equal(got.bytes, 200002);
    text[199999] = '\xe9';
    write_file("many", text, 200000);
    assert_int_equal(read_all("many", (DocumentOptions){.field = NULL}, fault), EXIT_DATA);
    assert_non_null(strstr(fault, "many: 2001 of 200000 bytes are not UTF-8, the first at byte 0"));
    memset(text, '\xe9', 200000);
    write_file("all", text, 200000);
    assert_int_equal(read_all("all", (DocumentOptions){.field = NULL}, fault), EXIT_DATA);
    assert_true(got.bytes < 100000);
    free(text);
}

/* A file may begin as text and continue as something else, such as zeros from a disk that was full. Control characters
 * in it are counted to its end; more than 1 % are refused. */
static void control_bytes_count_to_the_end(void **state) {
    (void)state;
    enum { BYTES = 200000, MOST = BYTES / 100 };
    char fault[DOCUMENT_FAULT_CHARS] = "", *text = malloc(BYTES);
    memset(text, 'x', BYTES);
    memset(text + BYTES - MOST, 0, MOST);
    write_file("few", text, BYTES);
    assert_int_equal(read_all("few", (DocumentOptions){.field = NULL}, fault), 0);
    text[BYTES - MOST - 1] = '\x7f';
    write_file("many", text, BYTES);
    assert_int_equal(read_all("many", (DocumentOptions){.field = NULL}, fault), EXIT_DATA);
    assert_non_null(strstr(fault, "many: 2001 of its 200000 bytes, read as utf-8, are control characters"));
    assert_int_equal(read_all("many", (DocumentOptions){.format = FORMAT_TEXT}, fault), 0);
    assert_int_equal(got.bytes, BYTES + 2);
    write_file("wide", "\0\0\0a\0\0\0b", 8); /* UTF-32 */
    assert_int_equal(read_all("wide", (DocumentOptions){.encoding = ENCODING_UTF16BE}, fault), EXIT_DATA);
    assert_non_null(strstr(fault, "wide: 2 of its 4 bytes, read as utf-16be, are control characters"));
    free(text);
}

static void a_file_that_changes_is_named(void **state) {
    (void)state;
    static const struct { const char *name, *before, *after; } CASES[] = {
        {"grown.txt", "one line\n", "one line\nand one more\n"}, {"cut.txt", "one line\nand one more\n", "one line\n"},
        {"grown.jsonl", ROWS, ROWS ROWS},                         {"other.jsonl", ROWS, "{\"text\":\"longer\"}\n{\"text\":\"b\"}\n"}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        Documents      *d;
        DocumentOptions options = {.field = NULL};
        char           *names[] = {(char *)CASES[i].name}, fault[DOCUMENT_FAULT_CHARS] = "";
        int64_t         documents, bytes;
        write_file(CASES[i].name, CASES[i].before, strlen(CASES[i].before));
        assert_int_equal(documents_find(&d, names, 1, &options, fault), 0);
        assert_int_equal(documents_measure(d, &documents, &bytes, fault), 0);
        got.bytes = 0;
        assert_int_equal(documents_read(d, (DocumentSink){begin, put, end, &got}, fault), 0);
        write_file(CASES[i].name, CASES[i].after, strlen(CASES[i].after));
        got.bytes = 0;
        assert_int_equal(documents_read(d, (DocumentSink){begin, put, end, &got}, fault), EXIT_DATA);
        assert_non_null(strstr(fault, "was changed while it was read"));
        documents_free(d);
    }
}

/* Lines of JSON Lines may be longer than TEXT_FILE_START, the bytes that are read first to recognize a file. Tests such
 * a first line. */
static void long_lines_are_rows(void **state) {
    (void)state;
    char fault[DOCUMENT_FAULT_CHARS] = "", *text = malloc(400000);
    for (size_t pad = TEXT_FILE_START - 30; pad < 3 * TEXT_FILE_START; pad += pad / 2 + 1) {
        size_t n = (size_t)sprintf(text, "\n{\"pad\":\"");
        memset(text + n, 'x', pad);
        n += pad;
        n += (size_t)sprintf(text + n, "\",\"text\":\"a\"}\n{\"text\":\"b\"}\n");
        write_file("long", text, n);
        assert_int_equal(read_all("long", (DocumentOptions){.field = NULL}, fault), 0);
        assert_string_equal(got.text, "<a><b>");
        /* now the string of the first line is never closed, so the file is read as text, not as rows */
        text[n - 1] = 0, text[9 + pad] = 'x', text[10 + pad] = 'x';
        write_file("open", text, n - 1);
        assert_int_equal(read_all("open", (DocumentOptions){.field = NULL}, fault), 0);
        assert_int_equal(got.text[0], '(');
    }
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, enter_folder, leave_folder)
        IN_FOLDER(the_user_wins_over_a_guess),   IN_FOLDER(few_invalid_bytes_are_kept),
        IN_FOLDER(control_bytes_count_to_the_end),
        IN_FOLDER(a_file_that_changes_is_named), IN_FOLDER(long_lines_are_rows),
    };
    return cmocka_run_group_tests_name("documents", tests, NULL, NULL);
}
