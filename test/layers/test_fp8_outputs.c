/* test_fp8_outputs.c - fp8_activation_forward, fp8_activation_backward, fp8_swiglu_forward, fp8_swiglu_backward,
 * fp8_layernorm_forward, fp8_rmsnorm_forward and fp8_attention_backward: the ops that write 8-bit codes directly. The
 * codes equal float64's rounding of what the same op in bf16 stores, in its own order and transposed. A matrix product
 * of the codes has the bits of a product that casts its bf16 input. Maxima and counts are equal, too. */
#include "test/ref/fp8_ops.h"
#include "test/ref/test.h"

/* exponents of scales with which some of the test's values saturate and some vanish */
enum { OF_X = 6, OF_DY = 12, SIDE = 32 };
static const int EXPONENTS[FP8_TENSORS] = {OF_X, 5, OF_DY};

/* the output of one op in bf16 (plain) and in 8 bits (codes), with the scales and counts in f */
typedef struct { Stage s; Tensor plain, codes; Fp8 f; } Case;

static Tensor bf16(Case *k, int64_t rows, int64_t columns) { return stage_tensor(&k->s, BF16, 2, rows, columns); }

static Case case_of(int64_t rows, int64_t columns, DType type) {
    Case k = {.s = stage_create(STAGE_SCRATCH)};
    k.plain = bf16(&k, rows, columns), k.codes = bf16(&k, rows, columns), k.f = stage_fp8(&k.s, EXPONENTS, 0);
    k.codes.type = type;
    return k;
}

/* Makes an input with values of all kinds: up to `spread`, tiny, zero. If `fault` is not 0, it is one of the values. */
static Tensor input(Case *k, int64_t rows, int64_t columns, uint64_t seed, double spread, float fault) {
    Tensor x = stage_random(&k->s, BF16, 2, rows, columns, seed, spread, 0);
    for (int64_t i = 3; i < rows * columns; i += 11) tensor_set(x, i, tensor_get(x, i) * (i % 2 ? 0x1p-40f : 0.0f));
    if (fault != 0.0f) tensor_set(x, rows * columns / 2, fault);
    return x;
}

/* Checks the 8-bit codes of an output, in its own order and transposed, the recorded maximum, and how many values
 * were too large or vanished. On the CPU `codes` stores the values of the codes as bf16, not transposed. */
static void assert_codes(Case *k) {
    DType   type = k->codes.type;
    int64_t R = k->plain.dim[0], C = k->plain.dim[1];
    double  scale = ldexp(1.0, type == E4M3 ? OF_X : OF_DY);
    const uint8_t *codes = (const uint8_t *)k->codes.data;
    const int64_t *lost = (const int64_t *)k->f.counts.data + 2 * (type == E4M3 ? FP8_X : FP8_DY);
    int64_t        over = 0, vanished = 0;
    int32_t        most = 0;
    stage_settle();
    for (int64_t i = 0; i < R * C; i++) {
        int    bits = ((const uint16_t *)k->plain.data)[i], size = bits & 0x7fff;
        double value = (double)bf16_to_f32((uint16_t)bits);
        most = size > most ? size : most;
        int    want = ref_fp8_code(value * scale, type);
        over += isfinite(value) && fabs(value * scale) > (type == E4M3 ? 448.0 : 57344.0);
        vanished += value != 0.0 && (want & 0x7f) == 0;
        if (!device_is_host()) {
            assert_int_equal(codes[i], want);
            assert_int_equal(codes[R * C + i % C * R + i / C], want);
            continue;
        }
        double is = (double)bf16_to_f32(((const uint16_t *)k->codes.data)[i]), number = ref_fp8_value(want, type) / scale;
        assert_true(is == number || (isnan(is) && isnan(number)));
    }
    assert_int_equal(((const int32_t *)k->f.amax.data)[type == E4M3 ? FP8_X : FP8_DY], most << 16);
    assert_int_equal(lost[0], over);
    assert_int_equal(lost[1], vanished);
}

