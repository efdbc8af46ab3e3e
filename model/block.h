/* block.h - a kind of block: tables of its parameters and activations, and three plain functions that compose ops of
 * layers.h.
 *
 * model/gpt.c runs the blocks of any kind. A new kind of model is a file like gpt2.c.
 */
#ifndef TRAIN_GPT_MODEL_BLOCK_H
#define TRAIN_GPT_MODEL_BLOCK_H

#include "comm/comm.h"
#include "core/arena.h"
#include "core/batch.h"
#include "core/device.h"
#include "layers/layers.h"
#include "model/ends.h"
#include "model/fp8.h"
#include "model/hf_gpt2.h"
#include "model/params.h"

typedef enum { RECOMPUTE_NONE, RECOMPUTE_LIGHT, RECOMPUTE_BLOCK } Recompute;
/* GPT_SAMPLING is inference that keeps the keys and values of all blocks, from token to token. */
typedef enum { GPT_INFERENCE, GPT_SAMPLING, GPT_TRAINING } GptUse;

/* --- activations -------------------------------------------------------------------------------------------------- */

/* Symbols for shapes with t tensor ranks. N is the rows of the micro-batch, OWN = N/t those of this rank. The widths
 * are those of this rank: Q/t, QKV/t, FC/t, H/t heads and KEYS/t heads of keys. ALL_C is the whole width. PAST_N also
 * counts the rows of earlier tokens. */
typedef enum {
    ACT_OWN_ALL_C, ACT_OWN, ACT_N_Q, ACT_N_QKV, ACT_PAST_N_QKV, ACT_N_HEADS, ACT_N_KEYS, ACT_N_FC, ACT_N_2FC,
    ACT_HEADS_T, /* [B*H,T] */
    /* of experts, on one tensor rank: TOP of a token, R = N*TOP, FIRST is [E+1], FE an expert's width */
    ACT_N_E, ACT_B_E, ACT_N_TOP, ACT_R, ACT_FIRST, ACT_R_C,
    ACT_X_FE, ACT_X_2FE, /* X: room for rows that ranks bring to this one's experts; R where each rank has all of them */
    ACT_X, ACT_X_C, ACT_R_SENT /* X, and R, of such ranks alone: else 0 */
} ActShape;
typedef enum { TYPE_ACT, TYPE_F32, TYPE_I32 } ActType; /* the run's own, or always this */
/* The time for which a block's tensor is kept:
 *   KEEP_STREAM     until its backward, in every mode of recompute
 *   KEEP_STATE      until then, unless whole blocks are computed again
 *   KEEP_CACHE      as KEEP_STATE; sampling goes on from it, token by token
 *   KEEP_CHEAP      until then, unless norms and GELU, or whole blocks, are computed again
 *   KEEP_BACKWARD   only while one block's backward runs
 *   KEEP_WORK       only while one block's forward or backward runs
 * The blocks share the memory of rows that are not kept. */
typedef enum { KEEP_STREAM, KEEP_STATE, KEEP_CACHE, KEEP_CHEAP, KEEP_BACKWARD, KEEP_WORK } Keep;

typedef struct {
    size_t   field;     /* offset of its Tensor in the kind's struct                            */
    ActShape shape;
    ActType  type;
    Keep     keep;
    size_t   alias;     /* in inference the memory of the Tensor at this offset; NO_ALIAS: own  */
} ActRow;
#define NO_ALIAS ((size_t)-1)

/* --- the arguments of a block's functions ------------------------------------------------------------------------- */

/* Of the micro-batch: B sequences, T tokens of each on this context rank, N = B*T rows; own = N/tensor of them are this
 * tensor rank's. past: tokens of the one sequence before these, whose keys and values are kept; sampling's, else 0. */
typedef struct { int64_t B, T, N, own, tensor, past, room; } Extent; /* room: ExpertRanks'; 0: no ranks divide the experts */
static inline Extent extent_of(int64_t B, int64_t T, int64_t tensor) {
    return (Extent){B, T, B * T, B * T / tensor, tensor, 0, 0};
}

