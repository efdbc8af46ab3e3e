/* test_gemm.c - matrix products in the orders and shapes of the program's own kernel for compute capability 9.0
 * (layers/gemm_hopper.cu). On such a GPU each way of the kernel is forced in turn (cluster size, parts of k). Elsewhere
 * the backend's products are tested. */
#include <sys/wait.h>
#include <unistd.h>

#include "layers/algorithms.h"
#include "layers/matmul.h"
#include "test/ref/test.h"

/* Returns whether the program's own matrix kernel, which is for compute capability 9.0 only, runs on this GPU. Needs an
 * open device. */
static int has_own(void) { return strncmp(device_isa(), "sm_90", 5) == 0; }
/* Chooses what computes products, by TRAIN_GPT_GEMM: "own" (the program's kernel), "cublaslt", "timed" (the faster one)
 * or NULL (the default). Clears the table of algorithms. */
static void ask(const char *who) {
    if (who) setenv("TRAIN_GPT_GEMM", who, 1);
    else unsetenv("TRAIN_GPT_GEMM");
    matmul_algorithms_clear();
}
static int own_records(void) {
    int count = 0;
    for (int i = 0; i < matmul_algorithms.count; i++) count += matmul_algorithms.record[i].id == ALGORITHM_OWN;
    return count;
}
/* Changes the table so that the own kernel's products use this cluster size from now on, and divide k into this number
 * of parts. */
static void force_way(uint32_t cluster, uint32_t parts) {
    for (int i = 0; i < matmul_algorithms.count; i++) {
        MatmulAlgorithm a = matmul_algorithms.record[i];
        if (a.id != ALGORITHM_OWN) continue;
        a.state[1] = cluster, a.state[2] = parts;
        matmul_algorithms_set(a);
    }
}
/* Returns 1 if all products of the own kernel in the table still have this cluster size and number of parts. A
 * combination that the kernel refuses is replaced in the table. */
static int went_way(uint32_t cluster, uint32_t parts) {
    for (int i = 0; i < matmul_algorithms.count; i++) {
        MatmulAlgorithm a = matmul_algorithms.record[i];
        if (a.id == ALGORITHM_OWN && (a.state[1] != cluster || a.state[2] != parts)) return 0;
    }
    return 1;
}

/* --- products ------------------------------------------------------------------------------------------------------ */

typedef struct {
    int64_t     m, n, k, pad; /* pad: columns of NaN behind each matrix row */
    MatrixOrder a, b;
    /* sets, for the gradient of a weight: 1: the product replaces c, which is NaN; 0: it adds to c */
    int         bias, sets;
} Shape;

/* Shapes of forward products, of gradients of inputs, and of gradients of weights (f32, added or set). On each side the
 * last tile is incomplete. The larger products have several tiles for each warpgroup. */
static const Shape SHAPES[] = {{1, 8, 8, 0, PLAIN, PLAIN, 1, 1},            {130, 136, 72, 8, PLAIN, PLAIN, 1, 1},
                               {650, 264, 136, 0, PLAIN, TRANSPOSED, 0, 1}, {129, 128, 264, 16, PLAIN, TRANSPOSED, 0, 1},
                               {136, 264, 330, 8, TRANSPOSED, PLAIN, 0, 0}, {64, 8, 1, 0, TRANSPOSED, PLAIN, 0, 0},
                               {136, 264, 330, 8, TRANSPOSED, PLAIN, 0, 1}, {64, 8, 1, 0, TRANSPOSED, PLAIN, 0, 1}};

typedef struct {
    Stage   s;
    Matmul  p;
    Tensor  c, c0, bias;
    double *want;
} Product;

/* Places of the elements of a matrix: element (i,j) is at i * row + j * column. */
typedef struct { int64_t row, column; } Steps;
static Steps steps_of(Matrix x) { return x.order == PLAIN ? (Steps){x.ld, 1} : (Steps){1, x.ld}; }

static Matrix operand(Stage *s, DType type, MatrixOrder order, int64_t rows, int64_t columns, int64_t pad, uint64_t seed) {
    int64_t lines = order == PLAIN ? rows : columns, along = order == PLAIN ? columns : rows, ld = (along + 7) / 8 * 8 + pad;
    Tensor  t = stage_random(s, type, 2, lines, ld, seed, 1, 0);
    for (int64_t i = 0; i < lines; i++)
        for (int64_t j = along; j < ld; j++) tensor_set(t, i * ld + j, NAN);
    return matrix_of(t, order);
}

