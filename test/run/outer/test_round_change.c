/* test_round_change.c - changes of the server's weights that are sent rounded to fewer bytes. Islands (training jobs)
 * add them to their weights, which must equal the server's bit for bit. What rounding takes from a change is added to
 * the next. */
#include "core/error.h" /* before cmocka.h, which defines fail() as a macro */
#include "model/params.h"
#include "run/outer/rule.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { FIRST = 3 * OUTER_BLOCK, ELEMS = MESSAGE_ELEMS + 70001, ROUNDS = 30, RUNS = 3 };

/* The part of the model that a server holds, in several ranges that end in the middle of frames. */
typedef struct {
    Config    config;
    /* owned. memory [WEIGHTS_TENSORS, ELEMS]: the server's weights first, then its other tensors. [ELEMS]: island, the
     * weights of an island (training job); want, the expected weights; change, the values of a message. */
    float    *memory, *island, *want, *change;
    WeightsRun run[RUNS];
    ServerWeights    served;
} Part;

static void part_begin(Part *p, OuterCompress compress) {
    static const int64_t ends[RUNS + 1] = {0, 1001, MESSAGE_ELEMS + 5, ELEMS};
    *p = (Part){.config.outer = {.compress = compress, .wait = WAIT_ALL}};
    p->memory = calloc(WEIGHTS_TENSORS * ELEMS, sizeof *p->memory);
    p->island = calloc(ELEMS, sizeof *p->island), p->want = calloc(ELEMS, sizeof *p->want);
    p->change = calloc(ELEMS, sizeof *p->change);
    assert_true(p->memory && p->island && p->want && p->change);
    for (int64_t i = 0; i < ELEMS; i++) p->island[i] = p->want[i] = p->memory[i] = sinf((float)i);
    for (int r = 0; r < RUNS; r++) {
        p->run[r] = (WeightsRun){.offset = FIRST + ends[r], .elems = ends[r + 1] - ends[r]};
        for (int t = 0; t < WEIGHTS_TENSORS; t++) p->run[r].at[t] = p->memory + t * ELEMS + ends[r];
    }
    p->served = (ServerWeights){FIRST, ELEMS, p->run, RUNS};
}

static void part_end(Part *p) { free(p->memory), free(p->island), free(p->want), free(p->change); }

/* Returns how much weight i changes in this round. The values are irregular, and much larger at some places. */
static float step_of(int round, int64_t i) { return 1e-3f * cosf((float)(i * 7 + round * 13)) * (i % 4099 == 0 ? 50.0f : 1.0f); }

static void take_change(Part *p, const RoundChange *c) {
    for (int64_t at = 0; at < ELEMS; at += MESSAGE_ELEMS) {
        int64_t     elems = ELEMS - at < MESSAGE_ELEMS ? ELEMS - at : MESSAGE_ELEMS;
        const void *frame = round_change_frame(c, FIRST + at, elems);
        assert_non_null(frame);
        frame_unpack(c->type, p->change, frame, elems);
        round_change_add(p->island + at, p->change, elems);
    }
}

/* Checks that the server's weights stay near the exact sum of their changes, and that an island (training job) gets
 * equal weights from the changes sent to it. far: largest distance allowed after any number of rounds. */
static void follow(OuterCompress compress, double far) {
    Part p;
    part_begin(&p, compress);
    RoundChange c = round_change_create(&p.config, &p.served);
    assert_int_equal(c.round, -1);
    for (int round = 0; round < ROUNDS; round++) {
        round_change_begin(&c, &p.served);
        for (int64_t i = 0; i < ELEMS; i++) p.memory[i] -= step_of(round, i), p.want[i] -= step_of(round, i);
        round_change_end(&c, &p.served, round + 1);
        assert_int_equal(c.round, round + 1);
        take_change(&p, &c);
        assert_memory_equal(p.island, p.memory, ELEMS * sizeof *p.island);
        for (int64_t i = 0; i < ELEMS; i++) {
            assert_true(fabs((double)p.memory[i] - p.want[i]) <= far);
            /* 2.4e-7 allows for the rounding of fp32 numbers below 2 */
            assert_true(fabs((double)p.memory[i] + c.rest[i] - p.want[i]) <= (round + 1) * 2.4e-7);
        }
    }
    round_change_destroy(&c);
    part_end(&p);
}

/* A change that is sent consists of a step of the weights, below 0.051, and of what rounding took from the previous
 * change. Rounding to bf16 takes at most 2^-8 of a change. Rounding to int8 takes at most half of 1/127 of the largest
 * value in its block. */
static void bf16_changes_follow(void **state) { (void)state, follow(COMPRESS_BF16, 0.0515 / 256 + 1e-5); }
static void int8_changes_follow(void **state) { (void)state, follow(COMPRESS_INT8, 0.0515 / 254 + 1e-5); }

static void frames_are_asked_for_whole(void **state) {
    (void)state;
    Part p;
    part_begin(&p, COMPRESS_INT8);
    RoundChange c = round_change_create(&p.config, &p.served);
    int64_t     last = ELEMS - MESSAGE_ELEMS;
    assert_ptr_equal(round_change_frame(&c, FIRST, MESSAGE_ELEMS), c.packed);
    assert_ptr_equal(round_change_frame(&c, FIRST + MESSAGE_ELEMS, last), c.packed + frame_value_bytes(FRAME_INT8, MESSAGE_ELEMS));
    assert_ptr_equal(round_change_frame(&c, FIRST + 3 * INT8_BLOCK, 2 * INT8_BLOCK), c.packed + 3 * (INT8_BLOCK + 4));
    assert_null(round_change_frame(&c, FIRST, MESSAGE_ELEMS - 1));
    assert_null(round_change_frame(&c, FIRST, 0));
    assert_null(round_change_frame(&c, FIRST + 1, MESSAGE_ELEMS));
    /* returns NULL, because the range does not begin and end at a block of int8 values */
    assert_null(round_change_frame(&c, FIRST + 1, INT8_BLOCK - 1));
    assert_null(round_change_frame(&c, FIRST - MESSAGE_ELEMS, MESSAGE_ELEMS));
    assert_null(round_change_frame(&c, FIRST + MESSAGE_ELEMS, last + 1));
    assert_null(round_change_frame(&c, FIRST + 2 * MESSAGE_ELEMS, 1));
    assert_int_equal(round_change_bytes(&p.config, ELEMS), 4 * ELEMS + ELEMS + 4 * (MESSAGE_ELEMS / INT8_BLOCK + 70001 / INT8_BLOCK + 1));
    round_change_destroy(&c);
    p.config.outer.wait = WAIT_NONE;
    assert_int_equal(round_change_create(&p.config, &p.served).type, FRAME_F32);
    assert_int_equal(round_change_bytes(&p.config, ELEMS), 0);
    part_end(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_changes_follow),
        cmocka_unit_test(int8_changes_follow),
        cmocka_unit_test(frames_are_asked_for_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
