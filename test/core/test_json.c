/* test_json.c - strict JSON: refused texts with the place of the fault, accepted texts, the places of values,
 * quoting. */
#include "core/error.h" /* before cmocka.h, which defines fail() as a macro */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/io.h"
#include "core/json.h"

typedef struct { const char *text; size_t bytes; int line, column; const char *says; } Bad;
#define BAD(text, line, column, says) {text, sizeof text - 1, line, column, says}

static const Bad BAD_TEXTS[] = {
    /* texts with no value, or with more than one */
    BAD("", 1, 1, "expected a value"),
    BAD("  \n\t ", 2, 3, "expected a value"),
    BAD("{} {}", 1, 4, "found '{'"),
    BAD("{}x", 1, 3, "found 'x'"),
    BAD("{}\n]", 2, 1, "after the end of the value"),
    BAD("1 2", 1, 3, "after the end of the value"),
    BAD("{}\0", 1, 3, "byte 0x00"),
    BAD("{}\v", 1, 3, "byte 0x0b"),
    BAD("\xef\xbb\xbf{}", 1, 1, "byte-order mark"),
    BAD("\xff\xfe{\0}\0", 1, 1, "is UTF-16, not UTF-8: $ iconv -f utf-16 -t utf-8 FILE > NEW.json"),
    BAD("{\0\"\0", 1, 1, "iconv -f utf-16le"),
    BAD("\x1f\x8b\x08", 1, 1, "gzip -dc < FILE > NEW.json"),
    BAD("\0", 1, 1, "byte 0x00"),
    BAD("// c\n{}", 1, 1, "no comments"),
    BAD("{} // c", 1, 4, "no comments"),
    BAD("{/*c*/}", 1, 2, "no comments"),
    BAD("# c\n{}", 1, 1, "no comments"),
    /* faults in objects and arrays */
    BAD("{", 1, 2, "found the end"),
    BAD("[", 1, 2, "found the end"),
    BAD("{\"a\"", 1, 5, "':' after the key"),
    BAD("{\"a\":", 1, 6, "expected a value, found the end"),
    BAD("{\"a\":1", 1, 7, "',' or '}'"),
    BAD("{\"a\":1]", 1, 7, "',' or '}', found ']'"),
    BAD("[1}", 1, 3, "',' or ']', found '}'"),
    BAD("[1 2]", 1, 4, "',' or ']', found '2'"),
    BAD("{\"a\":1 \"b\":2}", 1, 8, "',' or '}'"),
    BAD("{\"a\":1,}", 1, 7, "none after the last item"),
    BAD("{\"a\":1,\n}", 1, 7, "none after the last item"),
    BAD("[1,]", 1, 3, "none after the last item"),
    BAD("[,1]", 1, 2, "expected a value, found ','"),
    BAD("[1,,2]", 1, 4, "expected a value, found ','"),
    BAD("{,}", 1, 2, "a key in double quotes"),
    BAD("{a:1}", 1, 2, "a key in double quotes, found 'a'"),
    BAD("{'a':1}", 1, 2, "double quotes"),
    BAD("{1:2}", 1, 2, "a key in double quotes"),
    BAD("{\"a\" 1}", 1, 6, "':' after the key"),
    BAD("{\"a\"=1}", 1, 5, "':' after the key, found '='"),
    BAD("{\"a\"::1}", 1, 6, "expected a value, found ':'"),
    BAD("{\"a\"}", 1, 5, "':' after the key"),
    BAD("{null:1}", 1, 2, "a key in double quotes"),
    BAD("]", 1, 1, "expected a value, found ']'"),
    BAD("{\"a\":[1,{\"b\":]}", 1, 14, "expected a value, found ']'"),
    BAD("[1\f]", 1, 3, "byte 0x0c"),
    BAD("[\xa0]", 1, 2, "byte 0xa0"),
    /* faults in the words true, false and null */
    BAD("nul", 1, 1, "unknown word nul"),
    BAD("[True]", 1, 2, "write true"),
    BAD("[FALSE]", 1, 2, "write false"),
    BAD("[TRUE]", 1, 2, "write true"),
    BAD("[False]", 1, 2, "write false"),
    BAD("[None]", 1, 2, "write null"),
    BAD("[NULL]", 1, 2, "write null"),
    BAD("[nan]", 1, 2, "nan is no JSON number"),
    BAD("[inf]", 1, 2, "inf is no JSON number"),
    BAD("[truefalse]", 1, 2, "unknown word truefalse"),
    BAD("[true1]", 1, 2, "unknown word true1"),
    BAD("[hello]", 1, 2, "double quotes"),
    BAD("[NaN]", 1, 2, "no JSON number"),
    BAD("[Infinity]", 1, 2, "finite"),
    BAD("[-Infinity]", 1, 3, "expected a digit"),
    BAD("[undefined_word_that_goes_on_for_long]", 1, 2, "..."),
    /* faults in numbers */
    BAD("[01]", 1, 2, "must not begin with 0"),
    BAD("[-01]", 1, 2, "must not begin with 0"),
    BAD("[007]", 1, 2, "must not begin with 0"),
    BAD("[00]", 1, 2, "must not begin with 0"),
    BAD("[1.]", 1, 4, "after the point"),
    BAD("[.5]", 1, 2, "begins with a digit"),
    BAD("[-.5]", 1, 3, "expected a digit"),
    BAD("[+1]", 1, 2, "begins with a digit"),
    BAD("[-]", 1, 3, "expected a digit"),
    BAD("[--1]", 1, 3, "expected a digit"),
    BAD("[1e]", 1, 4, "in the exponent"),
    BAD("[1e+]", 1, 5, "in the exponent"),
    BAD("[1.e3]", 1, 4, "after the point"),
    BAD("[1.5.2]", 1, 5, "after a number"),
    BAD("[1e5e5]", 1, 5, "after a number"),
    BAD("[1_000]", 1, 3, "after a number"),
    BAD("[0x10]", 1, 3, "after a number"),
    BAD("[12abc]", 1, 4, "unexpected 'a' after a number"),
    BAD("[1f]", 1, 3, "after a number"),
    BAD("1e400", 1, 1, "the number 1e400 is too large"),
    BAD("[1e400]", 1, 2, "[0]: the number 1e400 is too large"),
    BAD("{\"a\":{\"b\": 1e400}}", 1, 12, "a.b: the number 1e400 is too large"),
    BAD("{\"a\\n\": 9007199254740993}", 1, 9, "\"a\\n\": the integer 9007199254740993 is beyond"),
    BAD("{\"a\":1,\"a\":1e400}", 1, 12, "a: the number 1e400"),
    BAD("[-1e400]", 1, 2, "too large"),
    BAD("[1.8e308]", 1, 2, "too large"),
    BAD("[1e99999999999999999999]", 1, 2, "too large"),
    BAD("[9007199254740993]", 1, 2, "beyond 2^53"),
    BAD("[-9007199254740993]", 1, 2, "beyond 2^53"),
    BAD("[9007199254740994]", 1, 2, "beyond 2^53"),
    BAD("[100000000000000000000]", 1, 2, "beyond 2^53"),
    BAD("[18446744073709551616]", 1, 2, "beyond 2^53"),
    BAD("[9007199254740993.0]", 1, 2, "cannot be kept exactly"),
    BAD("[900719925474099.3e1]", 1, 2, "cannot be kept exactly"),
    BAD("[600.00000000000000001]", 1, 2, "would be read as 600"),
    BAD("[0.99999999999999999999]", 1, 2, "would be read as 1"),
    BAD("[1e-400]", 1, 2, "would be read as 0"),
    BAD("[1e-99999999999999999999]", 1, 2, "cannot be kept exactly"),
    BAD("[0.0001e-99999999999999999999]", 1, 2, "cannot be kept exactly"),
    BAD("[1000000000000000000000000000000000000000000000000000000000000000]", 1, 2, "64 characters"),
    BAD("[0.10000000000000000000000000000000000000000000000000000000000000]", 1, 2, "at most 63"),
    /* faults in strings */
    BAD("\"", 1, 1, "never closed"),
    BAD("[\"abc", 1, 2, "never closed"),
    BAD("[\"abc\\\"]", 1, 2, "never closed"),
    BAD("[\"a\nb\"]", 1, 2, "not closed on its line"),
    BAD("[\"a\rb\"]", 1, 2, "not closed on its line"),
    BAD("[\"a\tb\"]", 1, 4, "control character 0x09"),
    BAD("[\"a\0b\"]", 1, 4, "control character 0x00"),
    BAD("[\"\x1f\"]", 1, 3, "control character 0x1f in a string"),
    BAD("[\"\\x41\"]", 1, 3, "unknown escape"),
    BAD("[\"\\'\"]", 1, 3, "unknown escape"),
    BAD("[\"\\\0\"]", 1, 3, "unknown escape"),
    BAD("[\"\\", 1, 3, "unknown escape"),
    BAD("[\"\\u12\"]", 1, 3, "four hexadecimal digits"),
    BAD("[\"\\u12g4\"]", 1, 3, "four hexadecimal digits"),
    BAD("[\"\\u", 1, 3, "four hexadecimal digits"),
    BAD("[\"\\u0000\"]", 1, 3, "\\u0000 is not allowed"),
    BAD("{\"a\\u0000b\":1}", 1, 4, "\\u0000 is not allowed"),
    BAD("[\"\\ud800\"]", 1, 3, "first half of a surrogate pair"),
    BAD("[\"\\ud83d\\u0041\"]", 1, 3, "first half of a surrogate pair"),
    BAD("[\"\\ud83d\\ud83d\"]", 1, 3, "first half of a surrogate pair"),
    BAD("[\"\\ud83d\\ue000\"]", 1, 3, "first half of a surrogate pair"),
    BAD("[\"\\udc00\"]", 1, 3, "second half of a surrogate pair"),
    BAD("[\"\\uDFFF\"]", 1, 3, "second half of a surrogate pair"),
    /* UTF-8 */
    BAD("[\"\x80\"]", 1, 3, "byte 0x80 is not valid UTF-8"),
    BAD("[\"\xff\"]", 1, 3, "byte 0xff is not valid UTF-8"),
    BAD("[\"\xc3\"]", 1, 3, "byte 0xc3 is not valid UTF-8"),
    BAD("[\"\xc3(\"]", 1, 3, "not valid UTF-8"),
    BAD("[\"\xc0\xaf\"]", 1, 3, "not valid UTF-8"),
    BAD("[\"\xc1\xbf\"]", 1, 3, "not valid UTF-8"),
    BAD("[\"\xe0\x80\xaf\"]", 1, 3, "not valid UTF-8"),
    BAD("[\"\xe2\x82\"]", 1, 3, "not valid UTF-8"),
    BAD("[\"\xed\xa0\x80\"]", 1, 3, "not valid UTF-8"),
    BAD("[\"\xf0\x8f\xbf\xbf\"]", 1, 3, "not valid UTF-8"),
    BAD("[\"\xf4\x90\x80\x80\"]", 1, 3, "not valid UTF-8"),
    BAD("[\"\xf5\x80\x80\x80\"]", 1, 3, "not valid UTF-8"),
    BAD("[\"ok\xc3\xa9\xe9\"]", 1, 7, "byte 0xe9"),
    BAD("{\"\xe9\":1}", 1, 3, "byte 0xe9"),
    /* duplicate keys */
    BAD("{\"a\":1,\"a\":2}", 1, 8, "duplicate key \"a\", first at line 1"),
    BAD("{\"a\":1,\n\"b\":{\"c\":1,\n\"c\":2}}", 3, 1, "duplicate key \"b.c\", first at line 2"),
    BAD("{\"ab\":1,\n\"a\\u0062\":2}", 2, 1, "duplicate key \"ab\", first at line 1"),
    BAD("{\"x\":[{\"k\":1},{\"k\":1,\"k\":2}]}", 1, 22, "duplicate key \"x[1].k\""),
    BAD("{\"b\":1,\"a\":1,\n\"a\":2,\"b\":2}", 2, 1, "duplicate key \"a\""),
    BAD("{\"\":1,\"\":2}", 1, 7, "duplicate key \"\""),
    BAD("{\"a\":1,\"a\":2,\"b\":1,\"b\":2}", 1, 8, "duplicate key \"a\""),
    BAD("{\"b\":1,\"b\":2,\n\"a\":1,\"a\":2}", 1, 8, "duplicate key \"b\""),
};

