/* block.h - a kind of block: tables of its parameters and activations, and three plain functions that compose ops of
 * layers.h. Some of these ops depend on the run: on the ranks that divide matrices or sequences, and on fp8. The
 * functions of this file hide this from the blocks.
 *
 * model/gpt.c runs the blocks of any kind. A new kind of model is a file like gpt2.c. */
#ifndef TRAIN_GPT_MODEL_BLOCK_H
#define TRAIN_GPT_MODEL_BLOCK_H

#include "comm/comm.h"
#include "core/tensor.h"
#include "core/batch.h"
#include "core/device.h"
#include "layers/layers.h"
#include "model/hf.h"
#include "model/params.h"
#include "model/precision.h"

typedef enum { RECOMPUTE_NONE, RECOMPUTE_LIGHT, RECOMPUTE_BLOCK } Recompute;
/* What a model is used for. GPT_SAMPLING is inference that keeps the keys and values of all blocks, from token to
 * token. */
typedef enum { GPT_INFERENCE, GPT_SAMPLING, GPT_TRAINING } GptUse;

/* --- the ends: parameters before and after the blocks, which the model reads by name ------------------------------ */

/* Parameters of the embedding, and of the final norm and the head. Those that a kind of model lacks are tensor_none().
 * V' is the padded vocabulary, P the number of positions, C the width. */
/* wte [V',C]: tokens; wpe [P,C]: positions, none if rotary */
typedef struct { Tensor wte, wpe; } EmbeddingParams;
/* norm_w, norm_b [C]; head [V',C], none if wte is the head */
typedef struct { Tensor norm_w, norm_b, head; } FinalParams;

/* Activations of the final norm, for the n rows of this rank. residual: the residual stream that it reads, [n,C] of the
 * activation type; y: its output, of the same shape and type. mean and rstd: its statistics, [n] f32. Kinds of block
 * with RMS norms do not set mean. */
typedef struct { Tensor residual, y, mean, rstd; } FinalActs;

/* --- activations -------------------------------------------------------------------------------------------------- */

/* Symbols for shapes of activations on one of t tensor ranks. N is the number of rows (tokens) of the micro-batch, OWN
 * = N/t the rows of this rank. PAST_N also counts the rows of earlier tokens. ALL_C is the width of the model. The
 * other widths are this rank's share: Q/t, QKV/t, FC/t (as Dim in params.h), H/t heads and KEYS/t heads of keys. */
typedef enum {
    ACT_OWN_ALL_C, ACT_OWN, ACT_N_Q, ACT_N_QKV, ACT_PAST_N_QKV, ACT_N_HEADS, ACT_N_KEYS, ACT_N_FC, ACT_N_2FC,
    ACT_HEADS_T, /* [B*H/t,T]: H/t heads of B sequences of T tokens */
    /* Shapes of experts, which exclude tensor ranks. E: experts; TOP: experts of a token; R = N*TOP: assignments of
     * tokens to experts; FIRST: E+1; FE: width of an expert. */
    ACT_N_E, ACT_B_E, ACT_N_TOP, ACT_R, ACT_FIRST, ACT_R_C,
    ACT_X_FE, ACT_X_2FE, /* [X,FE] and [X,2 FE]. FE: hidden width of an expert. X: rows that this rank's experts compute
                          * at once; all N*TOP assignments if each rank has all experts */
    ACT_X, ACT_X_C, ACT_R_SENT /* shapes of tensors that have elements only if ranks divide the experts; X: rows that
                                * this rank's experts compute at once; R_SENT: assignments of tokens to experts */
} ActShape;
/* type of the elements of an activation; TYPE_ACT: the type in which the run keeps activations */
typedef enum { TYPE_ACT, TYPE_F32, TYPE_I32 } ActType;
/* How long a tensor of a block is kept:
 *   KEEP_STREAM     until the block's backward, in every mode of recompute
 *   KEEP_STATE      until the block's backward, unless whole blocks are computed again
 *   KEEP_CACHE      as KEEP_STATE; sampling reads it for the next token
 *   KEEP_CHEAP      until the block's backward, unless norms and activations, or whole blocks, are computed again
 *   KEEP_BACKWARD   only while one block's backward runs
 *   KEEP_WORK       only while one block's forward or backward runs
 * All blocks share the memory of tensors that are not kept. */
