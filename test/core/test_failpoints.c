/* test_failpoints.c - the rules in the environment variable TRAIN_GPT_FAIL, which say at which call which fault
 * occurs. */
#include "core/failpoints.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/error.h"

#undef fail

#include <cmocka.h>

static void rules(const char *text) {
    failpoints_reset();
    setenv("TRAIN_GPT_FAIL", text, 1);
}

static int leave(void **state) {
    (void)state;
    unsetenv("TRAIN_GPT_FAIL");
    unsetenv("TRAIN_GPT_FAIL_LOG");
    unsetenv("OMPI_COMM_WORLD_RANK");
    return 0;
}

/* Calls failpoint `name` several times. Returns one digit for each call: 1 if the rule makes it fail, 0 if not. */
static const char *fates(const char *name, int calls) {
    static char text[16];
    for (int i = 0; i < calls; i++) text[i] = failpoint(name).error ? '1' : '0';
    text[calls] = 0;
    return text;
}

static void test_which_call(void **state) {
    (void)state;
    rules("io.write@3:EIO");
    assert_string_equal(fates("io.write", 5), "00100");
    rules("io.write@3+:EIO");
    assert_string_equal(fates("io.write", 5), "00111");
    rules("io.write@1:EIO; io.fsync@2:fail;io.write@4:ENOSPC");
    assert_string_equal(fates("io.write", 5), "10010");
    assert_string_equal(fates("io.fsync", 3), "010");
    /* a rule for io.write matches only that name, not io.writeback */
    assert_string_equal(fates("io.writeback", 3), "000");
    assert_int_equal(failpoint_calls("io.write"), 5);
    assert_int_equal(failpoint_calls("io"), 11);
    rules("io@4:EIO"); /* a rule for io, without a name of a call, counts every call of that group */
    assert_string_equal(fates("io.write", 2), "00");
    assert_string_equal(fates("comm.barrier", 3), "000");
    assert_string_equal(fates("io.fsync", 3), "010");
    unsetenv("TRAIN_GPT_FAIL");
    assert_string_equal(fates("io.write", 3), "000");
}

static void test_what_happens(void **state) {
    (void)state;
    rules("a.b@1:ENOSPC;a.b@2:EDQUOT;a.b@3:short;a.b@4:nan");
    assert_int_equal(failpoint("a.b").error, ENOSPC);
    assert_int_equal(failpoint("a.b").error, EDQUOT);
    Failpoint f = failpoint("a.b");
    assert_true(f.is_short && !f.error && !f.kills && !f.word[0]);
    f = failpoint("a.b");
    assert_true(!f.is_short && !f.error && !f.kills);
    assert_string_equal(f.word, "nan");
    f = failpoint("a.b");
    assert_true(!f.is_short && !f.error && !f.kills && !f.word[0]);
}

static void test_rank(void **state) {
    (void)state;
    rules("a.b@1:EIO,rank=2;a.b@2:EIO,rank=0");
    assert_string_equal(fates("a.b", 2), "01");
    setenv("OMPI_COMM_WORLD_RANK", "2", 1);
    failpoints_reset();
    assert_string_equal(fates("a.b", 2), "10");
}

/* Runs a process under a fault rule. The process calls the failpoint a.b twice and writes a byte after each call. Sets
 * *status to its exit status. Returns the bytes written before the process ended, or before it was killed because it
 * hung. */
static int fate_of_process(const char *rule, int *status) {
    int  pipes[2];
    char bytes[8];
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        rules(rule);
        for (int i = 0; i < 2; i++) {
            Failpoint f = failpoint("a.b");
            if (write(pipes[1], "x", 1) != 1) _exit(1);
            failpoint_done(f);
        }
        if (write(pipes[1], "..", 2) != 2) _exit(1);
        _exit(0);
    }
    close(pipes[1]);
    if (strstr(rule, "hang")) {
        /* the process writes after its first call; the second call hangs, so no byte follows */
        assert_int_equal(read(pipes[0], bytes, 1), 1);
        usleep(50000);
        assert_int_equal(waitpid(child, status, WNOHANG), 0);
        kill(child, SIGKILL);
    }
    int n = 0;
    for (ssize_t got; (got = read(pipes[0], bytes, sizeof bytes)) > 0;) n += (int)got;
    waitpid(child, status, 0);
    close(pipes[0]);
    return n;
}

static void test_kills_and_hangs(void **state) {
    (void)state;
    int status;
    assert_int_equal(fate_of_process("a.b@2:kill-before", &status), 1);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(fate_of_process("a.b@2:kill-after", &status), 2);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(fate_of_process("a.b@2:hang", &status), 0);
    assert_int_equal(fate_of_process("a.b@3:kill-before", &status), 4);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void test_bad_rules_end_the_process(void **state) {
    (void)state;
    static const char *const bad[] = {"io.write",
                                      "io.write@0:EIO",
                                      "io.write@1",
                                      "io.write@1:",
                                      "@1:EIO",
                                      "io.write@1:EIO,rank=",
                                      "io.write@1:EIO,run=1",
                                      "io.write@x:EIO",
                                      "io.write@1:EIO io.write"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int   status;
        pid_t child = fork();
        if (child == 0) {
            close(STDERR_FILENO);
            rules(bad[i]);
            failpoint("a.b");
            failpoint("a.b");
            _exit(0);
        }
        waitpid(child, &status, 0);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != EXIT_CONFIG) fail_msg("%s: status %d", bad[i], status);
    }
}

static void test_log(void **state) {
    (void)state;
    char path[] = "/tmp/train_gpt_failpoints_XXXXXX", text[128] = "";
    int  fd = mkstemp(path);
    setenv("TRAIN_GPT_FAIL_LOG", path, 1);
    rules("a.b@2:EIO;a@3:nan");
    for (int i = 0; i < 4; i++) failpoint("a.b");
    assert_true(read(fd, text, sizeof text - 1) > 0);
    assert_string_equal(text, "a.b@2:EIO,rank=0\na.b@3:nan,rank=0\n");
    close(fd);
    unlink(path);
}

int main(void) {
#define CASE(name) cmocka_unit_test_teardown(name, leave)
    const struct CMUnitTest tests[] = {
        CASE(test_which_call),
        CASE(test_what_happens),
        CASE(test_rank),
        CASE(test_kills_and_hangs),
        CASE(test_bad_rules_end_the_process),
        CASE(test_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
