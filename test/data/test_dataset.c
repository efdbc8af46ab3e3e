/* test_dataset.c - the numbered list of samples over several data files, and the order in which training reads them: a
 * permutation for each epoch, and golden values that must never change. */
#include "data/dataset.h"

#include <math.h>
#include <omp.h>

#include "core/error.h"
#include "test/data/files.h"

static Dataset open_globs(int64_t seq_len, int count, ...) {
    const char *globs[8];
    va_list     args;
    va_start(args, count);
    for (int i = 0; i < count; i++) globs[i] = va_arg(args, const char *);
    va_end(args);
    return dataset_open("data.train", globs, NULL, count, seq_len, 50000);
}

static void samples_are_numbered_shard_after_shard(void **state) {
    (void)state;
    enum { T = 8 };
    /* 8 tokens are no sample of T = 8: the targets need one token more */
    write_counting_shard("s_2.bin", 8, 2000);
    /* 17 tokens: 2 samples of T = 8 tokens, and the last target, which ends the file */
    write_counting_shard("s_10.bin", 17, 1000);
    /* 30 tokens: 3 samples of T = 8 tokens, the last target, and 5 tokens that are not used */
    write_counting_shard("s_3.bin", 30, 3000);
    static const uint16_t raw[9] = {40, 41, 42, 43, 44, 45, 46, 47, 48};
    write_file("raw", raw, sizeof raw); /* 1 */
    Dataset d = open_globs(T, 2, "s_*.bin", "raw");
    assert_int_equal(d.shards, 4);
    assert_int_equal(d.tokens, 8 + 17 + 30 + 9);
    assert_int_equal(d.samples, 6);
    /* names are sorted by their bytes: '1' < '2' */
    static const char *const order[] = {"s_10.bin", "s_2.bin", "s_3.bin", "raw"};
    for (int i = 0; i < 4; i++) assert_string_equal(d.shard[i].path, order[i]);
    static const int64_t first_sample[] = {0, 2, 2, 5, 6};
    assert_memory_equal(d.first_sample, first_sample, sizeof first_sample);
    static const int32_t first_token[] = {1000, 1008, 3000, 3008, 3016, 40};
    for (int64_t j = 0; j < 6; j++) {
        int32_t tokens[T + 1];
        dataset_sample(&d, j, tokens, tokens + 1);
        for (int k = 0; k <= T; k++) assert_int_equal(tokens[k], first_token[j] + k);
    }
    dataset_close(&d);
}

static void globs_keep_list_order_and_sort_by_byte(void **state) {
    (void)state;
    static const char *const names[] = {"b_Z.bin", "b_a.bin", "b_0.bin", "a_\xc3\xa9.bin", "a_z.bin", "x[1].bin"};
    for (int i = 0; i < 6; i++) write_counting_shard(names[i], 10, 0);
    setenv("LC_ALL", "en_US.UTF-8", 1);
    Dataset d = open_globs(4, 3, "b_*", "x[1].bin", "a_*.bin");
    static const char *const order[] = {"b_0.bin", "b_Z.bin", "b_a.bin", "x[1].bin", "a_z.bin", "a_\xc3\xa9.bin"};
    assert_int_equal(d.shards, 6);
    for (int i = 0; i < 6; i++) assert_string_equal(d.shard[i].path, order[i]);
    dataset_close(&d);
}

/* A blend of source a, with samples 0 to 5 in two files, and source b, with samples 6 to 8. The blend decides the
 * source of each sample. All samples of a source are read before any is read again. */