static void assert_same_cells(Fp8 a, Fp8 b, int which) {
    stage_settle();
    assert_int_equal(((const int32_t *)a.amax.data)[which], ((const int32_t *)b.amax.data)[which]);
    for (int i = 0; i < 2; i++)
        assert_int_equal(((const int64_t *)a.counts.data)[2 * which + i], ((const int64_t *)b.counts.data)[2 * which + i]);
}

/* Checks products of x [N,K], w [K,M] and dy [N,M], in which x or dy is the output of the op under test. */
static void assert_products(Case *k) {
    int     is_x = k->codes.type == E4M3;
    int64_t N = k->plain.dim[0], K = is_x ? k->plain.dim[1] : SIDE, M = is_x ? SIDE : k->plain.dim[1];
    Stage  *s = &k->s;
    Tensor  w = stage_random(s, BF16, 2, K, M, 8, 0.1, 0), other = stage_random(s, BF16, 2, N, SIDE, 9, 0.1, 0), none = tensor_none();
    Tensor  y[2], dx[2], dw[2];
    Fp8     cast = stage_fp8(s, EXPONENTS, 0);
    for (int i = 0; i < 2; i++) {
        Tensor t = i ? k->codes : k->plain, x = is_x ? t : other, dy = is_x ? other : t;
        Fp8    f = i ? k->f : cast;
        y[i] = stage_tensor(s, BF16, 2, N, M), dx[i] = stage_tensor(s, BF16, 2, N, K), dw[i] = stage_random(s, F32, 2, K, M, 7, 1, 0);
        if (is_x) fp8_linear_forward(&s->stream, y[i], x, w, none, PLAIN, f);
        fp8_linear_backward(&s->stream, dx[i], dw[i], none, dy, x, w, PLAIN, f);
    }
    if (is_x) assert_same_bits(y[0], y[1]);
    assert_same_bits(dx[0], dx[1]);
    assert_same_bits(dw[0], dw[1]);
    assert_same_cells(cast, k->f, is_x ? FP8_X : FP8_DY);
}

static void assert_lost(Case *k, int which, int is_long) {
    const int64_t *lost = (const int64_t *)k->f.counts.data + 2 * which;
    stage_settle();
    /* some values were too large and some vanished, so both counts are tested */
    if (is_long) assert_true(lost[0] > 0 && lost[1] > 0);
}

static void activation(Activation kind, int64_t N, int64_t M, float fault) {
    Case   k = case_of(N, M, E4M3);
    Tensor x = input(&k, N, M, 1, 12, fault);
    activation_forward(&k.s.stream, kind, k.plain, x);
    fp8_activation_forward(&k.s.stream, kind, k.codes, x, k.f);
    assert_codes(&k), assert_products(&k), assert_lost(&k, FP8_X, N * M > 1000);
    stage_destroy(&k.s);
}

/* Tests the gradient of an activation in 8 bits, without and with column sums for the bias. The bound of these sums
 * holds for any order of additions. */
static void activation_grad(Activation kind, int64_t N, int64_t M, float fault) {
    Case    k = case_of(N, M, E5M2);
    Tensor  x = input(&k, N, M, 1, 6, fault), dy = input(&k, N, M, 2, 20, 0.0f), dbias = stage_random(&k.s, F32, 1, M, 1, 3, 1, 0);
    double *sums = stage_widen(&k.s, dbias);
    activation_backward(&k.s.stream, kind, k.plain, tensor_none(), dy, x);
    fp8_activation_backward(&k.s.stream, kind, k.codes, N % 32 && fault != 0.0f ? tensor_none() : dbias, dy, x, k.f);
    for (int64_t i = 0; i < N * M; i++) sums[i % M] += (double)tensor_get(k.plain, i);
    if (fault == 0.0f) assert_close(dbias, sums, F32, bound_sum(N));
    if (N * M < 100000) assert_codes(&k);
    assert_products(&k), assert_lost(&k, FP8_DY, N * M > 1000);
    stage_destroy(&k.s);
}

