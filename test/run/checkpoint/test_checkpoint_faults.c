/* test_checkpoint_faults.c - every I/O call of a save, of the deletion after it and of a resume fails in turn, is cut
 * short, or is the last call of the process. Older checkpoints must stay whole. The next resume must take the old state
 * or the new one, with all its bits.
 * Long: tries every call.
 * Timed: kills are aimed at instants of a save.
 */
#include "core/failpoints.h"
#include "core/io.h"

#include "test/run/lib/child.h"

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>

#include "core/thread.h"

#include "test/run/lib/own_folder.h"

static int leave_unlogged(void **state) {
    unsetenv("TRAIN_GPT_FAIL_LOG");
    return leave(state);
}

typedef struct { const char *spec; int64_t step; } Saving;

/* Sets the rule that says which I/O call fails and how. Calls are counted from here on. */
static void plant(const char *spec) {
    failpoints_reset();
    if (spec) setenv("TRAIN_GPT_FAIL", spec, 1);
}

static void save_piece(void *argument) {
    const Saving *s = argument;
    Fixture       f;
    fixture_create(&f, comm, dir, F32, 1, "");
    fixture_fill(&f, s->step);
    plant(s->spec);
    checkpoint_save(&f.state, s->step);
}

static Child save(int64_t step, const char *spec) { return child_run(save_piece, &(Saving){spec, step}); }

static void expect_resume_at(int64_t low, int64_t high, const char *spec) {
    Fixture f;
    fixture_create(&f, comm, dir, F32, 1, "");
    int64_t step = checkpoint_resume(&f.state).step;
    if (step < low || step > high || fixture_differences(&f, step) != 0)
        fail_msg("%s: resumed at step %lld", spec, (long long)step);
    fixture_destroy(&f);
}

static int there(const char *name) {
    struct stat st;
    return lstat(path_of("%s/checkpoints/%s", dir, name).text, &st) == 0;
}

static int verifies(int64_t step) {
    Manifest m;
    char     name[32], fault[MANIFEST_FAULT_BYTES];
    folder_name(name, step);
    if (folder_verify(NULL, path_of("%s/checkpoints/%s", dir, name).text, step, NULL, &m, fault) != MANIFEST_GOOD) return 0;
    manifest_free(&m);
    return 1;
}

/* Returns the path of the file that an injected fault writes when it occurs. If a rule names call n and fewer calls are
 * made, there is no such file. The loop over n then ends. */
static Path log_path(void) { return path_of("%s/struck", dir); }
static int  struck(void) { return unlink(log_path().text) == 0; }

/* Makes a checkpoints folder with steps 1 and 2 only. They are hard links to files made once, which no save writes
 * into. */
static void start_over(void) {
    Path kept = path_of("%s/kept", dir), checkpoints = path_of("%s/checkpoints", dir);
    if (access(kept.text, F_OK) != 0) {
        for (int64_t step = 1; step <= 2; step++)
            if (save(step, NULL).code != 0) fail_msg("step %lld is not saved", (long long)step);
        assert_int_equal(rename(checkpoints.text, kept.text), 0);
    }
    assert_int_equal(system(path_of("rm -rf '%s' && cp -al '%s' '%s'", checkpoints.text, kept.text, checkpoints.text).text), 0);
}

/* Asserts that a failed save of step 3, which also deletes step 1, left a valid folder. Step 2 is unchanged. Step 1 is
 * complete or gone. Step 3 is complete, or does not have its final name. */
static void expect_old_or_new(const char *spec) {
    if (!verifies(2)) fail_msg("%s: step 2 was touched", spec);
    if (there("step_00000001") && !verifies(1)) fail_msg("%s: half of step 1 is there", spec);
    if (there("step_00000003") && !verifies(3)) fail_msg("%s: half of step 3 is there", spec);
    if (!there("step_00000003") && !there("step_00000001")) fail_msg("%s: one good checkpoint is left", spec);
    expect_resume_at(2, 3, spec);
}

/* Saves step 4 and asserts that this deletes what an interrupted save of step 3 left. */
static void expect_next_save(const char *spec) {
    if (save(4, NULL).code != 0) fail_msg("%s: the next save fails", spec);
    if (there("step_00000003.tmp") || there(".trash-step_00000001")) fail_msg("%s: leftovers stay", spec);
    expect_resume_at(4, 4, spec);
}

