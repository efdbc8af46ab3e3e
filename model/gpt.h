/* gpt.h - the model over its blocks: forward, loss, backward. It names no backend. model/shards.h provides the weights
 * and collects the gradients.
 *
 * A training micro-step is gpt_forward, then gpt_backward. The classifier runs in backward, on one chunk of rows at a
 * time, because all B*T*V logits would not fit in memory. On a GPU each block's forward and backward are recorded once
 * and then launched as one graph: at small batches the host cannot queue their kernels as fast as the GPU runs them.
 * Collectives are not part of the graphs.
 */
#ifndef TRAIN_GPT_MODEL_GPT_H
#define TRAIN_GPT_MODEL_GPT_H

#include "core/batch.h"
#include "layers/layers.h"
#include "model/block.h"
#include "model/experts.h"
#include "model/shards.h"

/* Operations of a block, recorded as a CUDA graph. They are recorded the second time they run, because in their first
 * run products choose their algorithms and kernels are loaded. runs: number of runs so far. has_joined: value of
 * BlockRun.has_joined after the recorded operations. */
typedef struct { Graph graph; int runs, has_joined; } BlockGraph;
/* The graphs of a block. Backward has two, because its products set the gradients of matrices in one micro-batch
 * (GRAPH_SETS) and add to them in another (GRAPH_ADDS). */
typedef enum { GRAPH_FORWARD, GRAPH_SETS, GRAPH_ADDS, GRAPHS } GraphKind;

/* Memory that a block needs for each micro-batch in flight: activations and CUDA graphs. */
typedef struct {
    void      *acts;                 /* owned: the struct of activations that the block's kind defines */
    BlockGraph graph[GRAPHS];        /* owned: the CUDA graphs of the block's operations */
    /* owned [ranks][E]: rows that each rank sends to each expert (BlockRun.expert_rows); NULL: no ranks divide the
     * experts */
    int64_t   *expert_rows;
} BlockTape;

/* A range of the model's blocks on this rank. A model without a pipeline has one part with all blocks. */
typedef struct {
    int64_t    first, end;           /* the part has blocks first to end - 1 of the model */
    int        embeds, classifies;   /* 1 if the part begins with the embedding; 1 if it ends with the head */
    int        tapes;                /* number of micro-batches whose activations the part keeps */
    /* owned [tapes][end - first]: memory of each block for each micro-batch whose activations are kept */
    BlockTape *block;
} GptPart;

/* One part of a pipeline stage: blocks first to end - 1. tapes: number of micro-batches whose activations it keeps
 * (model/pipeline.h). */
typedef struct { int64_t first, end; int tapes; } GptPartSpec;

typedef struct {
    ModelShape shape;
    const BlockKind *kind;           /* kind of block whose embedding, final norm and head the model has */
    const BlockKind **kinds;         /* owned [n_layer]: the kind of each block               */
    Recompute  recompute;
    GptUse     use;
    DType      act;
    int64_t    B, T;                 /* largest micro-batch: B sequences, T tokens of each on this rank */
    int64_t    head_rows;            /* rows of logits that the classifier computes at once   */
    /* borrowed; tensor: ranks that divide each matrix; context: ranks with other tokens of the same sequences; NULL:
     * one rank */
    Comm      *tensor, *context;
    ExpertRanks *experts;            /* owned: ranks that divide the experts; NULL: each rank has all experts */
    Shards    *shards;               /* borrowed: weights and gradients                       */
    StepSums   sums;                 /* sums and counts of the step; forward and backward add losses to SUM_LOSS */
    Fp8Scales  fp8;                  /* scales of products in fp8; none if products are of the activation type */
    /* number of tokens of the sequence before the batch; 0 outside of pipeline_token_logits() */
    int64_t    past;

    GptPart   *part;                 /* owned [parts]: the parts of this rank                 */
    int        parts;
    /* owned: the tensors of the block that runs, filled by block_view. They have the shapes of the current micro-batch,
     * which may be smaller than the largest one. */
    void      *one_block;
    /* [n,C] of the activation type, for the n rows of this tensor rank, with a pipeline: the residual stream (forward_)
     * and its gradient (backward_), received from (in) or sent to (out) a neighbouring stage */
    Tensor     forward_in, forward_out, backward_in, backward_out;
    /* Shapes from here on: the residual stream has N rows, and each of t tensor ranks has n = N/t of them. */
    /* [N,C] of the activation type: a branch's output before it joins the residual stream */
    Tensor     update;
    /* [n,C] of the activation type, for the n rows of this tensor rank: the residual stream before the final norm, and
     * the norm's output; [n] f32: the norm's statistics */
    Tensor     residual_final, ln_f, ln_f_mean, ln_f_rstd;
    /* [head_rows,V'/t] of the activation type: logits of a chunk of rows, for this rank's columns of the padded
     * vocabulary V' */
    Tensor     logits;
    Tensor     losses;               /* [N] f32: loss of each row */
    /* [H/t,N] f32: result of attention_delta for one block (BlockRun.delta); none on the CPU, or if the kind of block
     * has none */
    Tensor     delta;
    /* [C] f32: column sums of dresidual between two blocks; none with tensor ranks, or if the kind of block has none */
    Tensor     dresidual_sums;
    /* dresidual [n,C], for the n rows of this tensor rank: gradient of the residual stream. dbranch [N,C], for all
     * rows: gradient of a branch of a block. Both are of the activation type. */
    Tensor     dresidual, dbranch;
    /* [ranks*N,2KV/t] of the activation type: keys and values of all context ranks, and the gradients of these */
    Tensor     keys, dkeys;
    /* [B,T] i32: for each token of the current micro-batch, the position where its document starts; at the address that
     * CUDA graphs read; none without a document mask */
    Tensor     starts;
    Tensor     frequencies;          /* [head_dim/2] f32: rotary frequencies, in kinds of block with rotary positions */
    int        has_frequencies;      /* 1 when `frequencies` has been computed                    */
    Tensor     balance;              /* [1] f32: factor of the loss that balances experts; none without such a loss */
    float      balance_there;        /* the value that `balance` has on the device */
    /* [N] i32, with tensor ranks: tokens or targets counted from this rank's first row of the vocabulary */
    Tensor     tokens;
    /* [head_rows] f32: maximum of each row of logits. [2 head_rows] f32: sums of exponentials, then logits of the
     * targets (classifier_part_sums). Used with tensor ranks and in gpt_token_losses. */
    Tensor     most, part_sums;
} Gpt;

