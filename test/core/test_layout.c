/* test_layout.c - the layout of parameters in buckets: every element belongs to exactly one rank's part of a bucket,
 * for any table of parameters and any number of ranks. */
#include "core/error.h" /* before cmocka.h, which defines fail() as a macro */
#include "core/layout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS_MAX = 32 };

typedef struct {
    const char *what;
    int         count;
    struct { int dims; int64_t rows, columns, memory_rows; int bucket; } row[ROWS_MAX];
} Table;

static const Table TABLES[] = {
    {"one element", 1, {{1, 1, 1, 1, 0}}},
    {"exactly aligned", 2, {{2, 8, 8, 8, 0}, {1, 64, 1, 64, 0}}},
    {"one past alignment", 2, {{1, 65, 1, 65, 0}, {1, 1, 1, 1, 1}}},
    {"odd rows, vocabulary padding", 7, {{2, 389, 14, 448, 0}, {2, 40, 14, 40, 0}, {1, 14, 1, 14, 1}, {1, 14, 1, 14, 1},
                                         {2, 14, 42, 14, 1}, {1, 42, 1, 42, 1}, {1, 14, 1, 14, 2}}},
    {"a bucket far longer than the rest", 3, {{2, 1021, 33, 1024, 0}, {1, 3, 1, 3, 1}, {1, 7, 1, 7, 2}}},
};
enum { TABLE_COUNT = sizeof TABLES / sizeof *TABLES, RANKS_MAX = 8 };

static Layout layout_of(const Table *t, int ranks) {
    Param rows[ROWS_MAX];
    memset(rows, 0, sizeof rows);
    for (int i = 0; i < t->count; i++) {
        snprintf(rows[i].name, sizeof rows[i].name, "row.%d", i);
        rows[i].dims = t->row[i].dims;
        rows[i].dim[0] = t->row[i].rows;
        rows[i].dim[1] = t->row[i].columns;
        rows[i].cut = t->row[i].memory_rows > t->row[i].rows ? CUT_VOCABULARY : CUT_NONE;
        rows[i].pad = t->row[i].memory_rows;
        rows[i].bucket = t->row[i].bucket;
        rows[i].group = t->row[i].dims == 2 ? GROUP_MATRIX : GROUP_VECTOR;
    }
    return layout_create(rows, t->count, (LayoutPlace){ranks, 1, 0, NULL, 1, 0});
}

/* Checks that the spans of all buckets and ranks together contain each element of the model once. Each span must lie
 * inside its rank's part of the bucket, and at its parameter's place in memory. */
static void check_spans(const Table *t, int ranks) {
    Layout l = layout_of(t, ranks);
    char  *seen = calloc((size_t)l.elems, 1);
    Span   spans[ROWS_MAX];
    int64_t covered = 0;
    for (int r = 0; r < ranks; r++) {
        int64_t shard_end = 0;
        for (int b = 0; b < l.buckets; b++) {
            const Bucket *bucket = &l.bucket[b];
            int count = layout_spans(&l, b, r, spans);
            assert_true(count <= l.params);
            for (int s = 0; s < count; s++) {
                const Span  *span = &spans[s];
                const Param *p = &l.param[span->param];
                int64_t      inside = span->memory - (bucket->memory + r * bucket->piece_elems);
                assert_true(span->elems > 0 && inside >= 0 && inside + span->elems <= bucket->piece_elems);
                assert_true(span->shard == bucket->shard + inside && span->shard >= shard_end);
                assert_true(span->memory - p->memory == span->first);
                assert_true(span->first >= 0 && span->first + span->elems <= p->elems);
                assert_true(layout_extent(&l, span, 0).offset == p->offset + span->first &&
                            layout_extent(&l, span, 0).elems == span->elems);
                assert_int_equal(p->bucket, b);
                assert_int_equal(span->group, p->group);
                for (int64_t i = 0; i < span->elems; i++) assert_int_equal(seen[p->offset + span->first + i]++, 0);
                covered += span->elems;
                shard_end = span->shard + span->elems;
            }
        }
        assert_true(shard_end <= l.shard_elems);
    }
    assert_int_equal(covered, l.elems);
    free(seen);
    layout_destroy(&l);
}

static void pieces_cover_everything_once(void **state) {
    (void)state;
    for (int t = 0; t < TABLE_COUNT; t++)
        for (int ranks = 1; ranks <= RANKS_MAX; ranks++) check_spans(&TABLES[t], ranks);
}

/* Checks the offsets that core/layout.h documents. Parameters begin at multiples of 64 elements. With W ranks, each
 * rank's part of a bucket has q = 64 * ceil(length / (64 * W)) elements. Buckets follow one another. */
