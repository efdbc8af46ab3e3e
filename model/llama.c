/* llama.c - Llama's block: Touvron et al., arXiv:2302.13971; Grattafiori et al., arXiv:2407.21783. RMSNorm, rotary
 * positions, heads that share keys and values, SwiGLU, no biases. Also Qwen3's block: Yang et al., arXiv:2505.09388,
 * which adds an RMSNorm of each head of q and k. With experts instead of the MLP (model/experts.c) it is qwen3-moe.
 *
 * A block has two branches from the residual stream. Each begins with a norm, fused with the addition of the previous
 * branch to the stream:
 *   (+) residual -> norm -> qkv -> [norms of heads ->] rope -> attention -> o
 *   -> (+) residual_mid -> norm -> gate, up -> swiglu -> down -> (+) residual of the next block
 *
 * Matrices are [out,in], as in the files of Hugging Face, so products are the ops of the head. The rows of q, k and v
 * are adjacent in memory and are read as one matrix; gate and up likewise.
 */
#include "layers/layers.h"
#include "model/block.h"
#include "model/experts.h"

typedef struct {
    Tensor q_norm, k_norm;            /* [D] [D]: gains of the norms of each head of q and of k; only in Qwen3 */
    Tensor norm_1, q, k, v, o;        /* [C] [Q,C] [KV,C] [KV,C] [C,Q]: gain of the first norm, matrices of attention */
    Tensor norm_2, gate, up, down;    /* [C] [F,C] [F,C] [C,F]: gain of the second norm, matrices of the MLP */
    ExpertParams experts;             /* experts of qwen3-moe, which has no gate, up and down */
} BlockParams;

/* Activations of a block. A micro-batch has N = B*T rows. Each of t tensor ranks has n = N/t rows of the residual
 * stream, and H/t heads of D channels. Q = H*D, F = n_inner. */
typedef struct {
    /* Only in Qwen3. products [N,QKV/t] of the activation type: q and k before the norms of heads, and v. q_rstd
     * [N,H/t], k_rstd [N,KEYS/t] f32: 1/rms of each head of q and of k. */
    Tensor products, q_rstd, k_rstd;
    Tensor residual;                  /* [n,C] of the activation type: the residual stream before the block */
    Tensor norm_1, rstd_1;            /* [n,C] of the activation type, [n] f32: output and 1/rms of the first norm */
    /* [past+N,QKV/t] of the activation type: q and k rotated, and v; in sampling also those of past tokens */
    Tensor qkv;
    /* [N,Q/t] of the activation type, [B*H/t,T] f32: attention's output; log of the softmax denominator */
    Tensor attention, lse;
    Tensor residual_mid;              /* [n,C] of the activation type: the residual stream after attention */
    Tensor norm_2, rstd_2;
    /* [N,2F/t] of the activation type: outputs of gate and up; in backward their gradients */
    Tensor gate_up;
    /* [N,F/t] of the activation type: output of SwiGLU, the input of down */
    Tensor swiglu;
    Tensor dqkv, dswiglu;             /* [N,QKV/t] [N,F/t] of the activation type: gradients of qkv and swiglu */
    /* activations of experts in qwen3-moe, which has no gate_up, swiglu and dswiglu */
    ExpertActs experts;
} BlockActs;

#define PARAM(type, field) offsetof(type, field)
static const ParamRow EMBEDDING_ROWS[] = {
    {"model.embed_tokens.weight", PARAM(EmbeddingParams, wte), {DIM_V, DIM_C}, INIT_NORMAL, GROUP_EMBEDDING,
     CUT_VOCABULARY},
};
/* The parameters of a block of Llama, Qwen3 and Qwen3-MoE. The last column has the Traits that a model must have to
 * have the row. */
