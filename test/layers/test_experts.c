/* test_experts.c - experts_sort, rows_dispatch, rows_combine, and the products expert_linear_forward and expert_linear_backward. */
#include "test/ref/expert_ops.h"
#include "test/ref/test.h"

/* --- sorting and moving rows -------------------------------------------------------------------------------------- */

static void compare_rows(DType act, int64_t N, int64_t k, int64_t E, int64_t C) {
    int64_t R = N * k;
    Stage   s = stage_create(STAGE_SCRATCH);
    Tensor  expert = stage_tokens(&s, 2, N, k, 11, (int32_t)E);
    Tensor  order = stage_tensor(&s, I32, 1, R, 1), place = stage_tensor(&s, I32, 1, R, 1);
    Tensor  first = stage_tensor(&s, I32, 1, E + 1, 1), x = stage_random(&s, act, 2, N, C, 12, 1, 0);
    Tensor  rows = stage_tensor(&s, act, 2, R, C), y = stage_tensor(&s, act, 2, N, C);
    double *sums = stage_doubles(&s, N * C);
    experts_sort(&s.stream, order, place, first, expert);
    rows_dispatch(&s.stream, rows, x, order);
    stage_settle();
    const int32_t *of = (const int32_t *)expert.data, *start = (const int32_t *)first.data, *at = (const int32_t *)order.data;
    int64_t row = 0;
    /* expected order of rows: by expert, and for each expert in the order of assignments (token by token) */
    for (int64_t e = 0; e < E; e++) {
        assert_int_equal(start[e], row);
        for (int64_t i = 0; i < R; i++) {
            if (of[i] != e) continue;
            assert_int_equal(at[row], i);
            assert_int_equal(((const int32_t *)place.data)[i], row);
            assert_memory_equal((char *)rows.data + row * C * (int64_t)dtype_bytes(act),
                                (char *)x.data + i / k * C * (int64_t)dtype_bytes(act), (size_t)C * dtype_bytes(act));
            row++;
        }
    }
    assert_int_equal(start[E], R);
    rows = stage_random(&s, act, 2, R, C, 13, 1, 0);
    rows_combine(&s.stream, y, rows, place);
    stage_settle();
    for (int64_t i = 0; i < R; i++)
        for (int64_t c = 0; c < C; c++) sums[i / k * C + c] += (double)tensor_get(rows, ((const int32_t *)place.data)[i] * C + c);
    assert_close(y, sums, act, bound_sum(k));
    stage_destroy(&s);
}

static void test_rows(void **state) {
    (void)state;
    static const int64_t shapes[][4] = {{1, 1, 1, 1}, {1, 4, 7, 9}, {5, 2, 3, 16}, {33, 3, 8, 42}, {70, 8, 128, 24}, {300, 4, 5, 17}};
    for (int t = 0; t < stage_act_types(); t++)
        for (int i = 0; i < COUNT(shapes); i++) compare_rows(ACT_TYPES[t], shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3]);
}

/* --- products ----------------------------------------------------------------------------------------------------- */

typedef struct { int64_t E, M, K, stride; const int32_t *first; double *y, *x, *w, *dy; } Case;

static double objective(void *ctx) {
    Case *c = (Case *)ctx;
    ref_expert_linear_forward(c->y, c->x, c->w, c->stride, c->first, c->E, c->M, c->K);
    return dot(c->y, c->dy, c->first[c->E] * c->M);
}

static void test_differences(void **state) {
    (void)state;
    enum { E = 3, R = 5, M = 3, K = 4, STRIDE = 14 };
    static const int32_t first[E + 1] = {0, 2, 2, R};
    Stage   s = stage_create(0);
    Case    c = {E, M, K, STRIDE, first, stage_doubles(&s, R * M), stage_random_doubles(&s, R * K, 1, 1, 0),
                 stage_random_doubles(&s, E * STRIDE, 2, 1, 0), stage_random_doubles(&s, R * M, 3, 1, 0)};
    double *dx = stage_doubles(&s, R * K), *dw = stage_doubles(&s, E * STRIDE);
    ref_expert_linear_backward(dx, dw, c.dy, c.x, c.w, STRIDE, first, E, M, K);
    assert_true(difference_proves(objective, &c, c.x, dx, R * K));
    assert_true(difference_proves(objective, &c, c.w, dw, E * STRIDE));
    stage_destroy(&s);
}

/* Runs the ops of a small MoE layer one after another, forward and backward, and compares with recorded results of
 * PyTorch. */
