/* test_fp8.c - the 8-bit types of core/tensor.h: their largest values and scales. */
#include "core/tensor.h"

#include "test/ref/fp8_ops.h"
#include "test/ref/test.h"

static const DType TYPES[] = {E4M3, E5M2};

static int last_of(DType type) { return type == E4M3 ? 0x7e : 0x7b; }

static void test_ends(void **state) {
    (void)state;
    for (int t = 0; t < COUNT(TYPES); t++) {
        double largest = ref_fp8_value(last_of(TYPES[t]), TYPES[t]);
        assert_true((double)fp8_largest(TYPES[t]) == largest && largest == 1.75 * ldexp(1.0, fp8_top(TYPES[t])));
    }
}

/* Tests the scale of a tensor. Its largest absolute value is each finite bf16 number in turn. */
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
    const struct CMUnitTest all[] = {cmocka_unit_test(test_ends), cmocka_unit_test(test_scales)};
    return cmocka_run_group_tests_name("fp8", all, NULL, NULL);
}