static void test_every_call_of_a_save(void **state) {
    (void)state;
    static const char *const whats[] = {"ENOSPC", "EIO", "short", "kill-before", "kill-after"};
    int calls = 0, failed = 0, killed = 0;
    setenv("TRAIN_GPT_FAIL_LOG", log_path().text, 1);
    for (size_t what = 0; what < sizeof whats / sizeof *whats; what++) {
        for (int nth = 1;; nth++) {
            char spec[40];
            snprintf(spec, sizeof spec, "io@%d:%s", nth, whats[what]);
            start_over();
            Child c = save(3, spec);
            if (!struck()) break;
            calls++;
            expect_old_or_new(spec);
            if (what >= 3) {
                if (c.code != -1) fail_msg("%s: exit %d", spec, c.code);
                killed++;
            } else if (c.code == 0) { /* step 3 is saved, so a warning is only allowed about older steps */
                if (!verifies(3) || (what == 2 && c.said[0])) fail_msg("%s: %s", spec, c.said);
                int is_unread = strstr(c.said, "does not count as a checkpoint to fall back to") != NULL;
                if (c.said[0] && !is_unread && !strstr(c.said, "warning: cannot remove the old checkpoint"))
                    fail_msg("%s: %s", spec, c.said);
                if (is_unread && !verifies(1)) fail_msg("%s: step 1 went, and 2 may be broken", spec);
            } else {
                failed++;
                if (c.code != EXIT_IO || child_lines(&c) != 1 || !strstr(c.said, dir))
                    fail_msg("%s: exit %d, %s", spec, c.code, c.said);
            }
            if (what == 0 || what == 3) expect_next_save(spec);
        }
    }
    print_message("%d faults in the calls of a save: %d ended it, %d the process\n", calls, failed, killed);
    assert_true(failed > 20 && killed > 80);
}

typedef struct { const char *spec; } Resuming;

/* Runs in a child: resumes, and exits with 100 + the step whose state it then has. */
static void resume_piece(void *argument) {
    const Resuming *r = argument;
    Fixture         f;
    fixture_create(&f, comm, dir, F32, 1, "");
    plant(r->spec);
    int64_t step = checkpoint_resume(&f.state).step;
    _exit(fixture_differences(&f, step) == 0 ? 100 + (int)step : 99);
}

/* A checkpoint that cannot be read does not count as damaged. The resume ends with an error instead of using an older
 * checkpoint. Without the fault the newest one is used. */
static void test_every_call_of_a_resume(void **state) {
    (void)state;
    static const char *const whats[] = {"EIO", "short", "kill-before", "kill-after"};
    int calls = 0, ended = 0;
    start_over();
    setenv("TRAIN_GPT_FAIL_LOG", log_path().text, 1);
    for (size_t what = 0; what < sizeof whats / sizeof *whats; what++) {
        for (int nth = 1;; nth++) {
            char spec[40];
            snprintf(spec, sizeof spec, "io@%d:%s", nth, whats[what]);
            Child c = child_run(resume_piece, &(Resuming){spec});
            if (!struck()) break;
            calls++;
            int good = what == 0 ? c.code == 102 || c.code == EXIT_IO : what == 1 ? c.code == 102 : c.code == -1;
            if (!good) fail_msg("%s: exit %d, %s", spec, c.code, c.said);
            if (what == 0 && c.code != 102 && (child_lines(&c) != 1 || !strstr(c.said, "step_00000002")))
                fail_msg("%s: %s", spec, c.said);
            ended += what == 0 && c.code < 100;
            if (!verifies(1) || !verifies(2)) fail_msg("%s: a resume has changed a checkpoint", spec);
        }
    }
    expect_resume_at(2, 2, "a resume without faults");
    print_message("%d faults in the calls of a resume: %d ended with a sentence\n", calls, ended);
    assert_true(ended > 8 && calls > 50);
}

/* A save of step 2 fails if a folder of step 2 exists and cannot be read. The folder is not overwritten. */
static void test_a_step_that_cannot_be_read_is_not_saved_again(void **state) {
    (void)state;
    start_over();
    Child c = save(2, "io.read@1:EIO");
    assert_int_equal(c.code, EXIT_IO);
    assert_non_null(strstr(c.said, "/step_00000002 exists and cannot be checked: cannot read state.json: Input/output error"));
    assert_true(verifies(1) && verifies(2) && !there("step_00000002.tmp"));
}

static void find_piece(void *argument) {
    Path out;
    plant((const char *)argument);
    folder_find(dir, &out, NULL);
}

/* A subcommand that only reads does not use an older checkpoint if the newest cannot be read. */
static void test_a_step_that_cannot_be_read_is_not_passed_over(void **state) {
    (void)state;
    start_over();
    Child c = child_run(find_piece, "io.pread@1:EIO");
    assert_int_equal(c.code, EXIT_IO);
    assert_non_null(
        strstr(c.said,
               "step_00000002: cannot read model.safetensors: Input/output error; no file was changed. Remove this fault and start the same command again"));
}

/* --- a write that puts down other bytes and returns success ------------------------------------------------------- */

