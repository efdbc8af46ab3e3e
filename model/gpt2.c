/* gpt2.c - GPT-2's block: Radford et al., "Language models are unsupervised multitask learners", 2019. It has a
 * layernorm before each branch, and GELU by tanh or another activation.
 *
 * A block has two branches from the residual stream. Each begins with a layernorm, fused with the addition of the
 * previous branch to the stream:
 *   (+) residual -> ln_1 -> qkv -> attention -> proj -> (+) residual_mid -> ln_2 -> fc -> activation -> proj -> (+)
 *   residual of the next block */
#include "layers/layers.h"
#include "model/block.h"

#define LAYERNORM_EPS 1e-5f

typedef struct {
    /* [C] [C] [C,3C] [3C] [C,C] [C]: first norm, product for q, k and v, projection after attention */
    Tensor ln_1_w, ln_1_b, c_attn_w, c_attn_b, attn_proj_w, attn_proj_b;
    /* [C] [C] [C,4C] [4C] [4C,C] [C]: second norm, the two products of the MLP */
    Tensor ln_2_w, ln_2_b, c_fc_w, c_fc_b, mlp_proj_w, mlp_proj_b;
} BlockParams;

/* Activations of a block. A micro-batch has N = B*T rows. Each of t tensor ranks has n = N/t rows of the residual
 * stream, and H/t heads. */
typedef struct {
    Tensor residual;                    /* [n,C] of the activation type: the residual stream before the block */
    /* [n,C] of the activation type, [n] f32, [n] f32: output, mean and 1/standard deviation of the first norm */
    Tensor ln_1, ln_1_mean, ln_1_rstd;
    /* [past+N,3C/t] of the activation type: q, k and v; in sampling also those of past tokens */
    Tensor qkv;
    /* [N,C/t] of the activation type, [B*H/t,T] f32: attention's output; log of the softmax denominator */
    Tensor attention, lse;
    Tensor residual_mid;                /* [n,C] of the activation type: the residual stream after attention */
    Tensor ln_2, ln_2_mean, ln_2_rstd;
    Tensor fc, activation;              /* [N,4C/t] of the activation type: the MLP before and after its activation */
    Tensor dqkv, dfc;                   /* [N,3C/t] [N,4C/t] of the activation type: gradients of qkv and fc */
} BlockActs;

#define PARAM(type, field) offsetof(type, field)
/* Parameters of the embedding. wpe must be last, because shards_done checks every element of its gradient to find a
 * faulty rank (model/shards.h). */
static const ParamRow EMBEDDING_ROWS[] = {
    {"wte.weight", PARAM(EmbeddingParams, wte), {DIM_V, DIM_C}, INIT_NORMAL, GROUP_EMBEDDING, CUT_VOCABULARY},
    {"wpe.weight", PARAM(EmbeddingParams, wpe), {DIM_P, DIM_C}, INIT_NORMAL, GROUP_EMBEDDING, CUT_NONE},
};
static const ParamRow BLOCK_ROWS[] = {
    {"ln_1.weight", PARAM(BlockParams, ln_1_w), {DIM_C}, INIT_ONE, GROUP_VECTOR, CUT_NONE},
    {"ln_1.bias", PARAM(BlockParams, ln_1_b), {DIM_C}, INIT_ZERO, GROUP_VECTOR, CUT_NONE},
    {"attn.c_attn.weight", PARAM(BlockParams, c_attn_w), {DIM_C, DIM_QKV}, INIT_NORMAL, GROUP_MATRIX, CUT_HEADS},
    {"attn.c_attn.bias", PARAM(BlockParams, c_attn_b), {DIM_QKV}, INIT_ZERO, GROUP_VECTOR, CUT_HEADS},
    {"attn.c_proj.weight", PARAM(BlockParams, attn_proj_w), {DIM_C, DIM_C}, INIT_RESIDUAL, GROUP_MATRIX, CUT_ROWS},
    {"attn.c_proj.bias", PARAM(BlockParams, attn_proj_b), {DIM_C}, INIT_ZERO, GROUP_VECTOR, CUT_NONE},
    {"ln_2.weight", PARAM(BlockParams, ln_2_w), {DIM_C}, INIT_ONE, GROUP_VECTOR, CUT_NONE},
    {"ln_2.bias", PARAM(BlockParams, ln_2_b), {DIM_C}, INIT_ZERO, GROUP_VECTOR, CUT_NONE},
    {"mlp.c_fc.weight", PARAM(BlockParams, c_fc_w), {DIM_C, DIM_FC}, INIT_NORMAL, GROUP_MATRIX, CUT_COLUMNS},
    {"mlp.c_fc.bias", PARAM(BlockParams, c_fc_b), {DIM_FC}, INIT_ZERO, GROUP_VECTOR, CUT_COLUMNS},
    {"mlp.c_proj.weight", PARAM(BlockParams, mlp_proj_w), {DIM_FC, DIM_C}, INIT_RESIDUAL, GROUP_MATRIX, CUT_ROWS},
    {"mlp.c_proj.bias", PARAM(BlockParams, mlp_proj_b), {DIM_C}, INIT_ZERO, GROUP_VECTOR, CUT_NONE},
};
/* Parameters after the last block. No file with lm_head.weight is ever written, so the name of that row need not be one
 * of Hugging Face's files. */