/* Device whose sizes of memory are used, for the chunk of logits and for Gpt.delta. SIZES_HERE: that of this build. A
 * plan computes for the CPU or a GPU on every build. */
typedef enum { SIZES_HERE, SIZES_OF_CPU, SIZES_OF_GPU } GptSizes;

/* Arguments of gpt_create. B: the most sequences of a batch. T: tokens of each sequence on this rank. context: ranks
 * with other tokens of the same sequences; NULL if this rank has all tokens. part: [parts] parts of the model on this
 * rank; NULL: one part with all blocks. document_mask: 1 if batches may have starts of documents. experts: ranks that
 * divide the experts; NULL if each rank has all experts. capacity: rows that the experts of a rank compute
 * at once, as a multiple of an equal share (expert_ranks_create). fp8: 1 if products of blocks are in fp8. */
typedef struct {
    int64_t B, T;
    Comm   *context;
    const GptPartSpec *part;
    int     parts;
    Recompute recompute;
    int     document_mask;
    Comm   *experts;
    double  capacity;
    int     fp8;
    GptSizes sizes;
} GptSpec;
/* Makes a model: takes the memory of its activations from the arena. If the arena only counts bytes (a dry run), the
 * tensors have no memory (data NULL). */
Gpt    gpt_create(Shards *shards, GptSpec spec, Arena *activations);
void   gpt_destroy(Gpt *g);

/* Run forward and backward of a part of the model for a micro-batch. Tape number `tape` keeps the activations between
 * the two. A part without the embedding reads the residual stream from forward_in: gpt_take_forward copies it, so that
 * forward_in is free again. A part without the head leaves the stream in forward_out. Gradients use backward_in and
 * backward_out in the same way. */
void gpt_take_forward(Gpt *g, Stream *s, int part, int tape, Batch batch);
void gpt_part_forward(Gpt *g, Stream *s, int part, int tape, Batch batch);
void gpt_take_backward(Gpt *g, Stream *s, Batch batch);
void gpt_part_backward(Gpt *g, Stream *s, int part, int tape, Batch batch, float grad_scale, MicroBatch which);

/* gpt_forward and the functions after it work only on a rank that has the whole model. */
/* runs the forward of a batch up to the final norm; the batch has at most B sequences of at most T tokens */
void gpt_forward(Gpt *g, Stream *s, Batch batch);
/* computes the losses of the rows and adds them to SUM_LOSS; call it after gpt_forward */
void gpt_loss(Gpt *g, Stream *s, Batch batch);
/* Writes the loss, the largest logit and the logit of the target of each row to out [3][rows] in host memory. Call it
 * after gpt_forward. */
void gpt_token_losses(Gpt *g, Stream *s, Batch batch, float *out);
/* Runs the backward of a batch, after gpt_forward. Adds the losses to SUM_LOSS. Adds the gradients of grad_scale * (sum
 * of losses) to those of the shards. Buckets of gradients are completed from the last to the first. */
void gpt_backward(Gpt *g, Stream *s, Batch batch, float grad_scale, MicroBatch which);

/* Makes this rank compute without communication, or with it again. Used to time a rank that computes without the
 * others. */
void gpt_set_offline(Gpt *g, int is_offline);

/* Sequences in sampling have lengths that are multiples of SAMPLE_STEP tokens, or T. So there are few shapes, and a dry
 * run, which measures scratch memory, can try them all. */
enum { SAMPLE_STEP = 32 };
/* returns SAMPLE_STEP, or a multiple of it if tensor or context ranks divide the rows */
int64_t gpt_sample_step(const Gpt *g);
/* Returns the padded length of a text of `tokens` tokens when it is scored (gpt_token_losses) in batches of B texts. It
 * is the least of gpt_sample_step, twice that, four times that and so on that is at least `tokens`, but at most T. All
 * these numbers count tokens of whole sequences, over all context ranks. */
int64_t gpt_scored_length(const Gpt *g, int64_t tokens);
/* Returns whether the keys and values of each block are still there for the next forward. A new token then needs a
 * forward of gpt_token_rows rows. Returns 0 with context ranks, or if blocks are computed again
 * (memory.recompute=block). */
int     gpt_keeps_past(const Gpt *g);
/* returns how many rows a forward computes for one new token if gpt_keeps_past: one for each tensor rank */
int64_t gpt_token_rows(const Gpt *g);
/* Writes the logits of one row of the batch, after the soft cap, to out [vocab_size] in host memory. Call it after
 * gpt_forward of this batch. row counts the tokens of whole sequences, over all context ranks. */
void gpt_logits(Gpt *g, Stream *s, Batch batch, int64_t row, float *out);

#endif