static Product *product_create(DType act, Shape h) {
    Product *x = calloc(1, sizeof *x);
    x->s = stage_create(STAGE_SCRATCH);
    Stage *s = &x->s;
    int    is_gradient = h.a == TRANSPOSED, adds = !h.sets;
    Matrix a = operand(s, act, h.a, h.m, h.k, h.pad, 1), b = operand(s, act, h.b, h.k, h.n, h.pad, 2);
    x->c0 = stage_random(s, is_gradient ? F32 : act, 2, h.m, h.n + h.pad, 3, 1, 0);
    for (int64_t i = 0; h.sets && i < tensor_elems(x->c0); i++)
        if (i % (h.n + h.pad) < h.n) tensor_set(x->c0, i, NAN);
    x->c = stage_copy(s, x->c0);
    x->bias = stage_random(s, act, 1, h.n, 1, 4, 1, 0);
    x->p = (Matmul){matrix_of(x->c, PLAIN), a, b, h.m, h.n, h.k, adds ? MATMUL_ADD : MATMUL_SET, h.bias ? x->bias.data : NULL};
    double *a64 = stage_widen(s, tensor_1d(a.data, act, a.ld * (h.a == PLAIN ? h.m : h.k)));
    double *b64 = stage_widen(s, tensor_1d(b.data, act, b.ld * (h.b == PLAIN ? h.k : h.n)));
    Steps   sa = steps_of(a), sb = steps_of(b);
    x->want = stage_doubles(s, h.m * h.n);
    for (int64_t i = 0; i < h.m; i++)
        for (int64_t l = 0; l < h.k; l++)
            for (int64_t j = 0; j < h.n; j++) x->want[i * h.n + j] += a64[i * sa.row + l * sa.column] * b64[l * sb.row + j * sb.column];
    for (int64_t i = 0; i < h.m * h.n; i++)
        x->want[i] += adds ? tensor_get(x->c0, i / h.n * (h.n + h.pad) + i % h.n) : h.bias ? tensor_get(x->bias, i % h.n) : 0.0;
    return x;
}
static void product_destroy(Product *x) {
    stage_destroy(&x->s);
    free(x);
}

static void product_check(Product *x) {
    Matmul p = x->p;
    Tensor inner = stage_tensor(&x->s, x->c.type, 2, p.m, p.n);
    memcpy(x->c.data, x->c0.data, tensor_bytes(x->c0));
    matmul(&x->s.stream, p);
    for (int64_t i = 0; i < p.m; i++)
        for (int64_t j = 0; j < p.c.ld; j++) {
            if (j < p.n) tensor_set(inner, i * p.n + j, tensor_get(x->c, i * p.c.ld + j));
            /* columns after the matrix are unchanged */
            else assert_true(tensor_get(x->c, i * p.c.ld + j) == tensor_get(x->c0, i * p.c.ld + j));
        }
    assert_close(inner, x->want, x->c.type, bound_sum(p.k + 1));
}

static void check_shape(DType act, Shape h) {
    ask("own");
    Product *x = product_create(act, h);
    product_check(x);
    assert_int_equal(own_records(), has_own());
    Tensor first = stage_copy(&x->s, x->c);
    int    parts = x->c.type == F32 && h.k > 128 ? 3 : 1;
    /* each cluster size gives the same bits */
    for (uint32_t cluster = 1; has_own() && cluster <= 2; cluster++) {
        force_way(cluster, 1);
        product_check(x);
        assert_same_bits(x->c, first);
    }
    for (uint32_t cluster = 1; has_own() && parts > 1 && cluster <= 2; cluster++) {
        force_way(cluster, (uint32_t)parts);
        product_check(x);
        if (cluster == 1) first = stage_copy(&x->s, x->c);
        assert_same_bits(x->c, first);
        assert_true(went_way(cluster, (uint32_t)parts));
    }
    /* only products with f32 results can divide k; if that is forced for another type, the kernel replaces the
     * choice and the result is right */
    if (has_own() && x->c.type != F32) {
        force_way(1, 2);
        product_check(x);
        assert_false(went_way(1, 2));
    }
    product_destroy(x);
}

