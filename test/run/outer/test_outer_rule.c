/* test_outer_rule.c - the arithmetic with which the server changes the weights, compared with float64. It gives equal
 * bits each time. */
#include "run/outer/rule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { P = 40001, ISLANDS = 3, ROUNDS = 12 };
static const OuterRule DILOCO = {0.7, 0.9};

static float x[P], v[P], waiting[P], d[ISLANDS][P], mean[P];
static double ref_x[P], ref_v[P];

/* Returns a number in [-1, 1) that depends only on the arguments. */
static float drawn(int round, int island, int i) {
    uint64_t n = ((uint64_t)round * 31 + (uint64_t)island + 1) * 0x9e3779b97f4a7c15u + (uint64_t)i * 0xbf58476d1ce4e5b9u;
    n = (n ^ (n >> 31)) * 0x94d049bb133111ebu;
    return (float)((double)(n >> 40) / (1 << 23) - 1.0);
}

static void begin(void) {
    for (int i = 0; i < P; i++) ref_x[i] = x[i] = drawn(-1, 0, i), ref_v[i] = 0.0;
    memset(v, 0, sizeof v);
    memset(waiting, 0, sizeof waiting);
}

static void draw_deltas(int round) {
    for (int k = 0; k < ISLANDS; k++)
        for (int i = 0; i < P; i++) d[k][i] = 0.01f * drawn(round, k, i);
}

static const float *const DELTAS[] = {d[0], d[1], d[2]};
static const double TOKENS[] = {4096, 4096, 1024};

static void expect_near(const float *got, const double *want, double allowed) {
    for (int i = 0; i < P; i++)
        if (!(fabs(got[i] - want[i]) <= allowed * (1.0 + fabs(want[i])))) fail_msg("element %d: %.9g, not %.9g", i, got[i], want[i]);
}

/* Allowed difference of x (weights) and v (momentum) from float64, relative to 1 + |value|. Each round rounds them to
 * fp32 once, by at most 2^-24. */
#define ALLOWED (2.0 * ROUNDS / 16777216.0)

static void rounds_of_all(void) {
    begin();
    for (int r = 0; r < ROUNDS; r++) {
        draw_deltas(r);
        outer_mean(mean, DELTAS, TOKENS, ISLANDS, P);
        outer_step(DILOCO, x, v, mean, P);
    }
}

static void nesterov_is_right(void **state) {
    (void)state;
    rounds_of_all();
    for (int r = 0; r < ROUNDS; r++) {
        draw_deltas(r);
        for (int i = 0; i < P; i++) {
            double m = (4096.0 * d[0][i] + 4096.0 * d[1][i] + 1024.0 * d[2][i]) / 9216.0;
            ref_v[i] = 0.9 * ref_v[i] + m;
            ref_x[i] -= 0.7 * (m + 0.9 * ref_v[i]);
        }
    }
    expect_near(x, ref_x, ALLOWED);
    expect_near(v, ref_v, ALLOWED);
}

/* With learning rate 1 and no momentum, the server's weights x become the mean of the weights of the islands (training
 * jobs), weighted by tokens. The mean of their deltas (changes of the weights) may be written over one of them. */
static void plain_averaging_is_the_mean(void **state) {
    (void)state;
    begin();
    draw_deltas(0);
    for (int i = 0; i < P; i++) {
        double sum = 0.0;
        for (int k = 0; k < ISLANDS; k++) sum += TOKENS[k] * (ref_x[i] - d[k][i]);
        ref_x[i] = sum / 9216.0;
    }
    outer_mean(d[0], DELTAS, TOKENS, ISLANDS, P);
    outer_step((OuterRule){1.0, 0.0}, x, v, d[0], P);
    expect_near(x, ref_x, ALLOWED);
}

/* With one island (training job) and learning rate 1, the server's weights x become the weights of the island, up to
 * the rounding of one subtraction. */
static void one_island_is_a_plain_run(void **state) {
    (void)state;
    begin();
    for (int i = 0; i < P; i++) ref_x[i] = drawn(7, 7, i), d[0][i] = x[i] - (float)ref_x[i];
    outer_mean(mean, DELTAS, TOKENS, 1, P);
    assert_memory_equal(mean, d[0], sizeof mean);
    outer_step((OuterRule){1.0, 0.0}, x, v, mean, P);
    expect_near(x, ref_x, ALLOWED);
}

static void arrivals(int round, const double *staleness) {
    draw_deltas(round);
    for (int k = 0; k < ISLANDS; k++) outer_arrival(DILOCO, x, waiting, d[k], 1.0 / ((1.0 + staleness[k]) * ISLANDS), P);
    outer_momentum(DILOCO, x, v, waiting, P);
}

