/* layout.c - places parameters in memory, shards and files, as layout.h describes. */
#include "core/layout.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/format.h"

/* Computes the shape of one parameter in this rank's memory. is_elsewhere: the parameter belongs to an expert of
 * another rank. */
static void cut(const Layout *l, int is_elsewhere, Param *p) {
    int64_t t = l->tensor_ranks, i = l->tensor_rank, *last = &p->local[p->dims - 1];
    p->local[0] = p->dim[0], p->local[1] = p->dims == 2 ? p->dim[1] : 1;
    p->elems = p->local[0] * p->local[1];
    if (p->cut == CUT_ROWS) p->local[0] /= t;
    if (p->cut == CUT_COLUMNS || p->cut == CUT_HEADS) *last /= t;
    CHECK(p->cut == CUT_VOCABULARY || p->cut == CUT_NONE || p->local[0] * p->local[1] * t == p->elems,
          "%s among %lld tensor ranks", p->name, (long long)t);
    CHECK(p->cut != CUT_HEADS || *last % 3 == 0, "%s has no thirds", p->name);
    if (is_elsewhere) p->local[0] = 0;
    p->local_elems = p->local[0] * p->local[1];
    if (p->cut != CUT_VOCABULARY) return;
    p->local[0] = round_up(p->dim[0], p->pad * t) / t;
    int64_t rows = p->dim[0] - i * p->local[0];
    p->local_elems = (rows < 0 ? 0 : rows > p->local[0] ? p->local[0] : rows) * p->local[1];
}

static void place_bucket(Layout *l, Bucket *b, int index) {
    int64_t length = 0;
    int     is_here = b->hold != BUCKET_ELSEWHERE, is_own = b->hold == BUCKET_OWN;
    b->ranks = l->ranks;
    for (int i = b->first_param; i < b->first_param + b->params; i++) {
        Param *p = &l->param[i];
        if (p->bucket != index) continue;
        if (p->expert && l->expert_ranks > 1) b->ranks = l->ranks / l->expert_ranks;
        p->memory = l->memory_elems + length;
        length += is_here ? round_up(p->local[0] * p->local[1], LAYOUT_ALIGN) : 0;
    }
    b->memory = l->memory_elems;
    b->piece_elems = round_up((length + b->ranks - 1) / b->ranks, LAYOUT_ALIGN);
    b->elems = b->piece_elems * b->ranks;
    b->shard = l->shard_elems;
    l->memory_elems += b->elems;
    l->shard_elems += is_own ? b->piece_elems : 0;
}

Layout layout_create(const Param *rows, int params, LayoutPlace place) {
    CHECK(params > 0 && place.ranks > 0, "%d rows, %d ranks", params, place.ranks);
    CHECK(place.tensor_rank >= 0 && place.tensor_rank < place.tensor_ranks, "tensor rank %d of %d", place.tensor_rank,
          place.tensor_ranks);
    Layout l = {.params = params,
                .ranks = place.ranks,
                .tensor_ranks = place.tensor_ranks,
                .tensor_rank = place.tensor_rank,
                .expert_ranks = place.expert_ranks > 1 ? place.expert_ranks : 1};
    CHECK(l.ranks % l.expert_ranks == 0, "%d ranks, of which %d divide the experts", l.ranks, l.expert_ranks);
    int experts = 0;
    for (int i = 0; i < params; i++) {
        if (rows[i].bucket >= l.buckets) l.buckets = rows[i].bucket + 1;
        if (rows[i].expert > experts) experts = rows[i].expert;
    }
    CHECK(experts % l.expert_ranks == 0, "%d experts among %d ranks", experts, l.expert_ranks);
    int each = experts / l.expert_ranks; /* experts of each rank that divides the experts, in order of rank */
    l.param = xmalloc(sizeof(Param) * (size_t)params, "a table of parameters");
    l.bucket = xcalloc((size_t)l.buckets, sizeof(Bucket), "a table of parameters");
    memcpy(l.param, rows, sizeof(Param) * (size_t)params);
    for (int i = 0; i < params; i++) {
        Param  *p = &l.param[i];
        Bucket *b = &l.bucket[p->bucket];
        cut(&l, p->expert && l.expert_ranks > 1 && (p->expert - 1) / each != place.expert_rank, p);
        p->offset = l.elems;
        l.elems += p->elems;
        if (b->params == 0) b->first_param = i;
        b->params = i + 1 - b->first_param;
    }
    for (int b = 0; b < l.buckets; b++) {
        CHECK(l.bucket[b].params > 0, "bucket %d has no rows", b);
        l.bucket[b].hold = place.hold ? place.hold[b] : BUCKET_OWN;
        place_bucket(&l, &l.bucket[b], b);
    }
    return l;
}

void layout_destroy(Layout *layout) {
    free(layout->param);
    free(layout->bucket);
    memset(layout, 0, sizeof *layout);
}

int layout_spans(const Layout *layout, int bucket, int rank, Span *spans) {
    const Bucket *b = &layout->bucket[bucket];
    int64_t begin = b->memory + rank * b->piece_elems, end = begin + b->piece_elems;
    int     count = 0;
    for (int i = b->first_param; b->hold == BUCKET_OWN && i < b->first_param + b->params; i++) {
        const Param *p = &layout->param[i];
        if (p->bucket != bucket) continue;
        int64_t from = larger_of(p->memory, begin), to = smaller_of(p->memory + p->local_elems, end);
        if (from >= to) continue;
        spans[count++] = (Span){.memory = from,
                                .shard = b->shard + (from - begin),
                                .first = from - p->memory,
                                .elems = to - from,
                                .param = i,
                                .group = p->group};
    }
    return count;
}

/* Converts elements of a span (part of a parameter) to a contiguous extent (range) of the file. If the parameter is cut
 * by columns, each row of this rank's slice is followed in the file by the slice of the next tensor rank. */
FileExtent layout_extent(const Layout *layout, const Span *span, int64_t at) {
    const Param *p = &layout->param[span->param];
    int64_t      element = span->first + at, left = span->elems - at, i = layout->tensor_rank;
    CHECK(at >= 0 && left > 0, "element %lld of a span of %lld", (long long)at, (long long)span->elems);
    if (!layout_cuts_columns(layout, p))
        return (FileExtent){p->offset + element + (p->cut == CUT_NONE ? 0 : i * p->local[0] * p->local[1]), left};
    int64_t width = (p->dims == 2 ? p->local[1] : p->local[0]) / layout_parts(p); /* columns that this rank has of a
                                                                                   * row, or with CUT_HEADS of each
                                                                                   * third of a row; a vector counts as
                                                                                   * one row */
    /* block: number of the run of `width` columns that holds the element. A row of this rank's slice has one such run,
     * with CUT_HEADS three */
    int64_t block = element / width, column = element % width, rest = width - column;
    return (FileExtent){p->offset + (block * layout->tensor_ranks + i) * width + column, smaller_of(left, rest)};
}
