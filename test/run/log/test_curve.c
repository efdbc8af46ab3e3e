/* test_curve.c - the loss curve. Its slots (groups of steps) are merged without losing a step or a spike, and the SVG
 * picture is well-formed for any data. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run/log/picture.h"

/* Asserts that every tag of the SVG is closed in the right order, that quotes are paired, and that no number is nan or
 * inf. */
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

static void train(Curve *c, int64_t step, double loss) {
    curve_train(c, (CurveStep){step, 512 * step, loss, 1e-3, 0.5});
}

static char *draw(const Curve *c, const char *title) {
    size_t bytes = 0;
    char  *svg = curve_svg(c, (CurveTitle){title, "abc1234", 123456789}, &bytes);
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
    train(&c, 1, 5.4);
    char *svg = draw(&c, "one step");
    assert_non_null(strstr(svg, ">5.4000</text>"));
    assert_non_null(strstr(svg, ">5.5000</text>"));
    free(svg);
    train(&c, 2, 5.0);
    free(draw(&c, "two steps"));
    memset(&c, 0, sizeof c);
    train(&c, 1, 0.0);
    train(&c, 2, 0.0);
    free(draw(&c, "all the same"));
}

static void losses_that_are_no_numbers(void **state) {
    (void)state;
    static Curve c;
    memset(&c, 0, sizeof c);
    train(&c, 1, NAN);
    free(draw(&c, "only one"));
    for (int s = 2; s <= 300; s++) train(&c, s, s > 100 && s < 120 ? INFINITY : 2.0 + 1.0 / s);
    curve_eval(&c, 300, NAN);
    char *svg = draw(&c, "gap");
    const char *line = strstr(svg, "stroke-width=\"2.4\"");
    assert_non_null(line);
    const char *first = strchr(strstr(line, "d=\""), 'M'), *second = strchr(first + 1, 'M');
    /* losses that are not finite split the curve in two; this is its second part */
    assert_true(second && second < strchr(line, '>'));
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
        train(&c, s, loss);
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
    for (int64_t s = 5000001; s <= 5000100; s++) train(&c, s, 3.0);
    assert_int_equal(c.slots, 100);
    assert_int_equal(c.stride, 1);
    free(draw(&c, "late"));
}

