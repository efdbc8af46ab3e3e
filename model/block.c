/* block.c - see block.h. In this order: memory of activations from the table of a kind of block, tensor ranks, context
 * ranks, products. */
#include "model/block.h"

#include "core/error.h"
#include "layers/layers.h"

const BlockKind *block_kind(ModelShape shape) {
    switch ((Arch)shape.arch) {
        case ARCH_GPT2:
        case ARCH_COUNT: break;
        case ARCH_LLAMA: return &BLOCK_LLAMA;
        case ARCH_QWEN3: return &BLOCK_QWEN3;
        case ARCH_QWEN3_MOE: return &BLOCK_QWEN3_MOE;
    }
    return &BLOCK_GPT2;
}

int kind_has(const BlockKind *kind, ModelShape shape, int traits) {
    int has_own_head = kind->keys & READS_TIED ? !shape.tie_embeddings : shape.own_head, has = kind->traits;
    if (has_own_head) has |= HAS_OWN_HEAD;
    if (has & HAS_EXPERTS && shape.balance == BALANCE_BIAS) has |= HAS_EXPERT_BIAS;
    return (has & traits) == traits;
}

static Tensor *tensor_at(void *acts, size_t field) { return (Tensor *)(void *)((char *)acts + field); }

/* Returns whether all blocks use the same memory for a tensor, that of the first block. */
static int is_shared(Keep keep, GptUse use, Recompute recompute) {
    if (keep == KEEP_WORK) return 1;
    if (use == GPT_SAMPLING && keep == KEEP_CACHE) return 0;
    if (use != GPT_TRAINING || keep == KEEP_BACKWARD) return 1;
    if (keep == KEEP_STREAM) return 0;
    return recompute == RECOMPUTE_BLOCK || (recompute == RECOMPUTE_LIGHT && keep == KEEP_CHEAP);
}

/* Returns how many rows (tokens, each for one of its experts) this rank's experts compute at once. */
static int64_t expert_rows(ModelShape m, Extent e) { return e.room ? e.room : e.N * m.top_k; }

static Tensor shape_of(ActShape shape, ModelShape m, Extent e, DType type) {
    switch (shape) {
        case ACT_OWN_ALL_C: return tensor_2d(NULL, type, e.own, m.n_embd);
        case ACT_N_Q: return tensor_2d(NULL, type, e.N, dim_size(DIM_Q, m) / e.tensor);
        case ACT_N_QKV: return tensor_2d(NULL, type, e.N, dim_size(DIM_QKV, m) / e.tensor);
        case ACT_N_HEADS: return tensor_2d(NULL, type, e.N, m.n_head / e.tensor);
        case ACT_N_KEYS: return tensor_2d(NULL, type, e.N, shape_kv_heads(m) / e.tensor);
        case ACT_PAST_N_QKV: return tensor_2d(NULL, type, e.past + e.N, dim_size(DIM_QKV, m) / e.tensor);
        case ACT_N_FC: return tensor_2d(NULL, type, e.N, dim_size(DIM_FC, m) / e.tensor);
        case ACT_N_2FC: return tensor_2d(NULL, type, e.N, 2 * dim_size(DIM_FC, m) / e.tensor);
        case ACT_HEADS_T: return tensor_2d(NULL, type, e.B * m.n_head / e.tensor, e.T);
        case ACT_N_E: return tensor_2d(NULL, type, e.N, m.n_experts);
        case ACT_B_E: return tensor_2d(NULL, type, e.B, m.n_experts);
        case ACT_N_TOP: return tensor_2d(NULL, type, e.N, m.top_k);
        case ACT_R: return tensor_1d(NULL, type, e.N * m.top_k);
        case ACT_FIRST: return tensor_1d(NULL, type, m.n_experts + 1);
        case ACT_R_C: return tensor_2d(NULL, type, e.N * m.top_k, m.n_embd);
        case ACT_X_FE: return tensor_2d(NULL, type, expert_rows(m, e), m.n_expert_inner);
        case ACT_X_2FE: return tensor_2d(NULL, type, expert_rows(m, e), 2 * m.n_expert_inner);
        case ACT_X: return tensor_1d(NULL, type, e.room);
        case ACT_X_C: return tensor_2d(NULL, type, e.room, m.n_embd);
        case ACT_R_SENT: return tensor_1d(NULL, type, e.room ? e.N * m.top_k : 0);
        case ACT_OWN: break;
    }
    return tensor_1d(NULL, type, e.own);
}