#define EXPERT(field) (offsetof(BlockParams, experts) + offsetof(ExpertParams, field))
static const ParamRow BLOCK_ROWS[] = {
    {"mlp.gate.e_score_correction_bias", EXPERT(bias), {DIM_E}, INIT_ZERO, GROUP_VECTOR, CUT_NONE,
     HAS_EXPERTS | HAS_EXPERT_BIAS},
    {"mlp.gate.weight", EXPERT(router), {DIM_E, DIM_C}, INIT_NORMAL, GROUP_MATRIX, CUT_NONE, HAS_EXPERTS},
    {"mlp.experts.*.gate_proj.weight", EXPERT(gate), {DIM_FE, DIM_C}, INIT_NORMAL, GROUP_MATRIX, CUT_NONE, HAS_EXPERTS},
    {"mlp.experts.*.up_proj.weight", EXPERT(up), {DIM_FE, DIM_C}, INIT_NORMAL, GROUP_MATRIX, CUT_NONE, HAS_EXPERTS},
    {"mlp.experts.*.down_proj.weight", EXPERT(down), {DIM_C, DIM_FE}, INIT_RESIDUAL, GROUP_MATRIX, CUT_NONE,
     HAS_EXPERTS},
    {"self_attn.q_norm.weight", PARAM(BlockParams, q_norm), {DIM_D}, INIT_ONE, GROUP_VECTOR, CUT_NONE, HAS_HEAD_NORMS},
    {"self_attn.k_norm.weight", PARAM(BlockParams, k_norm), {DIM_D}, INIT_ONE, GROUP_VECTOR, CUT_NONE, HAS_HEAD_NORMS},
    {"input_layernorm.weight", PARAM(BlockParams, norm_1), {DIM_C}, INIT_ONE, GROUP_VECTOR, CUT_NONE},
    {"self_attn.q_proj.weight", PARAM(BlockParams, q), {DIM_Q, DIM_C}, INIT_NORMAL, GROUP_MATRIX, CUT_ROWS},
    {"self_attn.k_proj.weight", PARAM(BlockParams, k), {DIM_KV, DIM_C}, INIT_NORMAL, GROUP_MATRIX, CUT_ROWS},
    {"self_attn.v_proj.weight", PARAM(BlockParams, v), {DIM_KV, DIM_C}, INIT_NORMAL, GROUP_MATRIX, CUT_ROWS},
    {"self_attn.o_proj.weight", PARAM(BlockParams, o), {DIM_C, DIM_Q}, INIT_RESIDUAL, GROUP_MATRIX, CUT_COLUMNS},
    {"post_attention_layernorm.weight", PARAM(BlockParams, norm_2), {DIM_C}, INIT_ONE, GROUP_VECTOR, CUT_NONE},
    {"mlp.gate_proj.weight", PARAM(BlockParams, gate), {DIM_FC, DIM_C}, INIT_NORMAL, GROUP_MATRIX, CUT_ROWS, HAS_MLP},
    {"mlp.up_proj.weight", PARAM(BlockParams, up), {DIM_FC, DIM_C}, INIT_NORMAL, GROUP_MATRIX, CUT_ROWS, HAS_MLP},
    {"mlp.down_proj.weight", PARAM(BlockParams, down), {DIM_C, DIM_FC}, INIT_RESIDUAL, GROUP_MATRIX, CUT_COLUMNS,
     HAS_MLP},
};
/* Parameters after the last block. The norm must be last, because tests damage one element of the gradient of the last
 * parameter (model/shards.h). */
static const ParamRow FINAL_ROWS[] = {
    {"lm_head.weight", PARAM(FinalParams, head), {DIM_V, DIM_C}, INIT_NORMAL, GROUP_EMBEDDING, CUT_VOCABULARY,
     HAS_OWN_HEAD},
    {"model.norm.weight", PARAM(FinalParams, norm_w), {DIM_C}, INIT_ONE, GROUP_VECTOR, CUT_NONE},
};

