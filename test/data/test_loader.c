/* test_loader.c - the loader returns exactly the samples that belong to a step, in order. This holds for any number
 * of ranks and any micro-batch, however far its thread has read ahead. */
#include "data/loader.h"

#include <omp.h>
#include <time.h>

#include "core/error.h"
#include "test/data/files.h"

enum { T = 6 };

static Dataset open_data(void) {
    write_counting_shard("a.bin", 6 * 17 + 1, 0);
    /* the two files have 37 samples of T = 6 tokens: no multiple of the samples of a step, so epochs end inside of
     * steps */
    write_counting_shard("b.bin", 6 * 20 + 3, 10000);
    static const char *const globs[] = {"?.bin"};
    return dataset_open("data.train", globs, NULL, 1, T, 50000);
}

/* Reads `steps` steps from a loader. Each row of a batch must be the sample that comes next in order. With context
 * ranks it must be this rank's part of that sample. */
static void assert_steps(Loader *l, const Dataset *d, LoaderPlan plan, int steps) {
    Stream    stream = stream_create(0);
    int64_t   part = plan.step_samples / plan.ranks, own = T / plan.context.ranks;
    Positions at = positions_of(plan.context, own);
    for (int step = 0; step < steps; step++)
        for (int64_t row = 0; row < part; row += plan.micro_batch) {
            double wait_ms = -1;
            Batch  batch = loader_next(l, &stream, &wait_ms);
            assert_true(wait_ms >= 0);
            EXPECT2(batch.inputs, I32, plan.micro_batch, own);
            EXPECT2(batch.targets, I32, plan.micro_batch, own);
            for (int64_t b = 0; b < plan.micro_batch; b++) {
                int32_t due[T + 1];
                int64_t g = plan.first_sample + step * plan.step_samples + plan.rank * part + row + b;
                dataset_sample(d, dataset_order(d, plan.order, g), due, due + 1);
                for (int64_t t = 0, start; t < own; t++) {
                    for (start = POSITION_OF(at, t); start > 0 && due[start] != plan.end_of_text;) start--;
                    assert_true(!plan.documents || ((int32_t *)batch.starts.data)[b * own + t] == start);
                    assert_int_equal(((int32_t *)batch.inputs.data)[b * own + t], due[POSITION_OF(at, t)]);
                    assert_int_equal(((int32_t *)batch.targets.data)[b * own + t], due[POSITION_OF(at, t) + 1]);
                }
            }
        }
}

static void assert_follows_order(const Dataset *d, LoaderPlan plan, int steps) {
    Arena   arena = arena_create("batches", loader_bytes(plan.micro_batch, T / plan.context.ranks, 1, plan.documents));
    Loader *l = loader_create(d, plan, &arena);
    assert_steps(l, d, plan, steps);
    loader_destroy(l);
    arena_destroy(&arena);
}

static void batches_follow_the_order(void **state) {
    (void)state;
    Dataset d = open_data();
    assert_int_equal(d.samples, 37);
    for (int ranks = 1; ranks <= 4; ranks++)
        for (int rank = 0; rank < ranks; rank++)
            for (int64_t micro = 1; micro <= 4; micro++)
                for (int shuffle = 0; shuffle < 2; shuffle++)
                    assert_follows_order(&d,
                                         (LoaderPlan){{shuffle, 1337},
                                                      12ll * micro,
                                                      micro,
                                                      rank,
                                                      ranks,
                                                      shuffle * 5 * 12 * micro,
                                                      {1, 0},
                                                      1, 0, 0},
                                         9);
    for (int64_t contexts = 2; contexts <= T / 2; contexts++)
        for (int64_t rank = 0; rank < contexts && T % (2 * contexts) == 0; rank++)
            assert_follows_order(&d, (LoaderPlan){{1, 1337}, 24, 2, 1, 3, 24, {contexts, rank}, 1, 0, 0}, 3);
    dataset_close(&d);
}

/* A document begins at its end-of-text token. Tests each position of that token in a sample, on every context rank. */
static void documents_begin_at_their_token(void **state) {
    (void)state;
    Dataset d = open_data();
    for (int32_t end = 0; end < 2 * T; end++)
        for (int64_t contexts = 1; contexts <= 3; contexts += 2)
            for (int64_t rank = 0; rank < contexts; rank++)
                assert_follows_order(&d, (LoaderPlan){{0, 0}, 4, 2, 0, 1, 0, {contexts, rank}, 1, 1, end}, 3);
    int32_t starts[T], several[T] = {5, 7, 7, 1, 7, 2};
    document_starts(starts, several, T, 7);
    for (int t = 0; t < T; t++) assert_int_equal(starts[t], ((int[]){0, 1, 2, 2, 4, 4})[t]);
    dataset_close(&d);
}

