/* ranks_guard.c - weights that differ between ranks. Every flipped bit is found, and the right rank is named. Without
 * arguments it flips some bits; with numbers it is the main part of `make soak`'s weight_bits:
 *
 *   ranks_guard FLIPS SEED      prints "FLIPS flips, MISSED missed, WRONG wrong ranks named"
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/rng.h"
#include "model/model.h"
#include "run/guard/guard.h"
#include "test/comm/ranks.h"

static Model *replica_create(DType act) {
    Model        *m = model_create((ModelSpec){.shards = {.shape = GPT2_SHAPE(2, 3, 42, 40, 256),
                                                          .comm = world,
                                                          .ranks = comm_size(world),
                                                          .rank = comm_rank(world),
                                                          .act = act,
                                                          .use = GPT_TRAINING},
                                               .B = 1,
                                               .T = 40});
    const Layout *layout = &m->shards->layout;
    float *values = malloc(sizeof *values * (size_t)layout->elems);
    CHECK(values, "no memory");
    for (int i = 0; i < layout->params; i++) {
        const Param *p = &layout->param[i];
        param_init_values(values, p, 0, p->elems, 1);
        for (int64_t k = 0; k < p->elems; k++) tensor_set(m->shards->params, p->memory + k, values[k]);
    }
    free(values);
    return m;
}

/* Returns whether all ranks have equal weights. Hashes of the weights are added to the sums of a step and exchanged
 * with them, as in training. Sets who to the names of the ranks that differ. */
static int is_same_everywhere(Model *m, char who[GUARD_TEXT]) {
    step_sums_zero(&m->sums, &m->stream);
    hash_words(&m->stream, step_hash(&m->sums, HASH_REPLICAS), m->shards->params);
    return guard_is_same(world, step_sums_fetch(&m->sums, &m->stream).hash[HASH_REPLICAS], who);
}

static int names(const char *who, int rank) {
    char word[32];
    snprintf(word, sizeof word, "rank %d (", rank);
    return strstr(who, word) != NULL;
}

/* Flips one random bit of the weights on one random rank, compares the weights of all ranks, and flips the bit back.
 * Adds to *missed if no difference was noticed, and to *wrong the ranks that were named or left out wrongly. */
static void flip(Model *m, uint64_t seed, uint64_t k, int64_t *missed, int64_t *wrong) {
    char     who[GUARD_TEXT] = "";
    uint32_t random[4];
    rng_words(random, seed, RNG_TEST, k);
    int    odd = (int)(random[0] % (uint32_t)comm_size(world)), ranks = comm_size(world);
    size_t bit = random[1] % (8 * tensor_bytes(m->shards->params));
    char  *byte = (char *)m->shards->params.data + bit / 8;
    if (comm_rank(world) == odd) *byte ^= (char)(1 << bit % 8);
    int same = is_same_everywhere(m, who);
    if (comm_rank(world) == odd) *byte ^= (char)(1 << bit % 8);
    *missed += ranks > 1 && same;
    for (int r = 0; r < ranks && !same; r++) *wrong += names(who, r) != (ranks == 2 || r == odd);
}

static void flipped_bits_are_found(void **state) {
    (void)state;
    static const DType types[] = {F32, BF16};
    for (int t = 0; t < 2; t++) {
        Model  *m = replica_create(types[t]);
        char    who[GUARD_TEXT];
        int64_t missed = 0, wrong = 0;
        EXPECT_ON_ALL(is_same_everywhere(m, who));
        for (uint64_t k = 0; k < 100; k++) flip(m, 1, k, &missed, &wrong);
        EXPECT_ON_ALL(missed == 0 && wrong == 0);
        EXPECT_ON_ALL(is_same_everywhere(m, who));
        model_destroy(m);
    }
}

/* guard_is_same names the ranks whose hash differs from that of the majority. The table has the hash of each rank, and
 * 1 for each rank that must be named. */
static void the_odd_ones_are_named(void **state) {
    (void)state;
    static const struct { int ranks; int64_t value[4]; int named[4]; } table[] = {
        /* both ranks are named, because it is unknown which one is right */
        {2, {1, 2}, {1, 1}},
        {3, {5, 5, 6}, {0, 0, 1}}, {3, {INT64_MIN, 5, 5}, {1, 0, 0}}, {3, {-1, INT64_MAX, -1}, {0, 1, 0}}, {3, {1, 2, 3}, {1, 1, 1}},
        {4, {0, 0, -1, 0}, {0, 0, 1, 0}}, {4, {7, 7, 8, 8}, {1, 1, 1, 1}}, {4, {7, 8, 7, 9}, {1, 1, 1, 1}}, {4, {INT64_MAX, INT64_MAX, INT64_MIN, INT64_MAX}, {0, 0, 1, 0}},
    };
    char who[GUARD_TEXT];
    EXPECT_ON_ALL(guard_is_same(world, INT64_MIN, who) && guard_is_same(world, -1, who) && guard_is_same(world, 0, who));
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (table[i].ranks != comm_size(world)) continue;
        EXPECT_ON_ALL(!guard_is_same(world, table[i].value[comm_rank(world)], who));
        for (int r = 0; r < table[i].ranks; r++) EXPECT_ON_ALL(names(who, r) == table[i].named[r]);
    }
    guard_name_ranks(world, 0, who);
    EXPECT_ON_ALL(strstr(who, "cannot be named") != NULL);
    guard_name_ranks(world, comm_rank(world) == comm_size(world) - 1, who);
    for (int r = 0; r < comm_size(world); r++) EXPECT_ON_ALL(names(who, r) == (r == comm_size(world) - 1));
    EXPECT_ON_ALL(strstr(who, comm_host(world, comm_size(world) - 1)) != NULL);
}