static int flip_in; /* which write of this process gets a flipped bit, counted from 1; 0: none */

/* If this write is number flip_in, returns its bytes with one bit flipped in the middle; the caller frees them.
 * Otherwise returns NULL. */
static void *flipped(int fd, const void *data, size_t bytes) {
    static int  writes;
    struct stat st;
    if (!flip_in || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || ++writes != flip_in) return NULL;
    char *copy = malloc(bytes);
    memcpy(copy, data, bytes);
    copy[bytes / 2] ^= 1;
    fclose(fopen(path_of("%s/flipped", dir).text, "w"));
    return copy;
}

ssize_t __real_write(int fd, const void *data, size_t bytes);
ssize_t __real_pwrite(int fd, const void *data, size_t bytes, off_t at);
ssize_t __wrap_write(int fd, const void *data, size_t bytes);
ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t at);

ssize_t __wrap_write(int fd, const void *data, size_t bytes) {
    void   *copy = flipped(fd, data, bytes);
    ssize_t n = __real_write(fd, copy ? copy : data, bytes);
    free(copy);
    return n;
}

ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t at) {
    void   *copy = flipped(fd, data, bytes);
    ssize_t n = __real_pwrite(fd, copy ? copy : data, bytes, at);
    free(copy);
    return n;
}

static void test_every_write_of_a_save_flips_a_bit(void **state) {
    (void)state;
    int nth = 1;
    for (;; nth++) {
        start_over();
        flip_in = nth;
        Child c = save(3, NULL);
        flip_in = 0;
        if (unlink(path_of("%s/flipped", dir).text) != 0) break;
        if (c.code != EXIT_IO || !strstr(c.said, "step_00000003.tmp reads back wrong: "))
            fail_msg("write %d: exit %d, %s", nth, c.code, c.said);
        if (there("step_00000003") || there("step_00000003.tmp") || !verifies(1) || !verifies(2))
            fail_msg("write %d: what is left", nth);
    }
    print_message("%d writes with a flipped bit\n", nth - 1);
    assert_true(nth > 8);
}

/* --- a fault costs a checkpoint, not the run ---------------------------------------------------------------------- */

typedef struct { const char *spec; int64_t last; } Series;

/* Saves steps 1 to last, one save each, as a run does. */
static void series_piece(void *argument) {
    const Series *series = argument;
    Fixture       f;
    fixture_create(&f, comm, dir, F32, 1, "");
    Saver *s = saver_create(&f.state);
    plant(series->spec);
    for (int64_t step = 1; step <= series->last; step++) {
        fixture_fill(&f, step);
        saver_start(s, step, NULL);
        saver_finish(s);
    }
    saver_finish_last(s);
    saver_destroy(s);
}
static Child save_series(const char *spec, int64_t last) { return child_run(series_piece, &(Series){spec, last}); }

static void test_one_failed_save_is_a_warning(void **state) {
    (void)state;
    static const char *const specs[] = {"io.pwrite@1:ENOSPC", "io.fsync@2:EIO", "io.mkdir@9:EDQUOT",
                                        "io.rename@1:EROFS", "io.write@2:ENOSPC"};
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        Child c = save_series(specs[i], 3);
        if (c.code != 0 || child_lines(&c) != 1 || !strstr(c.said, "warning: step 1 is not saved: ") || !strstr(c.said, dir))
            fail_msg("%s: exit %d, %s", specs[i], c.code, c.said);
        assert_false(there("step_00000001") || there("step_00000001.tmp"));
        assert_true(verifies(2) && verifies(3));
        expect_resume_at(3, 3, specs[i]);
        assert_int_equal(system(path_of("rm -rf '%s/checkpoints'", dir).text), 0);
    }
}

static void test_three_in_a_row_end_the_job(void **state) {
    (void)state;
    /* one save calls pwrite eight times, so the ninth call, in the second save, is the first to fail */
    Child c = save_series("io.pwrite@9+:ENOSPC", 9);
    assert_int_equal(c.code, EXIT_IO);
    assert_int_equal(child_lines(&c), 3);
    assert_non_null(strstr(c.said, "warning: step 2 is not saved: cannot write "));
    assert_non_null(strstr(c.said, "warning: step 3 is not saved: cannot write "));
    assert_non_null(strstr(c.said, "step 4 is not saved, nor were the 2 checkpoints before it: cannot write "));
    assert_non_null(strstr(c.said, strerror(ENOSPC)));
    expect_resume_at(1, 1, "three failures");
    assert_false(there("step_00000004.tmp"));
    /* saves 1 and 2 fail, and later another one; three in a row never fail */
    c = save_series("io.fsync@1:EIO;io.fsync@2:EIO;io.fsync@10:EIO", 5);
    assert_int_equal(c.code, 0);
}

