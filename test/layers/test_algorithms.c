/* test_algorithms.c - the table of algorithms of matrix products: its entries, and products that follow it. On the CPU
 * it stays empty. */
#include "layers/algorithms.h"

#include "test/ref/test.h"

static MatmulAlgorithm record_named(const char *key, int32_t id) {
    MatmulAlgorithm a = {.id = id, .state = {[ALGORITHM_WORDS - 1] = 2 * (uint32_t)id}};
    snprintf(a.key, sizeof a.key, "%s", key);
    return a;
}

static void test_table(void **state) {
    (void)state;
    uint64_t before = matmul_algorithms.version;
    matmul_algorithms_clear();
    for (int32_t i = 0; i < 200; i++) {
        char key[32];
        snprintf(key, sizeof key, "product %d", i);
        matmul_algorithms_set(record_named(key, i));
    }
    assert_int_equal(matmul_algorithms.count, 200);
    assert_int_equal(matmul_algorithms_find("product 150"), 150);
    assert_int_equal(matmul_algorithms_find("product"), -1);
    matmul_algorithms_set(record_named("product 150", 7)); /* replaces the entry of the same name */
    assert_int_equal(matmul_algorithms.count, 200);
    assert_int_equal(matmul_algorithms.record[150].id, 7);
    assert_int_equal(matmul_algorithms.record[150].state[ALGORITHM_WORDS - 1], 14);
    assert_int_equal(matmul_algorithms.record[199].id, 199);
    assert_true(matmul_algorithms.version > before);
    matmul_algorithms.frozen = 1;
    assert_true(matmul_algorithms.frozen);
    matmul_algorithms_clear();
    assert_int_equal(matmul_algorithms.count, 0);
    assert_false(matmul_algorithms.frozen);
}

/* Inputs and outputs of a linear layer of shape [N,K,M]: of its forward op and of two backward ops, with and without
 * an activation before it. Fields whose names end in 64 have the expected results in float64. */
typedef struct {
    Stage   s;
    int64_t N, K, M;
    Tensor  pre, x, w, b, dy, y, dx, dpre, dbias, dw, db;
    double *y64, *dx64, *dpre64, *dw64, *db64;
} Ops;

static Ops *ops_create(DType act, int64_t N, int64_t K, int64_t M) {
    Ops *o = calloc(1, sizeof *o);
    o->N = N, o->K = K, o->M = M;
    o->s = stage_create(STAGE_SCRATCH);
    Stage *s = &o->s;
    o->pre = stage_random(s, act, 2, N, K, 4, 3, 0), o->x = stage_tensor(s, act, 2, N, K),
    o->w = stage_random(s, act, 2, K, M, 2, 1, 0);
    o->b = stage_random(s, act, 1, M, 1, 3, 1, 0), o->dy = stage_random(s, act, 2, N, M, 5, 1, 0);
    o->y = stage_tensor(s, act, 2, N, M), o->dx = stage_tensor(s, act, 2, N, K), o->dpre = stage_tensor(s, act, 2, N, K);
    o->dw = stage_tensor(s, F32, 2, K, M), o->db = stage_tensor(s, F32, 1, M, 1), o->dbias = stage_tensor(s, F32, 1, K, 1);
    o->y64 = stage_doubles(s, N * M), o->dx64 = stage_doubles(s, N * K), o->dpre64 = stage_doubles(s, N * K);
    o->dw64 = stage_doubles(s, K * M), o->db64 = stage_doubles(s, M);
    activation_forward(&s->stream, ACTIVATION_GELU_NEW, o->x, o->pre);
    device_sync(&s->stream);
    double *x64 = stage_widen(s, o->x), *w64 = stage_widen(s, o->w), *dy64 = stage_widen(s, o->dy);
    ref_linear_forward(o->y64, x64, w64, stage_widen(s, o->b), N, K, M);
    for (int pass = 0; pass < 2; pass++) ref_linear_backward(o->dx64, o->dw64, o->db64, dy64, x64, w64, N, K, M);
    ref_activation_backward(ACTIVATION_GELU_NEW, o->dpre64, o->dx64, stage_widen(s, o->pre), N * K);
    return o;
}

static void ops_destroy(Ops *o) {
    stage_destroy(&o->s);
    free(o);
}