void *block_acts_create(const BlockKind *kind, ModelShape shape, DType act, Extent e, Recompute recompute, GptUse use,
                        const void *like, Arena *arena) {
    void *mine = xcalloc(1, kind->act_bytes, "the tables of the blocks");
    for (int i = 0; i < kind->acts; i++) {
        const ActRow *row = &kind->act[i];
        Tensor       *t = tensor_at(mine, row->field);
        if (!kind_has(kind, shape, row->needs) || (use != GPT_TRAINING && row->keep == KEEP_BACKWARD)) continue;
        *t = shape_of(row->shape, shape, e, row->type == TYPE_ACT ? act : row->type == TYPE_F32 ? F32 : I32);
        if (use != GPT_TRAINING && row->alias != NO_ALIAS) t->data = tensor_at(mine, row->alias)->data;
        else if (like && is_shared(row->keep, use, recompute))
            t->data = ((const Tensor *)(const void *)((const char *)like + row->field))->data;
        else t->data = arena_take(arena, tensor_bytes(*t));
    }
    return mine;
}

int block_keeps_past(GptUse use, Recompute recompute) { return !is_shared(KEEP_CACHE, use, recompute); }

void block_acts_view(const BlockKind *kind, ModelShape shape, const void *acts, Extent e, void *out) {
    memcpy(out, acts, kind->act_bytes);
    for (int i = 0; i < kind->acts; i++) {
        Tensor *t = tensor_at(out, kind->act[i].field);
        void   *data = t->data;
        if (!kind_has(kind, shape, kind->act[i].needs)) continue;
        *t = shape_of(kind->act[i].shape, shape, e, t->type);
        t->data = data;
    }
}

/* --- tensor ranks ------------------------------------------------------------------------------------------------- */

int is_counting(const Comm *tensor) { return !tensor || comm_rank(tensor) == 0; }

Tensor own_rows(const BlockRun *r, Tensor room) {
    return r->tensor ? tensor_rows(room, comm_rank(r->tensor) * r->e.own, r->e.own) : room;
}

Tensor update_before(const BlockRun *r) { return r->mid.data ? own_rows(r, r->update) : tensor_none(); }

Tensor gather_rows(const BlockRun *r, Tensor part, Tensor room) {
    if (!r->tensor) return part;
    cast_forward(r->s, tensor_flat(own_rows(r, room)), tensor_flat(part));
    comm_all_gather(r->tensor, tensor_flat(room));
    return room;
}

Tensor sum_rows(const BlockRun *r, Tensor room) {
    if (r->tensor) comm_reduce_scatter(r->tensor, tensor_flat(room));
    return own_rows(r, room);
}

Tensor counted_once(const BlockRun *r, Tensor bias) {
    return is_counting(r->tensor) ? bias : tensor_none();
}

/* --- context ranks ------------------------------------------------------------------------------------------------ */

ContextPart context_part(const Comm *context) {
    return context ? (ContextPart){comm_size(context), comm_rank(context)} : WHOLE_SEQUENCE;
}

HeadShape heads_of(const BlockRun *r) {
    int64_t tensor = r->e.tensor;
    return (HeadShape){r->shape.n_head / tensor, shape_kv_heads(r->shape) / tensor, shape_head_dim(r->shape)};
}

/* Returns how many columns of qkv are q; the columns of k and v follow them. */
static int64_t query_columns(const BlockRun *r) { return heads_of(r).query * heads_of(r).size; }

/* Returns this rank's rows of `keys`, which has the keys and values of all context ranks. */
static Tensor own_keys(const BlockRun *r, Tensor keys) {
    return tensor_rows(keys, comm_rank(r->context) * r->e.N, r->e.N);
}

Tensor batch_rows(const BlockRun *r, Tensor qkv) { return tensor_rows(qkv, r->e.past, r->e.N); }

static void gather_keys(const BlockRun *r, Tensor qkv) {
    int64_t Q = query_columns(r);
    copy_columns(r->s, own_keys(r, r->keys), 0, qkv, Q, qkv.dim[1] - Q);
    comm_all_gather(r->context, tensor_flat(r->keys));
}

void attend(const BlockRun *r, Tensor y, Tensor lse, Tensor qkv) {
    if (r->e.past) {
        attention_last_forward(r->s, y, qkv, heads_of(r));
        return;
    }
    if (!r->context) {
        attention_forward(r->s, y, lse, qkv, r->first_keys, heads_of(r));
        return;
    }
    gather_keys(r, qkv);
    attention_context_forward(r->s, y, lse, qkv, r->keys, r->first_keys, context_part(r->context), heads_of(r));
}

