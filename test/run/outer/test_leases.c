/* test_leases.c - leases of samples to islands (training jobs) in leases.jsonl. Each sample counts once, over joins,
 * losses, kills and restarts. */
#include "core/error.h"
#include "run/outer/leases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/io.h"
#include "test/run/lib/child.h"

static char        dir[64], path[128];
static const char *A = "00000000000000aa", *B = "00000000000000bb";

static char *file_text(void) {
    char *text;
    assert_true(io_read_file(path, 1 << 26, &text) >= 0);
    return text;
}

static void lines_are_exact(void **state) {
    (void)state;
    Leases l = leases_open(path, 0, 0);
    Lease  a = leases_give(&l, 240, A, 0), b = leases_give(&l, 240, B, 0);
    assert_true(a.number == 0 && a.range.first == 0 && b.number == 1 && b.range.first == 240);
    leases_done(&l, a.number, 96, 0);
    leases_return(&l, b.number);
    leases_close(&l);
    char *text = file_text();
    assert_string_equal(text,
                        "{\"lease\":0,\"first\":0,\"samples\":240,\"island\":\"00000000000000aa\",\"round\":0,\"is\":\"given\",\"used\":0}\n"
                        "{\"lease\":1,\"first\":240,\"samples\":240,\"island\":\"00000000000000bb\",\"round\":0,\"is\":\"given\",\"used\":0}\n"
                        "{\"lease\":0,\"first\":0,\"samples\":240,\"island\":\"00000000000000aa\",\"round\":0,\"is\":\"done\",\"used\":96}\n"
                        "{\"lease\":1,\"first\":240,\"samples\":240,\"island\":\"00000000000000bb\",\"round\":0,\"is\":\"returned\",\"used\":0}\n");
    free(text);
    /* The free samples are one range: those that lease 0 (a range of samples) did not use, and all of lease 1, which
     * was returned. */
    l = leases_open(path, 1, 0);
    a = leases_give(&l, 480, A, 1);
    assert_true(a.number == 2 && a.range.first == 96 && a.range.samples == 384);
    b = leases_give(&l, 240, B, 1);
    assert_true(b.range.first == 480 && b.range.samples == 240);
    leases_close(&l);
}

/* A restarted server leases (gives out) some samples again: those of leases that were not finished, and those trained
 * in rounds after its checkpoint, which its weights do not contain. */
static void a_restart_takes_back(void **state) {
    (void)state;
    Leases l = leases_open(path, 0, 0);
    for (int r = 0; r < 3; r++) leases_done(&l, leases_give(&l, 10, A, r).number, 10, r);
    leases_give(&l, 10, B, 3);
    leases_close(&l);
    l = leases_open(path, 1, 10);
    Lease again = leases_give(&l, 100, A, 1);
    assert_true(again.range.first == 10 && again.range.samples == 30);
    leases_close(&l);
}

static void a_torn_line_is_cut(void **state) {
    (void)state;
    Leases l = leases_open(path, 0, 0);
    leases_done(&l, leases_give(&l, 10, A, 0).number, 10, 0);
    leases_close(&l);
    char *whole = file_text();
    int   fd = io_open(path, IO_APPEND);
    assert_true(fd >= 0 && io_write(fd, "{\"lease\":1,\"fir", 15) == 0 && io_close(fd) == 0);
    l = leases_open(path, 1, 10);
    leases_close(&l);
    char *text = file_text();
    assert_string_equal(text, whole);
    free(text), free(whole);
}

static void a_lost_file_goes_on_at_the_checkpoint(void **state) {
    (void)state;
    for (int start = 0; start < 2; start++) { /* the second start reads the file that the first start has written */
        Leases l = leases_open(path, 5, 700);
        assert_int_equal(leases_give(&l, 10, A, 5).range.first, 700);
        leases_close(&l);
    }
}

static void open_it(void *unused) { (void)unused, leases_open(path, 0, 0); }
static void other_lines_are_refused(void **state) {
    (void)state;
    static const char *const LINES[] = {
        "rubbish\n",
        "{\"lease\":1,\"first\":0,\"samples\":10,\"island\":\"00000000000000aa\",\"round\":0,\"is\":\"given\",\"used\":0}\n",
        "{\"lease\":0,\"first\":0,\"samples\":10,\"island\":\"00000000000000aa\",\"round\":0,\"is\":\"done\",\"used\":10}\n",
        "{\"lease\":0,\"first\":0,\"samples\":0,\"island\":\"00000000000000aa\",\"round\":0,\"is\":\"given\",\"used\":0}\n",
        "{\"lease\":0,\"first\":0,\"samples\":10,\"island\":\"short\",\"round\":0,\"is\":\"given\",\"used\":0}\n",
        "{\"lease\":0,\"first\":-1,\"samples\":10,\"island\":\"00000000000000aa\",\"round\":0,\"is\":\"given\",\"used\":0}\n",
        "{\"lease\":0,\"first\":0,\"samples\":10,\"island\":\"00000000000000aa\",\"round\":0,\"is\":\"taken\",\"used\":0}\n"};
    for (size_t i = 0; i < sizeof LINES / sizeof *LINES; i++) {
        int fd = io_open(path, IO_CREATE);
        assert_true(fd >= 0 && io_write(fd, LINES[i], strlen(LINES[i])) == 0 && io_close(fd) == 0);
        Child c = child_run(open_it, NULL);
        assert_int_equal(c.code, EXIT_DATA);
        assert_non_null(strstr(c.said, path));
        assert_non_null(strstr(c.said, ":1:"));
    }
}