static const ParamRow FINAL_ROWS[] = {
    {"ln_f.weight", PARAM(FinalParams, norm_w), {DIM_C}, INIT_ONE, GROUP_VECTOR, CUT_NONE},
    {"ln_f.bias", PARAM(FinalParams, norm_b), {DIM_C}, INIT_ZERO, GROUP_VECTOR, CUT_NONE},
    {"lm_head.weight", PARAM(FinalParams, head), {DIM_V, DIM_C}, INIT_NORMAL, GROUP_EMBEDDING, CUT_VOCABULARY,
     HAS_OWN_HEAD},
};

#define ACT(field) offsetof(BlockActs, field)
static const ActRow ACT_ROWS[] = {
    {ACT(residual), ACT_OWN_ALL_C, TYPE_ACT, KEEP_STREAM, NO_ALIAS},
    {ACT(ln_1), ACT_OWN_ALL_C, TYPE_ACT, KEEP_CHEAP, NO_ALIAS},
    {ACT(ln_1_mean), ACT_OWN, TYPE_F32, KEEP_STATE, NO_ALIAS},
    {ACT(ln_1_rstd), ACT_OWN, TYPE_F32, KEEP_STATE, NO_ALIAS},
    {ACT(qkv), ACT_PAST_N_QKV, TYPE_ACT, KEEP_CACHE, NO_ALIAS},
    {ACT(attention), ACT_N_Q, TYPE_ACT, KEEP_STATE, NO_ALIAS},
    {ACT(lse), ACT_HEADS_T, TYPE_F32, KEEP_STATE, NO_ALIAS},
    {ACT(residual_mid), ACT_OWN_ALL_C, TYPE_ACT, KEEP_STATE, ACT(residual)},
    {ACT(ln_2), ACT_OWN_ALL_C, TYPE_ACT, KEEP_CHEAP, NO_ALIAS},
    {ACT(ln_2_mean), ACT_OWN, TYPE_F32, KEEP_STATE, NO_ALIAS},
    {ACT(ln_2_rstd), ACT_OWN, TYPE_F32, KEEP_STATE, NO_ALIAS},
    {ACT(fc), ACT_N_FC, TYPE_ACT, KEEP_STATE, NO_ALIAS},
    {ACT(activation), ACT_N_FC, TYPE_ACT, KEEP_CHEAP, NO_ALIAS},
    {ACT(dqkv), ACT_PAST_N_QKV, TYPE_ACT, KEEP_BACKWARD, NO_ALIAS},
    {ACT(dfc), ACT_N_FC, TYPE_ACT, KEEP_BACKWARD, NO_ALIAS},
};

