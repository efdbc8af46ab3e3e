/* test_rng.c - random numbers: known answers (Random123's kat_vectors; the others from an independent Python
 * transcription that reproduces all three Philox4x32-10 vectors there), statistics, and the properties that ranks rely
 * on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"

static void words_have_known_answers(void **state) {
    (void)state;
    static const struct { uint64_t seed, counter; uint32_t use, out[4]; } known[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}, /* vectors of Random123's kat_vectors */
        {0x299f31d0a4093822, 0x85a308d3243f6a88, 1, {0xef5e94d8, 0x6d26cdb5, 0xa56e9b0f, 0x78e2b471}},
        {UINT64_MAX, UINT64_MAX, UINT32_MAX, {0xeec03824, 0xe4c1e0f1, 0x3d16e5ca, 0xa00e8336}},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint32_t out[4];
        rng_words(out, known[i].seed, (RngUse)known[i].use, known[i].counter);
        assert_memory_equal(out, known[i].out, sizeof out);
    }
}

static void normals_have_known_answers(void **state) {
    (void)state;
    static const struct { uint64_t offset; float value; } known[] = {
        {0, 0x1.1cd908p-6f},       {1, -0x1.47bd42p-7f},       {2, 0x1.1abd36p-8f},
        {3, 0x1.85b28cp-7f},       {4, -0x1.000db2p-6f},       {1000003, 0x1.c2ba94p-7f},
        {1000000000003ull, 0x1.4b0332p-5f},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        float x;
        rng_normal(&x, 1, 1337, known[i].offset, 0.0f, 0.02f);
        assert_true(x == known[i].value);
    }
}

static void normals_are_normal(void **state) {
    (void)state;
    enum { N = 1 << 20 };
    float *x = malloc(N * sizeof *x);
    rng_normal(x, N, 7, 0, 3.0f, 2.0f);
    double sum = 0, m2 = 0, m3 = 0, m4 = 0, neighbours = 0;
    for (int i = 0; i < N; i++) sum += x[i];
    double mean = sum / N;
    for (int i = 0; i < N; i++) {
        double d = x[i] - mean;
        m2 += d * d, m3 += d * d * d, m4 += d * d * d * d;
        if (i) neighbours += d * (x[i - 1] - mean);
    }
    m2 /= N, m3 /= N, m4 /= N, neighbours /= N;
    /* five standard errors, of the mean s/sqrt(N), variance s^2 sqrt(2/N), skewness sqrt(6/N), kurtosis sqrt(24/N) and
     * correlation */
    assert_true(fabs(mean - 3.0) < 5 * 2.0 / sqrt(N));
    assert_true(fabs(m2 / 4.0 - 1.0) < 5 * sqrt(2.0 / N));
    assert_true(fabs(m3 / pow(m2, 1.5)) < 5 * sqrt(6.0 / N));
    assert_true(fabs(m4 / (m2 * m2) - 3.0) < 5 * sqrt(24.0 / N));
    assert_true(fabs(neighbours / m2) < 5 / sqrt(N));
    free(x);
}

static void normals_do_not_depend_on_slices(void **state) {
    (void)state;
    enum { N = 1000 };
    float whole[N], part[N];
    rng_normal(whole, N, 42, 1234567, 0.0f, 1.0f);
    for (int cut = 0; cut <= 67; cut++) {
        memset(part, 0, sizeof part);
        rng_normal(part, cut, 42, 1234567, 0.0f, 1.0f);
        rng_normal(part + cut, N - cut, 42, 1234567 + (uint64_t)cut, 0.0f, 1.0f);
        assert_memory_equal(part, whole, sizeof whole);
    }
    for (int step = 1; step <= 9; step += 2) {
        for (int i = 0; i < N; i += step) rng_normal(part + i, i + step < N ? step : N - i, 42, 1234567 + (uint64_t)i, 0.0f, 1.0f);
        assert_memory_equal(part, whole, sizeof whole);
    }
}

