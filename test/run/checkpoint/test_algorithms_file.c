/* test_algorithms_file.c - the table of algorithms of matrix products: written and read back, damaged, and from another
 * machine. */
#include "core/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h> /* after error.h, because cmocka's macro fail() would change the declarations there */

#include "layers/algorithms.h"
#include "run/checkpoint/algorithms_file.h"
#include "test/run/lib/child.h"

static void test_round_trip(void **state) {
    (void)state;
    MatmulAlgorithm one = {"bf16 to bf16, m 1", 66, {0xffffffffu, 1, 2, 3, 4, 5, 6, 7, 8}},
                    two = {"fp32 \"added\"", ALGORITHM_NONE, {0}}, own = {"fp16 to fp32", ALGORITHM_OWN, {1, 2, 7}};
    matmul_algorithms_clear();
    matmul_algorithms_set(one);
    matmul_algorithms_set(two);
    matmul_algorithms_set(own);
    cJSON *json = algorithms_to_json();
    char  *text = cJSON_PrintUnformatted(json);
    cJSON *again = cJSON_Parse(text);
    matmul_algorithms_clear();
    assert_int_equal(algorithms_from_json(again, "a file"), 1);
    assert_int_equal(matmul_algorithms.count, 3);
    MatmulAlgorithm a = matmul_algorithms.record[0], b = matmul_algorithms.record[1], c = matmul_algorithms.record[2];
    assert_string_equal(a.key, one.key), assert_string_equal(b.key, two.key);
    assert_memory_equal(&a.id, &one.id, sizeof one - offsetof(MatmulAlgorithm, id));
    assert_memory_equal(&b.id, &two.id, sizeof two - offsetof(MatmulAlgorithm, id));
    assert_memory_equal(&c.id, &own.id, sizeof own - offsetof(MatmulAlgorithm, id));
    cJSON_Delete(again), cJSON_free(text), cJSON_Delete(json);
}

static MatmulAlgorithm here = {"as it was", 1, {2, 3, 4, 5, 6, 7, 8, 9}};

static void take(void *json) {
    _exit(algorithms_from_json((const cJSON *)json, "runs/x/gemm.json"));
}
/* Asserts that a table is refused with a warning that contains all words, and that the table stays unchanged. */
static void assert_refused(cJSON *json, const char *const words[], int count) {
    Child c = child_run(take, json);
    assert_int_equal(c.code, 0);
    assert_int_equal(child_lines(&c), 1);
    for (int i = 0; i < count; i++)
        if (!strstr(c.said, words[i])) fail_msg("\"%s\" is not in: %s", words[i], c.said);
    matmul_algorithms_clear();
    matmul_algorithms_set(here);
    assert_int_equal(algorithms_from_json(json, "a file"), 0);
    assert_int_equal(matmul_algorithms.count, 1);
    assert_string_equal(matmul_algorithms.record[0].key, here.key);
}

static void test_other_things(void **state) {
    (void)state;
    static const char *const records[] =
        {"1",
         "{}",
         "{\"product\":\"x\"}",
         "{\"product\":7,\"algorithm\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}",
         "{\"product\":\"x\",\"algorithm\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}",
         "{\"product\":\"x\",\"algorithm\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,4294967296]}",
         "{\"product\":\"x\",\"algorithm\":[-4,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}",
         "{\"product\":\"x\",\"algorithm\":[1,-1,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}",
         "{\"product\":\"x\",\"algorithm\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,\"17\"]}"};
    static const char *const texts[] = {"{}",
                                        "7",
                                        "[1]",
                                        "[]",
                                        "{\"gpu\":\"x\",\"isa\":\"x\",\"library\":\"x\",\"products\":7}",
                                        "{\"gpu\":7,\"products\":[]}"};
    static const char *const words[] = {"runs/x/gemm.json", "no table"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        cJSON *json = cJSON_Parse(texts[i]);
        assert_refused(json, words, 2);
        cJSON_Delete(json);
    }
    /* a list of products with a valid entry and then a damaged one is refused as a whole */
    for (size_t i = 0; i < sizeof records / sizeof *records; i++) {
        matmul_algorithms_clear();
        matmul_algorithms_set(here);
        cJSON *json = algorithms_to_json();
        cJSON_AddItemToArray(cJSON_GetObjectItemCaseSensitive(json, "products"), cJSON_Parse(records[i]));
        assert_refused(json, words, 2);
        cJSON_Delete(json);
    }
}

/* A table of matrix-product algorithms is not used on another GPU, another instruction set or another version of the
 * library. The warning names the two that differ. */
static void test_another_machine(void **state) {
    (void)state;
    device_open(0, 1);
    const struct {
        const char *key, *here;
    } makers[] = {{"gpu", device_name()}, {"isa", device_isa()}, {"library", matmul_library()}};
    matmul_algorithms_clear();
    matmul_algorithms_set(here);
    for (int i = 0; i < 3; i++) {
        cJSON *json = algorithms_to_json(), *value = cJSON_GetObjectItemCaseSensitive(json, makers[i].key);
        assert_non_null(value);
        assert_string_equal(value->valuestring, makers[i].here);
        assert_int_equal(algorithms_from_json(json, "a file"), 1);
        cJSON_SetValuestring(value, "elsewhere");
        assert_refused(json, (const char *const[]){"runs/x/gemm.json", "elsewhere", makers[i].here, "chosen anew"}, 4);
        cJSON_DeleteItemFromObject(json, makers[i].key);
        assert_refused(json, (const char *const[]){"no table"}, 1);
        cJSON_Delete(json);
    }
    assert_true(strlen(matmul_library()) > strlen("x 1.0"));
}

int main(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_round_trip), cmocka_unit_test(test_other_things),
                                     cmocka_unit_test(test_another_machine)};
    return cmocka_run_group_tests_name("algorithms file", all, NULL, NULL);
}
