/* test_blend.c - the rule by which a blend chooses the source of each sample. The shares are right for every length,
 * any index can be computed without the earlier ones, and stages follow one another. */
#include "data/blend.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const char *const NAMES[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"};

/* Returns a blend of `count` sources with these weights, which sum to 1. */
static Blend blend_of(const double *weight, int count) {
    static Blend b;
    BlendShare   share[BLEND_SOURCES];
    for (int i = 0; i < count; i++) share[i] = (BlendShare){weight[i], 0};
    blend_make(&b, NAMES, share, count, 16);
    return b;
}

/* Checks which source each of the first `samples` samples is from. The samples of a source are in order. Numbers of
 * samples agree with blend_count, and are within `bound` of weight x samples. */
static void assert_shares(const double *weight, int count, int64_t samples, double bound) {
    Blend   b = blend_of(weight, count);
    int64_t walked[BLEND_SOURCES] = {0}, counted[BLEND_SOURCES];
    assert_int_equal(b.sources, count);
    for (int64_t g = 0; g < samples; g++) {
        BlendPlace p = blend_at(&b, g);
        assert_in_range(p.source, 0, count - 1);
        assert_int_equal(p.index, walked[p.source]++);
        blend_count(&b, g + 1, counted);
        for (int i = 0; i < count; i++) {
            assert_int_equal(counted[i], walked[i]);
            if (fabs((double)walked[i] - weight[i] * (double)(g + 1)) > bound)
                fail_msg("%lld of the first %lld samples are of source %d, of weight %g", (long long)walked[i], (long long)g + 1, i, weight[i]);
        }
    }
}

static void shares_meet_the_weights(void **state) {
    (void)state;
    assert_shares((double[]){1.0}, 1, 50, 0.0);
    assert_shares((double[]){0.7, 0.3}, 2, 3000, 0.5 + 1e-9);
    assert_shares((double[]){0.999, 0.001}, 2, 3000, 0.5 + 1e-9);
    assert_shares((double[]){0.25, 0.25, 0.25, 0.25}, 4, 1000, 1.0);
    assert_shares((double[]){1.0 / 3, 1.0 / 3, 1.0 / 3}, 3, 3000, 2.0);
    assert_shares((double[]){0.5, 0.25, 0.125, 0.0625, 0.0625}, 5, 3000, 2.0);
    assert_shares((double[]){0.32, 0.21, 0.13, 0.09, 0.08, 0.06, 0.05, 0.03, 0.02, 0.01}, 10, 5000, 2.0);
}

/* Tests sample numbers around 2^52, where arithmetic in doubles would lose single samples. The expected sources were
 * computed with integers of any length. */
static void far_indices_are_exact(void **state) {
    (void)state;
    const double weight[] = {0.61, 0.29, 0.1};
    Blend        b = blend_of(weight, 3);
    int64_t      far = (int64_t)1 << 52, before[3], after[3];
    const char  *due = "aabaabacaababaabacaabaababaacabaababaacaababaabacaababaabaca";
    for (int i = 0; due[i]; i++) assert_int_equal('a' + blend_at(&b, far + i).source, due[i]);
    for (int64_t g = far; g < far + 100; g++) {
        BlendPlace p = blend_at(&b, g);
        blend_count(&b, g, before);
        blend_count(&b, g + 1, after);
        assert_int_equal(before[0] + before[1] + before[2], g);
        for (int i = 0; i < 3; i++) assert_int_equal(after[i] - before[i], i == p.source);
        assert_int_equal(p.index, before[p.source]);
    }
}

/* The expected sources must never change. A run with a blend that is resumed with a later version of the program must
 * continue with the same samples. */
static void the_rule_never_changes(void **state) {
    (void)state;
    Blend             b = blend_of((double[]){0.5, 0.3, 0.2}, 3);
    static const char due[] = "abacabacababacabacab";
    char              got[sizeof due] = "";
    for (int g = 0; g < 20; g++) got[g] = (char)('a' + blend_at(&b, g).source);
    assert_string_equal(got, due);
}

/* A blend of two stages. Source b is in both, and in the second continues with its next sample. The second stage begins
 * with the first sample that starts at token 100 or later. */
static void stages_follow_each_other(void **state) {
    (void)state;
    static const char *const path[] = {"a", "b", "b", "c"};
    static Blend b;
    int64_t      count[3];
    blend_make(&b, path, (BlendShare[]){{0.5, 100}, {0.5, 100}, {0.25, 0}, {0.75, 0}}, 4, 16);
    assert_int_equal(b.sources, 3);
    assert_int_equal(b.stages, 2);
    /* samples have 16 tokens: sample 6 starts at token 96, sample 7 at 112 */
    assert_int_equal(b.stage[1].first, 7);
    blend_count(&b, 7, count);
    assert_int_equal(count[0] + count[1], 7);
    assert_int_equal(count[2], 0);
    int64_t of_b = count[1], of_a = count[0];
    for (int64_t g = 7; g < 407; g++) {
        BlendPlace p = blend_at(&b, g);
        assert_int_not_equal(p.source, 0);
        if (p.source == 1) assert_int_equal(p.index, of_b++);
    }
    blend_count(&b, 407, count);
    assert_int_equal(count[0], of_a);
    assert_int_equal(count[1], of_b);
    assert_int_equal(count[2], 300);
}

static void a_path_is_one_source(void **state) {
    (void)state;
    static const char *const path[] = {"x", "y", "x", "z", "y"};
    static const int         due[] = {0, 1, 0, 2, 1};
    for (int i = 0; i < 5; i++) assert_int_equal(blend_source(path, i), due[i]);
}

int main(void) {
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(shares_meet_the_weights), cmocka_unit_test(far_indices_are_exact),
        cmocka_unit_test(the_rule_never_changes),  cmocka_unit_test(stages_follow_each_other),
        cmocka_unit_test(a_path_is_one_source),
    };
    return cmocka_run_group_tests_name("blend", cases, NULL, NULL);
}