#define ACT(field) offsetof(BlockActs, field)
#define EXPERT_ACT(field) (offsetof(BlockActs, experts) + offsetof(ExpertActs, field))
static const ActRow ACT_ROWS[] = {
    {EXPERT_ACT(probability), ACT_N_E, TYPE_F32, KEEP_STATE, NO_ALIAS, HAS_EXPERTS},
    {EXPERT_ACT(expert), ACT_N_TOP, TYPE_I32, KEEP_STATE, NO_ALIAS, HAS_EXPERTS},
    {EXPERT_ACT(weight), ACT_N_TOP, TYPE_F32, KEEP_STATE, NO_ALIAS, HAS_EXPERTS},
    {EXPERT_ACT(order), ACT_R, TYPE_I32, KEEP_STATE, NO_ALIAS, HAS_EXPERTS},
    {EXPERT_ACT(place), ACT_R, TYPE_I32, KEEP_STATE, NO_ALIAS, HAS_EXPERTS},
    {EXPERT_ACT(first), ACT_FIRST, TYPE_I32, KEEP_STATE, NO_ALIAS, HAS_EXPERTS},
    {EXPERT_ACT(gate_up), ACT_X_2FE, TYPE_ACT, KEEP_STATE, NO_ALIAS, HAS_EXPERTS},
    {EXPERT_ACT(swiglu), ACT_X_FE, TYPE_ACT, KEEP_CHEAP, NO_ALIAS, HAS_EXPERTS},
    {EXPERT_ACT(counts), ACT_B_E, TYPE_I32, KEEP_WORK, NO_ALIAS, HAS_EXPERTS},
    {EXPERT_ACT(logits), ACT_N_E, TYPE_ACT, KEEP_WORK, NO_ALIAS, HAS_EXPERTS},
    {EXPERT_ACT(rows), ACT_R_C, TYPE_ACT, KEEP_WORK, NO_ALIAS, HAS_EXPERTS},
    {EXPERT_ACT(out), ACT_R_C, TYPE_ACT, KEEP_WORK, NO_ALIAS, HAS_EXPERTS},
    {EXPERT_ACT(first_here), ACT_FIRST, TYPE_I32, KEEP_STATE, NO_ALIAS, HAS_EXPERTS},
    {EXPERT_ACT(weight_here), ACT_X, TYPE_F32, KEEP_STATE, NO_ALIAS, HAS_EXPERTS},
    {EXPERT_ACT(weight_rows), ACT_R_SENT, TYPE_F32, KEEP_WORK, NO_ALIAS, HAS_EXPERTS},
    {EXPERT_ACT(rows_here), ACT_X_C, TYPE_ACT, KEEP_WORK, NO_ALIAS, HAS_EXPERTS},
    {EXPERT_ACT(out_here), ACT_X_C, TYPE_ACT, KEEP_WORK, NO_ALIAS, HAS_EXPERTS},
    {EXPERT_ACT(dweight_here), ACT_X, TYPE_F32, KEEP_BACKWARD, NO_ALIAS, HAS_EXPERTS},
    {EXPERT_ACT(dswiglu), ACT_X_FE, TYPE_ACT, KEEP_BACKWARD, NO_ALIAS, HAS_EXPERTS},
    {EXPERT_ACT(dweight), ACT_N_TOP, TYPE_F32, KEEP_BACKWARD, NO_ALIAS, HAS_EXPERTS},
    {EXPERT_ACT(dnorm), ACT_OWN_ALL_C, TYPE_ACT, KEEP_BACKWARD, NO_ALIAS, HAS_EXPERTS},
    {ACT(products), ACT_N_QKV, TYPE_ACT, KEEP_STATE, NO_ALIAS, HAS_HEAD_NORMS},
    {ACT(q_rstd), ACT_N_HEADS, TYPE_F32, KEEP_STATE, NO_ALIAS, HAS_HEAD_NORMS},
    {ACT(k_rstd), ACT_N_KEYS, TYPE_F32, KEEP_STATE, NO_ALIAS, HAS_HEAD_NORMS},
    {ACT(residual), ACT_OWN_ALL_C, TYPE_ACT, KEEP_STREAM, NO_ALIAS},
    {ACT(norm_1), ACT_OWN_ALL_C, TYPE_ACT, KEEP_CHEAP, NO_ALIAS},
    {ACT(rstd_1), ACT_OWN, TYPE_F32, KEEP_STATE, NO_ALIAS},
    {ACT(qkv), ACT_PAST_N_QKV, TYPE_ACT, KEEP_CACHE, NO_ALIAS},
    {ACT(attention), ACT_N_Q, TYPE_ACT, KEEP_STATE, NO_ALIAS},
    {ACT(lse), ACT_HEADS_T, TYPE_F32, KEEP_STATE, NO_ALIAS},
    {ACT(residual_mid), ACT_OWN_ALL_C, TYPE_ACT, KEEP_STATE, ACT(residual)},
    {ACT(norm_2), ACT_OWN_ALL_C, TYPE_ACT, KEEP_CHEAP, NO_ALIAS},
    {ACT(rstd_2), ACT_OWN, TYPE_F32, KEEP_STATE, NO_ALIAS},
    {ACT(dqkv), ACT_PAST_N_QKV, TYPE_ACT, KEEP_BACKWARD, NO_ALIAS},
    {ACT(gate_up), ACT_N_2FC, TYPE_ACT, KEEP_STATE, NO_ALIAS, HAS_MLP},
    {ACT(swiglu), ACT_N_FC, TYPE_ACT, KEEP_CHEAP, NO_ALIAS, HAS_MLP},
    {ACT(dswiglu), ACT_N_FC, TYPE_ACT, KEEP_BACKWARD, NO_ALIAS, HAS_MLP},
};

