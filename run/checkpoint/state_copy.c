/* state_copy.c - see state_copy.h. */
#include "run/checkpoint/state_copy.h"

#include <stdlib.h>

#include "core/error.h"

/* Copies the elements of a span to `to`, or the share of this rank if the tensor ranks exchange it. Returns their
 * number. */
static int64_t copy_span(const CheckpointState *state, float *to, float *scratch, int which, Span span) {
    const Shards *z = state->optimizer->shards;
    int           is_exchanged = exchange_is_needed(z, span);
    Span          kept = exchange_kept(z, span);
    if (kept.elems > 0)
        optimizer_get_queued(state->optimizer, state->stream, is_exchanged ? scratch : to,
                             optimizer_tensor(state->optimizer, which, kept));
    if (!is_exchanged) return kept.elems;
    device_sync(state->stream);
    return exchange_rows(z, span, scratch, to);
}

void state_copy(const CheckpointState *state, const FileRuns *runs, float *to, float *scratch) {
    const Layout *layout = checkpoint_layout(state);
    int           tensors = optimizer_tensors(state->optimizer->kind);
    const float  *end = to + tensors * runs->elems;
    Span         *spans = xmalloc(sizeof *spans * (size_t)layout->params, "the spans of a checkpoint");
    for (int which = 0; which < tensors; which++)
        for (int b = 0; b < layout->buckets; b++) {
            int count = shards_spans_to_save(state->optimizer->shards, b, spans);
            for (int i = 0; i < count; i++) to += copy_span(state, to, scratch, which, spans[i]);
        }
    CHECK(to == end, "%lld floats of a rank's state too many", (long long)(to - end));
    device_sync(state->stream);
    free(spans);
}
