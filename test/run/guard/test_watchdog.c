/* test_watchdog.c - a process that is silent for too long is ended with a report. One that makes progress, or was
 * suspended as a whole, is not.
 * Long: waits for the limits.
 * Timed: limits are parts of a second. */
#include "run/guard/watchdog.h"
#include "run/guard/requests.h"
#include "test/run/lib/child.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <time.h>

#include <cmocka.h>

static void rest(double seconds) {
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&t, &t) != 0) {}
}

static const Launch ALONE = {0};
static const Mesh   ONE_RANK = {{1, 1, 1, 1, 1}};

static void hang(void *limit) {
    Watchdog *w = watchdog_create(*(double *)limit, ALONE);
    watchdog_know(w, world_all(world_join(ALONE)), ONE_RANK);
    watchdog_tick(w, "a long wait");
    watchdog_tick(w, NULL); /* reports progress to the watchdog */
    rest(20);
}

static void test_silence_ends(void **state) {
    (void)state;
    double limit = 0.5;
    Child  c = child_run(hang, &limit);
    assert_int_equal(c.code, EXIT_PEER);
    assert_non_null(strstr(c.said, "rank 0 of 1 on "));
    assert_non_null(strstr(c.said, "in a long wait; no collective was started"));
    assert_non_null(strstr(c.said, "(main):\n"));
}

/* A case of two signals to a rank, `first` and then `second`, `seconds` apart. knows_ranks: MPI_Init has ended.
 * goes_on: the rank reports progress in between. ends: the rank must end. A launcher ends a job by CONT, then TERM.
 * After MPI_Init these do not end a rank whose neighbours are alive. test/run/test_hang.sh tests a dead neighbour,
 * test/hosts a dead rank on another host. */
typedef struct { int knows_ranks, first; double seconds; int second, goes_on, ends; } Ending;

static void be_ended(void *ending) {
    const Ending *e = (const Ending *)ending;
    Watchdog     *w = watchdog_create(0, (Launch){1, 0, 2, 1});
    Comm         *c = world_all(world_join(ALONE));
    signals_install();
    if (e->knows_ranks) watchdog_know(w, c, ONE_RANK);
    raise(e->first);
    rest(e->seconds);
    if (e->goes_on) watchdog_tick(w, NULL);
    raise(e->second);
    rest(0.5);
    watchdog_destroy(w);
}

static void test_a_launcher_ends(void **state) {
    (void)state;
    Ending table[] = {{0, SIGCONT, 0, SIGCONT, 0, 0}, {0, SIGCONT, 0, SIGTERM, 0, 1}, {1, SIGTERM, 0, SIGCONT, 0, 0},
                      {1, SIGCONT, 1, SIGTERM, 0, 0}, {1, SIGCONT, 1, SIGTERM, 1, 0}, {1, SIGCONT, 0, SIGTERM, 0, 0}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        Child c = child_run(be_ended, &table[i]);
        assert_int_equal(c.code, table[i].ends ? EXIT_PEER : 0);
        assert_string_equal(c.said, "");
    }
}

static void keep_going(void *limit) {
    Watchdog *w = watchdog_create(*(double *)limit, ALONE);
    for (int i = 0; i < 12; i++) {
        rest(0.1);
        watchdog_tick(w, "a short wait");
    }
    watchdog_destroy(w);
}

static void test_ticks_keep_alive(void **state) {
    (void)state;
    double limit = 0.6;
    Child  c = child_run(keep_going, &limit);
    assert_int_equal(c.code, 0);
    assert_string_equal(c.said, "");
}

/* Stays silent for `limit` seconds after the first step. Without a limit in the config 30 s of silence are allowed, so
 * the process is not ended. */
static void wait_at_start(void *limit) {
    Watchdog *w = watchdog_create(0, ALONE);
    watchdog_started(w);
    rest(*(double *)limit);
    watchdog_destroy(w);
}

static void test_default_is_patient(void **state) {
    (void)state;
    double seconds = 1.0;
    assert_int_equal(child_run(wait_at_start, &seconds).code, 0);
}

static void be_stopped(void *limit) {
    Watchdog *w = watchdog_create(*(double *)limit, ALONE);
    pid_t     self = getpid(), waker = fork();
    if (waker == 0) {
        rest(3.0);
        kill(self, SIGCONT);
        _exit(0);
    }
    rest(0.3);
    watchdog_tick(w, "sleep");
    raise(SIGSTOP);
    rest(0.5);
    watchdog_tick(w, "sleep");
    watchdog_destroy(w);
}

static void test_a_stopped_process_is_not_blamed(void **state) {
    (void)state;
    double limit = 1.0;
    assert_int_equal(child_run(be_stopped, &limit).code, 0);
}

/* Hangs before MPI_Init has ended, as rank 2 of 4. The watchdog must end it after `limit` seconds, with a report of
 * rank and phase. */