static void a_blend_reads_each_source_in_epochs(void **state) {
    (void)state;
    static const char *const globs[] = {"a_*", "b_*", "a_*"};
    const BlendShare         share[] = {{0.75, 24 * 4}, {0.25, 24 * 4}, {1.0, 0}};
    write_counting_shard("a_1", 17, 0);
    write_counting_shard("a_2", 9, 100);
    write_counting_shard("b_1", 13, 200);
    Dataset d = dataset_open("data.train", globs, share, 3, 4, 50000);
    assert_int_equal(d.shards, 3);
    assert_int_equal(d.samples, 9);
    static const int64_t first_of_source[] = {0, 6, 9};
    assert_memory_equal(d.first_of_source, first_of_source, sizeof first_of_source);
    for (int shuffle = 0; shuffle <= 1; shuffle++) {
        int seen[9] = {0};
        for (int64_t g = 0; g < 24; g++) seen[dataset_order(&d, (SampleOrder){shuffle, 5}, g)]++;
        /* the first stage has 24 samples: 18 from source a, three epochs of its 6 samples, and 6 from b, two epochs
         * of its 3 */
        for (int j = 0; j < 9; j++) assert_int_equal(seen[j], j < 6 ? 3 : 2);
        for (int64_t g = 24; g < 30; g++) seen[dataset_order(&d, (SampleOrder){shuffle, 5}, g)]++;
        /* the next 6 samples belong to the second stage, which reads source a alone: the fourth epoch of its 6
         * samples */
        for (int j = 0; j < 9; j++) assert_int_equal(seen[j], j < 6 ? 4 : 2);
    }
    int64_t tokens[BLEND_SOURCES];
    assert_int_equal(dataset_source_tokens(&d, 30, tokens), 2);
    assert_true(tokens[0] == 24 * 4 && tokens[1] == 6 * 4);
    uint64_t hash = dataset_fingerprint(&d);
    dataset_close(&d);
    d = dataset_open("data.train", globs, NULL, 2, 4, 50000); /* opens the same files without a blend */
    assert_true(hash != dataset_fingerprint(&d));
    assert_int_equal(dataset_source_tokens(&d, 30, tokens), 0);
    dataset_close(&d);
}

/* Checks that two sources of equal size are read in different orders, so that the same sample number seldom comes
 * from both at the same time. */
static void sources_have_orders_of_their_own(void **state) {
    (void)state;
    static const char *const globs[] = {"a", "b"};
    write_counting_shard("a", 101, 0);
    write_counting_shard("b", 101, 0);
    Dataset d = dataset_open("data.train", globs, (BlendShare[]){{0.5, 0}, {0.5, 0}}, 2, 1, 50000);
    int     same = 0;
    for (int64_t g = 0; g < 200; g += 2)
        same += dataset_order(&d, (SampleOrder){1, 5}, g) % 100 == dataset_order(&d, (SampleOrder){1, 5}, g + 1) % 100;
    assert_in_range(same, 0, 10);
    dataset_close(&d);
}

static void open_blend(const void *globs) {
    Dataset d = dataset_open("data.train", globs, (BlendShare[]){{0.5, 0}, {0.5, 0}}, 2, 8, 256);
    dataset_close(&d);
}

static void a_bad_source_is_named(void **state) {
    (void)state;
    write_counting_shard("long", 100, 0);
    write_counting_shard("short", 8, 0);
#define SOURCES(a, b) (const char *const[]){a, b}
    assert_ends(EXIT_DATA, open_blend, SOURCES("long", "short"), "the source \"short\" is too short for one sample", "takes 9 tokens", NULL);
    assert_ends(EXIT_DATA, open_blend, SOURCES("long", "none*"), "\"none*\" matches no file", NULL);
    assert_ends(EXIT_DATA, open_blend, SOURCES("long", "l*"), "names the file", "twice", NULL);
}

/* A part of a path that names an existing file or folder as typed is not used as a pattern. Other parts are
 * patterns. */
static void a_name_that_exists_is_no_pattern(void **state) {
    (void)state;
    static const char *const FILES[] = {"a [0-9]/t_1.bin", "a [0-9]/t_2.bin", "a 7/t_1.bin", "a 7/t_[12].bin", "a 7/t_2.bin", "a 7/tokens.json",
                                        "b\\?/-*.bin", "b\\?/t \"q\"\n.bin"};
    static const struct { const char *name, *found[4]; } CASES[] = {
        /* matches the folder that is literally named "a [0-9]", not "a 7" */
        {"a [0-9]/t_*.bin", {"a [0-9]/t_1.bin", "a [0-9]/t_2.bin"}},
        {"a [[]*/t_1.bin", {"a [0-9]/t_1.bin"}},
        {"a ?/t_1.bin", {"a 7/t_1.bin"}},
        {"a */t_2.bin", {"a 7/t_2.bin", "a [0-9]/t_2.bin"}},
        {"a*7/t_[12].bin", {"a 7/t_[12].bin"}},
        {"a 7/t_[21].bin", {"a 7/t_1.bin", "a 7/t_2.bin"}},
        {"a 7/*s*", {NULL}},
        {"a 7/tokens.json", {"a 7/tokens.json"}},
        {"b\\?/-*.bin", {"b\\?/-*.bin"}},
        {"*/*q*", {"b\\?/t \"q\"\n.bin"}},
        {".//a 7//t_1*", {".//a 7//t_1.bin"}},
        {"a 7/", {"a 7/"}},
        {"", {NULL}},
        {"a 8/*", {NULL}},
    };
    for (int i = 0; i < 8; i++) {
        char folder[PATH_CHARS];
        snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(FILES[i], '/') - FILES[i]), FILES[i]);
        assert_int_equal(io_mkdirs(folder), 0);
        write_counting_shard(FILES[i], 10, 0);
    }
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        IoPaths files = {NULL, 0};
        size_t  count = 0;
        dataset_files(CASES[i].name, &files);
        for (; count < 4 && CASES[i].found[count]; count++) {
            if (count >= files.count) fail_msg("%s: only %zu files", CASES[i].name, files.count);
            assert_string_equal(files.path[count], CASES[i].found[count]);
        }
        assert_int_equal(files.count, count);
        io_paths_free(&files);
    }
}

