/* ranks_overlap.c - reduction overlaps backward: a bucket's gradients leave while earlier layers are still being computed. */
#include "core/clock.h"
#include "core/rng.h"
#include "layers/gpt.h"
#include "test/comm/ranks.h"

enum { LAYERS = 4, BUCKETS = LAYERS + 2 };

typedef struct {
    const Layout *layout;
    Tensor        grads;
    double        ready_ms[BUCKETS]; /* when backward finished the bucket */
    int           order[BUCKETS], buckets;
} Watch;

static void reduce_and_note(void *ctx, int bucket) {
    Watch *w = (Watch *)ctx;
    w->ready_ms[bucket] = clock_ms();
    w->order[w->buckets++] = bucket;
    comm_reduce_scatter_start(world, tensor_slice(w->grads, w->layout->bucket[bucket].memory, w->layout->bucket[bucket].elems));
}
static void poll(void *ctx) { (void)ctx, comm_poll(world); }

static void random_weights(Tensor params, const Layout *layout) {
    for (int i = 0; i < layout->params; i++) {
        const Param *p = &layout->param[i];
        gpt_init_values((float *)params.data + p->memory, p, 0, p->elems, 1);
    }
}

static void first_sends_precede_the_end_of_backward(void **state) {
    (void)state;
    GptShape shape = {LAYERS, 2, 32, 16, 61};
    int      params;
    Param   *rows = gpt_params(shape, &params);
    Layout   layout = layout_create(rows, params, comm_size(world));
    free(rows);
    Arena     arena = arena_create("test", 64 << 20);
    GptArenas arenas = {&arena, &arena, &arena};
    Gpt       g = gpt_create(shape, &layout, F32, 2, 16, RECOMPUTE_NONE, GPT_TRAINING, arenas);
    Stream    s = stream_create(gpt_scratch_bytes(&g));
    Batch     batch = {arena_tensor(&arena, I32, 2, 2, 16, 1), arena_tensor(&arena, I32, 2, 2, 16, 1)};
    random_weights(g.params, &layout);

    Watch    w = {.layout = &layout, .grads = g.grads};
    GptHooks hooks = {reduce_and_note, poll, &w};
    gpt_zero_grads(&g, &s);
    gpt_forward(&g, &s, batch);
    gpt_backward(&g, &s, batch, 1.0f, hooks);
    comm_finish(world);

    EXPECT_ON_ALL(w.buckets == BUCKETS);
    for (int i = 0; i < BUCKETS; i++) EXPECT_ON_ALL(w.order[i] == BUCKETS - 1 - i); /* {ln_f}, the blocks last to first, {wte, wpe} */

    CommTrace trace[BUCKETS];
    int       traced = comm_trace(world, trace, BUCKETS);
    EXPECT_ON_ALL(traced == (comm_size(world) > 1 ? BUCKETS : 0));
    for (int i = 0; i < traced; i++) {
        int bucket = w.order[i];
        EXPECT_ON_ALL(trace[i].first_send_ms > 0 && trace[i].end_ms > 0);
        if (bucket >= 2) EXPECT_ON_ALL(trace[i].first_send_ms < w.ready_ms[1]); /* block 0's backward ends when bucket 1 is ready */
    }
    stream_destroy(&s);
    arena_destroy(&arena);
    gpt_destroy(&g);
    layout_destroy(&layout);
}

int main(void) {
    const struct CMUnitTest cases[] = {cmocka_unit_test(first_sends_precede_the_end_of_backward)};
    return RUN_ON_RANKS(cases);
}
