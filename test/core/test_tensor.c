/* test_tensor.c - the 16-bit types on the host: every value of fp16 is converted to f32 and back, and f32 is rounded to
 * the nearest value. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "core/tensor.h"

#include <cmocka.h>

static void test_f16_values(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float    f = f16_to_f32((uint16_t)h);
        uint32_t exponent = h >> 10 & 31, fraction = h & 1023;
        if (exponent == 31 && fraction) {
            assert_true(isnan(f) && isnan(f16_to_f32(f16_from_f32(f))));
            continue;
        }
        double want = exponent == 31 ? INFINITY
                      : exponent     ? ldexp(1024.0 + fraction, (int)exponent - 25)
                                     : ldexp((double)fraction, -24);
        assert_true((double)f == (h & 0x8000 ? -want : want) && !signbit(f) == !(h & 0x8000));
        assert_int_equal(f16_from_f32(f), h);
    }
}

/* Rounds f32 values between two neighbouring fp16 values. Below the middle they become the lower one, above it the
 * upper one, and in the middle the even one. */
static void test_f16_rounding(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x7bff; h++) {
        /* f32 represents the middle between two fp16 values exactly */
        float low = f16_to_f32((uint16_t)h), high = f16_to_f32((uint16_t)(h + 1)), middle = low + 0.5f * (high - low);
        assert_int_equal(f16_from_f32(middle), h % 2 ? h + 1 : h);
        assert_int_equal(f16_from_f32(nextafterf(middle, 0.0f)), h);
        assert_int_equal(f16_from_f32(nextafterf(middle, INFINITY)), h + 1);
        assert_int_equal(f16_from_f32(-middle), (h % 2 ? h + 1 : h) | 0x8000);
    }
    assert_int_equal(f16_from_f32(65519.996f), 0x7bff);
    assert_int_equal(f16_from_f32(65520.0f), 0x7c00);
    assert_int_equal(f16_from_f32(-3e38f), 0xfc00);
    assert_int_equal(f16_from_f32(1e-30f), 0);
}

static void test_sizes_and_names(void **state) {
    (void)state;
    assert_int_equal(dtype_bytes(F32), 4), assert_int_equal(dtype_bytes(BF16), 2), assert_int_equal(dtype_bytes(F16), 2);
    assert_int_equal(dtype_bytes(I32), 4), assert_int_equal(dtype_bytes(F64), 8), assert_int_equal(dtype_bytes(I64), 8);
    assert_string_equal(dtype_name(F16), "fp16"), assert_string_equal(dtype_name(F64), "fp64"),
        assert_string_equal(dtype_name(I64), "int64");
    uint16_t two[2];
    Tensor   t = tensor_1d(two, F16, 2);
    tensor_set(t, 1, -1.5f);
    assert_int_equal(two[1], 0xbe00);
    assert_true(tensor_get(t, 1) == -1.5f);
}

int main(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_f16_values), cmocka_unit_test(test_f16_rounding),
                                     cmocka_unit_test(test_sizes_and_names)};
    return cmocka_run_group_tests_name("tensor", all, NULL, NULL);
}
