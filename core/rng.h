/* rng.h - counter-based random numbers: every draw is a function of (key, counter), so any rank, thread or backend can
 * draw any element without knowing the others. Philox4x32-10, Salmon et al., "Parallel random numbers: as easy as 1, 2,
 * 3", SC 2011.
 */
#ifndef TRAIN_GPT_CORE_RNG_H
#define TRAIN_GPT_CORE_RNG_H

#include <stdint.h>

/* Purpose of a stream of random numbers. Streams of one seed with different purposes never overlap. */
typedef enum { RNG_INIT = 1, RNG_SHUFFLE = 2, RNG_SAMPLE = 3, RNG_TEST = 4, RNG_TIMING = 5 } RngUse;

/* Writes the four independent random 32-bit words that belong to (seed, use, counter). */
void rng_words(uint32_t out[4], uint64_t seed, RngUse use, uint64_t counter);

/* Sets out[i] to draw number offset + i of the RNG_INIT stream, distributed as N(mean, std^2). Computed by Box-Muller
 * in float64 and rounded once. */
void rng_normal(float *out, int64_t count, uint64_t seed, uint64_t offset, float mean, float std);

/* Returns the random number that belongs to (seed, use, counter), uniformly distributed on [0,1), with 53 bits. */
double rng_uniform(uint64_t seed, RngUse use, uint64_t counter);

/* Returns the place of index i (0 <= i < n) in a pseudo-random permutation of n things, keyed by (seed, epoch). It is a
 * Feistel network over the next power of four, repeated until the result is below n (cycle walking) (Black & Rogaway,
 * "Ciphers with arbitrary finite domains", 2002). O(1) memory. */
uint64_t rng_permute(uint64_t i, uint64_t n, uint64_t seed, uint64_t epoch);

#endif
