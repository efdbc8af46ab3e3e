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

#ifdef __cplusplus
extern "C" {
#endif

static inline double contract_bytes(Tensor t) { return (double)tensor_bytes(t); }

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
static inline int embedding_forward_contract(Stream *s, Tensor y, Tensor tokens, Tensor wte, Tensor wpe, Tensor starts,
                                             ContextPart context) {
    return embedding_contract(s, "embedding_forward", y, tokens, wte, wpe, starts, context, y.type);
}
static inline int embedding_backward_contract(Stream *s, Tensor dwte, Tensor dwpe, Tensor dy, Tensor tokens, Tensor starts,
                                              ContextPart context) {
    return embedding_contract(s, "embedding_backward", dy, tokens, dwte, dwpe, starts, context, F32);
}
static inline int tokens_own_contract(Stream *s, Tensor own, Tensor tokens) {
    EXPECT1(own, I32, tokens.dim[0]);
    EXPECT1(tokens, I32, tokens.dim[0]);
    return stream_note(s, "tokens_own", tokens.dim[0], 0, 0, 0, 0.0, 2.0 * contract_bytes(tokens));
}

/* --- layernorm ---------------------------------------------------------------------------------------------------- */

static inline void layernorm_expect(Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor w, Tensor b) {
    int64_t N = x.dim[0], C = x.dim[1];
    EXPECT2(x, x.type, N, C);
    EXPECT2(y, x.type, N, C);
    EXPECT1(w, x.type, C);
    EXPECT1(b, x.type, C);
    EXPECT1(mean, F32, N);
    EXPECT1(rstd, F32, N);
}
static inline int layernorm_forward_contract(Stream *s, Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor w, Tensor b) {
    layernorm_expect(y, mean, rstd, x, w, b);
    return stream_note(s, "layernorm_forward", x.dim[0], x.dim[1], 0, 0, 8.0 * (double)tensor_elems(x),
                       2.0 * contract_bytes(x) + 2.0 * contract_bytes(mean));
}
static inline int residual_layernorm_forward_contract(Stream *s, Tensor sum, Tensor y, Tensor mean, Tensor rstd,
                                                      Tensor x, Tensor update, Tensor w, Tensor b) {
    layernorm_expect(y, mean, rstd, x, w, b);
    EXPECT2(sum, x.type, x.dim[0], x.dim[1]);
    EXPECT2(update, x.type, x.dim[0], x.dim[1]);
    return stream_note(s, "residual_layernorm_forward", x.dim[0], x.dim[1], 0, 0, 9.0 * (double)tensor_elems(x),
                       4.0 * contract_bytes(x) + 2.0 * contract_bytes(mean));
}
static inline void residual_expect(Tensor sum, Tensor x, Tensor update) {
    EXPECT2(x, x.type, x.dim[0], x.dim[1]);
    EXPECT2(sum, x.type, x.dim[0], x.dim[1]);
    EXPECT2(update, x.type, x.dim[0], x.dim[1]);
}
static inline int residual_forward_contract(Stream *s, Tensor sum, Tensor x, Tensor update) {
    residual_expect(sum, x, update);
    return stream_note(s, "residual_forward", x.dim[0], x.dim[1], 0, 0, (double)tensor_elems(x), 3.0 * contract_bytes(x));
}
static inline int layernorm_backward_contract(Stream *s, Tensor dx, Tensor dbias, Tensor dw, Tensor db, Tensor dresidual,
                                              Tensor dy, Tensor x, Tensor w, Tensor mean, Tensor rstd) {
    int64_t N = x.dim[0], C = x.dim[1];
    layernorm_expect(dy, mean, rstd, x, w, w);
    EXPECT2(dx, x.type, N, C);
    EXPECT1(dw, F32, C);
    EXPECT1(db, F32, C);
    if (!tensor_is_none(dbias)) EXPECT1(dbias, F32, C);
    if (dresidual.data) EXPECT2(dresidual, x.type, N, C);
    return stream_note(s, "layernorm_backward", N, C, 0, 0, 16.0 * (double)tensor_elems(x),
                       (dresidual.data ? 4.0 : 3.0) * contract_bytes(x) + 2.0 * contract_bytes(mean));
}

/* --- rmsnorm ------------------------------------------------------------------------------------------------------ */

static inline void rmsnorm_expect(Tensor y, Tensor rstd, Tensor x, Tensor w) {
    int64_t N = x.dim[0], C = x.dim[1];
    EXPECT2(x, x.type, N, C);
    EXPECT2(y, x.type, N, C);
    EXPECT1(w, x.type, C);
    EXPECT1(rstd, F32, N);
}
static inline int rmsnorm_forward_contract(Stream *s, Tensor y, Tensor rstd, Tensor x, Tensor w) {
    rmsnorm_expect(y, rstd, x, w);
    return stream_note(s, "rmsnorm_forward", x.dim[0], x.dim[1], 0, 0, 4.0 * (double)tensor_elems(x),
                       2.0 * contract_bytes(x) + contract_bytes(rstd));
}
static inline int residual_rmsnorm_forward_contract(Stream *s, Tensor sum, Tensor y, Tensor rstd, Tensor x,
                                                    Tensor update, Tensor w) {
    rmsnorm_expect(y, rstd, x, w);
    EXPECT2(sum, x.type, x.dim[0], x.dim[1]);
    EXPECT2(update, x.type, x.dim[0], x.dim[1]);
    return stream_note(s, "residual_rmsnorm_forward", x.dim[0], x.dim[1], 0, 0, 5.0 * (double)tensor_elems(x),
                       4.0 * contract_bytes(x) + contract_bytes(rstd));
}
static inline int rmsnorm_backward_contract(Stream *s, Tensor dx, Tensor dw, Tensor dresidual, Tensor dy, Tensor x,
                                            Tensor w, Tensor rstd) {
    int64_t N = x.dim[0], C = x.dim[1];
    rmsnorm_expect(dy, rstd, x, w);
    EXPECT2(dx, x.type, N, C);
    EXPECT1(dw, F32, C);
    if (dresidual.data) EXPECT2(dresidual, x.type, N, C);
    return stream_note(s, "rmsnorm_backward", N, C, 0, 0, 10.0 * (double)tensor_elems(x),
                       (dresidual.data ? 4.0 : 3.0) * contract_bytes(x) + contract_bytes(rstd));
}

static inline void head_norm_expect(Tensor y, Tensor rstd, Tensor x, int64_t first, int64_t heads, Tensor w) {
    int64_t N = x.dim[0], D = w.dim[0];
    EXPECT2(x, x.type, N, x.dim[1]);
    EXPECT2(y, x.type, N, y.dim[1]);
    EXPECT1(w, x.type, D);
    EXPECT2(rstd, F32, N, heads);
    CHECK(first >= 0 && heads >= 0 && first + heads * D <= x.dim[1] && first + heads * D <= y.dim[1],
          "%lld heads of %lld columns from %lld on, of %lld and %lld columns", (long long)heads, (long long)D, (long long)first,
          (long long)x.dim[1], (long long)y.dim[1]);
}
static inline int head_norm_forward_contract(Stream *s, Tensor y, Tensor rstd, Tensor x, int64_t first, int64_t heads, Tensor w) {
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

/* --- linear: its products and column sums note their own costs ---------------------------------------------------- */

static inline void linear_expect(Tensor y, Tensor x, Tensor w, Tensor b) {
    int64_t N = x.dim[0], K = w.dim[0], M = w.dim[1];
    EXPECT2(x, x.type, N, K);
    EXPECT2(y, x.type, N, M);
    EXPECT2(w, x.type, K, M);
    if (!tensor_is_none(b)) EXPECT1(b, x.type, M);
}
static inline void linear_backward_expect(Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w) {
    int64_t N = x.dim[0], K = w.dim[0], M = w.dim[1];
    EXPECT2(x, x.type, N, K);
    EXPECT2(dx, x.type, N, K);
    EXPECT2(dy, x.type, N, M);
    EXPECT2(w, x.type, K, M);
    EXPECT2(dw, F32, K, M);
    if (!tensor_is_none(db)) EXPECT1(db, F32, M);
}
/* db [M] f32 += column sums of dy [N,M]: the gradient of a bias. A step of the ops that have a bias, where no op that
 * wrote dy has added the sums. It takes its memory from s->scratch and gives it back. */
void bias_backward(Stream *s, Tensor db, Tensor dy);
static inline int bias_backward_contract(Stream *s, Tensor db, Tensor dy) {
    EXPECT1(db, F32, dy.dim[1]);
    return stream_note(s, "bias_backward", dy.dim[0], dy.dim[1], 0, 0, (double)tensor_elems(dy), contract_bytes(dy));
}

/* --- gelu --------------------------------------------------------------------------------------------------------- */

static inline int gelu_forward_contract(Stream *s, Tensor y, Tensor x) {
    EXPECT2(x, x.type, x.dim[0], x.dim[1]);
    EXPECT2(y, x.type, x.dim[0], x.dim[1]);
    return stream_note(s, "gelu_forward", x.dim[0], x.dim[1], 0, 0, 10.0 * (double)tensor_elems(x), 2.0 * contract_bytes(x));
}
static inline int gelu_backward_contract(Stream *s, Tensor dx, Tensor dbias, Tensor dy, Tensor x) {
    EXPECT2(x, x.type, x.dim[0], x.dim[1]);
    EXPECT2(dy, x.type, x.dim[0], x.dim[1]);
    EXPECT2(dx, x.type, x.dim[0], x.dim[1]);
    if (!tensor_is_none(dbias)) EXPECT1(dbias, F32, x.dim[1]);
    return stream_note(s, "gelu_backward", x.dim[0], x.dim[1], 0, 0, 16.0 * (double)tensor_elems(x), 3.0 * contract_bytes(x));
}

/* --- swiglu ------------------------------------------------------------------------------------------------------- */

static inline int swiglu_forward_contract(Stream *s, Tensor y, Tensor gate_up) {
    EXPECT2(y, y.type, y.dim[0], y.dim[1]);
    EXPECT2(gate_up, y.type, y.dim[0], 2 * y.dim[1]);
    return stream_note(s, "swiglu_forward", y.dim[0], y.dim[1], 0, 0, 5.0 * (double)tensor_elems(y), 3.0 * contract_bytes(y));
}
static inline int swiglu_backward_contract(Stream *s, Tensor dgate_up, Tensor dy, Tensor gate_up) {
    EXPECT2(dy, dy.type, dy.dim[0], dy.dim[1]);
    EXPECT2(gate_up, dy.type, dy.dim[0], 2 * dy.dim[1]);
    EXPECT2(dgate_up, dy.type, dy.dim[0], 2 * dy.dim[1]);
    return stream_note(s, "swiglu_backward", dy.dim[0], dy.dim[1], 0, 0, 12.0 * (double)tensor_elems(dy), 5.0 * contract_bytes(dy));
}

/* --- rope --------------------------------------------------------------------------------------------------------- */

static inline void heads_expect(HeadShape h) {
    CHECK(h.key >= 1 && h.size >= 1 && h.query >= 1 && h.query % h.key == 0, "%lld heads of queries, %lld of keys, %lld channels",
          (long long)h.query, (long long)h.key, (long long)h.size);
}
static inline int rope_contract(Stream *s, const char *op, Tensor qkv, Tensor frequencies, HeadShape h, int64_t T, int64_t first) {
    double turned = (double)(qkv.dim[0] * (h.query + h.key) * h.size);
    heads_expect(h);
    EXPECT2(qkv, qkv.type, qkv.dim[0], heads_columns(h));
    EXPECT1(frequencies, F32, h.size / 2);
    CHECK(h.size % 2 == 0 && first >= 0 && T >= 1 && qkv.dim[0] % T == 0,
          "%lld channels in pairs, %lld rows in sequences of %lld from %lld on", (long long)h.size, (long long)qkv.dim[0], (long long)T,
          (long long)first);
    return stream_note(s, op, qkv.dim[0], h.query, h.key, h.size, 3.0 * turned, 2.0 * turned * (double)dtype_bytes(qkv.type));
}

/* --- attention: two products forward, five backward, each over the causal half of T x T --------------------------- */

static inline void attention_expect(Tensor y, Tensor lse, Tensor qkv, Tensor starts, HeadShape h) {
    int64_t T = lse.dim[1], B = lse.dim[0] / h.query;
    heads_expect(h);
    EXPECT2(qkv, qkv.type, B * T, heads_columns(h));
    EXPECT2(y, qkv.type, B * T, h.query * h.size);
    EXPECT2(lse, F32, B * h.query, T);
    if (!tensor_is_none(starts)) EXPECT2(starts, I32, B, T);
}
static inline double attention_product_flops(Tensor lse, Tensor y) { return (double)tensor_elems(y) * (double)(lse.dim[1] + 1); }
static inline int attention_forward_contract(Stream *s, Tensor y, Tensor lse, Tensor qkv, Tensor starts, HeadShape h) {
    attention_expect(y, lse, qkv, starts, h);
    return stream_note(s, "attention_forward", lse.dim[0] / h.query, lse.dim[1], h.query, h.size,
                       2.0 * attention_product_flops(lse, y), contract_bytes(qkv) + contract_bytes(y) + contract_bytes(lse));
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
/* Returns the bytes of y, or of the delta that is given in its place. */
static inline double attention_delta_bytes(Tensor y, Tensor delta, HeadShape h) {
    if (tensor_is_none(delta)) return contract_bytes(y);
    EXPECT2(delta, F32, h.query, y.dim[0]);
    return contract_bytes(delta);
}
static inline int attention_backward_contract(Stream *s, Tensor dqkv, Tensor dbias, Tensor dy, Tensor y, Tensor lse, Tensor delta,
                                              Tensor qkv, Tensor starts, HeadShape h) {
    attention_expect(y, lse, qkv, starts, h);
    EXPECT2(dqkv, qkv.type, qkv.dim[0], qkv.dim[1]);
    if (!tensor_is_none(dbias)) EXPECT1(dbias, F32, qkv.dim[1]);
    EXPECT2(dy, qkv.type, y.dim[0], y.dim[1]);
    return stream_note(s, "attention_backward", lse.dim[0] / h.query, lse.dim[1], h.query, h.size,
                       5.0 * attention_product_flops(lse, y),
                       2.0 * contract_bytes(qkv) + contract_bytes(dy) + attention_delta_bytes(y, delta, h) + contract_bytes(lse));
}

/* Checks tensors where `keys` holds the keys of all context ranks; queries and dqkv are as above. */
static inline void attention_context_expect(Tensor y, Tensor lse, Tensor qkv, Tensor keys, Tensor starts, ContextPart c, HeadShape h) {
    attention_expect(y, lse, qkv, starts, h);
    EXPECT2(keys, qkv.type, c.ranks * qkv.dim[0], 2 * h.key * h.size);
    CHECK(c.ranks > 1 && lse.dim[1] % 128 == 0, "%lld tokens of a sequence on each of %lld context ranks",
          (long long)lse.dim[1], (long long)c.ranks);
}
/* Returns the FLOPs of one product. On average a query of a rank sees half of all tokens. */
static inline double attention_context_flops(Tensor lse, Tensor y, ContextPart c) {
    return (double)tensor_elems(y) * (double)(c.ranks * lse.dim[1] + 1);
}
static inline int attention_context_forward_contract(Stream *s, Tensor y, Tensor lse, Tensor qkv, Tensor keys,
                                                     Tensor starts, ContextPart c, HeadShape h) {
    attention_context_expect(y, lse, qkv, keys, starts, c, h);
    return stream_note(s, "attention_forward", lse.dim[0] / h.query, lse.dim[1], h.query, h.size,
                       2.0 * attention_context_flops(lse, y, c),
                       contract_bytes(keys) + 2.0 * contract_bytes(y) + contract_bytes(lse));
}
static inline int attention_context_backward_contract(Stream *s, Tensor dqkv, Tensor dkeys, Tensor dy, Tensor y,
                                                      Tensor lse, Tensor delta, Tensor qkv, Tensor keys,
                                                      Tensor starts, ContextPart c, HeadShape h) {
    attention_context_expect(y, lse, qkv, keys, starts, c, h);
    EXPECT2(dqkv, qkv.type, qkv.dim[0], qkv.dim[1]);
    EXPECT2(dkeys, qkv.type, keys.dim[0], keys.dim[1]);
    EXPECT2(dy, qkv.type, y.dim[0], y.dim[1]);
    return stream_note(s, "attention_backward", lse.dim[0] / h.query, lse.dim[1], h.query, h.size,
                       5.0 * attention_context_flops(lse, y, c),
                       2.0 * contract_bytes(keys) + 3.0 * contract_bytes(y) + attention_delta_bytes(y, delta, h) + contract_bytes(lse));
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
static inline int copy_columns_contract(Stream *s, Tensor to, int64_t to_first, Tensor from, int64_t from_first, int64_t columns) {
    EXPECT2(from, from.type, from.dim[0], from.dim[1]);
    EXPECT2(to, from.type, from.dim[0], to.dim[1]);
    CHECK(columns >= 0 && to_first >= 0 && from_first >= 0 && to_first + columns <= to.dim[1] &&
          from_first + columns <= from.dim[1],
          "columns %lld and %lld, %lld of them", (long long)to_first, (long long)from_first, (long long)columns);
    return stream_note(s, "copy_columns", from.dim[0], columns, 0, 0, 0.0,
                       2.0 * (double)(from.dim[0] * columns) * (double)dtype_bytes(from.type));
}

/* --- classifier --------------------------------------------------------------------------------------------------- */

static inline int classifier_contract(Stream *s, Tensor loss, Tensor logits, Tensor targets, int64_t V, int with_gradient) {
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

static inline void adamw_expect(const AdamWSpan *span) {
    int64_t n = span->master.dim[0];
    Tensor  master = span->master, m = span->m, v = span->v, grad = span->grad, working = span->working;
    EXPECT1(master, F32, n);
    EXPECT1(m, F32, n);
    EXPECT1(v, F32, n);
    EXPECT1(grad, F32, n);
    EXPECT1(working, working.type, n);
    CHECK(working.type != F32 || working.data == master.data, "an fp32 working copy is its own master");
}
static inline int adamw_contract(Stream *s, const AdamWSpan *span, int spans, AdamW h) {
    double elems = 0.0, bytes = 0.0;
    CHECK(h.step >= 1, "step %lld", (long long)h.step);
    for (int i = 0; i < spans; i++) {
        adamw_expect(&span[i]);
        elems += (double)span[i].master.dim[0];
        bytes += 7.0 * contract_bytes(span[i].master) + (span[i].working.type == F32 ? 0.0 : contract_bytes(span[i].working));
    }
    return stream_note(s, "adamw_update", (int64_t)elems, 0, 0, 0, 16.0 * elems, bytes);
}
static inline int muon_momentum_contract(Stream *s, Tensor grad, Tensor m) {
    EXPECT1(grad, F32, grad.dim[0]);
    EXPECT1(m, F32, grad.dim[0]);
    return stream_note(s, "muon_momentum", grad.dim[0], 0, 0, 0, 6.0 * (double)grad.dim[0], 4.0 * contract_bytes(grad));
}
/* Notes the work beside the products, which note themselves: the norm, and one pass each to narrow and widen. Each
 * iteration has two passes that read two matrices and write one, over X and over the square of its smaller side. */
static inline int newton_schulz_contract(Stream *s, Tensor x, int64_t parts, DType type) {
    double elems = (double)x.dim[0] * (double)x.dim[1], bytes = (double)dtype_bytes(type);
    EXPECT2(x, F32, x.dim[0], x.dim[1]);
    CHECK(parts >= 1 && x.dim[1] % parts == 0, "%lld columns in %lld parts", (long long)x.dim[1], (long long)parts);
    double side = x.dim[0] < x.dim[1] / parts ? (double)x.dim[0] : (double)(x.dim[1] / parts), squares = (double)parts * side * side;
    return stream_note(s, "newton_schulz", x.dim[0], x.dim[1], parts, 0, 3.0 * elems + 15.0 * (elems + squares),
                       12.0 * elems + bytes * (2.0 * elems + 15.0 * (elems + squares)));
}
/* Notes two passes over x, and a third over one value a neuron. */
static inline int normuon_contract(Stream *s, Tensor x, Tensor v, int64_t parts) {
    double elems = (double)x.dim[0] * (double)x.dim[1];
    EXPECT2(x, F32, x.dim[0], x.dim[1]);
    EXPECT2(v, F32, x.dim[0], x.dim[1]);
    CHECK(parts >= 1 && x.dim[1] % parts == 0, "%lld columns in %lld parts", (long long)x.dim[1], (long long)parts);
    return stream_note(s, "normuon", x.dim[0], x.dim[1], parts, 0, 3.0 * elems, 16.0 * elems);
}
static inline int columns_copy_contract(Stream *s, Tensor y, int64_t to, Tensor x, int64_t from, int64_t n) {
    EXPECT2(y, F32, y.dim[0], y.dim[1]);
    EXPECT2(x, F32, y.dim[0], x.dim[1]);
    CHECK(n >= 0 && to >= 0 && from >= 0 && to + n <= y.dim[1] && from + n <= x.dim[1], "%lld columns from %lld of %lld to %lld of %lld",
          (long long)n, (long long)from, (long long)x.dim[1], (long long)to, (long long)y.dim[1]);
    return stream_note(s, "columns_copy", y.dim[0], n, 0, 0, 0.0, 8.0 * (double)(y.dim[0] * n));
}
static inline int muon_update_contract(Stream *s, Tensor p, Tensor u) {
    EXPECT1(p, F32, p.dim[0]);
    EXPECT1(u, F32, p.dim[0]);
    return stream_note(s, "muon_update", p.dim[0], 0, 0, 0, 4.0 * (double)p.dim[0], 3.0 * contract_bytes(p));
}
static inline int zero_contract(Stream *s, const Tensor *x, int count) {
    int64_t elems = 0;
    for (int i = 0; i < count; i++) {
        EXPECT1(x[i], F32, x[i].dim[0]);
        elems += x[i].dim[0];
    }
    return stream_note(s, "zero_tensors", elems, 0, 0, 0, 0.0, 4.0 * (double)elems);
}
static inline int norm_squared_contract(Stream *s, Tensor sum, const Tensor *x, int count) {
    int64_t elems = 0;
    EXPECT1(sum, I64, EXACT_WORDS);
    for (int i = 0; i < count; i++) {
        EXPECT1(x[i], F32, x[i].dim[0]);
        elems += x[i].dim[0];
    }
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

#ifdef __cplusplus
}
#endif
#endif
