/* test_layout.c - every parameter element lies in exactly one piece, for any table and number of ranks. */
#include "core/error.h" /* before cmocka.h, which makes a macro of fail() */
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
        rows[i].memory_rows = t->row[i].memory_rows;
        rows[i].bucket = t->row[i].bucket;
        rows[i].group = t->row[i].dims == 2 ? GROUP_MATRIX : GROUP_VECTOR;
    }
    return layout_create(rows, t->count, ranks);
}

/* Over all buckets and ranks the spans name every global offset once, at the memory place of its parameter, inside the
 * piece. */
static void check_spans(const Table *t, int ranks) {
    Layout l = layout_of(t, ranks);
    char  *seen = (char *)calloc((size_t)l.elems, 1);
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
                assert_true(span->memory - p->memory == span->offset - p->offset);
                assert_true(span->offset >= p->offset && span->offset + span->elems <= p->offset + p->elems);
                assert_int_equal(p->bucket, b);
                assert_int_equal(span->group, p->group);
                for (int64_t i = 0; i < span->elems; i++) assert_int_equal(seen[span->offset + i]++, 0);
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

/* The contract's arithmetic: rows at multiples of 64, q = 64*ceil(length/(64*W)), buckets one after another. */
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
                    length += (p->memory_rows * columns + 63) / 64 * 64;
                }
                int64_t q = (length + 64 * ranks - 1) / (64 * ranks) * 64;
                assert_true(bucket->piece_elems == q && bucket->elems == q * ranks);
                memory += bucket->elems, shard += q, first += bucket->params;
            }
            assert_true(l.elems == offset && l.memory_elems == memory && l.shard_elems == shard && first == l.params);
            layout_destroy(&l);
        }
}

/* Global offsets are those of files: they know nothing of ranks. */
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

static void rows_are_found_by_name(void **state) {
    (void)state;
    Layout l = layout_of(&TABLES[3], 3);
    assert_ptr_equal(layout_find(&l, "row.4"), &l.param[4]);
    assert_null(layout_find(&l, "row.40"));
    assert_null(layout_find(&l, "row"));
    layout_destroy(&l);
}

int main(void) {
    const struct CMUnitTest test_layout[] = {
        cmocka_unit_test(pieces_cover_everything_once),
        cmocka_unit_test(places_are_the_contracts),
        cmocka_unit_test(offsets_do_not_depend_on_ranks),
        cmocka_unit_test(rows_are_found_by_name),
    };
    return cmocka_run_group_tests(test_layout, NULL, NULL);
}
