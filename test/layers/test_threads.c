/* test_threads.c - equal bits for any number of threads (Stream.any_threads). Tests every op that adds across rows,
 * heads or channels, at sizes of several tiles, chunks and work items. Results are compared with those of one thread;
 * other tests check the values. */
#include "test/ref/test.h"

#include <omp.h>

static const int THREADS[] = {1, 2, 3, 8};
enum { OUTPUTS = 4 };

typedef struct { Tensor out[OUTPUTS]; int count; } Outputs;
typedef Outputs Op(Stage *s, DType act);

static Tensor random_act(Stage *s, DType act, int64_t a, int64_t b, uint64_t seed) {
    return stage_random(s, act, b ? 2 : 1, a, b ? b : 1, seed, 1, 0);
}
/* returns a tensor of zeros for sums that ops add to */
static Tensor zeros(Stage *s, int64_t a, int64_t b) { return stage_random(s, F32, b ? 2 : 1, a, b ? b : 1, 9, 1, 0); }

/* A product of several tiles in each direction. The inner length of its weight gradient is larger than a strip of
 * layers/matmul.c (STRIP_K). */
static Outputs linear(Stage *s, DType act) {
    int64_t N = 1100, K = 420, M = 1205;
    Tensor  x = random_act(s, act, N, K, 1), w = random_act(s, act, K, M, 2), b = random_act(s, act, M, 0, 3),
           y = stage_tensor(s, act, 2, N, M);
    Tensor  dx = stage_tensor(s, act, 2, N, K), dw = zeros(s, K, M), db = zeros(s, M, 0), dy = random_act(s, act, N, M, 4);
    linear_forward(&s->stream, y, x, w, b, PLAIN);
    linear_backward(&s->stream, dx, dw, db, dy, x, w, PLAIN);
    return (Outputs){{y, dx, dw, db}, 4};
}
/* A product whose input gradient is fastest by oneDNN's primitive on some machines. */
static Outputs narrow_linear(Stage *s, DType act) {
    int64_t N = 200, K = 130, M = 520;
    Tensor  x = random_act(s, act, N, K, 1), w = random_act(s, act, K, M, 2), dy = random_act(s, act, N, M, 4);
    Tensor  dx = stage_tensor(s, act, 2, N, K), dw = zeros(s, K, M), db = zeros(s, M, 0);
    linear_backward(&s->stream, dx, dw, db, dy, x, w, PLAIN);
    return (Outputs){{dx, dw, db}, 3};
}
/* A product with long sums for few elements, which libraries divide among threads. */
static Outputs long_linear(Stage *s, DType act) {
    int64_t N = 24, K = 8192, M = 40;
    Tensor  x = random_act(s, act, N, K, 1), w = random_act(s, act, K, M, 2), b = random_act(s, act, M, 0, 3),
           y = stage_tensor(s, act, 2, N, M);
    linear_forward(&s->stream, y, x, w, b, PLAIN);
    return (Outputs){{y}, 1};
}
static Outputs head(Stage *s, DType act) {
    int64_t n = 70, C = 100, padded = 2176;
    Tensor  x = random_act(s, act, n, C, 1), wte = random_act(s, act, padded, C, 2), logits = random_act(s, act, n, padded, 3);
    Tensor  dx = stage_tensor(s, act, 2, n, C), dwte = zeros(s, padded, C);
    linear_forward(&s->stream, logits, x, wte, tensor_none(), TRANSPOSED);
    linear_backward(&s->stream, dx, dwte, tensor_none(), logits, x, wte, TRANSPOSED);
    return (Outputs){{logits, dx, dwte}, 3};
}
static Outputs layernorm(Stage *s, DType act) {
    int64_t N = 517, C = 42;
    Tensor  x = random_act(s, act, N, C, 1), w = random_act(s, act, C, 0, 2), b = random_act(s, act, C, 0, 3),
           y = stage_tensor(s, act, 2, N, C);
    Tensor  mean = stage_tensor(s, F32, 1, N, 1), rstd = stage_tensor(s, F32, 1, N, 1), dx = stage_tensor(s, act, 2, N, C);
    Tensor  dw = zeros(s, C, 0), db = zeros(s, C, 0), dbias = zeros(s, C, 0), dy = random_act(s, act, N, C, 4), none = dx;
    none.data = NULL;
    layernorm_forward(&s->stream, tensor_none(), y, mean, rstd, x, tensor_none(), w, b, 1e-5f);
    layernorm_backward(&s->stream, dx, dbias, dw, db, none, dy, x, w, mean, rstd);
    return (Outputs){{dx, dw, db, dbias}, 4};
}
static Outputs rmsnorm(Stage *s, DType act) {
    int64_t N = 517, C = 42;
    Tensor  x = random_act(s, act, N, C, 1), w = random_act(s, act, C, 0, 2), y = stage_tensor(s, act, 2, N, C);
    Tensor  rstd = stage_tensor(s, F32, 1, N, 1), dx = stage_tensor(s, act, 2, N, C), dw = zeros(s, C, 0);
    Tensor  dy = random_act(s, act, N, C, 4), none = dx;
    none.data = NULL;
    rmsnorm_forward(&s->stream, tensor_none(), y, rstd, x, tensor_none(), w, 1e-5f);
    rmsnorm_backward(&s->stream, dx, dw, none, dy, x, w, rstd);
    return (Outputs){{y, dx, dw}, 3};
}
static Outputs head_norm(Stage *s, DType act) {
    int64_t N = 117, heads = 5, D = 24;
    Tensor  x = random_act(s, act, N, heads * D, 1), w = random_act(s, act, D, 0, 2);
    Tensor  y = stage_tensor(s, act, 2, N, heads * D);
    Tensor  rstd = stage_tensor(s, F32, 2, N, heads), dx = stage_tensor(s, act, 2, N, heads * D), dw = zeros(s, D, 0);
    head_norm_forward(&s->stream, y, rstd, x, 0, heads, w, 1e-5f);
    head_norm_backward(&s->stream, dx, dw, y, x, 0, heads, w, rstd);
    return (Outputs){{y, dx, dw}, 3};
}
/* Runs attention. Threads divide the work by heads if there are many heads, and by tiles of rows if there are few. */
static Outputs attention(Stage *s, DType act, int64_t B, int64_t T, HeadShape h) {
    int64_t C = h.query * h.size;
    Tensor  qkv = random_act(s, act, B * T, heads_columns(h), 1), y = stage_tensor(s, act, 2, B * T, C),
           lse = stage_tensor(s, F32, 2, B * h.query, T);
    Tensor  dqkv = stage_tensor(s, act, 2, B * T, heads_columns(h)), dy = random_act(s, act, B * T, C, 2);
    attention_forward(&s->stream, y, lse, qkv, tensor_none(), h);
    attention_backward(&s->stream, dqkv, tensor_none(), dy, y, lse, tensor_none(), qkv, tensor_none(), h);
    return (Outputs){{y, lse, dqkv}, 3};
}
static Outputs few_heads(Stage *s, DType act) { return attention(s, act, 1, 203, (HeadShape){2, 2, 24}); }
static Outputs some_heads(Stage *s, DType act) { return attention(s, act, 2, 130, (HeadShape){3, 3, 14}); }
static Outputs grouped_heads(Stage *s, DType act) { return attention(s, act, 2, 135, (HeadShape){6, 2, 18}); }
static Outputs rope_forward(Stage *s, DType act) {
    int64_t   N = 74, T = 37;
    HeadShape h = {4, 2, 14};
    Tensor    qkv = random_act(s, act, N, heads_columns(h), 1), frequencies = random_act(s, F32, h.size / 2, 0, 2);
    rope(&s->stream, qkv, frequencies, h, T, 9000, WHOLE_SEQUENCE, ROPE_FORWARD);
    return (Outputs){{qkv}, 1};
}
static Outputs classifier_and_embedding(Stage *s, DType act) {
    int64_t B = 3, T = 37, C = 130, V = 301, padded = 384;
    Tensor  logits = random_act(s, act, B * T, padded, 1), targets = stage_tokens(s, 1, B * T, 1, 2, (int32_t)V),
           loss = stage_tensor(s, F32, 1, B * T, 1);
    Tensor tokens = stage_tokens(s, 2, B, T, 3, 40), dwte = zeros(s, padded, C), dwpe = zeros(s, T, C),
           dy = random_act(s, act, B * T, C, 4);
    classifier_loss(&s->stream, loss, logits, targets, V, PLAIN_LOSS, 0.1f);
    embedding_backward(&s->stream, dwte, dwpe, dy, tokens, tensor_none(), WHOLE_SEQUENCE);
    return (Outputs){{logits, loss, dwte, dwpe}, 4};
}

