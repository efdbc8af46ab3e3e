/* test_text_stream.c - generated text that arrives in pieces. The result does not depend on the pieces, and text is
 * passed on as soon as no stop text can begin in it. */
#include "run/text/sample.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct { char text[512]; size_t bytes; } Page;

static void put(void *page, const char *text, size_t bytes) {
    Page *p = page;
    assert_true(p->bytes + bytes < sizeof p->text);
    memcpy(p->text + p->bytes, text, bytes);
    p->text[p->bytes += bytes] = 0;
}

/* Passes the text in pieces of `step` bytes, with these stop texts, and asserts that `want` is printed. */
static void assert_text(const char *text, size_t step, const char *const *stop, int stops, const char *want) {
    Page       page = {.bytes = 0};
    TextStream t = {.put = put, .ctx = &page};
    t.stop = stop, t.stops = stops;
    for (size_t at = 0, length = strlen(text); at < length; at += step)
        text_stream_add(&t, text + at, length - at < step ? length - at : step);
    text_stream_end(&t);
    assert_string_equal(page.text, want);
}
static void assert_always(const char *text, const char *const *stop, int stops, const char *want) {
    for (size_t step = 1; step <= strlen(text); step++) assert_text(text, step, stop, stops, want);
}

static void only_whole_printable_sequences(void **state) {
    (void)state;
    assert_always("plain text\n\twith lines", NULL, 0, "plain text\n\twith lines");
    assert_always("caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80!", NULL, 0, "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80!");
    assert_always("\xff|\x1b[2J|\xe2\x82 |\xc2\x9b|\xed\xa0\x80|\xc0\x80", NULL, 0,
                  "\xef\xbf\xbd|\xef\xbf\xbd[2J|\xef\xbf\xbd\xef\xbf\xbd |\xef\xbf\xbd\xef\xbf\xbd|\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd|"
                  "\xef\xbf\xbd\xef\xbf\xbd");
    assert_always("cut \xf0\x9f\x98", NULL, 0, "cut \xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
}

static void ends_before_a_stop_text(void **state) {
    (void)state;
    static const char *const one[] = {"END"}, *const two[] = {"\n\n", "aab"}, *const inner[] = {"abcd", "c"};
    assert_always("before END after", one, 1, "before ");
    assert_always("EN EEND after", one, 1, "EN E");
    assert_always("EN", one, 1, "EN"); /* the text ends with the beginning of a stop text, which must be printed */
    assert_always("a line\nand aaab", two, 2, "a line\nand a");
    assert_always("a line\n\nand aab", two, 2, "a line");
    assert_always("ENDless", one, 1, "");
    assert_always("xabcd", inner, 2, "x");
    assert_always("xabcx", inner, 2, "xab");
    assert_always("xabc", inner, 2, "xab");
}

/* Checks after each piece which text has been printed so far. A piece is held back while it may be the beginning of a
 * character or of a stop text. */
static void passes_on_what_is_certain(void **state) {
    (void)state;
    static const char *const stop[] = {"END"};
    static const struct { const char *piece, *read; } steps[] = {
        {"a", "a"},
        {"\xe2\x82", "a"},
        {"\xac", "a\xe2\x82\xac"},
        {"|E", "a\xe2\x82\xac|"},
        {"N", "a\xe2\x82\xac|"},
        {"T", "a\xe2\x82\xac|ENT"},
        {"\xc3", "a\xe2\x82\xac|ENT"},
        {"x", "a\xe2\x82\xac|ENT\xef\xbf\xbdx"},
    };
    Page       page = {.bytes = 0};
    TextStream t = {.put = put, .ctx = &page};
    text_stream_add(&t, "END ", 4); /* adds a prompt, in which stop texts do not end the text */
    assert_string_equal(page.text, "END ");
    t.stop = stop, t.stops = 1;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        text_stream_add(&t, steps[i].piece, strlen(steps[i].piece));
        assert_string_equal(page.text + 4, steps[i].read);
        assert_int_equal(t.is_over, 0);
    }
    text_stream_add(&t, "END more", 8);
    assert_int_equal(t.is_over, 1);
    text_stream_add(&t, "and more", 8);
    text_stream_end(&t);
    assert_string_equal(page.text + 4, "a\xe2\x82\xac|ENT\xef\xbf\xbdx");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(only_whole_printable_sequences),
                                       cmocka_unit_test(ends_before_a_stop_text),
                                       cmocka_unit_test(passes_on_what_is_certain)};
    return cmocka_run_group_tests_name("text_stream", tests, NULL, NULL);
}