static void what_is_never_read_is_counted(void **state) {
    (void)state;
    char        text[SAMPLE_COUNT_CHARS];
    SampleCount c = {0};
    for (int i = 0; i < 10; i++) sample_count_add(&c, 1 + 16 * 100, 16);
    assert_string_equal(sample_count_unread(&c, 16, "; ", text), "");
    assert_true(c.samples == 1000 && sample_epochs(2500, c.samples) == 2.5);
    sample_count_add(&c, 17 + 15, 16);
    assert_string_equal(sample_count_unread(&c, 16, "; ", text), "; never read: 15 tokens after the last samples of files");
    sample_count_add(&c, 16, 16);
    assert_string_equal(sample_count_unread(&c, 16, "", text),
                        "never read: 16 tokens of 1 file shorter than a sample (17 tokens), 15 tokens after the last samples of other files");
    for (int i = 0; i < 200; i++) sample_count_add(&c, 15, 16);
    assert_non_null(strstr(sample_count_unread(&c, 16, "", text), "3,016 tokens of 201 files shorter"));
    assert_non_null(strstr(text, "a smaller batch.seq_len"));
    assert_int_equal(c.samples, 1001);
    assert_int_equal(c.samples * 16 + (c.files - c.short_files) + c.short_tokens + c.tail_tokens, c.tokens);
    Dataset d = {.seq_len = 16, .samples = 40};
    assert_int_equal(dataset_first_samples(&d, 0), 40);
    assert_int_equal(dataset_first_samples(&d, 5), 1);
    assert_int_equal(dataset_first_samples(&d, 16 * 7 + 15), 7);
    assert_int_equal(dataset_first_samples(&d, 16 * 41), 40);
}

/* Bytes per token are the mean of the values in tokens.json beside the data files, weighted by the number of samples in
 * each file. */
static void bytes_per_token_are_those_of_what_is_read(void **state) {
    (void)state;
    Tokenizer ids = {.kind = TOKENIZER_IDS}, bytes = {.kind = TOKENIZER_BYTES};
    assert_int_equal(io_mkdirs("two"), 0), assert_int_equal(io_mkdirs("five"), 0), assert_int_equal(io_mkdirs("none"), 0);
    write_file("two/tokens.json", "{\"bytes_per_token\": 2}", 22);
    write_file("five/tokens.json", "{\"bytes_per_token\": 5}", 22);
    write_counting_shard("two/a", 8 * 3 + 1, 0), write_counting_shard("two/b", 8 * 1 + 1, 0), write_counting_shard("two/short", 8, 0);
    write_counting_shard("five/a", 8 * 4 + 1, 0), write_counting_shard("none/a", 9, 0);
    Dataset d = open_globs(8, 2, "two/[abs]*", "*v?/*");
    assert_int_equal(d.samples, 8);
    assert_true(dataset_bytes_per_token(&d, &ids, 8) == 3.5);
    assert_true(dataset_bytes_per_token(&d, &ids, 4) == 2);
    assert_true(dataset_bytes_per_token(&d, &ids, 6) == 3);
    assert_true(dataset_bytes_per_token(&d, &bytes, 8) == 1);
    dataset_close(&d);
    d = open_globs(8, 2, "two/a", "none/a");
    assert_true(dataset_bytes_per_token(&d, &ids, 3) == 2);
    assert_true(isnan(dataset_bytes_per_token(&d, &ids, 4)));
    dataset_close(&d);
}

typedef struct { const char *globs[4]; int count; int64_t seq_len, vocab_size; } Opening;

