/* number_type.c - see number_type.h.
 *
 * Each test uses bits that its type fixes and that uint16 tokens leave free: high halves that are 0, bits after the
 * binary point that are 0, bytes that vary less than they should. A test passes only if every number obeys it and
 * enough numbers show it. So uint16 tokens of any vocabulary pass with a chance below 2^-16.
 */
#include "data/number_type.h"

#include <math.h>
#include <string.h>

typedef enum { INTEGERS, FLOATS, BFLOATS, TRIPLES, SWAPPED, BYTES } Form;

/* Wider types first: 64-bit numbers obey the test of 32-bit ones, too. Floats first, because small ones in big-endian
 * order obey the test of uint32. */
static const NumberType TYPES[] = {
    {"float64 numbers", "<f8", 8, 0, FLOATS},
    {"big-endian float64 numbers", ">f8", 8, 1, FLOATS},
    {"64-bit numbers", "<i8", 8, 0, INTEGERS},
    {"big-endian 64-bit numbers", ">i8", 8, 1, INTEGERS},
    {"float32 numbers", "<f4", 4, 0, FLOATS},
    {"big-endian float32 numbers", ">f4", 4, 1, FLOATS},
    {"uint32 numbers", "<i4", 4, 0, INTEGERS},
    {"big-endian uint32 numbers", ">i4", 4, 1, INTEGERS},
    {"numbers of 3 bytes", "u1", 3, 0, TRIPLES},
    {"big-endian numbers of 3 bytes", "u1", 3, 1, TRIPLES},
    {"float16 numbers", NULL, 2, 0, FLOATS},
    {"big-endian float16 numbers", NULL, 2, 1, FLOATS},
    {"bfloat16 numbers", NULL, 2, 0, BFLOATS},
    {"big-endian bfloat16 numbers", NULL, 2, 1, BFLOATS},
    {"big-endian uint16 numbers", ">u2", 2, 1, SWAPPED},
    {"bytes", "u1", 1, 0, BYTES},
};

enum {
    MOST_ID = 1 << 20,     /* no tokenizer has more ids */
    LEAST_NEGATIVE = 1024, /* labels that a loss leaves out are -1 or -100 */
    SHOWN = 16,            /* numbers, or bits, that must show a type */
    SEEN = 4096            /* 16-bit numbers from which the spread of bytes is judged */
};

/* Returns the bits of number i. */
static uint64_t bits_of(const NumberType *t, const uint8_t *data, size_t i) {
    uint64_t bits = 0;
    for (int k = 0; k < t->bytes; k++) bits |= (uint64_t)data[i * (size_t)t->bytes + (size_t)k] << 8 * (t->is_big ? t->bytes - 1 - k : k);
    return bits;
}

static int may_be_id(double v) { return v == floor(v) && v >= -LEAST_NEGATIVE && v < MOST_ID; }

/* Whole numbers of 32 or 64 bits: every half above the first 16 bits is 0, small, or full of ones. If some are small,
 * the numbers that count have over 255 in the first half. */
static int are_integers(const NumberType *t, const uint8_t *data, size_t count, int *has_negatives) {
    size_t shown = 0, shown_wide = 0, negatives = 0;
    int    is_wide = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = bits_of(t, data, i);
        int64_t  v = t->bytes == 8 ? (int64_t)bits : (int32_t)(uint32_t)bits;
        if (v < -LEAST_NEGATIVE || v >= MOST_ID) return 0;
        negatives += v < 0;
        is_wide |= v > UINT16_MAX;
        shown += v != 0, shown_wide += v < 0 || (v & 0xffff) > 255;
    }
    *has_negatives = negatives > 0;
    return (is_wide && t->bytes < 8 ? shown_wide : shown) >= SHOWN;
}

/* Returns the value of 16 bits as float16 or as bfloat16; infinity if the exponent is full. */
static double half_value(uint16_t bits, int mantissa_bits, int bias) {
    int mantissa = bits & ((1 << mantissa_bits) - 1), exponent = (bits & 0x7fff) >> mantissa_bits;
    if (exponent == 0x7fff >> mantissa_bits) return INFINITY;
    double v = exponent ? ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits) : ldexp(mantissa, 1 - bias - mantissa_bits);
    return bits & 0x8000 ? -v : v;
}

/* Whole numbers as float16 or bfloat16. In each different number the bits after the binary point are 0. */
static int are_halves(const NumberType *t, const uint8_t *data, size_t count, int *has_negatives) {
    const int mantissa_bits = t->form == BFLOATS ? 7 : 10, bias = t->form == BFLOATS ? 127 : 15;
    uint8_t   seen[1 << 13] = {0};
    int       shown = 0, different = 0;
    for (size_t i = 0; i < count; i++) {
        uint16_t bits = (uint16_t)bits_of(t, data, i);
        double   v = half_value(bits, mantissa_bits, bias);
        if (bits == 0x7c00 && t->form == FLOATS) continue; /* infinity: an id over 65,504 */
        if (!may_be_id(v) || bits == 0x8000) return 0;
        if (v < 0) *has_negatives = 1;
        if (v == 0 || seen[bits >> 3] & 1 << (bits & 7)) continue;
        seen[bits >> 3] |= (uint8_t)(1 << (bits & 7));
        int places = mantissa_bits - ilogb(v);
        shown += places > 0 ? places : 0, different++;
    }
    return shown >= SHOWN && different >= SHOWN / 2;
}