/* --- any history -------------------------------------------------------------------------------------------------- */

enum { HISTORIES = 60, EVENTS = 300, ISLANDS = 5, UNIT = 6, LEASE = 10 * UNIT, MOST = 200000 };

/* for each sample how often it was used in the weights of a server, and the round of these weights */
typedef struct { unsigned char count[MOST]; int64_t round; } Weights;
static Weights now, saved;

static int64_t drawn(uint64_t *seed, int64_t below) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u; /* the generator of Knuth's MMIX */
    return (int64_t)((*seed >> 33) % (uint64_t)below);
}

static void count_in(const Lease *lease, int64_t used) {
    for (int64_t s = lease->range.first; s < lease->range.first + used; s++) now.count[s]++;
}

/* Simulates a random history of a server. Islands (training jobs) get leases of samples, finish all or part of them, or
 * are lost. Rounds end, checkpoints are saved, and the server is killed, sometimes while it writes a line. At the end
 * each sample must count once. */
static void one_history(uint64_t seed) {
    Leases l = leases_open(path, 0, 0);
    Lease  of[ISLANDS];
    int    has[ISLANDS] = {0};
    memset(&now, 0, sizeof now);
    saved = now;
    for (int e = 0; e < EVENTS; e++) {
        int64_t what = drawn(&seed, 20), i = drawn(&seed, ISLANDS);
        if (what < 9 && !has[i]) of[i] = leases_give(&l, LEASE, i % 2 ? A : B, now.round), has[i] = 1;
        else if (what < 12 && has[i]) {
            int64_t used = drawn(&seed, of[i].range.samples / UNIT + 1) * UNIT;
            count_in(&of[i], used), leases_done(&l, of[i].number, used, now.round), has[i] = 0;
        } else if (what < 15 && has[i]) leases_return(&l, of[i].number), has[i] = 0;
        else if (what < 17) now.round++;
        else if (what == 17) now.round++, saved = now; /* a checkpoint is saved at the end of this round */
        else if (what == 18) {
            leases_close(&l);
            int fd = io_open(path, IO_APPEND);
            assert_true(fd >= 0 && io_write(fd, "{\"lease\":12345", (size_t)drawn(&seed, 14)) == 0 && io_close(fd) == 0);
            now = saved;
            l = leases_open(path, now.round, 0);
            memset(has, 0, sizeof has);
        }
    }
    for (int i = 0; i < ISLANDS; i++)
        if (has[i]) leases_return(&l, of[i].number);
    int64_t end = l.next_sample;
    while (l.frees > 0) { /* gives out all returned samples; they come before any samples that were never leased */
        Lease rest = leases_give(&l, LEASE, A, now.round);
        assert_true(rest.range.first + rest.range.samples <= end);
        count_in(&rest, rest.range.samples), leases_done(&l, rest.number, rest.range.samples, now.round);
    }
    assert_int_equal(l.next_sample, end);
    for (int64_t s = 0; s < end; s++)
        if (now.count[s] != 1) fail_msg("sample %lld of %lld counts %d times", (long long)s, (long long)end, now.count[s]);
    leases_close(&l);
    unlink(path);
}

static void each_sample_counts_once(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= HISTORIES; seed++) one_history(seed);
}

static int make_dir(void **state) {
    (void)state;
    strcpy(dir, access("/dev/shm", W_OK) == 0 ? "/dev/shm/test_leases.XXXXXX" : "/tmp/test_leases.XXXXXX");
    if (!mkdtemp(dir)) return -1;
    snprintf(path, sizeof path, "%s/leases.jsonl", dir);
    return 0;
}
static int remove_dir(void **state) {
    (void)state;
    return io_remove_tree(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(lines_are_exact, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_restart_takes_back, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_torn_line_is_cut, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_lost_file_goes_on_at_the_checkpoint, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(other_lines_are_refused, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(each_sample_counts_once, make_dir, remove_dir),
    };
    return cmocka_run_group_tests_name("leases", tests, NULL, NULL);
}
