/* test_gemm.c - the table of matrix-product algorithms there and back, and what is no such table. */
#include "run/gemm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "layers/algorithms.h"

static void test_round_trip(void **state) {
    (void)state;
    MatmulAlgorithm one = {"bf16 to bf16, m 1", 66, 1, 2, 3, 4, 5, 6, 7, 8}, two = {"fp32 \"added\"", ALGORITHM_NONE, 0, 0, 0, 0, 0, 0, 0, 0};
    matmul_algorithms_clear();
    matmul_algorithms_set(one);
    matmul_algorithms_set(two);
    cJSON *json = gemm_to_json();
    char  *text = cJSON_PrintUnformatted(json);
    cJSON *again = cJSON_Parse(text);
    matmul_algorithms_clear();
    assert_int_equal(gemm_from_json(again), 1);
    assert_int_equal(matmul_algorithms_count(), 2);
    MatmulAlgorithm a = matmul_algorithms_get(0), b = matmul_algorithms_get(1);
    assert_string_equal(a.key, one.key), assert_string_equal(b.key, two.key);
    assert_memory_equal(&a.id, &one.id, sizeof one - offsetof(MatmulAlgorithm, id));
    assert_memory_equal(&b.id, &two.id, sizeof two - offsetof(MatmulAlgorithm, id));
    assert_int_equal(gemm_from_json(NULL), 1);
    assert_int_equal(matmul_algorithms_count(), 0);
    cJSON_Delete(again), cJSON_free(text), cJSON_Delete(json);
}

static void test_other_things(void **state) {
    (void)state;
    static const char *const texts[] = {"{}", "7", "[1]", "[{}]", "[{\"product\":\"x\"}]", "[{\"product\":7,\"algorithm\":[1,2,3,4,5,6,7,8,9]}]",
                                        "[{\"product\":\"x\",\"algorithm\":[1,2,3,4,5,6,7,8]}]", "[{\"product\":\"x\",\"algorithm\":[1,2,3,4,5,6,7,8,1e300]}]",
                                        "[{\"product\":\"x\",\"algorithm\":[1,2,3,4,5,6,7,8,\"9\"]}]"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        cJSON *json = cJSON_Parse(texts[i]);
        assert_int_equal(gemm_from_json(json), 0);
        assert_int_equal(matmul_algorithms_count(), 0);
        cJSON_Delete(json);
    }
}

int main(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_round_trip), cmocka_unit_test(test_other_things)};
    return cmocka_run_group_tests_name("gemm", all, NULL, NULL);
}
