/* test_curve.c - the loss curve: slots that merge without losing a step or a spike, and a picture that is well-formed
 * for any data. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run/curve.h"

/* Every tag closed in order, attributes quoted, no number that is none. */
static void assert_well_formed(const char *svg) {
    char stack[16][32];
    int  depth = 0, roots = 0;
    for (const char *at = svg; (at = strchr(at, '<')); at++) {
        const char *end = at, *name = at + 1;
        for (int quoted = 0; *end && (*end != '>' || quoted); end++) quoted ^= *end == '"';
        assert_int_equal(*end, '>');
        int closing = *name == '/', length = 0;
        name += closing;
        while (isalnum((unsigned char)name[length])) length++;
        assert_true(length > 0 && length < 32);
        if (closing) {
            assert_true(depth > 0);
            depth--;
            assert_int_equal(strlen(stack[depth]), length);
            assert_memory_equal(stack[depth], name, (size_t)length);
        } else if (end[-1] != '/') {
            assert_true(depth < 16);
            roots += depth == 0;
            snprintf(stack[depth++], 32, "%.*s", length, name);
        }
    }
    assert_int_equal(depth, 0);
    assert_int_equal(roots, 1);
    assert_null(strstr(svg, "nan"));
    assert_null(strstr(svg, "inf"));
    assert_null(strstr(svg, ">-0<"));
    assert_null(strstr(svg, "<script"));
}

static char *draw(const Curve *c, const char *title) {
    size_t bytes = 0;
    char  *svg = curve_svg(c, title, &bytes);
    assert_non_null(svg);
    assert_int_equal(strlen(svg), bytes);
    assert_well_formed(svg);
    return svg;
}

static void few_points(void **state) {
    (void)state;
    static Curve c;
    memset(&c, 0, sizeof c);
    free(draw(&c, "empty"));
    curve_eval(&c, 0, 5.5);
    free(draw(&c, "one eval"));
    curve_train(&c, 1, 5.4);
    char *svg = draw(&c, "one step");
    assert_non_null(strstr(svg, ">5.4000</text>"));
    assert_non_null(strstr(svg, ">5.5000</text>"));
    free(svg);
    curve_train(&c, 2, 5.0);
    free(draw(&c, "two steps"));
    memset(&c, 0, sizeof c);
    curve_train(&c, 1, 0.0);
    curve_train(&c, 2, 0.0);
    free(draw(&c, "all the same"));
}

static void losses_that_are_no_numbers(void **state) {
    (void)state;
    static Curve c;
    memset(&c, 0, sizeof c);
    curve_train(&c, 1, NAN);
    free(draw(&c, "only one"));
    for (int s = 2; s <= 300; s++) curve_train(&c, s, s > 100 && s < 120 ? INFINITY : 2.0 + 1.0 / s);
    curve_eval(&c, 300, NAN);
    char *svg = draw(&c, "gap");
    const char *line = strstr(svg, "stroke-width=\"2.4\"");
    assert_non_null(line);
    const char *first = strchr(strstr(line, "d=\""), 'M'), *second = strchr(first + 1, 'M');
    assert_true(second && second < strchr(line, '>')); /* the line starts again after the gap */
    int marks = 0;
    for (const char *at = svg; (at = strstr(at, "loss not finite")); at++) marks++;
    assert_int_equal(marks, 20);
    free(svg);
}

static void long_runs_keep_every_step(void **state) {
    (void)state;
    enum { STEPS = 100001, SPIKE = 77777 };
    static Curve c;
    memset(&c, 0, sizeof c);
    double sum = 0;
    for (int64_t s = 1; s <= STEPS; s++) {
        double loss = s == SPIKE ? 40.0 : 3.0 + exp(-(double)s / 1e4);
        curve_train(&c, s, loss);
        sum += loss;
        if (s % 100 == 0) curve_eval(&c, s, 3.5);
    }
    double  slot_sum = 0, greatest = 0;
    int64_t steps = 0;
    for (int i = 0; i < c.slots; i++) {
        slot_sum += c.slot[i].sum, steps += c.slot[i].finite;
        greatest = fmax(greatest, c.slot[i].greatest);
        assert_true(c.slot[i].least <= c.slot[i].greatest);
    }
    assert_int_equal(steps, STEPS);
    assert_true(fabs(slot_sum - sum) < 1e-6 * sum);
    assert_true(greatest == 40.0);
    assert_true(c.slots <= CURVE_SLOTS && c.slots > CURVE_SLOTS / 2);
    assert_true(c.evals <= CURVE_EVALS && c.evals >= CURVE_EVALS / 2);
    assert_int_equal(c.eval[0].step, 100);
    assert_int_equal(c.eval[c.evals - 1].step, 100000);
    char *svg = draw(&c, "long");
    assert_true(strlen(svg) < 100000);
    free(svg);
}

static void a_curve_may_start_late(void **state) {
    (void)state;
    static Curve c;
    memset(&c, 0, sizeof c);
    for (int64_t s = 5000001; s <= 5000100; s++) curve_train(&c, s, 3.0);
    assert_int_equal(c.slots, 100);
    assert_int_equal(c.stride, 1);
    free(draw(&c, "late"));
}

static void huge_first_losses_do_not_flatten_the_rest(void **state) {
    (void)state;
    static Curve c;
    memset(&c, 0, sizeof c);
    curve_eval(&c, 0, 1e30);
    for (int s = 1; s <= 1000; s++) curve_train(&c, s, s < 4 ? 1e30 : 3.0 + 3.0 * exp(-s / 100.0));
    char *svg = draw(&c, "huge");
    assert_non_null(strstr(svg, "above the picture"));
    assert_non_null(strstr(svg, ">3.0</text>"));
    assert_true(strlen(svg) < 100000);
    free(svg);
}

static void titles_are_escaped(void **state) {
    (void)state;
    static Curve c;
    memset(&c, 0, sizeof c);
    char *svg = draw(&c, "a<b>&\"c\" \x01\xff\xc3 \xc3\xa9");
    assert_non_null(strstr(svg, ">a&lt;b&gt;&amp;\"c\" ??? \xc3\xa9</text>"));
    free(svg);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_points),
        cmocka_unit_test(losses_that_are_no_numbers),
        cmocka_unit_test(long_runs_keep_every_step),
        cmocka_unit_test(a_curve_may_start_late),
        cmocka_unit_test(huge_first_losses_do_not_flatten_the_rest),
        cmocka_unit_test(titles_are_escaped),
    };
    return cmocka_run_group_tests_name("curve", tests, NULL, NULL);
}