/* Returns several matrices, `first` to `last`, which are adjacent in memory, as one matrix with `rows` rows. */
static Tensor joined(Tensor first, Tensor last, int64_t rows) {
    Tensor all = first;
    all.dim[0] = rows;
    CHECK(!all.data || (char *)all.data + tensor_bytes(all) == (char *)last.data + tensor_bytes(last),
          "matrices of %lld rows are no neighbours", (long long)rows);
    return all;
}
static Tensor qkv_of(const BlockParams *w) { return joined(w->q, w->v, w->q.dim[0] + 2 * w->k.dim[0]); }
static Tensor gate_up_of(const BlockParams *w) { return joined(w->gate, w->up, 2 * w->gate.dim[0]); }

static float eps_of(const BlockRun *r) { return (float)r->shape.norm_eps; }
static int has_head_norms(const BlockRun *r) { return r->kind->traits & HAS_HEAD_NORMS; }

static int has_experts(const BlockRun *r) { return r->kind->traits & HAS_EXPERTS; }

/* Runs the MLP, or the experts, from the output of the second norm to the input of the projection that ends the
 * block. */
static void mlp_forward(BlockRun *r, const BlockActs *x, const BlockParams *w, ExpertPass pass) {
    if (has_experts(r)) {
        experts_forward(r, &x->experts, x->norm_2, &w->experts, pass);
        return;
    }
    if (pass != EXPERTS_LIGHT)
        product_forward(r, PRODUCT_UP, x->gate_up, gather_rows(r, x->norm_2, r->update), gate_up_of(w),
                        tensor_none(), TRANSPOSED);
    product_swiglu(r, x->swiglu, x->gate_up);
}

/* Computes all tensors of the block that come after norm_1 and that backward needs. The last projection of the MLP is
 * not among them. */
