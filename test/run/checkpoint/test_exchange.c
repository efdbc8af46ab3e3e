/* test_exchange.c - ranks of any grid write extents (ranges of bytes) that cover the files of a checkpoint exactly
 * once. */
#include "core/error.h" /* before cmocka.h, which defines fail() as a macro */
#include "model/params.h"
#include "run/checkpoint/exchange.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Sizes of the model, which have few common factors. The number of heads, 12, must divide the width, 84. */
static const ModelShape SHAPE = GPT2_SHAPE(3, 12, 84, 41, 389);

/* Checks that f->elems is the sum of a rank's extents (ranges of the file). It is at most exchange_most_elems, by which
 * the memory of a save is sized. */
static void expect_room(const Layout *l, const FileExtents *f) {
    assert_true(f->elems <= exchange_most_elems(l));
    int64_t sum = 0;
    for (int64_t i = 0; i < f->extents; i++) sum += f->extent[i].elems;
    assert_true(sum == f->elems);
}

static void files_are_covered_once(void **state) {
    (void)state;
    for (int t = 1; t <= 4; t++)
        for (int ranks = 1; ranks <= 5; ranks++)
            for (int replicas = 1; replicas <= 2; replicas++) {
                Layout  whole = model_layout(SHAPE, (LayoutPlace){1, 1, 0, NULL, 1, 0});
                int8_t *written = calloc((size_t)whole.elems, 1);
                int64_t runs = 0;
                for (int k = 0; k < t * ranks * replicas; k++) {
                    Shards z = {.layout = model_layout(SHAPE, (LayoutPlace){ranks, t, k % t, NULL, 1, 0})};
                    z.spec = (ShardsSpec){.ranks = ranks, .rank = k / t % ranks, .replicas = replicas, .replica = k / t / ranks};
                    FileExtents f = exchange_extents(&z);
                    expect_room(&z.layout, &f);
                    runs += f.extents;
                    for (int64_t i = 0; i < f.extents; i++) {
                        assert_true(f.extent[i].offset >= 0 && f.extent[i].elems > 0 &&
                                    f.extent[i].offset + f.extent[i].elems <= whole.elems);
                        for (int64_t e = f.extent[i].offset; e < f.extent[i].offset + f.extent[i].elems; e++)
                            assert_int_equal(written[e]++, 0);
                    }
                    free(f.extent);
                    layout_destroy(&z.layout);
                }
                for (int64_t e = 0; e < whole.elems; e++) assert_int_equal(written[e], 1);
                /* Bounds the number of extents (ranges of the file). A span (part of a parameter) cut by columns
                 * consists of whole rows and a part of a row at each end, so its number of extents does not grow with
                 * its length. */
                assert_true(runs <= (int64_t)t * ranks * (whole.params + whole.buckets) * (t > 1 ? 6 * t + 1 : 1));
                free(written);
                layout_destroy(&whole);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(files_are_covered_once)};
    return cmocka_run_group_tests_name("exchange", tests, NULL, NULL);
}
