/* test_add.c - add_forward: each output is the f32 sum of two elements, rounded to the type, and no other element
 * changes. */
#include "test/ref/test.h"

static void test_sizes(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 3, 16, 64, 1000, 16385, 70001};
    for (int i = 0; i < COUNT(sizes); i++)
        for (int64_t off = 0; off < 2; off++) { /* once in aligned memory, once from the second element on */
            Stage  s = stage_create(0);
            Tensor y = stage_random(&s, F32, 1, sizes[i] + off, 1, 1, 1, 0),
                   x = stage_random(&s, F32, 1, sizes[i] + off, 1, 2, 1e-3, 0), was = stage_copy(&s, y);
            add_forward(&s.stream, tensor_slice(y, off, sizes[i]), tensor_slice(x, off, sizes[i]));
            device_sync(&s.stream);
            for (int64_t k = 0; k < sizes[i] + off; k++)
                assert_true(tensor_get(y, k) == tensor_get(was, k) + (k < off ? 0.0f : tensor_get(x, k)));
            stage_destroy(&s);
        }
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_sizes)};
    return cmocka_run_group_tests_name("add", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
