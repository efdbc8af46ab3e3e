/* exchange.c - computes which elements each rank writes into a checkpoint, and exchanges rows between tensor ranks; see
 * exchange.h. */
#include "run/checkpoint/exchange.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

static int is_exchanged(const Shards *z, Span span) {
    return layout_cuts_columns(&z->layout, &z->layout.param[span.param]);
}

/* Returns the index of the first of n elements that tensor rank i writes. With t tensor ranks, rank i writes [n i / t,
 * n (i + 1) / t). */
static int64_t share(const Layout *l, int64_t n, int i) { return n * i / l->tensor_ranks; }

/* Returns the elements of a span (part of a parameter) that this rank writes without an exchange. These are all of
 * them, or an equal share if all tensor ranks hold the span. */
static Span kept_of(const Shards *z, Span span) {
    const Layout *l = &z->layout;
    if (l->param[span.param].cut != CUT_NONE) return span;
    int64_t from = share(l, span.elems, l->tensor_rank), end = share(l, span.elems, l->tensor_rank + 1);
    span.memory += from, span.shard += from, span.first += from, span.elems = end - from;
    return span;
}

/* Elements [first, end) of a span (part of a parameter), counted within the columns that this rank holds. One tensor
 * rank writes them to the checkpoint, together with the other columns of the same rows. The rows are whole, except a
 * first and a last one that the span itself cuts. */
typedef struct { int64_t first, end; } Rows;

static int64_t width_of(const Param *p) { return p->dims == 2 ? p->local[1] : p->local[0]; }

static Rows rows_of(const Layout *l, Span span, int i) {
    int64_t width = width_of(&l->param[span.param]), from = span.first / width,
            rows = (span.first + span.elems - 1) / width + 1 - from;
    Rows    r = {(from + share(l, rows, i)) * width, (from + share(l, rows, i + 1)) * width};
    if (r.first < span.first) r.first = span.first;
    if (r.end > span.first + span.elems) r.end = span.first + span.elems;
    if (r.end < r.first) r.end = r.first;
    return r;
}

/* Returns the extent (range of the file) that begins with element `at` of the columns of tensor rank j. It ends where
 * the columns of that rank end in the row (or in q, k or v within the row). It ends earlier if the rows r end
 * earlier. */
static FileExtent row_extent(const Layout *l, Span span, Rows r, int64_t at, int j) {
    Layout theirs = *l;
    theirs.tensor_rank = j;
    span.first = at, span.elems = r.end - at;
    return layout_extent(&theirs, &span, 0);
}

/* --- what is written ---------------------------------------------------------------------------------------------- */

/* Adds an extent (a range of the file) to the list, or lengthens the last one if the two adjoin. */
static void add_extent(FileExtents *f, FileExtent e) {
    FileExtent *last = f->extents ? &f->extent[f->extents - 1] : NULL;
    f->elems += e.elems;
    if (last && last->offset + last->elems == e.offset) {
        last->elems += e.elems;
        return;
    }
    f->extent = xrealloc(f->extent, sizeof *f->extent * (size_t)(f->extents + 1), "the runs of a checkpoint");
    f->extent[f->extents++] = e;
}

/* Adds the extents (ranges of the file) of a span (part of a parameter) to the list. The order is that in which
 * exchange_rows stores the elements. Within a row this is the order of the file. */
static void add_rows(FileExtents *f, const Layout *l, Span span) {
    Rows r = rows_of(l, span, l->tensor_rank);
    for (int64_t at = r.first, elems; at < r.end; at += elems) {
        elems = row_extent(l, span, r, at, 0).elems;
        for (int j = 0; j < l->tensor_ranks; j++) add_extent(f, row_extent(l, span, r, at, j));
    }
}

FileExtents exchange_extents(const Shards *z) {
    FileExtents f = {0};
    Span       *spans = xmalloc(sizeof *spans * (size_t)z->layout.params, "the spans of a checkpoint");
    for (int b = 0; b < z->layout.buckets; b++) {
        int count = shards_spans_to_save(z, b, spans);
        for (int i = 0; i < count; i++) {
            Span kept = kept_of(z, spans[i]);
            if (is_exchanged(z, spans[i])) add_rows(&f, &z->layout, spans[i]);
            else if (kept.elems > 0) add_extent(&f, layout_extent(&z->layout, &kept, 0));
        }
    }
    free(spans);
    return f;
}