typedef enum { KEEP_STREAM, KEEP_STATE, KEEP_CACHE, KEEP_CHEAP, KEEP_BACKWARD, KEEP_WORK } Keep;

typedef struct {
    size_t   field;     /* offset of the Tensor in the struct of activations of its kind of block */
    ActShape shape;
    ActType  type;
    Keep     keep;
    size_t   alias;     /* offset of another Tensor, whose memory this one uses except in training; NO_ALIAS: its own */
    int      needs;     /* set of Traits that a model must have to have this tensor (model/params.h) */
} ActRow;
#define NO_ALIAS ((size_t)-1)

/* --- the arguments of a block's functions ------------------------------------------------------------------------- */

/* Sizes of a micro-batch. It has B sequences, with T tokens of each on this context rank, so N = B*T rows. tensor: the
 * number of tensor ranks; own = N/tensor: rows of this tensor rank. past: in sampling, the number of earlier tokens of
 * the one sequence, whose keys and values are kept; otherwise 0. room: rows that this rank's experts compute at once
 * (ExpertRanks); 0 if no ranks divide the experts. */
typedef struct { int64_t B, T, N, own, tensor, past, room; } Extent;
static inline Extent extent_of(int64_t B, int64_t T, int64_t tensor) {
    return (Extent){B, T, B * T, B * T / tensor, tensor, 0, 0};
}

typedef struct BlockKind BlockKind;
typedef struct {
    Stream    *s;
    ModelShape shape;
    const BlockKind *kind;     /* kind of the block that runs */
    Recompute  recompute;
    Extent     e;
    Comm      *tensor;         /* borrowed: ranks that divide each matrix, and the rows of the stream; NULL: one rank */
    /* borrowed: ranks with other tokens of the same sequences; NULL: one rank                */
    Comm      *context;
    /* The residual stream before the block is mid + update, where `update` is the output of the previous block's last
     * branch. The block's first norm adds the two. mid.data is NULL if the sum is already stored as the block's input.
     * This is so before the first block, and if the previous block added its last branch itself. forward sets
     * has_joined to 1 if it stored the whole stream after this block in `exit`. If it sets 0, the output of its last
     * branch must still be added. That output is in this rank's rows of update, own_rows(update). */
    /* [own,C] of the activation type, own = rows of this tensor rank: the residual stream before the block, without
     * `update` */
    Tensor mid;
    /* [N,C] of the activation type: output of a branch of a block, for the rows of all tensor ranks. In training its
     * memory also holds the gradient of attention's output, [N,Q/t]. */
    Tensor update;
    /* [own,C] of the activation type, own = rows of this tensor rank: the residual stream after the block, which the
     * next block or the final norm reads */
    Tensor exit;
    int    has_joined;         /* set by forward: 1 if `exit` holds the residual stream after the block */
    /* [C] f32: column sums of dresidual where the block begins (backward writes them) and where the block ends
     * (backward reads them); or none */
    Tensor entry_sums, exit_sums;
    /* dresidual [own,C], own = rows of this tensor rank: gradient of the residual stream. Backward begins with that of
     * the stream after the block and ends with that before it. dbranch [N,C]: gradient of a branch, for all N rows.
     * Both are of the activation type. */
    Tensor dresidual, dbranch;
    /* [H/t,N] f32: for each row and head the sum of products of attention's output and its gradient (attention_delta).
     * The backward of the product after attention computes it. none: attention's backward computes it. */
    Tensor delta;
    /* [ranks*N,2KV/t] of the activation type: keys and values of all context ranks, and the gradients of these */
    Tensor keys, dkeys;
    Tensor frequencies;        /* [head_dim/2] f32: rotary frequencies, in kinds of block that have_rope */
    /* borrowed: ranks that divide the experts (model/experts.h); NULL: each rank has all experts */
    struct ExpertRanks *experts;
    /* borrowed [ranks that divide the experts][E]: number of rows that each of these ranks has for each expert, counted
     * by forward */
    int64_t *expert_rows;
    /* [E] i64: number of assignments of tokens to each expert of the block in this step, to which forward adds; none:
     * they are not counted */
    Tensor expert_counts;
    /* [1] f32: factor of the loss that balances experts: balance_rate times grad_scale, the factor of the model's
     * loss */
    Tensor balance;
    /* [B,T] i32: position of the first key that each query of this block sees, where its document starts (layers.h).
     * The last key is the query itself. none: each query sees its sequence from the beginning. */
    Tensor first_keys;
    /* fp8 scales, maxima and counts of the block's FP8_BLOCK_CELLS tensors in fp8; scale none: products are in the
     * activation type */
    Fp8    fp8;
} BlockRun;