static void open_dataset(const void *opening) {
    const Opening *o = opening;
    Dataset        d = dataset_open("data.train", o->globs, NULL, o->count, o->seq_len, o->vocab_size);
    dataset_close(&d);
}

static void wrong_data_ends_the_program_with_a_sentence(void **state) {
    (void)state;
    assert_int_equal(io_mkdirs("here"), 0);
    write_counting_shard("here/a.bin", 100, 0);
    write_counting_shard("here/b.bin", 7, 0);
    write_counting_shard("here/c.bin", 100, 200);
    write_file("here/text", "In the beginning", 16);
    write_file("here/d.bin", "\x28\xd8\x34\x01", 4);
    assert_int_equal(symlink("a.bin", "here/link.bin"), 0);
    assert_int_equal(symlink("gone", "here/broken_link"), 0);
#define OPENING(seq_len, vocab, n, ...) &(Opening){{__VA_ARGS__}, n, seq_len, vocab}
    assert_ends(EXIT_DATA, open_dataset, OPENING(8, 256, 1, "away/*.bin"), "data.train: \"away/*.bin\"",
                "folder away does not exist", NULL);
    assert_ends(EXIT_DATA, open_dataset, OPENING(8, 256, 1, "here/z*.bin"), "\"here/z*.bin\" matches no file", NULL);
    assert_ends(EXIT_DATA, open_dataset, OPENING(8, 256, 2, "here/a.bin", "here/z.bin"), "\"here/z.bin\" does not exist", NULL);
    assert_ends(EXIT_DATA, open_dataset, OPENING(8, 256, 1, "/proc/none*"), "\"/proc/none*\" matches no file", NULL);
    assert_ends(EXIT_DATA, open_dataset, OPENING(8, 256, 1, ""), "data.train", NULL);
    assert_ends(EXIT_DATA, open_dataset, OPENING(8, 256, 0, ""), "data.train names no token files", NULL);
    assert_ends(EXIT_DATA, open_dataset, OPENING(8, 256, 1, "here"), "here is a folder", NULL);
    assert_ends(EXIT_DATA, open_dataset, OPENING(8, 256, 2, "here/a.bin", "here/a*"), "here/a.bin twice", NULL);
    assert_ends(EXIT_DATA, open_dataset, OPENING(8, 256, 2, "here/a.bin", "./here/../here/a.bin"), "here/a.bin twice", NULL);
    assert_ends(EXIT_DATA, open_dataset, OPENING(8, 256, 2, "here/link.bin", "here/a.bin"), "here/a.bin twice", NULL);
    assert_int_equal(link("here/a.bin", "here/hard"), 0);
    assert_ends(EXIT_DATA, open_dataset, OPENING(8, 256, 2, "here/hard", "here/a.bin"), "names one file twice, as here/", NULL);
    assert_int_equal(unlink("here/hard"), 0);
    assert_ends(EXIT_DATA, open_dataset, OPENING(8, 256, 1, "here/broken*"), "here/broken_link does not exist", NULL);
    assert_ends(EXIT_DATA, open_dataset, OPENING(8, 256, 1, "here/c.bin"), "data.train: here/c.bin: token 56 of 100 has the id 256",
                "model.vocab_size is 256", NULL);
    assert_ends(EXIT_DATA, open_dataset, OPENING(8, 256, 1, "here/text"), "here/text is UTF-8 text, not tokens",
                "./train_gpt tokenize here/text out=datasets/text", NULL);
    write_file("here/raw", "\1\xff\1\xff", 4);
    assert_ends(EXIT_DATA, open_dataset, OPENING(8, 256, 1, "here/raw"), "here/raw: token 0 of 2 has the id 65281", "tokenize", NULL);
    assert_ends(EXIT_DATA, open_dataset, OPENING(100, 256, 2, "here/a.bin", "here/b.bin"), "107 tokens in 2 files",
                "batch.seq_len 100", NULL);
    assert_ends(EXIT_DATA, open_dataset, OPENING(8, 256, 1, "here/d.bin"), "here/d.bin: token", NULL);
    assert_ends(0, open_dataset, OPENING(99, 256, 1, "here/a.bin"), NULL);
    uint32_t wide[40];
    for (uint32_t i = 0; i < 40; i++) wide[i] = (i * 2654435761u) % 30000;
    write_file("here/wide", wide, sizeof wide);
    assert_ends(EXIT_DATA, open_dataset, OPENING(8, 30000, 1, "here/wide"), "every second half is 0 or small", "uint32", "vocab_size = 30000", NULL);
    /* 39 inputs and a last target fit the 40 tokens of the file */
    assert_ends(0, open_dataset, OPENING(39, 70000, 1, "here/wide"), NULL);
    wide[21] = 70000;
    write_file("here/wide", wide, sizeof wide);
    assert_ends(EXIT_DATA, open_dataset, OPENING(8, 70000, 1, "here/wide"), "here/wide: token 21 of 40 has the id 70000", "uint32", NULL);
    assert_ends(EXIT_DATA, open_dataset, OPENING(8, 30000, 1, "here/wide"), "here/wide has no header", "the size of its tokenizer", NULL);
    uint16_t narrow[41];
    for (int i = 0; i < 41; i++) narrow[i] = (uint16_t)(i * 991);
    write_file("here/narrow", narrow, 80);
    assert_ends(0, open_dataset, OPENING(39, 65536, 1, "here/narrow"), NULL);
    assert_ends(EXIT_DATA, open_dataset, OPENING(8, 65537, 1, "here/narrow"), "here/narrow: token 0 of 20 has the id", "vocab_size 65536 or less", NULL);
    write_file("here/narrow", narrow, 82);
    assert_ends(EXIT_DATA, open_dataset, OPENING(8, 65537, 1, "here/narrow"), "82 bytes are not a multiple of 4", NULL);
}

