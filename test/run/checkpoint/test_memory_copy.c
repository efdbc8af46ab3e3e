/* test_memory_copy.c - the file that holds a copy of a rank's training state in memory. Every changed byte is noticed.
 * When a start copies the state to disk, every I/O call fails in turn, is cut short, or is the last of the process. The
 * next start must still find the newest step. */
#include "core/failpoints.h"
#include "core/io.h"

#include "test/run/lib/child.h"

#include <errno.h>
#include <fcntl.h>

#include "test/run/checkpoint/memory_fixture.h"

#include "test/run/lib/own_folder.h"

static void lose(void) {
    Fixture f;
    memory_fixture(&f, comm, dir);
    checkpoint_resume(&f.state);
    fixture_fill(&f, 5);
    checkpoint_save(&f.state, 5);
    take_and_lose(&f, 6, 7);
    fixture_destroy(&f);
}

static Path newest_file(void) {
    Fixture f;
    memory_fixture(&f, comm, dir);
    Path path = memory_file(&f, "hostA", memory_name(0, 0, 0).text);
    fixture_destroy(&f);
    return path;
}

static void test_names(void **state) {
    (void)state;
    assert_string_equal(memory_name(2, 1, 0).text, "rank_00002.1");
    assert_string_equal(memory_name(123456, 0, 1).text, "rank_123456.0.next");
    static const struct { const char *name; int is_one; } names[] = {
        {"rank_00002.1", 1}, {"rank_00002.0.next", 1}, {"rank_123456.0.next", 1}, {"rank_00002.2", 0}, {"rank_00002.1.old", 0},
        {"rank_-0002.1", 0}, {"rank_00002", 0},        {"rank_.1", 0},            {".", 0},            {"rank_00002.1 ", 0}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (memory_is_name(names[i].name) != names[i].is_one) fail_msg("%s", names[i].name);
}

/* Changes each byte of the head (manifest) of a copy in memory, once in one bit and once in all bits. Each change is
 * noticed. Changes of the data are noticed by hashes. */
static void test_every_byte_counts(void **state) {
    (void)state;
    char       fault[MANIFEST_FAULT_BYTES], *bytes;
    MemoryCopy copy;
    lose();
    int64_t  count = io_read_file(newest_file().text, 64 << 20, &bytes);
    assert_true(count > 0 && memory_parse(bytes, (uint64_t)count, (uint64_t)count, &copy, fault));
    uint64_t used = copy.text_bytes;
    assert_true(copy.manifest.step == 7 && copy.manifest.rank == 0 && copy.manifest.ranks == 1 && copy.manifest.session);
    memory_free(&copy);
    for (uint64_t i = 0; i < used; i++)
        for (int bits = 1; bits < 256; bits += 254) {
            bytes[i] = (char)(bytes[i] ^ bits);
            if (memory_parse(bytes, (uint64_t)count, (uint64_t)count, &copy, fault)) fail_msg("byte %llu", (unsigned long long)i);
            bytes[i] = (char)(bytes[i] ^ bits);
        }
    for (uint64_t cut = 0; cut <= used; cut++) /* a copy is refused if only its first bytes are given, or if the file is
                                                * one byte too short */
        assert_true(!memory_parse(bytes, cut, (uint64_t)count, &copy, fault) && fault[0]);
    assert_false(memory_parse(bytes, (uint64_t)count, (uint64_t)count - 1, &copy, fault));
    assert_true(memory_parse(bytes, (uint64_t)count, (uint64_t)count, &copy, fault));
    memory_free(&copy);
    free(bytes);

    for (int64_t i = MEMORY_PAGE; i < count; i += count / 7) {
        assert_true(memory_read(newest_file().text, &copy, fault));
        assert_true(memory_each_extent(newest_file().text, &copy, NULL, fault));
        flip(newest_file().text, i < (int64_t)copy.data_offset ? (int64_t)copy.data_offset : i);
        assert_false(memory_each_extent(newest_file().text, &copy, NULL, fault));
        assert_non_null(strstr(fault, "it is damaged: the hash of bytes "));
        flip(newest_file().text, i < (int64_t)copy.data_offset ? (int64_t)copy.data_offset : i);
        memory_free(&copy);
    }
}

/* memory_read refuses anything but a plain file: here a folder and a device. io_mkdir_own accepts its own folder, and
 * refuses a link to a folder. */
static void test_foreign_files(void **state) {
    (void)state;
    char       fault[MANIFEST_FAULT_BYTES];
    MemoryCopy copy;
    assert_false(memory_read(dir, &copy, fault));
    assert_true(fault[0]);
    assert_false(memory_read("/dev/null", &copy, fault));
    assert_string_equal(fault, "cannot read it: is a character device, not a file");
    assert_int_equal(io_mkdir_own(path_of("%s/new", dir).text), 0);
    assert_int_equal(io_mkdir_own(path_of("%s/new", dir).text), 0);
    assert_int_equal(symlink("/tmp", path_of("%s/link", dir).text), 0);
    assert_int_equal(io_mkdir_own(path_of("%s/link", dir).text), -EPERM);
}

/* Runs in a child. Resumes while I/O calls fail as the rule `spec` says. Exits with 100 + the step whose state it then
 * has. */
static void resume_piece(void *spec) {
    Fixture f;
    memory_fixture(&f, comm, dir);
    failpoints_reset();
    if (spec) setenv("TRAIN_GPT_FAIL", (const char *)spec, 1);
    int silence = open("/dev/null", O_WRONLY);
    dup2(silence, STDOUT_FILENO);
    int64_t step = checkpoint_resume(&f.state).step;
    _exit(fixture_differences(&f, step) == 0 ? 100 + (int)step : 99);
}

static void test_every_call_of_a_rescue(void **state) {
    (void)state;
    static const char *const whats[] = {"ENOSPC", "short", "kill-before"};
    Path log = path_of("%s/struck", dir);
    int  calls = 0, ended = 0;
    lose();
    setenv("TRAIN_GPT_FAIL_LOG", log.text, 1);
    for (size_t what = 0; what < sizeof whats / sizeof *whats; what++)
        for (int nth = 1;; nth += 1 + nth / 16) { /* consecutive calls differ little, so some are skipped */
            char spec[40];
            snprintf(spec, sizeof spec, "io@%d:%s", nth, whats[what]);
            Child c = child_run(resume_piece, spec);
            if (unlink(log.text) != 0) break;
            calls++;
            /* If a copy in memory cannot be read, its step is skipped, so the resume may use an older step. */
            int good = what == 0 ? c.code == EXIT_IO || (c.code >= 105 && c.code <= 107) : what == 1 ? c.code == 107 : c.code == -1;
            if (!good) fail_msg("%s: exit %d, %s", spec, c.code, c.said);
            ended += c.code == EXIT_IO;
            c = child_run(resume_piece, NULL);
            if (c.code != 107) fail_msg("after %s: exit %d, %s", spec, c.code, c.said);
            for (int step = 6; step <= 7; step++) io_remove_tree(path_of("%s/checkpoints/step_%08d", dir, step).text);
        }
    unsetenv("TRAIN_GPT_FAIL_LOG");
    print_message("%d faults in the calls of a rescue: %d ended with a sentence\n", calls, ended);
    assert_true(ended > 15 && calls > 90);
}

/* Whichever I/O call fails while memory for copies of the state is set up, the run continues without copies, with a
 * warning. */
static void test_every_call_of_the_making(void **state) {
    (void)state;
    int refused = 0, taken = 0;
    Fixture f;
    memory_fixture(&f, comm, dir);
    for (int nth = 1;; nth++) {
        char spec[40];
        int  before = dup(STDERR_FILENO), silence = open("/dev/null", O_WRONLY);
        snprintf(spec, sizeof spec, "io@%d:ENOSPC", nth);
        dup2(silence, STDERR_FILENO);
        failpoints_reset();
        setenv("TRAIN_GPT_FAIL", spec, 1);
        MemoryCopies *m = memory_copies_create(&f.state);
        int           struck = failpoint_calls("io") >= nth;
        unsetenv("TRAIN_GPT_FAIL");
        dup2(before, STDERR_FILENO);
        close(before), close(silence);
        refused += !m, taken += m != NULL;
        memory_copies_end(m);
        assert_true(access(memory_file(&f, "hostA", "").text, F_OK) != 0);
        if (!struck) break;
    }
    assert_true(refused > 8 && taken >= 1);
    fixture_destroy(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {CASE(test_names), CASE(test_every_byte_counts), CASE(test_foreign_files),
                                       CASE(test_every_call_of_a_rescue), CASE(test_every_call_of_the_making)};
    return RUN_ALONE(tests);
}
