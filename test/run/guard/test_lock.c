/* test_lock.c - who may take a run folder. Tests the decision as a table, and the locks of processes that live, die,
 * hang and continue.
 * Timed: a lock counts as abandoned when its beat, a counter in the lock file, stands still for seconds. */
#include "core/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h> /* after error.h, because cmocka's macro fail() would change the declarations there */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/thread.h"
#include "core/io.h"
#include "run/guard/lock.h"
#include "test/run/lib/child.h"

static const double BEAT_MS = 50.0;
static char dir[64], path[96];

static int make_dir(void **state) {
    (void)state;
    strcpy(dir, "/tmp/test_lock.XXXXXX");
    snprintf(path, sizeof path, "%.60s/lock", mkdtemp(dir));
    return 0;
}
static int remove_dir(void **state) {
    (void)state;
    return io_remove_tree(dir);
}

/* --- the decision ------------------------------------------------------------------------------------------------- */

static const LockHolder OWN =
    {.host = "here", .boot = "b1", .process = 7, .started = 70, .job = "11", .restart = 1, .nonce = 0xabc, .beat = 1};

static LockHolder holder(const char *host, const char *boot, const char *job, int64_t restart) {
    LockHolder h = {.process = 5, .started = 50, .restart = restart, .nonce = 0xfedcba9876543210u, .beat = 3};
    strcpy(h.host, host), strcpy(h.boot, boot), strcpy(h.job, job);
    return h;
}

static void the_text_goes_round(void **state) {
    (void)state;
    LockHolder h = holder("node-17.cluster", "3f2c1d", "none", 0), again;
    char       text[HOLDER_TEXT];
    h.beat = UINT64_MAX;
    int length = holder_format(&h, text);
    assert_int_equal(length, strlen(text));
    assert_int_equal(holder_parse(text, &again), 1);
    assert_memory_equal(&h, &again, sizeof h);
    assert_string_equal(text + length - 1 - HOLDER_BEAT_DIGITS, "18446744073709551615\n");
    memset(h.host, 'h', sizeof h.host - 1), memset(h.boot, 'b', sizeof h.boot - 1), memset(h.job, 'j', sizeof h.job - 1);
    /* the numbers with the longest texts, for the longest lock file */
    h.process = h.restart = INT64_MIN, h.started = h.nonce = UINT64_MAX;
    length = holder_format(&h, text);
    assert_int_equal(length, strlen(text));
    assert_int_equal(holder_parse(text, &again), 1);
    assert_memory_equal(&h, &again, sizeof h);
    const char *const foreign[] = {"", "\n", "host vm, process 12\n", "hello",
                                   "host a process 1 boot b started 2 job c restart 3 nonce 4"};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) assert_int_equal(holder_parse(foreign[i], &again), 0);
}

