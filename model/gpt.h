/* gpt.h - the model over its blocks: forward, loss, backward. Names no backend; model/shards.h brings the weights and
 * takes the gradients.
 *
 * A training micro-step is gpt_forward then gpt_backward: the classifier runs in backward, chunk by chunk over rows, so
 * that B*T*V logits never exist whole. On a GPU each block's forward and backward are recorded once and then launched
 * as one graph: at small batches the host cannot queue their kernels as fast as the GPU runs them. Collectives stay
 * outside of the graphs.
 */
#ifndef TRAIN_GPT_MODEL_GPT_H
#define TRAIN_GPT_MODEL_GPT_H

#include "core/batch.h"
#include "layers/layers.h"
#include "model/block.h"
#include "model/expert_ranks.h"
#include "model/shards.h"

/* Operations of a block, recorded when they run the second time: the first time products choose their algorithms and
 * kernels are loaded. has_joined: BlockRun's, as recorded. */
typedef struct { Graph graph; int runs, has_joined; } BlockGraph;
/* A block has one of each: in backward, products set gradients of matrices in one micro-batch and add to them in another. */
typedef enum { GRAPH_FORWARD, GRAPH_SETS, GRAPH_ADDS, GRAPHS } GraphKind;

/* A run of the model's blocks. A model without a pipeline has one part, of all blocks. */
typedef struct {
    int64_t    first, end;           /* blocks [first, end)                                   */
    int        embeds, classifies;   /* begins with the embedding; ends with the head         */
    int        tapes;                /* micro-batches whose activations it keeps              */
    void     **acts;                 /* owned [tapes]: [end - first] of the kind's structs    */
    BlockGraph *graph;               /* owned [GRAPHS][tapes][end - first]                    */
    int64_t    *expert_rows;         /* owned [tapes][end - first][ranks][E]: BlockRun's; NULL: no ranks divide the experts */
} GptPart;

/* How a stage of a pipeline divides its blocks, in order: model/work.h. */
typedef struct { int64_t first, end; int tapes; } GptPartSpec;

typedef struct {
    ModelShape shape;
    const BlockKind *kind;
    Recompute  recompute;
    GptUse     use;
    DType      act;
    int64_t    B, T;                 /* largest micro-batch, T tokens of a sequence on this rank */
    int64_t    head_rows;            /* rows of a classifier chunk                            */
    Comm      *tensor, *context;     /* borrowed: the shards', and ranks with other tokens of the same sequences; NULL: one rank */
    ExpertRanks *experts;            /* owned: ranks that divide the experts; NULL: each has all */
    Shards    *shards;               /* borrowed: weights and gradients                       */
    StepSums   sums;                 /* SUM_LOSS is added to                                  */
    Fp8Scales  fp8;                  /* none where products are of act                        */
    int64_t    past;                 /* tokens before the batch: 0 but in pipeline_token_logits()                    */

    GptPart   *part;                 /* owned [parts]                                         */
    int        parts;
    void      *one_block;            /* owned: one block's, for the current micro-batch       */
    /* pipeline: [n,C] act, the stream and its gradient as they come from a neighbour and go to one */
    Tensor     forward_in, forward_out, backward_in, backward_out;
    /* n = N/t rows of the stream, of t tensor ranks */
    Tensor     update;               /* [N,C] act  a branch's output before it joins the stream */
    Tensor     residual_final, ln_f, ln_f_mean, ln_f_rstd; /* [n,C] act, act; [n] f32, f32    */
    Tensor     logits;               /* [head_rows,V'/t] act */
    Tensor     losses;               /* [N] f32 */
    Tensor     delta;                /* [H/t,N] f32  of one block; none: no kind for it, or the host */
    Tensor     dresidual_sums;       /* [C] f32  column sums of dresidual between two blocks; none: no kind for it, or tensor ranks */
    Tensor     dresidual, dbranch;   /* [n,C] [N,C] act  gradients that travel backward       */
    Tensor     keys, dkeys;          /* context ranks: [ranks*N,2KV/t] act, those of all of them        */
    Tensor     starts;               /* [B,T] i32: of the current micro-batch's documents, where graphs find them; none: sequences are not divided */
    Tensor     frequencies;          /* [head_dim/2] f32, of kinds with rotary positions          */
    int        has_frequencies;      /* they are there                                            */
    Tensor     balance;              /* [1] f32, where experts are balanced by a loss: its factor           */
    float      balance_there;        /* the value that is there                                   */
    Tensor     tokens;               /* tensor ranks: [N] i32, tokens or targets by this rank's part of the vocabulary */
    Tensor     most, part_sums;      /* [head_rows], [2 head_rows] f32 of the classifier: over tensor ranks, and of token losses */
} Gpt;