static void swiglu(int64_t N, int64_t F, float fault) {
    Case   k = case_of(N, F, E4M3), d = case_of(N, 2 * F, E5M2);
    Tensor gate_up = input(&k, N, 2 * F, 1, 6, fault), dy = input(&k, N, F, 2, 8, 0.0f);
    swiglu_forward(&k.s.stream, k.plain, gate_up);
    fp8_swiglu_forward(&k.s.stream, k.codes, gate_up, k.f);
    assert_codes(&k), assert_products(&k), assert_lost(&k, FP8_X, N * F > 1000);
    stage_settle();
    swiglu_backward(&d.s.stream, d.plain, dy, gate_up);
    fp8_swiglu_backward(&d.s.stream, d.codes, dy, gate_up, d.f);
    assert_codes(&d), assert_products(&d), assert_lost(&d, FP8_DY, N * F > 1000);
    stage_destroy(&d.s), stage_destroy(&k.s);
}

typedef enum { LAYERNORM, RMSNORM } NormKind;
typedef enum { ALONE, WITH_UPDATE } NormUse;

/* Tests a norm's output in 8 bits. The weights begin `offset` elements after an aligned place. */
static void norm(NormKind kind, NormUse use, int64_t N, int64_t C, float fault, int64_t offset) {
    Case   k = case_of(N, C, E4M3);
    Tensor x = input(&k, N, C, 1, 6, fault), none = tensor_none(), update = use == ALONE ? none : input(&k, N, C, 2, 3, 0.0f);
    Tensor w = tensor_slice(stage_random(&k.s, BF16, 1, C + offset, 1, 3, 6, 0), offset, C);
    Tensor b = stage_random(&k.s, BF16, 1, C, 1, 4, 1e-4, 0);
    Tensor sum[2], mean[2], rstd[2];
    for (int i = 0; i < 2; i++) {
        sum[i] = use == ALONE ? none : bf16(&k, N, C);
        mean[i] = stage_tensor(&k.s, F32, 1, N, 1), rstd[i] = stage_tensor(&k.s, F32, 1, N, 1);
    }
    if (kind == LAYERNORM) {
        layernorm_forward(&k.s.stream, sum[0], k.plain, mean[0], rstd[0], x, update, w, b, 1e-5f);
        fp8_layernorm_forward(&k.s.stream, sum[1], k.codes, mean[1], rstd[1], x, update, w, b, 1e-5f, k.f);
    } else {
        rmsnorm_forward(&k.s.stream, sum[0], k.plain, rstd[0], x, update, w, 1e-5f);
        fp8_rmsnorm_forward(&k.s.stream, sum[1], k.codes, rstd[1], x, update, w, 1e-5f, k.f);
    }
    if (kind == LAYERNORM) assert_same_bits(mean[0], mean[1]);
    assert_same_bits(rstd[0], rstd[1]);
    if (use == WITH_UPDATE) assert_same_bits(sum[0], sum[1]);
    assert_codes(&k), assert_products(&k);
    if (fault == 0.0f) assert_lost(&k, FP8_X, N * C > 1000 && kind == RMSNORM);
    stage_destroy(&k.s);
}

/* Tests attention's backward pass with gradients in 8 bits, in sequences of documents of `every` tokens; 0: each
 * sequence is one document. If no kernel can write codes, the op changes nothing. */
