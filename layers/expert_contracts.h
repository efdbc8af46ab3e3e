/* expert_contracts.h - the contracts of the ops of experts in layers.h, as contracts.h has the others'. */
#ifndef TRAIN_GPT_LAYERS_EXPERT_CONTRACTS_H
#define TRAIN_GPT_LAYERS_EXPERT_CONTRACTS_H

#include "layers/contracts.h"

#ifdef __cplusplus
extern "C" {
#endif

static inline int router_forward_contract(Stream *s, Tensor probability, Tensor expert, Tensor weight, Tensor logits, Tensor bias) {
    int64_t N = logits.dim[0], E = logits.dim[1], k = expert.dim[1];
    EXPECT2(logits, logits.type, N, E);
    EXPECT2(probability, F32, N, E);
    EXPECT2(expert, I32, N, k);
    EXPECT2(weight, F32, N, k);
    if (!tensor_is_none(bias)) EXPECT1(bias, logits.type, E);
    CHECK(k >= 1 && k <= E && E < INT32_MAX, "%lld of %lld experts", (long long)k, (long long)E);
    return stream_note(s, "router_forward", N, E, k, 0, (double)(N * E) * (double)(6 + k),
                       contract_bytes(logits) + contract_bytes(probability) + 2.0 * contract_bytes(weight));
}
static inline int router_count_contract(Stream *s, Tensor counts, Tensor total, Tensor expert) {
    int64_t B = counts.dim[0], E = counts.dim[1], N = expert.dim[0], k = expert.dim[1];
    EXPECT2(counts, I32, B, E);
    EXPECT2(expert, I32, N, k);
    if (!tensor_is_none(total)) EXPECT1(total, I64, E);
    CHECK(B >= 1 && N % B == 0, "%lld tokens in %lld sequences", (long long)N, (long long)B);
    return stream_note(s, "router_count", N, E, k, B, (double)(N * k), contract_bytes(expert) + contract_bytes(counts));
}
static inline int router_backward_contract(Stream *s, Tensor dlogits, Tensor dweight, Tensor probability, Tensor expert,
                                           Tensor weight, Tensor counts, Tensor balance) {
    int64_t N = dlogits.dim[0], E = dlogits.dim[1], k = expert.dim[1];
    EXPECT2(dlogits, dlogits.type, N, E);
    EXPECT2(probability, F32, N, E);
    EXPECT2(expert, I32, N, k);
    EXPECT2(weight, F32, N, k);
    EXPECT2(dweight, F32, N, k);
    CHECK(tensor_is_none(counts) == tensor_is_none(balance), "a balance loss takes counts and a factor");
    if (!tensor_is_none(counts)) {
        EXPECT2(counts, I32, counts.dim[0], E);
        EXPECT1(balance, F32, 1);
        CHECK(N % counts.dim[0] == 0, "%lld tokens in %lld sequences", (long long)N, (long long)counts.dim[0]);
    }
    return stream_note(s, "router_backward", N, E, k, 0, 6.0 * (double)(N * E),
                       contract_bytes(dlogits) + contract_bytes(probability) + 3.0 * contract_bytes(weight));
}
static inline int experts_sort_contract(Stream *s, Tensor order, Tensor place, Tensor first, Tensor expert) {
    int64_t R = expert.dim[0] * expert.dim[1];
    EXPECT2(expert, I32, expert.dim[0], expert.dim[1]);
    EXPECT1(order, I32, R);
    EXPECT1(place, I32, R);
    EXPECT1(first, I32, first.dim[0]);
    CHECK(R < INT32_MAX && first.dim[0] >= 2, "%lld rows of %lld experts", (long long)R, (long long)first.dim[0] - 1);
    return stream_note(s, "experts_sort", R, first.dim[0] - 1, 0, 0, (double)R, 3.0 * contract_bytes(order));
}
/* rows [R,C]   tokens [N,C]   index [R]: the row of each assignment, or the assignment of each row */
static inline int rows_contract(Stream *s, const char *op, Tensor rows, Tensor tokens, Tensor index) {
    int64_t R = rows.dim[0], N = tokens.dim[0], C = rows.dim[1];
    EXPECT2(rows, rows.type, R, C);
    EXPECT2(tokens, rows.type, N, C);
    EXPECT1(index, I32, R);
    CHECK(N == 0 ? R == 0 : R % N == 0, "%lld rows of %lld tokens", (long long)R, (long long)N);
    return stream_note(s, op, R, N, C, 0, (double)(R * C), contract_bytes(rows) + contract_bytes(tokens) + contract_bytes(index));
}
static inline int expert_swiglu_contract(Stream *s, const char *op, Tensor y, Tensor gate_up, Tensor dgate_up, Tensor weight,
                                         Tensor order, double flops, double passes) {
    int64_t R = y.dim[0], F = y.dim[1];
    EXPECT2(y, y.type, R, F);
    EXPECT2(gate_up, y.type, R, 2 * F);
    EXPECT2(dgate_up, y.type, R, 2 * F);
    if (!tensor_is_none(order)) EXPECT1(order, I32, R);
    EXPECT2(weight, F32, weight.dim[0], weight.dim[1]);
    CHECK(weight.dim[0] * weight.dim[1] == R, "%lld weights for %lld rows", (long long)(weight.dim[0] * weight.dim[1]), (long long)R);
    return stream_note(s, op, R, F, 0, 0, flops * (double)tensor_elems(y), passes * contract_bytes(y));
}

/* Notes the products of all experts together, m x n x k as one product would be. How the rows are divided among the
 * experts changes neither FLOPs nor bytes. */
static inline int expert_linear_note(Stream *s, const char *op, Tensor y, Tensor x, Tensor w, int64_t stride, Tensor first, int64_t m,
                                     int64_t n, int64_t k) {
    int64_t R = x.dim[0], M = w.dim[0], K = w.dim[1], E = first.dim[0] - 1;
    EXPECT2(x, x.type, R, K);
    EXPECT2(y, x.type, R, M);
    EXPECT2(w, w.type, M, K);
    EXPECT1(first, I32, E + 1);
    CHECK(E >= 1 && stride >= M * K && R < INT32_MAX, "%lld experts, %lld elements apart, %lld rows", (long long)E, (long long)stride,
          (long long)R);
    double matrices = (double)E * contract_bytes(w) * (w.type == F32 && x.type != F32 && !w.is_fresh ? 2.0 : 1.0);
    return stream_note(s, op, m, n, k, E, 2.0 * (double)R * (double)M * (double)K, contract_bytes(x) + contract_bytes(y) + matrices);
}
static inline int expert_linear_forward_contract(Stream *s, Tensor y, Tensor x, Tensor w, int64_t stride, Tensor first) {
    CHECK(w.type == x.type, "weights of %s, rows of %s", dtype_name(w.type), dtype_name(x.type));
    return expert_linear_note(s, "matmul, experts", y, x, w, stride, first, x.dim[0], w.dim[0], w.dim[1]);
}
static inline int expert_linear_backward_contract(Stream *s, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w, int64_t stride,
                                                  Tensor first) {
    CHECK(w.type == x.type, "weights of %s, rows of %s", dtype_name(w.type), dtype_name(x.type));
    EXPECT2(dx, x.type, x.dim[0], x.dim[1]);
    EXPECT2(dw, F32, w.dim[0], w.dim[1]);
    int64_t R = x.dim[0], M = w.dim[0], K = w.dim[1], E = first.dim[0] - 1;
    expert_linear_note(s, "matmul, experts", dy, dx, w, stride, first, R, K, M);
    return expert_linear_note(s, dw.is_fresh ? "matmul, experts, set" : "matmul, experts, added", dy, x, dw, stride, first, E * M, K,
                              (R + E - 1) / E); /* experts are assumed to have equal numbers of rows */
}

#ifdef __cplusplus
}
#endif
#endif
