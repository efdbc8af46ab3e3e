/* exact.c - rounds an exact sum of doubles (exact.h) to the nearest double. */
#include "core/exact.h"

#include <math.h>

double exact_value(const Exact *sum) {
    const int64_t *count = sum->word;
    if (count[EXACT_NAN] || (count[EXACT_ABOVE] && count[EXACT_BELOW])) return NAN;
    if (count[EXACT_ABOVE]) return INFINITY;
    if (count[EXACT_BELOW]) return -INFINITY;

    /* base-2^32 digits of |sum|, lowest first; the last one takes what is above the others */
    uint32_t digit[EXACT_DIGITS + 1];
    int      sign = 1, top = EXACT_DIGITS;
    for (;; sign = -1) {
        int64_t above = 0;
        for (int i = 0; i < EXACT_DIGITS; i++) {
            above += sign * count[i];
            digit[i] = (uint32_t)(above & 0xffffffff);
            above >>= 32; /* the shift rounds down, so a value below zero borrows from the next digit */
        }
        digit[EXACT_DIGITS] = (uint32_t)above;
        if (above >= 0) break;
    }
    while (top > 0 && digit[top] == 0) top--;
    /* a sum of at most 64 bits: its conversion to double rounds once, and ldexp is exact */
    if (top < 2) return sign * ldexp((double)((uint64_t)digit[1] << 32 | digit[0]), -1074);
    /* Takes the highest 64 bits of the sum. The last bit is also set if any lower bit of the sum is set, so that the
     * conversion to double rounds the whole number to nearest even. */
    uint64_t high = (uint64_t)digit[top] << 32 | digit[top - 1], below = digit[top - 2];
    int      shift = __builtin_clzll(high);
    if (shift) high = high << shift | below >> (32 - shift);
    below = (uint32_t)(below << shift);
    for (int i = 0; i < top - 2; i++) below |= digit[i];
    return sign * ldexp((double)(high | (below != 0)), 32 * (top - 1) - shift - 1074);
}
