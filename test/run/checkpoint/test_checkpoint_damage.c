/* test_checkpoint_damage.c - any damage to a file of a checkpoint is noticed, and an older complete checkpoint is used
 * instead.
 *
 *   test_checkpoint_damage FROM COUNT     cases FROM to FROM+COUNT-1 of LONG_CASES flipped bits (every bit of every header and small file, the
 *                                         rest anywhere), and that share of all truncations
 */

#include <fcntl.h>

#include "run/checkpoint/safetensors.h"

#include "test/run/lib/own_folder.h"

static int64_t newest_step;
static char  older[128], newest[128], older_path[256], newest_path[256];
static const char *const names[] = {"model.safetensors", "optimizer.safetensors", "config.json", "state.json"};
enum { NAMES = sizeof names / sizeof *names };

/* Saves steps 1 and 2. Every case damages step 2. */
static int enter_saved(void **state) {
    Fixture f;
    if (enter(state)) return -1;
    fixture_create(&f, comm, dir, F32, 1, "");
    for (int64_t step = 1; step <= 2; step++) fixture_fill(&f, step), checkpoint_save(&f.state, step);
    fixture_destroy(&f);
    snprintf(older, sizeof older, "%s/checkpoints/step_00000001", dir);
    snprintf(newest, sizeof newest, "%s/checkpoints/step_00000002", dir);
    newest_step = 2;
    return 0;
}

static const char *at_older(const char *name) { return snprintf(older_path, sizeof older_path, "%s/%s", older, name), older_path; }
static const char *at_newest(const char *name) {
    return snprintf(newest_path, sizeof newest_path, "%s/%s", newest, name), newest_path;
}

static int verifies(void) {
    Manifest m;
    char     fault[MANIFEST_FAULT_BYTES];
    if (folder_verify(comm, newest, newest_step, NULL, &m, fault) != MANIFEST_GOOD) return 0;
    manifest_free(&m);
    return 1;
}

/* Asserts that the newest checkpoint is refused, and that a resume uses step 1 with all its bits. */
static void expect_fall_back(const char *what) {
    Fixture f;
    Path    found;
    if (verifies()) fail_msg("%s: not seen", what);
    /* stderr goes to /dev/null, because test_checkpoint.c checks the messages */
    int before = dup(STDERR_FILENO), silence = open("/dev/null", O_WRONLY);
    dup2(silence, STDERR_FILENO);
    int is_older = folder_find(dir, &found, NULL) && strcmp(found.text, older) == 0;
    fixture_create(&f, comm, dir, F32, 1, "");
    int resumed = checkpoint_resume(&f.state).step == 1 && fixture_differences(&f, 1) == 0;
    fixture_destroy(&f);
    dup2(before, STDERR_FILENO);
    close(before);
    close(silence);
    if (!is_older) fail_msg("%s: found %s", what, found.text);
    if (!resumed) fail_msg("%s: did not resume at step 1", what);
}

static void flip(int fd, uint64_t bit) {
    unsigned char byte;
    assert_int_equal(io_pread(fd, &byte, 1, bit / 8), 0);
    byte ^= (unsigned char)(1 << bit % 8);
    assert_int_equal(io_pwrite(fd, &byte, 1, bit / 8), 0);
}

/* Flips bits in every byte of the headers and of the small files, and 600 bits anywhere in the large files. */
static void test_bit_flips(void **state) {
    (void)state;
    int64_t seen = 0;
    for (int n = 0; n < NAMES; n++) {
        int64_t bytes = io_file_bytes(at_newest(names[n]));
        int     fd = io_open(at_newest(names[n]), IO_SHARED);
        int64_t head = bytes < 2000 ? bytes : 1000;
        for (int64_t i = 0; i < head + 300; i++) {
            uint32_t w[4];
            rng_words(w, 11, RNG_TEST, (uint64_t)(n * 100000 + i));
            uint64_t byte = i < head ? (uint64_t)i : (((uint64_t)w[1] << 32) | w[2]) % (uint64_t)bytes;
            flip(fd, 8 * byte + w[0] % 8);
            if (verifies()) fail_msg("%s: a flip in byte %llu is not seen", names[n], (unsigned long long)byte);
            flip(fd, 8 * byte + w[0] % 8);
            seen++;
        }
        io_close(fd);
    }
    assert_true(verifies());
    print_message("%lld flips seen\n", (long long)seen);
}

