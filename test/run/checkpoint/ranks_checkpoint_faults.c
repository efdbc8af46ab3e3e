/* ranks_checkpoint_faults.c - every I/O call of a save fails or is cut short on one rank, on each rank in turn. All
 * ranks must go on together, and training could continue. The newest checkpoint must be the old one or the new one,
 * with all its bits.
 * Long: tries every call.
 */
#include "core/failpoints.h"
#include "core/io.h"

#include "test/run/checkpoint/checkpoint_fixture.h"

#include <fcntl.h>
#include <omp.h>

#include "test/run/lib/ranks_folder.h"

static int64_t newest;

static int on_rank(int rank, int value) {
    int64_t shared = value;
    comm_broadcast(world, &shared, sizeof shared, rank);
    return (int)shared;
}

/* Saves once under a rule that makes calls fail. stderr goes to /dev/null meanwhile. Returns 1 if the fault has
 * occurred on the rank `victim`. */
static int save_under(Fixture *f, const char *rule, int nth, int victim, int *saved) {
    fflush(stderr);
    int before = dup(STDERR_FILENO), silence = open("/dev/null", O_WRONLY);
    dup2(silence, STDERR_FILENO);
    close(silence);
    Saver *s = saver_create(&f->state);
    fixture_fill(f, newest + 1);
    failpoints_reset();
    setenv("TRAIN_GPT_FAIL", rule, 1);
    saver_start(s, newest + 1, NULL);
    *saved = saver_finish(s) > 0.0;
    int struck = failpoint_calls("io") >= nth;
    unsetenv("TRAIN_GPT_FAIL");
    saver_destroy(s);
    fflush(stderr);
    dup2(before, STDERR_FILENO);
    close(before);
    return on_rank(victim, struck);
}

static void sweep(const char *what, int must_save) {
    Fixture f;
    int     calls = 0, failed = 0, saved;
    fixture_create(&f, world, dir, F32, 1, "");
    fixture_fill(&f, newest = 1);
    checkpoint_save(&f.state, 1);
    for (int victim = 0; victim < comm_size(world); victim++) {
        for (int nth = 1;; nth++) {
            char rule[64];
            snprintf(rule, sizeof rule, "io@%d:%s,rank=%d", nth, what, victim);
            if (!save_under(&f, rule, nth, victim, &saved)) break;
            comm_barrier(world);
            int64_t step = checkpoint_resume(&f.state).step;
            int64_t wrong = fixture_differences(&f, step) + (step != newest && step != newest + 1) +
                            (saved && step == newest) + (must_save && !saved);
            comm_all_reduce_i64(world, &wrong, 1, COMM_SUM);
            CHECK(wrong == 0, "%s: %s, resumed at %lld after %lld", rule, saved ? "saved" : "not saved",
                  (long long)step, (long long)newest);
            newest = step;
            calls++;
            failed += !saved;
        }
    }
    if (comm_rank(world) == 0) print_message("%d ranks: %d calls %s, %d saves failed\n", comm_size(world), calls, what, failed);
    EXPECT_ON_ALL(must_save ? failed == 0 : failed > 3);
    fixture_destroy(&f);
}

static void test_every_call_fails(void **state) { (void)state, sweep("ENOSPC", 0); }
static void test_every_call_is_cut_short(void **state) { (void)state, sweep("short", 1); }

int main(void) {
    omp_set_num_threads(1);
    const struct CMUnitTest tests[] = {CASE(test_every_call_fails), CASE(test_every_call_is_cut_short)};
    return RUN_ON_RANKS(tests);
}