int attend_backward(const BlockRun *r, Tensor dqkv, Tensor dbias, Tensor dy, Tensor y, Tensor lse, Tensor delta,
                    Tensor qkv) {
    int64_t Q = query_columns(r);
    if (!r->context) return attention_backward(r->s, dqkv, dbias, dy, y, lse, delta, qkv, r->first_keys, heads_of(r));
    gather_keys(r, qkv);
    attention_context_backward(r->s, dqkv, tensor_none(), r->dkeys, dy, y, lse, delta, qkv, r->keys, r->first_keys,
                               context_part(r->context), heads_of(r));
    comm_reduce_scatter(r->context, tensor_flat(r->dkeys));
    copy_columns(r->s, dqkv, Q, own_keys(r, r->dkeys), 0, qkv.dim[1] - Q);
    return 0;
}

static int is_fp8(const BlockRun *r) { return !tensor_is_none(r->fp8.scale); }

static Fp8 fp8_of(const BlockRun *r, BlockProduct p) {
    int64_t first = p * FP8_TENSORS;
    Fp8     f = r->fp8;
    f.scale = tensor_slice(f.scale, FP8_SCALES * first, FP8_SCALES * FP8_TENSORS);
    f.amax = tensor_slice(f.amax, first, FP8_TENSORS);
    if (!tensor_is_none(f.counts)) f.counts = tensor_slice(f.counts, 2 * first, 2 * FP8_TENSORS);
    return f;
}

/* --- who writes codes --------------------------------------------------------------------------------------------- */

static int writes_codes(const BlockRun *r, Tensor t) { return is_fp8(r) && !r->fp8.uses_own && t.dim[0] % 16 == 0; }

/* Returns x, the input of product p, with the type in which the op before the product has written it: fp8 if that op
 * writes fp8. Attention's output stays bf16, because its backward reads it again. */
static Tensor input_of(const BlockRun *r, BlockProduct p, Tensor x) {
    int is_written = p == PRODUCT_DOWN || (p != PRODUCT_ATTENTION && !r->tensor);
    if (is_written && writes_codes(r, x)) x.type = E4M3;
    return x;
}

/* --- products ----------------------------------------------------------------------------------------------------- */

void product_forward(const BlockRun *r, BlockProduct p, Tensor y, Tensor x, Tensor w, Tensor b, MatrixOrder order) {
    if (is_fp8(r)) fp8_linear_forward(r->s, y, input_of(r, p, x), w, b, order, fp8_of(r, p));
    else linear_forward(r->s, y, x, w, b, order);
}

static Activation activation_of(const BlockRun *r) { return (Activation)r->shape.activation; }

void product_activation_forward(const BlockRun *r, BlockProduct p, Tensor y, Tensor pre, Tensor x, Tensor w, Tensor b) {
    if (!is_fp8(r)) {
        linear_activation_forward(r->s, activation_of(r), y, pre, x, w, b);
        return;
    }
    product_forward(r, p, pre, x, w, b, PLAIN);
    product_activation(r, y, pre);
}

void product_backward(const BlockRun *r, BlockProduct p, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x,
                      Tensor w, MatrixOrder order) {
    if (is_fp8(r)) fp8_linear_backward(r->s, dx, dw, db, dy, input_of(r, p, x), w, order, fp8_of(r, p));
    else linear_backward(r->s, dx, dw, db, dy, x, w, order);
}

void product_delta_backward(const BlockRun *r, BlockProduct p, Tensor dx, Tensor delta, Tensor dw, Tensor db, Tensor dy,
                            Tensor x, Tensor w) {
    if (is_fp8(r) || tensor_is_none(delta)) {
        product_backward(r, p, dx, dw, db, dy, x, w, PLAIN);
        if (!tensor_is_none(delta)) attention_delta(r->s, delta, dx, x);
        return;
    }
    linear_delta_backward(r->s, dx, delta, dw, db, dy, x, w);
}

Tensor product_activation_backward(const BlockRun *r, Tensor dpre, Tensor dbias, Tensor dw, Tensor db, Tensor dy,
                                   Tensor x, Tensor pre, Tensor w) {
    if (!is_fp8(r)) {
        linear_activation_backward(r->s, activation_of(r), dpre, dbias, dw, db, dy, x, pre, w);
        return dpre;
    }
    product_backward(r, PRODUCT_DOWN, dpre, dw, db, dy, x, w, PLAIN);
    if (!writes_codes(r, dpre)) {
        activation_backward(r->s, activation_of(r), dpre, dbias, dpre, pre);
        return dpre;
    }
    x.type = E5M2;
    fp8_activation_backward(r->s, activation_of(r), x, dbias, dpre, pre, fp8_of(r, PRODUCT_UP));
    return x;
}

