/* test_memory_file.c - text written into memory: all of it is there, or fclose() fails, for each failing allocation. */
#include "core/memory_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int asked, refused; /* number of allocations so far; number of the one that fails, 0: none */

static int refuse(void) { return ++asked == refused; }

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
FILE *__real_fopencookie(void *cookie, const char *mode, cookie_io_functions_t functions);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
FILE *__wrap_fopencookie(void *cookie, const char *mode, cookie_io_functions_t functions);

void *__wrap_malloc(size_t bytes) { return refuse() ? NULL : __real_malloc(bytes); }
void *__wrap_calloc(size_t n, size_t bytes) { return refuse() ? NULL : __real_calloc(n, bytes); }
void *__wrap_realloc(void *old, size_t bytes) { return refuse() ? NULL : __real_realloc(old, bytes); }
FILE *__wrap_fopencookie(void *cookie, const char *mode, cookie_io_functions_t functions) {
    return refuse() ? NULL : __real_fopencookie(cookie, mode, functions);
}

enum { LINES = 20000 };

/* Returns 1 if fclose() succeeds; then all lines must be there. Without a buffer, fclose() has nothing left to
 * write. */
static int write_lines(char **text, size_t *bytes, int buffering) {
    FILE *out = memory_file_open(text, bytes);
    if (!out) return 0;
    setvbuf(out, NULL, buffering, BUFSIZ);
    for (int i = 0; i < LINES; i++) fprintf(out, "%06d\n", i);
    if (fclose(out) != 0) return 0;
    assert_int_equal(*bytes, 7 * LINES);
    assert_int_equal(strlen(*text), *bytes);
    for (int i = 0; i < LINES; i++) assert_int_equal(atoi(*text + 7 * i), i);
    return 1;
}

static void there_or_missed(int buffering) {
    char  *text;
    size_t bytes;
    asked = refused = 0;
    assert_true(write_lines(&text, &bytes, buffering));
    free(text);
    int all = asked;
    assert_true(all > 6);
    for (int n = 1; n <= all; n++) {
        asked = 0, refused = n;
        assert_false(write_lines(&text, &bytes, buffering));
        free(text);
    }
}

static void text_is_there_or_missed(void **state) {
    (void)state;
    there_or_missed(_IOFBF);
    there_or_missed(_IONBF);
}

static void text_can_be_read_after_a_flush(void **state) {
    (void)state;
    char  *text;
    size_t bytes;
    asked = refused = 0;
    FILE  *out = memory_file_open(&text, &bytes);
    assert_string_equal(text, "");
    assert_int_equal(fflush(out), 0);
    assert_int_equal(bytes, 0);
    fprintf(out, "some");
    fflush(out);
    assert_string_equal(text, "some");
    fprintf(out, "%*s", 3, "");
    fflush(out);
    assert_int_equal(bytes, 7);
    assert_int_equal(fclose(out), 0);
    assert_string_equal(text, "some   ");
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(text_is_there_or_missed), cmocka_unit_test(text_can_be_read_after_a_flush)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