static void inner_forward(BlockRun *r, const BlockActs *x, const BlockParams *w, ExpertPass pass) {
    HeadShape h = heads_of(r);
    Tensor    rows = batch_rows(r, x->qkv), products = has_head_norms(r) ? x->products : rows;
    int64_t   Q = h.query * h.size, KV = h.key * h.size;
    product_forward(r, PRODUCT_QKV, products, gather_rows(r, x->norm_1, r->update), qkv_of(w), tensor_none(),
                    TRANSPOSED);
    if (has_head_norms(r)) {
        head_norm_forward(r->s, rows, x->q_rstd, products, 0, h.query, w->q_norm, eps_of(r));
        head_norm_forward(r->s, rows, x->k_rstd, products, Q, h.key, w->k_norm, eps_of(r));
        copy_columns(r->s, rows, Q + KV, products, Q + KV, KV);
    }
    rope(r->s, rows, r->frequencies, h, r->e.T, r->e.past, context_part(r->context), ROPE_FORWARD);
    attend(r, x->attention, x->lse, x->qkv);
    Tensor update = product_join(r, PRODUCT_ATTENTION, x->residual_mid, x->residual, x->attention, w->o,
                                 tensor_none(), TRANSPOSED);
    product_rmsnorm(r, PRODUCT_UP, x->norm_2, x->rstd_2, x->residual_mid, x->residual, update, w->norm_2, eps_of(r));
    mlp_forward(r, x, w, pass);
}

static void forward(BlockRun *r, void *acts, const void *weights) {
    const BlockActs   *x = (const BlockActs *)acts;
    const BlockParams *w = (const BlockParams *)weights;
    product_rmsnorm(r, PRODUCT_QKV, x->norm_1, x->rstd_1, x->residual, r->mid, update_before(r), w->norm_1, eps_of(r));
    inner_forward(r, x, w, EXPERTS_ALL);
    if (has_experts(r)) {
        experts_output(r, &x->experts, &w->experts);
        return;
    }
    Tensor update = product_join(r, PRODUCT_DOWN, r->exit, x->residual_mid, x->swiglu, w->down, tensor_none(),
                                 TRANSPOSED);
    r->has_joined = tensor_is_none(update);
}

/* Computes again the activations that were not kept, by the same ops on the same inputs. */
static void recompute(BlockRun *r, void *acts, const void *weights) {
    const BlockActs   *x = (const BlockActs *)acts;
    const BlockParams *w = (const BlockParams *)weights;
    if (r->recompute == RECOMPUTE_NONE) return;
    product_rmsnorm(r, PRODUCT_QKV, x->norm_1, x->rstd_1, x->residual, tensor_none(), tensor_none(), w->norm_1,
                    eps_of(r));
    if (r->recompute == RECOMPUTE_BLOCK) {
        inner_forward(r, x, w, EXPERTS_AGAIN);
    } else {
        product_rmsnorm(r, PRODUCT_UP, x->norm_2, x->rstd_2, x->residual_mid, tensor_none(), tensor_none(), w->norm_2,
                        eps_of(r));
        mlp_forward(r, x, w, EXPERTS_LIGHT);
    }
}

static void backward(BlockRun *r, void *acts, const void *weights, const void *grads) {
    const BlockActs   *x = (const BlockActs *)acts;
    const BlockParams *w = (const BlockParams *)weights, *d = (const BlockParams *)grads;
    /* puts the gradient of attention's output into the memory of update, which is free between its uses below */
    Tensor             dattention = x->attention;
    dattention.data = r->update.data;
    if (has_experts(r)) experts_backward(r, &x->experts, x->norm_2, &w->experts, &d->experts);
    else {
        product_backward(r, PRODUCT_DOWN, x->dswiglu, d->down, tensor_none(), gather_rows(r, r->dresidual, r->dbranch),
                         x->swiglu, w->down, TRANSPOSED);
        product_swiglu_backward(r, r->dbranch, gate_up_of(d), x->dswiglu, x->gate_up,
                                gather_rows(r, x->norm_2, r->update), gate_up_of(w));
    }
    rmsnorm_backward(r->s, r->dresidual, d->norm_2, r->dresidual, sum_rows(r, r->dbranch), x->residual_mid, w->norm_2,
                     x->rstd_2);

    product_backward(r, PRODUCT_ATTENTION, dattention, d->o, tensor_none(), gather_rows(r, r->dresidual, r->dbranch),
                     x->attention, w->o, TRANSPOSED);
    attend_backward(r, x->dqkv, tensor_none(), dattention, x->attention, x->lse, tensor_none(), x->qkv);
    HeadShape h = heads_of(r);
    rope(r->s, x->dqkv, r->frequencies, h, r->e.T, 0, context_part(r->context), ROPE_BACKWARD);
    if (has_head_norms(r)) {
        head_norm_backward(r->s, x->dqkv, d->q_norm, x->dqkv, x->products, 0, h.query, w->q_norm, x->q_rstd);
        head_norm_backward(r->s, x->dqkv, d->k_norm, x->dqkv, x->products, h.query * h.size, h.key, w->k_norm,
                           x->k_rstd);
    }
    product_backward(r, PRODUCT_QKV, r->dbranch, qkv_of(d), tensor_none(), x->dqkv,
                     gather_rows(r, x->norm_1, r->update), qkv_of(w), TRANSPOSED);
    rmsnorm_backward(r->s, r->dresidual, d->norm_1, r->dresidual, sum_rows(r, r->dbranch), x->residual, w->norm_1,
                     x->rstd_1);
}