static void places_are_the_contracts(void **state) {
    (void)state;
    for (int t = 0; t < TABLE_COUNT; t++)
        for (int ranks = 1; ranks <= RANKS_MAX; ranks++) {
            Layout  l = layout_of(&TABLES[t], ranks);
            int64_t offset = 0, memory = 0, shard = 0;
            int     first = 0;
            for (int b = 0; b < l.buckets; b++) {
                const Bucket *bucket = &l.bucket[b];
                int64_t       length = 0;
                assert_true(bucket->memory == memory && bucket->shard == shard && bucket->first_param == first);
                for (int i = first; i < first + bucket->params; i++) {
                    const Param *p = &l.param[i];
                    int64_t      columns = p->dims == 2 ? p->dim[1] : 1;
                    assert_true(p->elems == p->dim[0] * columns && p->offset == offset && p->memory == memory + length);
                    assert_true(p->memory % LAYOUT_ALIGN == 0);
                    offset += p->elems;
                    length += (TABLES[t].row[i].memory_rows * columns + 63) / 64 * 64;
                }
                int64_t q = (length + 64 * ranks - 1) / (64 * ranks) * 64;
                assert_true(bucket->piece_elems == q && bucket->elems == q * ranks);
                memory += bucket->elems, shard += q, first += bucket->params;
            }
            assert_true(l.elems == offset && l.memory_elems == memory && l.shard_elems == shard && first == l.params);
            layout_destroy(&l);
        }
}

/* The offset of a parameter is its place in checkpoint files, counted in elements. It must not depend on the number of
 * ranks. */
static void offsets_do_not_depend_on_ranks(void **state) {
    (void)state;
    for (int t = 0; t < TABLE_COUNT; t++) {
        Layout one = layout_of(&TABLES[t], 1);
        for (int ranks = 2; ranks <= RANKS_MAX; ranks++) {
            Layout l = layout_of(&TABLES[t], ranks);
            for (int i = 0; i < l.params; i++) assert_int_equal(l.param[i].offset, one.param[i].offset);
            layout_destroy(&l);
        }
        layout_destroy(&one);
    }
}

/* Makes a layout of 8 rows (parameters) for tensor ranks. Widths are multiples of 12, so that 1 to 4 tensor ranks
 * divide them. The vocabulary of 389 is padded. */
enum { CUT_ROWS_COUNT = 8 };
static Layout cut_layout(int ranks, int tensor_ranks, int tensor_rank) {
    static const struct { int dims; int64_t dim[2]; Cut cut; int bucket; } of[CUT_ROWS_COUNT] = {
        {2, {389, 12}, CUT_VOCABULARY, 0}, {2, {7, 12}, CUT_NONE, 0}, {1, {12}, CUT_NONE, 1}, {2, {12, 36}, CUT_HEADS, 1}, {1, {36}, CUT_HEADS, 1},
        {2, {12, 48}, CUT_COLUMNS, 1}, {1, {48}, CUT_COLUMNS, 1}, {2, {48, 12}, CUT_ROWS, 1}};
    Param rows[CUT_ROWS_COUNT];
    memset(rows, 0, sizeof rows);
    for (int i = 0; i < CUT_ROWS_COUNT; i++) {
        snprintf(rows[i].name, sizeof rows[i].name, "row.%d", i);
        rows[i].dims = of[i].dims, rows[i].dim[0] = of[i].dim[0], rows[i].dim[1] = of[i].dim[1];
        rows[i].cut = of[i].cut, rows[i].pad = 8, rows[i].bucket = of[i].bucket;
    }
    return layout_create(rows, CUT_ROWS_COUNT, (LayoutPlace){ranks, tensor_ranks, tensor_rank, NULL, 1, 0});
}

/* Returns which of t tensor ranks owns element e of a row (parameter), by the rules of core/layout.h. The model is 12
 * wide; q, k and v together are 36, the MLP is 48. */
static int owner_of(Cut cut, int64_t e, int t, int64_t vocabulary_rows) {
    if (cut == CUT_VOCABULARY) return (int)(e / 12 / vocabulary_rows);
    if (cut == CUT_ROWS) return (int)(e / 12 / (48 / t));
    return (int)(cut == CUT_HEADS ? e % 12 / (12 / t) : e % 48 / (48 / t));
}

/* Each element of a divided row (parameter) must be in a span of exactly one rank, on the tensor rank that owns it. An
 * undivided row is held once on each tensor rank. All tensor ranks have equal places in memory. */
