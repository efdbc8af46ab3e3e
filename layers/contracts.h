/* contracts.h - the contract of each op of layers.h, once for all backends: shapes and types, and the costs that a dry
 * stream notes (core/ledger.h).
 *
 * Each contract returns whether the stream is dry: the op then runs no loop and no kernel. On a dry stream an op that
 * takes scratch or calls other ops still runs its host code, so that these are counted. FLOPs are those of the formula;
 * bytes are those read and written once.
 */
#ifndef TRAIN_GPT_LAYERS_CONTRACTS_H
#define TRAIN_GPT_LAYERS_CONTRACTS_H

#include "layers/layers.h"
#include "layers/matmul.h"

#ifdef __cplusplus
extern "C" {
#endif

static inline double contract_bytes(Tensor t) { return (double)tensor_bytes(t); }

/* --- fp8: operands and outputs ------------------------------------------------------------------------------------ */

static inline void fp8_cells_expect(Fp8 f) {
    EXPECT1(f.scale, F32, FP8_SCALES * FP8_TENSORS);
    EXPECT1(f.amax, I32, FP8_TENSORS);
    if (!tensor_is_none(f.counts)) EXPECT1(f.counts, I64, 2 * FP8_TENSORS);
}

static inline int fp8_is_codes(Tensor t) { return t.type == E4M3 || t.type == E5M2; }
/* Checks an operand of a product: bf16, or 8-bit codes that an op has written. */
static inline void fp8_operand_expect(Tensor t, DType codes, int64_t rows, int64_t columns, Fp8 f) {
    EXPECT2(t, fp8_is_codes(t) ? codes : BF16, rows, columns);
    CHECK(!fp8_is_codes(t) || (rows % 16 == 0 && !f.uses_own), "codes of %lld rows, of a scale that is %s",
          (long long)rows, f.uses_own ? "not known" : "known");
}
/* Checks the output *y of an op that writes 8-bit codes; does nothing if f is NULL. The codes are E4M3 for the operand
 * x of the product that f belongs to, or of `type` E5M2 for its operand dy. Then sets the type of *y to BF16, because
 * the two copies of the codes have the bytes of one copy in bf16. */
static inline void fp8_output_expect(Tensor *y, DType type, int64_t rows, int64_t columns, const Fp8 *f) {
    if (!f) return;
    CHECK(columns % 16 == 0, "codes of %lld columns: a multiple of 16", (long long)columns);
    fp8_operand_expect(*y, type, rows, columns, *f);
    CHECK(fp8_is_codes(*y), "%s in the place of codes", dtype_name(y->type));
    fp8_cells_expect(*f);
    y->type = BF16;
}

/* --- embedding ---------------------------------------------------------------------------------------------------- */

static inline int embedding_contract(Stream *s, const char *op, Tensor y, Tensor tokens, Tensor wte, Tensor wpe,
                                     Tensor starts, ContextPart context, DType weights) {
    int64_t   B = tokens.dim[0], T = tokens.dim[1], C = wte.dim[1];
    Positions p = positions_of(context, T);
    int64_t   last = T > 0 ? POSITION_OF(p, T - 1) : 0;
    EXPECT2(tokens, I32, B, T);
    EXPECT2(y, y.type, B * T, C);
    EXPECT2(wte, weights, wte.dim[0], C);
    if (!tensor_is_none(starts)) EXPECT2(starts, I32, B, T);
    if (!tensor_is_none(wpe)) {
        EXPECT2(wpe, weights, wpe.dim[0], C);
        CHECK(wpe.dim[0] > last, "%lld positions for position %lld", (long long)wpe.dim[0], (long long)last);
    }
    double rows = (double)(B * T * C);
    return stream_note(s, op, B * T, C, 0, 0, rows,
                       contract_bytes(tokens) + contract_bytes(y) + 2.0 * rows * (double)dtype_bytes(weights));
}
static inline int tokens_own_contract(Stream *s, Tensor own, Tensor tokens) {
    EXPECT1(own, I32, tokens.dim[0]);
    EXPECT1(tokens, I32, tokens.dim[0]);
    return stream_note(s, "tokens_own", tokens.dim[0], 0, 0, 0, 0.0, 2.0 * contract_bytes(tokens));
}

/* --- norms -------------------------------------------------------------------------------------------------------- */

/* Checks the tensors of layernorm, or of rmsnorm, which has no mean and no b. */
static inline void norm_expect(Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor w, Tensor b) {
    int64_t N = x.dim[0], C = x.dim[1];
    EXPECT2(x, x.type, N, C);
    EXPECT2(y, x.type, N, C);
    EXPECT1(w, x.type, C);
    EXPECT1(rstd, F32, N);
    if (!tensor_is_none(b)) EXPECT1(b, x.type, C);
    if (!tensor_is_none(mean)) EXPECT1(mean, F32, N);
}
/* Contract of a norm, alone or after a residual addition. Without the addition `update` is tensor_none(). f: NULL, or y
 * is written as 8-bit codes, the operand x of the product that f belongs to. */
static inline int norm_forward_contract(Stream *s, Tensor sum, Tensor y, Tensor mean, Tensor rstd, Tensor x,
                                        Tensor update, Tensor w, Tensor b, const Fp8 *f) {
    static const char *const ops[2][3] =
        {{"rmsnorm_forward", "residual_rmsnorm_forward", "fp8_rmsnorm_forward"},
         {"layernorm_forward", "residual_layernorm_forward", "fp8_layernorm_forward"}};
    int    is_layernorm = !tensor_is_none(b), has_update = !tensor_is_none(update);
    double flops = (is_layernorm ? 8.0 : 4.0) + (f ? 2.0 : has_update);
    fp8_output_expect(&y, E4M3, x.dim[0], x.dim[1], f);
    norm_expect(y, mean, rstd, x, w, b);
    if (has_update) EXPECT2(sum, x.type, x.dim[0], x.dim[1]);
    if (has_update) EXPECT2(update, x.type, x.dim[0], x.dim[1]);
    return stream_note(s, ops[is_layernorm][f ? 2 : has_update], x.dim[0], x.dim[1], 0, 0,
                       flops * (double)tensor_elems(x), (has_update ? 4.0 : 2.0) * contract_bytes(x) +
                           (is_layernorm ? 2.0 : 1.0) * contract_bytes(rstd));
}
static inline int norm_backward_contract(Stream *s, Tensor dx, Tensor dbias, Tensor dw, Tensor db, Tensor dresidual,
                                         Tensor dy, Tensor x, Tensor w, Tensor mean, Tensor rstd) {
    int64_t N = x.dim[0], C = x.dim[1];
    int     is_layernorm = !tensor_is_none(db);
    norm_expect(dy, mean, rstd, x, w, tensor_none());
    EXPECT2(dx, x.type, N, C);
    EXPECT1(dw, F32, C);
    if (is_layernorm) EXPECT1(db, F32, C);
    if (!tensor_is_none(dbias)) EXPECT1(dbias, F32, C);
    CHECK(is_layernorm || tensor_is_none(dbias), "rmsnorm adds up no columns of dx");
    if (dresidual.data) EXPECT2(dresidual, x.type, N, C);
    return stream_note(s, is_layernorm ? "layernorm_backward" : "rmsnorm_backward", N, C, 0, 0,
                       (is_layernorm ? 16.0 : 10.0) * (double)tensor_elems(x),
                       (dresidual.data ? 4.0 : 3.0) * contract_bytes(x) +
                           (is_layernorm ? 2.0 : 1.0) * contract_bytes(rstd));
}
static inline void residual_expect(Tensor sum, Tensor x, Tensor update) {
    EXPECT2(x, x.type, x.dim[0], x.dim[1]);
    EXPECT2(sum, x.type, x.dim[0], x.dim[1]);
    EXPECT2(update, x.type, x.dim[0], x.dim[1]);
}
static inline int residual_forward_contract(Stream *s, Tensor sum, Tensor x, Tensor update) {
    residual_expect(sum, x, update);
    return stream_note(s, "residual_forward", x.dim[0], x.dim[1], 0, 0, (double)tensor_elems(x),
                       3.0 * contract_bytes(x));
}

static inline void head_norm_expect(Tensor y, Tensor rstd, Tensor x, int64_t first, int64_t heads, Tensor w) {
    int64_t N = x.dim[0], D = w.dim[0];
    EXPECT2(x, x.type, N, x.dim[1]);
    EXPECT2(y, x.type, N, y.dim[1]);
    EXPECT1(w, x.type, D);
    EXPECT2(rstd, F32, N, heads);
    CHECK(first >= 0 && heads >= 0 && first + heads * D <= x.dim[1] && first + heads * D <= y.dim[1],
          "%lld heads of %lld columns from %lld on, of %lld and %lld columns", (long long)heads, (long long)D,
          (long long)first, (long long)x.dim[1], (long long)y.dim[1]);
}
static inline int head_norm_forward_contract(Stream *s, Tensor y, Tensor rstd, Tensor x, int64_t first, int64_t heads,
                                             Tensor w) {
    double elems = (double)(x.dim[0] * heads * w.dim[0]);
    head_norm_expect(y, rstd, x, first, heads, w);
    return stream_note(s, "head_norm_forward", x.dim[0], heads, w.dim[0], 0, 4.0 * elems,
                       2.0 * elems * (double)dtype_bytes(x.type) + contract_bytes(rstd));
}
static inline int head_norm_backward_contract(Stream *s, Tensor dx, Tensor dw, Tensor dy, Tensor x, int64_t first,
                                              int64_t heads, Tensor w, Tensor rstd) {
    double elems = (double)(x.dim[0] * heads * w.dim[0]);
    head_norm_expect(dx, rstd, x, first, heads, w);
    head_norm_expect(dy, rstd, x, first, heads, w);
    EXPECT1(dw, F32, w.dim[0]);
    return stream_note(s, "head_norm_backward", x.dim[0], heads, w.dim[0], 0, 10.0 * elems,
                       3.0 * elems * (double)dtype_bytes(x.type) + contract_bytes(rstd));
}

/* --- linear and head: their products and column sums note their own costs ----------------------------------------- */

/* Checks the tensors of a layer y = x w + b. w is [K,M], or with order TRANSPOSED [M,K]. */
static inline void linear_expect(Tensor y, Tensor x, Tensor w, Tensor b, MatrixOrder order) {
    int64_t N = x.dim[0], K = w.dim[order != PLAIN], M = w.dim[order == PLAIN];
    EXPECT2(x, x.type, N, K);
    EXPECT2(y, x.type, N, M);
    EXPECT2(w, x.type, w.dim[0], w.dim[1]);
    if (!tensor_is_none(b)) EXPECT1(b, x.type, M);
}
static inline void linear_backward_expect(Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w,
                                          MatrixOrder order) {
    linear_expect(dy, x, w, tensor_none(), order);
    EXPECT2(dx, x.type, x.dim[0], x.dim[1]);
    EXPECT2(dw, F32, w.dim[0], w.dim[1]);
    CHECK(order == PLAIN || tensor_is_none(db), "a bias beside a transposed matrix");
    if (!tensor_is_none(db)) EXPECT1(db, F32, dy.dim[1]);
}
/* db [M] f32 += column sums of dy [N,M]: the gradient of a bias. Ops that have a bias call it if the op that wrote dy
 * has not added the sums already. bias_backward takes its memory from s->scratch and gives it back. */
void bias_backward(Stream *s, Tensor db, Tensor dy);
static inline int bias_backward_contract(Stream *s, Tensor db, Tensor dy) {
    EXPECT1(db, F32, dy.dim[1]);
    return stream_note(s, "bias_backward", dy.dim[0], dy.dim[1], 0, 0, (double)tensor_elems(dy), contract_bytes(dy));
}

/* --- activation --------------------------------------------------------------------------------------------------- */

/* Contract of an activation and of its gradient. f: NULL, or the output is written as 8-bit codes. y of forward is then
 * the operand x of the product that f belongs to, dx of backward its operand dy. The FLOPs are those of gelu_new for
 * every kind, because the ops are bound by memory. */
static inline int activation_forward_contract(Stream *s, Tensor y, Tensor x, const Fp8 *f) {
    fp8_output_expect(&y, E4M3, x.dim[0], x.dim[1], f);
    EXPECT2(x, y.type, x.dim[0], x.dim[1]);
    EXPECT2(y, x.type, x.dim[0], x.dim[1]);
    return stream_note(s, f ? "fp8_activation_forward" : "activation_forward", x.dim[0], x.dim[1], 0, 0,
                       (f ? 11.0 : 10.0) * (double)tensor_elems(x), 2.0 * contract_bytes(x));
}
static inline int activation_backward_contract(Stream *s, Tensor dx, Tensor dbias, Tensor dy, Tensor x,
                                               const Fp8 *f) {
    fp8_output_expect(&dx, E5M2, x.dim[0], x.dim[1], f);
    EXPECT2(x, dx.type, x.dim[0], x.dim[1]);
    EXPECT2(dy, x.type, x.dim[0], x.dim[1]);
    EXPECT2(dx, x.type, x.dim[0], x.dim[1]);
    if (!tensor_is_none(dbias)) EXPECT1(dbias, F32, x.dim[1]);
    return stream_note(s, f ? "fp8_activation_backward" : "activation_backward", x.dim[0], x.dim[1], 0, 0,
                       (f ? 17.0 : 16.0) * (double)tensor_elems(x), 3.0 * contract_bytes(x));
}

/* --- swiglu ------------------------------------------------------------------------------------------------------- */

static inline int swiglu_forward_contract(Stream *s, Tensor y, Tensor gate_up, const Fp8 *f) {
    fp8_output_expect(&y, E4M3, y.dim[0], y.dim[1], f);
    EXPECT2(y, y.type, y.dim[0], y.dim[1]);
    EXPECT2(gate_up, y.type, y.dim[0], 2 * y.dim[1]);
    return stream_note(s, f ? "fp8_swiglu_forward" : "swiglu_forward", y.dim[0], y.dim[1], 0, 0,
                       (f ? 6.0 : 5.0) * (double)tensor_elems(y), 3.0 * contract_bytes(y));
}
static inline int swiglu_backward_contract(Stream *s, Tensor dgate_up, Tensor dy, Tensor gate_up, const Fp8 *f) {
    fp8_output_expect(&dgate_up, E5M2, dy.dim[0], 2 * dy.dim[1], f);
    EXPECT2(dy, dgate_up.type, dy.dim[0], dy.dim[1]);
    EXPECT2(gate_up, dy.type, dy.dim[0], 2 * dy.dim[1]);
    EXPECT2(dgate_up, dy.type, dy.dim[0], 2 * dy.dim[1]);
    return stream_note(s, f ? "fp8_swiglu_backward" : "swiglu_backward", dy.dim[0], dy.dim[1], 0, 0,
                       (f ? 14.0 : 12.0) * (double)tensor_elems(dy), 5.0 * contract_bytes(dy));
}

/* --- rope --------------------------------------------------------------------------------------------------------- */

static inline void heads_expect(HeadShape h) {
    CHECK(h.key >= 1 && h.size >= 1 && h.query >= 1 && h.query % h.key == 0,
          "%lld heads of queries, %lld of keys, %lld channels", (long long)h.query, (long long)h.key,
          (long long)h.size);
}
static inline int rope_contract(Stream *s, Tensor qkv, Tensor frequencies, HeadShape h, int64_t T, int64_t first,
                                RopeDirection direction) {
    double turned = (double)(qkv.dim[0] * (h.query + h.key) * h.size);
    heads_expect(h);
    EXPECT2(qkv, qkv.type, qkv.dim[0], heads_columns(h));
    EXPECT1(frequencies, F32, h.size / 2);
    CHECK(h.size % 2 == 0 && first >= 0 && T >= 1 && qkv.dim[0] % T == 0,
          "%lld channels in pairs, %lld rows in sequences of %lld from %lld on", (long long)h.size,
          (long long)qkv.dim[0], (long long)T, (long long)first);
    return stream_note(s, direction == ROPE_FORWARD ? "rope_forward" : "rope_backward", qkv.dim[0], h.query, h.key,
                       h.size, 3.0 * turned, 2.0 * turned * (double)dtype_bytes(qkv.type));
}

/* --- attention: two products forward, five backward, each over the causal half of T x T --------------------------- */

/* Checks the tensors of attention. `keys` holds the keys of all context ranks, or is none if they are in qkv. */
static inline void attention_expect(Tensor y, Tensor lse, Tensor qkv, Tensor keys, Tensor starts, ContextPart c,
                                    HeadShape h) {
    int64_t T = lse.dim[1], B = lse.dim[0] / h.query;
    heads_expect(h);
    EXPECT2(qkv, qkv.type, B * T, heads_columns(h));
    EXPECT2(y, qkv.type, B * T, h.query * h.size);
    EXPECT2(lse, F32, B * h.query, T);
    if (!tensor_is_none(starts)) EXPECT2(starts, I32, B, T);
    if (tensor_is_none(keys)) return;
    EXPECT2(keys, qkv.type, c.ranks * qkv.dim[0], 2 * h.key * h.size);
    CHECK(c.ranks > 1 && T % 128 == 0, "%lld tokens of a sequence on each of %lld context ranks", (long long)T,
          (long long)c.ranks);
}
/* Notes the cost of `products` matrix products of queries and keys on a dry stream (one that only counts costs). On
 * average a query of a rank sees half of all tokens. */
static inline int attention_note(Stream *s, const char *op, Tensor y, Tensor lse, ContextPart c, HeadShape h,
                                 double products, double bytes) {
    double product = (double)tensor_elems(y) * (double)(c.ranks * lse.dim[1] + 1);
    return stream_note(s, op, lse.dim[0] / h.query, lse.dim[1], h.query, h.size, products * product,
                       bytes + contract_bytes(lse));
}
static inline int attention_forward_contract(Stream *s, Tensor y, Tensor lse, Tensor qkv, Tensor keys, Tensor starts,
                                             ContextPart c, HeadShape h) {
    attention_expect(y, lse, qkv, keys, starts, c, h);
    return attention_note(s, "attention_forward", y, lse, c, h, 2.0,
                          tensor_is_none(keys) ? contract_bytes(qkv) + contract_bytes(y)
                                               : contract_bytes(keys) + 2.0 * contract_bytes(y));
}
static inline int attention_delta_contract(Stream *s, Tensor delta, Tensor dy, Tensor y) {
    int64_t H = delta.dim[0], N = y.dim[0], C = y.dim[1];
    EXPECT2(delta, F32, H, N);
    EXPECT2(y, y.type, N, C);
    EXPECT2(dy, y.type, N, C);
    CHECK(H > 0 && C % H == 0, "%lld columns of %lld heads", (long long)C, (long long)H);
    return stream_note(s, "attention_delta", N, H, C / H, 0, 2.0 * (double)tensor_elems(y),
                       2.0 * contract_bytes(y) + contract_bytes(delta));
}
/* Contract of attention's backward pass. If `keys` holds the keys of all context ranks, dkeys holds their gradients;
 * otherwise dqkv does. */
static inline int attention_backward_contract(Stream *s, Tensor dqkv, Tensor dbias, Tensor dkeys, Tensor dy, Tensor y,
                                              Tensor lse, Tensor delta, Tensor qkv, Tensor keys, Tensor starts,
                                              ContextPart c, HeadShape h) {
    int is_whole = tensor_is_none(keys);
    attention_expect(y, lse, qkv, keys, starts, c, h);
    EXPECT2(dqkv, qkv.type, qkv.dim[0], qkv.dim[1]);
    if (!is_whole) EXPECT2(dkeys, qkv.type, keys.dim[0], keys.dim[1]);
    if (!tensor_is_none(dbias)) EXPECT1(dbias, F32, qkv.dim[1]);
    EXPECT2(dy, qkv.type, y.dim[0], y.dim[1]);
    if (!tensor_is_none(delta)) EXPECT2(delta, F32, h.query, y.dim[0]);
    return attention_note(s, "attention_backward", y, lse, c, h, 5.0,
                          2.0 * contract_bytes(is_whole ? qkv : keys) + (is_whole ? 1.0 : 3.0) * contract_bytes(y) +
                              contract_bytes(tensor_is_none(delta) ? y : delta));
}
static inline int attention_last_forward_contract(Stream *s, Tensor y, Tensor qkv, HeadShape h) {
    int64_t n = y.dim[0], T = qkv.dim[0], C = h.query * h.size, keys = 2 * h.key * h.size;
    heads_expect(h);
    EXPECT2(qkv, qkv.type, T, heads_columns(h));
    EXPECT2(y, qkv.type, n, C);
    CHECK(n <= T, "%lld of %lld tokens", (long long)n, (long long)T);
    return stream_note(s, "attention_last_forward", n, T, h.query, h.size, 4.0 * (double)(n * C) * (double)T,
                       (double)(T * keys) * (double)dtype_bytes(qkv.type) + 2.0 * contract_bytes(y));
}

/* --- classifier --------------------------------------------------------------------------------------------------- */

static inline int classifier_contract(Stream *s, Tensor loss, Tensor logits, Tensor targets, int64_t V,
                                      int with_gradient) {
    int64_t n = logits.dim[0], columns = logits.dim[1];
    EXPECT2(logits, logits.type, n, columns);
    EXPECT1(loss, F32, n);
    EXPECT1(targets, I32, n);
    CHECK(V >= 1 && V <= columns, "V = %lld of %lld columns", (long long)V, (long long)columns);
    return stream_note(s, with_gradient ? "classifier_forward_backward" : "classifier_forward", n, V, 0, 0,
                       (with_gradient ? 8.0 : 5.0) * (double)n * (double)V,
                       (with_gradient ? 2.0 : 1.0) * contract_bytes(logits));
}

static inline int classifier_part_most_contract(Stream *s, Tensor most, Tensor logits, int64_t V) {
    int64_t n = logits.dim[0], columns = logits.dim[1];
    EXPECT2(logits, logits.type, n, columns);
    EXPECT1(most, F32, n);
    CHECK(V >= 0 && V <= columns, "V = %lld of %lld columns", (long long)V, (long long)columns);
    return stream_note(s, "classifier_part_most", n, V, 0, 0, (double)n * (double)V, contract_bytes(logits));
}
static inline int classifier_part_contract(Stream *s, const char *op, Tensor logits, Tensor targets, int64_t V,
                                           Tensor most, Tensor sums, double passes) {
    int64_t n = logits.dim[0], columns = logits.dim[1];
    EXPECT2(logits, logits.type, n, columns);
    EXPECT1(targets, I32, n);
    EXPECT1(most, F32, n);
    EXPECT2(sums, F32, 2, n);
    CHECK(V >= 0 && V <= columns, "V = %lld of %lld columns", (long long)V, (long long)columns);
    return stream_note(s, op, n, V, 0, 0, 4.0 * (double)n * (double)V, passes * contract_bytes(logits));
}

/* --- optimizer ---------------------------------------------------------------------------------------------------- */

/* The contract of every update of spans (ranges of parameters). states: 1 if the optimizer has m, 2 if it has m and v.
 * flops: FLOPs of an element. */
static inline int update_contract(Stream *s, const char *op, const OptimizerSpan *span, int spans, OptimizerStep h,
                                  int states, double flops) {
    double elems = 0.0, bytes = 0.0;
    CHECK(h.step >= 1, "step %lld", (long long)h.step);
    for (int i = 0; i < spans; i++) {
        Tensor  master = span[i].master, m = span[i].m, v = span[i].v, grad = span[i].grad, working = span[i].working;
        int64_t n = master.dim[0];
        EXPECT1(master, F32, n);
        EXPECT1(m, F32, n);
        if (states > 1) EXPECT1(v, F32, n);
        EXPECT1(grad, F32, n);
        EXPECT1(working, working.type, n);
        CHECK(working.type != F32 || working.data == master.data, "an fp32 working copy is its own master");
        elems += (double)n;
        bytes += (3 + 2 * states) * contract_bytes(master) + (working.type == F32 ? 0.0 : contract_bytes(working));
    }
    return stream_note(s, op, (int64_t)elems, 0, 0, 0, flops * elems, bytes);
}
static inline int muon_momentum_contract(Stream *s, Tensor grad, Tensor m) {
    EXPECT1(grad, F32, grad.dim[0]);
    EXPECT1(m, F32, grad.dim[0]);
    return stream_note(s, "muon_momentum", grad.dim[0], 0, 0, 0, 6.0 * (double)grad.dim[0], 4.0 * contract_bytes(grad));
}
/* Notes the cost of newton_schulz on a dry stream (one that only counts costs), without that of its matrix products,
 * which note themselves. There are the norm, and one pass each to narrow and widen. Each iteration has two passes that
 * read two matrices and write one, over X and over the square of its smaller side. */
static inline int newton_schulz_contract(Stream *s, Tensor x, int64_t parts, DType type) {
    double elems = (double)x.dim[0] * (double)x.dim[1], bytes = (double)dtype_bytes(type);
    EXPECT2(x, F32, x.dim[0], x.dim[1]);
    CHECK(parts >= 1 && x.dim[1] % parts == 0, "%lld columns in %lld parts", (long long)x.dim[1], (long long)parts);
    double side = x.dim[0] < x.dim[1] / parts ? (double)x.dim[0] : (double)(x.dim[1] / parts),
           squares = (double)parts * side * side;
    return stream_note(s, "newton_schulz", x.dim[0], x.dim[1], parts, 0, 3.0 * elems + 15.0 * (elems + squares),
                       12.0 * elems + bytes * (2.0 * elems + 15.0 * (elems + squares)));
}
/* Notes the cost of normuon on a dry stream (one that only counts costs): two passes over x, and a third over one value
 * for each neuron. */
static inline int normuon_contract(Stream *s, Tensor x, Tensor v, int64_t parts) {
    double elems = (double)x.dim[0] * (double)x.dim[1];
    EXPECT2(x, F32, x.dim[0], x.dim[1]);
    EXPECT2(v, F32, x.dim[0], x.dim[1]);
    CHECK(parts >= 1 && x.dim[1] % parts == 0, "%lld columns in %lld parts", (long long)x.dim[1], (long long)parts);
    return stream_note(s, "normuon", x.dim[0], x.dim[1], parts, 0, 3.0 * elems, 16.0 * elems);
}
static inline int muon_update_contract(Stream *s, Tensor p, Tensor u) {
    EXPECT1(p, F32, p.dim[0]);
    EXPECT1(u, F32, p.dim[0]);
    return stream_note(s, "muon_update", p.dim[0], 0, 0, 0, 4.0 * (double)p.dim[0], 3.0 * contract_bytes(p));
}
static inline int64_t list_elems(const Tensor *x, int count) {
    int64_t elems = 0;
    for (int i = 0; i < count; i++) {
        EXPECT1(x[i], F32, x[i].dim[0]);
        elems += x[i].dim[0];
    }
    return elems;
}
static inline int zero_contract(Stream *s, const Tensor *x, int count) {
    int64_t elems = list_elems(x, count);
    return stream_note(s, "zero_tensors", elems, 0, 0, 0, 0.0, 4.0 * (double)elems);
}
static inline int norm_squared_contract(Stream *s, Tensor sum, const Tensor *x, int count) {
    int64_t elems = list_elems(x, count);
    EXPECT1(sum, I64, EXACT_WORDS);
    return stream_note(s, "norm_squared", elems, 0, 0, 0, 2.0 * (double)elems, 4.0 * (double)elems);
}
static inline int sum_forward_contract(Stream *s, Tensor sum, Tensor x) {
    EXPECT1(sum, I64, EXACT_WORDS);
    EXPECT1(x, F32, x.dim[0]);
    return stream_note(s, "sum_forward", x.dim[0], 0, 0, 0, (double)x.dim[0], contract_bytes(x));
}
static inline int add_forward_contract(Stream *s, Tensor y, Tensor x) {
    EXPECT1(y, F32, y.dim[0]);
    EXPECT1(x, F32, y.dim[0]);
    return stream_note(s, "add_forward", y.dim[0], 0, 0, 0, (double)y.dim[0], 3.0 * contract_bytes(x));
}
static inline int copy_columns_contract(Stream *s, Tensor to, int64_t to_first, Tensor from, int64_t from_first,
                                        int64_t columns) {
    EXPECT2(from, from.type, from.dim[0], from.dim[1]);
    EXPECT2(to, from.type, from.dim[0], to.dim[1]);
    CHECK(columns >= 0 && to_first >= 0 && from_first >= 0 && to_first + columns <= to.dim[1] &&
          from_first + columns <= from.dim[1],
          "columns %lld and %lld, %lld of them", (long long)to_first, (long long)from_first, (long long)columns);
    return stream_note(s, "copy_columns", from.dim[0], columns, 0, 0, 0.0,
                       2.0 * (double)(from.dim[0] * columns) * (double)dtype_bytes(from.type));
}
static inline int cast_forward_contract(Stream *s, Tensor y, Tensor x) {
    EXPECT1(x, x.type, x.dim[0]);
    EXPECT1(y, y.type, x.dim[0]);
    return stream_note(s, "cast_forward", x.dim[0], 0, 0, 0, 0.0, contract_bytes(x) + contract_bytes(y));
}
static inline int hash_words_contract(Stream *s, Tensor hash, Tensor x) {
    EXPECT1(hash, I64, 1);
    EXPECT1(x, x.type, x.dim[0]);
    return stream_note(s, "hash_words", x.dim[0], 0, 0, 0, 0.0, contract_bytes(x));
}

/* --- experts ------------------------------------------------------------------------------------------------------ */

static inline int router_forward_contract(Stream *s, Tensor probability, Tensor expert, Tensor weight, Tensor logits,
                                          Tensor bias) {
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
/* Contract of moving rows between tokens and experts. rows [R,C]   tokens [N,C]   index [R]: the row of each assignment
 * of a token to an expert, or the assignment of each row */
static inline int rows_contract(Stream *s, const char *op, Tensor rows, Tensor tokens, Tensor index) {
    int64_t R = rows.dim[0], N = tokens.dim[0], C = rows.dim[1];
    EXPECT2(rows, rows.type, R, C);
    EXPECT2(tokens, rows.type, N, C);
    EXPECT1(index, I32, R);
    CHECK(N == 0 ? R == 0 : R % N == 0, "%lld rows of %lld tokens", (long long)R, (long long)N);
    return stream_note(s, op, R, N, C, 0, (double)(R * C),
                       contract_bytes(rows) + contract_bytes(tokens) + contract_bytes(index));
}
static inline int expert_swiglu_contract(Stream *s, const char *op, Tensor y, Tensor gate_up, Tensor dgate_up,
                                         Tensor weight, Tensor order, double flops, double passes) {
    int64_t R = y.dim[0], F = y.dim[1];
    EXPECT2(y, y.type, R, F);
    EXPECT2(gate_up, y.type, R, 2 * F);
    EXPECT2(dgate_up, y.type, R, 2 * F);
    if (!tensor_is_none(order)) EXPECT1(order, I32, R);
    EXPECT2(weight, F32, weight.dim[0], weight.dim[1]);
    CHECK(weight.dim[0] * weight.dim[1] == R, "%lld weights for %lld rows", (long long)(weight.dim[0] * weight.dim[1]),
          (long long)R);
    return stream_note(s, op, R, F, 0, 0, flops * (double)tensor_elems(y), passes * contract_bytes(y));
}

/* Notes the products of all experts on a dry stream (one that only counts costs), as one product m x n x k. How the
 * rows are divided among the experts changes neither FLOPs nor bytes. */
static inline int expert_linear_note(Stream *s, const char *op, Tensor y, Tensor x, Tensor w, int64_t stride,
                                     Tensor first, int64_t m, int64_t n, int64_t k) {
    int64_t R = x.dim[0], M = w.dim[0], K = w.dim[1], E = first.dim[0] - 1;
    EXPECT2(x, x.type, R, K);
    EXPECT2(y, x.type, R, M);
    EXPECT2(w, w.type, M, K);
    EXPECT1(first, I32, E + 1);
    CHECK(E >= 1 && stride >= M * K && R < INT32_MAX, "%lld experts, %lld elements apart, %lld rows", (long long)E,
          (long long)stride, (long long)R);
    double matrices = (double)E * contract_bytes(w) * (w.type == F32 && x.type != F32 && !w.is_fresh ? 2.0 : 1.0);
    return stream_note(s, op, m, n, k, E, 2.0 * (double)R * (double)M * (double)K,
                       contract_bytes(x) + contract_bytes(y) + matrices);
}
static inline int expert_linear_forward_contract(Stream *s, Tensor y, Tensor x, Tensor w, int64_t stride,
                                                 Tensor first) {
    CHECK(w.type == x.type, "weights of %s, rows of %s", dtype_name(w.type), dtype_name(x.type));
    return expert_linear_note(s, "matmul, experts", y, x, w, stride, first, x.dim[0], w.dim[0], w.dim[1]);
}
static inline int expert_linear_backward_contract(Stream *s, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w,
                                                  int64_t stride, Tensor first) {
    CHECK(w.type == x.type, "weights of %s, rows of %s", dtype_name(w.type), dtype_name(x.type));
    EXPECT2(dx, x.type, x.dim[0], x.dim[1]);
    EXPECT2(dw, F32, w.dim[0], w.dim[1]);
    int64_t R = x.dim[0], M = w.dim[0], K = w.dim[1], E = first.dim[0] - 1;
    expert_linear_note(s, "matmul, experts", dy, dx, w, stride, first, R, K, M);
    return expert_linear_note(s, dw.is_fresh ? "matmul, experts, set" : "matmul, experts, added", dy, x, dw, stride,
                              first, E * M, K, (R + E - 1) / E); /* experts are assumed to have equal numbers of rows */
}

/* --- fp8: products ------------------------------------------------------------------------------------------------ */

/* Checks the tensors of a product in fp8. w is [K,M], or with order TRANSPOSED [M,K]. */
static inline void fp8_expect(Tensor y, Tensor x, Tensor w, Fp8 f, MatrixOrder order) {
    int64_t N = x.dim[0], K = w.dim[order != PLAIN], M = w.dim[order == PLAIN];
    CHECK(K % 16 == 0 && M % 16 == 0, "a product in fp8 of %lld x %lld: multiples of 16", (long long)K, (long long)M);
    fp8_operand_expect(x, E4M3, N, K, f);
    EXPECT2(y, BF16, N, M);
    EXPECT2(w, BF16, w.dim[0], w.dim[1]);
    fp8_cells_expect(f);
}
static inline void fp8_backward_expect(Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w, Fp8 f,
                                       MatrixOrder order) {
    Tensor y = dy;
    y.type = BF16;
    fp8_expect(y, x, w, f, order);
    fp8_operand_expect(dy, E5M2, y.dim[0], y.dim[1], f);
    EXPECT2(dx, BF16, x.dim[0], x.dim[1]);
    EXPECT2(dw, F32, w.dim[0], w.dim[1]);
    if (!tensor_is_none(db)) EXPECT1(db, F32, dy.dim[1]);
    CHECK(tensor_is_none(db) || !fp8_is_codes(dy), "column sums of %lld columns of codes", (long long)dy.dim[1]);
}
/* Notes a cast to fp8 on a dry stream (one that only counts costs). It reads x and writes `copies` of x as 8-bit
 * numbers: in row-major order, transposed, or both. */
static inline int fp8_cast_contract(Stream *s, Tensor x, int copies) {
    return stream_note(s, "fp8_cast", x.dim[0], x.dim[1], copies, 0, (double)tensor_elems(x),
                       contract_bytes(x) + copies * (double)tensor_elems(x));
}

#ifdef __cplusplus
}
#endif
#endif
