/* pipeline.h - runs the micro-batches of a step or of an evaluation through the stages of a pipeline. Each stage runs
 * its work list (model/work.h) over its parts of the model (model/gpt.h). Without a pipeline, the one stage has the
 * whole model.
 *
 * In forward the residual stream is sent from stage to stage, in backward its gradient. There is one message for each
 * part and micro-batch. While a stage computes one item of work, it receives the message of the next item and sends
 * that of the previous item.
 */
#ifndef TRAIN_GPT_MODEL_PIPELINE_H
#define TRAIN_GPT_MODEL_PIPELINE_H

#include "model/gpt.h"
#include "model/work.h"

typedef struct {
    int     stages, stage, parts; /* stages, this rank's stage, and its parts (parallel.interleave) */
    int64_t micro_batches;        /* micro-batches of a step, equal on all stages                */
    /* borrowed from Groups (model/groups.h); all is Groups.stages */
    Comm   *all, *forward_in, *forward_out, *backward_in, *backward_out;
} PipelineSpec;

typedef struct {
    PipelineSpec spec;
    Gpt      *gpt;                /* borrowed */
    WorkList  list;               /* owned: the work of a step */
} Pipeline;

/* pipeline_parts returns the stage's parts, malloc'ed [parts]. pipeline_holds returns which buckets the stage holds,
 * malloc'ed [n_layer + 2]. */
GptPartSpec *pipeline_parts(ModelShape shape, PipelineSpec spec);
BucketHold  *pipeline_holds(ModelShape shape, PipelineSpec spec);
/* Returns for each stage the first stage that computes the same: as many blocks in each part, and the same of embedding
 * and head. malloc'ed [stages]. */
int *pipeline_alike(ModelShape shape, PipelineSpec spec);
/* Returns the number of micro-batches whose tokens must be kept: batch n of a step is in place n modulo this number. */
int64_t pipeline_batches(PipelineSpec spec);

Pipeline pipeline_create(PipelineSpec spec, Gpt *gpt);
void     pipeline_destroy(Pipeline *p);
/* Makes the graphs of all blocks and loads their kernels, by forwards and backwards of this rank without the others. A
 * GPU may make a graph or load a kernel only after everything that is queued has ended. In a step the queue can hold a
 * message that another rank has not sent yet. So both happen before the first step. The gradients hold nothing useful
 * afterwards. */
void     pipeline_warm_up(Pipeline *p, Stream *s, Batch batch);

/* Changes the number of micro-batches from the next step on. Only without stages: with stages the tapes would
 * change. */
void     pipeline_set_micro_batches(Pipeline *p, int64_t micro_batches);

/* Runs a step. next(ctx) is called once for each micro-batch, in order, when its forward begins. The caller keeps each
 * batch until pipeline_batches later ones have begun. grad_scale as in gpt_backward. */
void pipeline_step(Pipeline *p, Stream *s, float grad_scale, Batch (*next)(void *ctx), void *ctx);
/* Runs the forward of one batch through all parts. The last stage has the result. All stages call it together. */
void pipeline_forward(Pipeline *p, Stream *s, Batch batch);
void pipeline_loss(Pipeline *p, Stream *s, Batch batch);                                     /* like gpt_loss */
/* Like gpt_token_losses on the last stage, where it returns 1. Other stages return 0 and leave out unchanged. */
int  pipeline_token_losses(Pipeline *p, Stream *s, Batch batch, float *out);
/* like gpt_logits, on every stage */
void pipeline_logits(Pipeline *p, Stream *s, Batch batch, int64_t row, float *out);
/* Runs the forward of gpt_token_rows tokens of one sequence after `past` earlier tokens, which earlier calls have
 * computed. Writes the logits of the last token. The model must keep the past (gpt_keeps_past). */
void pipeline_token_logits(Pipeline *p, Stream *s, Batch batch, int64_t past, float *out);

#endif