static void attention(int64_t B, int64_t T, int64_t H, int64_t every) {
    enum { D = 64 };
    HeadShape h = {H, H, D};
    Case      k = case_of(B * T, heads_columns(h), E5M2);
    Stage    *s = &k.s;
    Tensor    qkv = stage_random(s, BF16, 2, B * T, heads_columns(h), 1, 2, 0), dy = input(&k, B * T, H * D, 2, 40, 0.0f), none = tensor_none();
    Tensor    y = bf16(&k, B * T, H * D), lse = stage_tensor(s, F32, 2, B * H, T), starts = none, dbias[3];
    for (int i = 0; i < 3; i++) dbias[i] = stage_random(s, F32, 1, heads_columns(h), 1, 5, 1, 0);
    if (every) starts = stage_tokens(s, 2, B, T, 1, 2);
    stage_settle();
    for (int64_t i = 0; every && i < B * T; i++) ((int32_t *)starts.data)[i] = (int32_t)(i % T - i % T % every);
    attention_forward(&s->stream, y, lse, qkv, starts, h);
    attention_backward(&s->stream, k.plain, dbias[0], dy, y, lse, none, qkv, starts, h);
    int is_cast = fp8_attention_backward(&s->stream, k.codes, dbias[1], dy, y, lse, none, qkv, starts, h, k.f);
    stage_settle();
    assert_int_equal(is_cast, strcmp(device_isa(), "sm_90") == 0 && T % 16 == 0);
    assert_same_bits(dbias[1], dbias[is_cast ? 0 : 2]);
    assert_int_equal(((const int32_t *)k.f.amax.data)[FP8_DY] > 0, is_cast);
    if (is_cast) assert_codes(&k), assert_products(&k), assert_lost(&k, FP8_DY, 1);
    stage_destroy(s);
}

static const float FAULTS[] = {0.0f, INFINITY, -NAN};

static void test_activations(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{16, 16}, {48, 80}, {144, 64}, {272, 144}};
    for (int i = 0; i < COUNT(shapes); i++) {
        float fault = FAULTS[i % COUNT(FAULTS)];
        for (Activation kind = 0; kind < ACTIVATION_COUNT; kind++) {
            activation(kind, shapes[i][0], shapes[i][1], fault);
            activation_grad(kind, shapes[i][0], shapes[i][1], fault);
        }
        swiglu(shapes[i][0], shapes[i][1], fault);
    }
    activation_grad(ACTIVATION_GELU_NEW, 16400, 16, 0.0f); /* so many rows that a block computes two tiles */
}

/* One warp computes a row of up to 2048 channels and writes 8 bits. Longer rows, and rows with weights that are not
 * aligned, are written in 16 bits and cast to 8 bits afterwards. */
static void test_norms(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{16, 16}, {48, 272}, {32, 768}, {16, 1040}};
    for (int i = 0; i < 2 * COUNT(shapes); i++) {
        norm(LAYERNORM, (NormUse)(i % 2), shapes[i / 2][0], shapes[i / 2][1], FAULTS[i % COUNT(FAULTS)], 0);
        norm(RMSNORM, (NormUse)(i % 2), shapes[i / 2][0], shapes[i / 2][1], FAULTS[i % COUNT(FAULTS)], 0);
    }
    for (int use = ALONE; use <= WITH_UPDATE; use++)
        norm(LAYERNORM, (NormUse)use, 16, 48, 0.0f, 1), norm(RMSNORM, (NormUse)use, 16, 48, 0.0f, 1);
    norm(RMSNORM, ALONE, 16, 2064, 0.0f, 0);
}

static void test_attention(void **state) {
    (void)state;
    const char *asked = getenv("TRAIN_GPT_ATTENTION");
    char       *before = asked ? strdup(asked) : NULL;
    if (strcmp(device_isa(), "sm_90") == 0) setenv("TRAIN_GPT_ATTENTION", "hopper-heads", 1);
    attention(1, 48, 1, 0), attention(2, 144, 1, 0), attention(1, 272, 2, 0), attention(3, 80, 2, 50), attention(1, 72, 1, 0);
    if (before) setenv("TRAIN_GPT_ATTENTION", before, 1);
    else unsetenv("TRAIN_GPT_ATTENTION");
    free(before);
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_activations), cmocka_unit_test(test_norms), cmocka_unit_test(test_attention)};
    return cmocka_run_group_tests_name("fp8_outputs", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