static void test_records(void **state) {
    (void)state;
    Stage      s = stage_create(STAGE_SCRATCH);
    RecordFile f = record_load("test/ref/data/experts.rec");
    Tensor     x = stage_record(&s, record_find(&f, "mlp.x"), F32), gate = stage_record(&s, record_find(&f, "mlp.gate"), F32);
    Tensor     w_in = stage_record(&s, record_find(&f, "mlp.gate_up"), F32), w_out = stage_record(&s, record_find(&f, "mlp.down"), F32);
    Tensor     dy = stage_record(&s, record_find(&f, "mlp.dy"), F32), none = tensor_none();
    const Record *shape = record_find(&f, "mlp.k");
    int64_t    N = x.dim[0], C = x.dim[1], E = gate.dim[0], F = w_out.dim[1], k = (int64_t)record_value(shape, 0), R = N * k;
    /* describes the matrices of expert 0; the others follow at a fixed stride */
    w_in = tensor_2d(w_in.data, F32, 2 * F, C), w_out = tensor_2d(w_out.data, F32, C, F);
    Tensor logits = stage_tensor(&s, F32, 2, N, E), p = stage_tensor(&s, F32, 2, N, E), expert = stage_tensor(&s, I32, 2, N, k);
    Tensor weight = stage_tensor(&s, F32, 2, N, k), order = stage_tensor(&s, I32, 1, R, 1), place = stage_tensor(&s, I32, 1, R, 1);
    Tensor first = stage_tensor(&s, I32, 1, E + 1, 1), rows = stage_tensor(&s, F32, 2, R, C), out = stage_tensor(&s, F32, 2, R, C);
    Tensor gate_up = stage_tensor(&s, F32, 2, R, 2 * F), inner = stage_tensor(&s, F32, 2, R, F), y = stage_tensor(&s, F32, 2, N, C);
    linear_forward(&s.stream, logits, x, gate, tensor_none(), TRANSPOSED);
    router_forward(&s.stream, p, expert, weight, logits, none, WEIGHTS_NORMED);
    experts_sort(&s.stream, order, place, first, expert);
    rows_dispatch(&s.stream, rows, x, order);
    expert_linear_forward(&s.stream, gate_up, rows, w_in, 2 * F * C, first);
    expert_swiglu_forward(&s.stream, inner, gate_up, weight, order);
    expert_linear_forward(&s.stream, out, inner, w_out, C * F, first);
    rows_combine(&s.stream, y, out, place);
    assert_close(y, (const double *)record_find(&f, "mlp.y")->data, F32, bound_sum(C));

    Tensor dout = stage_tensor(&s, F32, 2, R, C), dinner = stage_tensor(&s, F32, 2, R, F), dgate_up = stage_tensor(&s, F32, 2, R, 2 * F);
    Tensor dweight = stage_tensor(&s, F32, 2, N, k), drows = stage_tensor(&s, F32, 2, R, C), dx = stage_tensor(&s, F32, 2, N, C);
    Tensor dlogits = stage_tensor(&s, F32, 2, N, E), dx_router = stage_tensor(&s, F32, 2, N, C);
    Tensor dw_in = stage_random(&s, F32, 2, E * 2 * F, C, 0, 0, 0), dw_out = stage_random(&s, F32, 2, E * C, F, 0, 0, 0);
    Tensor dgate = stage_random(&s, F32, 2, E, C, 0, 0, 0), all_in = dw_in, all_out = dw_out;
    dw_in.dim[0] = 2 * F, dw_out.dim[0] = C;
    rows_dispatch(&s.stream, dout, dy, order);
    expert_linear_backward(&s.stream, dinner, dw_out, dout, inner, w_out, C * F, first);
    expert_swiglu_backward(&s.stream, dgate_up, dweight, dinner, gate_up, weight, order);
    expert_linear_backward(&s.stream, drows, dw_in, dgate_up, rows, w_in, 2 * F * C, first);
    rows_combine(&s.stream, dx, drows, place);
    router_backward(&s.stream, dlogits, dweight, p, expert, weight, WEIGHTS_NORMED, none, none);
    linear_backward(&s.stream, dx_router, dgate, tensor_none(), dlogits, x, gate, TRANSPOSED);
    stage_settle();
    for (int64_t i = 0; i < N * C; i++) tensor_set(dx, i, tensor_get(dx, i) + tensor_get(dx_router, i));
    assert_close(all_in, (const double *)record_find(&f, "mlp.dgate_up")->data, F32, bound_sum(N * C));
    assert_close(all_out, (const double *)record_find(&f, "mlp.ddown")->data, F32, bound_sum(N * C));
    assert_close(dgate, (const double *)record_find(&f, "mlp.dgate")->data, F32, bound_sum(N * C));
    assert_close(dx, (const double *)record_find(&f, "mlp.dx")->data, F32, bound_sum(N * C));
    record_unload(&f);
    stage_destroy(&s);
}

