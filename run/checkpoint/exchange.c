/* exchange.c - see exchange.h. */
#include "run/checkpoint/exchange.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

int exchange_is_needed(const Shards *z, Span span) { return layout_cuts_columns(&z->layout, &z->layout.param[span.param]); }

/* Returns the first of n elements that tensor rank i gets: rank i of t gets [n i / t, n (i + 1) / t). */
static int64_t share(const Layout *l, int64_t n, int i) { return n * i / l->tensor_ranks; }

Span exchange_kept(const Shards *z, Span span) {
    const Layout *l = &z->layout;
    if (l->param[span.param].cut != CUT_NONE) return span;
    int64_t from = share(l, span.elems, l->tensor_rank), end = share(l, span.elems, l->tensor_rank + 1);
    span.memory += from, span.shard += from, span.first += from, span.elems = end - from;
    return span;
}

/* --- spans of matrices that are cut by columns --------------------------------------------------------------------- */

/* Elements [first, end) of the columns that this rank holds. Tensor rank i writes them, together with the other columns
 * of the same rows. The rows are whole, except a first and a last one that the span itself cuts. */
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

/* Returns the file run that begins with element `at` of the columns of tensor rank j. It ends with the columns of that
 * rank in the row (or in q, k or v within the row), or with r. */
static FileRun run_of(const Layout *l, Span span, Rows r, int64_t at, int j) {
    Layout theirs = *l;
    theirs.tensor_rank = j;
    span.first = at, span.elems = r.end - at;
    return layout_run(&theirs, &span, 0);
}

/* --- what is written ----------------------------------------------------------------------------------------------- */

static void add_run(FileRuns *f, FileRun run) {
    FileRun *last = f->runs ? &f->run[f->runs - 1] : NULL;
    f->elems += run.elems;
    if (last && last->offset + last->elems == run.offset) {
        last->elems += run.elems;
        return;
    }
    if (f->runs == f->room) {
        f->room = 2 * f->room + 64;
        f->run = xrealloc(f->run, sizeof *f->run * (size_t)f->room, "the runs of a checkpoint");
    }
    f->run[f->runs++] = run;
}

/* Adds the file runs of a span, in the order in which exchange_rows writes the elements. Within a row that is the order
 * of the file. */
static void add_rows(FileRuns *f, const Layout *l, Span span) {
    Rows r = rows_of(l, span, l->tensor_rank);
    for (int64_t at = r.first, elems; at < r.end; at += elems) {
        elems = run_of(l, span, r, at, 0).elems;
        for (int j = 0; j < l->tensor_ranks; j++) add_run(f, run_of(l, span, r, at, j));
    }
}

FileRuns exchange_runs(const Shards *z) {
    FileRuns f = {0};
    Span    *spans = xmalloc(sizeof *spans * (size_t)z->layout.params, "the spans of a checkpoint");
    for (int b = 0; b < z->layout.buckets; b++) {
        int count = shards_spans_to_save(z, b, spans);
        for (int i = 0; i < count; i++) {
            Span kept = exchange_kept(z, spans[i]);
            if (exchange_is_needed(z, spans[i])) add_rows(&f, &z->layout, spans[i]);
            else if (kept.elems > 0) add_run(&f, layout_run(&z->layout, &kept, 0));
        }
    }
    free(spans);
    return f;
}

/* --- the exchange -------------------------------------------------------------------------------------------------- */

int64_t exchange_rows_elems(const Shards *z, Span span) {
    Rows r = rows_of(&z->layout, span, z->layout.tensor_rank);
    return (r.end - r.first) * z->layout.tensor_ranks;
}

int64_t exchange_rows(const Shards *z, Span span, const float *mine, float *out) {
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
        elems = run_of(l, span, r, at, 0).elems;
        for (int j = 0; j < ranks; j++, to += elems)
            memcpy(out + to, received + j * each + (at - r.first), (size_t)elems * sizeof *out);
    }
    free(bytes);
    free(received);
    return to;
}

/* --- memory -------------------------------------------------------------------------------------------------------- */

/* The share of a rank in the rows of a span is rounded up, at most to one more row of the file. */
int64_t exchange_most_elems(const Layout *l) {
    int64_t elems = l->shard_elems;
    for (int i = 0; i < l->params; i++)
        if (layout_cuts_columns(l, &l->param[i])) elems += width_of(&l->param[i]) * l->tensor_ranks;
    return elems;
}

/* Scratch for a span before the exchange and after it. */
int64_t exchange_scratch_elems(const Layout *l) {
    int64_t most = 0;
    for (int i = 0; i < l->params; i++) {
        const Param *p = &l->param[i];
        int64_t      span = l->bucket[p->bucket].piece_elems < p->local_elems ? l->bucket[p->bucket].piece_elems : p->local_elems;
        int64_t      elems = 2 * span + width_of(p) * l->tensor_ranks;
        if (layout_cuts_columns(l, p) && elems > most) most = elems;
    }
    return most;
}