static void refuse(const Bad *bad, size_t limit) {
    Json      json;
    JsonFault fault = {{0, 0}, "", 0};
    /* the copy is exactly as long as the text, so that ASan sees a read after its end */
    char     *copy = malloc(bad->bytes + 1);
    memcpy(copy, bad->text, bad->bytes);
    copy = realloc(copy, bad->bytes ? bad->bytes : 1);
    int good = json_parse(copy, bad->bytes, limit, &json, &fault);
    free(copy);
    if (good) fail_msg("accepted: %s", bad->text);
    if (fault.at.line != bad->line || fault.at.column != bad->column || !strstr(fault.text, bad->says))
        fail_msg("%s\n  gave %d:%d: %s\n  want %d:%d: ...%s...", bad->text, fault.at.line, fault.at.column, fault.text,
                 bad->line, bad->column, bad->says);
    assert_null(json.root);
}

static void test_bad_texts(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof BAD_TEXTS / sizeof *BAD_TEXTS; i++) refuse(&BAD_TEXTS[i], JSON_LIMIT);
}

static char *repeated(const char *head, const char *unit, int times, const char *tail) {
    char *text = calloc(1, strlen(head) + strlen(unit) * (size_t)times + strlen(tail) + 1), *at = stpcpy(text, head);
    for (int i = 0; i < times; i++) at = stpcpy(at, unit);
    strcpy(at, tail);
    return text;
}