/* Compares the products of experts with the reference, forward and backward. Expert e has counts[e] rows. The gaps
 * between the matrices of experts must keep their values. Backward runs twice. At first the gradients of the weights
 * have values. If is_fresh, they are NaN instead, and the op must set them, even to zero for an expert without rows. */
static void compare_products(DType act, const int32_t *counts, int64_t E, int64_t M, int64_t K, int64_t gap, int is_fresh) {
    Stage   s = stage_create(STAGE_SCRATCH);
    int64_t stride = M * K + gap;
    Tensor  first = stage_tensor(&s, I32, 1, E + 1, 1);
    int32_t *start = (int32_t *)first.data;
    start[0] = 0;
    for (int64_t e = 0; e < E; e++) start[e + 1] = start[e] + counts[e];
    int64_t R = start[E], room = R ? R : 1;
    Tensor  x = stage_random(&s, act, 2, room, K, 21, 1, 0), all = stage_random(&s, act, 2, E, stride, 22, 1, 0);
    Tensor  dy = stage_random(&s, act, 2, room, M, 23, 1, 0), dall = stage_random(&s, F32, 2, E, stride, 24, 1, 0);
    Tensor  w = tensor_2d(all.data, act, M, K), dw = tensor_2d(dall.data, F32, M, K);
    for (int64_t i = 0; is_fresh && i < E * stride; i++) tensor_set(dall, i, i % stride < M * K ? 0.0f : 7.0f);
    Tensor  y = stage_tensor(&s, act, 2, room, M), dx = stage_tensor(&s, act, 2, room, K);
    double *y64 = stage_doubles(&s, room * M), *dx64 = stage_doubles(&s, room * K), *dw64 = stage_widen(&s, dall), *w64 = stage_widen(&s, all);
    for (int64_t i = 0; is_fresh && i < E * stride; i++) if (i % stride < M * K) tensor_set(dall, i, NAN);
    dw.is_fresh = is_fresh;
    double *x64 = stage_widen(&s, x), *dy64 = stage_widen(&s, dy);
    x.dim[0] = dy.dim[0] = y.dim[0] = dx.dim[0] = R;
    ref_expert_linear_forward(y64, x64, w64, stride, start, E, M, K);
    expert_linear_forward(&s.stream, y, x, w, stride, first);
    for (int pass = 0; pass < 2; pass++, dw.is_fresh = 0) {
        ref_expert_linear_backward(dx64, dw64, dy64, x64, w64, stride, start, E, M, K);
        expert_linear_backward(&s.stream, dx, dw, dy, x, w, stride, first);
    }
    assert_close(y, y64, act, bound_sum(K));
    assert_close(dx, dx64, act, bound_sum(M));
    assert_close(dall, dw64, act, bound_sum(2 * R));
    stage_destroy(&s);
}

static void test_products(void **state) {
    (void)state;
    static const int32_t one[] = {1}, few[] = {2, 0, 3}, none[] = {0, 0, 0}, some[] = {0, 17, 1, 40, 0}, many[] = {5, 130, 64, 3, 0, 70, 1, 20};
    for (int t = 0; t < stage_act_types(); t++) {
        for (int is_fresh = 0; is_fresh < 2; is_fresh++) {
            compare_products(ACT_TYPES[t], one, 1, 1, 1, 0, is_fresh);
            compare_products(ACT_TYPES[t], few, 3, 5, 7, 3, is_fresh);
            compare_products(ACT_TYPES[t], none, 3, 5, 7, 3, is_fresh);
            compare_products(ACT_TYPES[t], some, 5, 24, 40, 24, is_fresh);
            compare_products(ACT_TYPES[t], some, 5, 33, 70, 2, is_fresh);
            compare_products(ACT_TYPES[t], many, 8, stage_is_slow() ? 72 : 136, stage_is_slow() ? 96 : 264, 64, is_fresh);
            if (!stage_is_slow()) compare_products(ACT_TYPES[t], (const int32_t[]){600, 3, 1100}, 3, 64, 48, 0, is_fresh);
        }
    }
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_differences), cmocka_unit_test(test_records),
                                     cmocka_unit_test(test_products)};
    return cmocka_run_group_tests_name("experts", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