static void test_a_failed_last_save_ends_the_job(void **state) {
    (void)state;
    Child c = save_series("io.rename@2:ENOSPC", 2);
    assert_int_equal(c.code, EXIT_IO);
    assert_non_null(strstr(c.said, "step 2, the last, is not saved: cannot rename to "));
    expect_resume_at(1, 1, "the last");
}

static void not_finite_piece(void *argument) {
    const int *which = argument;
    Fixture    f;
    fixture_create(&f, comm, dir, F32, 1, "");
    fixture_fill(&f, 2);
    Span     span = f.shards->span[f.shards->spans - 1];
    uint32_t bad = *which % 2 ? 0x7fc00000u : 0xff800000u; /* bits of a quiet NaN, or of negative infinity */
    memcpy((char *)optimizer_tensor(&f.optimizer, *which, span).data + 4 * (span.elems - 1), &bad, sizeof bad);
    checkpoint_save(&f.state, 2);
}

static void test_state_that_is_not_finite_is_not_saved(void **state) {
    (void)state;
    assert_int_equal(save(1, NULL).code, 0);
    for (int which = 0; which < 3; which++) {
        Child c = child_run(not_finite_piece, &which);
        assert_int_equal(c.code, EXIT_NUMERIC);
        assert_int_equal(child_lines(&c), 1);
        assert_non_null(strstr(c.said, "after step 2 are not finite"));
        assert_false(there("step_00000002") || there("step_00000002.tmp"));
        expect_resume_at(1, 1, "not finite");
    }
}

static void test_file_size_limit(void **state) {
    (void)state;
    struct rlimit saved, small = {700 << 10, RLIM_INFINITY};
    assert_int_equal(save(1, NULL).code, 0);
    getrlimit(RLIMIT_FSIZE, &saved);
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    Child c = save(2, NULL);
    setrlimit(RLIMIT_FSIZE, &saved);
    assert_int_equal(c.code, EXIT_IO);
    assert_int_equal(child_lines(&c), 1);
    assert_non_null(strstr(c.said, "model.safetensors: File too large"));
    expect_resume_at(1, 1, "limit");
}

/* A save ends with exit 74 and one line if its folder cannot be made. The folder is below a plain file, because root
 * may write anywhere else. */
static void test_unwritable_folder(void **state) {
    (void)state;
    Path file = path_of("%s/checkpoints", dir);
    fclose(fopen(file.text, "w"));
    Child c = save(1, NULL);
    assert_int_equal(c.code, EXIT_IO);
    assert_int_equal(child_lines(&c), 1);
    assert_non_null(strstr(c.said, "checkpoints: Not a directory"));
}

/* kill -9 at moments spread over a save leaves the previous checkpoint or the new one. */
static void test_kill_during_save(void **state) {
    (void)state;
    enum { KILLS = 50 };
    int64_t newest = 1, killed = 0;
    double  begin = clock_ms();
    assert_int_equal(save(1, NULL).code, 0);
    double  save_us = 1e3 * (clock_ms() - begin);
    for (int i = 0; i < KILLS; i++) {
        int status;
        pid_t pid = fork();
        if (pid == 0) {
            save_piece(&(Saving){NULL, newest + 1});
            _exit(0);
        }
        usleep((useconds_t)(1.5 * save_us * i / KILLS));
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        killed += WIFSIGNALED(status);
        Fixture f;
        fixture_create(&f, comm, dir, F32, 1, "");
        int64_t step = checkpoint_resume(&f.state).step;
        assert_true(step == newest || step == newest + 1);
        assert_int_equal(fixture_differences(&f, step), 0);
        fixture_destroy(&f);
        newest = step;
    }
    print_message("%lld killed, %lld saved\n", (long long)killed, (long long)newest - 1);
    assert_true(killed > 0);
}

int main(void) {
#define FAULTS(name) cmocka_unit_test_setup_teardown(name, enter, leave_unlogged)
    const struct CMUnitTest tests[] = {
        FAULTS(test_every_call_of_a_save),
        FAULTS(test_every_call_of_a_resume),
        FAULTS(test_a_step_that_cannot_be_read_is_not_saved_again),
        FAULTS(test_a_step_that_cannot_be_read_is_not_passed_over),
        FAULTS(test_every_write_of_a_save_flips_a_bit),
        FAULTS(test_one_failed_save_is_a_warning),
        FAULTS(test_three_in_a_row_end_the_job),
        FAULTS(test_a_failed_last_save_ends_the_job),
        FAULTS(test_state_that_is_not_finite_is_not_saved),
        FAULTS(test_file_size_limit),
        FAULTS(test_unwritable_folder),
        FAULTS(test_kill_during_save),
    };
    return RUN_ALONE(tests);
}