/* Computes all tensors of the block that come after ln_1 and that backward needs. The last projection of the MLP is not
 * among them. */
static void inner_forward(BlockRun *r, const BlockActs *x, const BlockParams *w) {
    product_forward(r, PRODUCT_QKV, batch_rows(r, x->qkv), gather_rows(r, x->ln_1, r->update), w->c_attn_w,
                    w->c_attn_b, PLAIN);
    attend(r, x->attention, x->lse, x->qkv);
    Tensor update = product_join(r, PRODUCT_ATTENTION, x->residual_mid, x->residual, x->attention, w->attn_proj_w,
                                 counted_once(r, w->attn_proj_b), PLAIN);
    product_layernorm(r, PRODUCT_UP, x->ln_2, x->ln_2_mean, x->ln_2_rstd, x->residual_mid, x->residual, update,
                      w->ln_2_w, w->ln_2_b, LAYERNORM_EPS);
    product_activation_forward(r, PRODUCT_UP, x->activation, x->fc, gather_rows(r, x->ln_2, r->update), w->c_fc_w,
                               w->c_fc_b);
}

static void forward(BlockRun *r, void *acts, const void *weights) {
    const BlockActs   *x = (const BlockActs *)acts;
    const BlockParams *w = (const BlockParams *)weights;
    product_layernorm(r, PRODUCT_QKV, x->ln_1, x->ln_1_mean, x->ln_1_rstd, x->residual, r->mid, update_before(r),
                      w->ln_1_w, w->ln_1_b, LAYERNORM_EPS);
    inner_forward(r, x, w);
    r->has_joined = tensor_is_none(product_join(r, PRODUCT_DOWN, r->exit, x->residual_mid, x->activation,
                                                w->mlp_proj_w, counted_once(r, w->mlp_proj_b), PLAIN));
}

/* Computes again the activations that were not kept, by the same ops on the same inputs. */
static void recompute(BlockRun *r, void *acts, const void *weights) {
    const BlockActs   *x = (const BlockActs *)acts;
    const BlockParams *w = (const BlockParams *)weights;
    Tensor             none = tensor_none();
    if (r->recompute == RECOMPUTE_NONE) return;
    product_layernorm(r, PRODUCT_QKV, x->ln_1, x->ln_1_mean, x->ln_1_rstd, x->residual, none, none, w->ln_1_w,
                      w->ln_1_b, LAYERNORM_EPS);
    if (r->recompute == RECOMPUTE_BLOCK) {
        inner_forward(r, x, w);
    } else {
        product_layernorm(r, PRODUCT_UP, x->ln_2, x->ln_2_mean, x->ln_2_rstd, x->residual_mid, none, none, w->ln_2_w,
                          w->ln_2_b, LAYERNORM_EPS);
        product_activation(r, x->activation, x->fc);
    }
}

/* Sets r->entry_sums to zero and returns it. The backward of a block's first norm, or of the final norm, adds the
 * column sums of the stream's gradient to it. They are the gradient of mlp_proj_b of the previous block. With tensor
 * ranks it is an empty tensor, because these sum the gradients of biases over gathered rows. */
static Tensor entry_sums(const BlockRun *r) {
    /* zeroed by a kernel, so that the kernel after it may start early, also in CUDA graphs */
    if (!tensor_is_none(r->entry_sums)) zero_tensors(r->s, &r->entry_sums, 1);
    return r->entry_sums;
}

