/* layout.c - see layout.h. */
#include "core/layout.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

static int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

static void place_bucket(Layout *l, Bucket *b, int index) {
    int64_t length = 0;
    for (int i = b->first_param; i < l->params && l->param[i].bucket == index; i++, b->params++) {
        Param *p = &l->param[i];
        p->elems = p->dim[0] * (p->dims == 2 ? p->dim[1] : 1);
        p->offset = l->elems;
        p->memory = l->memory_elems + length;
        l->elems += p->elems;
        length += round_up(p->memory_rows * (p->dims == 2 ? p->dim[1] : 1), LAYOUT_ALIGN);
    }
    CHECK(b->params > 0, "bucket %d has no rows", index);
    b->memory = l->memory_elems;
    b->piece_elems = round_up((length + l->ranks - 1) / l->ranks, LAYOUT_ALIGN);
    b->elems = b->piece_elems * l->ranks;
    b->shard = l->shard_elems;
    l->memory_elems += b->elems;
    l->shard_elems += b->piece_elems;
}

Layout layout_create(const Param *rows, int params, int ranks) {
    CHECK(params > 0 && ranks > 0, "%d rows, %d ranks", params, ranks);
    Layout l = {0};
    l.params = params;
    l.ranks = ranks;
    l.buckets = rows[params - 1].bucket + 1;
    l.param = (Param *)malloc(sizeof(Param) * (size_t)params);
    l.bucket = (Bucket *)calloc((size_t)l.buckets, sizeof(Bucket));
    if (!l.param || !l.bucket) fail(EXIT_MEMORY, "no memory for a table of %d parameters", params);
    memcpy(l.param, rows, sizeof(Param) * (size_t)params);
    for (int b = 0, first = 0; b < l.buckets; b++) {
        l.bucket[b].first_param = first;
        place_bucket(&l, &l.bucket[b], b);
        first += l.bucket[b].params;
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
    for (int i = b->first_param; i < b->first_param + b->params; i++) {
        const Param *p = &layout->param[i];
        int64_t from = p->memory > begin ? p->memory : begin;
        int64_t to = p->memory + p->elems < end ? p->memory + p->elems : end;
        if (from >= to) continue;
        Span *s = &spans[count++];
        s->memory = from;
        s->shard = b->shard + (from - begin);
        s->offset = p->offset + (from - p->memory);
        s->elems = to - from;
        s->param = i;
        s->group = p->group;
    }
    return count;
}

const Param *layout_find(const Layout *layout, const char *name) {
    for (int i = 0; i < layout->params; i++)
        if (strcmp(layout->param[i].name, name) == 0) return &layout->param[i];
    return NULL;
}