static void test_truncations(void **state) {
    (void)state;
    for (int n = 0; n < NAMES; n++) {
        char   *data;
        int64_t bytes = io_read_file(at_newest(names[n]), 64 << 20, &data), tried = 0;
        for (int64_t keep = bytes - 1; keep >= 0; keep = keep % 512 || keep < 512 ? keep - 1 : keep - 512) {
            if (keep > 4096 && keep < bytes - 4 && keep % 512) keep -= keep % 512;
            assert_int_equal(truncate(at_newest(names[n]), keep), 0);
            if (verifies()) fail_msg("%s cut to %lld bytes is not seen", names[n], (long long)keep);
            if (++tried % 1000 == 1) expect_fall_back(names[n]);
        }
        int fd = io_open(at_newest(names[n]), IO_CREATE);
        assert_int_equal(io_write(fd, data, (size_t)bytes), 0);
        assert_true(verifies());
        assert_int_equal(io_write(fd, "\n", 1), 0);
        assert_false(verifies());
        assert_int_equal(io_truncate(fd, (uint64_t)bytes), 0);
        io_close(fd);
        free(data);
    }
}

static void test_missing_and_swapped_files(void **state) {
    (void)state;
    Path kept = path_of("%s/kept", dir), kept_older = path_of("%s/kept_older", dir);
    for (int n = 0; n < NAMES; n++) {
        rename(at_newest(names[n]), kept.text);
        expect_fall_back("missing");
        assert_int_equal(symlink(kept.text, at_newest(names[n])), 0);
        expect_fall_back("a link");
        unlink(at_newest(names[n]));
        assert_int_equal(mkfifo(at_newest(names[n]), 0666), 0);
        expect_fall_back("a pipe");
        unlink(at_newest(names[n]));
        assert_int_equal(mkdir(at_newest(names[n]), 0777), 0);
        expect_fall_back("a folder");
        rmdir(at_newest(names[n]));
        fclose(fopen(at_newest(names[n]), "w"));
        expect_fall_back("empty");
        rename(kept.text, at_newest(names[n]));
        assert_true(verifies());
        /* both steps have an equal config.json, so exchanging these files is no damage */
        if (strcmp(names[n], "config.json") == 0) continue;
        Path copy = path_of("cp '%s' '%s' && cp '%s' '%s'", at_newest(names[n]), kept.text, at_older(names[n]), kept_older.text);
        assert_int_equal(system(copy.text), 0);
        rename(kept_older.text, at_newest(names[n]));
        expect_fall_back("of another step");
        rename(kept.text, at_newest(names[n]));
        assert_true(verifies());
    }
}

static void test_folders_under_false_names(void **state) {
    (void)state;
    Path later = path_of("%s/checkpoints/step_00000009", dir), kept = path_of("%s/kept", dir);
    rename(newest, later.text);
    strcpy(newest, later.text);
    newest_step = 9;
    expect_fall_back("a folder renamed to another step");
    rename(newest, kept.text);
    assert_int_equal(symlink(kept.text, newest), 0);
    expect_fall_back("a link to a folder");
    unlink(newest);
    fclose(fopen(newest, "w"));
    expect_fall_back("a file");
    unlink(newest);
    mkdir(newest, 0777);
    expect_fall_back("an empty folder");
}

/* --- the long form ------------------------------------------------------------------------------------------------ */

enum { LONG_CASES = 100000 };
static int64_t long_from, long_count;

static int64_t file_bytes[NAMES], head_bytes[NAMES];

