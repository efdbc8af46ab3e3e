/* test_weights_index.c - indexes that must be read, indexes that must be refused, and the index that the program
 * writes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "run/checkpoint/safetensors.h"
#include "test/run/config/every_value.h"

/* Parses a copy of the text in an allocation of exactly its size, so that AddressSanitizer notices a read after its
 * end. */
static int parse(const char *text, WeightsIndex *out, char *fault) {
    size_t bytes = strlen(text);
    char  *copy = malloc(bytes + 1);
    memcpy(copy, text, bytes);
    int good = weights_index_parse(copy, bytes, out, fault);
    free(copy);
    return good;
}

static void test_an_index_is_read(void **state) {
    (void)state;
    char         fault[SAFETENSORS_FAULT_BYTES];
    WeightsIndex x;
    assert_true(parse("{\"metadata\":{\"total_size\":1.5e9,\"total_parameters\":7},\"weight_map\":{\"b\":\"two.safetensors\",\"a\":\"one.safetensors\","
                      "\"c\":\"two.safetensors\"}}", &x, fault));
    assert_int_equal(x.tensors, 3);
    assert_int_equal(x.files, 2);
    assert_string_equal(x.file[0], "one.safetensors");
    assert_string_equal(x.file[1], "two.safetensors");
    static const struct { const char *name; int file; } wanted[] = {{"a", 0}, {"b", 1}, {"c", 1}};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(weights_index_find(&x, wanted[i].name), i);
        assert_int_equal(x.tensor[i].file, wanted[i].file);
    }
    assert_int_equal(weights_index_find(&x, "d"), -1);
    weights_index_free(&x);
}

static void test_others_are_refused(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"", "is damaged (line 1 column 1"},
        {"{\"weight_map\":{\"a\":\"x.safetensors\"}", "is damaged (line"},
        {"{\"weight_map\":{\"a\":\"x.safetensors\",\"a\":\"y.safetensors\"}}", "duplicate key \"weight_map.a\""},
        {"{\"metadata\":{}}", "has no weight_map"},
        {"[]", "has no weight_map"},
        {"{\"weight_map\":[\"x.safetensors\"]}", "has no weight_map"},
        {"{\"weight_map\":{}}", "has an empty weight_map"},
        {"{\"weight_map\":{\"a\":1}}", "tensor \"a\""},
        {"{\"weight_map\":{\"a\":\"x.bin\"}}", "tensor \"a\""},
        {"{\"weight_map\":{\"a\":\".safetensors\"}}", "tensor \"a\""},
        {"{\"weight_map\":{\"a\":\"../x.safetensors\"}}", "tensor \"a\""},
        {"{\"weight_map\":{\"a\":\"/etc/x.safetensors\"}}", "tensor \"a\""},
        {"{\"weight_map\":{\"a\":\"x\\ny.safetensors\"}}", "tensor \"a\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char         fault[SAFETENSORS_FAULT_BYTES] = "";
        WeightsIndex x;
        assert_false(parse(cases[i][0], &x, fault));
        assert_true(x.tensors == 0 && !x.tensor && !x.file);
        if (!strstr(fault, cases[i][1])) fail_msg("case %zu: %s", i, fault);
    }
}

static void read_changed(char *text, void *good) {
    char         fault[SAFETENSORS_FAULT_BYTES] = "";
    WeightsIndex x;
    if (!parse(text, &x, fault)) {
        if (!fault[0]) fail_msg("refused without a word: %s", text);
        return;
    }
    weights_index_free(&x);
    ++*(int *)good;
}

/* Replaces each value of the index in turn. Each text is refused, or accepted and consistent. */
static void test_every_value(void **state) {
    (void)state;
    int good = 0;
    int all = every_value("{\"metadata\":{\"total_size\":8},\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"y.safetensors\"}}", read_changed, &good);
    assert_true(good > 0 && good < all);
}

/* Too many tensors are refused before memory is allocated for them. */
static void test_too_many_are_refused(void **state) {
    (void)state;
    enum { BYTES = 1 << 20 };
    char         fault[SAFETENSORS_FAULT_BYTES] = "", *text = malloc(BYTES);
    WeightsIndex x;
    memset(text, ',', BYTES);
    assert_false(weights_index_parse(text, BYTES, &x, fault));
    assert_non_null(strstr(fault, "has more than"));
    free(text);
}

static void test_our_own_reads_back(void **state) {
    (void)state;
    static const IndexedTensor tensor[] = {{"wte \"x\"", 0}, {"h.0", 0}, {"h.1", 1}};
    static const char *const   file[] = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"};
    char         fault[SAFETENSORS_FAULT_BYTES], *text = weights_index_text(tensor, 3, file, 5000000000ull);
    WeightsIndex x;
    assert_non_null(strstr(text, "\"total_size\": 5000000000"));
    assert_true(parse(text, &x, fault));
    assert_true(x.tensors == 3 && x.files == 2);
    for (int i = 0; i < 3; i++) assert_int_equal(x.tensor[weights_index_find(&x, tensor[i].name)].file, tensor[i].file);
    weights_index_free(&x);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_index_is_read),     cmocka_unit_test(test_others_are_refused),
        cmocka_unit_test(test_every_value),          cmocka_unit_test(test_too_many_are_refused),
        cmocka_unit_test(test_our_own_reads_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
