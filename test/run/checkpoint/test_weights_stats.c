/* test_weights_stats.c - statistics of tensors compared with plain loops over the same values, across blocks and
 * types. */
#include "run/checkpoint/weights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MANY = WEIGHTS_BLOCK + 70001 }; /* number of values: a full block, and a second one of an odd length */

/* Writes a file of these tensors, with their values one after another. */
static void write_file(const char *path, SafeTensor *t, int tensors, const void *values, size_t bytes) {
    size_t header;
    char  *head = safetensors_header(t, tensors, &header);
    FILE  *f = fopen(path, "wb");
    assert_true(f && head && fwrite(head, 1, header, f) == header && fwrite(values, 1, bytes, f) == bytes);
    fclose(f);
    free(head);
}

static float *values_of(int seed) {
    float *x = malloc(sizeof *x * MANY);
    assert_non_null(x);
    /* fills x with multiples of 1/64, whose squares add up exactly */
    for (int64_t i = 0; i < MANY; i++) x[i] = (float)((i * 37 + seed) % 1001 - 500) / 64.0f;
    return x;
}

static char folder[] = "/tmp/weights_stats_XXXXXX";
static const char *in_folder(const char *name) {
    static char path[2][64];
    static int  turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

static void test_stats(void **state) {
    (void)state;
    float     *x = values_of(0);
    SafeTensor t = {.name = "x", .type = SAFE_F32, .dims = 1, .dim = {MANY}};
    double     squares = 0;
    x[3] = NAN, x[WEIGHTS_BLOCK + 5] = -NAN, x[7] = INFINITY, x[MANY - 1] = -INFINITY, x[100] = -900.0f,
    x[MANY - 2] = 901.5f;
    for (int64_t i = 0; i < MANY; i++) squares += isfinite(x[i]) ? (double)x[i] * x[i] : 0;
    write_file(in_folder("a.safetensors"), &t, 1, x, sizeof *x * MANY);
    for (int threads = 1; threads <= 3; threads++) {
        omp_set_num_threads(threads);
        WeightsFile  w = weights_open(in_folder("a.safetensors"));
        WeightsStats s = weights_stats(&w, &w.header.tensor[0]);
        assert_true(s.elems == MANY && s.nans == 2 && s.infs == 2);
        assert_true(s.squares == squares && weights_norm(&s) == sqrt(squares));
        assert_true(s.least == -900.0 && s.most == 901.5);
        weights_close(&w);
    }
    free(x);
}

static void test_no_finite_value(void **state) {
    (void)state;
    float        x[2] = {NAN, INFINITY};
    SafeTensor   t = {.name = "x", .type = SAFE_F32, .dims = 1, .dim = {2}};
    WeightsStats all = weights_stats_none();
    write_file(in_folder("a.safetensors"), &t, 1, x, sizeof x);
    WeightsFile  w = weights_open(in_folder("a.safetensors"));
    WeightsStats s = weights_stats(&w, &w.header.tensor[0]), other = {2, 0, 0, 5.0, 1.0, 2.0};
    assert_true(s.elems == 2 && s.nans == 1 && s.infs == 1 && s.squares == 0 && isnan(s.least) && isnan(s.most));
    weights_stats_add(&all, &s);
    weights_stats_add(&all, &other);
    weights_stats_add(&all, &s);
    assert_true(all.elems == 6 && all.nans == 2 && all.infs == 2 && all.least == 1.0 && all.most == 2.0 &&
                all.squares == 5.0);
    weights_close(&w);
}

static void test_diff(void **state) {
    (void)state;
    float     *x = values_of(0), *y = values_of(0);
    SafeTensor t = {.name = "x", .type = SAFE_F32, .dims = 1, .dim = {MANY}};
    double     of = 0;
    for (int64_t i = 0; i < MANY; i++) of += (double)x[i] * x[i];
    write_file(in_folder("a.safetensors"), &t, 1, x, sizeof *x * MANY);
    WeightsFile a = weights_open(in_folder("a.safetensors")), b = weights_open(in_folder("a.safetensors"));
    WeightsDiff d = weights_diff(&a, &a.header.tensor[0], &b, &b.header.tensor[0]);
    assert_true(d.elems == MANY && d.differ == 0 && d.most == 0 && weights_diff_relative(&d) == 0 && d.of == of);
    weights_close(&b);
    y[11] += 3.0f, y[MANY - 1] -= 4.0f, y[12] = NAN;
    write_file(in_folder("b.safetensors"), &t, 1, y, sizeof *y * MANY);
    b = weights_open(in_folder("b.safetensors"));
    d = weights_diff(&a, &a.header.tensor[0], &b, &b.header.tensor[0]);
    assert_true(d.differ == 3 && d.nans == 1 && d.most == 4.0 && d.squares == 25.0);
    assert_true(weights_diff_relative(&d) == sqrt(25.0 / of));
    weights_close(&a), weights_close(&b);
    free(x), free(y);
}

static void test_other_types(void **state) {
    (void)state;
    static const uint16_t bits[6] = {0x3F80, 0xC000, 0x7FC0,
                                     /* the first three are the bf16 numbers 1, -2, NaN; the last three the fp16 numbers
                                      * 1, -2, infinity */
                                     0x3C00, 0xC000, 0x7C00};
    SafeTensor            t[3] = {{.name = "b", .type = SAFE_BF16, .dims = 1, .dim = {3}},
                                  {.name = "h", .type = SAFE_F16, .dims = 1, .dim = {3}},
                                  {.name = "u", .type = SAFE_U8, .dims = 1, .dim = {4}}};
    char                  bytes[16] = {0};
    memcpy(bytes, bits, sizeof bits);
    write_file(in_folder("a.safetensors"), t, 3, bytes, sizeof bytes);
    WeightsFile  w = weights_open(in_folder("a.safetensors"));
    WeightsStats s = weights_stats(&w, &w.header.tensor[0]), h = weights_stats(&w, &w.header.tensor[1]);
    assert_true(s.squares == 5 && s.nans == 1 && s.infs == 0 && s.least == -2 && s.most == 1);
    assert_true(h.squares == 5 && h.nans == 0 && h.infs == 1 && h.least == -2 && h.most == 1);
    assert_false(weights_has_values(&w.header.tensor[2]));
    assert_true(weights_elems(&w.header.tensor[2]) == 4);
    weights_close(&w);
}

static int make_folder(void **state) { return (void)state, mkdtemp(folder) ? 0 : -1; }
static int remove_folder(void **state) {
    (void)state;
    unlink(in_folder("a.safetensors")), unlink(in_folder("b.safetensors"));
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_stats), cmocka_unit_test(test_no_finite_value),
                                     cmocka_unit_test(test_diff), cmocka_unit_test(test_other_types)};
    return cmocka_run_group_tests_name("weights_stats", all, make_folder, remove_folder);
}
