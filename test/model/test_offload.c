/* test_offload.c - memory.offload: an optimizer in host memory updates like adamw_update_host, bit for bit, in pages
 * smaller than its tensors. The working copy is the rounded master. */
#include "test/ref/test.h"

#include "core/rng.h"
#include "model/model.h"

enum { STEPS = 3 };

static Model *model_of(DType act, OptimizerMemory memory) {
    return model_create((
        ModelSpec){.shards = {.shape = GPT2_SHAPE(2, 3, 42, 96, 389), .ranks = 1, .zero_stage = 1, .act = act, .use = GPT_TRAINING},
                   .optimizer = &OPTIMIZER_ADAMW,
                   .B = 1,
                   .T = 16,
                   .offload = memory});
}

typedef struct { float *master, *m, *v, *grad; } Copies;

static float *copy_of(int64_t n) {
    float *x = calloc((size_t)n, sizeof *x);
    assert_non_null(x);
    return x;
}

static void test_pages(void **state) {
    (void)state;
    for (int t = 0; t < stage_act_types(); t++) {
        DType   act = ACT_TYPES[t];
        Model  *m = model_of(act, MEMORY_HOST);
        Shards *z = m->shards;
        int64_t n = shards_state_elems(z), parts = 0;
        Copies  want = {copy_of(n), copy_of(n), copy_of(n), copy_of(n)};
        OptimizerStep   h = {1e-2, 0.9, 0.95, 1e-8, 0.1, 0};
        masters_init(&m->optimizer, &m->stream, 7, NULL, NULL);
        for (int i = 0; i < z->spans; i++) {
            Span span = z->span[i];
            parts += span.elems > tensor_elems(m->optimizer.page[0]);
            memcpy(want.master + span.shard, optimizer_master(&m->optimizer, span).data, (size_t)span.elems * sizeof(float));
        }
        assert_true(parts > 0); /* at least one tensor is larger than a page, so it is updated in several parts */
        for (h.step = 1; h.step <= STEPS; h.step++) {
            rng_normal(want.grad, n, 11, (uint64_t)(h.step * n), 0.0f, 1.0f);
            for (int i = 0; i < z->spans; i++)
                device_from_host(&m->stream, shards_grad(z, z->span[i]), want.grad + z->span[i].shard);
            optimizer_update(&m->optimizer, &m->stream, h, 0.5f);
        }
        device_sync(&m->stream);
        h.step = 0;
        for (int i = 0; i < z->spans; i++) {
            Span  span = z->span[i];
            float bits[2];
            for (int64_t step = 1; step <= STEPS; step++) {
                OptimizerStep at = h;
                at.step = step;
                rng_normal(want.grad, n, 11, (uint64_t)(step * n), 0.0f, 1.0f);
                float *p = want.master + span.shard;
                adamw_update_host((OptimizerSpan){tensor_1d(p, F32, span.elems),
                                              tensor_1d(want.m + span.shard, F32, span.elems),
                                              tensor_1d(want.v + span.shard, F32, span.elems),
                                              tensor_1d(p, F32, span.elems),
                                              tensor_1d(want.grad + span.shard, F32, span.elems),
                                              span.group != GROUP_VECTOR, 0},
                                  at, 0.5f);
            }
            const float *got[] = {want.master, want.m, want.v};
            for (int which = 0; which < 3; which++)
                assert_memory_equal(optimizer_tensor(&m->optimizer, which, span).data, got[which] + span.shard,
                                    (size_t)span.elems * sizeof(float));
            for (int64_t k = 0; k < span.elems; k += 61) {
                Tensor one = tensor_slice(shards_weight(z, span), k, 1);
                float  master = want.master[span.shard + k];
                device_to_host(&m->stream, bits, one);
                if (act == F32) assert_true(bits[0] == master);
                else {
                    uint16_t w;
                    memcpy(&w, bits, sizeof w);
                    assert_int_equal(w, act == BF16 ? bf16_from_f32(master) : f16_from_f32(master));
                }
            }
        }
        free(want.master), free(want.m), free(want.v), free(want.grad);
        model_destroy(m);
    }
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_pages)};
    return cmocka_run_group_tests_name("offload", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