static void decisions(void **state) {
    (void)state;
    const double late = LOCK_BEATS_MISSED * BEAT_MS + 1;
    const struct { const char *what; LockHolder h; LockSeen seen; LockDecision decision; } table[] = {
        {"flocked, whatever else", holder("here", "b0", "11", 0), {.flocked = 1, .still_ms = late}, LOCK_REFUSE},
        {"flocked by another host", holder("there", "b9", "none", 0), {.flocked = 1, .still_ms = late}, LOCK_REFUSE},
        {"flocked by a process of this host that is dead", holder("here", "b1", "none", 0), {.flocked = 1}, LOCK_WAIT},
        {"such a process for too long", holder("here", "b1", "none", 0), {.flocked = 1, .still_ms = LOCK_ENDING_MS + 1}, LOCK_REFUSE},
        {"flocked by a process of this host that lives", holder("here", "b1", "none", 0), {.flocked = 1, .lives = 1}, LOCK_REFUSE},
        {"its process lives", holder("here", "b1", "none", 0), {.lives = 1, .still_ms = late}, LOCK_REFUSE},
        {"its process lives, same job", holder("here", "b1", "11", 0), {.lives = 1}, LOCK_REFUSE},
        {"its process is dead", holder("here", "b1", "none", 0), {0}, LOCK_TAKE},
        {"its process is dead, as far as a container sees", holder("here", "b1", "none", 0), {.no_flock = 1}, LOCK_WAIT},
        {"such a process beats", holder("here", "b1", "none", 0), {.no_flock = 1, .moved = 1}, LOCK_REFUSE},
        {"a host of this name, another boot", holder("here", "b0", "none", 0), {.lives = 1}, LOCK_WAIT},
        {"such a host beats", holder("here", "b0", "none", 0), {.moved = 1, .still_ms = late}, LOCK_REFUSE},
        {"such a host is silent", holder("here", "b0", "none", 0), {.lives = 1, .still_ms = late}, LOCK_TAKE},
        {"the same job, requeued on this host after a boot", holder("here", "b0", "11", 0), {0}, LOCK_TAKE},
        {"another host, at once", holder("there", "b1", "none", 0), {.lives = 1}, LOCK_WAIT},
        {"another host, two beats later", holder("there", "b9", "none", 0), {.still_ms = 2 * BEAT_MS}, LOCK_WAIT},
        {"another host beats", holder("there", "b9", "none", 0), {.moved = 1, .still_ms = late}, LOCK_REFUSE},
        {"another host is silent", holder("there", "b9", "none", 0), {.still_ms = late}, LOCK_TAKE},
        {"the same job, requeued", holder("there", "b9", "11", 0), {0}, LOCK_TAKE},
        {"the same job, not requeued", holder("there", "b9", "11", 1), {0}, LOCK_WAIT},
        {"another job", holder("there", "b9", "12", 0), {0}, LOCK_WAIT},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char text[HOLDER_TEXT];
        holder_format(&table[i].h, text);
        if (holder_decide(text, &OWN, table[i].seen, BEAT_MS) != table[i].decision) fail_msg("%s", table[i].what);
    }
    LockHolder none = OWN; /* outside of SLURM (job "none") two processes never count as the same job */
    char       text[HOLDER_TEXT];
    strcpy(none.job, "none");
    LockHolder other = holder("there", "b9", "none", 0);
    holder_format(&other, text);
    assert_int_equal(holder_decide(text, &none, (LockSeen){0}, BEAT_MS), LOCK_WAIT);
    assert_int_equal(holder_decide("", &OWN, (LockSeen){0}, BEAT_MS), LOCK_TAKE);
    assert_int_equal(holder_decide("host old, process 3\n", &OWN, (LockSeen){.flocked = 1}, BEAT_MS), LOCK_REFUSE);
}

/* A lock names a process by its number and start time. A process with that number and another start time does not count
 * as alive, nor does one that has ended and was not reaped. */
static void who_lives(void **state) {
    (void)state;
    LockHolder self = holder_self("vm");
    assert_true(self.started > 0 && strcmp(self.boot, "?") != 0);
    assert_int_equal(holder_lives(&self), 1);
    self.started++;
    assert_int_equal(holder_lives(&self), 0);
    pid_t pid = fork();
    if (pid == 0) _exit(0);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    LockHolder child = {.process = pid, .started = 0};
    assert_int_equal(holder_lives(&child), 0);
    waitpid(pid, NULL, 0);
    assert_int_equal(holder_lives(&child), 0);
    setenv("SLURM_JOB_ID", "47 11\n", 1), setenv("SLURM_RESTART_COUNT", "2", 1);
    self = holder_self("a host");
    assert_string_equal(self.job, "47");
    assert_int_equal(self.restart, 2);
    assert_string_equal(self.host, "a");
    unsetenv("SLURM_JOB_ID"), unsetenv("SLURM_RESTART_COUNT");
}

/* --- real ones ---------------------------------------------------------------------------------------------------- */

static Comm *alone(void) {
    static Comm *comm;
    if (!comm) comm = world_all(world_join((Launch){0}));
    return comm;
}
static RunLock *take(void) { return lock_run_folder(dir, alone(), NULL, BEAT_MS); }
static void     take_it(void *seconds) {
    double begin = clock_ms();
    lock_sign(take());
    if (seconds) *(double *)seconds = clock_ms() - begin;
}
static void rest_ms(int ms) { usleep((useconds_t)ms * 1000); }

