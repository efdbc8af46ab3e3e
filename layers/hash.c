/* hash.c - CPU side of hash_words in layers.h. Sums modulo 2^64 are the same in any order: blocks of any size, threads
 * in any number. */
#include "layers/act_simd.h"
#include "layers/contracts.h"
#include "layers/layers.h"

typedef uint64_t __attribute__((may_alias, aligned(4))) Word;

SIMD_INLINE uint64_t mix(uint64_t word, uint64_t i) {
    uint64_t x = word + i * HASH_STEP;
    x = (x ^ x >> 32) * HASH_FACTOR;
    return x ^ x >> 29;
}

SIMD_INLINE uint64_t hash_block_body(const Word *word, int64_t first, int64_t count) {
    uint64_t sum = 0;
    for (int64_t i = first; i < first + count; i++) sum += mix(word[i], (uint64_t)i);
    return sum;
}
SIMD_KERNEL(uint64_t, hash_block, (const Word *word, int64_t first, int64_t count), (word, first, count))

void hash_words(Stream *s, Tensor hash, Tensor x) {
    if (hash_words_contract(s, hash, x)) return;
    int64_t  bytes = (int64_t)tensor_bytes(x), words = bytes / 8;
    uint64_t sum = 0, rest = 0;
    #pragma omp parallel for schedule(static) reduction(+ : sum)
    for (int64_t i = 0; i < words; i += ACT_BLOCK)
        sum += hash_block((const Word *)x.data, i, act_block_elems(i, words));
    memcpy(&rest, (const char *)x.data + 8 * words, (size_t)(bytes - 8 * words));
    if (bytes > 8 * words) sum += mix(rest, (uint64_t)words);
    *(uint64_t *)hash.data += sum;
}