typedef struct {
    Stream    *s;
    ModelShape shape;
    Recompute  recompute;
    Extent     e;
    Comm      *tensor;         /* borrowed: ranks that divide each matrix, and the rows of the stream; NULL: there is one */
    Comm      *context;        /* borrowed: ranks with other tokens of the same sequences; NULL: there is one          */
    /* The residual stream before the block, in two parts: `update`, the last branch's output, joins `mid` in the
     * block's first norm. mid.data is NULL where the entry holds the stream already: before the first block, and
     * where the last branch has joined. forward leaves its last branch's output in own_rows(update); or has_joined,
     * and the stream is in exit. */
    Tensor mid;                /* [own,C] act                                                              */
    Tensor update;             /* [N,C] act: also where all ranks' rows meet; training has room for [N,Q/t]   */
    Tensor exit;               /* [own,C] act: the entry of what comes behind the block                    */
    int    has_joined;         /* out                                                                      */
    Tensor entry_sums, exit_sums; /* [C] f32: column sums of dresidual where the block begins, out, and where it ends; or none */
    Tensor dresidual, dbranch; /* [own,C] [N,C] act: backward's gradient of the stream, in and out; a branch's */
    Tensor delta;              /* [H/t,N] f32: attention_delta's, by the product behind attention; none: attention's backward finds it */
    Tensor keys, dkeys;        /* context ranks: [ranks*N,2KV/t] act, keys and values of all of them, and gradients */
    Tensor frequencies;        /* [head_dim/2] f32, of kinds that have_rope                                 */
    struct ExpertRanks *experts; /* borrowed: ranks that divide the experts (model/expert_ranks.h); NULL: each has all */
    int64_t *expert_rows;      /* borrowed [ranks][E]: how many rows each of them has for each expert, as forward finds */
    Tensor expert_counts;      /* [E] i64: the block's assignments of this step so far, which forward adds to; none: not counted */
    Tensor balance;            /* [1] f32: balance_rate times the factor of the loss' gradient                  */
    Tensor starts;             /* [B,T] i32, of documents (layers.h); none: each sequence is one             */
    Fp8    fp8;                /* of the block's FP8_BLOCK_CELLS tensors; scale none: products are of act       */
} BlockRun;

/* Tensor parallelism with sequence parallelism: Shoeybi et al., arXiv:1909.08053; Korthikanti et al., arXiv:2205.05198.
 * Products by columns want the rows of all tensor ranks, products by rows leave a part of the sum of each. With one
 * rank nothing moves: the first returns part, the others room. room [N,C]. */
Tensor gather_rows(const BlockRun *r, Tensor part, Tensor room); /* part [own,C]: this rank's rows */
Tensor sum_rows(const BlockRun *r, Tensor room);                 /* this rank's rows of the sum over the ranks */
Tensor own_rows(const BlockRun *r, Tensor room);
Tensor update_before(const BlockRun *r); /* own_rows(update), which is to join mid; none where the stream is whole */
/* Context parallelism: attention over the keys and values of all context ranks, which meet in r->keys (Liu et al.,
 * "Ring attention", arXiv:2310.01889, passes them on instead; Llama 3, arXiv:2407.21783, gathers them). With one
 * rank the plain ops. Queries of tokens with a past see the keys of that, too; lse is not set then. qkv, dqkv
 * [past+N,QKV/t]   y, dy [N,Q/t]   lse [B*H/t,T]   delta: of dy and y, or none   dbias, and what is returned: as of
 * attention_backward */
HeadShape heads_of(const BlockRun *r); /* this tensor rank's */
void attend(const BlockRun *r, Tensor y, Tensor lse, Tensor qkv);
int attend_backward(const BlockRun *r, Tensor dqkv, Tensor dbias, Tensor dy, Tensor y, Tensor lse, Tensor delta, Tensor qkv);
ContextPart context_part(const Comm *context);
/* The rows of this batch's tokens, below those of the tokens before. */
Tensor batch_rows(const BlockRun *r, Tensor qkv);
/* A bias of a sum over the ranks, and the gradient of one, count once: elsewhere they are tensor_none(). */
Tensor counted_once(const BlockRun *r, Tensor bias);
int    is_counting(const Comm *tensor);