/* --- the exchange ------------------------------------------------------------------------------------------------- */

/* Collective over the tensor ranks, for a span (part of a parameter) whose rows they divide by columns. mine
 * [span.elems]: values of the span on this rank. out: gets the elements of the rows that this rank writes, in the order
 * of exchange_extents. Returns the number of these elements. */
static int64_t exchange_rows(const Shards *z, Span span, const float *mine, float *out) {
    const Layout *l = &z->layout;
    int           ranks = l->tensor_ranks;
    Rows          r = rows_of(l, span, l->tensor_rank);
    int64_t       each = r.end - r.first, to = 0;
    size_t       *bytes = xmalloc(sizeof *bytes * (size_t)ranks, "the rows of a checkpoint");
    float        *received = xmalloc(sizeof *received * (size_t)(each * ranks + 1), "the rows of a checkpoint");
    for (int i = 0; i < ranks; i++) {
        Rows theirs = rows_of(l, span, i);
        bytes[i] = (size_t)(theirs.end - theirs.first) * sizeof *mine;
    }
    comm_all_to_all(z->spec.tensor, mine, bytes, received);
    for (int64_t at = r.first, elems; at < r.end; at += elems) {
        elems = row_extent(l, span, r, at, 0).elems;
        for (int j = 0; j < ranks; j++, to += elems)
            memcpy(out + to, received + j * each + (at - r.first), (size_t)elems * sizeof *out);
    }
    free(bytes);
    free(received);
    return to;
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

/* Returns the most elements that a rank writes. The share of a rank in a span is rounded up, at most to one more row of
 * the file. */
int64_t exchange_most_elems(const Layout *l) {
    int64_t elems = l->shard_elems;
    for (int i = 0; i < l->params; i++)
        if (layout_cuts_columns(l, &l->param[i])) elems += width_of(&l->param[i]) * l->tensor_ranks;
    return elems;
}

/* Returns the floats of scratch memory that an exchange needs: for a span (part of a parameter) before it, and for the
 * same span after it. */
int64_t exchange_scratch_elems(const Layout *l) {
    int64_t most = 0;
    for (int i = 0; i < l->params; i++) {
        const Param *p = &l->param[i];
        int64_t      piece = l->bucket[p->bucket].piece_elems, span = piece < p->local_elems ? piece : p->local_elems;
        int64_t      elems = 2 * span + width_of(p) * l->tensor_ranks;
        if (layout_cuts_columns(l, p) && elems > most) most = elems;
    }
    return most;
}

/* --- the copy ----------------------------------------------------------------------------------------------------- */

float *exchange_copy(const Shards *z, Stream *stream, SpanCopy copy, void *ctx, float *to, float *scratch) {
    Span *spans = xmalloc(sizeof *spans * (size_t)z->layout.params, "the spans of a checkpoint");
    for (int b = 0; b < z->layout.buckets; b++) {
        int count = shards_spans_to_save(z, b, spans);
        for (int i = 0; i < count; i++) {
            Span kept = kept_of(z, spans[i]);
            int  exchanges = is_exchanged(z, spans[i]);
            if (kept.elems > 0) copy(ctx, kept, exchanges ? scratch : to);
            if (exchanges) device_sync(stream);
            to += exchanges ? exchange_rows(z, spans[i], scratch, to) : kept.elems;
        }
    }
    free(spans);
    return to;
}

/* One tensor of the optimizer: the masters (fp32 weights) if `which` is 0, otherwise optimizer state which - 1. */
typedef struct { const CheckpointState *state; int which; } StateTensor;

static void copy_state(void *ctx, Span span, float *to) {
    const StateTensor *t = (const StateTensor *)ctx;
    const Optimizer   *o = t->state->optimizer;
    optimizer_get_queued(o, t->state->stream, to, optimizer_tensor(o, t->which, span));
}

void state_copy(const CheckpointState *state, const FileExtents *extents, float *to, float *scratch) {
    int          tensors = optimizer_tensors(state->optimizer->kind);
    const float *end = to + tensors * extents->elems;
    for (int which = 0; which < tensors; which++)
        to = exchange_copy(state->optimizer->shards, state->stream, copy_state, &(StateTensor){state, which}, to,
                           scratch);
    CHECK(to == end, "%lld floats of a rank's state too many", (long long)(to - end));
    device_sync(state->stream);
}
