/* test_exact.c - exact sums, compared with integers of over a thousand bits that are added byte by byte, as on
 * paper. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/exact.h"
#include "core/rng.h"

/* A sum as integers of 2320 bits, in units of 2^-1075, half of the smallest double. Its value is `up`, the sum of all
 * positive numbers, minus `down`, that of the negative ones. */
enum { BYTES = 290 };
typedef struct { uint8_t up[BYTES], down[BYTES]; } Paper;

static void paper_add(Paper *p, double x, int64_t times) {
    int      exponent;
    uint64_t whole = (uint64_t)ldexp(frexp(fabs(x), &exponent), 53); /* |x| = whole * 2^(exponent - 53) */
    int      place = exponent - 53 + 1075, cut = place < 0 ? -place : 0;
    /* a subnormal number has fewer than 53 bits, so the bits that are cut off are zero */
    assert_true(cut == 0 || (whole & ((1ull << cut) - 1)) == 0);
    whole >>= cut, place += cut;
    for (int64_t t = 0; t < times; t++) {
        uint8_t *digit = signbit(x) ? p->down : p->up;
        unsigned carry = 0;
        /* adds `whole` to the big integer `digit` at bit `place`, eight bits at a time from the lowest */
        for (int bit = 0; bit < 53; bit += 8) {
            unsigned value = (unsigned)(whole >> bit & 0xff) << ((place + bit) % 8);
            int      at = (place + bit) / 8;
            for (carry = 0; at < BYTES && (value || carry); value >>= 8, at++) {
                unsigned sum = digit[at] + (value & 0xff) + carry;
                digit[at] = (uint8_t)sum, carry = sum >> 8;
            }
        }
    }
}

/* Returns the sign of a - b: -1, 0 or 1. */
static int paper_compare(const Paper *a, const Paper *b) {
    int64_t carry[2] = {0, 0};
    /* Compares a.up + b.down with b.up + a.down, which has the same result as a - b without negative numbers. */
    uint8_t left[BYTES + 1], right[BYTES + 1];
    for (int i = 0; i < BYTES; i++) {
        carry[0] += a->up[i] + b->down[i], left[i] = (uint8_t)carry[0], carry[0] >>= 8;
        carry[1] += b->up[i] + a->down[i], right[i] = (uint8_t)carry[1], carry[1] >>= 8;
    }
    left[BYTES] = (uint8_t)carry[0], right[BYTES] = (uint8_t)carry[1];
    for (int i = BYTES; i >= 0; i--)
        if (left[i] != right[i]) return left[i] < right[i] ? -1 : 1;
    return 0;
}

static int is_even(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits % 2 == 0;
}

/* Asserts that `got` is the double nearest to the sum: nearer than both neighbours, or equally near and even. `twice`
 * holds twice the sum. */
static void assert_nearest(double got, const Paper *twice) {
    for (int side = -1; side <= 1; side += 2) {
        double neighbour = nextafter(got, side * INFINITY);
        if (isinf(neighbour)) continue;
        Paper middle = {{0}, {0}};
        paper_add(&middle, got, 1), paper_add(&middle, neighbour, 1);
        int beyond = paper_compare(twice, &middle) * side;
        assert_true(beyond < 0 || (beyond == 0 && is_even(got)));
    }
}

static double random_double(uint64_t i, int least, int most) { /* returns a double with an exponent in [least, most] */
    double size = 0.5 + 0.5 * rng_uniform(1, RNG_TEST, 3 * i), place = rng_uniform(1, RNG_TEST, 3 * i + 1);
    return (rng_uniform(1, RNG_TEST, 3 * i + 2) < 0.5 ? -1 : 1) * ldexp(size, least + (int)(place * (most - least)));
}

static void nearest_to_the_whole_sum(void **state) {
    (void)state;
    static const int ranges[][2] = {{-1073, -1000}, {-1073, 1020}, {-10, 10}, {900, 1020}, {-1030, -1015}, {-300, -298}, {0, 1}};
    for (uint64_t i = 0; i < 700; i++) {
        const int *range = ranges[i % 7];
        int        n = 1 + (int)(i / 7 % 40);
        Exact      sum = {{0}};
        Paper      twice = {{0}, {0}};
        for (int k = 0; k < n; k++) {
            double x = random_double(i * 64 + (uint64_t)k, range[0], range[1]);
            /* x is about the negative of the previous number, so the two nearly cancel */
            if (i % 3 == 0 && k % 2) x = -random_double(i * 64 + (uint64_t)k - 1, range[0], range[1]) * (k % 4 == 1 ? 1.0 : 1.0 + 0x1p-52);
            exact_add(&sum, x);
            paper_add(&twice, x, 2);
        }
        assert_nearest(exact_value(&sum), &twice);
    }
}