static void refuse_text(char *text, int line, int column, const char *says, size_t limit) {
    refuse(&(Bad){text, strlen(text), line, column, says}, limit);
    free(text);
}

static int accepts(const char *text) {
    Json      json;
    JsonFault fault;
    int       good = json_parse(text, strlen(text), JSON_LIMIT, &json, &fault);
    if (!good) print_message("%s: %d:%d: %s\n", text, fault.at.line, fault.at.column, fault.text);
    json_free(&json);
    return good;
}

static void test_limits(void **state) {
    (void)state;
    char closing[80];
    memset(closing, ']', sizeof closing);
    closing[JSON_DEPTH] = '\0';
    char *deepest = repeated("", "[", JSON_DEPTH, closing);
    assert_true(accepts(deepest));
    free(deepest);
    refuse_text(repeated("", "[", JSON_DEPTH + 1, ""), 1, JSON_DEPTH + 1, "deeper than 32", JSON_LIMIT);
    refuse_text(repeated("", "[", 100000, ""), 1, JSON_DEPTH + 1, "deeper than 32", JSON_LIMIT);
    refuse_text(repeated("", "{\"a\":", 100000, ""), 1, 5 * JSON_DEPTH + 1, "deeper than 32", JSON_LIMIT);
    refuse_text(repeated("[", " ", JSON_LIMIT - 1, "]"), 1, 1, "larger than 1048576 bytes", JSON_LIMIT);
    refuse_text(repeated("[", " ", 99, "]"), 1, 1, "larger than 100 bytes", 100);
    char *longest = repeated("[", " ", JSON_LIMIT - 2, "]");
    assert_true(accepts(longest));
    free(longest);
    refuse_text(repeated("{\"", "k", 256, "\":1}"), 1, 258, "longer than 255 bytes", JSON_LIMIT);
    refuse_text(repeated("{\"", "k", 200000, "\":1}"), 1, 258, "longer than 255 bytes", JSON_LIMIT);
    refuse_text(repeated("{\"", "k", 255, "\\n\":1}"), 1, 258, "longer than 255 bytes", JSON_LIMIT);
    refuse_text(repeated("{\"", "k", 255, "\\u0041\":1}"), 1, 258, "longer than 255 bytes", JSON_LIMIT);
    refuse_text(repeated("{\"", "k", 255, "\":{\"a\":1}}"), 1, 261, "longer than 255 bytes", JSON_LIMIT);
    refuse_text(repeated("{\"", "k", 255, "\":[1]}"), 1, 261, "longer than 255 bytes", JSON_LIMIT);
    refuse_text(repeated("{\"k\":1,\n\"k\":2,", "\"x\":1,", 20000, "\"k\":3}"), 2, 1, "first at line 1", JSON_LIMIT);
}

