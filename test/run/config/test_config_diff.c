/* test_config_diff.c - which keys of two configs differ, and which differ from the defaults. */
#include "run/config/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/json.h"

/* Appends "key a b;" to the text `ctx`, for a key whose values in two configs are a and b. */
static void note(void *ctx, const char *key, const cJSON *a, const cJSON *b) {
    char  *out = (char *)ctx, x[SHOWN_BYTES], y[SHOWN_BYTES];
    size_t used = strlen(out);
    snprintf(out + used, 512 - used, "%s %s %s;", key, a ? value_text(a, x) : "-", b ? value_text(b, y) : "-");
}

static const char *diff(const char *a, const char *b, int expected) {
    static char out[512];
    cJSON      *x = cJSON_Parse(a), *y = b ? cJSON_Parse(b) : NULL;
    out[0] = 0;
    assert_non_null(x);
    assert_int_equal(config_diff(x, y, note, out), expected);
    assert_int_equal(config_diff(x, y, NULL, NULL), expected);
    cJSON_Delete(x), cJSON_Delete(y);
    return out;
}

static void test_two(void **state) {
    (void)state;
    assert_string_equal(diff("{\"run\":{\"steps\":5,\"dir\":\"a\"}}", "{\"run\":{\"steps\":5,\"dir\":\"b\"}}", 0), "");
    assert_string_equal(diff("{\"run\":{\"steps\":5}}", "{\"run\":{\"steps\":6}}", 1), "run.steps 5 6;");
    /* a key that one config lacks has its default value there; tested in both orders */
    assert_string_equal(diff("{\"optimizer\":{\"learning_rate\":1e-3}}", "{}", 1),
                        "optimizer.learning_rate 0.001 0.0006;");
    assert_string_equal(diff("{}", "{\"optimizer\":{\"learning_rate\":6e-4}}", 0), "");
    assert_string_equal(diff("{}", "{\"optimizer\":{\"eps\":1}}", 1), "optimizer.eps 1e-08 1;");
    /* run.steps has no default; the program does not know the section "later" */
    assert_string_equal(diff("{\"run\":{}}", "{\"run\":{\"steps\":6}}", 1), "run.steps - 6;");
    assert_string_equal(diff("{\"later\":{\"key\":[1,2]}}", "{\"later\":{\"key\":[1,3]}}", 1),
                        "later.key a list a list;");
    assert_string_equal(diff("{\"later\":{\"key\":1}}", "{\"later\":2}", 2), "later.key 1 -;later - 2;");
    /* numbers that are close still differ */
    assert_string_equal(diff("{\"run\":{\"seed\":9007199254740991}}", "{\"run\":{\"seed\":9007199254740990}}", 1),
                        "run.seed 9007199254740991 9007199254740990;");
    assert_string_equal(diff("{\"$comment\":\"a\",\"run\":{\"$comment\":\"b\"}}", "{\"$schema\":\"c\"}", 0), "");
}

static void test_defaults(void **state) {
    (void)state;
    assert_string_equal(diff("{\"run\":{\"steps\":5,\"seed\":1337},\"checkpoint\":{\"every\":1000,\"keep\":3}}", NULL, 2),
                        "run.steps 5 -;checkpoint.keep 3 2;");
}

int main(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_two), cmocka_unit_test(test_defaults)};
    return cmocka_run_group_tests_name("config_diff", all, NULL, NULL);
}
