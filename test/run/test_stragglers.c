/* test_stragglers.c - which rank is reported as slow, given the median times of all ranks. */
#include "run/pace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void test_a_slow_rank(void **state) {
    (void)state;
    Pace even[3] = {{10, 2}, {11, 1}, {10.5, 2}}, slow[3] = {{10, 5}, {10.2, 5}, {14, 1}},
         just[2] = {{9.0, 0}, {12, 0}}, faster[2] = {{10, 9}, {30, 0}};
    assert_int_equal(stragglers_find(even, 3, 1), 0);
    assert_int_equal(stragglers_find(slow, 3, 0), 1 + 2);
    /* a rank that has 0.75 of the speed of the fastest is not reported as slow */
    assert_int_equal(stragglers_find(just, 2, 0), 0);
    assert_int_equal(stragglers_find(faster, 2, 1), 1 + 1);
}

static void test_a_slow_link(void **state) {
    (void)state;
    Pace waiting[2] = {{10, 80}, {11, 79}}, one_waits[2] = {{10, 80}, {11, 5}}, uneven[2] = {{3, 80}, {5, 77}};
    assert_int_equal(stragglers_find(waiting, 2, 1), -1);
    /* 0: all ranks are on one host (last argument), so no network link can be slow */
    assert_int_equal(stragglers_find(waiting, 2, 0), 0);
    assert_int_equal(stragglers_find(one_waits, 2, 1), 0);
    /* -1: both ranks wait long, also the slower one, so the link between hosts is slow */
    assert_int_equal(stragglers_find(uneven, 2, 1), -1);
}

int main(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_a_slow_rank), cmocka_unit_test(test_a_slow_link)};
    return cmocka_run_group_tests_name("stragglers", all, NULL, NULL);
}
