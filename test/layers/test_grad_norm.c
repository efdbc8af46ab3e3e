/* test_grad_norm.c - norm_squared and sum_forward, which add to their output. The sum is exact, so it is the same for
 * any number of threads and any division into parts. */
#include "test/ref/test.h"

#include <omp.h>

/* Makes an exact sum that begins with the value `start`. */
static Tensor sum_from(Stage *s, double start) {
    Tensor sum = stage_tensor(s, I64, 1, EXACT_WORDS, 1);
    memset(sum.data, 0, sizeof(Exact));
    exact_add((Exact *)sum.data, start);
    return sum;
}
static double value_of(Tensor sum) { return stage_settle(), exact_value((const Exact *)sum.data); }

static void test_sizes(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 7, 16, 31, 63, 64, 65, 16384, 16385, 100003, 1048576 + 17};
    for (int i = 0; i < COUNT(sizes); i++) {
        Stage  s = stage_create(0);
        Tensor x = stage_random(&s, F32, 1, sizes[i], 1, 1, 3, 0.5), norm = sum_from(&s, 7.0), sum = sum_from(&s, -5.0),
               other = sum_from(&s, 7.0);
        long double square = 7.0L, plain = -5.0L;
        for (int64_t k = 0; k < sizes[i]; k++) {
            square += (long double)tensor_get(x, k) * (long double)tensor_get(x, k);
            plain += (long double)tensor_get(x, k);
        }
        norm_squared(&s.stream, norm, &x, 1);
        sum_forward(&s.stream, sum, x);
        /* allows the rounding error of a plain sum in float64, as compare.h bounds it */
        assert_true(fabs(value_of(norm) - (double)square) <= COMPARE_K * 0x1p-53 * sqrt(64.0) * (double)square);
        assert_true(fabs(value_of(sum) - (double)plain) <=
                    0x1p-52 * fabs((double)plain) + (double)sizes[i] * 0x1p-63 * sqrt((double)square));
        int threads = omp_get_max_threads();
        omp_set_num_threads(threads + 2);
        norm_squared(&s.stream, other, &x, 1);
        omp_set_num_threads(threads);
        assert_same_bits(other, norm);
        stage_destroy(&s);
    }
}

/* Cuts a tensor at multiples of 64 elements, as it is cut into shards, and adds the parts in another order. */
static void test_any_cut(void **state) {
    (void)state;
    enum { N = 5 * 64 * 61 + 19 };
    Stage  s = stage_create(0);
    Tensor x = stage_random(&s, F32, 1, N, 1, 4, 3, 0.5), whole = sum_from(&s, 0.0), whole_sum = sum_from(&s, 0.0);
    for (int64_t i = 0; i < N; i += 3) tensor_set(x, i, ldexpf(tensor_get(x, i), (int)(i % 200) - 120));
    norm_squared(&s.stream, whole, &x, 1);
    sum_forward(&s.stream, whole_sum, x);
    for (int64_t piece = 64; piece < N; piece += 64 * 37) {
        Tensor norm = sum_from(&s, 0.0), sum = sum_from(&s, 0.0);
        for (int64_t at = (N - 1) / piece * piece; at >= 0; at -= piece) {
            Tensor part = tensor_slice(x, at, N - at < piece ? N - at : piece);
            norm_squared(&s.stream, norm, &part, 1);
            sum_forward(&s.stream, sum, part);
        }
        assert_same_bits(norm, whole);
        assert_same_bits(sum, whole_sum);
    }
    Tensor sum = sum_from(&s, 0.0);
    for (int64_t i = N - 1; i >= 0; i -= 61)
        sum_forward(&s.stream, sum, tensor_slice(x, i - 60 < 0 ? 0 : i - 60, i - 60 < 0 ? i + 1 : 61));
    assert_same_bits(sum, whole_sum); /* a tensor that begins at an unaligned place gives the same sum */
    stage_destroy(&s);
}

/* A list of tensors gives what they give one after the other. It has more tensors than one launch takes, some empty or
 * unaligned. Their squares are 200 binary digits apart. */
static void test_list(void **state) {
    (void)state;
    enum { PIECES = 350, LEAST = 61, N = PIECES * 64 };
    Stage  s = stage_create(0);
    Tensor x = stage_random(&s, F32, 1, N, 1, 5, 3, 0.5), piece[PIECES];
    for (int64_t i = 0; i < N; i++) tensor_set(x, i, ldexpf(tensor_get(x, i), (int)(i / 640 * 37 % 200) - 100));
    for (int shift = 0; shift < 2; shift++) {
        Tensor list = sum_from(&s, 3.0), singly = sum_from(&s, 3.0);
        for (int i = 0; i < PIECES; i++) piece[i] = tensor_slice(x, 64 * i + shift, i % 7 == 3 ? 0 : i % (LEAST + 1));
        piece[PIECES - 2] = tensor_slice(x, shift, 64 * 200), piece[5] = tensor_slice(x, 64 * 9 + shift, 64 * 33 + 17);
        for (int i = 0; i < PIECES; i++) norm_squared(&s.stream, singly, &piece[i], 1);
        norm_squared(&s.stream, list, piece, PIECES);
        norm_squared(&s.stream, list, NULL, 0);
        assert_same_bits(list, singly);
    }
    stage_destroy(&s);
}

/* Tests squares beyond the range of f32, the smallest subnormals, infinity and NaN. */
static void test_range(void **state) {
    (void)state;
    Stage  s = stage_create(0);
    Tensor x = stage_random(&s, F32, 1, 161, 1, 0, 0, 0), norm = sum_from(&s, 0.0);
    tensor_set(x, 3, 1e30f), tensor_set(x, 160, 1e-30f);
    norm_squared(&s.stream, norm, &x, 1);
    assert_true(value_of(norm) == (double)1e30f * (double)1e30f);
    tensor_set(x, 3, 0.0f);
    norm = sum_from(&s, 0.0);
    norm_squared(&s.stream, norm, &x, 1);
    assert_true(value_of(norm) == (double)1e-30f * (double)1e-30f);
    tensor_set(x, 64, 0x1p-149f), tensor_set(x, 160, -0x1p-149f);
    norm = sum_from(&s, 0.0);
    norm_squared(&s.stream, norm, &x, 1);
    assert_true(value_of(norm) == 0x1p-297);
    tensor_set(x, 5, -3.4e38f), tensor_set(x, 6, 3.4e38f);
    norm_squared(&s.stream, norm, &x, 1);
    assert_true(value_of(norm) == 2.0 * (double)3.4e38f * (double)3.4e38f);
    tensor_set(x, 7, -INFINITY);
    norm_squared(&s.stream, norm, &x, 1);
    assert_true(value_of(norm) == INFINITY);
    tensor_set(x, 5, NAN);
    norm_squared(&s.stream, norm, &x, 1);
    assert_true(isnan(value_of(norm)));
    stage_destroy(&s);
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_sizes), cmocka_unit_test(test_any_cut), cmocka_unit_test(test_list),
                                     cmocka_unit_test(test_range)};
    return cmocka_run_group_tests_name("norm", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
