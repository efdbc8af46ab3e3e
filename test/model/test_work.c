/* test_work.c - the lists of work of pipeline stages, as pure functions. They contain every part of every micro-batch
 * once in each direction. They cause no deadlock with one message in flight in each channel. They need the promised
 * number of tapes (saved activations), and idle as long as the formula says. */
#include "core/error.h" /* before cmocka.h, which defines fail() as a macro */
#include "model/pipeline.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STAGES_MOST = 8, PARTS_MOST = 4, MICRO_MOST = 32 };

/* A message between pipeline stages: the work item that sent it, and the time when it was sent. */
typedef struct { int is_there; Work of; double at; } Message;

/* State of a simulated pipeline stage. For each kind of work (forward, backward): whether a receive is posted, the
 * message that has arrived, and the message that waits to be sent. */
typedef struct {
    int64_t at;      /* index of the next work item in the stage's list */
    double  free_at;
    int     posted[2];
    Message in[2], out[2];
} Stage;

static int virtual_of(Work w, int P, int p) { return w.part * P + p; }
static int takes(Work w, int P, int V, int p) {
    return w.kind == WORK_BACKWARD ? virtual_of(w, P, p) < P * V - 1 : virtual_of(w, P, p) > 0;
}
static int gives(Work w, int P, int V, int p) {
    return w.kind == WORK_BACKWARD ? virtual_of(w, P, p) > 0 : virtual_of(w, P, p) < P * V - 1;
}
static int receiver_of(int kind, int P, int p) { return kind == WORK_BACKWARD ? (p + P - 1) % P : (p + 1) % P; }

static void post(Stage *s, const WorkList *w, int P, int V, int p) {
    if (s->at < w->count && takes(w->work[s->at], P, V, p)) s->posted[w->work[s->at].kind] = 1;
}

static int deliver(Stage *stage, int P) {
    int moved = 0;
    for (int p = 0; p < P; p++)
        for (int kind = 0; kind < 2; kind++) {
            Stage *to = &stage[receiver_of(kind, P, p)];
            if (!stage[p].out[kind].is_there || !to->posted[kind]) continue;
            to->in[kind] = stage[p].out[kind], to->posted[kind] = 0, stage[p].out[kind].is_there = 0;
            moved++;
        }
    return moved;
}

/* Runs the work lists of P stages with V parts each and M micro-batches, by the rules of the program. A receive for a
 * work item is posted when the item before begins. A message is sent once its receive is posted. Until then its sender
 * computes no other work of that kind. A forward takes time 1, a backward 2. Returns the time at the end. */
static double run(const WorkList *lists, int P, int V, int64_t M) {
    Stage   stage[STAGES_MOST] = {0};
    int64_t done = 0, all = 2 * P * V * M;
    double  end = 0;
    for (int p = 0; p < P; p++) post(&stage[p], &lists[p], P, V, p);
    while (done < all) {
        int moved = deliver(stage, P);
        for (int p = 0; p < P; p++) {
            Stage *s = &stage[p];
            if (s->at == lists[p].count) continue;
            Work     one = lists[p].work[s->at];
            Message *in = &s->in[one.kind], *out = &s->out[one.kind];
            int      from_message = takes(one, P, V, p);
            if ((from_message && !in->is_there) || (gives(one, P, V, p) && out->is_there)) continue;
            double begin = s->free_at;
            /* messages arrive in the order in which they were sent, so this one must be the input of the work item
             * that runs now */
            if (from_message) {
                int before = receiver_of(!one.kind, P, p);
                assert_true(in->of.micro == one.micro &&
                            virtual_of(in->of, P, before) == virtual_of(one, P, p) + (one.kind == WORK_BACKWARD ? 1 : -1));
                if (in->at > begin) begin = in->at;
                in->is_there = 0;
            }
            s->free_at = begin + (one.kind == WORK_BACKWARD ? 2 : 1);
            if (gives(one, P, V, p)) *out = (Message){1, one, s->free_at};
            if (s->free_at > end) end = s->free_at;
            s->at++, done++, moved++;
            post(s, &lists[p], P, V, p);
        }
        assert_true(moved > 0); /* if no stage and no message has moved, all stages wait for each other */
    }
    return end;
}

