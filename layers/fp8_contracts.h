/* fp8_contracts.h - the contracts of the ops in fp8 of layers.h, as contracts.h has the others'. */
#ifndef TRAIN_GPT_LAYERS_FP8_CONTRACTS_H
#define TRAIN_GPT_LAYERS_FP8_CONTRACTS_H

#include "layers/contracts.h"

#ifdef __cplusplus
extern "C" {
#endif

static inline void fp8_cells_expect(Fp8 f) {
    EXPECT1(f.scale, F32, FP8_SCALES * FP8_TENSORS);
    EXPECT1(f.amax, I32, FP8_TENSORS);
    if (!tensor_is_none(f.counts)) EXPECT1(f.counts, I64, 2 * FP8_TENSORS);
}

/* --- products ------------------------------------------------------------------------------------------------------ */

static inline int fp8_is_codes(Tensor t) { return t.type == E4M3 || t.type == E5M2; }
/* Checks an operand of a product: bf16, or codes that an op has written. */
static inline void fp8_operand_expect(Tensor t, DType codes, int64_t rows, int64_t columns, Fp8 f) {
    EXPECT2(t, fp8_is_codes(t) ? codes : BF16, rows, columns);
    CHECK(!fp8_is_codes(t) || (rows % 16 == 0 && !f.uses_own), "codes of %lld rows, of a scale that is %s", (long long)rows,
          f.uses_own ? "not known" : "known");
}
/* Checks a product. w is [K,M], or with is_turned [M,K]. */
static inline void fp8_expect(Tensor y, Tensor x, Tensor w, Fp8 f, int is_turned) {
    int64_t N = x.dim[0], K = w.dim[is_turned], M = w.dim[!is_turned];
    CHECK(K % 16 == 0 && M % 16 == 0, "a product in fp8 of %lld x %lld: multiples of 16", (long long)K, (long long)M);
    fp8_operand_expect(x, E4M3, N, K, f);
    EXPECT2(y, BF16, N, M);
    EXPECT2(w, BF16, w.dim[0], w.dim[1]);
    fp8_cells_expect(f);
}
static inline void fp8_backward_expect(Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w, Fp8 f, int is_turned) {
    Tensor y = dy;
    y.type = BF16;
    fp8_expect(y, x, w, f, is_turned);
    fp8_operand_expect(dy, E5M2, y.dim[0], y.dim[1], f);
    EXPECT2(dx, BF16, x.dim[0], x.dim[1]);
    EXPECT2(dw, F32, w.dim[0], w.dim[1]);
    if (!tensor_is_none(db)) EXPECT1(db, F32, dy.dim[1]);
    CHECK(tensor_is_none(db) || !fp8_is_codes(dy), "column sums of %lld columns of codes", (long long)dy.dim[1]);
}
/* Notes a cast: reads x and writes `copies` of it as 8 bits, in row-major order, transposed, or both. */
static inline int fp8_cast_contract(Stream *s, Tensor x, int copies) {
    return stream_note(s, "fp8_cast", x.dim[0], x.dim[1], copies, 0, (double)tensor_elems(x),
                       contract_bytes(x) + copies * (double)tensor_elems(x));
}

/* --- outputs in fp8: both copies of y have the bytes of one copy in bf16 ------------------------------------------ */

static inline void fp8_output_expect(Tensor y, DType type, int64_t rows, int64_t columns, Fp8 f) {
    CHECK(columns % 16 == 0, "codes of %lld columns: a multiple of 16", (long long)columns);
    fp8_operand_expect(y, type, rows, columns, f);
    CHECK(fp8_is_codes(y), "%s in the place of codes", dtype_name(y.type));
    fp8_cells_expect(f);
}
static inline int fp8_gelu_forward_contract(Stream *s, Tensor y, Tensor x, Fp8 f) {
    EXPECT2(x, BF16, x.dim[0], x.dim[1]);
    fp8_output_expect(y, E4M3, x.dim[0], x.dim[1], f);
    return stream_note(s, "fp8_gelu_forward", x.dim[0], x.dim[1], 0, 0, 11.0 * (double)tensor_elems(x), 2.0 * contract_bytes(x));
}
static inline int fp8_gelu_backward_contract(Stream *s, Tensor dx, Tensor dbias, Tensor dy, Tensor x, Fp8 f) {
    EXPECT2(x, BF16, x.dim[0], x.dim[1]);
    EXPECT2(dy, BF16, x.dim[0], x.dim[1]);
    fp8_output_expect(dx, E5M2, x.dim[0], x.dim[1], f);
    if (!tensor_is_none(dbias)) EXPECT1(dbias, F32, x.dim[1]);
    return stream_note(s, "fp8_gelu_backward", x.dim[0], x.dim[1], 0, 0, 17.0 * (double)tensor_elems(x), 3.0 * contract_bytes(x));
}
static inline int fp8_swiglu_forward_contract(Stream *s, Tensor y, Tensor gate_up, Fp8 f) {
    EXPECT2(gate_up, BF16, y.dim[0], 2 * y.dim[1]);
    fp8_output_expect(y, E4M3, y.dim[0], y.dim[1], f);
    return stream_note(s, "fp8_swiglu_forward", y.dim[0], y.dim[1], 0, 0, 6.0 * (double)tensor_elems(y), 1.5 * contract_bytes(gate_up));
}
static inline int fp8_swiglu_backward_contract(Stream *s, Tensor dgate_up, Tensor dy, Tensor gate_up, Fp8 f) {
    EXPECT2(dy, BF16, dy.dim[0], dy.dim[1]);
    EXPECT2(gate_up, BF16, dy.dim[0], 2 * dy.dim[1]);
    fp8_output_expect(dgate_up, E5M2, dy.dim[0], 2 * dy.dim[1], f);
    return stream_note(s, "fp8_swiglu_backward", dy.dim[0], dy.dim[1], 0, 0, 14.0 * (double)tensor_elems(dy), 5.0 * contract_bytes(dy));
}
/* Noted as attention_backward, because the work and the bytes are the same. */
static inline int fp8_attention_backward_contract(Stream *s, Tensor dqkv, Tensor dbias, Tensor dy, Tensor y, Tensor lse, Tensor delta,
                                                  Tensor qkv, Tensor starts, HeadShape h, Fp8 f) {
    fp8_output_expect(dqkv, E5M2, qkv.dim[0], qkv.dim[1], f);
    dqkv.type = BF16;
    return attention_backward_contract(s, dqkv, dbias, dy, y, lse, delta, qkv, starts, h);
}
/* mean and b are none for rmsnorm. update and sum are none if there is only the norm. */
static inline int fp8_norm_forward_contract(Stream *s, const char *op, Tensor sum, Tensor y, Tensor mean, Tensor rstd, Tensor x,
                                            Tensor update, Tensor w, Tensor b, Fp8 f) {
    int64_t N = x.dim[0], C = x.dim[1];
    int     is_layernorm = !tensor_is_none(b), has_update = !tensor_is_none(update);
    EXPECT2(x, BF16, N, C);
    fp8_output_expect(y, E4M3, N, C, f);
    EXPECT1(w, BF16, C);
    EXPECT1(rstd, F32, N);
    if (is_layernorm) EXPECT1(b, BF16, C);
    if (is_layernorm) EXPECT1(mean, F32, N);
    if (has_update) EXPECT2(update, BF16, N, C);
    if (has_update) EXPECT2(sum, BF16, N, C);
    return stream_note(s, op, N, C, 0, 0, (is_layernorm ? 10.0 : 6.0) * (double)tensor_elems(x),
                       (has_update ? 4.0 : 2.0) * contract_bytes(x) + (is_layernorm ? 2.0 : 1.0) * contract_bytes(rstd));
}
static inline int fp8_layernorm_forward_contract(Stream *s, Tensor sum, Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor update,
                                                 Tensor w, Tensor b, Fp8 f) {
    return fp8_norm_forward_contract(s, "fp8_layernorm_forward", sum, y, mean, rstd, x, update, w, b, f);
}
static inline int fp8_rmsnorm_forward_contract(Stream *s, Tensor sum, Tensor y, Tensor rstd, Tensor x, Tensor update, Tensor w, Fp8 f) {
    return fp8_norm_forward_contract(s, "fp8_rmsnorm_forward", sum, y, tensor_none(), rstd, x, update, w, tensor_none(), f);
}

#ifdef __cplusplus
}
#endif
#endif
