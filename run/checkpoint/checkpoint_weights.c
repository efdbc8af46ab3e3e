/* checkpoint_weights.c - reads weights from files into a model: checkpoint_read_weights() and checkpoint_init_from() of
 * checkpoint.h. */
#include <stdlib.h>
#include <string.h>

#include "core/terminal.h"
#include "core/error.h"
#include "run/checkpoint/checkpoint.h"
#include "run/checkpoint/weights_set.h"

/* Returns memory for two blocks of WEIGHTS_BLOCK elements, malloc'ed. */
static float *block_buffer(void) { return xmalloc(2 * sizeof(float) * WEIGHTS_BLOCK, "reading weights"); }

/* Copies fp32 values to a tensor of the working copy, which is fp32 or bf16. Overwrites values. */
static void put_values(Stream *s, Tensor to, float *values) {
    CHECK(to.type == F32 || to.type == BF16, "weights as %s", dtype_name(to.type));
    if (to.type == BF16) {
        uint16_t *narrow = (uint16_t *)(void *)values; /* in place: never ahead of the reads */
        for (int64_t i = 0; i < tensor_elems(to); i++) {
            float value;
            memcpy(&value, values + i, sizeof value);
            uint16_t h = bf16_from_f32(value);
            memcpy(narrow + i, &h, sizeof h);
        }
    }
    device_from_host(s, to, values);
}

/* Refuses weights with a head of their own if the head of the model is the embedding. values: n elements of the span of
 * the embedding. */
static void refuse_other_head(WeightsTensor head, const Layout *layout, const Span *span, int64_t at, int64_t n,
                              const float *values) {
    int                is_gpt2 = strncmp(layout->param[0].name, "transformer.", 12) == 0; /* always tied in training */
    const WeightsFile *w = head.file;
    float             *theirs = block_buffer();
    CHECK(weights_read_span(w, head.tensor, layout->param[span->param].offset, layout, span, at, theirs,
                            theirs + WEIGHTS_BLOCK) == n,
          "%lld elements", (long long)n);
    if (memcmp(theirs, values, sizeof *values * (size_t)n) != 0)
        fail(EXIT_DATA,
             "%s: %s is not the embedding, but model.tie_embeddings=true makes the embedding the head: %s",
             w->path, head.tensor->name,
             !is_gpt2
                 ? "give model.tie_embeddings=false"
                 : "a gpt2 is trained with one matrix for both; remove that tensor from the file to train from the "
                   "embedding (sample and eval use these weights as they are)");
    free(theirs);
}

/* Reads elements of a span as weights_read_span. Exit 65 if one of them is not finite. */
static int64_t read_finite(WeightsTensor t, const Layout *layout, const Span *span, int64_t at, float *block) {
    int64_t begin = layout->param[span->param].offset;
    int64_t n = weights_read_span(t.file, t.tensor, begin, layout, span, at, block, block + WEIGHTS_BLOCK);
    int64_t bad = weights_finite(block, n);
    if (bad < n) weights_refuse_element(t.file, t.tensor, layout_run(layout, span, at + bad).offset - begin);
    return n;
}

void checkpoint_read_weights(const char *path, const Layout *layout, Tensor params, Stream *s, int says) {
    WeightsSet     set = weights_set_open(path);
    WeightsTensor *tensor_of = weights_set_match(&set, layout, (WeightsSizes){NULL, 0, 0}),
                  head = weights_set_head(&set, layout);
    float         *block = block_buffer();
    for (int i = 0; i < layout->params; i++) {
        const Param *p = &layout->param[i];
        Span         all = {.elems = p->local_elems, .param = i};
        if (layout->bucket[p->bucket].hold == BUCKET_ELSEWHERE) continue;
        if (says) say_part("loading the weights", i, layout->params);
        for (int64_t at = 0, n; at < p->local_elems; at += n) {
            n = read_finite(tensor_of[i], layout, &all, at, block);
            if (head.tensor && i == 0) refuse_other_head(head, layout, &all, at, n, block);
            put_values(s, tensor_slice(params, p->memory + at, n), block);
        }
    }
    if (says) say_no_more();
    free(block);
    free(tensor_of);
    weights_set_close(&set);
}

void checkpoint_init_from(const char *path, CheckpointState *state) {
    WeightsSet       set = weights_set_open(path);
    const Optimizer *o = state->optimizer;
    const Layout    *layout = checkpoint_layout(state);
    WeightsTensor   *tensor_of = weights_set_match(&set, layout, (WeightsSizes){NULL, 0, 1}),
                  head = weights_set_head(&set, layout);
    float           *block = block_buffer();
    for (int i = 0; i < o->shards->spans; i++) {
        Span          span = o->shards->span[i];
        WeightsTensor t = tensor_of[span.param];
        if (comm_rank(state->comm) == 0) say_part("loading the weights", i, o->shards->spans);
        for (int64_t at = 0, n; at < span.elems; at += n) {
            n = read_finite(t, layout, &span, at, block);
            if (head.tensor && span.param == 0) refuse_other_head(head, layout, &span, at, n, block);
            optimizer_put(o, state->stream, tensor_slice(optimizer_master(o, span), at, n), block);
        }
    }
    optimizer_publish(state->optimizer, state->stream);
    free(block);
    free(tensor_of);
    weights_set_close(&set);
}