static void test_products(void **state) {
    (void)state;
    for (int t = has_own(); t < stage_act_types(); t++)
        for (int i = 0; i < COUNT(SHAPES); i++) check_shape(ACT_TYPES[t], SHAPES[i]);
    ask(NULL);
}

/* --- ops ----------------------------------------------------------------------------------------------------------- */

/* Computes f(pre) in the epilogue of the product pre = x w + b, and in a separate kernel from pre as stored. Both must
 * have equal bits. */
static void check_activation(Activation kind, DType act, int64_t N, int64_t K, int64_t M) {
    Stage  s = stage_create(STAGE_SCRATCH);
    Tensor x = stage_random(&s, act, 2, N, K, 1, 1, 0), w = stage_random(&s, act, 2, K, M, 2, 1, 0);
    Tensor b = stage_random(&s, act, 1, M, 1, 3, 1, 0);
    Tensor y = stage_tensor(&s, act, 2, N, M), pre = stage_tensor(&s, act, 2, N, M), plain = stage_tensor(&s, act, 2, N, M);
    Tensor apart = stage_tensor(&s, act, 2, N, M);
    ask("own");
    linear_activation_forward(&s.stream, kind, y, pre, x, w, b);
    assert_int_equal(own_records(), has_own());
    linear_forward(&s.stream, plain, x, w, b, PLAIN);
    assert_same_bits(pre, plain);
    activation_forward(&s.stream, kind, apart, pre);
    assert_same_bits(y, apart);
    stage_destroy(&s);
}

/* Adds a product, rounded to its type, to the residual stream: in the product's epilogue, and by residual_forward. Both
 * must have equal bits. w is [K,M] or, for the output head, [M,K]. */
static void check_residual(DType act, int64_t N, int64_t K, int64_t M, int is_head) {
    Stage  s = stage_create(STAGE_SCRATCH);
    Tensor x = stage_random(&s, act, 2, N, K, 1, 1, 0), stream = stage_random(&s, act, 2, N, M, 5, 3, 0), none = tensor_none();
    Tensor w = is_head ? stage_random(&s, act, 2, M, K, 2, 1, 0) : stage_random(&s, act, 2, K, M, 2, 1, 0), b = stage_random(&s, act, 1, M, 1, 3, 1, 0);
    Tensor sum = stage_tensor(&s, act, 2, N, M), y = stage_tensor(&s, act, 2, N, M), plain = stage_tensor(&s, act, 2, N, M);
    Tensor want = stage_tensor(&s, act, 2, N, M);
    for (int with_bias = !is_head; with_bias >= 0; with_bias--) {
        ask("own");
        if (is_head) linear_forward(&s.stream, plain, x, w, tensor_none(), TRANSPOSED);
        else linear_forward(&s.stream, plain, x, w, with_bias ? b : none, PLAIN);
        residual_forward(&s.stream, want, stream, plain);
        matmul_algorithms_clear();
        for (int i = 0; i < N * M; i++) tensor_set(sum, i, NAN), tensor_set(y, i, NAN);
        int joined = is_head ? linear_residual_forward(&s.stream, sum, y, stream, x, w, tensor_none(), TRANSPOSED)
                             : linear_residual_forward(&s.stream, sum, y, stream, x, w, with_bias ? b : none, PLAIN);
        assert_int_equal(joined, has_own());
        assert_int_equal(own_records(), has_own());
        if (joined) assert_same_bits(sum, want);
        else assert_same_bits(y, plain);
        assert_true(isnan(tensor_get(joined ? y : sum, 0)) && isnan(tensor_get(joined ? y : sum, N * M - 1)));
        /* If the sum overwrites the residual stream, the product's epilogue must not add. Timing repeats a product,
         * so the sum would be added several times. */
        Tensor in_place = stage_copy(&s, stream);
        joined = is_head ? linear_residual_forward(&s.stream, in_place, y, in_place, x, w, tensor_none(), TRANSPOSED)
                         : linear_residual_forward(&s.stream, in_place, y, in_place, x, w, with_bias ? b : none, PLAIN);
        assert_int_equal(joined, 0);
        assert_same_bits(y, plain);
        assert_same_bits(in_place, stream);
    }
    double *y64 = stage_doubles(&s, N * M), *sum64 = stage_doubles(&s, N * M), *stream64 = stage_widen(&s, stream);
    if (is_head) ref_head_forward(y64, stage_widen(&s, x), stage_widen(&s, w), N, K, M, M);
    else ref_linear_forward(y64, stage_widen(&s, x), stage_widen(&s, w), stage_doubles(&s, M), N, K, M);
    for (int64_t i = 0; i < N * M; i++) sum64[i] = stream64[i] + y64[i];
    ask("timed");
    for (int run = 0; run < 2; run++) { /* the first run times the algorithms, the second uses the chosen one */
        for (int i = 0; i < N * M; i++) tensor_set(sum, i, NAN), tensor_set(y, i, NAN);
        int joined = is_head ? linear_residual_forward(&s.stream, sum, y, stream, x, w, tensor_none(), TRANSPOSED)
                             : linear_residual_forward(&s.stream, sum, y, stream, x, w, none, PLAIN);
        /* y is rounded before it is added, and the sum may be much smaller than its terms */
        if (joined) assert_close(sum, sum64, act, bound_bf16(K + 1, 1.0, 1.0));
        else assert_close(y, y64, act, bound_sum(K + 1));
    }
    stage_destroy(&s);
}