static void cut_rows_are_held_once(void **state) {
    (void)state;
    for (int t = 1; t <= 4; t++)
        for (int ranks = 1; ranks <= 5; ranks++) {
            Layout  first = cut_layout(ranks, t, 0);
            int8_t *held = calloc((size_t)first.elems, 1);
            for (int i = 0; i < t; i++) {
                Layout l = cut_layout(ranks, t, i);
                assert_true(l.memory_elems == first.memory_elems && l.shard_elems == first.shard_elems && l.elems == first.elems);
                for (int r = 0; r < ranks; r++)
                    for (int b = 0; b < l.buckets; b++) {
                        Span spans[CUT_ROWS_COUNT];
                        for (int k = layout_spans(&l, b, r, spans); k-- > 0;) {
                            const Param *p = &l.param[spans[k].param];
                            assert_true(p->memory == first.param[spans[k].param].memory);
                            for (int64_t at = 0, elems; at < spans[k].elems; at += elems) {
                                FileExtent run = layout_extent(&l, &spans[k], at);
                                elems = run.elems;
                                assert_true(elems > 0 && elems <= spans[k].elems - at);
                                for (int64_t e = run.offset; e < run.offset + elems; e++) {
                                    assert_true(e >= p->offset && e < p->offset + p->elems);
                                    assert_true(p->cut == CUT_NONE || owner_of(p->cut, e - p->offset, t, p->local[0]) == i);
                                    held[e]++;
                                }
                            }
                        }
                    }
                layout_destroy(&l);
            }
            for (int k = 0; k < first.params; k++)
                for (int64_t e = first.param[k].offset; e < first.param[k].offset + first.param[k].elems; e++)
                    assert_int_equal(held[e], first.param[k].cut == CUT_NONE ? t : 1);
            free(held);
            layout_destroy(&first);
        }
}

/* Makes a layout of 14 matrices ("rows"): one in bucket 0, six of each of two blocks in buckets 1 and 2, one in
 * bucket 3. The middle four of a block belong to experts 1 to 4. If expert_ranks > 1, these are in bucket 4 (first
 * block) and 5 (second block) instead. */
enum { EXPERT_ROWS_COUNT = 14, EXPERTS = 4 };
static Layout expert_layout(int ranks, int expert_ranks, int expert_rank) {
    Param rows[EXPERT_ROWS_COUNT];
    memset(rows, 0, sizeof rows);
    for (int i = 0; i < EXPERT_ROWS_COUNT; i++) {
        int block = 1 + (i - 1) / 6, within = (i - 1) % 6, is_end = i == 0 || i == EXPERT_ROWS_COUNT - 1;
        rows[i] = (Param){.dims = 2, .dim = {5 + i % 3, 13}, .bucket = i == 0 ? 0 : block};
        if (!is_end && within >= 1 && within <= EXPERTS)
            rows[i] = (Param){.dims = 2, .dim = {7, 11}, .expert = within, .bucket = expert_ranks > 1 ? 3 + block : block};
        snprintf(rows[i].name, sizeof rows[i].name, "row.%d", i);
    }
    return layout_create(rows, EXPERT_ROWS_COUNT, (LayoutPlace){ranks, 1, 0, NULL, expert_ranks, expert_rank});
}

/* Experts are divided among e expert ranks, and those of each among the ranks r with equal r % e: rank r keeps part r /
 * e. Every element must belong to exactly one rank, at its place in checkpoint files. */
static void divided_experts_are_held_once(void **state) {
    (void)state;
    Layout one = expert_layout(1, 1, 0);
    for (int e = 2; e <= EXPERTS; e *= 2)
        for (int ranks = e; ranks <= 12; ranks += e) {
            int8_t *held = calloc((size_t)one.elems, 1);
            for (int r = 0; r < ranks; r++) {
                Layout l = expert_layout(ranks, e, r % e);
                Span   spans[EXPERT_ROWS_COUNT];
                assert_true(l.elems == one.elems && l.buckets == 6);
                for (int b = 0; b < l.buckets; b++) {
                    int of_experts = b > 3;
                    assert_true(layout_is_of_experts(&l, b) == of_experts && l.bucket[b].ranks == (of_experts ? ranks / e : ranks));
                    for (int k = layout_spans(&l, b, of_experts ? r / e : r, spans); k-- > 0;) {
                        const Param *p = &l.param[spans[k].param];
                        FileExtent      run = layout_extent(&l, &spans[k], 0);
                        assert_true(p->offset == one.param[spans[k].param].offset && (p->expert != 0) == of_experts);
                        assert_true(!p->expert || (p->expert - 1) / (EXPERTS / e) == r % e);
                        assert_true(run.elems == spans[k].elems && run.offset == p->offset + spans[k].first);
                        for (int64_t i = run.offset; i < run.offset + run.elems; i++) held[i]++;
                    }
                }
                layout_destroy(&l);
            }
            for (int64_t i = 0; i < one.elems; i++) assert_int_equal(held[i], 1);
            free(held);
        }
    layout_destroy(&one);
}

int main(void) {
    const struct CMUnitTest test_layout[] = {
        cmocka_unit_test(pieces_cover_everything_once),
        cmocka_unit_test(places_are_the_contracts),
        cmocka_unit_test(offsets_do_not_depend_on_ranks),
        cmocka_unit_test(cut_rows_are_held_once),
        cmocka_unit_test(divided_experts_are_held_once),
    };
    return cmocka_run_group_tests(test_layout, NULL, NULL);
}