static void test_good_texts(void **state) {
    (void)state;
    static const char *const good[] = {
        "{}", "[]", " [ ] ", "\t{\r\n}\n", "1", "-0", "0", "0.0", "-0.0e-5", "0e99999999999999999999", "1e30", "1E+5", "6e-4", "1.5e-300",
        "9007199254740992", "-9007199254740992", "600.0", "6e2", "0.1", "123456789.123456789", "1.7976931348623157e308", "4e-320", "true",
        "null", "\"\"", "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00e9\\u20ac\\ud83d\\ude00\"", "\"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \x7f\"",
        "\"\xe0\xa0\x80 \xe0\xa4\x85 \xed\x95\x9c \xed\x9f\xbf \xee\x80\x80 \xf0\x90\x80\x80 \xf4\x8f\xbf\xbf \\ue000 \\ud7ff\"",
        "{\"a\":{\"a\":1},\"b\":{\"a\":1}}", "{\"a\":1,\"A\":2}", "{\"a.b\":1,\"a\":{\"b\":2}}", "[[1,2],[{\"x\":[]}]]", "{\"\":{\"\":0}}",
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) assert_true(accepts(good[i]));
}

static void test_places(void **state) {
    (void)state;
    static const char text[] = "{ \"run\": {\"steps\": 600,\n"
                               "   \"d\\u0069r\":\"x\"},\n"
                               "\t\"data\": [1,\r\n  {\"a\": true}, \"\xc3\xa9\", [ ]],\n"
                               "  \"z\" :\n null }";
    static const struct { const char *path; JsonPlace key, value; } want[] = {
        {"run", {1, 3}, {1, 10}},      {"run.steps", {1, 11}, {1, 20}}, {"run.dir", {2, 4}, {2, 15}},
        {"data", {3, 2}, {3, 10}},     {"data[0]", {3, 11}, {3, 11}},   {"data[1]", {4, 3}, {4, 3}},
        {"data[1].a", {4, 4}, {4, 9}}, {"data[2]", {4, 16}, {4, 16}},   {"data[3]", {4, 22}, {4, 22}},
        {"z", {5, 3}, {6, 2}},
    };
    Json      json;
    JsonFault fault;
    assert_int_equal(json_parse(text, sizeof text - 1, JSON_LIMIT, &json, &fault), 1);
    assert_int_equal(json.entries, sizeof want / sizeof *want);
    for (int i = 0; i < json.entries; i++) {
        assert_string_equal(json.entry[i].path, want[i].path);
        assert_memory_equal(&json.entry[i].key, &want[i].key, sizeof want[i].key);
        assert_memory_equal(&json.entry[i].value, &want[i].value, sizeof want[i].value);
        assert_ptr_equal(json_entry(&json, want[i].path), &json.entry[i]);
    }
    assert_null(json_entry(&json, "run.step"));
    assert_true(json_member(json_member(json.root, "run"), "steps")->valuedouble == 600);
    assert_null(json_member(json.root, "RUN"));
    assert_null(json_member(json_member(json.root, "data"), "a"));
    assert_null(json_member(NULL, "a"));
    json_free(&json);
    assert_null(json.root);
}