static void backward(BlockRun *r, void *acts, const void *weights, const void *grads) {
    const BlockActs   *x = (const BlockActs *)acts;
    const BlockParams *w = (const BlockParams *)weights, *d = (const BlockParams *)grads;
    /* puts the gradient of attention's output into the memory of update, which is free between its uses below */
    Tensor             dattention = x->attention;
    dattention.data = r->update.data;
    int                is_summed = !tensor_is_none(r->exit_sums);
    if (is_summed) add_forward(r->s, d->mlp_proj_b, r->exit_sums);
    Tensor dfc = product_activation_backward(r, x->dfc, d->c_fc_b, d->mlp_proj_w,
                                             is_summed ? tensor_none() : counted_once(r, d->mlp_proj_b),
                                             gather_rows(r, r->dresidual, r->dbranch), x->activation, x->fc,
                                             w->mlp_proj_w);
    product_backward(r, PRODUCT_UP, r->dbranch, d->c_fc_w, tensor_none(), dfc, gather_rows(r, x->ln_2, r->update),
                     w->c_fc_w, PLAIN);
    layernorm_backward(r->s, r->dresidual, r->tensor ? tensor_none() : d->attn_proj_b, d->ln_2_w, d->ln_2_b,
                       r->dresidual, sum_rows(r, r->dbranch), x->residual_mid, w->ln_2_w, x->ln_2_mean, x->ln_2_rstd);

    product_delta_backward(r, PRODUCT_ATTENTION, dattention, r->delta, d->attn_proj_w,
                           r->tensor ? counted_once(r, d->attn_proj_b) : tensor_none(),
                           gather_rows(r, r->dresidual, r->dbranch), x->attention, w->attn_proj_w);
    Tensor dbias = d->c_attn_b,
           dqkv = product_attend_backward(r, &dbias, x->dqkv, dattention, x->attention, x->lse, r->delta, x->qkv);
    product_backward(r, PRODUCT_QKV, r->dbranch, d->c_attn_w, dbias, dqkv, gather_rows(r, x->ln_1, r->update),
                     w->c_attn_w, PLAIN);
    layernorm_backward(r->s, r->dresidual, entry_sums(r), d->ln_1_w, d->ln_1_b, r->dresidual, sum_rows(r, r->dbranch),
                       x->residual, w->ln_1_w, x->ln_1_mean, x->ln_1_rstd);
}

static void final_forward(const BlockRun *r, FinalActs x, FinalParams w) {
    Tensor update = update_before(r);
    layernorm_forward(r->s, x.residual, x.y, x.mean, x.rstd, tensor_is_none(update) ? x.residual : r->mid, update,
                      w.norm_w, w.norm_b, LAYERNORM_EPS);
}

static void final_backward(const BlockRun *r, FinalActs x, Tensor dy, FinalParams w, FinalParams d) {
    /* an empty tensor: no gradient of the stream to add to, because the final norm alone reads the stream here */
    Tensor nothing = r->dresidual;
    nothing.data = NULL;
    layernorm_backward(r->s, r->dresidual, entry_sums(r), d.norm_w, d.norm_b, nothing, dy, x.residual, w.norm_w, x.mean,
                       x.rstd);
}

#define TABLE(rows, type) {rows, sizeof rows / sizeof *rows, sizeof(type)}
const BlockKind BLOCK_GPT2 = {
    .name = "gpt2",
    .prefix = "transformer.",
    .blocks = "h",
    .embedding = TABLE(EMBEDDING_ROWS, EmbeddingParams),
    .block = TABLE(BLOCK_ROWS, BlockParams),
    .final = TABLE(FINAL_ROWS, FinalParams),
    .act = ACT_ROWS,
    .acts = sizeof ACT_ROWS / sizeof *ACT_ROWS,
    .act_bytes = sizeof(BlockActs),
    .entry = ACT(residual),
    .mid = ACT(residual_mid),
    .forward = forward,
    .recompute = recompute,
    .backward = backward,
    .final_forward = final_forward,
    .final_backward = final_backward,
    .traits = HAS_MLP,
    .has_delta = 1,
    .has_biases = 1,
    .neurons = NEURON_COLUMNS,
    .activation = ACTIVATION_GELU_NEW,
    .activations = ALL_ACTIVATIONS,
    .files = &HF_GPT2,
};