static void final_forward(const BlockRun *r, FinalActs x, FinalParams w) {
    Tensor update = update_before(r);
    rmsnorm_forward(r->s, x.residual, x.y, x.rstd, tensor_is_none(update) ? x.residual : r->mid, update, w.norm_w,
                    eps_of(r));
}

static void final_backward(const BlockRun *r, FinalActs x, Tensor dy, FinalParams w, FinalParams d) {
    /* an empty tensor: no gradient of the stream to add to, because the final norm alone reads the stream here */
    Tensor nothing = r->dresidual;
    nothing.data = NULL;
    rmsnorm_backward(r->s, r->dresidual, d.norm_w, nothing, dy, x.residual, w.norm_w, x.rstd);
}

#define TABLE(rows, type) {rows, sizeof rows / sizeof *rows, sizeof(type)}
#define KIND(kind_name, kind_traits, kind_norm_eps)             \
    {                                                           \
        .name = kind_name,                                      \
        .prefix = "",                                           \
        .blocks = "model.layers",                               \
        .embedding = TABLE(EMBEDDING_ROWS, EmbeddingParams),    \
        .block = TABLE(BLOCK_ROWS, BlockParams),                \
        .final = TABLE(FINAL_ROWS, FinalParams),                \
        .act = ACT_ROWS,                                        \
        .acts = sizeof ACT_ROWS / sizeof *ACT_ROWS,             \
        .act_bytes = sizeof(BlockActs),                         \
        .entry = ACT(residual),                                 \
        .mid = ACT(residual_mid),                               \
        .forward = forward,                                     \
        .recompute = recompute,                                 \
        .backward = backward,                                   \
        .final_forward = final_forward,                         \
        .final_backward = final_backward,                       \
        .traits = kind_traits,                                  \
        .experts_bias = EXPERT(bias),                           \
        .has_rope = 1,                                          \
        .keys = READS_N_KV_HEAD | READS_HEAD_DIM | READS_TIED | READS_NORM_EPS | \
                ((kind_traits) & HAS_MLP ? READS_N_INNER : 0),  \
        .norm_eps = kind_norm_eps,                              \
        .joins_matrices = 1,                                    \
        .neurons = NEURON_ROWS,                                 \
        .activation = ACTIVATION_SILU,                          \
        .files = &HF_LLAMA,                                     \
    }
const BlockKind BLOCK_LLAMA = KIND("llama", HAS_MLP, 0.0);
const BlockKind BLOCK_QWEN3 = KIND("qwen3", HAS_MLP | HAS_HEAD_NORMS, 1e-6);
const BlockKind BLOCK_QWEN3_MOE = KIND("qwen3-moe", HAS_EXPERTS | HAS_HEAD_NORMS, 1e-6);