/* Config keys that a kind reads, in addition to its five sizes. A key that it does not read is refused unless it has
 * its default value. */
typedef enum {
    READS_N_KV_HEAD = 1, /* else each query head has its own keys       */
    READS_HEAD_DIM  = 2, /* else n_embd / n_head                        */
    READS_N_INNER   = 4, /* and needs it; else 4 n_embd                 */
    READS_TIED      = 8, /* and has a head of its own where it is not given; else the embedding is the head */
    READS_NORM_EPS  = 16 /* else 1e-5                                   */
} KindKeys;

typedef struct {
    const char *name;                      /* "gpt2" */
    const char *prefix, *blocks;           /* of names in files: "transformer.", and "h" for "transformer.h.3." */
    ParamTable  embedding, block, final;
    const ActRow *act;
    int         acts;
    size_t      act_bytes;                 /* of the struct of Tensors */
    size_t      entry, mid;                /* offsets in it: the stream entering the block; the one leaving it but for the last branch */
    /* acts, weights and grads are the kind's structs. */
    void (*forward)(BlockRun *r, void *acts, const void *weights);
    void (*recompute)(BlockRun *r, void *acts, const void *weights); /* of rows that are not kept */
    void (*backward)(BlockRun *r, void *acts, const void *weights, const void *grads);
    /* The last norm, of the stream that leaves the last block, which it joins as a block does. dy [own,C];
     * r->dresidual is set. */
    void (*final_forward)(const BlockRun *r, FinalActs x, FinalParams w);
    void (*final_backward)(const BlockRun *r, FinalActs x, Tensor dy, FinalParams w, FinalParams grads);
    int  has_own_head;                     /* FinalParams.head; else the embedding is the head */
    int  has_experts;                      /* its blocks count assignments  */
    size_t experts_bias;                   /* of those, in the weights' struct: the bias to the choice (model/balance.h) */
    int  has_rope;                         /* its blocks read frequencies; the keys of rope_theta and its scaling are read */
    int  keys;                             /* KindKeys */
    double norm_eps;                       /* where the config gives none; 0: the option's default */
    int  joins_matrices;                   /* reads q, k and v as one matrix, and gate and up: neighbours without a gap */
    int  has_delta;                        /* its product behind attention finds BlockRun.delta */
    int  has_biases;                       /* its backward adds to entry_sums, and takes exit_sums where they are */
    NeuronSide neurons;                    /* of matrices [in,out] columns, of [out,in] rows */
    const HfFiles *files;                  /* config.json */
} BlockKind;

extern const BlockKind BLOCK_GPT2, BLOCK_GPT2_HEAD, BLOCK_LLAMA, BLOCK_LLAMA_TIED, BLOCK_QWEN3, BLOCK_QWEN3_TIED;
extern const BlockKind BLOCK_QWEN3_MOE[2][2]; /* the choice of experts has a bias; the head is tied */

/* The kind of a model of this shape. */
const BlockKind *block_kind(ModelShape shape);

/* The structs of `blocks` blocks, act_bytes each, with their memory out of the arena; free() it. like: other blocks'
 * whose rows that are not kept have the memory of these, too; NULL: the first here has it. */
void *block_acts_create(const BlockKind *kind, ModelShape shape, int64_t blocks, DType act, Extent e,
                        Recompute recompute, GptUse use, void *like, Arena *arena);
/* Whether each block has its own memory for keys and values, in which they outlive a forward. */
int block_keeps_past(GptUse use, Recompute recompute);
/* Block l's of them, of a micro-batch, which may be smaller than the memory, into out [act_bytes]. */
void block_acts_view(const BlockKind *kind, ModelShape shape, const void *acts, int64_t l, Extent e, void *out);

#endif