static int are_floats(const NumberType *t, const uint8_t *data, size_t count, int *has_negatives) {
    size_t shown = 0;
    if (t->bytes == 2) return are_halves(t, data, count, has_negatives);
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = bits_of(t, data, i);
        uint32_t low = (uint32_t)bits;
        float    narrow;
        double   v;
        memcpy(&narrow, &low, sizeof narrow), memcpy(&v, &bits, sizeof v);
        if (t->bytes == 4) v = (double)narrow;
        if (!may_be_id(v)) return 0;
        if (v < 0) *has_negatives = 1;
        shown += v != 0;
    }
    return shown >= SHOWN / 2;
}

/* Numbers of 3 bytes: the highest is below 16 everywhere, and the others often are not. */
static int are_triples(const NumberType *t, const uint8_t *data, size_t count) {
    size_t shown = 0;
    for (size_t i = 0; i < 3 * count; i++) {
        int is_highest = i % 3 == (t->is_big ? 0 : 2);
        if (is_highest && data[i] >= 16) return 0;
        shown += !is_highest && data[i] >= 16;
    }
    return shown >= 4 * SHOWN;
}

/* --- how bytes are spread ----------------------------------------------------------------------------------------- */

typedef struct { double count[2][256]; double numbers; } Spread; /* counts of the first and the second bytes of 16-bit numbers */

/* Counts the numbers that are not 0: padding would make a vocabulary look uneven. */
static Spread spread_of(const uint8_t *data, size_t count) {
    Spread s = {{{0}}, 0};
    for (size_t i = 0; i < count; i++)
        if (data[2 * i] | data[2 * i + 1]) s.count[0][data[2 * i]]++, s.count[1][data[2 * i + 1]]++, s.numbers++;
    return s;
}

static double entropy(const Spread *s, int which) { /* in bits */
    double sum = 0;
    for (int b = 0; b < 256; b++)
        if (s->count[which][b] > 0) sum -= s->count[which][b] / s->numbers * log2(s->count[which][b] / s->numbers);
    return sum;
}

static int values(const Spread *s, int which) {
    int n = 0;
    for (int b = 0; b < 256; b++) n += s->count[which][b] > 0;
    return n;
}

/* The low byte of a token varies at least as much as its high byte. Where the second bytes vary more by a bit of
 * entropy, or take all values while the first ones end early, the second bytes are the low ones. */
static int are_swapped(const Spread *s) {
    int most = 255;
    while (most > 0 && s->count[0][most] == 0) most--;
    int ends_early = s->numbers >= SEEN && values(s, 1) == 256 && values(s, 0) == most + 1 && most < 252;
    return ends_early || (s->numbers >= SEEN / 8 && values(s, 1) >= SHOWN / 2 && entropy(s, 1) > entropy(s, 0) + 1);
}

/* Bytes have one distribution at even and at odd places. That of uint16 tokens differs, unless they are drawn evenly
 * from all 65,536. Both are tests of chi squared. */
static int are_bytes(const Spread *s) {
    double differ = 0, uneven = 0, mean = 2 * s->numbers / 256;
    int    kinds = 0;
    for (int b = 0; b < 256; b++) {
        double first = s->count[0][b], second = s->count[1][b], both = first + second;
        if (both > 0) kinds++, differ += (first - second) * (first - second) / both;
        uneven += (both - mean) * (both - mean) / mean;
    }
    return s->numbers >= SEEN && kinds >= SHOWN && differ < 1.5 * kinds + 60 && uneven > 4 * 256;
}

/* --- the whole ---------------------------------------------------------------------------------------------------- */

const NumberType *number_type_find(const uint8_t *data, size_t bytes, int *has_negatives) {
    Spread spread = spread_of(data, bytes / 2);
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++) {
        const NumberType *t = &TYPES[i];
        size_t            count = bytes / (size_t)t->bytes;
        int               is_it = 0;
        *has_negatives = 0;
        switch ((Form)t->form) {
            case INTEGERS: is_it = are_integers(t, data, count, has_negatives); break;
            case FLOATS:
            case BFLOATS: is_it = are_floats(t, data, count, has_negatives); break;
            case TRIPLES: is_it = are_triples(t, data, count); break;
            case SWAPPED: is_it = are_swapped(&spread); break;
            case BYTES: is_it = are_bytes(&spread); break;
        }
        if (is_it) return t;
    }
    *has_negatives = 0;
    return NULL;
}

int number_type_is_uint32(const NumberType *type, int has_negatives) {
    return type->form == INTEGERS && type->bytes == 4 && !type->is_big && !has_negatives;
}