/* Rows of logits at once, of N: within the bytes of a chunk, and never the whole micro-batch unless it is tiny. */
int64_t gpt_head_rows(int64_t N, int64_t padded_vocab, DType act, int on_gpu);

/* The chunk of logits, and what is kept beside it: as this build has them; in a plan, as the CPU's or a GPU's on every build. */
typedef enum { SIZES_HERE, SIZES_OF_CPU, SIZES_OF_GPU } GptSizes;

/* Carves the activations out of the arena; data are NULL in a dry run. B sequences at most, with T tokens of each on this
 * rank. context: NULL where that is all of them. parts: of this rank; NULL: one, of all blocks. document_mask: batches may
 * have starts. experts: NULL where each rank has all; capacity: ExpertRanks'. */
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
Gpt    gpt_create(Shards *shards, GptSpec spec, Arena *activations);
void   gpt_destroy(Gpt *g);

/* A part's forward and backward of a micro-batch, whose activations a tape keeps between them. A part that does not embed
 * takes the stream from forward_in (gpt_take, which frees it again), one that does not classify leaves it in
 * forward_out; gradients likewise from backward_in and in backward_out. */
void gpt_take_forward(Gpt *g, Stream *s, int part, int tape, Batch batch);
void gpt_part_forward(Gpt *g, Stream *s, int part, int tape, Batch batch);
void gpt_take_backward(Gpt *g, Stream *s, Batch batch);
void gpt_part_backward(Gpt *g, Stream *s, int part, int tape, Batch batch, float grad_scale, MicroBatch which);

/* Of the whole model on one rank: */
void gpt_forward(Gpt *g, Stream *s, Batch batch);                  /* up to the last norm; batch [B',T'], B' <= B, T' <= T     */
void gpt_loss(Gpt *g, Stream *s, Batch batch);                     /* after gpt_forward: adds the rows' losses to SUM_LOSS          */
/* After gpt_forward: of each row its loss, the largest logit and the target's: out [3][rows] in host memory. */
void gpt_token_losses(Gpt *g, Stream *s, Batch batch, float *out);
/* After gpt_forward: losses as gpt_loss; gradients of grad_scale * (sum of losses) are added to those of the shards.
 * Buckets are done from the last to the first. */
void gpt_backward(Gpt *g, Stream *s, Batch batch, float grad_scale, MicroBatch which);

/* While is_offline nothing travels between ranks: for one that computes without the others, to time it. */
void gpt_set_offline(Gpt *g, int is_offline);

/* Sampling computes sequences of a multiple of so many tokens, or of all T: few shapes, which a dry run goes
 * through. */
enum { SAMPLE_STEP = 32 };
int64_t gpt_sample_step(const Gpt *g); /* or of so many, where tensor or context ranks share the rows */
/* Scored texts (gpt_token_losses) are computed, B at once, at the shortest of these lengths that holds them: a step of
 * samples, twice that, and so on up to all T. Of whole sequences, as `tokens` is. */
int64_t gpt_scored_length(const Gpt *g, int64_t tokens);
/* Whether a forward leaves each block's keys and values where the next finds them: a token then costs the rows of one.
 * Not of context ranks, nor where blocks are computed again (memory.recompute=block). */
int     gpt_keeps_past(const Gpt *g);
int64_t gpt_token_rows(const Gpt *g);  /* rows that such a token costs: tensor ranks share them, so each has one */
/* After gpt_forward of this batch: logits, after a soft cap, of a row of its sequences, all ranks' tokens, to host
 * memory, out [vocab_size]. */
void gpt_logits(Gpt *g, Stream *s, Batch batch, int64_t row, float *out);

#endif
