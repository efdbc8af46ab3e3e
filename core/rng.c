/* rng.c - the random numbers and permutations of rng.h. */
#include "core/rng.h"

#include <math.h>

void rng_words(uint32_t out[4], uint64_t seed, RngUse use, uint64_t counter) {
    /* constants of Philox4x32 */
    const uint32_t mul0 = 0xD2511F53u, mul1 = 0xCD9E8D57u, weyl0 = 0x9E3779B9u, weyl1 = 0xBB67AE85u;
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = (uint32_t)use, c3 = 0;
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)mul0 * c0, p1 = (uint64_t)mul1 * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ key0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ key1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        key0 += weyl0;
        key1 += weyl1;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

void rng_normal(float *out, int64_t count, uint64_t seed, uint64_t offset, float mean, float std) {
    int64_t first = (int64_t)(offset / 4), last = (int64_t)((offset + (uint64_t)count + 3) / 4);
    #pragma omp parallel for schedule(static)
    for (int64_t quad = first; quad < last; quad++) {
        uint32_t u[4];
        double   z[4]; /* four normal draws from one counter: two Box-Muller pairs */
        rng_words(u, seed, RNG_INIT, (uint64_t)quad);
        for (int pair = 0; pair < 2; pair++) {
            double radius = sqrt(-2.0 * log(((double)u[2 * pair] + 1.0) * 0x1p-32)); /* log's argument is in (0,1] */
            double angle = 6.283185307179586 * (double)u[2 * pair + 1] * 0x1p-32;
            z[2 * pair] = radius * cos(angle);
            z[2 * pair + 1] = radius * sin(angle);
        }
        for (int k = 0; k < 4; k++) {
            int64_t i = quad * 4 + k - (int64_t)offset;
            if (i >= 0 && i < count) out[i] = (float)((double)mean + (double)std * z[k]);
        }
    }
}

double rng_uniform(uint64_t seed, RngUse use, uint64_t counter) {
    uint32_t u[4];
    rng_words(u, seed, use, counter);
    return (double)(((uint64_t)u[0] << 32 | u[1]) >> 11) * 0x1p-53;
}

uint64_t rng_permute(uint64_t i, uint64_t n, uint64_t seed, uint64_t epoch) {
    int half_bits = 1;
    while (half_bits < 32 && (1ull << (2 * half_bits)) < n) half_bits++;
    uint64_t half_mask = (1ull << half_bits) - 1;
    do {
        uint64_t left = i >> half_bits, right = i & half_mask;
        for (uint64_t round = 0; round < 8; round++) {
            uint32_t word[4];
            rng_words(word, seed ^ (epoch * 0x9E3779B97F4A7C15ull), RNG_SHUFFLE, right << 8 | round);
            uint64_t mixed = (left ^ word[0]) & half_mask;
            left = right;
            right = mixed;
        }
        i = left << half_bits | right;
    } while (i >= n);
    return i;
}