/* json_parse_all does not stop at a duplicate key or a number that cannot be kept exactly. It lists these faults
 * ("soft") in the order of the text, marks their entries and builds the tree. Any other fault ends parsing. */
static void test_soft_faults(void **state) {
    (void)state;
    static const char text[] = "{\"a\": 1e400, \"b\": {\"c\": 1,\n \"c\": 2, \"d\": [0, 9007199254740993]},\n"
                               " \"c\": 3, \"b\": 1e-400, \"a\": 7,\n \"a\": 8}";
    static const JsonFault want[] = {
        {{1, 7}, "x.a: the number 1e400 is too large", 1},
        {{2, 2}, "duplicate key \"x.b.c\", first at line 1", 0},
        {{2, 19}, "x.b.d[1]: the integer 9007199254740993 is beyond 2^53 = 9007199254740992 and cannot be kept exactly", 1},
        {{3, 10}, "duplicate key \"x.b\", first at line 1", 0},
        {{3, 15}, "x.b: the number 1e-400 cannot be kept exactly; it would be read as 0", 1},
        {{3, 23}, "duplicate key \"x.a\", first at line 1", 0},
        {{4, 2}, "duplicate key \"x.a\", first at line 1", 0},
    };
    static const int faulty[] = {1, 1, 1, 1, 0, 0, 1, 0, 1, 1, 1}; /* a b b.c b.c b.d b.d[0] b.d[1] c b a a */
    Json      json;
    JsonFault fault;
    assert_int_equal(json_parse_all(text, sizeof text - 1, JSON_LIMIT, "x", &json, &fault), 1);
    assert_int_equal(json.softs, sizeof want / sizeof *want);
    for (int i = 0; i < json.softs; i++) {
        assert_string_equal(json.soft[i].text, want[i].text);
        assert_memory_equal(&json.soft[i].at, &want[i].at, sizeof want[i].at);
        assert_int_equal(json.soft[i].is_number, want[i].is_number);
    }
    assert_int_equal(json.entries, sizeof faulty / sizeof *faulty);
    for (int i = 0; i < json.entries; i++) assert_int_equal(json.entry[i].faulty, faulty[i]);
    assert_int_equal(cJSON_GetArraySize(json.root), 6);
    json_free(&json);
    assert_null(json.soft);
    assert_int_equal(json_parse(text, sizeof text - 1, JSON_LIMIT, &json, &fault), 0);
    assert_string_equal(fault.text, "a: the number 1e400 is too large");
    assert_int_equal(json_parse_all(text, sizeof text - 2, JSON_LIMIT, "", &json, &fault), 0);
    assert_non_null(strstr(fault.text, "found the end"));
    assert_true(!json.root && !json.soft && !json.entry && !json.softs);
    assert_int_equal(json_parse_all("1e400", 5, JSON_LIMIT, "run.steps", &json, &fault), 1);
    assert_string_equal(json.soft[0].text, "run.steps: the number 1e400 is too large");
    json_free(&json);
    char *many = repeated("[", "1e400,", 99, "1e400]"), *top = repeated("", "t", 256, "");
    assert_int_equal(json_parse_all(many, strlen(many), JSON_LIMIT, "", &json, &fault), 1);
    assert_int_equal(json.softs, 100);
    assert_string_equal(json.soft[99].text, "[99]: the number 1e400 is too large");
    json_free(&json);
    assert_int_equal(json_parse_all("1", 1, JSON_LIMIT, top, &json, &fault), 0);
    assert_non_null(strstr(fault.text, "longer than 255 bytes"));
    free(top);
    free(many);
}