static void compare(Op *op, DType act) {
    int     before = omp_get_max_threads();
    Outputs want = {.count = 0};
    Stage   first = stage_create(0);
    for (int t = 0; t < COUNT(THREADS); t++) {
        Stage s = t == 0 ? first : stage_create(0);
        /* this may be more threads than processors, so the scratch memory is made anew, large enough for any number */
        omp_set_num_threads(THREADS[t]);
        arena_destroy(&s.stream.scratch);
        s.stream.scratch = arena_create("scratch", 64 << 20);
        s.stream.any_threads = 1;
        Outputs got = op(&s, act);
        if (t == 0) want = got, first = s;
        for (int i = 0; i < want.count; i++) assert_same_bits(got.out[i], want.out[i]);
        if (t > 0) stage_destroy(&s);
    }
    stage_destroy(&first);
    omp_set_num_threads(before);
}

static void test_all(void **state) {
    (void)state;
    if (strcmp(device_backend(), "cpu") != 0) skip(); /* skipped on a GPU, whose results do not depend on the number of
                                                       * CPU threads */
    Op *const ops[] = {linear, narrow_linear, long_linear, head, layernorm, rmsnorm, head_norm, few_heads, some_heads,
                        grouped_heads, rope_forward, classifier_and_embedding};
    for (int act = F32; act <= BF16; act++)
        for (int i = 0; i < COUNT(ops); i++) compare(ops[i], (DType)act);
}

