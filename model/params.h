/* params.h - the parameters of a model as rows of tables: name, shape, initial values, group (matrix, embedding or
 * vector), and how tensor ranks divide each tensor. Memory, the structs that blocks read, weight decay, buckets, names
 * in files and the plan are computed from the rows. With µP, initial values and learning rates follow the width. */
#ifndef TRAIN_GPT_MODEL_PARAMS_H
#define TRAIN_GPT_MODEL_PARAMS_H

#include <stddef.h>

#include "core/layout.h"

typedef enum { ARCH_GPT2, ARCH_LLAMA, ARCH_QWEN3, ARCH_QWEN3_MOE, ARCH_COUNT } Arch;
/* How experts get equal shares of the tokens. BALANCE_NONE: not at all. BALANCE_BIAS: a bias is added to the router's
 * scores to choose experts, and changed after each step. BALANCE_SWITCH: a loss that grows with unequal shares is added
 * to the model's loss. */
typedef enum { BALANCE_NONE, BALANCE_BIAS, BALANCE_SWITCH } ExpertBalance;

/* Sizes of a model and properties that its kind allows, named as in Hugging Face where it has a name for them. gpt2
 * needs only the first five; the others may be zero. */
typedef struct {
    int64_t n_layer, n_head, n_embd, n_positions, vocab_size;
    int     arch;              /* kind of model, an Arch                                          */
    int     tie_embeddings;    /* 1: the output head has the weights of the token embedding       */
    /* 1: a model of kind gpt2 in a file has an output head of its own; only sample and eval read such a file */
    int     own_head;
    int64_t n_kv_head;         /* number of heads of keys and values, which n_head query heads share; 0: n_head */
    int64_t n_inner;           /* width of the MLP; 0: 4 n_embd                                   */
    double  norm_eps, rope_theta;
    /* scaling of rotary frequencies as in Llama 3; rope_factor 0: no scaling */
    double  rope_factor, rope_low_freq_factor, rope_high_freq_factor;
    int64_t rope_original_positions;
    int64_t head_dim;          /* channels of an attention head; 0: n_embd / n_head */
    int64_t n_experts, top_k;  /* qwen3-moe: number of experts in a block, and of those chosen for a token */
    int64_t n_expert_inner;    /* width of an expert's MLP                                        */
    int     norm_top_k;        /* 1: the weights of a token's experts are divided by their sum    */
    int     balance;           /* an ExpertBalance: how experts get equal shares of the tokens */
    double  balance_rate;      /* with a bias (BALANCE_BIAS), by how much it changes in a step; with a loss
                                * (BALANCE_SWITCH), factor of that loss */
    /* µP, the maximal update parametrization, transfers settings from a base model: width of that model (0: no µP), and
     * its head size (0: as in this model) */
    int64_t mup_base_n_embd, mup_base_head_dim;
    double  logit_softcap;     /* c, if logits become c tanh(logit / c); 0: no soft cap */
    /* factor of the z-loss, which changes the gradients but not the reported loss (LossTerms in layers.h) */
    double  z_loss;
    double  init_std;          /* standard deviation of initial weights; 0: 0.02                  */
    /* an Activation: the function of the MLP (layers/layers.h); MLPs with a gate have silu alone */
    int     activation;
} ModelShape;

#define GPT2_SHAPE(layers, heads, width, positions, vocabulary) \
    {.n_layer = layers, .n_head = heads, .n_embd = width, .n_positions = positions, .vocab_size = vocabulary}

static inline double  shape_init_std(ModelShape s) { return s.init_std > 0.0 ? s.init_std : 0.02; }
static inline int64_t shape_kv_heads(ModelShape s) { return s.n_kv_head ? s.n_kv_head : s.n_head; }
static inline int64_t shape_head_dim(ModelShape s) { return s.head_dim ? s.head_dim : s.n_embd / s.n_head; }

/* the rows of wte, the token embedding, on each tensor rank are padded to a multiple of this, so that products have
 * whole tiles */
enum { VOCAB_PAD = 128 };

/* Symbols for the dimensions of a parameter: V vocabulary, P positions, C = n_embd, D = head_dim, Q and KV = columns of
 * queries and of keys, QKV = Q + 2 KV, FC = n_inner, E = number of experts, FE = width of an expert. */
typedef enum { DIM_NONE, DIM_V, DIM_P, DIM_C, DIM_D, DIM_Q, DIM_KV, DIM_QKV, DIM_FC, DIM_E, DIM_FE } Dim;
/* Distribution of the initial values of a parameter. INIT_NORMAL: N(0, std) with std = init_std, default 0.02.
 * INIT_RESIDUAL, for projections that add to the residual stream: N(0, std / sqrt(2 n_layer)), Radford et al. 2019. µP
 * multiplies both by a factor. */
typedef enum { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_RESIDUAL } Init;
/* Traits in which kinds of models of one source file differ, as bits of a set. A row of a table exists only in models
 * that have all the traits in its field `needs` (kind_has in model/block.h). */
