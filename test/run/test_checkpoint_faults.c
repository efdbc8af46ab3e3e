/* test_checkpoint_faults.c - every I/O call of a save fails in turn, is cut short, or the process dies at it: the run ends with one
 * sentence, exit 74, and what was saved before is whole and is what a resume takes.
 */
#ifndef FAILPOINTS
#define FAILPOINTS
#endif
#include "core/failpoints.c"
#include "core/io.c"

#include "test/run/checkpoint_fixture.h"
#include "test/run/child.h"

#include <omp.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <sys/resource.h>

#include "core/clock.h"

#undef fail
#include <cmocka.h>

static Comm *comm;
static char  dir[64];

static int enter(void **state) {
    (void)state;
    return fixture_folder(dir);
}

static int leave(void **state) {
    (void)state;
    return fixture_folder_remove(dir);
}

typedef struct { const char *dir, *spec; int64_t step; } Saving;

static void save_piece(void *argument) {
    const Saving *s = argument;
    Fixture       f;
    fixture_create(&f, comm, s->dir, F32, 1, "");
    fixture_fill(&f, s->step);
    failpoints_reset();
    if (s->spec) setenv("TRAIN_GPT_FAIL", s->spec, 1);
    checkpoint_save(&f.state, s->step);
}

static Child save(int64_t step, const char *spec) { return child_run(save_piece, &(Saving){dir, spec, step}); }

static void expect_resume_at(int64_t low, int64_t high, const char *spec) {
    Fixture f;
    fixture_create(&f, comm, dir, F32, 1, "");
    int64_t step = checkpoint_resume(&f.state).step;
    if (step < low || step > high || fixture_differences(&f, step) != 0) fail_msg("%s: resumed at step %lld", spec, (long long)step);
    fixture_destroy(&f);
}

static void remove_step(int64_t step) {
    char name[32];
    folder_name(name, step);
    io_remove_tree(path_of("%s/checkpoints/%s", dir, name).text);
    io_remove_tree(path_of("%s/checkpoints/%s.tmp", dir, name).text);
}

static void test_every_call_fails(void **state) {
    (void)state;
    static const char *const ops[] = {"open", "write", "pwrite", "ftruncate", "fsync", "close", "rename", "unlink", "mkdir"};
    static const char *const faults[] = {"ENOSPC", "EIO", "EDQUOT", "EROFS"};
    int failures[sizeof ops / sizeof *ops] = {0}, survived = 0, renamed = 0;
    for (size_t op = 0; op < sizeof ops / sizeof *ops; op++) {
        for (int nth = 1, quiet = 0; quiet < 12; nth++) {
            char  spec[40];
            snprintf(spec, sizeof spec, "io.%s@%d:%s", ops[op], nth, faults[nth % 4]);
            for (int64_t step = 1; step <= 2; step++)
                if (save(step, NULL).code != 0) fail_msg("step %lld is not saved", (long long)step);
            Child c = save(3, spec);
            if (c.code == 0) {
                survived++;
                quiet = c.said[0] ? 0 : quiet + 1; /* no such call, or one that may fail: twelve in a row are the end */
                if (c.said[0] && !strstr(c.said, "warning: cannot remove the old checkpoint")) fail_msg("%s: %s", spec, c.said);
                expect_resume_at(3, 3, spec);
            } else {
                failures[op]++;
                quiet = 0;
                renamed += access(path_of("%s/checkpoints/step_00000003", dir).text, F_OK) == 0;
                if (c.code != EXIT_IO || child_lines(&c) != 1 || !strstr(c.said, dir)) fail_msg("%s: exit %d, %s", spec, c.code, c.said);
                expect_resume_at(2, 3, spec);
                if (access(path_of("%s/checkpoints/step_00000003.tmp", dir).text, F_OK) == 0) fail_msg("%s: the .tmp folder stayed", spec);
            }
            for (int64_t step = 1; step <= 3; step++) remove_step(step);
            assert_int_equal(io_remove_tree(path_of("%s/checkpoints/.trash-step_00000001", dir).text), 0);
        }
    }
    for (size_t op = 0; op < sizeof ops / sizeof *ops; op++) print_message("%s: %d failing calls\n", ops[op], failures[op]);
    print_message("%d calls whose failure ends nothing\n", survived);
    assert_int_equal(failures[4], 7); /* what must be on the disk: model, optimizer and config, manifest, the folder .tmp, the run folder, and
                                         after the rename the folder of checkpoints */
    assert_int_equal(renamed, 2);     /* only after all that: the last open and fsync come behind the rename */
}

static void test_short_writes_are_continued(void **state) {
    (void)state;
    for (int nth = 1; nth <= 5; nth++) {
        char spec[40];
        snprintf(spec, sizeof spec, "io.%s@%d:short", nth % 2 ? "pwrite" : "write", nth);
        assert_int_equal(save(nth, spec).code, 0);
        expect_resume_at(nth, nth, spec);
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

/* Root may write anywhere but under a plain file. */
static void test_unwritable_folder(void **state) {
    (void)state;
    Path file = path_of("%s/checkpoints", dir);
    fclose(fopen(file.text, "w"));
    Child c = child_run(save_piece, &(Saving){dir, NULL, 1});
    assert_int_equal(c.code, EXIT_IO);
    assert_int_equal(child_lines(&c), 1);
    assert_non_null(strstr(c.said, "checkpoints: Not a directory"));
}

/* kill -9 at moments spread over a save: the checkpoint before it, or the new one, never anything else. */
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
            save_piece(&(Saving){dir, NULL, newest + 1});
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
    omp_set_num_threads(1);
    comm = comm_create((Launch){0}, COMM_RING);
#define CASE(name) cmocka_unit_test_setup_teardown(name, enter, leave)
    const struct CMUnitTest tests[] = {
        CASE(test_every_call_fails), CASE(test_short_writes_are_continued), CASE(test_file_size_limit), CASE(test_unwritable_folder),
        CASE(test_kill_during_save),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
