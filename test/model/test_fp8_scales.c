/* test_fp8_scales.c - the history from which the scales of fp8 products are computed: for each tensor the exponent of
 * its scale in each of the last FP8_STEPS steps, of which the smallest counts. It is also converted to JSON and
 * back. */
#include "core/tensor.h"
#include "model/precision.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static int64_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

/* Adds a step to the history, in which amax is the largest absolute value of every tensor. */
static void add(Fp8History *h, float amax) {
    int64_t values[3 * FP8_BLOCK_CELLS];
    for (int64_t c = 0; c < h->cells; c++) values[c] = bits_of(amax);
    fp8_history_add(h, values);
}

/* Asserts the exponents of all scales: of_x for x and w, which are cast to e4m3, and of_dy for dy, which is cast to
 * e5m2. */
static void assert_exponents(const Fp8History *h, int of_x, int of_dy) {
    for (int64_t c = 0; c < h->cells; c++)
        assert_int_equal(fp8_history_exponent(h, c), c % FP8_TENSORS == FP8_DY ? of_dy : of_x);
}

static void test_window(void **state) {
    (void)state;
    Fp8History h = fp8_history_create(2);
    assert_int_equal(h.cells, 2 * PRODUCTS * 3);
    assert_exponents(&h, 0, 0);
    add(&h, 0.0f); /* adds a step with maximum 0, from which no scale is computed */
    assert_exponents(&h, 0, 0);
    add(&h, 1.0f); /* 128 <= 448/2, 16384 <= 57344/2 */
    assert_exponents(&h, 7, 14);
    add(&h, 1024.0f);
    assert_exponents(&h, -3, 4);
    for (int i = 0; i < FP8_STEPS - 1; i++) add(&h, i ? 1.0f : 0.0f), assert_exponents(&h, -3, 4);
    assert_int_equal(h.steps, FP8_STEPS);
    add(&h, 1.0f); /* the step with maximum 1024 is now FP8_STEPS steps back, no longer in the history */
    assert_exponents(&h, 7, 14);
    add(&h, (float)INFINITY);
    assert_exponents(&h, 7, 14);
    fp8_history_destroy(&h);
}

static void test_json(void **state) {
    (void)state;
    Fp8History h = fp8_history_create(1), back = fp8_history_create(1);
    int64_t    amax[FP8_BLOCK_CELLS];
    for (int step = 0; step < FP8_STEPS + 3; step++) {
        cJSON *json = fp8_history_to_json(&h);
        assert_true(fp8_history_from_json(&back, json));
        assert_int_equal(back.steps, h.steps);
        assert_memory_equal(back.exponent, h.exponent, (size_t)(h.steps * h.cells));
        cJSON_Delete(json);
        for (int c = 0; c < FP8_BLOCK_CELLS; c++) amax[c] = bits_of(c == 5 ? 0.0f : fp8_power((step * 31 + c * 17) % 200 - 99));
        fp8_history_add(&h, amax);
    }
    fp8_history_destroy(&h), fp8_history_destroy(&back);
}

/* The JSON has for each step a string of hex digits, two for each of the 12 scales of a block. A damaged text is
 * refused and leaves the history empty. */
static void test_broken(void **state) {
    (void)state;
    static const char *const texts[] = {
        "{}", "[7]", "[\"\"]", "[\"80808080808080808080808\"]", "[\"808080808080808080808080\",\"8080808080808080808080ag\"]",
        "[\"8080808080808080808080FF\"]", "[\"1b8080808080808080808080\"]", "[\"e58080808080808080808080\"]", "[null]"};
    Fp8History h = fp8_history_create(1);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        cJSON *json = cJSON_Parse(texts[i]);
        add(&h, 1.0f);
        assert_false(fp8_history_from_json(&h, json));
        assert_int_equal(h.steps, 0);
        cJSON_Delete(json);
    }
    cJSON *many = cJSON_CreateArray();
    for (int i = 0; i <= FP8_STEPS; i++) cJSON_AddItemToArray(many, cJSON_CreateString("808080808080808080808080"));
    assert_false(fp8_history_from_json(&h, many));
    cJSON_DeleteItemFromArray(many, 0);
    assert_true(fp8_history_from_json(&h, many) && h.steps == FP8_STEPS);
    assert_false(fp8_history_from_json(&h, NULL));
    cJSON_Delete(many);
    fp8_history_destroy(&h);
}

int main(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_window), cmocka_unit_test(test_json), cmocka_unit_test(test_broken)};
    return cmocka_run_group_tests_name("fp8_scales", all, NULL, NULL);
}
