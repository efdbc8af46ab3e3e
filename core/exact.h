/* exact.h - sums of doubles that no order of additions changes: the sums of a step over rows, blocks, threads and
 * ranks.
 *
 * A sum is kept whole, as a fixed-point number that spans the range of a double. Its digits have 32 bits, each in an
 * int64. The upper half is for carries, which stay there until the sum is read (Neal, "Fast exact summation using small
 * and large superaccumulators", arXiv:1505.05571; Kulisch's long accumulator). A double is 53 bits at some place of
 * that number. It is added to three digits, without rounding. Integer additions are associative and commutative. So
 * summands may be added in any order, by atomics or by MPI as int64, and give the same digits. Only reading the sum as
 * a double rounds: once, to nearest.
 *
 * NaN and infinities are counted, not added. The carries hold 2^31 values, because each digit's magnitude grows by less
 * than 2^32 a value.
 */
#ifndef TRAIN_GPT_CORE_EXACT_H
#define TRAIN_GPT_CORE_EXACT_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define HOST_AND_DEVICE __host__ __device__
#else
#define HOST_AND_DEVICE
#endif

/* Layout of an exact sum. Digit i weighs 2^(32 i - 1074). 66 digits cover the 2098 bits of doubles. The last three
 * words count NaN, +infinity and -infinity. */
enum { EXACT_DIGITS = 66, EXACT_NAN = EXACT_DIGITS, EXACT_ABOVE, EXACT_BELOW, EXACT_WORDS };

typedef struct { int64_t word[EXACT_WORDS]; } Exact; /* an exact sum of doubles; it is empty when all words are zero */

/* A double split into three digits of an exact sum: exact_add adds part[k] to word[first + k]. */
typedef struct { int first; int64_t part[3]; } ExactParts;

HOST_AND_DEVICE static inline ExactParts exact_parts(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint64_t   fraction = bits & 0xfffffffffffffull;
    int        exponent = (int)(bits >> 52 & 0x7ff), negative = (int)(bits >> 63);
    ExactParts p = {0, {0, 0, 0}};
    if (exponent == 0x7ff) {
        p.first = fraction ? EXACT_NAN : negative ? EXACT_BELOW : EXACT_ABOVE;
        /* NaN and infinities set only part[2]. first is reduced by 2, so that part[2] is added to their counter and no
         * part lies behind the last word */
        p.first -= 2;
        p.part[2] = 1;
        return p;
    }
    if (exponent > 0) fraction |= 1ull << 52, exponent--; /* adds the hidden bit of a normal number; the lowest bit of
                                                           * the fraction then weighs 2^(exponent - 1074) */
    int      shift = exponent & 31;
    uint64_t low = (fraction & 0xffffffffull) << shift, high = ((fraction >> 32) << shift) + (low >> 32);
    p.first = exponent >> 5;
    p.part[0] = (int64_t)(low & 0xffffffffull);
    p.part[1] = (int64_t)(high & 0xffffffffull);
    p.part[2] = (int64_t)(high >> 32);
    if (negative) p.part[0] = -p.part[0], p.part[1] = -p.part[1], p.part[2] = -p.part[2];
    return p;
}

static inline void exact_add(Exact *sum, double x) {
    ExactParts p = exact_parts(x);
    for (int k = 0; k < 3; k++) sum->word[p.first + k] += p.part[k];
}

static inline void exact_merge(Exact *sum, const Exact *other) {
    for (int i = 0; i < EXACT_WORDS; i++) sum->word[i] += other->word[i];
}

/* Returns the sum, rounded once to nearest even. Returns +-infinity if the sum is beyond the range of a double, and NaN
 * if a NaN or infinities of both signs were added. */
double exact_value(const Exact *sum);

#endif
