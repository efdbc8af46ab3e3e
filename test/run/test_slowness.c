/* test_slowness.c - when a run prints its message that steps stay slower than before. */
#include "run/pace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Records `steps` steps of `ms` milliseconds each. Returns the number of the step at which the message about slow steps
 * is printed, counted from 1; 0: it is not printed. */
static int due(Slowness *s, int steps, double ms) {
    int at = 0;
    for (int i = 1; i <= steps; i++)
        if (slowness_note(s, ms)) assert_int_equal(at, 0), at = i;
    return at;
}

static void test_a_slow_stretch(void **state) {
    (void)state;
    Slowness s = {0};
    assert_int_equal(due(&s, 1, 900.0), 0);  /* the first step is always slow, so it does not count */
    assert_int_equal(due(&s, 50, 10.0), 0);
    assert_int_equal(due(&s, 50, 50.0), 0);  /* a step counts as slow if it takes over five times as long as usual */
    assert_int_equal(due(&s, 9, 51.0), 0);
    assert_int_equal(due(&s, 1, 49.0), 0);   /* a step that is not slow starts the count of slow steps again */
    assert_int_equal(due(&s, 9, 51.0), 0);
    assert_int_equal(due(&s, 1, 700.0), 1);
    assert_int_equal(due(&s, 500, 60.0), 0); /* the message is printed only once */
}

static void test_another_stretch(void **state) {
    (void)state;
    Slowness s = {0};
    due(&s, 1, 10.0);
    assert_int_equal(due(&s, 20, 100.0), SLOW_STEPS);
    due(&s, SLOW_STEPS - 1, 10.0);
    /* no message: after too few fast steps this counts as the same slow phase */
    assert_int_equal(due(&s, 20, 100.0), 0);
    due(&s, SLOW_STEPS, 10.0);
    assert_int_equal(due(&s, 20, 100.0), SLOW_STEPS);
}

int main(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_a_slow_stretch), cmocka_unit_test(test_another_stretch)};
    return cmocka_run_group_tests_name("slowness", all, NULL, NULL);
}
