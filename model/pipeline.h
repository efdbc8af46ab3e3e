/* pipeline.h - runs the micro-batches of a step or of an evaluation through the stages of a pipeline. Each stage runs
 * its work list over its parts of the model (model/gpt.h). Without a pipeline, the one stage has the whole model. The
 * work list is the order in which a stage computes forward and backward of its parts for the micro-batches. The program
 * runs it, and a plan simulates it.
 *
 * In forward the residual stream is sent from stage to stage, in backward its gradient. There is one message for each
 * part and micro-batch. While a stage computes one item of work, it receives the message of the next item and sends
 * that of the previous item. */
#ifndef TRAIN_GPT_MODEL_PIPELINE_H
#define TRAIN_GPT_MODEL_PIPELINE_H

#include "model/gpt.h"

/* --- the order of work: pure functions ---------------------------------------------------------------------------- */

/* There are P stages with V parts of the model each. Virtual stage v P + p is part v of stage p. The model's blocks are
 * cut into P V ranges, one for each virtual stage. With V = 1 the order is 1F1B (Narayanan et al., "PipeDream",
 * arXiv:1806.03377), with V > 1 its interleaved form (Narayanan et al., arXiv:2104.04473). A stage begins with some
 * forwards. Then each forward is followed by a backward, so that few micro-batches are in flight. A stage is idle for
 * (P - 1)/(M V) of the time that M micro-batches take. */

typedef enum { WORK_FORWARD, WORK_BACKWARD } WorkKind;
typedef struct {
    WorkKind kind;
    int      part;  /* index of the part of the model among the parts of this stage */
    /* index of the buffer in which the part keeps this micro-batch's activations, from its forward to its backward */
    int      tape;
    int64_t  micro;
} Work;

typedef struct {
    Work   *work;    /* owned: forwards and backwards of this stage, in order */
    int64_t count;
    int    *tapes;   /* owned [parts]: for each part, the largest number of micro-batches in flight at a time */
    /* largest number of micro-batches in flight on the stage at a time, from first forward to last backward */
    int64_t micros;
} WorkList;

/* Returns the work list of a stage for a step of `micro_batches` micro-batches. With several parts, micro_batches must
 * be a multiple of stages. */
WorkList work_list(int stages, int parts, int64_t micro_batches, int stage);
void     work_list_free(WorkList *w);

/* Returns the share of a step in which a stage is idle if all forwards and backwards take equally long. It is (P -
 * 1)/(M V + P - 1) for P stages, V parts and M micro-batches. */
double   work_idle(int stages, int parts, int64_t micro_batches);

/* work_blocks divides the blocks of the model among `parts` virtual stages, and returns those of virtual stage `part`.
 * Each has at least one block. head_blocks is the cost of the head, in blocks. The last virtual stage has that many
 * blocks fewer. */
typedef struct { int64_t first, end; } BlockRange;
BlockRange work_blocks(int64_t blocks, int parts, double head_blocks, int part);

/* --- a pipeline --------------------------------------------------------------------------------------------------- */

typedef struct {
    /* number of stages, index of this rank's stage, number of parts of the model on each stage (parallel.interleave) */
    int     stages, stage, parts;
    int64_t micro_batches;        /* micro-batches of a step, equal on all stages                */
    /* borrowed: all ranks with the same place in each stage, and pairs of neighbours for messages; from Groups
     * (model/groups.h) */
    Comm   *all, *forward_in, *forward_out, *backward_in, *backward_out;
} PipelineSpec;

typedef struct {
    PipelineSpec spec;
    Gpt      *gpt;                /* borrowed: the parts of the model on this stage */
    WorkList  list;               /* owned: the work list of a step */
} Pipeline;

/* pipeline_parts returns the parts of the model on this stage, malloc'ed [parts]. pipeline_holds returns how the stage
 * holds each bucket of parameters, malloc'ed [n_layer + 2]. */
GptPartSpec *pipeline_parts(ModelShape shape, PipelineSpec spec);
BucketHold  *pipeline_holds(ModelShape shape, PipelineSpec spec);
/* Returns for each stage the first stage that computes the same: as many blocks in each part, and the embedding or the
 * head if that stage has it. The result is malloc'ed [stages]. */
int *pipeline_alike(ModelShape shape, PipelineSpec spec);
/* Returns the number of micro-batches whose tokens must be kept at a time. Micro-batch n of a step is kept in place n
 * modulo this number. */
int64_t pipeline_batches(PipelineSpec spec);

Pipeline pipeline_create(PipelineSpec spec, Gpt *gpt);
void     pipeline_destroy(Pipeline *p);
/* Records the CUDA graphs of all blocks and loads their kernels, by forwards and backwards of this rank without
 * communication. A GPU may make a graph or load a kernel only after everything that is queued has ended. In a step the
 * queue can hold a message that another rank has not sent yet. So both happen before the first step. The gradients hold
 * nothing useful afterwards. */
void     pipeline_warm_up(Pipeline *p, Stream *s, Batch batch);

/* Changes the number of micro-batches of a step, from the next step on. Allowed only with one stage, because with
 * several the number of tapes (buffers for activations) would change. */
void     pipeline_set_micro_batches(Pipeline *p, int64_t micro_batches);

/* Runs forward and backward of a step. next(ctx) is called once for each micro-batch, in order, when its forward
 * begins. The caller keeps each batch until pipeline_batches later ones have begun. grad_scale is the factor of the
 * loss (gpt_backward). */
void pipeline_step(Pipeline *p, Stream *s, float grad_scale, Batch (*next)(void *ctx), void *ctx);
/* Runs the forward of one batch through all parts of the model. The last stage then has the result. All stages call it
 * together. */
void pipeline_forward(Pipeline *p, Stream *s, Batch batch);
/* adds the losses of the batch's rows to SUM_LOSS, if this is the last stage; call it after pipeline_forward */
void pipeline_loss(Pipeline *p, Stream *s, Batch batch);
/* Writes the loss, the largest logit and the logit of the target of each row to out [3][rows] and returns 1, on the
 * last stage. Other stages return 0 and leave out unchanged. */
int  pipeline_token_losses(Pipeline *p, Stream *s, Batch batch, float *out);
/* writes the logits of one row of the batch (gpt_logits) to out [vocab_size] in host memory, on every stage */
void pipeline_logits(Pipeline *p, Stream *s, Batch batch, int64_t row, float *out);
/* Runs the forward of a batch of gpt_token_rows tokens of one sequence, after `past` earlier tokens, which earlier
 * calls have computed. Writes the logits of the last token to out. The model must keep keys and values
 * (gpt_keeps_past). */
void pipeline_token_logits(Pipeline *p, Stream *s, Batch batch, int64_t past, float *out);

#endif