/* --- tensor and context ranks ------------------------------------------------------------------------------------- */

/* Returns all elements of a tensor as a tensor of one dimension. */
static inline Tensor tensor_flat(Tensor t) { return tensor_slice(t, 0, tensor_elems(t)); }

/* Tensor parallelism with sequence parallelism: Shoeybi et al., arXiv:1909.08053; Korthikanti et al., arXiv:2205.05198.
 * A product whose matrix is cut by columns reads the rows of all tensor ranks, which gather_rows collects in room. A
 * product whose matrix is cut by rows leaves a partial sum on each rank in room, which sum_rows adds up. With one
 * tensor rank nothing is communicated: gather_rows returns part, the others return room. room: buffer [N,C]. */
Tensor gather_rows(const BlockRun *r, Tensor part, Tensor room); /* returns the rows of all tensor ranks; part: this
                                                                  * rank's rows */
/* returns this rank's rows of the sum over the tensor ranks of their buffers `room` */
Tensor sum_rows(const BlockRun *r, Tensor room);
Tensor own_rows(const BlockRun *r, Tensor room);
/* returns this rank's rows of r->update, the output of the previous block's last branch, which must still be added to
 * r->mid; none if it has been added */
Tensor update_before(const BlockRun *r);
/* Attention, with context parallelism: over the keys and values of all context ranks, gathered in r->keys as in Llama
 * 3, arXiv:2407.21783. (Liu et al., "Ring attention", arXiv:2310.01889, passes them around instead.) With one context
 * rank these functions are the plain ops of attention. In sampling, queries also see the keys of the `past` earlier
 * tokens, and lse is not set.
 *   qkv, dqkv [past+N,QKV/t]   y, dy [N,Q/t]   lse [B*H/t,T]   delta: attention_delta of dy and y, or none
 *   dbias: column sums of dqkv are added to it, or none; attend_backward returns 1 if they were added */
HeadShape heads_of(const BlockRun *r); /* returns the number of heads of this tensor rank, and their size */
void attend(const BlockRun *r, Tensor y, Tensor lse, Tensor qkv);
int attend_backward(const BlockRun *r, Tensor dqkv, Tensor dbias, Tensor dy, Tensor y, Tensor lse, Tensor delta,
                    Tensor qkv);
ContextPart context_part(const Comm *context);
/* Returns the rows of qkv that belong to the tokens of the batch; the rows of past tokens precede them. */
Tensor batch_rows(const BlockRun *r, Tensor qkv);
/* Returns bias on tensor rank 0 and tensor_none() on the others. The bias of a product that is summed over the ranks,
 * and its gradient, must be added once. */
Tensor counted_once(const BlockRun *r, Tensor bias);
int    is_counting(const Comm *tensor);

/* --- products in the run's type or in fp8 ------------------------------------------------------------------------- */

/* The four products of a block and the ops before and after them, in the run's type or in fp8 with the block's scales.
 * The ops themselves are in layers.h.
 *
 * In fp8 the op before a product writes the product's operand directly in fp8 (layers.h, "outputs in fp8") if nothing
 * else reads it. These ops are the norms, except with tensor ranks, which gather rows; the activation and SwiGLU; and
 * the gradients of these two and of attention. A separate cast is needed in a run's first step, whose scales are not
 * known, and in micro-batches whose number of rows is not a multiple of 16. Operands written directly lie in the first
 * half of the memory of their bf16 tensor, so tensor_bytes of the fp8 view is half of what that tensor owns. */

/* Run product p in the run's type or in fp8, by linear_forward, linear_activation_forward, linear_backward,
 * linear_delta_backward (delta may be none). x is the output of the op before the product, such as product_layernorm;
 * that op may have written it as fp8 values. */