/* With G samples a step, step s consists of samples s*G to s*G+G-1, in the order of ranks and micro-batches. The tokens
 * count up, so they show which sample a row is. */
static void steps_cover_their_indices_in_order(void **state) {
    (void)state;
    write_counting_shard("a.bin", 48 * T + 1, 0);
    static const char *const globs[] = {"a.bin"};
    Dataset d = dataset_open("data.train", globs, NULL, 1, T, 50000);
    enum { G = 24 };
    for (int ranks = 1; ranks <= 4; ranks++)
        for (int64_t micro = 1; micro <= 2; micro++) {
            int64_t seen[2][G];
            for (int rank = 0; rank < ranks; rank++) {
                Stream  stream = stream_create(0);
                Arena   arena = arena_create("batches", loader_bytes(micro, T, 1, 0));
                Loader *l = loader_create(&d, (LoaderPlan){{0, 0}, G, micro, rank, ranks, 0, {1, 0}, 1, 0, 0}, &arena);
                for (int step = 0; step < 2; step++)
                    for (int64_t k = 0; k < G / ranks / micro; k++) {
                        Batch batch = loader_next(l, &stream, NULL);
                        for (int64_t b = 0; b < micro; b++)
                            seen[step][rank * (G / ranks) + k * micro + b] = ((int32_t *)batch.inputs.data)[b * T] / T;
                    }
                loader_destroy(l);
                arena_destroy(&arena);
            }
            for (int step = 0; step < 2; step++)
                for (int i = 0; i < G; i++) assert_int_equal(seen[step][i], step * G + i);
        }
    dataset_close(&d);
}

/* loader_seek moves a loader back, ahead and to an index in the middle of a step. The loader then returns what a new
 * one would return there, however far its thread has read ahead. */
static void a_loader_goes_where_it_is_told(void **state) {
    (void)state;
    static const int64_t places[] = {0, 0, 24, 12, 12, 12000, 5, 0};
    Dataset    d = open_data();
    LoaderPlan plan = {{1, 1337}, 12, 2, 1, 3, 36, {1, 0}, 1, 0, 0};
    Arena      arena = arena_create("batches", loader_bytes(2, T, 1, 0));
    Loader    *l = loader_create(&d, plan, &arena);
    assert_steps(l, &d, plan, 1);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        plan.first_sample = places[i];
        loader_seek(l, places[i]);
        assert_steps(l, &d, plan, (int)i);
    }
    loader_destroy(l);
    arena_destroy(&arena);
    dataset_close(&d);
}

/* Training is slower than the thread that reads ahead. It must still get each batch in turn, and the thread must not
 * overwrite the batch in use. */
static void batches_wait_for_the_trainer(void **state) {
    (void)state;
    Dataset d = open_data();
    Stream  stream = stream_create(0);
    Arena   arena = arena_create("batches", loader_bytes(2, T, 1, 0));
    Loader *l = loader_create(&d, (LoaderPlan){{0, 0}, 4, 2, 0, 1, 0, {1, 0}, 1, 0, 0}, &arena);
    for (int n = 0; n < 12; n++) {
        Batch batch = loader_next(l, &stream, NULL);
        nanosleep(&(struct timespec){0, 5000000}, NULL);
        int32_t due[T + 1];
        dataset_sample(&d, 2 * n, due, due + 1);
        assert_memory_equal(batch.inputs.data, due, sizeof(int32_t) * T);
    }
    loader_destroy(l);
    arena_destroy(&arena);
    dataset_close(&d);
}

static void a_loader_stops_at_any_moment(void **state) {
    (void)state;
    Dataset d = open_data();
    Arena   arena = arena_create("batches", loader_bytes(1, T, 1, 0));
    for (int i = 0; i < 200; i++) {
        Stream  stream = stream_create(0);
        size_t  mark = arena_mark(&arena);
        Loader *l = loader_create(&d, (LoaderPlan){{1, 1}, 1, 1, 0, 1, 0, {1, 0}, 1, 0, 0}, &arena);
        for (int n = 0; n < i % 7; n++) loader_next(l, &stream, NULL);
        loader_destroy(l);
        arena_release(&arena, mark);
    }
    loader_destroy(NULL);
    arena_destroy(&arena);
    dataset_close(&d);
}

int main(void) {
    omp_set_num_threads(1);
    const struct CMUnitTest tests[] = {
#define IN_FOLDER(f) cmocka_unit_test_setup_teardown(f, enter_folder, leave_folder)
        IN_FOLDER(batches_follow_the_order), IN_FOLDER(documents_begin_at_their_token),
        IN_FOLDER(steps_cover_their_indices_in_order),
        IN_FOLDER(a_loader_goes_where_it_is_told),
        IN_FOLDER(batches_wait_for_the_trainer),
        IN_FOLDER(a_loader_stops_at_any_moment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
