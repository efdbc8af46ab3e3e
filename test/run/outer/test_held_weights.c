/* test_held_weights.c - the server's record of the weights that an island (a training job) has. It must be equal, bit
 * for bit, to the weights that the island computes from the changes it receives. What rounding takes from a change must
 * reach the island with a later change. */
#include "core/error.h" /* before cmocka.h, which defines fail() as a macro */
#include "run/outer/rule.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { FIRST = 3072, ELEMS = 3 * INT8_BLOCK + 1001, CUT = 2 * INT8_BLOCK, MOVES = 30, RESTS = 6 };

static float x[ELEMS], island[ELEMS], change[ELEMS];
static char  payload[4 * ELEMS];

/* Returns value i of a step of the weights. The values are irregular, and much larger at some places. */
static float step_of(int move, int64_t i) {
    return 1e-3f * cosf((float)(i * 7 + move * 13)) * (i % 4099 == 0 ? 50.0f : 1.0f);
}

static HeldWeights begin(FrameType type) {
    HeldWeights h;
    for (int64_t i = 0; i < ELEMS; i++) x[i] = sinf((float)i);
    assert_true(held_begin(&h, type, FIRST, ELEMS));
    assert_false(held_is_whole(&h));
    held_fetch(&h, FIRST + CUT, x + CUT, ELEMS - CUT); /* the parts of the weights may arrive in any order */
    assert_false(held_is_whole(&h));
    /* a part of the weights may arrive more than once */
    for (int again = 0; again < 2; again++) held_fetch(&h, FIRST + CUT, x + CUT, ELEMS - CUT);
    assert_false(held_is_whole(&h));
    held_fetch(&h, FIRST, x, CUT);
    assert_true(held_is_whole(&h));
    memcpy(island, x, sizeof island);
    return h;
}

static void follow(HeldWeights *h, int64_t at, int64_t elems) {
    memcpy(change, x + at, sizeof *x * (size_t)elems);
    held_change(h, FIRST + at, change, elems, payload);
    frame_unpack(h->type, change, payload, elems);
    round_change_add(island + at, change, elems);
}

static double far_from_x(void) {
    double far = 0.0;
    for (int64_t i = 0; i < ELEMS; i++) far = fmax(far, fabs((double)x[i] - island[i]));
    return far;
}

/* Checks that the weights of a simulated island (training job) follow the server's weights x. far: largest distance
 * allowed after any change. part: factor by which one more message reduces the distance when x does not change. */
static void island_follows(FrameType type, double far, double part) {
    HeldWeights h = begin(type);
    for (int move = 0; move < MOVES; move++) {
        for (int64_t i = 0; i < ELEMS; i++) x[i] -= step_of(move, i);
        follow(&h, CUT, ELEMS - CUT);
        follow(&h, 0, CUT);
        assert_memory_equal(island, h.x, sizeof island);
        assert_true(far_from_x() <= far);
    }
    /* The server's weights x do not change in these rounds. Each message only brings the weights of the island
     * (training job) closer to x. */
    for (int rest = 0; rest < RESTS; rest++) {
        double before = far_from_x();
        follow(&h, 0, ELEMS);
        /* 1.2e-7 allows for the rounding of fp32 numbers below 2 */
        assert_true(far_from_x() <= before * part + 1.2e-7);
    }
    assert_true(far_from_x() <= 1.2e-7);
    held_forget(&h);
    assert_null(h.x);
    assert_false(held_is_whole(&h));
}

/* A change that is sent consists of a step of the weights, below 0.051, and of what rounding took from the previous
 * change. Rounding to bf16 takes at most 2^-8 of a change. Rounding to int8 takes at most half of 1/127 of the largest
 * value in its block. */
static void bf16_follows(void **state) { (void)state, island_follows(FRAME_BF16, 0.0515 / 256, 1.0 / 256); }
static void int8_follows(void **state) { (void)state, island_follows(FRAME_INT8, 0.0515 / 254, 1.0 / 254); }

static void kept_where_asked(void **state) {
    (void)state;
    Config c = {.outer = {.compress = COMPRESS_INT8, .wait = WAIT_NONE}};
    assert_int_equal(held_type(&c), FRAME_INT8);
    assert_int_equal(held_bytes(&c, ELEMS), 4 * ELEMS);
    c.outer.wait = WAIT_ALL;
    assert_int_equal(held_type(&c), FRAME_F32);
    assert_int_equal(held_bytes(&c, ELEMS), 0);
    c.outer.wait = WAIT_NONE, c.outer.compress = COMPRESS_NONE;
    assert_int_equal(held_type(&c), FRAME_F32);
    assert_int_equal(held_bytes(&c, ELEMS), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_follows),
        cmocka_unit_test(int8_follows),
        cmocka_unit_test(kept_where_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