/* Tests Delayed Nesterov (arXiv:2401.09135). It applies each delta (change of the weights by a training job) when it
 * arrives, and the momentum once a round. Stale deltas get less weight. If no delta is stale, a round equals a Nesterov
 * step with the mean of the deltas. */
static void delayed_nesterov_is_right(void **state) {
    (void)state;
    const double fresh[] = {0, 0, 0}, stale[] = {0, 2, 1};
    begin();
    for (int r = 0; r < ROUNDS; r++) {
        arrivals(r, stale);
        for (int i = 0; i < P; i++) {
            double sum = 0.0;
            for (int k = 0; k < ISLANDS; k++) sum += d[k][i] / (1.0 + stale[k]) / ISLANDS;
            ref_v[i] = 0.9 * ref_v[i] + sum;
            ref_x[i] -= 0.7 * (sum + 0.9 * ref_v[i]);
        }
    }
    expect_near(x, ref_x, 3 * ALLOWED);
    expect_near(v, ref_v, 3 * ALLOWED);
    begin();
    arrivals(0, fresh);
    for (int i = 0; i < P; i++) {
        double m = ((double)d[0][i] + d[1][i] + d[2][i]) / 3.0;
        ref_v[i] = m, ref_x[i] -= 0.7 * (m + 0.9 * m);
    }
    expect_near(x, ref_x, ALLOWED);
    for (int i = 0; i < P; i++) assert_true(waiting[i] == 0.0f);
}

static double squares_of(const float *d, int64_t elems) {
    Exact sum = {{0}};
    outer_squares(d, elems, &sum);
    return exact_value(&sum);
}

/* The sum of squares of a delta (change of the weights) is computed at once, and in parts cut at multiples of
 * OUTER_BLOCK. Both have equal bits. */
static void parts_change_no_bit(void **state) {
    (void)state;
    enum { MANY = 40 * OUTER_BLOCK + 17 };
    static float d[MANY];
    for (int i = 0; i < MANY; i++) d[i] = drawn(3, 2, i);
    double whole = squares_of(d, MANY);
    for (int parts = 1; parts <= 41; parts++) {
        Exact sum = {{0}};
        assert_int_equal(outer_part_begin(MANY, 0, parts), 0);
        assert_int_equal(outer_part_begin(MANY, parts, parts), MANY);
        for (int k = parts; k-- > 0;) {
            int64_t from = outer_part_begin(MANY, k, parts), to = outer_part_begin(MANY, k + 1, parts);
            assert_int_equal(from % OUTER_BLOCK, 0);
            assert_true(to > from);
            outer_squares(d + from, to - from, &sum);
        }
        assert_true(exact_value(&sum) == whole);
    }
    /* 100 values are too few for two parts, so the second part begins at 0 */
    assert_int_equal(outer_part_begin(100, 1, 2), 0);
    assert_int_equal(outer_part_begin((int64_t)1 << 53, 4095, 4096), ((int64_t)1 << 53) / 4096 * 4095);
}

static void threads_change_no_bit(void **state) {
    (void)state;
    static float first[P];
    double       squares = 0.0;
    for (int threads = 1; threads <= 4; threads++) {
        omp_set_num_threads(threads);
        rounds_of_all();
        if (threads == 1) memcpy(first, x, sizeof x), squares = squares_of(x, P);
        assert_memory_equal(x, first, sizeof x);
        assert_true(squares_of(x, P) == squares);
    }
    omp_set_num_threads(2);
}

static void what_is_not_finite_is_seen(void **state) {
    (void)state;
    static float big[3 << 20];
    long double  want = 0.0;
    for (int i = 0; i < 3 << 20; i++) big[i] = drawn(1, 1, i), want += (double)big[i] * big[i];
    assert_true(fabs(squares_of(big, 3 << 20) / (double)want - 1.0) < 1e-12);
    assert_true(squares_of(big, 0) == 0.0);
    big[(3 << 20) - 1] = NAN;
    assert_false(isfinite(squares_of(big, 3 << 20)));
    big[(3 << 20) - 1] = INFINITY;
    assert_false(isfinite(squares_of(big, 3 << 20)));
    assert_true(isfinite(squares_of(big, (3 << 20) - 1)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nesterov_is_right),         cmocka_unit_test(plain_averaging_is_the_mean),
        cmocka_unit_test(one_island_is_a_plain_run), cmocka_unit_test(delayed_nesterov_is_right),
        cmocka_unit_test(parts_change_no_bit),       cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(what_is_not_finite_is_seen),
    };
    return cmocka_run_group_tests_name("outer_rule", tests, NULL, NULL);
}
