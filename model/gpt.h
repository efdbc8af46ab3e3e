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

/* Operations of a block. They are recorded the second time they run, because the first time products choose their
 * algorithms and kernels are loaded. has_joined: value of BlockRun.has_joined after the recorded operations. */
typedef struct { Graph graph; int runs, has_joined; } BlockGraph;
/* A block has one graph of each kind. Backward has two, because its products set the gradients of matrices in one
 * micro-batch and add to them in another. */
typedef enum { GRAPH_FORWARD, GRAPH_SETS, GRAPH_ADDS, GRAPHS } GraphKind;

/* Memory that one micro-batch in flight needs of a block: its activations and its CUDA graphs. */
typedef struct {
    void      *acts;                 /* owned: the struct of activations of the block's kind */
    BlockGraph graph[GRAPHS];        /* owned */
    int64_t   *expert_rows;          /* owned [ranks][E]: BlockRun.expert_rows; NULL: no ranks divide the experts */
} BlockTape;

/* A range of the model's blocks. A model without a pipeline has one part with all blocks. */
typedef struct {
    int64_t    first, end;           /* the part has blocks [first, end) of the model         */
    int        embeds, classifies;   /* 1 if the part begins with the embedding; 1 if it ends with the head */
    int        tapes;                /* micro-batches whose activations the part keeps        */
    BlockTape *block;                /* owned [tapes][end - first]                            */
} GptPart;

/* One part of a pipeline stage: blocks [first, end), and the micro-batches whose activations it keeps
 * (model/pipeline.h). */
typedef struct { int64_t first, end; int tapes; } GptPartSpec;

typedef struct {
    ModelShape shape;
    const BlockKind *kind;           /* kind of the model's embedding, final norm and head    */
    const BlockKind **kinds;         /* owned [n_layer]: the kind of each block               */
    Recompute  recompute;
    GptUse     use;
    DType      act;
    int64_t    B, T;                 /* largest micro-batch: B sequences, T tokens of each on this rank */
    int64_t    head_rows;            /* rows of logits that the classifier computes at once   */
    /* borrowed: ranks that divide each matrix, as in the shards; ranks with other tokens of the same sequences; NULL:
     * one rank */
    Comm      *tensor, *context;
    ExpertRanks *experts;            /* owned: ranks that divide the experts; NULL: each rank has all */
    Shards    *shards;               /* borrowed: weights and gradients                       */
    StepSums   sums;                 /* numbers of the step; forward and backward add losses to SUM_LOSS */
    Fp8Scales  fp8;                  /* scales of products in fp8; none if products are of the activation type */
    int64_t    past;                 /* tokens of the sequence before the batch; 0 outside of pipeline_token_logits() */

    GptPart   *part;                 /* owned [parts]: the parts of this rank                 */
    int        parts;
    void      *one_block;            /* owned: the activations struct of the block that runs (block_view fills it):
                                      * the block's tensors in the shapes of the current micro-batch, which may be
                                      * smaller than the largest */
    /* pipeline: [n,C] of the activation type: the residual stream and its gradient, received from (in) and sent to
     * (out) a neighbouring stage */
    Tensor     forward_in, forward_out, backward_in, backward_out;
    /* n = N/t rows of the residual stream on each of t tensor ranks */
    /* [N,C] of the activation type: a branch's output before it joins the residual stream */
    Tensor     update;
    /* [n,C] of the activation type: the residual stream before the final norm, and the norm's output; [n] f32: the
     * norm's statistics */
    Tensor     residual_final, ln_f, ln_f_mean, ln_f_rstd;
    /* [head_rows,V'/t] of the activation type: logits of a chunk of rows, for this rank's columns of the padded
     * vocabulary V' */
    Tensor     logits;
    Tensor     losses;               /* [N] f32 */
    /* [H/t,N] f32: attention_delta's result for one block (BlockRun.delta); none if this kind of block has none, or on
     * the CPU */
    Tensor     delta;
    /* [C] f32: column sums of dresidual between two blocks; none if this kind of block has none, or with tensor
     * ranks */
    Tensor     dresidual_sums;
    /* [n,C] [N,C] of the activation type: gradients of the residual stream, and of a branch */
    Tensor     dresidual, dbranch;
    /* [ranks*N,2KV/t] of the activation type: keys and values of all context ranks, and their gradients */
    Tensor     keys, dkeys;
    /* [B,T] i32: starts of the current micro-batch's documents, at the address that graphs read; none: no document
     * mask */
    Tensor     starts;
    Tensor     frequencies;          /* [head_dim/2] f32: rotary frequencies, in kinds of block with rotary positions */
    int        has_frequencies;      /* 1 when `frequencies` has been computed                    */
    Tensor     balance;              /* [1] f32: factor of the loss that balances experts; none without one */
    float      balance_there;        /* the value that `balance` holds on the device              */
    /* with tensor ranks: [N] i32, tokens or targets counted from this rank's first row of the vocabulary */
    Tensor     tokens;
    /* [head_rows] f32 maximum of each row of logits; [2 head_rows] f32 the sums of exponentials and the targets' logits
     * (classifier_part_sums). Used with tensor ranks and in gpt_token_losses */
    Tensor     most, part_sums;
} Gpt;

