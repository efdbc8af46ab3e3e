/* test_memory_file.c - allocations that fail. A text written into memory is complete, or the process ends, whichever
 * allocation fails. The allocating functions of core/error.h end the process with the purpose and the size. */
#include "core/io.h"

#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "test/run/lib/child.h"

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

/* A request for zero bytes returns NULL, as in some C libraries. */
void *__wrap_malloc(size_t bytes) { return refuse() || !bytes ? NULL : __real_malloc(bytes); }
void *__wrap_calloc(size_t n, size_t bytes) { return refuse() || !n || !bytes ? NULL : __real_calloc(n, bytes); }
void *__wrap_realloc(void *old, size_t bytes) { return refuse() ? NULL : __real_realloc(old, bytes); }
FILE *__wrap_fopencookie(void *cookie, const char *mode, cookie_io_functions_t functions) {
    return refuse() ? NULL : __real_fopencookie(cookie, mode, functions);
}

enum { LINES = 20000 };

/* Writes LINES lines to a file in memory while allocation *number fails (0: none). If none fails, all lines must be
 * there; otherwise the process must end. */
static void write_lines(void *number) {
    char  *text;
    size_t bytes;
    asked = 0, refused = *(int *)number;
    FILE  *out = memory_file_open(&text, &bytes);
    for (int i = 0; i < LINES; i++) fprintf(out, "%06d\n", i);
    fclose(out);
    assert_int_equal(bytes, 7 * LINES);
    assert_int_equal(strlen(text), bytes);
    for (int i = 0; i < LINES; i++) assert_int_equal(atoi(text + 7 * i), i);
    free(text);
}

static void text_is_there_or_the_process_ends(void **state) {
    (void)state;
    write_lines(&(int){0});
    int all = asked;
    assert_true(all > 6);
    for (int n = 1; n <= all; n++) {
        Child c = child_run(write_lines, &n);
        assert_int_equal(c.code, EXIT_MEMORY);
        assert_memory_equal(c.said, "train_gpt: no memory for a text", 31);
    }
}

static void text_can_be_read_at_any_time(void **state) {
    (void)state;
    char  *text;
    size_t bytes;
    asked = refused = 0;
    FILE  *out = memory_file_open(&text, &bytes);
    assert_string_equal(text, "");
    assert_int_equal(bytes, 0);
    fprintf(out, "some");
    assert_string_equal(text, "some");
    fprintf(out, "%*s", 3, "");
    assert_int_equal(bytes, 7);
    assert_int_equal(fclose(out), 0);
    assert_string_equal(text, "some   ");
    free(text);
}

static void allocate(void *which) {
    asked = 0, refused = 1;
    switch (*(int *)which) {
        case 0: xmalloc(1023, "a test"); break;
        case 1: xcalloc(3, 1024, "a test"); break;
        case 2: xrealloc(NULL, 12897485, "a test"); break;
        case 3: xstrdup("text", "a test"); break;
        case 4: xstrndup("text", 2, "a test"); break;
        /* a product of sizes that overflows: (SIZE_MAX / 8 + 2) * 8 is 8 modulo 2^64 */
        default: refused = 0, xcalloc(SIZE_MAX / 8 + 2, 8, "a test");
    }
}

static void the_end_names_purpose_and_size(void **state) {
    (void)state;
    static const char *const SIZE[] = {"1023 bytes", "3.0 KiB", "12.3 MiB", "5 bytes", "3 bytes", "17592186044416.0 MiB"};
    for (int i = 0; i < (int)(sizeof SIZE / sizeof *SIZE); i++) {
        char  want[150];
        Child c = child_run(allocate, &i);
        snprintf(want, sizeof want, "train_gpt: no memory for a test: %s wanted; free memory on this host, or", SIZE[i]);
        assert_int_equal(c.code, EXIT_MEMORY);
        assert_memory_equal(c.said, want, strlen(want));
    }
}

static void zero_bytes_are_no_lack_of_memory(void **state) {
    (void)state;
    asked = refused = 0;
    void *one = xmalloc(0, "a test"), *none = xcalloc(0, 8, "a test"), *empty = xcalloc(8, 0, "a test");
    one = xrealloc(one, 0, "a test");
    assert_non_null(one), assert_non_null(none), assert_non_null(empty);
    free(one), free(none), free(empty);
}

static void texts_are_copied(void **state) {
    (void)state;
    asked = refused = 0;
    char *whole = xstrdup("text", "a test"), *part = xstrndup("text", 2, "a test"), *all = xstrndup("text", 9, "a test");
    assert_string_equal(whole, "text"), assert_string_equal(part, "te"), assert_string_equal(all, "text");
    free(whole), free(part), free(all);
}

static void lists_double(void **state) {
    (void)state;
    enum { COUNT = 1000, DOUBLINGS = 11 /* lengths of the array: 1, 2, 4, ... 1024 elements */ };
    int64_t *list = NULL;
    asked = refused = 0;
    for (int64_t i = 0; i < COUNT; i++) {
        list = xgrow(list, i, sizeof *list, "a test");
        assert_true(malloc_usable_size(list) >= sizeof *list * (size_t)(i + 1));
        list[i] = i;
    }
    assert_int_equal(asked, DOUBLINGS);
    for (int64_t i = 0; i < COUNT; i++) assert_int_equal(list[i], i);
    free(list);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(text_is_there_or_the_process_ends), cmocka_unit_test(text_can_be_read_at_any_time),
                                       cmocka_unit_test(the_end_names_purpose_and_size),
                                       cmocka_unit_test(zero_bytes_are_no_lack_of_memory), cmocka_unit_test(texts_are_copied),
                                       cmocka_unit_test(lists_double)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