void product_forward(const BlockRun *r, BlockProduct p, Tensor y, Tensor x, Tensor w, Tensor b, MatrixOrder order);
void product_activation_forward(const BlockRun *r, BlockProduct p, Tensor y, Tensor pre, Tensor x, Tensor w, Tensor b);
void product_backward(const BlockRun *r, BlockProduct p, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x,
                      Tensor w, MatrixOrder order);
void product_delta_backward(const BlockRun *r, BlockProduct p, Tensor dx, Tensor delta, Tensor dw, Tensor db, Tensor dy,
                            Tensor x, Tensor w);
/* Runs linear_activation_backward for PRODUCT_DOWN. Returns the gradient of PRODUCT_UP's output: dpre, or in fp8 the
 * fp8 values of dpre in the memory of x. */
Tensor product_activation_backward(const BlockRun *r, Tensor dpre, Tensor dbias, Tensor dw, Tensor db, Tensor dy,
                                   Tensor x, Tensor pre, Tensor w);

/* Runs attend_backward for the output of PRODUCT_QKV. Returns the gradient of that output: dqkv, or its fp8 values in
 * the memory of dqkv. Sets *dbias to none if it has added the bias gradient. Otherwise the product has to add it. */
Tensor product_attend_backward(const BlockRun *r, Tensor *dbias, Tensor dqkv, Tensor dy, Tensor y, Tensor lse,
                               Tensor delta, Tensor qkv);

/* The last product of a branch: product_forward into r->update, summed over tensor ranks.
 * Returns the rows that must still be added to `before`. Returns none if the product has added them; then `after` holds
 * the stream. */
Tensor product_join(const BlockRun *r, BlockProduct p, Tensor after, Tensor before, Tensor x, Tensor w, Tensor b,
                    MatrixOrder order);
/* The norm before product p. Sets stream = before + update and normalizes it. If update is none, stream is only
 * read. */
void product_layernorm(const BlockRun *r, BlockProduct p, Tensor y, Tensor mean, Tensor rstd, Tensor stream,
                       Tensor before, Tensor update, Tensor w, Tensor b, float eps);
void product_rmsnorm(const BlockRun *r, BlockProduct p, Tensor y, Tensor rstd, Tensor stream, Tensor before,
                     Tensor update, Tensor w, float eps);
/* Run activation_forward and swiglu_forward, the ops before PRODUCT_DOWN. The activation is that of the model
 * (ModelShape.activation). */
void product_activation(const BlockRun *r, Tensor y, Tensor x);
void product_swiglu(const BlockRun *r, Tensor y, Tensor gate_up);
/* Runs swiglu_backward, then linear_backward for PRODUCT_UP. May overwrite gate_up with its gradient. */
void product_swiglu_backward(const BlockRun *r, Tensor dx, Tensor dw, Tensor dswiglu, Tensor gate_up, Tensor x,
                             Tensor w);

/* --- kinds -------------------------------------------------------------------------------------------------------- */

/* Config keys that a kind of block reads, in addition to its five sizes. A key that a kind does not read is refused
 * unless it has its default value. */
typedef enum {
    READS_N_KV_HEAD = 1, /* reads model.n_kv_head; without this flag each query head has its own keys */
    READS_HEAD_DIM  = 2, /* reads model.head_dim; without this flag it is n_embd / n_head */
    READS_N_INNER   = 4, /* reads model.n_inner, which is then required; without this flag it is 4 n_embd */
    READS_TIED      = 8, /* reads model.tie_embeddings, by default false; without this flag the embedding is the head */
    READS_NORM_EPS  = 16 /* reads model.norm_eps; without this flag it is 1e-5 */
} KindKeys;

/* Value of BlockKind.activations for blocks that call product_activation, which can compute every Activation. */
enum { ALL_ACTIVATIONS = (1 << ACTIVATION_COUNT) - 1 };

