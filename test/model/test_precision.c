/* test_precision.c - the number types that each value of the key `precision` stands for, and dynamic loss scaling. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "model/precision.h"

#include <cmocka.h>

static void test_words(void **state) {
    (void)state;
    static const struct { int precision, native; DType act; MathMode math; const char *name; } rows[] = {
        {PRECISION_AUTO, 1, BF16, MATH_STRICT, "bf16"}, {PRECISION_AUTO, 0, F32, MATH_STRICT, "fp32"}, {PRECISION_FP32, 1, F32, MATH_STRICT, "fp32"},
        {PRECISION_TF32, 0, F32, MATH_TF32, "tf32"},    {PRECISION_BF16, 0, BF16, MATH_STRICT, "bf16"}, {PRECISION_FP16, 1, F16, MATH_STRICT, "fp16"},
        {PRECISION_FP8, 0, BF16, MATH_STRICT, "fp8"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Numerics n = precision_resolve((Precision)rows[i].precision, rows[i].native);
        assert_true(n.act == rows[i].act && n.math == rows[i].math && !strcmp(n.name, rows[i].name));
    }
}

/* The loss scale is halved by an overflow, doubled after 2000 good steps in a row, and stays between its limits. */
static void test_scale(void **state) {
    (void)state;
    LossScale s = loss_scale_start(F16);
    assert_true(s.scale == 65536.0);
    for (int i = 0; i < LOSS_SCALE_GROWTH - 1; i++) loss_scale_keep(&s, F16);
    assert_true(s.scale == 65536.0 && s.steps == LOSS_SCALE_GROWTH - 1);
    assert_true(loss_scale_lower(&s) && s.scale == 32768.0 && s.steps == 0);
    for (int i = 0; i < LOSS_SCALE_GROWTH; i++) loss_scale_keep(&s, F16);
    assert_true(s.scale == 65536.0 && s.steps == 0);
    for (int i = 0; i < 100 * LOSS_SCALE_GROWTH; i++) loss_scale_keep(&s, F16);
    assert_true(s.scale == 16777216.0);
    int lowered = 0;
    while (loss_scale_lower(&s)) lowered++;
    assert_true(lowered == 24 && s.scale == 1.0);
}

static void test_other_types(void **state) {
    (void)state;
    LossScale s = loss_scale_start(BF16);
    for (int i = 0; i < 3 * LOSS_SCALE_GROWTH; i++) loss_scale_keep(&s, BF16);
    assert_true(s.scale == 1.0 && !loss_scale_lower(&s) && s.scale == 1.0);
}

int main(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_words), cmocka_unit_test(test_scale),
                                     cmocka_unit_test(test_other_types)};
    return cmocka_run_group_tests_name("precision", all, NULL, NULL);
}