static void ops_queue(Ops *o) {
    Stream *s = &o->s.stream;
    device_zero(s, o->dw);
    device_zero(s, o->db);
    device_zero(s, o->dbias);
    linear_forward(s, o->y, o->x, o->w, o->b, PLAIN);
    linear_backward(s, o->dx, o->dw, o->db, o->dy, o->x, o->w, PLAIN);
    linear_activation_backward(s, ACTIVATION_GELU_NEW, o->dpre, o->dbias, o->dw, o->db, o->dy, o->x, o->pre, o->w);
}

static void ops_check(Ops *o) {
    device_sync(&o->s.stream);
    assert_close(o->y, o->y64, o->y.type, bound_sum(o->K + 1));
    assert_close(o->dx, o->dx64, o->dx.type, bound_sum(o->M));
    assert_close(o->dpre, o->dpre64, o->dpre.type, bound_bf16(o->M + 24, 2.0, 0.0));
    assert_close(o->dw, o->dw64, o->y.type, bound_sum(2 * o->N));
    assert_close(o->db, o->db64, o->y.type, bound_sum(2 * o->N));
    /* expects the sum of each column of dpre, rounded to its type as stored */
    double *dbias64 = calloc((size_t)o->K, sizeof *dbias64);
    for (int64_t i = 0; i < o->N * o->K; i++) dbias64[i % o->K] += (double)tensor_get(o->dpre, i);
    assert_close(o->dbias, dbias64, F32, bound_sum(o->N));
    free(dbias64);
}

static void ops_clear(Ops *o) {
    Tensor outputs[] = {o->y, o->dx, o->dpre, o->dbias, o->dw, o->db};
    for (int i = 0; i < COUNT(outputs); i++) memset(outputs[i].data, 0xff, tensor_bytes(outputs[i]));
}

typedef struct { int64_t N, K, M; } Shape;
/* Shapes [N,K,M]. Rows of the first allow 16-byte accesses, rows of the second do not. Rows of the third do, except
 * 16-bit rows of 40 elements. */
static const Shape SHAPES[] = {{80, 64, 128}, {33, 42, 14}, {200, 24, 40}};

/* A resumed run reads the table of algorithms that was stored. With it the products must have equal bits, and the table
 * gets no new entries. */
static void test_replay(void **state) {
    (void)state;
    for (int t = 0; t < stage_act_types(); t++)
        for (int i = 0; i < COUNT(SHAPES); i++) {
            Ops *o = ops_create(ACT_TYPES[t], SHAPES[i].N, SHAPES[i].K, SHAPES[i].M);
            matmul_algorithms_clear();
            ops_queue(o);
            ops_check(o);
            Tensor y = stage_copy(&o->s, o->y), dpre = stage_copy(&o->s, o->dpre), dw = stage_copy(&o->s, o->dw),
                   db = stage_copy(&o->s, o->db), dbias = stage_copy(&o->s, o->dbias);
            int              count = matmul_algorithms.count;
            MatmulAlgorithm *stored = malloc(sizeof *stored * (size_t)(count + 1));
            /* number of products whose algorithm was not chosen by timing */
            int              unnamed = 0;
            for (int a = 0; a < count; a++) {
                stored[a] = matmul_algorithms.record[a];
                if (stored[a].id == ALGORITHM_FIRST) print_message("not timed: %s\n", stored[a].key), unnamed++;
            }
            if (stage_is_slow()) assert_int_equal(unnamed, 0);
            matmul_algorithms_clear();
            for (int a = count - 1; a >= 0; a--) matmul_algorithms_set(stored[a]);
            ops_clear(o);
            ops_queue(o);
            device_sync(&o->s.stream);
            assert_same_bits(o->y, y);
            assert_same_bits(o->dpre, dpre);
            assert_same_bits(o->dw, dw);
            assert_same_bits(o->db, db);
            assert_same_bits(o->dbias, dbias);
            assert_int_equal(matmul_algorithms.count, count);
            free(stored);
            ops_destroy(o);
        }
}

/* `a` is an entry of the table for a product with this epilogue. Returns the number of the entry for the same product
 * without epilogue, or -1 if `a` has no such epilogue. */
static int record_without(const char *epilogue, MatmulAlgorithm a) {
    char key[ALGORITHM_KEY_ROOM], *at = strstr(a.key, epilogue);
    if (!at) return -1;
    int before = (int)(at - a.key);
    snprintf(key, sizeof key, "%.*s%s", before, a.key, at + strlen(epilogue));
    return matmul_algorithms_find(key);
}

