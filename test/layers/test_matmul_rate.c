/* test_matmul_rate.c - matmul_rate, which measures the FLOP/s of matrix products, the rate that MFU is relative to.
 * The rate must be plausible and measured within seconds of processor time, and all memory returned. */
#include "test/ref/test.h"

#include <time.h>

static void test_rate(void **state) {
    (void)state;
    for (int t = 0; t < stage_act_types(); t++) {
        Stage  s = stage_create(64u << 20);
        /* processor time, which does not count how long a busy machine keeps this process waiting */
        clock_t start = clock();
        double  rate = matmul_rate(ACT_TYPES[t], MATH_STRICT, stage_is_slow() ? 64 : 256, 20.0),
                seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
        /* FLOP/s above those of a loop without vectors on a busy core, and below those of any processor */
        assert_true(rate > 1e7 && rate < 1e14);
        assert_true(seconds < 5.0);
        stage_destroy(&s); /* fails if the op has kept some of the caller's scratch memory */
    }
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_rate)};
    return cmocka_run_group_tests_name("matmul_rate", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
