/* test_fp8_linear.c - fp8_linear_forward and fp8_linear_backward, with a plain and with a transposed weight matrix.
 * Results are compared with float64 products of operands rounded to 8 bits in float64 (test/ref/fp8_ops.h). The
 * counts of values that were too large or vanished are compared as well. */
#include "layers/contracts.h"
#include "test/ref/fp8_ops.h"
#include "test/ref/test.h"

static DType type_of(int which) { return which == FP8_DY ? E5M2 : E4M3; }

/* Asserts what an op has recorded about one of its tensors: the largest absolute value, and after `times` calls the
 * numbers of values that were too large or vanished. */
static void assert_noted(Fp8 f, int which, RefLost lost, int times) {
    float amax;
    stage_settle();
    memcpy(&amax, (const char *)f.amax.data + 4 * which, 4);
    assert_true((double)amax == lost.amax);
    assert_int_equal(((const int64_t *)f.counts.data)[2 * which], times * lost.over);
    assert_int_equal(((const int64_t *)f.counts.data)[2 * which + 1], times * lost.vanished);
}

static Tensor identity(Stage *s, int64_t n) {
    Tensor t = stage_random(s, BF16, 2, n, n, 0, 0, 0);
    for (int64_t i = 0; i < n; i++) tensor_set(t, i * n + i, 1.0f);
    return t;
}

/* Multiplies all finite bf16 numbers by the identity, so that the results are the numbers rounded to 8 bits. */
static void round_all(int which, int exponent) {
    enum { K = 16, N = 2 * 0x7f80 / K };
    Stage   s = stage_create(STAGE_SCRATCH);
    int     exponents[FP8_TENSORS] = {0, 0, 0};
    Tensor  x = stage_tensor(&s, BF16, 2, N, K), y = stage_tensor(&s, BF16, 2, N, K), w = identity(&s, K), none = tensor_none();
    Tensor  zeros = stage_random(&s, BF16, 2, N, K, 0, 0, 0), dw = stage_random(&s, F32, 2, K, K, 0, 0, 0);
    double *want = stage_doubles(&s, N * K);
    exponents[which] = exponent;
    Fp8 f = stage_fp8(&s, exponents, 0);
    for (int64_t i = 0; i < N * K; i++) ((uint16_t *)x.data)[i] = (uint16_t)(i % 2 << 15 | i / 2);
    RefLost lost = ref_fp8_round(want, stage_widen(&s, x), N * K, ldexp(1.0, exponent), type_of(which));
    assert_true(lost.over > 0 && lost.vanished > 0);
    if (which == FP8_X) fp8_linear_forward(&s.stream, y, x, w, none, PLAIN, f);
    else fp8_linear_backward(&s.stream, y, dw, none, x, zeros, w, PLAIN, f);
    stage_settle();
    for (int64_t i = 0; i < N * K; i++)
        if ((double)bf16_to_f32(((const uint16_t *)y.data)[i]) != want[i])
            fail_msg("%s of %.9g is %.9g, not %.9g", dtype_name(type_of(which)), (double)tensor_get(x, i),
                     (double)tensor_get(y, i), want[i]);
    assert_noted(f, which, lost, 1);
    stage_destroy(&s);
}

static void test_all_numbers(void **state) {
    (void)state;
    static const int exponents[] = {0, 7, -20};
    for (int i = 0; i < COUNT(exponents); i++) round_all(FP8_X, exponents[i]), round_all(FP8_DY, exponents[i]);
}

/* An infinite or undefined value is not counted as too large. Its row of the result becomes NaN, and the recorded
 * maximum shows it. */
static void test_faults(void **state) {
    (void)state;
    static const uint16_t faults[] = {0x7f80, 0xff80, 0x7fc1};
    for (int i = 0; i < COUNT(faults); i++) {
        Stage  s = stage_create(STAGE_SCRATCH);
        Tensor x = stage_random(&s, BF16, 2, 3, 16, 1, 1, 0), w = stage_random(&s, BF16, 2, 16, 16, 2, 1, 0);
        Tensor y = stage_tensor(&s, BF16, 2, 3, 16);
        Fp8    f = stage_fp8(&s, (const int[]){0, 0, 0}, i % 2);
        stage_settle();
        ((uint16_t *)x.data)[16 + 5] = faults[i];
        fp8_linear_forward(&s.stream, y, x, w, tensor_none(), PLAIN, f);
        for (int k = 0; k < 3 * 16; k++) assert_true(isnan(tensor_get(y, k)) == (k / 16 == 1));
        assert_int_equal(((const int32_t *)f.amax.data)[FP8_X], (faults[i] & 0x7fff) << 16);
        stage_destroy(&s);
    }
}