struct BlockKind {
    const char *name;                      /* name of the kind of block: "gpt2" */
    /* parts of tensor names in files: prefix is "transformer.", and blocks is "h" in "transformer.h.3." */
    const char *prefix, *blocks;
    ParamTable  embedding, block, final;
    const ActRow *act;
    int         acts;
    size_t      act_bytes;                 /* bytes of the struct of activation Tensors */
    /* offsets of Tensors in the struct of activations; entry: the residual stream before the block; mid: the stream
     * after the block, without the output of the last branch */
    size_t      entry, mid;
    /* acts: the activations of a block; weights and grads: its parameters and their gradients. Each is a struct that
     * belongs to this kind of block. */
    void (*forward)(BlockRun *r, void *acts, const void *weights);
    void (*recompute)(BlockRun *r, void *acts, const void *weights); /* computes again the tensors that were not kept */
    void (*backward)(BlockRun *r, void *acts, const void *weights, const void *grads);
    /* The final norm, of the residual stream after the last block. final_forward first adds r->update, the output of
     * the last branch, to r->mid. dy [own,C] is the gradient of the norm's output on the rows of this tensor rank;
     * final_backward sets r->dresidual. */
    void (*final_forward)(const BlockRun *r, FinalActs x, FinalParams w);
    void (*final_backward)(const BlockRun *r, FinalActs x, Tensor dy, FinalParams w, FinalParams grads);
    int  traits;                           /* set of Traits that every model of this kind has */
    /* with HAS_EXPERTS: offset, in the struct of weights, of the bias that is added when experts are chosen
     * (model/optimizer.h) */
    size_t experts_bias;
    /* 1: blocks read BlockRun.frequencies, and this kind of block reads the config keys rope_theta and those of its
     * scaling */
    int  has_rope;
    int  keys;                             /* set of KindKeys: config keys that this kind of block reads */
    /* epsilon of the norms if the config has no norm_eps; 0: the default of that key */
    double norm_eps;
    /* 1: q, k and v are adjacent in memory and read as one matrix, and gate and up are another such matrix */
    int  joins_matrices;
    /* 1: the backward of the product after attention also computes BlockRun.delta */
    int  has_delta;
    /* 1 if backward adds the column sums of the residual stream's gradient to BlockRun.entry_sums, and uses exit_sums
     * if they are set */
    int  has_biases;
    /* which side of a matrix belongs to a neuron: columns for matrices [in,out], rows for [out,in] */
    NeuronSide neurons;
    Activation activation;                 /* activation of the MLP if the config has no model.activation */
    /* set of bits 1 << Activation: activations that model.activation may name, in addition to the default in
     * `activation` */
    int  activations;
    const HfFiles *files;                  /* functions that read and write config.json */
    /* Kinds of the blocks of a model whose blocks differ: block l is of kind pattern[l % period]. Embedding, head,
     * files and config keys are those of this kind. period 0: all blocks are of this kind. Blocks may differ in traits,
     * experts_bias, has_delta, has_biases, neurons, and in all fields up to `backward` that concern a block. In ZeRO
     * stages 2 and 3 they must have the same rows of parameters, because blocks share slots (buffers). A pipeline
     * treats all blocks as equally expensive. */
    /* borrowed [period]: kinds of the first `period` blocks; they repeat for the next ones */
    const BlockKind *const *pattern;
    int  period;
};

extern const BlockKind BLOCK_GPT2, BLOCK_LLAMA, BLOCK_QWEN3, BLOCK_QWEN3_MOE;

/* Returns the kind of block of a model with this shape. */
const BlockKind *block_kind(ModelShape shape);
/* Returns the kind of block l of a model with this shape. */
static inline const BlockKind *block_kind_at(ModelShape shape, int64_t l) {
    const BlockKind *kind = block_kind(shape);
    return kind->period ? kind->pattern[l % kind->period] : kind;
}

/* Returns whether a model of this kind and shape has all of these Traits, in its blocks or in its embedding and
 * head. */
int kind_has(const BlockKind *kind, ModelShape shape, int traits);

/* Makes the struct of a block's activations (act_bytes bytes), with memory from the arena. The caller frees it with
 * free(). like: the struct of another block with the same rows of activations, or NULL. Tensors that are not kept use
 * the memory of `like`. */
void *block_acts_create(const BlockKind *kind, ModelShape shape, DType act, Extent e, Recompute recompute, GptUse use,
                        const void *like, Arena *arena);
/* Returns whether each block has its own memory for keys and values. Then they are still there after the forward. */
int block_keeps_past(GptUse use, Recompute recompute);
/* Copies a struct of a block's activations into out [act_bytes]. The tensors in out have the shapes of a micro-batch,
 * which may be smaller than the memory. */
void block_acts_view(const BlockKind *kind, ModelShape shape, const void *acts, Extent e, void *out);

#endif
