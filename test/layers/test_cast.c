/* test_cast.c - cast_forward rounds like the functions of core/tensor.h, bit for bit. */
#include "test/ref/test.h"

static void test_sizes(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 15, 16, 17, 16384, 40003};
    for (int from = 0; from < stage_act_types(); from++)
        for (int to = 0; to < stage_act_types(); to++)
            for (int i = 0; i < COUNT(sizes); i++) {
                Stage  s = stage_create(0);
                Tensor x = stage_random(&s, ACT_TYPES[from], 1, sizes[i], 1, 1, 3, 0),
                       y = stage_tensor(&s, ACT_TYPES[to], 1, sizes[i], 1);
                cast_forward(&s.stream, y, x);
                stage_settle();
                for (int64_t k = 0; k < sizes[i]; k++)
                    assert_true(tensor_get(y, k) == (float)round_to(y.type, (double)tensor_get(x, k)));
                stage_destroy(&s);
            }
}

/* Tests ties to even, a carry into the exponent, and the largest, subnormal, infinite and undefined values, compared
 * with bf16_from_f32 and f16_from_f32. NaN stays NaN, whatever its other bits. */
static void test_rounding(void **state) {
    (void)state;
    static const uint32_t bits[] = {0x3f808000, 0x3f818000, 0x3f808001, 0x3fffffff, 0x7f7fffff, 0xff7f7fff, 0x00000001,
                                    0x807fffff, 0x00008000, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xffffffff,
                                    0x80000000, 0x00018000, 0x42280000,
                                    /* for fp16: ties, the largest value, the first that becomes infinite, subnormals
                                     * and their ties, the smallest normal value */
                                    0x3f801000, 0x3f803000, 0x3f801001, 0x477fefff, 0x477ff000, 0x33000000, 0x33000001,
                                    0x33c00000, 0x387fffff};
    for (int t = 1; t < stage_act_types(); t++) {
        Stage  s = stage_create(0);
        Tensor x = stage_tensor(&s, F32, 1, COUNT(bits), 1), y = stage_tensor(&s, ACT_TYPES[t], 1, COUNT(bits), 1);
        Tensor back = stage_tensor(&s, F32, 1, COUNT(bits), 1);
        memcpy(x.data, bits, sizeof bits);
        cast_forward(&s.stream, y, x);
        cast_forward(&s.stream, back, y);
        stage_settle();
        for (int i = 0; i < COUNT(bits); i++) {
            float    f = ((const float *)x.data)[i], wide = tensor_get(y, i);
            uint16_t h = y.type == BF16 ? bf16_from_f32(f) : f16_from_f32(f);
            if (isnan(f)) assert_true(isnan(wide) && isnan(tensor_get(back, i)));
            else assert_int_equal(((const uint16_t *)y.data)[i], h);
            if (!isnan(f)) assert_memory_equal((const char *)back.data + 4 * i, &wide, 4);
        }
        stage_destroy(&s);
    }
}

/* Casts a span that begins anywhere in memory. */
static void test_unaligned(void **state) {
    (void)state;
    enum { N = 77 };
    for (int t = 0; t < stage_act_types(); t++) {
        Stage  s = stage_create(0);
        Tensor x = stage_random(&s, F32, 1, N, 1, 1, 3, 0), y = stage_tensor(&s, ACT_TYPES[t], 1, N, 1), cut = stage_copy(&s, y);
        cast_forward(&s.stream, y, x);
        cast_forward(&s.stream, tensor_slice(cut, 0, 3), tensor_slice(x, 0, 3));
        cast_forward(&s.stream, tensor_slice(cut, 3, N - 3), tensor_slice(x, 3, N - 3));
        stage_settle();
        assert_same_bits(cut, y);
        stage_destroy(&s);
    }
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_sizes), cmocka_unit_test(test_rounding),
                                     cmocka_unit_test(test_unaligned)};
    return cmocka_run_group_tests_name("cast", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