typedef struct { double *x, *w, *dy; RefLost of[FP8_TENSORS]; } Rounded;

static Rounded round_operands(Stage *s, Tensor x, Tensor w, Tensor dy, const int exponent[FP8_TENSORS], int uses_own) {
    Rounded r = {stage_widen(s, x), stage_widen(s, w), stage_widen(s, dy), {{0, 0, 0}}};
    double *of[] = {r.x, r.w, r.dy};
    int64_t n[] = {tensor_elems(x), tensor_elems(w), tensor_elems(dy)};
    for (int k = 0; k < FP8_TENSORS; k++) {
        double amax = 0.0;
        for (int64_t i = 0; i < n[k]; i++) amax = fmax(amax, fabs(of[k][i]));
        double scale = uses_own ? ref_fp8_scale(amax, type_of(k)) : ldexp(1.0, exponent[k]);
        r.of[k] = ref_fp8_round(of[k], of[k], n[k], scale, type_of(k));
    }
    return r;
}

static double *turned(Stage *s, const double *w, int64_t rows, int64_t columns) {
    double *t = stage_doubles(s, rows * columns);
    for (int64_t i = 0; i < rows * columns; i++) t[i % columns * rows + i / columns] = w[i];
    return t;
}

/* Returns the bound for a sum of products of 8-bit numbers. A Hopper GPU truncates the products of an instruction to
 * some 14 bits of the largest before it adds them to the f32 sum (arXiv:2412.19437, section 3.3.2;
 * test/emu/compare_calibration.py measures it). The CPU and the emulator do not. */
static Bound bound_fp8(int64_t terms) {
    Bound b = bound_sum(terms);
    if (strcmp(device_backend(), "cuda") == 0) b.inner = 0x1p-14 / unit_roundoff(BF16);
    return b;
}

/* Compares y, dx, dw and db of two steps. w is [K,M], or transposed as in the output head. dw begins with values, or
 * with NaN if is_fresh. */
