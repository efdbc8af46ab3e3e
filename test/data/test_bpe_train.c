/* test_bpe_train.c - a learnt vocabulary, compared with an implementation that counts all pairs again for each
 * merge. */
#include "data/bpe.h"

#include "core/rng.h"
#include "test/data/files.h"

enum { WORDS = 60, WORD_BYTES = 12, MERGES = 80 };
static char word[WORDS][WORD_BYTES];
static int  bytes_of[WORDS];

static void make_words(uint64_t seed, int letters) {
    for (int w = 0; w < WORDS; w++) {
        uint32_t r[4];
        rng_words(r, seed, RNG_TEST, (uint64_t)w);
        bytes_of[w] = 1 + (int)(r[0] % WORD_BYTES);
        for (int i = 0; i < bytes_of[w]; i++) {
            rng_words(r, seed, RNG_TEST, (uint64_t)(1000 + 100 * w + i));
            word[w][i] = (char)('a' + r[0] % (uint32_t)letters);
        }
    }
}

/* Learns merges by the definition: for each merge it counts all pairs again, word by word. */
static int learn_plainly(int32_t *left, int32_t *right) {
    static int32_t symbol[WORDS][WORD_BYTES];
    int            length[WORDS], made = 0;
    for (int w = 0; w < WORDS; w++) {
        length[w] = bytes_of[w];
        for (int i = 0; i < length[w]; i++) symbol[w][i] = (unsigned char)word[w][i];
    }
    for (; made < MERGES; made++) {
        int     ids = 256 + made, best = 1;
        static int count[256 + MERGES][256 + MERGES];
        memset(count, 0, sizeof count);
        for (int w = 0; w < WORDS; w++)
            for (int i = 0; i + 1 < length[w]; i++) count[symbol[w][i]][symbol[w][i + 1]]++;
        for (int a = 0; a < ids; a++)
            for (int b = 0; b < ids; b++)
                if (count[a][b] > best) best = count[a][b], left[made] = a, right[made] = b;
        if (best < 2) break;
        for (int w = 0; w < WORDS; w++) {
            int to = 0;
            for (int i = 0; i < length[w]; i++, to++) {
                int is_pair = i + 1 < length[w] && symbol[w][i] == left[made] && symbol[w][i + 1] == right[made];
                symbol[w][to] = is_pair ? ids : symbol[w][i];
                i += is_pair;
            }
            length[w] = to;
        }
    }
    return made;
}

static void merges_are_those_of_the_definition(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 30; seed++) {
        int32_t left[MERGES], right[MERGES], own_left[MERGES + 1], own_right[MERGES + 1];
        /* words made of a single letter have pairs that overlap, as aa in aaa */
        make_words(seed, seed % 3 == 0 ? 1 : seed % 3 == 1 ? 2 : 5);
        BpeTrainer *t = bpe_trainer_create(1 << 24);
        for (int w = 0; w < WORDS; w++) bpe_trainer_add(t, word[w], (size_t)bytes_of[w]);
        int made = learn_plainly(left, right), own = bpe_trainer_learn(t, MERGES, own_left, own_right);
        assert_int_equal(bpe_trainer_forgotten(t), 0);
        bpe_trainer_destroy(t);
        for (int i = 0; i < (own < made ? own : made); i++)
            if (left[i] != own_left[i] || right[i] != own_right[i])
                fail_msg("seed %d, merge %d: %d %d, not %d %d", (int)seed, i, own_left[i], own_right[i], left[i], right[i]);
        assert_int_equal(own, made);
    }
}

/* If there are more different words than memory for them, the trainer forgets rare ones. Frequent words are still
 * learnt. */
static void rare_words_go_first(void **state) {
    (void)state;
    BpeTrainer *t = bpe_trainer_create(1 << 20);
    int32_t     left[8], right[8];
    char        rare[16];
    for (int i = 0; i < 200000; i++) {
        bpe_trainer_add(t, rare, (size_t)snprintf(rare, sizeof rare, "%d", i));
        bpe_trainer_add(t, "zq", 2);
    }
    assert_true(bpe_trainer_forgotten(t) > 100000);
    assert_true(bpe_trainer_learn(t, 8, left, right) > 0);
    assert_true(left[0] == 'z' && right[0] == 'q');
    bpe_trainer_destroy(t);
}

static void nothing_is_learnt_from_nothing(void **state) {
    (void)state;
    int32_t     none[1];
    BpeTrainer *t = bpe_trainer_create(1 << 20);
    assert_int_equal(bpe_trainer_learn(t, 1, none, none), 0);
    bpe_trainer_destroy(t);
    t = bpe_trainer_create(1 << 20);
    bpe_trainer_add(t, "abcdef", 6); /* nothing is learnt, because no pair occurs twice */
    assert_int_equal(bpe_trainer_learn(t, 1, none, none), 0);
    bpe_trainer_destroy(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_are_those_of_the_definition),
        cmocka_unit_test(rare_words_go_first),
        cmocka_unit_test(nothing_is_learnt_from_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