/* Opens a data file, changes it, and reads samples from it. *changed is the token that is set to a value outside the
 * vocabulary; -1: the file is cut short instead. */
static void read_after_change(const void *changed) {
    const int64_t at = *(const int64_t *)changed;
    static const char *const globs[] = {"changing.bin"};
    int32_t tokens[2049];
    Dataset d = dataset_open("data.train", globs, NULL, 1, 2048, 50000);
    if (at < 0) {
        if (truncate("changing.bin", 4096 + 1024) != 0) _exit(1);
    } else {
        static const uint16_t foreign = 50001;
        int fd = io_open("changing.bin", IO_SHARED);
        if (io_pwrite(fd, &foreign, sizeof foreign, 1024 + 2 * (uint64_t)at) != 0) _exit(1);
        io_close(fd);
    }
    dataset_sample(&d, 0, tokens, tokens + 1);
    dataset_sample(&d, 3, tokens, tokens + 1);
    dataset_close(&d);
}

static void files_that_change_are_named(void **state) {
    (void)state;
    static const int64_t at[] = {-1, 7000, 8192};
    for (int i = 0; i < 3; i++) {
        write_counting_shard("changing.bin", 3 * 2048 + 2049, 0);
        if (i == 0) assert_ends(EXIT_IO, read_after_change, &at[i], "changing.bin cannot be read any more at byte", NULL);
        else
            assert_ends(EXIT_DATA, read_after_change, &at[i],
                        i == 1 ? "changing.bin: token 7000 of 8193 has the id 50001"
                               : "changing.bin: token 8192 of 8193 has the id 50001",
                        NULL);
    }
}

static Dataset counted(int64_t samples) { return (Dataset){.seq_len = 1, .samples = samples}; }

static uint64_t hash_order(const Dataset *d, SampleOrder order, int64_t first, int64_t count) {
    uint64_t hash = 0xcbf29ce484222325; /* FNV-1a hash of the sample numbers */
    for (int64_t g = first; g < first + count; g++) hash = (hash ^ (uint64_t)dataset_order(d, order, g)) * 0x100000001b3;
    return hash;
}

/* The expected orders must never change, because a run that is resumed with a later version must read the same samples.
 * They were computed by an independent Python version. */
static void the_order_never_changes(void **state) {
    (void)state;
    const SampleOrder    order = {1, 1337};
    static const int64_t ten[20] = {4, 1, 6, 3, 7, 5, 9, 8, 2, 0, 2, 8, 0, 1, 9, 7, 5, 6, 3, 4};
    static const int64_t thousand[2][8] = {{316, 350, 262, 788, 261, 461, 797, 216}, {392, 638, 248, 121, 510, 543, 425, 320}};
    Dataset d = counted(10);
    for (int64_t g = 0; g < 20; g++) assert_int_equal(dataset_order(&d, order, g), ten[g]);
    d = counted(1000);
    for (int64_t g = 0; g < 8; g++) assert_int_equal(dataset_order(&d, order, g), thousand[0][g]);
    for (int64_t g = 0; g < 8; g++) assert_int_equal(dataset_order(&d, order, 1000 + g), thousand[1][g]);
    assert_true(hash_order(&d, order, 0, 1000) == 0xa904e414a395e2c5);
    assert_true(hash_order(&d, order, 1000, 1000) == 0xf15f1ac898440dcf);
}

