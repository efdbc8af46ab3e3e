/* test_draw.c - drawing one token: the probabilities of the softmax, and the tokens that each rule (top_k, top_p,
 * min_p) leaves out, compared with plain sums over the sorted logits in float64. */
#include "run/text/sample.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/rng.h"

enum { VOCAB_MAX = 1001 };
static double room[VOCAB_MAX];

static int32_t draw(const float *logits, int64_t vocab, DrawRule rule, double u) {
    return draw_token(logits, vocab, rule, u, room);
}

static void greedy_takes_the_first_largest(void **state) {
    (void)state;
    static const float logits[] = {0.5f, -1, 3, 3, 2.9f};
    for (int i = 0; i <= 10; i++) {
        assert_int_equal(draw(logits, 5, (DrawRule){0.0, 0, 1, 0}, i / 11.0), 2);
        assert_int_equal(draw(logits, 5, (DrawRule){0.7, 1, 1, 0}, 0.0), 2);
    }
}

/* Asserts that draw() returns token v for a part share[v] of all random numbers u in [0, 1). share [vocab] are the
 * expected probabilities. Tries u in steps of 1/20000. */
static void assert_shares(const float *logits, int64_t vocab, DrawRule rule, const double *share) {
    enum { GRID = 20000 };
    int count[VOCAB_MAX] = {0}, last = -1;
    for (int i = 0; i < GRID; i++) {
        int32_t token = draw(logits, vocab, rule, (double)i / GRID);
        assert_true(token >= 0 && token < vocab);
        /* draw() inverts the cumulative distribution of the tokens, so a larger random number u never gives a smaller
         * token */
        assert_true(token >= last);
        last = token;
        count[token]++;
    }
    for (int64_t v = 0; v < vocab; v++) assert_true(fabs((double)count[v] / GRID - share[v]) < 2.0 / GRID);
}

/* --- the reference: sort, then cut ------------------------------------------------------------------------------- */

static const float *sorting;
static int descending(const void *a, const void *b) {
    float x = sorting[*(const int *)a], y = sorting[*(const int *)b];
    return (x < y) - (x > y);
}

/* Computes in float64 the probability with which each token is drawn under top_k, top_p, min_p and temperature, and
 * writes them to share [vocab]. Logits must not be NaN. */
static void reference(const float *logits, int vocab, DrawRule rule, double *share) {
    int    order[VOCAB_MAX], left = vocab;
    double total = 0, sum = 0;
    for (int v = 0; v < vocab; v++) order[v] = v, share[v] = 0;
    sorting = logits;
    qsort(order, (size_t)vocab, sizeof *order, descending);
    double best = logits[order[0]];
    if (rule.top_k > 0 && rule.top_k < vocab)
        for (left = (int)rule.top_k; left < vocab && logits[order[left]] == logits[order[left - 1]];) left++;
    for (int i = 0; i < left; i++) total += share[order[i]] = exp((logits[order[i]] - best) / rule.temperature);
    if (rule.top_p < 1) {
        int kept = 0;
        while (kept < left && (kept == 0 || sum < rule.top_p * total || logits[order[kept]] == logits[order[kept - 1]]))
            sum += share[order[kept++]];
        for (int i = kept; i < left; i++) share[order[i]] = 0;
        left = kept;
    }
    total = 0;
    for (int v = 0; v < vocab; v++) /* min_p is relative to the most likely token, whose weight is 1 */
        total += share[v] = share[v] >= rule.min_p ? share[v] : 0;
    for (int v = 0; v < vocab; v++) share[v] /= total;
}

static void shares_are_the_references(void **state) {
    (void)state;
    static const float logits[] = {1.5f, -0.25f, 0, 2.25f, 1.5f, -3};
    double temperatures[] = {0.3, 0.8, 1.0, 2.5}, parts[] = {0, 0.1, 0.5, 0.85, 0.999, 1}, least[] = {0, 0.05, 0.4, 1};
    double share[6];
    for (int t = 0; t < 4; t++)
        for (int k = 0; k <= 7; k++)
            for (int p = 0; p < 6; p++) {
                DrawRule rule = {temperatures[t], k, parts[p], least[(t + k + p) % 4]};
                reference(logits, 6, rule, share);
                assert_shares(logits, 6, rule, share);
            }
}

/* Checks the probabilities that top_p, min_p, top_k and temperature leave against numbers computed by hand. Before
 * these rules the four tokens have the probabilities 0.125, 0.5, 0.125 and 0.25. */
