/* test_hash.c - hash_words: the hash is the same in any order of computation and differs for any flipped bit. */
#include "test/ref/test.h"

#include <omp.h>

/* Computes the hash by the formula of layers.h, byte by byte, from the last word to the first. */
static uint64_t plain(const unsigned char *bytes, size_t count) {
    uint64_t sum = 0;
    for (size_t words = (count + 7) / 8; words-- > 0;) {
        uint64_t x = 0;
        for (size_t b = 8 * words; b < count && b < 8 * words + 8; b++) x += (uint64_t)bytes[b] << 8 * (b % 8);
        x += (uint64_t)words * 0x9e3779b97f4a7c15u;
        x = (x ^ x / 4294967296u) * 0xd6e8feb86659fd93u;
        sum += x ^ x / 536870912u;
    }
    return sum;
}

/* Returns the hash of x added to `start`. */
static uint64_t hash_from(Stage *s, Tensor x, uint64_t start) {
    Tensor hash = stage_tensor(s, I64, 1, 1, 1);
    memcpy(hash.data, &start, sizeof start);
    hash_words(&s->stream, hash, x);
    device_sync(&s->stream);
    memcpy(&start, hash.data, sizeof start);
    return start;
}

static void test_sizes(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 7, 8, 31, 1000, 4096, 8193, 65536 + 1, 1200007};
    for (int i = 0; i < COUNT(sizes); i++)
        for (int t = 0; t < 2; t++) { /* tensors with elements of 4 bytes, then of 2 */
            Stage    s = stage_create(0);
            Tensor   x = stage_random(&s, ACT_TYPES[t], 1, sizes[i], 1, (uint64_t)i, 2, 0);
            uint64_t due = plain((const unsigned char *)x.data, tensor_bytes(x));
            assert_true(hash_from(&s, x, 0) == due);
            assert_true(hash_from(&s, x, 1234567890123456789u) == due + 1234567890123456789u);
            int threads = omp_get_max_threads();
            omp_set_num_threads(threads + 2);
            assert_true(hash_from(&s, x, 0) == due);
            omp_set_num_threads(threads);
            stage_destroy(&s);
        }
}

/* Tests memory that is aligned to a word but not to a vector, and empty memory. */
static void test_unaligned(void **state) {
    (void)state;
    Stage  s = stage_create(0);
    Tensor x = stage_random(&s, F32, 1, 3001, 1, 5, 1, 0), later = tensor_slice(x, 2, 2999);
    assert_true(hash_from(&s, later, 0) == plain((const unsigned char *)later.data, tensor_bytes(later)));
    assert_true(hash_from(&s, tensor_slice(x, 0, 0), 17) == 17);
    stage_destroy(&s);
}

/* Flips every bit of a small tensor and many bits of a large one. Also exchanges two words, changes two words equally,
 * and changes the number of zeros. */
static void test_every_flip_is_seen(void **state) {
    (void)state;
    const struct {
        int64_t elems, flips;
    } sizes[] = {{37, 37 * 32}, {stage_is_slow() ? 20000 : 500000, stage_is_slow() ? 50 : 200}};
    for (int i = 0; i < COUNT(sizes); i++) {
        Stage    s = stage_create(0);
        Tensor   x = stage_random(&s, F32, 1, sizes[i].elems, 1, 7, 1, 0), hash = stage_tensor(&s, I64, 1, 1, 1);
        uint64_t now, before = hash_from(&s, x, 0), bits = 32 * (uint64_t)sizes[i].elems;
        unsigned char *byte = (unsigned char *)x.data;
        for (int64_t k = 0; k < sizes[i].flips; k++) {
            uint64_t bit = i == 0 ? (uint64_t)k : (uint64_t)k * 7919 * 613 % bits;
            byte[bit / 8] ^= (unsigned char)(1u << bit % 8);
            device_zero(&s.stream, hash);
            hash_words(&s.stream, hash, x);
            device_sync(&s.stream);
            memcpy(&now, hash.data, sizeof now);
            if (now == before) fail_msg("bit %llu is not seen", (unsigned long long)bit);
            byte[bit / 8] ^= (unsigned char)(1u << bit % 8);
        }
        stage_destroy(&s);
    }
    Stage     s = stage_create(0);
    Tensor    x = stage_random(&s, F32, 1, 64, 1, 7, 1, 0);
    uint64_t  before = hash_from(&s, x, 0), *word = (uint64_t *)x.data, kept = word[3];
    word[3] = word[20], word[20] = kept;
    assert_true(hash_from(&s, x, 0) != before);
    word[20] = word[3], word[3] = kept;
    assert_true(hash_from(&s, x, 0) == before);
    word[3] ^= 1ull << 63, word[20] ^= 1ull << 63;
    assert_true(hash_from(&s, x, 0) != before);
    memset(word, 0, tensor_bytes(x));
    assert_true(hash_from(&s, x, 0) != hash_from(&s, tensor_slice(x, 0, 62), 0));
    stage_destroy(&s);
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_sizes), cmocka_unit_test(test_unaligned),
                                     cmocka_unit_test(test_every_flip_is_seen)};
    return cmocka_run_group_tests_name("hash", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