typedef enum {
    HAS_MLP = 1, HAS_EXPERTS = 2, /* the second half of a block is one MLP, or experts */
    HAS_HEAD_NORMS = 4,           /* each head of q and k has a norm                            */
    HAS_EXPERT_BIAS = 8,          /* a bias is added to the router's scores to choose experts (BALANCE_BIAS) */
    /* the output head is FinalParams.head; without this trait the embedding is the head */
    HAS_OWN_HEAD = 16
} Traits;
typedef struct {
    /* Name in files, without the prefix of the block: "attn.c_attn.weight". A * in the name stands for the number of an
     * expert. Adjacent rows with a * are repeated together, once for each expert. */
    const char *name;
    /* offset of the parameter's Tensor in the struct that blocks read; for parameters of experts, that of the first
     * expert */
    size_t      field;
    Dim         dim[2]; /* dimensions of the parameter; a vector has DIM_NONE as the second */
    Init        init;
    ParamGroup  group;  /* group of parameters, which decides weight decay and optimizer  */
    Cut         cut;
    int         needs;  /* set of Traits that a model must have to have this parameter */
} ParamRow;

typedef struct {
    const ParamRow *row;
    int             rows;
    size_t          view_bytes; /* bytes of the struct of Tensors that these rows describe */
} ParamTable;
#define NO_FIELD ((size_t)-1) /* value of Param.field for a parameter that is in no struct */

int64_t dim_size(Dim dim, ModelShape shape);
const char *dim_option(Dim dim); /* returns the config keys that set this dimension: "model.n_embd" */

/* most tensors of a model: about as many as the header of a .safetensors file may name */
enum { MODEL_MOST_ROWS = 120000 };

/* Returns the parameters of the whole model in the order of files, malloc'ed, and their number in *count. Bucket 0 has
 * the parameters of the embedding, bucket 1 + l those of block l, the last bucket those after the last block. */
Param *model_params(ModelShape shape, int *count);
/* Returns the number of parameters that model_params returns. */
int64_t model_rows(ModelShape shape);
/* Writes the number of elements of all parameters. Returns 0 if it does not fit in 64 bits. */
int    model_parameters(ModelShape shape, int64_t *parameters);
/* Returns the size in bytes of the struct of Tensors through which blocks read the parameters of a bucket. */
size_t model_view_bytes(ModelShape shape, int bucket);
/* Returns where each parameter of the model is in memory and in files. With place.expert_ranks > 1 the experts of block
 * l are in bucket model_expert_bucket(shape, 1 + l), after all other buckets. */
Layout model_layout(ModelShape shape, LayoutPlace place);
static inline int model_expert_bucket(ModelShape s, int block) { return 1 + (int)s.n_layer + block; }
/* Returns the bucket whose struct of Tensors (model_view_bytes) also has the parameters of this bucket. For a bucket of
 * experts it is the bucket of the same block. */
static inline int model_view_bucket(ModelShape s, int bucket) {
    int first_of_experts = model_expert_bucket(s, 1);
    return bucket < first_of_experts ? bucket : 1 + bucket - first_of_experts;
}

/* Returns the model FLOPs of one trained token at sequence length T. They are 6 P + 6 L Q T with causal attention, L
 * layers and Q columns of queries. P counts the elements of all parameters except a wte that is not also the head. Of
 * the experts it counts only those that one token uses. */
double model_flops_per_token(ModelShape shape, int64_t T);
/* holds a text such as "12 layers, 12 heads, width 768, 1024 positions, vocabulary 50257" */
typedef struct { char text[320]; } ShapeText;
ShapeText model_shape_text(ModelShape shape);

/* Writes the initial fp32 values of `elems` elements of parameter p to out. The first is the element at global offset
 * `offset`, its place in files. The values depend only on seed and offset. */
void param_init_values(float *out, const Param *p, int64_t offset, int64_t elems, uint64_t seed);

/* --- µP ---------------------------------------------------------------------------------------------------------- */

/* µP, the maximal update parametrization: initial values and learning rates that follow the width, so that the best
 * learning rate of a narrow model is that of a wide one. Yang et al., arXiv:2203.03466, table 8.
 *
 * With m = n_embd / mup_base_n_embd and D the size of a head, compared with the model of the base width:
 *   matrices of blocks   standard deviation x 1/sqrt(m), Adam's learning rate x 1/m
 *   logits               x 1/m
 *   attention            scores x sqrt(D_base) / D, not 1 / sqrt(D)
 * Embeddings, a head of its own, gains and biases are as in the base model.
 *
 * A factor f of a result is applied through the weights before it. If their initial values and Adam's learning rate are
 * multiplied by f, training follows the same path with f times those weights. Logits get their factor from the final
 * norm's gain and bias, x 1/m. Scores get theirs from q, k and v, each x b = (D_base / D)^(1/4); the projection after
 * attention is x 1/b. No other code depends on the base width, and files hold the weights of a plain model. */

/* Returns whether blocks of this kind have parameters through which µP can scale attention. */
int mup_knows_attention(ModelShape shape);

#endif