static void check_backward(Activation kind, DType act, int64_t N, int64_t K, int64_t M) {
    Stage  s = stage_create(STAGE_SCRATCH);
    Tensor pre = stage_random(&s, act, 2, N, K, 4, 3, 0), x = stage_tensor(&s, act, 2, N, K), w = stage_random(&s, act, 2, K, M, 2, 1, 0);
    Tensor dy = stage_random(&s, act, 2, N, M, 5, 1, 0), dpre = stage_tensor(&s, act, 2, N, K);
    Tensor dw = stage_random(&s, F32, 2, K, M, 6, 1, 0), db = stage_random(&s, F32, 1, M, 1, 7, 1, 0);
    Tensor dbias = stage_random(&s, F32, 1, K, 1, 8, 1, 0), dbias0 = stage_copy(&s, dbias);
    activation_forward(&s.stream, kind, x, pre);
    double *dx64 = stage_doubles(&s, N * K), *dpre64 = stage_doubles(&s, N * K), *dw64 = stage_widen(&s, dw), *db64 = stage_widen(&s, db);
    ref_linear_backward(dx64, dw64, db64, stage_widen(&s, dy), stage_widen(&s, x), stage_widen(&s, w), N, K, M);
    ref_activation_backward(kind, dpre64, dx64, stage_widen(&s, pre), N * K);
    ask("own");
    double *dbias64 = stage_widen(&s, dbias);
    linear_activation_backward(&s.stream, kind, dpre, dbias, dw, db, dy, x, pre, w);
    assert_int_equal(own_records(), 2 * has_own());
    assert_close(dpre, dpre64, act, bound_bf16(M + 24, 2.0, 0.0));
    assert_close(dw, dw64, act, bound_sum(N + 1));
    assert_close(db, db64, act, bound_sum(N + 1));
    /* expects the sum of each column of dpre, rounded to its type as stored */
    for (int64_t i = 0; i < N * K; i++) dbias64[i % K] += (double)tensor_get(dpre, i);
    assert_close(dbias, dbias64, F32, bound_sum(N));
    Tensor first = stage_copy(&s, dbias), dpre_first = stage_copy(&s, dpre);
    /* each cluster size gives the same bits */
    for (uint32_t cluster = 1; has_own() && cluster <= 2; cluster++) {
        force_way(cluster, 1);
        memcpy(dbias.data, dbias0.data, tensor_bytes(dbias0));
        linear_activation_backward(&s.stream, kind, dpre, dbias, dw, db, dy, x, pre, w);
        assert_same_bits(dpre, dpre_first);
        assert_same_bits(dbias, first);
    }
    /* runs once more without column sums */
    linear_activation_backward(&s.stream, kind, dpre, tensor_none(), dw, db, dy, x, pre, w);
    assert_same_bits(dpre, dpre_first);
    stage_destroy(&s);
}

/* Tests delta in the epilogue of the product that computes dx: for each row and head the sum of dx * x, with dx as
 * stored. delta is [H,N] for H heads of D channels. */