static void streams_differ(void **state) {
    (void)state;
    uint32_t a[4], b[4];
    rng_words(a, 1, RNG_INIT, 9);
    rng_words(b, 1, RNG_SHUFFLE, 9);
    assert_memory_not_equal(a, b, sizeof a);
    rng_words(b, 2, RNG_INIT, 9);
    assert_memory_not_equal(a, b, sizeof a);
    rng_words(b, 1, RNG_INIT, 10);
    assert_memory_not_equal(a, b, sizeof a);
    rng_words(b, 1 + (1ull << 32), RNG_INIT, 9);
    assert_memory_not_equal(a, b, sizeof a);
}

static void uniform_covers_the_unit_interval(void **state) {
    (void)state;
    enum { N = 100000, BINS = 50 };
    int bin[BINS] = {0};
    for (uint64_t i = 0; i < N; i++) {
        double u = rng_uniform(3, RNG_SAMPLE, i);
        assert_true(u >= 0.0 && u < 1.0);
        bin[(int)(u * BINS)]++;
    }
    double chi2 = 0;
    for (int i = 0; i < BINS; i++) chi2 += pow(bin[i] - N / BINS, 2) / (N / BINS);
    assert_true(chi2 < BINS - 1 + 5 * sqrt(2.0 * (BINS - 1)));
    assert_true(rng_uniform(1337, RNG_SAMPLE, 5) == 0.27772701900626684);
}

static void permute_is_a_permutation(void **state) {
    (void)state;
    static const uint64_t sizes[] = {1, 2, 3, 4, 5, 7, 15, 16, 17, 63, 64, 65, 255, 256, 257, 1000, 4095, 4096, 4097};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (uint64_t epoch = 0; epoch < 5; epoch++) {
            uint64_t n = sizes[s];
            char    *seen = calloc(n, 1);
            for (uint64_t i = 0; i < n; i++) {
                uint64_t at = rng_permute(i, n, 99, epoch);
                assert_true(at < n && !seen[at]);
                seen[at] = 1;
            }
            free(seen);
        }
    /* more than 2^32 items: results stay below their number, and two places get different items */
    uint64_t big = 3ull << 40;
    assert_true(rng_permute(1, big, 5, 0) < big && rng_permute(1, big, 5, 0) != rng_permute(2, big, 5, 0));
}

/* In the permutations of 10,000 epochs, each item is at each place about equally often, and each pair of items is
 * adjacent about equally often. */
static void permute_prefers_no_place(void **state) {
    (void)state;
    enum { N = 10, EPOCHS = 10000 };
    int place[N][N] = {{0}}, followed[N][N] = {{0}};
    for (uint64_t epoch = 0; epoch < EPOCHS; epoch++) {
        uint64_t before = 0;
        for (uint64_t i = 0; i < N; i++) {
            uint64_t at = rng_permute(i, N, 1, epoch);
            place[i][at]++;
            if (i) followed[before][at]++;
            before = at;
        }
    }
    double chi2 = 0, chi2_pairs = 0, due = (double)EPOCHS / N, due_pairs = (double)EPOCHS / N;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            chi2 += pow(place[i][j] - due, 2) / due;
            if (i != j) chi2_pairs += pow(followed[i][j] - due_pairs, 2) / due_pairs;
        }
    /* chi-squared with (N-1)^2 = 81 degrees of freedom, plus five standard deviations */
    assert_true(chi2 < 81 + 5 * sqrt(2.0 * 81));
    assert_true(chi2_pairs < 89 + 5 * sqrt(2.0 * 89)); /* N(N-1) - 1 */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_have_known_answers),    cmocka_unit_test(normals_have_known_answers),
        cmocka_unit_test(normals_are_normal),          cmocka_unit_test(normals_do_not_depend_on_slices),
        cmocka_unit_test(streams_differ),              cmocka_unit_test(uniform_covers_the_unit_interval),
        cmocka_unit_test(permute_is_a_permutation),    cmocka_unit_test(permute_prefers_no_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
