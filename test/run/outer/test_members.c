/* test_members.c - the server's list of members, the islands (training jobs): they join, end, leave, fall silent, or
 * send what they must not send. */
#include "core/error.h"
#include "run/outer/leases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { P = 50, STEP = 4, T = 8, H = 5 };
static Members     ms;
static char        fault[MESSAGE_FAULT_BYTES];
static int64_t     was;
static const char *IDS[] = {"00000000000000aa", "00000000000000bb", "00000000000000cc"};

static void begin(OuterWait wait, int64_t least) {
    members_destroy(&ms);
    ms = (Members){.wait = wait, .least = least, .step_samples = STEP, .seq_len = T, .parts = 1};
}
static Member *join(int i, int rank, int ranks) {
    Hello hello = {.rank = rank, .ranks = ranks};
    strcpy(hello.island, IDS[i]);
    return members_join(&ms, &hello, 100.0, &was, fault);
}
static void give(Member *m, int64_t number) {
    Lease lease = {.number = number, .range = {number * H * STEP, H * STEP}, .round = ms.round};
    members_give(&ms, m, lease);
}
static End end_of(int64_t steps) {
    return (End){.round = ms.round, .samples = steps * STEP, .tokens = steps * STEP * T, .norm = 1.0, .loss = 2.0};
}
static int end(Member *m, int rank, double norm) {
    End e = end_of(H);
    e.lease = m->lease.number;
    m->norm = norm, m->elems = P;
    return members_end(&ms, m, rank, &e, P, fault);
}

static void rounds_open_and_close(void **state) {
    (void)state;
    begin(WAIT_ALL, 2);
    Member *a = join(0, 0, 1);
    /* no round begins with fewer islands (training jobs) than outer.least_islands, which is 2 */
    assert_false(members_may_open(&ms));
    Member *b = join(1, 1, 2);
    assert_true(b->state == MEMBER_GATHERS && !members_may_open(&ms));
    assert_ptr_equal(join(1, 0, 2), b);
    assert_true(b->state == MEMBER_WAITS && members_may_open(&ms) && members_here(&ms) == 2);
    give(a, 0), give(b, 1);
    assert_false(members_may_open(&ms) || members_may_close(&ms));
    assert_int_equal(end(a, 0, 1.0), 1);
    /* an island (training job) that joins during a round takes part from the next round on */
    Member *c = join(2, 0, 1);
    assert_int_equal(end(b, 1, 1.0), 0);
    assert_false(members_may_close(&ms));
    assert_int_equal(end(b, 0, 1.0), 1);
    assert_true(members_may_close(&ms) && !members_may_open(&ms));
    members_counted(&ms, a), members_counted(&ms, b);
    members_next_round(&ms);
    assert_true(members_may_open(&ms) && c->state == MEMBER_WAITS && members_count(&ms, MEMBER_WAITS) == 3);
    assert_true(a->number == 0 && b->number == 1 && c->number == 2);
}

static void who_leaves_holds_nobody_up(void **state) {
    (void)state;
    begin(WAIT_ALL, 1);
    Member *a = join(0, 0, 1), *b = join(1, 0, 1);
    give(a, 7), give(b, 8);
    /* returns the number of the lease that the lost island (training job) had; its samples can be leased again */
    assert_int_equal(members_lose(a), 7);
    assert_int_equal(end(b, 0, 1.0), 1);
    assert_true(members_may_close(&ms));
    /* returns -1: the island (training job) had sent its delta, which counts, so it no longer had a lease of samples */
    assert_int_equal(members_lose(b), -1);
    assert_true(members_may_close(&ms));
    members_counted(&ms, b);
    assert_true(b->state == MEMBER_GONE && members_here(&ms) == 0 && !members_may_open(&ms));
    /* the lost island (training job) joins again and is the same member as before */
    assert_ptr_equal(join(0, 0, 1), a);
    give(a, 9);
    /* an island (training job) joins again while the server believes that it is still training: it loses lease 9 */
    assert_ptr_equal(join(0, 0, 1), a);
    assert_true(was == 9 && a->state == MEMBER_WAITS && members_may_open(&ms));
    give(a, 10);
    assert_int_equal(end(a, 0, 1.0), 1);
    /* an island (training job) joins again before its delta (change of the weights) is counted, so it becomes a second
     * member */
    Member *again = join(0, 0, 1);
    assert_true(again != a && was == -1 && a->state == MEMBER_ENDED && again->state == MEMBER_WAITS);
    members_counted(&ms, a);
    assert_true(a->state == MEMBER_GONE);
}

static void the_silent_are_found(void **state) {
    (void)state;
    begin(WAIT_ALL, 1);
    Member *a = join(0, 0, 1), *b = join(1, 0, 1);
    a->heard_ms = 5000.0;
    assert_null(members_silent(&ms, 5099.0, 5000.0));
    assert_ptr_equal(members_silent(&ms, 5101.0, 5000.0), b);
    members_lose(b);
    assert_null(members_silent(&ms, 5101.0, 5000.0));
}