static void compare(int64_t N, int64_t K, int64_t M, int uses_own, int is_fresh) {
    /* exponents of scales: with these, x saturates and w loses its smallest values */
    static const int exponent[FP8_TENSORS] = {8, 2, 14};
    Stage   s = stage_create(STAGE_SCRATCH);
    Tensor  x = stage_random(&s, BF16, 2, N, K, 1, 2, 0), w = stage_random(&s, BF16, 2, K, M, 2, 0.05, 0);
    Tensor  wt = stage_tensor(&s, BF16, 2, M, K);
    Tensor  b = stage_random(&s, BF16, 1, M, 1, 3, 1, 0), dy = stage_random(&s, BF16, 2, N, M, 4, 1e-3, 0);
    Tensor  y = stage_tensor(&s, BF16, 2, N, M), yt = stage_tensor(&s, BF16, 2, N, M), dx = stage_tensor(&s, BF16, 2, N, K);
    Tensor  dxt = stage_tensor(&s, BF16, 2, N, K), dw = stage_random(&s, F32, 2, K, M, 5, 1e-3, 0);
    Tensor  dwt = stage_random(&s, F32, 2, M, K, 6, 1e-3, 0);
    Tensor  db = stage_random(&s, F32, 1, M, 1, 7, 1e-3, 0), none = tensor_none();
    if (is_fresh) dw = stage_fresh(&s, K, M), dwt = stage_fresh(&s, M, K);
    for (int64_t i = 0; i < K * M; i++) tensor_set(wt, i % M * K + i / M, tensor_get(w, i));
    Rounded r = round_operands(&s, x, w, dy, exponent, uses_own);
    if (!uses_own && N * K > 64 && K * M > 256) assert_true(r.of[FP8_X].over > 0 && r.of[FP8_W].vanished > 0);
    double *y64 = stage_doubles(&s, N * M), *dx64 = stage_doubles(&s, N * K), *dw64 = is_fresh ? stage_doubles(&s, K * M) : stage_widen(&s, dw), *db64 = stage_widen(&s, db);
    double *plain64 = stage_doubles(&s, N * M), *nothing = stage_doubles(&s, M), *unused = stage_doubles(&s, K * M);
    double *dwt64 = is_fresh ? stage_doubles(&s, K * M) : turned(&s, stage_widen(&s, dwt), M, K);
    ref_linear_forward(y64, r.x, r.w, stage_widen(&s, b), N, K, M);
    ref_linear_forward(plain64, r.x, r.w, nothing, N, K, M);
    double *bias_dy = stage_widen(&s, dy);
    for (int pass = 0; pass < 2; pass++) {
        ref_linear_backward(dx64, dw64, nothing, r.dy, r.x, r.w, N, K, M);
        ref_linear_backward(dx64, dwt64, nothing, r.dy, r.x, r.w, N, K, M);
        ref_linear_backward(stage_doubles(&s, N * K), unused, db64, bias_dy, r.x, r.w, N, K, M);
    }
    Fp8 f = stage_fp8(&s, exponent, uses_own), of_head = stage_fp8(&s, exponent, uses_own);
    fp8_linear_forward(&s.stream, y, x, w, b, PLAIN, f);
    fp8_linear_forward(&s.stream, yt, x, wt, tensor_none(), TRANSPOSED, of_head);
    fp8_linear_backward(&s.stream, dx, dw, db, dy, x, w, PLAIN, f);
    dw.is_fresh = 0;
    fp8_linear_backward(&s.stream, dx, dw, none, dy, x, w, PLAIN, f);
    bias_backward(&s.stream, db, dy);
    fp8_linear_backward(&s.stream, dxt, dwt, tensor_none(), dy, x, wt, TRANSPOSED, of_head);
    dwt.is_fresh = 0;
    fp8_linear_backward(&s.stream, dxt, dwt, tensor_none(), dy, x, wt, TRANSPOSED, of_head);
    assert_close(y, y64, BF16, bound_fp8(K + 1));
    assert_close(yt, plain64, BF16, bound_fp8(K));
    assert_close(dx, dx64, BF16, bound_fp8(M));
    assert_close(dxt, dx64, BF16, bound_fp8(M));
    assert_close(dw, dw64, BF16, bound_fp8(2 * N));
    assert_close(dwt, turned(&s, dwt64, K, M), BF16, bound_fp8(2 * N));
    assert_close(db, db64, BF16, bound_sum(2 * N));
    for (int k = 0; k < FP8_TENSORS; k++) {
        assert_noted(f, k, r.of[k], k == FP8_DY ? 2 : 1);
        assert_noted(of_head, k, r.of[k], k == FP8_DY ? 2 : 1);
    }
    stage_destroy(&s);
}

static void test_shapes(void **state) {
    (void)state;
    static const int64_t shapes[][3] = {{1, 16, 16}, {5, 16, 48}, {33, 80, 32}, {130, 64, 144}, {64, 128, 64}};
    for (int i = 0; i < COUNT(shapes); i++)
        for (int kind = 0; kind < 4; kind++) compare(shapes[i][0], shapes[i][1], shapes[i][2], kind & 1, kind / 2);
}

/* A tensor of zeros needs no scale. The recorded largest absolute value (amax) stays unchanged. */
static void test_zeros(void **state) {
    (void)state;
    Stage  s = stage_create(STAGE_SCRATCH);
    Tensor x = stage_random(&s, BF16, 2, 4, 16, 0, 0, 0), w = stage_random(&s, BF16, 2, 16, 16, 2, 1, 0);
    Tensor y = stage_tensor(&s, BF16, 2, 4, 16);
    Fp8    f = stage_fp8(&s, (const int[]){0, 0, 0}, 1);
    stage_settle();
    ((int32_t *)f.amax.data)[FP8_X] = 0x40000000, f.counts = tensor_none();
    fp8_linear_forward(&s.stream, y, x, w, tensor_none(), PLAIN, f);
    for (int i = 0; i < 4 * 16; i++) assert_true(tensor_get(y, i) == 0.0f);
    assert_int_equal(((const int32_t *)f.amax.data)[FP8_X], 0x40000000);
    stage_destroy(&s);
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_all_numbers), cmocka_unit_test(test_faults), cmocka_unit_test(test_shapes),
                                     cmocka_unit_test(test_zeros)};
    return cmocka_run_group_tests_name("fp8_linear", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