static void measure(void) {
    for (int n = 0; n < NAMES; n++) {
        uint64_t length = 0;
        file_bytes[n] = head_bytes[n] = io_file_bytes(at_newest(names[n]));
        if (!strstr(names[n], ".safetensors")) continue;
        int fd = io_open(at_newest(names[n]), IO_READ);
        assert_int_equal(io_pread(fd, &length, sizeof length, 0), 0);
        io_close(fd);
        head_bytes[n] = (int64_t)(8 + length);
    }
}

/* Returns the number of the file that case i damages, and sets *bit to the bit to flip in it. */
static int bit_of(int64_t i, uint64_t *bit) {
    uint32_t w[4];
    for (int n = 0; n < NAMES; n++) {
        if (i < 8 * head_bytes[n]) return *bit = (uint64_t)i, n;
        i -= 8 * head_bytes[n];
    }
    rng_words(w, 13, RNG_TEST, (uint64_t)i);
    int n = (int)(w[0] % 2); /* picks one of the two large files */
    *bit = (((uint64_t)w[1] << 32) | w[2]) % (uint64_t)(8 * file_bytes[n]);
    return n;
}

static int finds_older(void) {
    Path found;
    return folder_find(dir, &found, NULL) && strcmp(found.text, older) == 0;
}

static void test_many_flips(void **state) {
    (void)state;
    measure();
    for (int64_t i = long_from; i < long_from + long_count; i++) {
        uint64_t bit;
        int      n = bit_of(i, &bit), fd = io_open(at_newest(names[n]), IO_SHARED);
        flip(fd, bit);
        if (!finds_older()) fail_msg("%s: bit %llu is not seen", names[n], (unsigned long long)bit);
        if (i % 1000 == 0) expect_fall_back(names[n]);
        flip(fd, bit);
        io_close(fd);
    }
    assert_true(verifies());
    print_message("%lld flips seen\n", (long long)long_count);
}

static void test_many_truncations(void **state) {
    (void)state;
    Manifest m;
    int64_t  tried = 0;
    char     fault[MANIFEST_FAULT_BYTES];
    assert_int_equal(folder_verify(comm, newest, newest_step, NULL, &m, fault), MANIFEST_GOOD);
    measure();
    for (int n = 0; n < NAMES; n++) {
        int64_t from = file_bytes[n] * long_from / LONG_CASES, end = file_bytes[n] * (long_from + long_count) / LONG_CASES;
        char   *data;
        io_read_file(at_newest(names[n]), 64 << 20, &data);
        for (int64_t keep = end < file_bytes[n] ? end : file_bytes[n]; --keep >= from; tried++) {
            assert_int_equal(truncate(at_newest(names[n]), keep), 0);
            int good = strcmp(names[n], MANIFEST_NAME) == 0 ? verifies() : manifest_verify(&m, newest, NULL, NULL, fault);
            if (good) fail_msg("%s cut to %lld bytes is not seen", names[n], (long long)keep);
            if (tried % 20000 == 0) expect_fall_back(names[n]);
        }
        assert_int_equal(io_replace_file(at_newest(names[n]), data, (size_t)file_bytes[n]), 0);
        free(data);
    }
    assert_true(verifies());
    manifest_free(&m);
    print_message("%lld truncations seen\n", (long long)tried);
}

int main(int argc, char **argv) {
#define SAVED(name) cmocka_unit_test_setup_teardown(name, enter_saved, leave)
    const struct CMUnitTest tests[] = {
        SAVED(test_bit_flips),
        SAVED(test_truncations),
        SAVED(test_missing_and_swapped_files),
        SAVED(test_folders_under_false_names),
    };
    const struct CMUnitTest long_tests[] = {SAVED(test_many_flips), SAVED(test_many_truncations)};
    if (argc < 3) return RUN_ALONE(tests);
    long_from = atoll(argv[1]) % LONG_CASES, long_count = atoll(argv[2]);
    if (long_count > LONG_CASES - long_from) long_count = LONG_CASES - long_from;
    return RUN_ALONE(long_tests);
}
