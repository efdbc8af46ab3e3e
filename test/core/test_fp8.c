/* test_fp8.c - the 8-bit types of core/tensor.h: every code, every value between two codes, and scales. */
#include "core/tensor.h"

#include "test/ref/fp8_ops.h"
#include "test/ref/test.h"

static const DType TYPES[] = {E4M3, E5M2};

static int last_of(DType type) { return type == E4M3 ? 0x7e : 0x7b; }

static void test_codes(void **state) {
    (void)state;
    for (int t = 0; t < COUNT(TYPES); t++)
        for (int code = 0; code < 256; code++) {
            double value = ref_fp8_value(code, TYPES[t]);
            float  got = fp8_to_f32((uint8_t)code, TYPES[t]);
            if (isnan(value)) assert_true(isnan(got));
            else assert_true((double)got == value && !signbit(got) == !signbit(value));
            if (isfinite(value)) assert_int_equal(fp8_from_f32(got, TYPES[t]), code);
        }
    assert_true(fp8_to_f32(0x7e, E4M3) == 448.0f && fp8_to_f32(0x01, E4M3) == 0x1p-9f && fp8_to_f32(0x38, E4M3) == 1.0f);
    assert_true(fp8_to_f32(0x7b, E5M2) == 57344.0f && fp8_to_f32(0x01, E5M2) == 0x1p-16f && fp8_to_f32(0xbc, E5M2) == -1.0f);
}

/* Values between two codes: the middle is rounded to the even code, other values to the nearer code. */
static void test_between(void **state) {
    (void)state;
    for (int t = 0; t < COUNT(TYPES); t++)
        for (int code = 0; code < last_of(TYPES[t]); code++) {
            float middle = (float)((ref_fp8_value(code, TYPES[t]) + ref_fp8_value(code + 1, TYPES[t])) / 2.0);
            assert_int_equal(fp8_from_f32(middle, TYPES[t]), code % 2 ? code + 1 : code);
            assert_int_equal(fp8_from_f32(nextafterf(middle, 0.0f), TYPES[t]), code);
            assert_int_equal(fp8_from_f32(nextafterf(middle, INFINITY), TYPES[t]), code + 1);
            assert_int_equal(fp8_from_f32(-middle, TYPES[t]), 0x80 | (code % 2 ? code + 1 : code));
        }
}

static void test_ends(void **state) {
    (void)state;
    for (int t = 0; t < COUNT(TYPES); t++) {
        float largest = fp8_largest(TYPES[t]);
        int   last = last_of(TYPES[t]);
        assert_true((double)largest == ref_fp8_value(last, TYPES[t]) && (double)largest == 1.75 * ldexp(1.0, fp8_top(TYPES[t])));
        assert_int_equal(fp8_from_f32(nextafterf(largest, INFINITY), TYPES[t]), last);
        assert_int_equal(fp8_from_f32(3e38f, TYPES[t]), last);
        assert_int_equal(fp8_from_f32(-3e38f, TYPES[t]), 0x80 | last);
        assert_true(isnan(fp8_to_f32(fp8_from_f32(INFINITY, TYPES[t]), TYPES[t])));
        assert_true(isnan(fp8_to_f32(fp8_from_f32(-INFINITY, TYPES[t]), TYPES[t])));
        assert_true(isnan(fp8_to_f32(fp8_from_f32(NAN, TYPES[t]), TYPES[t])));
        assert_int_equal(fp8_from_f32(0x1p-149f, TYPES[t]), 0);
        assert_int_equal(fp8_from_f32(-0.0f, TYPES[t]), 0x80);
    }
}

/* Tests every value of bf16. */
static void test_scales(void **state) {
    (void)state;
    for (int t = 0; t < COUNT(TYPES); t++) {
        for (uint32_t h = 0; h < 0x7f80; h++) {
            double want = ref_fp8_scale((double)bf16_to_f32((uint16_t)h), TYPES[t]);
            assert_true((double)fp8_power(fp8_exponent(h << 16, TYPES[t])) == want);
        }
        assert_int_equal(fp8_exponent(0x7f800000u, TYPES[t]), 0);
        assert_int_equal(fp8_exponent(0x7fc00000u, TYPES[t]), 0);
        assert_int_equal(fp8_exponent(0x3fe00000u, TYPES[t]), fp8_top(TYPES[t]) - 1); /* 1.75 */
        assert_int_equal(fp8_exponent(0x3fe00001u, TYPES[t]), fp8_top(TYPES[t]) - 2);
    }
}

int main(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_codes), cmocka_unit_test(test_between), cmocka_unit_test(test_ends),
                                     cmocka_unit_test(test_scales)};
    return cmocka_run_group_tests_name("fp8", all, NULL, NULL);
}
