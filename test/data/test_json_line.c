/* test_json_line.c - reading the text of a line of JSON Lines: escapes, other fields around the text, and every way in
 * which a line can be wrong. */
#include "data/json_line.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Reads a line in an allocation of exactly its size, so that sanitizers see an access after its end. */
static int read_line(const char *line, size_t bytes, const char *field, char *out, size_t *length, char fault[JSON_LINE_FAULT_CHARS]) {
    char *copy = malloc(bytes ? bytes : 1), *text = NULL;
    memcpy(copy, line, bytes);
    int found = json_line_text(copy, bytes, field, &text, length, fault);
    if (found == 1) memcpy(out, text, *length), out[*length] = '\0';
    free(copy);
    return found;
}

static void text_is_found(void **state) {
    (void)state;
    static const struct { const char *line, *field, *text; } LINES[] = {
        {"{\"text\":\"a\"}", "text", "a"},
        {" {\"id\" : -1.5e+3, \"meta\":{\"text\":[\"x\",{}, [1]], \"n\":null}, \"text\" : \"two words\" , \"b\":true}\r", "text", "two words"},
        {"{\"text\":\"\"}", "text", ""},
        {"{\"text\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"}", "text", "\"\\/\b\f\n\r\t"},
        {"{\"text\":\"\\u0041\\u00e9\\u20AC\\ud83d\\ude00\"}", "text", "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
        {"\xef\xbb\xbf{\"text\":\"behind a mark\"}", "text", "behind a mark"},
        {"{\"text\":\"\x7f\"}", "text", "\x7f"},
        {"{\"text\":\"first\",\"text\":\"second\"}", "text", "second"},
        {"{\"te\\u0078t\":\"by its name\"}", "text", "by its name"},
        {"{\"text\":null,\"body\":\"other\"}", "body", "other"},
    };
    for (size_t i = 0; i < sizeof LINES / sizeof *LINES; i++) {
        char   out[200], fault[JSON_LINE_FAULT_CHARS] = "";
        size_t length;
        assert_int_equal(read_line(LINES[i].line, strlen(LINES[i].line), LINES[i].field, out, &length, fault), 1);
        assert_string_equal(out, LINES[i].text);
        assert_int_equal(length, strlen(LINES[i].text));
    }
    char   out[20], fault[JSON_LINE_FAULT_CHARS];
    size_t length;
    assert_int_equal(read_line("{\"text\":\"a\\u0000b\"}", 19, "text", out, &length, fault), 1);
    assert_int_equal(length, 3);
    assert_memory_equal(out, "a\0b", 3);
    assert_int_equal(read_line("", 0, "text", out, &length, fault), 0);
    assert_int_equal(read_line(" \t\r", 3, "text", out, &length, fault), 0);
    assert_int_equal(read_line("{\"text\": null}", 14, "text", out, &length, fault), 0);
}

static void faults_are_named(void **state) {
    (void)state;
    static const struct { const char *line, *fault; } LINES[] = {
        {"{\"url\":\"x\",\"body\":\"y\"}", "has no field \"text\"; its fields are url, body"},
        {"{}", "has no field \"text\"; its fields are none"},
        {"{\"text\":3}", "has a number or another word in its field \"text\", not a string (column 9): $ jq"},
        {"{\"text\":[{\"role\":\"user\"}]}", "has a list of objects in its field \"text\""},
        {"{\"text\":[ \"a\", {}]}", "has a list in its field"},
        {"{\"text\":{}}", "has an object in its field"},
        {"{\"text\":true}", "has true or false in its field"},
        {"{\"text\":NaN}", "holds NaN or Infinity"},
        {"{\"a\":NaN,\"text\":\"a\"}", "holds NaN or Infinity, which JSON does not have"},
        {"{\"a\":[-Infinity],\"text\":\"a\"}", "(column 7)"},
        {"{\"text\":\"\xe9\"}", "holds the byte 0xE9, which is not UTF-8 (column 10): give the encoding"},
        {"{\"text\":\"a\",\"b\":\"\xed\xa0\x80\"}", "holds the byte 0xED"},
        {"{\"text\":\"a\"}\r{\"text\":\"b\"}", "has text after a carriage return"},
        {"{", "its value spans several lines or was cut off"},
        {"{\"a\": [", "its value spans several lines or was cut off"},
        {"[{\"text\":\"a\"}]", "is an array"},
        {"plain words", "is not a JSON object"},
        {"{\"text\":\"a\"} x", "has text after its object ($ python3"},
        {"{\"text\":\"a\"", "has no , or } after a value"},
        {"{\"text\":\"a", "ends in the middle of a string"},
        {"{\"text\":\"a\n\"}", "holds a control character in a string"},
        {"{\"text\":\"\\x\"}", "holds a backslash that begins no escape"},
        {"{\"text\":\"\\u12\"}", "holds a backslash that begins no escape"},
        {"{\"text\" \"a\"}", "has no : after a name"},
        {"{\"text\":\"\\ud83dx\"}", "holds half of a surrogate pair"},
        {"{\"text\":\"\\ude00\"}", "holds half of a surrogate pair"},
        {"{\"a\":\"\\ud83d\\u0041\",\"text\":\"a\"}", "holds half of a surrogate pair"},
        {"{\"text\":\"a\",}", "has a comma before its }"},
        {"{text:\"a\"}", "has no name in quotes"},
        {"{\"a\":[1,],\"text\":\"a\"}", "has no value where one is expected"},
        {"{\"a\":{\"b\"},\"text\":\"a\"}", "has no : after a name"},
        {"{\"a\":1.,\"text\":\"a\"}", "without digits after its point"},
        {"{\"a\":1e,\"text\":\"a\"}", "without digits in its exponent"},
        {"{\"a\":nul,\"text\":\"a\"}", "has no value"},
        {"{\"a\":", "ends before a value"},
    };
    char   out[100], fault[JSON_LINE_FAULT_CHARS];
    size_t length;
    for (size_t i = 0; i < sizeof LINES / sizeof *LINES; i++) {
        assert_int_equal(read_line(LINES[i].line, strlen(LINES[i].line), "text", out, &length, fault), -1);
        assert_non_null(strstr(fault, LINES[i].fault));
    }
    char deep[300] = "{\"a\":";
    memset(deep + 5, '[', 200);
    assert_int_equal(read_line(deep, 205, "text", out, &length, fault), -1);
    assert_non_null(strstr(fault, "nested too deeply"));
    static const char WHOLE[] = "{\"id\":[1,{\"b\":\"\\u00e9\"}],\"text\":\"\\ud83d\\ude00 x\"}";
    for (size_t n = 1; n < sizeof WHOLE - 1; n++) assert_int_equal(read_line(WHOLE, n, "text", out, &length, fault), -1);
}