/* Tests products of bf16 in which oneDNN multiplies bf16 itself. TRAIN_GPT_BF16=onednn requests this; on processors
 * without bf16 instructions oneDNN emulates them. */
static void test_native_bf16(void **state) {
    (void)state;
    if (strncmp(device_isa(), "avx512", 6) != 0) skip();
    setenv("TRAIN_GPT_BF16", "onednn", 1);
    compare(narrow_linear, BF16);
    compare(head, BF16);
    unsetenv("TRAIN_GPT_BF16");
}

/* Subnormal results are flushed to zero in every thread, because they are slow. Subnormal operands, such as weights
 * from a file, are not. */
static volatile float small = 1e-20f, subnormal = 1e-40f;
static void test_subnormals(void **state) {
    (void)state;
    if (strcmp(device_backend(), "cpu") != 0) skip();
#ifndef __x86_64__
    skip(); /* other processors compute subnormals at full speed */
#endif
    int before = omp_get_max_threads(), made = 0, lost = 0;
    omp_set_num_threads(3);
    #pragma omp parallel reduction(+ : made, lost)
    {
        made += small * small > 0.0f;
        lost += subnormal * 1e10f == 0.0f;
    }
    omp_set_num_threads(before);
    assert_int_equal(made, 0);
    assert_int_equal(lost, 0);
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_all), cmocka_unit_test(test_native_bf16), cmocka_unit_test(test_subnormals)};
    return cmocka_run_group_tests_name("threads", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