/* Cuts a valid text at every byte, and replaces the last byte by every value. The result is refused or a whole value.
 * No read goes past the end. */
static void test_cuts_and_flips(void **state) {
    (void)state;
    static const char text[] = "{\"a\":[-1.5e+3,true,null],\"b\\u00e9\\ud83d\\ude00\":{\"c\":\"\xe2\x82\xac\\n\"}}";
    for (size_t length = 0; length < sizeof text - 1; length++) {
        for (int flip = 0; flip < 256; flip++) {
            Json      json;
            JsonFault fault;
            char     *copy = malloc(length + 1);
            memcpy(copy, text, length);
            copy[length] = (char)flip;
            int good = json_parse(copy, length + 1, JSON_LIMIT, &json, &fault);
            if (!good) assert_in_range(fault.at.column, 1, length + 2);
            json_free(&json);
            if (json_parse_all(copy, length + 1, JSON_LIMIT, "", &json, &fault)) assert_int_equal(good, json.softs == 0);
            else assert_false(good);
            json_free(&json);
            free(copy);
        }
    }
}

static void test_quote(void **state) {
    (void)state;
    assert_int_equal(utf8_bytes("", 0), 0);
    char out[64];
    assert_int_equal(json_quote(out, sizeof out, "a\"\\\n\x01\xc3\xa9"), 17);
    assert_string_equal(out, "\"a\\\"\\\\\\n\\u0001\xc3\xa9\"");
    json_quote(out, sizeof out, "x\xff\xc3y");
    assert_string_equal(out, "\"x\\ufffd\\ufffdy\"");
    cJSON *string = json_string("x\xff\xc3y\xc3\xa9");
    assert_string_equal(string->valuestring, "x\xef\xbf\xbd\xef\xbf\xbdy\xc3\xa9");
    assert_true(json_reads_as(string->valuestring, "x\xff\xc3y\xc3\xa9"));
    assert_false(json_reads_as(string->valuestring, "x\xffy\xc3\xa9"));
    assert_true(json_reads_as("", "") && !json_reads_as("a", "ab") && !json_reads_as("ab", "a"));
    cJSON_Delete(string);
    assert_int_equal(json_quote(out, 4, "abcdef"), 8);
    assert_string_equal(out, "\"ab");
    assert_int_equal(json_quote(NULL, 0, "abc"), 5);
    char  *printed;
    size_t bytes;
    FILE  *file = memory_file_open(&printed, &bytes);
    json_print_string(file, "a\"\\\n\x01\xc3\xa9\xff");
    fclose(file);
    assert_string_equal(printed, "\"a\\\"\\\\\\n\\u0001\xc3\xa9\\ufffd\"");
    free(printed);
    assert_string_equal(json_quote_short(out, 16, "abc"), "\"abc\"");
    assert_string_equal(json_quote_short(out, 16, "0123456789abc"), "\"0123456789abc\"");
    assert_string_equal(json_quote_short(out, 16, "0123456789abcdefgh"), "\"0123456789...\"");
    assert_string_equal(json_quote_short(out, 16, "\x01\x01\x01\x01"), "\"\\u0001...\"");
    assert_string_equal(json_quote_short(out, 16, "\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9"),
                        "\"\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9...\"");
}