/* The device for which memory is computed: the chunk of logits, and what is kept with it. SIZES_HERE: this build's own.
 * A plan computes for the CPU or a GPU on every build. */
typedef enum { SIZES_HERE, SIZES_OF_CPU, SIZES_OF_GPU } GptSizes;

/* Arguments of gpt_create. B: the most sequences of a batch. T: tokens of each on this rank. context: NULL if this rank
 * has all tokens. part: [parts] parts of this rank; NULL: one part with all blocks. document_mask: batches may have
 * starts of documents. experts: NULL if each rank has all experts. capacity: rows that the experts of a rank compute at
 * once, in even shares (expert_ranks_create). */
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
/* Makes the model's activations out of the arena. Their data are NULL in a dry run. */
Gpt    gpt_create(Shards *shards, GptSpec spec, Arena *activations);
void   gpt_destroy(Gpt *g);

/* Run forward and backward of a part for a micro-batch. The tape keeps the activations between the two. A part without
 * the embedding reads the stream from forward_in: gpt_take_forward copies it, so that forward_in is free again. A part
 * without the head leaves the stream in forward_out. Gradients use backward_in and backward_out in the same way. */
void gpt_take_forward(Gpt *g, Stream *s, int part, int tape, Batch batch);
void gpt_part_forward(Gpt *g, Stream *s, int part, int tape, Batch batch);
void gpt_take_backward(Gpt *g, Stream *s, Batch batch);
void gpt_part_backward(Gpt *g, Stream *s, int part, int tape, Batch batch, float grad_scale, MicroBatch which);

/* The functions from here on work on a rank that has the whole model. */
/* computes a batch up to the final norm; it has at most B sequences of at most T tokens */
void gpt_forward(Gpt *g, Stream *s, Batch batch);
/* after gpt_forward: computes the rows' losses and adds them to SUM_LOSS */
void gpt_loss(Gpt *g, Stream *s, Batch batch);
/* After gpt_forward: writes each row's loss, largest logit and logit of the target to out [3][rows] in host memory. */
void gpt_token_losses(Gpt *g, Stream *s, Batch batch, float *out);
/* After gpt_forward: adds losses as gpt_loss does, and adds the gradients of grad_scale * (sum of losses) to those of
 * the shards. Buckets are completed from the last to the first. */
void gpt_backward(Gpt *g, Stream *s, Batch batch, float grad_scale, MicroBatch which);

/* While is_offline this rank does not communicate. For timing a rank that computes without the others. */
void gpt_set_offline(Gpt *g, int is_offline);

/* Sampling computes sequences whose length is a multiple of SAMPLE_STEP tokens, or T. So there are few shapes, and a
 * dry run can try them all. */
enum { SAMPLE_STEP = 32 };
int64_t gpt_sample_step(const Gpt *g); /* returns SAMPLE_STEP, or more if tensor or context ranks share the rows */
/* Returns the length at which texts of `tokens` tokens are scored (gpt_token_losses), B at once. It is the first of
 * gpt_sample_step, twice that, four times that and so on that is at least `tokens`, but at most T. All these numbers
 * count whole sequences, over all context ranks. */
int64_t gpt_scored_length(const Gpt *g, int64_t tokens);
/* Returns whether a forward leaves each block's keys and values for the next forward. A new token then costs
 * gpt_token_rows rows. Not with context ranks, nor if blocks are computed again (memory.recompute=block). */
int     gpt_keeps_past(const Gpt *g);
/* returns the rows that a forward computes for one new token if gpt_keeps_past: one for each tensor rank */
int64_t gpt_token_rows(const Gpt *g);
/* After gpt_forward of this batch: writes the logits of one row, after the soft cap, to out [vocab_size] in host
 * memory. row counts the tokens of the batch's whole sequences, over all context ranks. */
void gpt_logits(Gpt *g, Stream *s, Batch batch, int64_t row, float *out);

#endif