/* Forces each product with an epilogue to use the epilogue, and then to use a separate kernel. Both must give right
 * results. */
static void test_both_ways(void **state) {
    (void)state;
    static const char *const epilogues[] = {" gelu_backward", " column_sums"};
    for (int t = 0; t < stage_act_types(); t++)
        for (int i = 0; i < COUNT(SHAPES); i++)
            for (int fused = 0; fused < 2; fused++) {
                Ops *o = ops_create(ACT_TYPES[t], SHAPES[i].N, SHAPES[i].K, SHAPES[i].M);
                MatmulAlgorithm forced[4];
                int             forcings = 0;
                matmul_algorithms_clear();
                ops_queue(o);
                ops_check(o);
                for (int a = 0, count = matmul_algorithms.count; a < count; a++)
                    for (int e = 0; e < COUNT(epilogues); e++) {
                        MatmulAlgorithm with = matmul_algorithms.record[a];
                        int             plain = record_without(epilogues[e], with);
                        if (plain < 0) continue;
                        MatmulAlgorithm other = matmul_algorithms.record[plain];
                        memcpy(other.key, with.key, sizeof other.key);
                        if (!fused) other.id = ALGORITHM_NONE;
                        matmul_algorithms_set(other);
                        forced[forcings++] = other;
                    }
                ops_clear(o);
                ops_queue(o);
                ops_check(o);
                assert_true(forcings >= 1 || matmul_algorithms.count == 0);
                /* cuBLASLt may lack an epilogue for a type on this GPU; then a separate kernel is used although the
                 * epilogue was forced */
                for (int a = 0; a < forcings; a++)
                    if (stage_is_slow() || !fused)
                        assert_int_equal(matmul_algorithms.record[matmul_algorithms_find(forced[a].key)].id,
                                         forced[a].id);
                ops_destroy(o);
            }
}

/* A product that is missing in a frozen table is computed and not added to it. An entry with an algorithm that does not
 * exist is replaced. */
static void test_frozen(void **state) {
    (void)state;
    Ops *o = ops_create(BF16, 80, 64, 128);
    matmul_algorithms_clear();
    matmul_algorithms.frozen = 1;
    ops_queue(o);
    ops_check(o);
    assert_int_equal(matmul_algorithms.count, 0);
    matmul_algorithms_clear();
    ops_queue(o);
    for (int a = 0; a < matmul_algorithms.count; a++) {
        MatmulAlgorithm strange = matmul_algorithms.record[a];
        strange.id = 99999;
        matmul_algorithms_set(strange);
    }
    ops_clear(o);
    ops_queue(o);
    ops_check(o);
    for (int a = 0; a < matmul_algorithms.count; a++) assert_int_not_equal(matmul_algorithms.record[a].id, 99999);
    ops_destroy(o);
}

/* Records products into a CUDA graph. Their algorithms cannot be timed while a graph is recorded. known: 1 if the
 * table has the algorithms before. */
static void test_graph(void **state) {
    (void)state;
    for (int known = 0; known < 2; known++) {
        Ops *o = ops_create(F32, 80, 64, 128);
        matmul_algorithms_clear();
        if (known) ops_queue(o), ops_check(o), ops_clear(o);
        int recording = graph_begin(&o->s.stream);
        ops_queue(o);
        if (recording) {
            Graph g = graph_end(&o->s.stream);
            assert_true(isnan(tensor_get(o->y, 0))); /* the graph is only recorded, so nothing has been computed yet */
            for (int pass = 0; pass < 2; pass++) {
                ops_clear(o);
                graph_launch(g, &o->s.stream);
                ops_check(o);
            }
            graph_destroy(&g);
        }
        ops_check(o);
        ops_destroy(o);
    }
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_table), cmocka_unit_test(test_replay), cmocka_unit_test(test_both_ways),
                                     cmocka_unit_test(test_frozen), cmocka_unit_test(test_graph)};
    return cmocka_run_group_tests_name("algorithms", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    /* removes the variable, because a choice that it forces would leave the table of algorithms empty */
    unsetenv("TRAIN_GPT_GEMM");
    return stage_main(argv, tests);
}