static int is_object(const char *line) {
    char *copy = strdup(line);
    int   is = json_line_is_object(copy, strlen(line));
    free(copy);
    return is;
}

/* A row with a fault is still recognized as a row. A text that begins with a brace is not. */
static void rows_are_told_from_text(void **state) {
    (void)state;
    static const char *const
        ROWS[] = {"{}",          " {\"a\": 1} \r",        "{\"a\":\"\xe9\"}",      "{\"a\":\"\1\"}",
                  "{\"a\":NaN}", "{\"a\":\"C:\\Users\"}", "\xef\xbb\xbf{\"a\":[]}"},
        *const TEXTS[] = {"{ int a; }", "{",     "{\"a\": 1} {\"b\": 2}", "{\"a\", \"b\"}", "[1]", "words", "{\"a\": 1",
                          "{{name}}",   "\"{}\""},
        *const BLANK[] = {"", " \t\r", "\xef\xbb\xbf"};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) assert_int_equal(is_object(ROWS[i]), 1);
    for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS; i++) assert_int_equal(is_object(TEXTS[i]), 0);
    for (size_t i = 0; i < sizeof BLANK / sizeof *BLANK; i++) assert_int_equal(is_object(BLANK[i]), -1);
    char deep[300] = "{\"a\":";
    memset(deep + 5, '[', 100), memset(deep + 105, ']', 100), deep[205] = '}';
    /* a line that is nested too deeply is recognized as a row, so that reading it is refused with the name of the
     * limit */
    assert_int_equal(is_object(deep), 1);
}

/* The list of the line's fields in a message is cut, however long their names are. */
static void many_fields(void **state) {
    (void)state;
    char   line[20000], out[10], fault[JSON_LINE_FAULT_CHARS];
    size_t used = 1, length;
    line[0] = '{';
    for (int i = 0; i < 900; i++)
        used += (size_t)snprintf(line + used, sizeof line - used, "%s\"field%d\":\"a\"", i ? "," : "", i);
    line[used++] = '}';
    assert_int_equal(read_line(line, used, "text", out, &length, fault), -1);
    assert_non_null(strstr(fault, "field0, field1"));
    assert_non_null(strstr(fault, "give field=NAME of the text"));
}

/* If no field of a row is a string, the message proposes no field=NAME, because no name would help. */
static void fields_without_a_string(void **state) {
    (void)state;
    char       out[10], fault[JSON_LINE_FAULT_CHARS];
    size_t     length;
    const char LINE[] = "{\"a\":1, \"b\": [\"c\"]}";
    assert_int_equal(read_line(LINE, sizeof LINE - 1, "text", out, &length, fault), -1);
    assert_non_null(strstr(fault, "its fields are a, b: give format=text to read the file as text"));
}

int main(void) {
    const struct CMUnitTest lines[] = {
        cmocka_unit_test(text_is_found),
        cmocka_unit_test(faults_are_named),
        cmocka_unit_test(many_fields),
        cmocka_unit_test(fields_without_a_string),
        cmocka_unit_test(rows_are_told_from_text),
    };
    return cmocka_run_group_tests(lines, NULL, NULL);
}