Tensor product_attend_backward(const BlockRun *r, Tensor *dbias, Tensor dqkv, Tensor dy, Tensor y, Tensor lse,
                               Tensor delta, Tensor qkv) {
    Tensor codes = dqkv;
    codes.type = E5M2;
    int is_cast = writes_codes(r, dqkv) && !r->context &&
                  fp8_attention_backward(r->s, codes, *dbias, dy, y, lse, delta, qkv, r->first_keys, heads_of(r),
                                         fp8_of(r, PRODUCT_QKV));
    if (is_cast || attend_backward(r, dqkv, *dbias, dy, y, lse, delta, qkv)) *dbias = tensor_none();
    return is_cast ? codes : dqkv;
}

/* --- the ends of branches ----------------------------------------------------------------------------------------- */

Tensor product_join(const BlockRun *r, BlockProduct p, Tensor after, Tensor before, Tensor x, Tensor w, Tensor b,
                    MatrixOrder order) {
    /* With tensor ranks the product does not add to the stream, because the ranks first sum their results. In fp8 it
     * does not, because cuBLASLt computes it. */
    if (r->tensor || is_fp8(r)) product_forward(r, p, r->update, x, w, b, order);
    else if (linear_residual_forward(r->s, after, r->update, before, x, w, b, order)) return tensor_none();
    return sum_rows(r, r->update);
}

/* --- before them -------------------------------------------------------------------------------------------------- */

void product_layernorm(const BlockRun *r, BlockProduct p, Tensor y, Tensor mean, Tensor rstd, Tensor stream,
                       Tensor before, Tensor update, Tensor w, Tensor b, float eps) {
    int    is_whole = tensor_is_none(update);
    Tensor codes = input_of(r, p, y), x = is_whole ? stream : before, sum = is_whole ? update : stream;
    if (codes.type != y.type) fp8_layernorm_forward(r->s, sum, codes, mean, rstd, x, update, w, b, eps, fp8_of(r, p));
    else layernorm_forward(r->s, sum, y, mean, rstd, x, update, w, b, eps);
}

void product_rmsnorm(const BlockRun *r, BlockProduct p, Tensor y, Tensor rstd, Tensor stream, Tensor before,
                     Tensor update, Tensor w, float eps) {
    int    is_whole = tensor_is_none(update);
    Tensor codes = input_of(r, p, y), x = is_whole ? stream : before, sum = is_whole ? update : stream;
    if (codes.type != y.type) fp8_rmsnorm_forward(r->s, sum, codes, rstd, x, update, w, eps, fp8_of(r, p));
    else rmsnorm_forward(r->s, sum, y, rstd, x, update, w, eps);
}

void product_activation(const BlockRun *r, Tensor y, Tensor x) {
    Tensor codes = input_of(r, PRODUCT_DOWN, y);
    if (codes.type != y.type) fp8_activation_forward(r->s, activation_of(r), codes, x, fp8_of(r, PRODUCT_DOWN));
    else activation_forward(r->s, activation_of(r), y, x);
}

void product_swiglu(const BlockRun *r, Tensor y, Tensor gate_up) {
    Tensor codes = input_of(r, PRODUCT_DOWN, y);
    if (codes.type != y.type) fp8_swiglu_forward(r->s, codes, gate_up, fp8_of(r, PRODUCT_DOWN));
    else swiglu_forward(r->s, y, gate_up);
}

void product_swiglu_backward(const BlockRun *r, Tensor dx, Tensor dw, Tensor dswiglu, Tensor gate_up, Tensor x,
                             Tensor w) {
    size_t mark = arena_mark(&r->s->scratch);
    Tensor gradient = gate_up;
    if (writes_codes(r, gate_up)) {
        gradient = arena_tensor(&r->s->scratch, BF16, 2, gate_up.dim[0], gate_up.dim[1], 1);
        gradient.type = E5M2;
        fp8_swiglu_backward(r->s, gradient, dswiglu, gate_up, fp8_of(r, PRODUCT_UP));
    } else {
        swiglu_backward(r->s, gate_up, dswiglu, gate_up);
    }
    product_backward(r, PRODUCT_UP, dx, dw, tensor_none(), gradient, x, w, TRANSPOSED);
    arena_release(&r->s->scratch, mark);
}
