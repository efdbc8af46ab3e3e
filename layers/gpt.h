/* gpt.h - GPT-2 assembled from the ops of layers.h: parameter table, forward, backward. Names no backend and no ranks.
 *
 * Pre-layernorm blocks, learned positions, tanh GELU, output layer tied to the embedding (Radford et al., "Language models are
 * unsupervised multitask learners", 2019). A training micro-step is gpt_forward then gpt_backward: the classifier runs in backward,
 * chunk by chunk over rows, so that B*T*V logits never exist whole.
 */
#ifndef TRAIN_GPT_LAYERS_GPT_H
#define TRAIN_GPT_LAYERS_GPT_H

#include "core/arena.h"
#include "core/batch.h"
#include "core/layout.h"
#include "layers/layers.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int64_t n_layer, n_head, n_embd, n_positions, vocab_size;
} GptShape;

typedef enum { RECOMPUTE_NONE, RECOMPUTE_LIGHT, RECOMPUTE_BLOCK } Recompute;

/* The parameter table: GPT2LMHeadModel's names and shapes, in global order. Rows are malloc'ed, *params of them; free() them. */
Param *gpt_params(GptShape shape, int *params);

/* Model FLOPs of one trained token at sequence length T: 6 P + 6 L C T (causal), P = all parameters, wte once. */
double gpt_flops_per_token(GptShape shape, int64_t P, int64_t T);

/* Told before a forward's first use of a bucket's weights, in the order of use 0, 1, ...: where they are still being gathered it waits. */
typedef struct {
    void (*bucket_needed)(void *ctx, int bucket); /* NULL: all are there */
    void *ctx;
} GptNeeds;

typedef struct {                    /* what a block keeps for backward; N = B*T */
    Tensor residual;                /* [N,C]  act  the stream entering the block             */
    Tensor ln_1, ln_1_mean, ln_1_rstd;  /* [N,C] act, [N] f32, [N] f32                       */
    Tensor qkv;                     /* [N,3C] act                                            */
    Tensor attention, lse;          /* [N,C]  act, [B*H,T] f32                               */
    Tensor residual_mid;            /* [N,C]  act  after attention                           */
    Tensor ln_2, ln_2_mean, ln_2_rstd;
    Tensor fc, gelu;                /* [N,4C] act  before and after GELU                     */
} BlockActivations;

typedef struct {
    Tensor ln_1_w, ln_1_b, c_attn_w, c_attn_b, attn_proj_w, attn_proj_b; /* [C] [C] [C,3C] [3C] [C,C] [C]   */
    Tensor ln_2_w, ln_2_b, c_fc_w, c_fc_b, mlp_proj_w, mlp_proj_b;       /* [C] [C] [C,4C] [4C] [4C,C] [C] */
} BlockParams;

typedef struct {
    GptShape  shape;
    Recompute recompute;
    DType     act;
    int64_t   B, T;                 /* largest micro-batch                                   */
    int64_t   head_rows;            /* rows of a classifier chunk                            */
    const Layout *layout;           /* borrowed                                              */

    Tensor params, grads;           /* [memory_elems] act working copy; [memory_elems] f32; grads.data NULL for inference */
    BlockParams *block_params, *block_grads;  /* [n_layer] views into them; owned            */
    Tensor wte, wpe, ln_f_w, ln_f_b;          /* [V',C] [P,C] [C] [C]                        */
    Tensor dwte, dwpe, dln_f_w, dln_f_b;

    BlockActivations *block;        /* [n_layer]; owned; with recompute several share memory */
    Tensor update;                  /* [N,C] act  a branch's output before it joins the stream */
    Tensor residual_final, ln_f, ln_f_mean, ln_f_rstd;
    Tensor logits;                  /* [head_rows,V'] act */
    Tensor losses;                  /* [N] f32 */
    Tensor dresidual, dbranch;      /* [N,C]  act gradients that travel backward             */
    Tensor dqkv, dfc;               /* [N,3C] [N,4C] act                                     */
    GptNeeds needs;                 /* the owner's to set and clear */
    Tensor sums;                    /* [GPT_SUMS * EXACT_WORDS + GPT_HASHES] i64: what the host wants of a step, fetched in one copy */
} Gpt;

/* Places in Gpt.sums: the rows' losses; the squares of the gradient, which the optimizer adds; those that gpt_own_squares adds. Behind them,
 * fetched with them, hashes (hash_words): of what all ranks hold alike, of a rank's own gradients, of the sums it answers for. */
enum { GPT_LOSS, GPT_GRAD_SQUARES, GPT_OWN_SQUARES, GPT_SUMS };
enum { GPT_HASH_REPLICAS, GPT_HASH_OWN_GRADS, GPT_HASH_GRADS, GPT_HASHES };

typedef enum { GPT_INFERENCE, GPT_TRAINING } GptUse;

/* Arenas that gpt_create carves from; plan passes dry ones. */
typedef struct { Arena *params, *grads, *activations; } GptArenas;

/* Carves the model out of the arenas. layout must outlive it. */
Gpt    gpt_create(GptShape shape, const Layout *layout, DType act, int64_t B, int64_t T, Recompute recompute, GptUse use, GptArenas arenas);
void   gpt_destroy(Gpt *g);
size_t gpt_scratch_bytes(const Gpt *g);   /* what the ops of one micro-step need at most */

/* Initial value of parameter row p, elements [first, first+elems) of it, as fp32: a function of (seed, global offset) only. */
void gpt_init_values(float *out, const Param *p, int64_t first, int64_t elems, uint64_t seed);

void gpt_zero_grads(Gpt *g, Stream *s);
void   gpt_zero_sums(Gpt *g, Stream *s);
Tensor gpt_sum(const Gpt *g, int which);                 /* an Exact: [EXACT_WORDS] i64 */
Tensor gpt_hash(const Gpt *g, int which);                /* [1] i64 */
/* Waits for the stream: a step's one wait. hashes may be NULL. */
void   gpt_fetch_sums(Gpt *g, Stream *s, Exact sums[GPT_SUMS], int64_t hashes[GPT_HASHES]);
void gpt_forward(Gpt *g, Stream *s, Batch batch);                  /* up to the last layernorm; batch [B',T'], B' <= B, T' <= T     */
void gpt_loss(Gpt *g, Stream *s, Batch batch);                     /* after gpt_forward: adds the rows' losses to the sum          */

/* Told when a bucket's gradients are complete, last bucket first, {wte, wpe} at the very end; and between layers, to let
 * communication progress. Either may be NULL. */
typedef struct {
    void (*bucket_ready)(void *ctx, int bucket);
    void (*poll)(void *ctx);
    void *ctx;
} GptHooks;

/* After gpt_forward: losses as gpt_loss, gradients of grad_scale * (sum of losses) added to grads. */
void gpt_backward(Gpt *g, Stream *s, Batch batch, float grad_scale, GptHooks hooks);

/* When bucket 0 is ready, before it is reduced: adds the squares of wpe's gradient. What is not finite in a layer's activation gradients reaches
 * it in the end, so this small part of the gradient tells whether this rank's own backward went wrong. */
void gpt_own_squares(Gpt *g, Stream *s);

/* After gpt_forward: logits of one row of the batch to host memory, out [vocab_size]. */
void gpt_logits(Gpt *g, Stream *s, int64_t row, float *out);

#ifdef __cplusplus
}
#endif
#endif