static void every_epoch_is_a_permutation(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 2, 3, 10, 64, 257, 1000};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int64_t epoch = 0; epoch < 4; epoch++) {
            Dataset d = counted(sizes[s]);
            char   *seen = calloc((size_t)d.samples, 1);
            for (int64_t i = 0; i < d.samples; i++) {
                int64_t j = dataset_order(&d, (SampleOrder){1, 5}, epoch * d.samples + i);
                assert_true(j >= 0 && j < d.samples && !seen[j]);
                seen[j] = 1;
                /* without shuffling, sample i of an epoch is number i */
                assert_int_equal(dataset_order(&d, (SampleOrder){0, 5}, epoch * d.samples + i), i);
            }
            free(seen);
        }
}

static void seeds_and_epochs_differ(void **state) {
    (void)state;
    Dataset  d = counted(1000);
    uint64_t a = hash_order(&d, (SampleOrder){1, 1}, 0, 1000);
    assert_true(a == hash_order(&d, (SampleOrder){1, 1}, 0, 1000));
    assert_true(a != hash_order(&d, (SampleOrder){1, 2}, 0, 1000));
    assert_true(a != hash_order(&d, (SampleOrder){1, 1ull << 40 | 1}, 0, 1000));
    assert_true(a != hash_order(&d, (SampleOrder){1, 1}, 1000, 1000));
}

/* Two files of 5 GB each: sample numbers and offsets do not fit in 32 bits. */
static void far_samples_are_found(void **state) {
    (void)state;
    static const char *const globs[] = {"big_*"};
    const int64_t bytes = 5000000000, tokens = bytes / 2;
    for (int i = 0; i < 2; i++) {
        const uint16_t last[3] = {11, 12, 13};
        write_file(i ? "big_1" : "big_0", "", 0);
        int fd = io_open(i ? "big_1" : "big_0", IO_SHARED);
        assert_int_equal(io_truncate(fd, (uint64_t)bytes), 0);
        assert_int_equal(io_pwrite(fd, last, sizeof last, (uint64_t)bytes - sizeof last), 0);
        io_close(fd);
    }
    /* the vocabulary contains every uint16, so the tokens need not be checked */
    Dataset d = dataset_open("data.train", globs, NULL, 1, 1, 1 << 16);
    assert_int_equal(d.samples, 2 * (tokens - 1));
    int32_t pair[2];
    for (int i = 1; i <= 2; i++) {
        dataset_sample(&d, i * (tokens - 1) - 1, pair, pair + 1);
        assert_true(pair[0] == 12 && pair[1] == 13);
        dataset_sample(&d, i * (tokens - 1) - 2, pair, pair + 1);
        assert_true(pair[0] == 11 && pair[1] == 12);
    }
    dataset_sample(&d, tokens - 1, pair, pair + 1);
    assert_true(pair[0] == 0 && pair[1] == 0);
    dataset_close(&d);
}

int main(void) {
    omp_set_num_threads(1); /* OpenMP runs with one thread, because a forked child could not start its threads */
    const struct CMUnitTest tests[] = {
#define IN_FOLDER(f) cmocka_unit_test_setup_teardown(f, enter_folder, leave_folder)
        IN_FOLDER(samples_are_numbered_shard_after_shard), IN_FOLDER(globs_keep_list_order_and_sort_by_byte),
        IN_FOLDER(wrong_data_ends_the_program_with_a_sentence), cmocka_unit_test(the_order_never_changes),
        cmocka_unit_test(every_epoch_is_a_permutation), cmocka_unit_test(seeds_and_epochs_differ),
        IN_FOLDER(a_blend_reads_each_source_in_epochs), IN_FOLDER(sources_have_orders_of_their_own), IN_FOLDER(a_bad_source_is_named),
        IN_FOLDER(a_name_that_exists_is_no_pattern), cmocka_unit_test(what_is_never_read_is_counted),
        IN_FOLDER(bytes_per_token_are_those_of_what_is_read), IN_FOLDER(far_samples_are_found), IN_FOLDER(files_that_change_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
