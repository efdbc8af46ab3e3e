/* test_balance.c - how the micro-batches of a step are shared among slow and fast ranks (parallel.balance). */
#include "core/error.h" /* before cmocka.h, which defines fail() as a macro */
#include "run/pace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { MOST = 6 };

static void expect_shares(int datas, const double *ms, const int64_t *before, const int64_t *after, int changes) {
    int64_t micro[MOST];
    for (int d = 0; d < datas; d++) micro[d] = before[d];
    assert_int_equal(balance_shares(ms, micro, datas), changes);
    for (int d = 0; d < datas; d++) assert_int_equal(micro[d], after[d]);
}

static void shares_follow_speed(void **state) {
    (void)state;
    expect_shares(2, (double[]){10, 10}, (int64_t[]){4, 4}, (int64_t[]){4, 4}, 0);
    expect_shares(2, (double[]){10, 30}, (int64_t[]){4, 4}, (int64_t[]){6, 2}, 1);
    /* both ranks need equal time for their unequal shares, so nothing changes */
    expect_shares(2, (double[]){15, 15}, (int64_t[]){6, 2}, (int64_t[]){6, 2}, 0);
    /* each micro-batch takes 5 ms on both ranks, so the shares become equal */
    expect_shares(2, (double[]){30, 10}, (int64_t[]){6, 2}, (int64_t[]){4, 4}, 1);
    /* each rank keeps at least one micro-batch, however slow it is */
    expect_shares(3, (double[]){10, 10, 1000}, (int64_t[]){2, 2, 2}, (int64_t[]){3, 2, 1}, 1);
    /* unchanged, because other shares would save too little time */
    expect_shares(2, (double[]){10, 10.3}, (int64_t[]){8, 8}, (int64_t[]){8, 8}, 0);
    expect_shares(4, (double[]){8, 8, 8, 16}, (int64_t[]){8, 8, 8, 8}, (int64_t[]){10, 9, 9, 4}, 1);
    expect_shares(2, (double[]){0, 0}, (int64_t[]){3, 3}, (int64_t[]){3, 3}, 0);
    expect_shares(1, (double[]){5}, (int64_t[]){7}, (int64_t[]){7}, 0);
}

/* Tries all ways to divide 9 micro-batches among 3 ranks. The best by the time of its slowest rank takes at least
 * BALANCE_GAIN (0.95) of the time of what balance_shares chose. */
static void no_other_shares_are_faster(void **state) {
    (void)state;
    for (int a = 1; a <= 9; a++)
        for (int b = 1; b <= 9; b++)
            for (int c = 1; c <= 9; c++) {
                double  ms[3] = {3.0 * a, 3.0 * b, 3.0 * c}, best = 1e9, got = 0;
                int64_t micro[3] = {3, 3, 3};
                for (int i = 1; i <= 7; i++)
                    for (int k = 1; i + k <= 8; k++) {
                        double most = a * i > b * k ? a * i : b * k;
                        if (c * (9 - i - k) > most) most = c * (9 - i - k);
                        if (most < best) best = most;
                    }
                balance_shares(ms, micro, 3);
                assert_true(micro[0] + micro[1] + micro[2] == 9 && micro[0] > 0 && micro[1] > 0 && micro[2] > 0);
                for (int d = 0; d < 3; d++)
                    if (ms[d] / 3 * (double)micro[d] > got) got = ms[d] / 3 * (double)micro[d];
                assert_true(got * BALANCE_GAIN <= best && got >= best);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(shares_follow_speed), cmocka_unit_test(no_other_shares_are_faster)};
    return cmocka_run_group_tests_name("balance", tests, NULL, NULL);
}
