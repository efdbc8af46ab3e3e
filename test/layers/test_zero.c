/* test_zero.c - zero_tensors sets each tensor of the list to zero, and nothing else. */
#include "test/ref/test.h"

/* Zeroes more tensors than one launch takes. Some are empty, some large. They have any alignment. One element lies
 * between two neighbours and must keep its value. */
static void test_list(void **state) {
    (void)state;
    enum { PIECES = 350, ROOM = 100000 };
    static const int64_t sizes[] = {1, 3, 64, 0, 257, 4096, 4097, 7};
    Stage  s = stage_create(0);
    Tensor x = stage_tensor(&s, F32, 1, ROOM + PIECES * 1200, 1), piece[PIECES];
    char  *is_zero = calloc((size_t)tensor_elems(x), 1);
    int64_t at = 1;
    for (int i = 0; i < PIECES; i++) {
        int64_t n = i == 5 ? ROOM / 2 : sizes[i % COUNT(sizes)];
        piece[i] = tensor_slice(x, at, n);
        memset(is_zero + at, 1, (size_t)n);
        at += n + 1;
    }
    zero_tensors(&s.stream, piece, PIECES);
    zero_tensors(&s.stream, NULL, 0);
    device_sync(&s.stream);
    const float *got = (const float *)x.data;
    for (int64_t i = 0; i < tensor_elems(x); i++) assert_true(is_zero[i] ? got[i] == 0.0f : isnan(got[i]));
    free(is_zero);
    stage_destroy(&s);
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_list)};
    return cmocka_run_group_tests_name("zero", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
