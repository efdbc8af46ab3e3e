/* test_round_copy.c - the weights that a rank receives from a server at the start of a round. They are stored at the
 * right places on ranks of any grid. A delta is a change of the weights that the rank sends. What rounding takes from
 * it is added to the next delta. */
#include "core/error.h" /* before cmocka.h, which defines fail() as a macro */
#include "model/params.h"
#include "run/outer/island_link.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Sizes that have few common factors. The number of heads, 12, must divide the width, 84. */
static const ModelShape SHAPE = GPT2_SHAPE(3, 12, 84, 41, 389);

/* Lists the spans (parts of parameters) of one rank in the same order as shards_create. */
static void list_spans(Shards *z) {
    z->span = calloc((size_t)(z->layout.params * (z->layout.ranks + 1)), sizeof *z->span);
    for (int b = 0; b < z->layout.buckets; b++)
        for (int r = 0; r < z->layout.ranks; r++)
            if (!z->stage || r == z->spec.rank) z->spans += layout_spans(&z->layout, b, r, z->span + z->spans);
}

/* Passes all weights of a model to round_copy_take, in chunks of varying length. Weight number e has the value e, which
 * fp32 holds exactly, because there are fewer than 2^24 weights. */
static void take_in_pieces(RoundCopy *c, int64_t elems) {
    float *values = malloc(sizeof *values * (size_t)elems);
    for (int64_t e = 0; e < elems; e++) values[e] = (float)e;
    for (int64_t at = 0, n = 1; at < elems; at += n, n = (n * 7 + 5) % 4099 + 1) {
        if (n > elems - at) n = elems - at;
        round_copy_take(c, ROUND_X, at, values + at, n);
    }
    free(values);
}

static void check_rank(int ranks, int rank, int tensor, int tensor_rank, int stage) {
    Shards    z = {.layout = model_layout(SHAPE, (LayoutPlace){ranks, tensor, tensor_rank, NULL, 1, 0}), .stage = stage};
    Optimizer o = {.shards = &z};
    RoundCopy c = {.optimizer = &o};
    z.spec = (ShardsSpec){.ranks = ranks, .rank = rank};
    list_spans(&z);
    assert_true(round_copy_bytes(&z.layout, stage, FRAME_F32) >= sizeof(float) * (size_t)shards_state_elems(&z));
    c.x = calloc((size_t)shards_state_elems(&z), sizeof *c.x);
    c.taken = calloc((size_t)z.spans, sizeof *c.taken);
    take_in_pieces(&c, z.layout.elems);
    for (int i = 0; i < z.spans; i++) {
        Span  span = z.span[i];
        Tensor x = shards_state_view(&z, tensor_1d(c.x, F32, shards_state_elems(&z)), span);
        assert_true(c.taken[i] == span.elems);
        for (int64_t at = 0; at < span.elems; at++)
            assert_true(((float *)x.data)[at] == (float)layout_extent(&z.layout, &span, at).offset);
    }
    free(c.x);
    free(c.taken);
    free(z.span);
    layout_destroy(&z.layout);
}

static void every_element_has_its_place(void **state) {
    (void)state;
    for (int tensor = 1; tensor <= 4; tensor++)
        for (int ranks = 1; ranks <= 3; ranks++)
            for (int stage = 0; stage <= 1; stage++) check_rank(ranks, ranks - 1, tensor, tensor / 2, stage);
}

/* A rank sends rounded deltas (changes of the weights) over many rounds. Their sum equals the sum of the exact deltas.
 * Only what rounding took from the last delta is missing. */
static void rounding_is_made_up_for(void **state) {
    (void)state;
    enum { ELEMS = 5000, ROUNDS = 50 };
    static const struct { FrameType type; double part; } types[] = {
        {FRAME_F32, 0.0}, {FRAME_BF16, 1.0 / 256}, {FRAME_INT8, 1.0 / 127}};
    for (int t = 0; t < 3; t++) {
        FrameType type = types[t].type;
        float    *memory = calloc(4 * ELEMS, sizeof *memory), *arrived = memory + 2 * ELEMS;
        double   *sent = calloc(2 * ELEMS, sizeof *sent), *came = sent + ELEMS, lost = 0.0;
        void     *payload = malloc((size_t)frame_value_bytes(type, ELEMS));
        RoundCopy c = {.type = type, .delta = memory, .runs = {.elems = ELEMS}};
        c.rest = type == FRAME_F32 ? NULL : memory + ELEMS;
        for (int round = 0; round < ROUNDS; round++) {
            for (int i = 0; i < ELEMS; i++) sent[i] += c.delta[i] = sinf((float)(i + 1)) * 1e-3f;
            round_copy_pack(&c, 0, ELEMS, payload);
            frame_unpack(type, arrived, payload, ELEMS);
            for (int i = 0; i < ELEMS; i++) came[i] += arrived[i];
        }
        for (int i = 0; i < ELEMS; i++) lost = fmax(lost, fabs(sent[i] - came[i]));
        /* `lost`, the largest difference between the sums of exact and rounded deltas (changes of the weights), is at
         * most what rounding takes from one delta */
        assert_true(lost <= 1e-3 * types[t].part);
        assert_true(type == FRAME_F32 || lost > 0.0);
        round_copy_forget(&c);
        for (int i = 0; c.rest && i < ELEMS; i++) assert_true(c.rest[i] == 0.0f);
        free(payload);
        free(sent);
        free(memory);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_element_has_its_place),
                                       cmocka_unit_test(rounding_is_made_up_for)};
    return cmocka_run_group_tests_name("round_copy", tests, NULL, NULL);
}