static void bad_ends_are_refused(void **state) {
    (void)state;
    begin(WAIT_ALL, 1);
    Member *a = join(0, 0, 1);
    assert_int_equal(end(a, 0, 1.0), -1);
    assert_non_null(strstr(fault, "no lease"));
    give(a, 0);
    End e = end_of(H);
    struct { int64_t round, samples, tokens, elems; const char *says; } bad[] = {
        {1, H * STEP, H * STEP * T, P, "END of round 1, and its lease is of round 0"},
        {0, H * STEP + STEP, (H * STEP + STEP) * T, P, "of its lease of 20"},
        {0, 3, 3 * T, P, "no steps of 4 samples"},
        {0, 2 * STEP, 1000000, P, "1000000 tokens"},
        {0, H * STEP, H * STEP * T, P - 1, "49 of the 50 elements"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        e.round = bad[i].round, e.samples = bad[i].samples, e.tokens = bad[i].tokens, a->elems = bad[i].elems;
        assert_int_equal(members_end(&ms, a, 0, &e, P, fault), -1);
        if (!strstr(fault, bad[i].says)) fail_msg("%s, not: %s", fault, bad[i].says);
        if (bad[i].elems != P) members_lose(a);
    }
    a = join(0, 0, 1);
    give(a, 1);
    e = end_of(H), e.lease = 0;
    assert_int_equal(members_end(&ms, a, 0, &e, P, fault), -1);
    assert_string_equal(fault, "sent the END of lease 0, and it has lease 1");
    /* sends an END with 0 steps: the island (training job) stopped before the first step of its lease (range of
     * samples) */
    e = end_of(0), e.lease = 1, a->elems = 0;
    assert_int_equal(members_end(&ms, a, 0, &e, P, fault), 1);
    assert_int_equal(a->state, MEMBER_WAITS);
}

/* With several servers each gets its part of a delta (change of the weights). The delta is complete when all have their
 * part, in any order. */
static void parts_of_a_delta_come_together(void **state) {
    (void)state;
    Exact squares = {{0}};
    exact_add(&squares, 9.0);
    for (int own = 0; own < 3; own++) {
        begin(WAIT_ALL, 1);
        ms.parts = 3;
        Member *m = join(0, 0, 1);
        give(m, 7);
        /* returns 0, because lease 6 (a range of samples) belongs to no island (training job) */
        assert_int_equal(members_part_in(&ms, 6, &squares), 0);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(m->state, MEMBER_TRAINS);
            assert_false(members_may_close(&ms));
            if (i == own) assert_int_equal(end(m, 0, 1.0), 1);
            else assert_int_equal(members_part_in(&ms, 7, &squares), 1);
        }
        assert_int_equal(m->state, MEMBER_ENDED);
        assert_true(exact_value(&m->squares) == 18.0);
        assert_int_equal(members_part_in(&ms, 7, &squares), 0);
        assert_ptr_equal(members_of_lease(&ms, 7), m);
        members_counted(&ms, m);
        assert_null(members_of_lease(&ms, 7));
        give(m, 8);
        assert_true(m->parts_in == 0 && exact_value(&m->squares) == 0.0);
    }
}

static void bad_deltas_are_named(void **state) {
    (void)state;
    begin(WAIT_ALL, 1);
    Member *m[3];
    for (int i = 0; i < 3; i++) m[i] = join(i, 0, 1), give(m[i], i);
    end(m[0], 0, 1.0), end(m[1], 0, 3.0), end(m[2], 0, NAN);
    assert_true(members_judge(&ms, m[0], fault) && members_judge(&ms, m[1], fault));
    assert_false(members_judge(&ms, m[2], fault));
    assert_non_null(strstr(fault, "the delta of round 0 is not finite"));
    /* refused: the norm of a delta (change of the weights) may be at most 100 times the median of the others, which is
     * 2 */
    m[2]->norm = 201.0;
    assert_false(members_judge(&ms, m[2], fault));
    assert_non_null(strstr(fault, "the norm 201, over 100 times the other islands' 2"));
    m[2]->norm = 199.0;
    assert_true(members_judge(&ms, m[2], fault));
    for (int i = 0; i < 3; i++) members_counted(&ms, m[i]);
    members_next_round(&ms);
    give(m[0], 3);
    /* only this delta (change of the weights) has arrived in the round, so its norm is compared with those of the last
     * round */
    end(m[0], 0, 1e5);
    assert_false(members_judge(&ms, m[0], fault));
    members_next_round(&ms), members_next_round(&ms);
    /* accepted, because no delta (change of the weights) arrived in the last rounds with which to compare it */
    assert_true(members_judge(&ms, m[0], fault));
}

static void asynchronous_rounds_count_arrivals(void **state) {
    (void)state;
    begin(WAIT_NONE, 1);
    Member *a = join(0, 0, 1), *b = join(1, 0, 1);
    give(a, 0), give(b, 1);
    assert_false(members_may_close(&ms));
    /* island (training job) a ends four leases (ranges of samples), while the slower b ends none */
    for (int i = 0; i < 4; i++) {
        assert_int_equal(end(a, 0, 1.0), 1);
        assert_int_equal(members_staleness(&ms, a), 0);
        members_counted(&ms, a);
        assert_int_equal(members_round_is_full(&ms), i % 2);
        if (i % 2) members_next_round(&ms);
        assert_true(members_may_open(&ms));
        give(a, 2 + i);
    }
    assert_int_equal(ms.round, 2);
    assert_int_equal(members_staleness(&ms, b), 2);
}

static int forget(void **state) {
    (void)state;
    members_destroy(&ms);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds_open_and_close), cmocka_unit_test(who_leaves_holds_nobody_up),
        cmocka_unit_test(the_silent_are_found),  cmocka_unit_test(bad_ends_are_refused),
        cmocka_unit_test(parts_of_a_delta_come_together),
        cmocka_unit_test(bad_deltas_are_named),  cmocka_unit_test(asynchronous_rounds_count_arrivals),
    };
    return cmocka_run_group_tests_name("members", tests, NULL, forget);
}