static double value_of(const double *x, int n) {
    Exact sum = {{0}};
    for (int i = 0; i < n; i++) exact_add(&sum, x[i]);
    return exact_value(&sum);
}
#define VALUE_OF(...) value_of((const double[]){__VA_ARGS__}, (int)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)))

static void known_sums(void **state) {
    (void)state;
    static const double kept[] = {0.0, 1.0, -1.0, 0x1p-1074, -0x1p-1074, 0x0.fffffffffffffp-1022, 0x1p-1022, 0x1.fffffffffffffp1023,
                                  -0x1.fffffffffffffp1023, 0x1p-149, 0x1.fffffep127, 3.14159, -1e-300};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        assert_true(VALUE_OF(kept[i]) == kept[i]);
        assert_true(VALUE_OF(kept[i], 1e300, -1e300) == kept[i]);
        assert_true(VALUE_OF(kept[i], -kept[i]) == 0.0);
    }
    /* the sum lies between two doubles; the one with an even last bit is returned */
    assert_true(VALUE_OF(1.0, 0x1p-53) == 1.0);
    assert_true(VALUE_OF(1.0 + 0x1p-52, 0x1p-53) == 1.0 + 0x1p-51);
    /* adding or subtracting the smallest double decides which of the two nearest doubles is returned */
    assert_true(VALUE_OF(1.0, 0x1p-53, 0x1p-1074) == 1.0 + 0x1p-52);
    assert_true(VALUE_OF(1.0, 0x1p-53, -0x1p-1074) == 1.0);
    assert_true(VALUE_OF(0x1.fffffffffffffp1023, 0x1.fffffffffffffp1023) == INFINITY);
    assert_true(VALUE_OF(0x1.fffffffffffffp1023, 0x1.fffffffffffffp1023, -0x1.fffffffffffffp1023) == 0x1.fffffffffffffp1023);
    assert_true(VALUE_OF(1.0, INFINITY) == INFINITY && VALUE_OF(1e300, -INFINITY) == -INFINITY);
    assert_true(isnan(VALUE_OF(INFINITY, 1.0, -INFINITY)) && isnan(VALUE_OF(1.0, NAN)) && isnan(VALUE_OF(NAN, INFINITY)));
    assert_true(isnan(VALUE_OF(-NAN)));
}

/* Adds the same numbers in any order, and as several sums that are merged. The words of the Exact must be equal, not
 * only its value, because sums are merged before their value is read. */
static void any_order_and_any_parts(void **state) {
    (void)state;
    enum { N = 3000 };
    double x[N];
    Exact  forward = {{0}}, backward = {{0}}, parts = {{0}}, part[7] = {{{0}}};
    for (int i = 0; i < N; i++) x[i] = random_double((uint64_t)i, -1073, 1020);
    x[17] = 0.0, x[18] = -0.0;
    for (int i = 0; i < N; i++) exact_add(&forward, x[i]);
    for (int i = N - 1; i >= 0; i--) exact_add(&backward, x[i]);
    for (int i = 0; i < N; i++) exact_add(&part[i * i % 7], x[i]);
    for (int k = 6; k >= 0; k--) exact_merge(&parts, &part[k]);
    assert_memory_equal(&forward, &backward, sizeof forward);
    assert_memory_equal(&forward, &parts, sizeof forward);
}

/* A digit of an Exact must not overflow. Adds 2^31 equal values whose bits are all 1, by doubling a sum 31 times. */
static void room_for_carries(void **state) {
    (void)state;
    double x = 0x1.fffffffffffffp52; /* 53 bits, all 1 */
    for (int sign = -1; sign <= 1; sign += 2) {
        Exact sum = {{0}};
        exact_add(&sum, sign * x);
        for (int k = 0; k < 31; k++) exact_merge(&sum, &sum);
        assert_true(exact_value(&sum) == sign * ldexp(x, 31));
    }
}

int main(void) {
    const struct CMUnitTest exact[] = {cmocka_unit_test(nearest_to_the_whole_sum), cmocka_unit_test(known_sums),
                                       cmocka_unit_test(any_order_and_any_parts), cmocka_unit_test(room_for_carries)};
    return cmocka_run_group_tests(exact, NULL, NULL);
}