/* Starts a child that takes the lock of the run folder. Returns its process number once it has the lock. */
static pid_t hold(void) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        lock_sign(take());
        if (write(ends[1], "x", 1) != 1) _exit(1);
        for (;;) pause();
    }
    char x;
    assert_int_equal(read(ends[0], &x, 1), 1);
    close(ends[0]), close(ends[1]);
    return pid;
}
static void end(pid_t pid) {
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void a_second_job_is_refused_until_the_first_is_gone(void **state) {
    (void)state;
    pid_t first = hold();
    char  who[32];
    snprintf(who, sizeof who, ", process %d)", (int)first);
    double begin = clock_ms();
    Child  c = child_run(take_it, NULL);
    assert_int_equal(c.code, EXIT_LOCKED);
    assert_non_null(strstr(c.said, who));
    assert_int_equal(child_lines(&c), 1);
    assert_true(clock_ms() - begin < 2000.0);
    end(first);
    /* The lock is taken at once, because it names a process of this host that is dead. */
    assert_int_equal(child_run(take_it, NULL).code, 0);
    RunLock *third = take();
    lock_sign(third);
    assert_true(io_file_bytes(path) > 0);
    lock_release(third);
    assert_int_equal(io_file_bytes(path), 0); /* the file is empty, because the lock was released */
}

/* Writes the lock file as a job on another machine would: with this host name, and the id of another boot. */
static void sign_from(const char *host, uint64_t beat) {
    LockHolder h = holder(host, "b9", "none", 0);
    char       text[HOLDER_TEXT];
    h.beat = beat;
    int length = holder_format(&h, text), fd = io_open(path, IO_SHARED);
    assert_true(fd >= 0);
    assert_int_equal(io_pwrite(fd, text, (size_t)length, 0), 0);
    assert_int_equal(io_truncate(fd, (uint64_t)length), 0);
    io_close(fd);
}

static void sign_from_elsewhere(uint64_t beat) { sign_from("elsewhere", beat); }

/* A lock of a machine that has this host name and another boot id, such as a clone, is treated as that of another host.
 * The job waits until the beat, a counter in the lock, stands still. */
static void a_host_of_the_same_name_is_waited_for(void **state) {
    (void)state;
    char host[200];
    assert_int_equal(gethostname(host, sizeof host), 0);
    sign_from(host, 1);
    double begin = clock_ms();
    assert_int_equal(child_run(take_it, NULL).code, 0);
    assert_true(clock_ms() - begin > LOCK_BEATS_MISSED * BEAT_MS);
    sign_from(host, 1);
    pid_t beater = fork();
    if (beater == 0)
        for (uint64_t beat = 2;; beat++) rest_ms(20), sign_from(host, beat);
    Child c = child_run(take_it, NULL);
    end(beater);
    assert_int_equal(c.code, EXIT_LOCKED);
    assert_non_null(strstr(c.said, ", process 5)"));
}

static void another_host_is_waited_for(void **state) {
    (void)state;
    sign_from_elsewhere(1);
    double begin = clock_ms();
    Child  c = child_run(take_it, NULL);
    assert_int_equal(c.code, 0);
    assert_true(clock_ms() - begin > LOCK_BEATS_MISSED * BEAT_MS);
    assert_non_null(strstr(c.said, "was in use by another job (host elsewhere, process 5)"));
    sign_from_elsewhere(1);
    pid_t beater = fork();
    if (beater == 0)
        for (uint64_t beat = 2;; beat++) rest_ms(20), sign_from_elsewhere(beat);
    c = child_run(take_it, NULL);
    end(beater);
    assert_int_equal(c.code, EXIT_LOCKED);
    assert_non_null(strstr(c.said, "is in use by another job (host elsewhere, process 5)"));
}

static void the_beat_grows(void **state) {
    (void)state;
    RunLock   *l = take();
    LockHolder h;
    char      *text;
    lock_sign(l);
    uint64_t beat = 0;
    for (int i = 0; i < 400 && beat < 4; i++, free(text)) {
        rest_ms(10);
        assert_true(io_read_file(path, HOLDER_TEXT, &text) > 0);
        assert_int_equal(holder_parse(text, &h), 1);
        assert_true(h.beat >= beat);
        beat = h.beat;
    }
    assert_true(beat >= 4);
    assert_int_equal(h.process, getpid());
    assert_true(lock_is_held(l) && !lock_is_lost(l));
    lock_release(l);
}

/* While this job was suspended, another host took the run folder. The job notices this before its next write. */
static void a_lost_folder_is_noticed(void **state) {
    (void)state;
    RunLock *l = take();
    lock_sign(l);
    /* removes the lock file; a job whose lock file is missing still has the lock */
    assert_int_equal(io_unlink(path), 0);
    assert_int_equal(lock_is_held(l), 1);
    sign_from_elsewhere(1);
    for (int i = 0; i < 400 && !lock_is_lost(l); i++) rest_ms(10);
    assert_int_equal(lock_is_lost(l), 1);
    assert_int_equal(lock_is_held(l), 0);
    char *before, *after;
    assert_true(io_read_file(path, HOLDER_TEXT, &before) > 0);
    rest_ms(120);
    lock_release(l);
    assert_true(io_read_file(path, HOLDER_TEXT, &after) > 0);
    assert_string_equal(before, after); /* the other job's file is unchanged */
    free(before), free(after);
}

static void lose(void *unused) {
    (void)unused;
    RunLock *l = take();
    lock_sign(l);
    sign_from_elsewhere(1);
    if (!lock_is_held(l)) lock_fail(l);
}
static void come_second(void *unused) {
    (void)unused;
    RunLock *l = take();
    /* another job writes its name to the lock file after this job's check and before this job writes its own */
    sign_from_elsewhere(1);
    lock_sign(l);
}
static void losers_say_who_has_it(void **state) {
    (void)state;
    void (*piece[])(void *) = {lose, come_second};
    for (int i = 0; i < 2; i++) {
        Child c = child_run(piece[i], NULL);
        assert_int_equal(c.code, EXIT_LOCKED);
        assert_non_null(strstr(c.said, "host elsewhere, process 5"));
        assert_int_equal(child_lines(&c), 1);
        assert_int_equal(io_unlink(path), 0);
    }
}

static void a_link_is_not_followed(void **state) {
    (void)state;
    char target[96];
    snprintf(target, sizeof target, "%s/target", dir);
    assert_int_equal(symlink(target, path), 0);
    Child c = child_run(take_it, NULL);
    assert_int_equal(c.code, EXIT_IO);
    assert_non_null(strstr(c.said, path));
    assert_int_equal(io_file_bytes(target), -2);
    assert_int_equal(io_unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    /* the lock file is a pipe; this returns at once, without waiting for a writer */
    assert_int_equal(child_run(take_it, NULL).code, EXIT_IO);
}

static void long_garbage_is_nobodys(void **state) {
    (void)state;
    static char garbage[5000];
    memset(garbage, 'x', sizeof garbage);
    int fd = io_open(path, IO_SHARED);
    assert_int_equal(io_pwrite(fd, garbage, sizeof garbage, 0), 0);
    io_close(fd);
    RunLock *l = take();
    lock_sign(l);
    assert_in_range(io_file_bytes(path), 1, HOLDER_TEXT);
    assert_int_equal(lock_is_held(l), 1);
    lock_release(l);
}

static void a_pipe_in_the_folder_is_refused(void **state) {
    (void)state;
    const char *const name[] = {"metrics.jsonl", "gemm.json"};
    for (int i = 0; i < 2; i++) {
        char pipe[128];
        snprintf(pipe, sizeof pipe, "%s/%s", dir, name[i]);
        assert_int_equal(mkfifo(pipe, 0600), 0);
        Child c = child_run(take_it, NULL);
        assert_int_equal(c.code, EXIT_IO);
        assert_non_null(strstr(c.said, pipe));
        assert_int_equal(io_unlink(pipe), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_text_goes_round),
        cmocka_unit_test(decisions),
        cmocka_unit_test(who_lives),
        cmocka_unit_test_setup_teardown(a_second_job_is_refused_until_the_first_is_gone, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(another_host_is_waited_for, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_host_of_the_same_name_is_waited_for, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(the_beat_grows, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_lost_folder_is_noticed, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(losers_say_who_has_it, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_link_is_not_followed, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(long_garbage_is_nobodys, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_pipe_in_the_folder_is_refused, make_dir, remove_dir),
    };
    return cmocka_run_group_tests_name("lock", tests, NULL, NULL);
}
