/* checkpoint_weights.c - weights from a file into a model: checkpoint_read_weights() and checkpoint_init_from() of
 * checkpoint.h. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/terminal.h"
#include "run/checkpoint/checkpoint.h"
#include "run/checkpoint/checkpoint_folders.h"
#include "run/checkpoint/weights_file.h"

static WeightsFile open_weights(const char *path) { return weights_open(folder_weights(path).text); }

/* Two of WEIGHTS_BLOCK. */
static float *block_buffer(const char *path) {
    float *block = (float *)malloc(2 * sizeof *block * WEIGHTS_BLOCK);
    if (!block) fail(EXIT_MEMORY, "no memory to read %s", path);
    return block;
}

/* fp32 values to a tensor of the working copy's type. */
static void put_values(Stream *s, Tensor to, float *values) {
    CHECK(to.type == F32 || to.type == BF16, "weights as %s", dtype_name(to.type));
    if (to.type == BF16) {
        uint16_t *narrow = (uint16_t *)(void *)values; /* in place: element i is written behind where it is read */
        for (int64_t i = 0; i < tensor_elems(to); i++) {
            float value;
            memcpy(&value, values + i, sizeof value);
            uint16_t h = bf16_from_f32(value);
            memcpy(narrow + i, &h, sizeof h);
        }
    }
    device_from_host(s, to, values);
}

void checkpoint_read_weights(const char *path, const Layout *layout, Tensor params, Stream *s) {
    WeightsFile        w = open_weights(path);
    const SafeTensor **tensor_of = weights_match(&w, layout);
    float             *block = block_buffer(path);
    for (int i = 0; i < layout->params; i++) {
        const Param *p = &layout->param[i];
        Span         all = {.elems = p->local_elems, .param = i};
        if (layout->bucket[p->bucket].hold == BUCKET_ELSEWHERE) continue;
        for (int64_t at = 0, n; at < p->local_elems; at += n) {
            n = weights_read_span(&w, tensor_of[i], p->offset, layout, &all, at, block, block + WEIGHTS_BLOCK);
            put_values(s, tensor_slice(params, p->memory + at, n), block);
        }
    }
    free(block);
    free(tensor_of);
    weights_close(&w);
}

/* The head is wte here; a file that holds another one is of another model. values: n elements of the span of wte. */
static void refuse_other_head(const WeightsFile *w, const SafeTensor *head, const Layout *layout, const Span *span,
                              int64_t at, int64_t n, const float *values) {
    float *theirs = block_buffer(w->path);
    CHECK(weights_read_span(w, head, layout->param[span->param].offset, layout, span, at, theirs,
                            theirs + WEIGHTS_BLOCK) == n,
          "%lld elements", (long long)n);
    if (memcmp(theirs, values, sizeof *values * (size_t)n) != 0)
        fail(EXIT_DATA, "%s: lm_head.weight is not wte.weight: the head of a GPT-2 is tied, and this model's is not", w->path);
    free(theirs);
}

void checkpoint_init_from(const char *path, CheckpointState *state) {
    WeightsFile        w = open_weights(path);
    const Optimizer   *o = state->optimizer;
    const Layout      *layout = checkpoint_layout(state);
    const SafeTensor **tensor_of = weights_match(&w, layout), *head = weights_head(&w);
    float             *block = block_buffer(path);
    for (int i = 0; i < o->shards->spans; i++) {
        Span    span = o->shards->span[i];
        int64_t begin = layout->param[span.param].offset;
        if (comm_rank(state->comm) == 0) say_part("loading the weights", i, o->shards->spans);
        for (int64_t at = 0, n; at < span.elems; at += n) {
            n = weights_read_span(&w, tensor_of[span.param], begin, layout, &span, at, block, block + WEIGHTS_BLOCK);
            for (int64_t k = 0; k < n; k++)
                if (!isfinite(block[k]))
                    fail(EXIT_DATA, "%s: tensor %s holds a value that is not finite at element %" PRId64, w.path,
                         tensor_of[span.param]->name, layout_run(layout, &span, at + k).offset - begin);
            if (head && span.param == 0) refuse_other_head(&w, head, layout, &span, at, n, block);
            optimizer_put(o, state->stream, tensor_slice(optimizer_master(o, span), at, n), block);
        }
    }
    optimizer_publish(state->optimizer, state->stream);
    free(block);
    free(tensor_of);
    weights_close(&w);
}