static void check_delta(DType act, int64_t N, int64_t H, int64_t D, int64_t M) {
    Stage  s = stage_create(STAGE_SCRATCH);
    Tensor x = stage_random(&s, act, 2, N, H * D, 1, 1, 0), w = stage_random(&s, act, 2, H * D, M, 2, 1, 0);
    Tensor dy = stage_random(&s, act, 2, N, M, 5, 1, 0), dx = stage_tensor(&s, act, 2, N, H * D), plain = stage_tensor(&s, act, 2, N, H * D);
    Tensor dw = stage_random(&s, F32, 2, H * D, M, 6, 1, 0), delta = stage_random(&s, F32, 2, H, N, 7, 1, 0);
    double *delta64 = stage_doubles(&s, H * N);
    ask("own");
    linear_backward(&s.stream, plain, dw, tensor_none(), dy, x, w, PLAIN);
    matmul_algorithms_clear();
    linear_delta_backward(&s.stream, dx, delta, dw, tensor_none(), dy, x, w);
    assert_int_equal(own_records(), 2 * has_own());
    assert_same_bits(dx, plain);
    ref_attention_delta(delta64, stage_widen(&s, dx), stage_widen(&s, x), N, H, D);
    assert_close(delta, delta64, F32, bound_sum(D));
    Tensor first = stage_copy(&s, delta);
    /* each cluster size gives the same bits */
    for (uint32_t cluster = 1; has_own() && cluster <= 2; cluster++) {
        force_way(cluster, 1);
        linear_delta_backward(&s.stream, dx, delta, dw, tensor_none(), dy, x, w);
        assert_same_bits(dx, plain);
        assert_same_bits(delta, first);
    }
    stage_destroy(&s);
}

static void test_ops(void **state) {
    (void)state;
    for (int t = has_own(); t < stage_act_types(); t++) {
        for (Activation kind = 0; kind < ACTIVATION_COUNT; kind++) {
            check_activation(kind, ACT_TYPES[t], 150, 64, 264);
            check_backward(kind, ACT_TYPES[t], 300, 136, 72);
        }
        for (int is_head = 0; is_head < 2; is_head++) check_residual(ACT_TYPES[t], 150, 72, 264, is_head);
        check_delta(ACT_TYPES[t], 300, 3, 64, 72);
        check_delta(ACT_TYPES[t], 150, 2, 128, 136);
        /* heads of 32 channels: the epilogue cannot compute delta, a kernel after the product does */
        check_delta(ACT_TYPES[t], 70, 2, 32, 72);
    }
    ask(NULL);
}

/* --- the choice ---------------------------------------------------------------------------------------------------- */

static void test_choice(void **state) {
    (void)state;
    Product *x = product_create(BF16, SHAPES[1]);
    ask("timed");
    product_check(x);
    /* only on a GPU the table has an entry; when the cleared table gets it back, the product must have equal bits */
    if (matmul_algorithms.count) {
        assert_int_equal(matmul_algorithms.count, 1);
        MatmulAlgorithm chosen = matmul_algorithms.record[0];
        Tensor          first = stage_copy(&x->s, x->c);
        matmul_algorithms_clear();
        matmul_algorithms_set(chosen);
        product_check(x);
        assert_same_bits(x->c, first);
        assert_int_equal(matmul_algorithms.record[0].id, chosen.id);
    }
    if (has_own()) {
        ask("own");
        product_check(x);
        MatmulAlgorithm own = matmul_algorithms.record[0], strange = own;
        /* simulates an entry of another version of the kernel, which adds in another order; it must not be used */
        strange.state[0] += 1;
        matmul_algorithms_set(strange);
        product_check(x);
        assert_memory_equal(matmul_algorithms.record[0].state, own.state, sizeof own.state);
        ask("cublaslt");
        matmul_algorithms_set(own);
        product_check(x);
        assert_int_equal(own_records(), 0);
        ask("own");
        matmul_algorithms.frozen = 1; /* the own kernel works with a frozen table and adds nothing to it */
        product_check(x);
        assert_int_equal(matmul_algorithms.count, 0);
        pid_t child = fork();
        if (child == 0) {
            ask("mine");
            matmul(&x->s.stream, x->p);
            _exit(0);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), EXIT_CONFIG);
    }
    ask(NULL);
    product_destroy(x);
}

static int tests(void) {
    Stage s = stage_create(0);
    stage_destroy(&s);
    const struct CMUnitTest all[] = {cmocka_unit_test(test_products), cmocka_unit_test(test_ops), cmocka_unit_test(test_choice)};
    return cmocka_run_group_tests_name("gemm", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