static void rules_by_hand(void **state) {
    (void)state;
    float logits[] = {logf(0.125f), logf(0.5f), logf(0.125f), logf(0.25f)};
    assert_shares(logits, 4, (DrawRule){1, 0, 0.6, 0}, (double[]){0, 2.0 / 3, 0, 1.0 / 3});
    assert_shares(logits, 4, (DrawRule){1, 0, 0.4, 0}, (double[]){0, 1, 0, 0});
    /* top_p keeps all of several equally likely tokens */
    assert_shares(logits, 4, (DrawRule){1, 0, 0.8, 0}, (double[]){0.125, 0.5, 0.125, 0.25});
    assert_shares(logits, 4, (DrawRule){1, 0, 1, 0.4}, (double[]){0, 2.0 / 3, 0, 1.0 / 3});
    assert_shares(logits, 4, (DrawRule){1, 0, 1, 0.6}, (double[]){0, 1, 0, 0});
    /* top_k = 3 keeps the fourth token too, because it is as likely as the third */
    assert_shares(logits, 4, (DrawRule){1, 3, 1, 0}, (double[]){0.125, 0.5, 0.125, 0.25});
    /* top_p is relative to the 0.75 that top_k leaves, not to 1 */
    assert_shares(logits, 4, (DrawRule){1, 2, 0.7, 0}, (double[]){0, 2.0 / 3, 0, 1.0 / 3});
    assert_shares(logits, 4, (DrawRule){1, 2, 0.6, 0}, (double[]){0, 1, 0, 0});
    /* After the temperature the other tokens have 1/16 and 1/4 of the likeliest token's weight, so min_p = 0.2 leaves
     * one. */
    assert_shares(logits, 4, (DrawRule){0.5, 0, 1, 0.2}, (double[]){0, 0.8, 0, 0.2});
}

/* Tries random logits of any sign and size. Each token of noticeable probability owns an interval of the random number
 * u. A u in the middle of that interval must draw the token. */
static void random_logits(void **state) {
    (void)state;
    float  logits[VOCAB_MAX];
    double share[VOCAB_MAX];
    for (int trial = 0; trial < 40; trial++) {
        DrawRule rule = {trial % 2 ? 1.0 : 20.0, trial % 3 ? 0 : 1 + trial * 20, trial % 5 ? 0.01 + trial / 41.0 : 1,
                         trial % 4 ? 0 : 0.01};
        rng_normal(logits, VOCAB_MAX, 7, (uint64_t)trial * VOCAB_MAX, trial % 3 ? 0.0f : -40.0f,
                   trial % 2 ? 1.0f : 30.0f);
        reference(logits, VOCAB_MAX, rule, share);
        double reached = 0;
        for (int v = 0; v < VOCAB_MAX; v++) {
            if (share[v] > 1e-6) assert_int_equal(draw(logits, VOCAB_MAX, rule, reached + share[v] / 2), v);
            reached += share[v];
        }
    }
}

static void odd_logits(void **state) {
    (void)state;
    float    logits[] = {NAN, -INFINITY, 1, NAN, 2};
    double   share[] = {0, 0, 1 / (1 + exp(1)), 0, exp(1) / (1 + exp(1))};
    DrawRule all = {1.0, 0, 1, 0}, four = {1.0, 4, 1, 0}, most = {1.0, 0, 0.9999, 0};
    assert_shares(logits, 5, all, share);
    assert_shares(logits, 5, four, share);
    assert_shares(logits, 5, most, share);
    /* the random number u is below 1; for 1 draw() returns the last token that can be drawn */
    assert_int_equal(draw(logits, 5, all, 1.0), 4);
    logits[3] = INFINITY;
    assert_int_equal(draw(logits, 5, all, 0.2), 3);
    for (int v = 0; v < 5; v++) logits[v] = NAN;
    assert_int_equal(draw(logits, 5, (DrawRule){1.0, 2, 0.5, 0.5}, 0.5), 0);
    float one = -7;
    assert_int_equal(draw(&one, 1, (DrawRule){0.8, 0, 0, 1}, 0.99), 0);
    float wide[] = {-3e38f, 3e38f};
    assert_int_equal(draw(wide, 2, (DrawRule){1e-3, 0, 1, 0}, 0.999), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_first_largest), cmocka_unit_test(shares_are_the_references),
        cmocka_unit_test(rules_by_hand),                  cmocka_unit_test(random_logits),
        cmocka_unit_test(odd_logits),
    };
    return cmocka_run_group_tests_name("draw", tests, NULL, NULL);
}