/* A fault in a file is reported as a sentence with path and place. The proposed command quotes the file's name for a
 * shell. */
static void test_files(void **state) {
    (void)state;
    static const char big[] = "{\"most\": 1000000000000000019884624838656}", twice[] = "{\"a\": 1,\n \"a\": 1000000000000000019884624838656}";
    static const struct { const char *text; int keeps, code; const char *says; } files[] = {
        {"{\"a\": 1}", 0, 0, ""},
        {"{\"a\": 1,}", 1, EXIT_DATA, "json file.json:1:8: a comma before '}'"},
        {"\xef\xbb\xbf{}", 1, EXIT_DATA, ":1:1: starts with a byte-order mark; save it as plain UTF-8, as by tail -c +4 '"},
        {big, 0, EXIT_DATA, "the integer 1000000000000000019884624838656 is beyond 2^53"},
        {big, 1, 0, ""},
        {twice, 1, EXIT_DATA, ":2:2: duplicate key \"a\", first at line 1"},
        {twice, 0, EXIT_DATA, ":2:2: duplicate key \"a\", first at line 1"},
        /* refused: this last file is read with a limit of 8 bytes */
        {"{\"a\": 12}", 0, EXIT_DATA, "cannot be read: "},
    };
    char dir[] = "/tmp/json_file_XXXXXX", path[64], fault[JSON_FILE_FAULT_CHARS];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/json file.json", dir);
    Json json;
    assert_int_equal(json_read_file(path, 100, 0, &json, fault), -ENOENT);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        assert_int_equal(io_replace_file(path, files[i].text, strlen(files[i].text)), 0);
        *fault = 0;
        int code = json_read_file(path, i == sizeof files / sizeof *files - 1 ? 8 : 100, files[i].keeps, &json, fault);
        if (code != files[i].code || !strstr(fault, files[i].says)) fail_msg("%s: %d, %s", files[i].text, code, fault);
        if (!code) json_free(&json);
    }
    io_unlink(path), rmdir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_texts), cmocka_unit_test(test_limits), cmocka_unit_test(test_good_texts),
        cmocka_unit_test(test_places),    cmocka_unit_test(test_quote),  cmocka_unit_test(test_cuts_and_flips),
        cmocka_unit_test(test_soft_faults), cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