static void expect_list(const WorkList *w, int V, int64_t M) {
    char   *seen = calloc((size_t)(2 * V * M), 1);
    int64_t tape_of[PARTS_MOST][MICRO_MOST];
    char    taken[PARTS_MOST][PARTS_MOST * MICRO_MOST] = {{0}};
    assert_int_equal(w->count, 2 * V * M);
    for (int64_t i = 0; i < w->count; i++) {
        Work one = w->work[i];
        assert_true(one.part >= 0 && one.part < V && one.micro >= 0 && one.micro < M && one.tape >= 0 &&
                    one.tape < w->tapes[one.part]);
        assert_int_equal(seen[(one.kind * V + one.part) * M + one.micro]++, 0);
        if (one.kind == WORK_FORWARD) {
            assert_false(taken[one.part][one.tape]);
            taken[one.part][one.tape] = 1, tape_of[one.part][one.micro] = one.tape;
        } else {
            assert_true(seen[one.part * M + one.micro]);
            assert_int_equal(one.tape, tape_of[one.part][one.micro]);
            taken[one.part][one.tape] = 0;
        }
    }
    for (int64_t i = 0; i < w->count; i++) assert_int_equal(seen[i], 1);
    /* Checks that few micro-batches are in memory at once. The tokens of micro-batch m are in slot m mod w->micros
     * from its first forward to its last backward. */
    int64_t begun = 0, ended = 0;
    for (int64_t i = 0; i < w->count; i++) {
        Work one = w->work[i];
        if (one.kind == WORK_FORWARD && one.part == 0) assert_int_equal(one.micro, begun++);
        assert_true(begun - ended <= w->micros);
        if (one.kind == WORK_BACKWARD && one.part == 0) assert_int_equal(one.micro, ended++);
    }
    free(seen);
}

static void lists_run(void **state) {
    (void)state;
    for (int P = 1; P <= STAGES_MOST; P++)
        for (int V = 1; V <= PARTS_MOST; V++)
            for (int64_t M = 1; M <= MICRO_MOST; M++) {
                WorkList lists[STAGES_MOST];
                if (V > 1 && (P == 1 || M % P)) continue;
                for (int p = 0; p < P; p++) {
                    lists[p] = work_list(P, V, M, p);
                    expect_list(&lists[p], V, M);
                }
                double end = run(lists, P, V, M), busy = 3.0 * V * (double)M;
                if (M >= P) assert_true(fabs(work_idle(P, V, M) - (end - busy) / end) < 1e-12);
                /* the idle time is (P - 1)/(M V) of the busy time, for P stages, M micro-batches and V parts of each
                 * stage */
                if (M >= P) assert_true(end == busy + 3.0 * (P - 1));
                for (int p = 0; p < P; p++) {
                    if (V == 1) assert_int_equal(lists[p].tapes[0], P - p < M ? P - p : M);
                    work_list_free(&lists[p]);
                }
            }
    WorkList deep = work_list(8, 4, 32, 0);
    int      tapes = 0;
    for (int v = 0; v < 4; v++) tapes += deep.tapes[v];
    assert_true(tapes >= 38 && tapes <= 48);
    work_list_free(&deep);
}

static void blocks_are_shared_out(void **state) {
    (void)state;
    for (int64_t L = 1; L <= 130; L++)
        for (int S = 1; S <= L && S <= 64; S++)
            for (double head = 0; head < 8; head += 2.7) {
                int64_t next = 0, most = 0;
                for (int part = 0; part < S; part++) {
                    BlockRange r = work_blocks(L, S, head, part);
                    assert_true(r.first == next && r.end > r.first);
                    next = r.end;
                    if (part < S - 1 && r.end - r.first > most) most = r.end - r.first;
                    if (part < S - 1) assert_true(r.end - r.first >= most - 1);
                }
                assert_int_equal(next, L);
            }
    /* GPT-2 124M: the output head costs as much as 5.5 blocks, so the last of 4 stages gets only block 11 */
    assert_int_equal(work_blocks(12, 4, 50257.0 / (12 * 768), 3).first, 11);
    assert_int_equal(work_blocks(96, 12, 51200.0 / (12 * 12288), 11).first, 88);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(lists_run), cmocka_unit_test(blocks_are_shared_out)};
    return cmocka_run_group_tests_name("work", tests, NULL, NULL);
}
