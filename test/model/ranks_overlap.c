/* ranks_overlap.c - communication overlaps the backward pass: the sum of a bucket's gradients starts while earlier
 * layers are still being computed. */
#include "comm/comm.h"
#include "core/thread.h"
#include "core/rng.h"
#include "model/model.h"
#include "test/comm/ranks.h"

enum { LAYERS = 4, BUCKETS = LAYERS + 2 };

/* ended_ms: time at which the backward pass of each block ended. noted_kind: the model's kind of block, but with a
 * backward pass that also stores this time. */
static double     ended_ms[LAYERS];
static BlockKind  noted_kind;
static int        left = LAYERS;
static void       noted_backward(BlockRun *r, void *acts, const void *weights, const void *grads) {
    BLOCK_GPT2.backward(r, acts, weights, grads);
    ended_ms[--left] = clock_ms();
}

static void first_sends_precede_the_end_of_backward(void **state) {
    (void)state;
    Model *m = model_create((ModelSpec){.shards = {.shape = GPT2_SHAPE(LAYERS, 2, 32, 16, 61),
                                                   .comm = world,
                                                   .ranks = comm_size(world),
                                                   .rank = comm_rank(world),
                                                   .zero_stage = 1,
                                                   .act = F32,
                                                   .use = GPT_TRAINING},
                                        .optimizer = &OPTIMIZER_ADAMW,
                                        .B = 2,
                                        .T = 16});
    Arena  arena = arena_create("tokens", 4096);
    Batch  batch = {arena_tensor(&arena, I32, 2, 2, 16, 1), arena_tensor(&arena, I32, 2, 2, 16, 1), tensor_none()};
    masters_init(&m->optimizer, &m->stream, 1, NULL, NULL);
    noted_kind = *m->gpt.kind;
    noted_kind.backward = noted_backward;
    for (int l = 0; l < LAYERS; l++) m->gpt.kinds[l] = &noted_kind;
    shards_begin(m->shards, &m->stream);
    gpt_forward(&m->gpt, &m->stream, batch);
    gpt_backward(&m->gpt, &m->stream, batch, 1.0f, MICRO_LAST);
    shards_finish(m->shards, &m->stream);

    /* gets a trace (times of messages) of each bucket's sum, in the order of backward: the last norm, the blocks from
     * last to first, the embeddings */
    CommTrace trace[BUCKETS];
    int       traced = world_trace(comm_world(world), trace, BUCKETS);
    EXPECT_ON_ALL(left == 0);
    EXPECT_ON_ALL(traced == (comm_size(world) > 1 ? BUCKETS : 0));
    for (int i = 0; i < traced; i++) {
        int bucket = BUCKETS - 1 - i;
        EXPECT_ON_ALL(trace[i].first_send_ms > 0 && trace[i].end_ms > 0);
        if (bucket >= 2) EXPECT_ON_ALL(trace[i].first_send_ms < ended_ms[0]);
    }
    arena_destroy(&arena);
    model_destroy(m);
}

int main(void) {
    const struct CMUnitTest cases[] = {cmocka_unit_test(first_sends_precede_the_end_of_backward)};
    return RUN_ON_RANKS(cases);
}