static void huge_first_losses_do_not_flatten_the_rest(void **state) {
    (void)state;
    static Curve c;
    memset(&c, 0, sizeof c);
    curve_eval(&c, 0, 1e30);
    for (int s = 1; s <= 1000; s++) train(&c, s, s < 4 ? 1e30 : 3.0 + 3.0 * exp(-s / 100.0));
    char *svg = draw(&c, "huge");
    assert_non_null(strstr(svg, ">3.0</text>"));
    assert_null(strstr(svg, ">10</text>"));
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

static void the_first_steps_do_not_set_the_range(void **state) {
    (void)state;
    static Curve c;
    memset(&c, 0, sizeof c);
    curve_eval(&c, 0, 11.0);
    for (int s = 1; s <= 400; s++) {
        train(&c, s, s <= 20 ? 11.0 - 0.4 * s : s == 200 ? 25.0 : 3.0 + 0.4 * (s % 2));
        if (s % 100 == 0) curve_eval(&c, s, 3.9 - s / 1000.0);
    }
    char *svg = draw(&c, "range");
    assert_non_null(strstr(svg, ">3.8</text>"));
    assert_null(strstr(svg, ">5.0</text>"));
    /* The loss of the evaluation at step 0 is too high for the visible part of the picture. The line of evaluations
     * therefore begins at step 100. */
    const char *line = strstr(strstr(svg, "<g class=\"c1\">"), "d=\"M");
    assert_non_null(line);
    assert_int_equal(strncmp(line + 4, "275.0 ", 6), 0); /* x of step 100 of 400 in a plot from x = 76 to x = 872: 76 +
                                                          * (872 - 76) / 4 */
    free(svg);
}

/* The loss rises from the first step on. The best evaluation, at step 0, lies outside of the visible part of the
 * picture, so it is not marked with a ring. */
static void a_best_off_the_picture_has_no_ring(void **state) {
    (void)state;
    static Curve c;
    memset(&c, 0, sizeof c);
    curve_eval(&c, 0, 2.0);
    for (int s = 1; s <= 400; s++) train(&c, s, s < 10 ? 2.0 : 9.0 + 0.001 * s);
    curve_eval(&c, 400, 9.5);
    char *svg = draw(&c, "worse");
    assert_null(strstr(svg, ">best"));
    assert_non_null(strstr(svg, ">9.5000</text>"));
    free(svg);
}

static void the_words_are_there(void **state) {
    (void)state;
    static Curve c;
    memset(&c, 0, sizeof c);
    for (int s = 1; s <= 1000; s++) {
        train(&c, s, 3.0 + 1.0 / s);
        if (s % 250 == 0) curve_eval(&c, s, s == 500 ? 2.9876 : 3.25);
    }
    char *svg = draw(&c, "words");
    assert_non_null(strstr(svg, ">123.5 M parameters · 512 k tokens in 1000 steps · commit abc1234</text>"));
    assert_non_null(strstr(svg, ">best 2.9876</text>"));
    assert_non_null(strstr(svg, ">500k</text>")); /* the upper axis shows tokens */
    assert_non_null(strstr(svg, ">1e-3</text>")); /* the picture also shows the learning rate, with this maximum on its
                                                   * axis */
    assert_non_null(strstr(svg, "@media (prefers-color-scheme: dark)"));
    assert_null(strstr(svg, "resumed"));
    char *again = draw(&c, "words");
    assert_string_equal(svg, again);
    free(again);
    free(svg);
}

static void events_are_marked(void **state) {
    (void)state;
    static Curve c;
    memset(&c, 0, sizeof c);
    for (int s = 1; s <= 100; s++) {
        train(&c, s, 3.0);
        if (s == 40) curve_mark(&c, 40, CURVE_RESUMED);
        if (s == 60) curve_mark(&c, 60, CURVE_ROLLED_BACK);
    }
    char *svg = draw(&c, "marks");
    assert_non_null(strstr(svg, "<title>resumed, step 40</title>"));
    assert_non_null(strstr(svg, "<title>rolled back, step 60</title>"));
    assert_non_null(strstr(svg, ">resumed</text>"));
    assert_null(strstr(svg, "skipped"));
    free(svg);
    for (int s = 1; s <= 1000; s++) curve_mark(&c, s, CURVE_SKIPPED);
    assert_int_equal(c.marks, CURVE_MARKS);
    assert_int_equal(c.mark[CURVE_MARKS - 1].step, 1000);
    free(draw(&c, "many"));
}

/* When slots of the curve (groups of steps) are merged, they keep the last learning rate and the gradient norms of all
 * steps. */
static void rates_survive_merging(void **state) {
    (void)state;
    static Curve c;
    memset(&c, 0, sizeof c);
    for (int s = 1; s <= 5000; s++) curve_train(&c, (CurveStep){s, 10 * s, 3.0, s * 1e-6, s == 7 ? NAN : 2.0});
    assert_int_equal(c.stride, 8);
    double  norms = 0;
    int64_t count = 0;
    for (int i = 0; i < c.slots; i++) {
        int64_t last = (i + 1) * 8 < 5000 ? (i + 1) * 8 : 5000;
        assert_true(c.slot[i].lr == (double)last * 1e-6);
        assert_int_equal(c.slot[i].tokens, 10 * last);
        norms += c.slot[i].norm_sum, count += c.slot[i].norms;
    }
    assert_int_equal(count, 4999);
    assert_true(norms == 2.0 * 4999);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_points),
        cmocka_unit_test(losses_that_are_no_numbers),
        cmocka_unit_test(long_runs_keep_every_step),
        cmocka_unit_test(a_curve_may_start_late),
        cmocka_unit_test(huge_first_losses_do_not_flatten_the_rest),
        cmocka_unit_test(the_first_steps_do_not_set_the_range),
        cmocka_unit_test(a_best_off_the_picture_has_no_ring),
        cmocka_unit_test(the_words_are_there),
        cmocka_unit_test(events_are_marked),
        cmocka_unit_test(rates_survive_merging),
        cmocka_unit_test(titles_are_escaped),
    };
    return cmocka_run_group_tests_name("curve", tests, NULL, NULL);
}