static void hang_in_init(void *limit) {
    Launch third = {1, 2, 4, 1};
    watchdog_create(*(double *)limit, third);
    rest(20);
}

static void test_silence_in_mpi_init(void **state) {
    (void)state;
    double limit = 0.4;
    Child  c = child_run(hang_in_init, &limit);
    assert_int_equal(c.code, EXIT_PEER);
    assert_non_null(strstr(c.said, "rank 2 of 4 on "));
    assert_non_null(strstr(c.said, "in the start of MPI; no collective was started"));
}

/* A hanging process ends even if nothing reads its report from stderr. */
static void hang_with_full_stderr(void *limit) {
    int  ends[2];
    char full[1 << 16] = {0};
    if (pipe(ends) < 0 || fcntl(ends[1], F_SETFL, O_NONBLOCK) < 0) _exit(1);
    while (write(ends[1], full, sizeof full) > 0) {}
    fcntl(ends[1], F_SETFL, 0);
    dup2(ends[1], STDERR_FILENO);
    hang(limit);
}

static void test_a_report_that_nobody_reads(void **state) {
    (void)state;
    double limit = 0.2;
    assert_int_equal(child_run(hang_with_full_stderr, &limit).code, EXIT_PEER);
}

/* Starts a process named mpirun, which starts a rank and ends as soon as the rank has a watchdog. The rank never
 * reports progress, and its watchdog allows 30 s of silence. The caller waits for the launcher only. So the launcher's
 * process number is free when the rank looks for it. */
static void lose_launcher(void *unused) {
    (void)unused;
    int  ready[2], status;
    char byte = 0;
    if (pipe(ready) < 0) _exit(1);
    pid_t launcher = fork();
    if (launcher == 0 && prctl(PR_SET_NAME, "mpirun") == 0) {
        if (fork() != 0) _exit(read(ready[0], &byte, 1) != 1);
        setenv("OMPI_COMM_WORLD_RANK", "1", 1);
        watchdog_create(30, (Launch){1, 1, 2, 1});
        if (write(ready[1], &byte, 1) == 1) rest(20);
        fputs("the rank stayed\n", stderr);
        _exit(0);
    }
    if (waitpid(launcher, &status, 0) != launcher || status != 0) _exit(2);
}

/* With Open MPI 4 a rank also notices through its connection that the launcher is gone. This rank has no connection. */
static void test_a_rank_ends_without_its_launcher(void **state) {
    (void)state;
    Child c = child_run(lose_launcher, NULL);
    assert_int_equal(c.code, 0);
    assert_non_null(strstr(c.said, "train_gpt: mpirun, process "));
    assert_non_null(strstr(c.said, " is gone: the job ends, and resumes from its newest checkpoint\n"));
    assert_null(strstr(c.said, "stayed"));
}

static void test_limits(void **state) {
    (void)state;
    assert_true(watchdog_limit(7, 0, 100) == 7 && watchdog_limit(7, 1, 100) == 7);
    assert_true(watchdog_limit(0, 0, 0.1) == 300 && watchdog_limit(0, 0, 100) == 300);
    assert_true(watchdog_limit(0, 1, 0) == 30 && watchdog_limit(0, 1, 1.4) == 30);
    assert_true(watchdog_limit(0, 1, 2) == 40 && watchdog_limit(0, 1, 60) == 1200);
}

/* The longest allowed silence is 20 times the longest pause between steps, so a pause of 1.6 s would allow 32 s. Pauses
 * of the start must not count. */
static void test_a_long_start_is_forgotten(void **state) {
    (void)state;
    Watchdog *w = watchdog_create(0, ALONE);
    rest(1.6);
    watchdog_forget_start(w);
    assert_true(watchdog_allows(w) == WATCHDOG_STARTING_SECONDS);
    watchdog_tick(w, "the first step");
    watchdog_started(w);
    assert_true(watchdog_allows(w) == WATCHDOG_LEAST_SECONDS);
    rest(1.6);
    watchdog_tick(w, "the second step");
    assert_true(watchdog_allows(w) > WATCHDOG_LEAST_SECONDS);
    watchdog_destroy(w);
}

int main(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_silence_ends),
                                     cmocka_unit_test(test_a_launcher_ends),
                                     cmocka_unit_test(test_ticks_keep_alive),
                                     cmocka_unit_test(test_default_is_patient),
                                     cmocka_unit_test(test_a_stopped_process_is_not_blamed),
                                     cmocka_unit_test(test_silence_in_mpi_init),
                                     cmocka_unit_test(test_a_report_that_nobody_reads),
                                     cmocka_unit_test(test_a_rank_ends_without_its_launcher),
                                     cmocka_unit_test(test_limits),
                                     cmocka_unit_test(test_a_long_start_is_forgotten)};
    return cmocka_run_group_tests_name("watchdog", all, NULL, NULL);
}