/* guard_hash_words turns the hash of a rank into words. Their sums over all ranks show whether the hashes are equal.
 * Equal hashes never count as different, and different ones always do. */
static void differing_hashes_are_seen_in_sums(void **state) {
    (void)state;
    for (uint64_t k = 0; k < 200; k++) {
        uint32_t random[4];
        int64_t  words[GUARD_HASH_WORDS], hash;
        rng_words(random, 3, RNG_TEST, k);
        hash = (int64_t)((uint64_t)random[0] << 32 | random[1]);
        for (int flipped = 0; flipped < 2; flipped++) {
            int is_odd = flipped && comm_rank(world) == (int)(random[2] % (uint32_t)comm_size(world));
            guard_hash_words(is_odd ? hash ^ (int64_t)((uint64_t)1 << random[3] % 64) : hash, words);
            comm_all_reduce_i64(world, words, GUARD_HASH_WORDS, COMM_SUM);
            EXPECT_ON_ALL(guard_hashes_differ(words, comm_size(world)) == (flipped && comm_size(world) > 1));
        }
    }
}

/* Two computations of the same step must give equal bits. If they differ, guard_is_repeated names the ranks whose own
 * gradients differ. If none differs, it names the ranks whose summed gradients do. */
static void what_is_not_repeated_is_found(void **state) {
    (void)state;
    int         last = comm_size(world) - 1, is_last = comm_rank(world) == last;
    char        who[GUARD_TEXT];
    StepNumbers a = {.loss = 2.5, .grad_norm = 0.5, .own_grads = 17 + comm_rank(world), .grads = 40 + comm_rank(world)},
                b = a, not_finite = a;
    EXPECT_ON_ALL(guard_is_repeated(world, &a, &b, who));
    not_finite.loss = not_finite.grad_norm = (double)NAN;
    b = not_finite;
    EXPECT_ON_ALL(guard_is_repeated(world, &not_finite, &b, who));
    for (int what = 0; what < 6; what++) {
        b = a;
        if (what == 0) b.loss = 2.5000000000000004;
        if (what == 1) b.grad_norm = -b.grad_norm;
        /* the gradients of one rank are wrong, so the sums over all ranks are wrong too */
        if (what == 2) b.own_grads += is_last, b.grads++;
        if (what == 3) b.grads += is_last;
        if (what == 4) b.suspect = is_last, b.grads++;
        if (what == 5) b.own_grads -= is_last;
        EXPECT_ON_ALL(!guard_is_repeated(world, &a, &b, who));
        for (int r = 0; r <= last && what > 1; r++) EXPECT_ON_ALL(names(who, r) == (r == last));
        if (what < 2) EXPECT_ON_ALL(strstr(who, "cannot be named") != NULL);
    }
}

static int flip_many(int64_t flips, uint64_t seed) {
    int64_t missed = 0, wrong = 0;
    world = world_all(world_join(launch_detect()));
    device_open(world_local_rank(comm_world(world)), 1);
    Model *m = replica_create(seed % 2 ? BF16 : F32);
    for (int64_t k = 0; k < flips; k++) flip(m, seed, (uint64_t)k, &missed, &wrong);
    if (comm_rank(world) == 0)
        printf("%lld flips, %lld missed, %lld wrong ranks named\n", (long long)flips, (long long)missed,
               (long long)wrong);
    model_destroy(m);
    world_leave(comm_world(world));
    return missed || wrong;
}

int main(int argc, char **argv) {
    if (argc > 2) return flip_many(atoll(argv[1]), strtoull(argv[2], NULL, 10));
    const struct CMUnitTest cases[] = {cmocka_unit_test(flipped_bits_are_found),
                                       cmocka_unit_test(the_odd_ones_are_named),
                                       cmocka_unit_test(differing_hashes_are_seen_in_sums),
                                       cmocka_unit_test(what_is_not_repeated_is_found)};
    return RUN_ON_RANKS(cases);
}
